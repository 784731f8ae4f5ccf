# ruff: noqa: E501 – one line per case reads as a table
"""Secrets, places and URLs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.config.conftest import Write, changed

from strandline.config import urls
from strandline.config.connections import FilesConnection, LakeConnection, SqlConnection
from strandline.config.load import load_project
from strandline.config.resolve import (
    control_location,
    jdbc,
    locate,
    place,
    resolve_secrets,
    secret_values,
    sqlalchemy_url,
    unseen,
)
from strandline.errors import ConfigError
from strandline.words import redact

ROOT = Path("/srv/shop")


def sql(url: str, **fields: str) -> SqlConnection:
    return SqlConnection(type="sql", url=url, **fields)  # type: ignore[arg-type]


def test_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "${env:B}")
    monkeypatch.setenv("B", "hunter2")
    assert (
        resolve_secrets("x${env:A}y${env:B}", key="k") == "x${env:B}yhunter2"
    )  # values are not looked into
    monkeypatch.delenv("A")
    with pytest.raises(
        ConfigError, match=r"connections.erp.password: the environment variable `A` is not set"
    ) as caught:
        resolve_secrets("${env:B}${env:A}", key="connections.erp.password")
    assert "hunter2" not in str(caught.value)


def test_redact() -> None:
    assert redact("p@ss/w p%40ss%2Fw p%40ss/w", ["p@ss/w"]) == "*** *** ***"
    assert redact("user sa says", ["sa", ""]) == "user *** says"
    assert redact("abcdef abc", ["abcd", "abcdef"]) == "*** abc"


def test_secret_values(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P", "hunter2")
    monkeypatch.setenv("S3", "s3cret")
    main = changed(
        'url: "sqlite:///shop.db"',
        'url: "postgresql://h/d", user: "${env:UNSET}", password: "${env:P}"',
    )
    main = main.replace("engine: pandas", 'spark: {config: {a: "${env:S3}", b: 1}}')
    assert secret_values(load_project(write(main)).config) == ["hunter2", "s3cret"]


def test_locate(write: Write) -> None:
    folder = write()
    project = load_project(folder)
    assert locate(project, "bronze", "customers") == str(folder / "lake/bronze/customers")
    assert locate(project, "files", "in/*.csv") == str(folder / "landing/in/*.csv")
    assert locate(project, "files", ".") == str(folder / "landing")
    cloud = LakeConnection(type="lake", path="s3://bucket/silver/")
    assert place(cloud, "a/b", folder) == "s3://bucket/silver/a/b"
    assert control_location(project.config.connections, None, folder) == str(
        folder / "lake/bronze/_strandline"
    )
    assert control_location({}, None, folder) == str(folder / ".strandline")
    for connection, name in (("bronze", "../x"), ("erp", "x"), ("nobody", "x")):
        with pytest.raises(ConfigError):
            locate(project, connection, name)


URLS = {
    "sqlite:///shop.db": ("sqlite:////srv/shop/shop.db", "jdbc:sqlite:/srv/shop/shop.db", "org.sqlite.JDBC"),
    "sqlite:////abs/shop.db": ("sqlite:////abs/shop.db", "jdbc:sqlite:/abs/shop.db", "org.sqlite.JDBC"),
    "jdbc:sqlite:data/shop.db": ("sqlite:////srv/shop/data/shop.db", "jdbc:sqlite:/srv/shop/data/shop.db", "org.sqlite.JDBC"),
    "postgresql://db/shop": ("postgresql://db/shop", "jdbc:postgresql://db/shop", "org.postgresql.Driver"),
    "postgres://db:5433/shop?sslmode=require": ("postgresql://db:5433/shop?sslmode=require", "jdbc:postgresql://db:5433/shop?sslmode=require", "org.postgresql.Driver"),
    "postgresql+psycopg://db/shop": ("postgresql+psycopg://db/shop", "jdbc:postgresql://db/shop", "org.postgresql.Driver"),
    "jdbc:postgresql://db:5433/shop?sslmode=require": ("postgresql://db:5433/shop?sslmode=require", "jdbc:postgresql://db:5433/shop?sslmode=require", "org.postgresql.Driver"),
    "mysql+pymysql://db/shop?charset=utf8mb4": ("mysql+pymysql://db/shop?charset=utf8mb4", "jdbc:mysql://db/shop", "com.mysql.cj.jdbc.Driver"),
    "jdbc:mysql://db:3306/shop": ("mysql+pymysql://db:3306/shop", "jdbc:mysql://db:3306/shop", "com.mysql.cj.jdbc.Driver"),
    "jdbc:mariadb://db/shop": ("mariadb+pymysql://db/shop", "jdbc:mariadb://db/shop", "org.mariadb.jdbc.Driver"),
    "mssql+pyodbc://db:1433/shop?driver=ODBC+Driver+18+for+SQL+Server&Encrypt=yes": ("mssql+pyodbc://db:1433/shop?Encrypt=yes&driver=ODBC+Driver+18+for+SQL+Server", "jdbc:sqlserver://db:1433;databaseName=shop;encrypt=true", "com.microsoft.sqlserver.jdbc.SQLServerDriver"),
    "jdbc:sqlserver://db:1433;databaseName=shop;encrypt=true": ("mssql+pyodbc://db:1433/shop?encrypt=true", "jdbc:sqlserver://db:1433;databaseName=shop;encrypt=true", "com.microsoft.sqlserver.jdbc.SQLServerDriver"),
    "oracle+oracledb://db:1521/?service_name=shop": ("oracle+oracledb://db:1521/?service_name=shop", "jdbc:oracle:thin:@//db:1521/shop", "oracle.jdbc.OracleDriver"),
    "oracle://db/XE": ("oracle://db/XE", "jdbc:oracle:thin:@db:1521:XE", "oracle.jdbc.OracleDriver"),
    "jdbc:oracle:thin:@//db:1521/shop": ("oracle+oracledb://db:1521?service_name=shop", "jdbc:oracle:thin:@//db:1521/shop", "oracle.jdbc.OracleDriver"),
    "jdbc:oracle:thin:@db:1521:XE": ("oracle+oracledb://db:1521/XE", "jdbc:oracle:thin:@db:1521:XE", "oracle.jdbc.OracleDriver"),
}  # fmt: skip


@pytest.mark.parametrize(("url", "expected"), URLS.items(), ids=URLS)
def test_urls(url: str, expected: tuple[str, str, str]) -> None:
    connection = sql(url, user="etl", password="p@ss")
    alchemy, target = sqlalchemy_url(connection, ROOT), jdbc(connection, ROOT)
    assert (alchemy.username, alchemy.password) == ("etl", "p@ss") == (target.user, target.password)
    assert sqlalchemy_url(sql(url), ROOT).render_as_string() == expected[0]
    assert (target.url, target.driver) == expected[1:]
    assert "p@ss" not in repr(target) + repr(connection) + repr(alchemy)


def test_secrets_in_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("U", "etl")
    monkeypatch.setenv("P", "p@ss:/w?")
    monkeypatch.setenv("URL", "postgresql://u:pw@db/shop")
    for url in (
        "postgresql://${env:U}:${env:P}@db/shop",
        "jdbc:postgresql://db/shop?user=${env:U}&password=${env:P}",
    ):
        assert (
            sqlalchemy_url(sql(url), ROOT).username,
            sqlalchemy_url(sql(url), ROOT).password,
        ) == ("etl", "p@ss:/w?")
        assert jdbc(sql(url), ROOT).url == "jdbc:postgresql://db/shop"
        assert jdbc(sql(url), ROOT).password == "p@ss:/w?"
    assert sqlalchemy_url(sql("${env:URL}"), ROOT).password == "pw"
    oracle = sqlalchemy_url(sql("jdbc:oracle:thin:${env:U}/${env:P}@db:1521:XE"), ROOT)
    assert (oracle.username, oracle.password) == ("etl", "p@ss:/w?")


def test_jdbc_overrides_and_unknown_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    target = jdbc(sql("snowflake://h/d", jdbc_url="jdbc:snowflake://h", driver="a.B"), ROOT)
    assert (target.url, target.driver) == ("jdbc:snowflake://h", "a.B")
    monkeypatch.setenv("PW", "hunter2")
    for url in (
        "snowflake://u:${env:PW}@h/d",
        "nonsense ${env:PW}",
        "jdbc:db2://h/${env:PW}",
        "postgresql://h:port/${env:PW}",
    ):
        with pytest.raises(ConfigError) as caught:
            jdbc(sql(url), ROOT)
        assert "hunter2" not in str(caught.value) + repr(caught.value.__cause__) + repr(
            caught.value.__context__
        )


def test_only_clear_passwords_are_clear() -> None:
    assert not urls.literal_password("postgresql://etl@db:5432/shop")
    assert not urls.literal_password("jdbc:oracle:thin:@db:1521:XE")
    assert urls.literal_password("mysql://root:pw@db/shop")


def test_folders_that_executors_may_not_see(write: Write) -> None:
    connections = {
        "erp": sql("sqlite:///shop.db"),
        "files": FilesConnection(type="files", path="landing"),
        "shared": LakeConnection(type="lake", path="/mnt/lake", shared=True),
    }
    assert list(unseen(connections, "local[*]")) == []
    assert [name for name, _, _ in unseen(connections, "k8s://host")] == ["files"]
    shared = changed("engine: pandas", "spark: {master: 'spark://host:7077'}").replace(
        "landing}", "landing, shared: true}"
    )
    project = load_project(
        write(
            shared.replace("/bronze}", "/bronze, shared: true}").replace(
                "/silver}", "/silver, shared: true}"
            )
        )
    )
    assert project.config.connections["bronze"].shared  # type: ignore[union-attr]
    alone = write(changed("engine: pandas", "spark: {master: 'spark://host:7077'}"))
    assert load_project(alone, "pandas")  # on the local engine nobody asks the master
    with pytest.raises(ConfigError):
        load_project(alone)
