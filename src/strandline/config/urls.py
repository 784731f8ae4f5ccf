"""Database URLs: SQLAlchemy's and JDBC's, translated into each other. No secrets are looked up here."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlencode

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

_JDBC_DRIVERS = {
    "sqlite": "org.sqlite.JDBC",
    "postgresql": "org.postgresql.Driver",
    "mysql": "com.mysql.cj.jdbc.Driver",
    "mariadb": "org.mariadb.jdbc.Driver",
    "sqlserver": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
    "oracle": "oracle.jdbc.OracleDriver",
}
_PYTHON_DRIVERS = {
    "mysql": "pymysql",
    "mariadb": "pymysql",
    "mssql": "pyodbc",
    "oracle": "oracledb",
}
_PYTHON_ONLY = {"driver", "charset", "host", "port"}
"""Parameters of Python's drivers that would mean something else, or nothing, to JDBC."""
DIALECTS = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "sqlite": "sqlite",
    "mysql": "mysql",
    "mariadb": "mysql",
    "mssql": "tsql",
    "sqlserver": "tsql",
    "oracle": "oracle",
}
"""The SQL of each kind of database, as sqlglot calls it."""
_LITERAL = re.compile(
    r"(?i)[?&;](?:password|passwd|pwd|token|secret|sslpassword|keystorepassword)=([^&;]+)"
)

_HOST = r"(?P<host>[^:/;?@]+)(?::(?P<port>\d+))?"
_SLASHES = re.compile(rf"//(?:(?P<login>[^/?]*)@)?{_HOST}/?(?P<name>[^?]*)(?:\?(?P<query>.*))?")
_SQLSERVER = re.compile(rf"//(?P<login>){_HOST}(?P<name>)(?P<query>;.*)?")
_ORACLE = re.compile(rf"thin:(?P<login>[^@]*)@(?://)?{_HOST}(?P<name>[:/][^?]+)")


class UrlError(ValueError):
    """A URL that cannot be understood or translated. Never shows the URL: it may hold a password."""


@dataclass(frozen=True)
class Database:
    """The parts of a database URL."""

    kind: str
    host: str | None = None
    port: int | None = None
    name: str | None = None
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    options: dict[str, str] = field(default_factory=dict, repr=False)
    python_driver: str | None = None

    def with_login(self, user: str | None, password: str | None) -> Database:
        return replace(
            self,
            user=self.user if user is None else user,
            password=self.password if password is None else password,
        )


def literal_password(url: str) -> bool:
    """Whether a URL (with its references still in it) holds a password in clear."""
    bare = re.sub(r"\$\{[^{}]*\}", "${}", url)
    login = re.search(r"://[^/?#@]*?:(.*)@", bare) or re.match(
        r"jdbc:oracle:thin:[^/@]*/(.*)@", bare
    )
    found = [login[1]] if login else []
    return any(text and "${}" not in text for text in found + _LITERAL.findall(bare))


def dialect_of(url: str) -> str:
    """The SQL that the database behind a URL speaks; empty when its references are still to be resolved."""
    kind = re.match(r"(?:jdbc:)?(\w+)", url)
    return DIALECTS.get(kind[1], "") if kind else ""


def parse(url: str) -> Database:
    """The parts of a SQLAlchemy or a JDBC URL."""
    if url.startswith("jdbc:"):
        return _parse_jdbc(url)
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(re.sub(r"^postgres(?=[:+])", "postgresql", url))
    except (ArgumentError, ValueError):
        # `from None`: the original error's text holds the URL.
        raise UrlError("this is not the URL of a database") from None
    options = {k: v if isinstance(v, str) else v[0] for k, v in parsed.query.items()}
    kind, _, driver = parsed.drivername.partition("+")
    return Database(
        kind,
        parsed.host,
        parsed.port,
        parsed.database,
        parsed.username,
        parsed.password,
        options,
        driver or None,
    )


def to_sqlalchemy(database: Database) -> URL:
    """The SQLAlchemy URL of a database."""
    from sqlalchemy.engine import URL

    return URL.create(
        f"{database.kind}+{database.python_driver}" if database.python_driver else database.kind,
        username=database.user,
        password=database.password,
        host=database.host,
        port=database.port,
        database=database.name,
        query=database.options,
    )


def to_jdbc(database: Database) -> str:
    """The JDBC URL of a database, without user and password."""
    host = f"{database.host or 'localhost'}" + (f":{database.port}" if database.port else "")
    options = {k: v for k, v in database.options.items() if k.casefold() not in _PYTHON_ONLY}
    query = f"?{urlencode(options)}" if options else ""
    if database.kind == "sqlite":
        return f"jdbc:sqlite:{database.name or ':memory:'}"
    if database.kind in ("postgresql", "mysql", "mariadb"):
        return f"jdbc:{database.kind}://{host}/{database.name or ''}{query}"
    if database.kind == "mssql":
        words = {"yes": "true", "no": "false"}
        settings = {"databaseName": database.name} if database.name else {}
        settings |= {k[:1].lower() + k[1:]: words.get(v.casefold(), v) for k, v in options.items()}
        return f"jdbc:sqlserver://{host}" + "".join(f";{k}={v}" for k, v in settings.items())
    if database.kind == "oracle":
        service = database.options.get("service_name")
        at = (
            f"//{host}/{service}"
            if service
            else f"{host if database.port else host + ':1521'}:{database.name or ''}"
        )
        return f"jdbc:oracle:thin:@{at}"
    raise UrlError(f"no JDBC URL is known for `{database.kind}`")


def jdbc_driver(url: str) -> str | None:
    """The JDBC class for a URL, when it is one of the known databases."""
    match = re.match(r"jdbc:(\w+):", url)
    return _JDBC_DRIVERS.get(match[1]) if match else None


def absolute(database: Database, root: Path) -> Database:
    """A SQLite file's path starts at the project's folder, not at the folder somebody happens to stand in."""
    name = database.name
    if (
        database.kind != "sqlite"
        or not name
        or name == ":memory:"
        or name.startswith("file::memory:")
    ):
        return database
    scheme = "file:" if name.startswith("file:") else ""
    return replace(database, name=scheme + os.path.normpath(root / name.removeprefix("file:")))


def _parse_jdbc(url: str) -> Database:
    kind, _, rest = url.removeprefix("jdbc:").partition(":")
    if kind == "sqlite":
        return Database("sqlite", name=rest.partition("?")[0] or ":memory:")
    if kind in ("postgresql", "mysql", "mariadb"):
        match = _SLASHES.fullmatch(rest)
        options = dict(parse_qsl(match["query"])) if match and match["query"] else {}
    elif kind == "sqlserver":
        match = _SQLSERVER.fullmatch(rest)
        pairs = (
            pair.partition("=")
            for pair in ((match and match["query"]) or "").split(";")
            if "=" in pair
        )
        options = {key: unquote(value) for key, _, value in pairs}
    elif kind == "oracle":
        match = _ORACLE.fullmatch(rest)
        options = {}
    else:
        raise UrlError("this JDBC URL is of a database that is not known")
    if not match:
        raise UrlError("this JDBC URL cannot be read")
    return _from_jdbc(kind, match, options)


def _from_jdbc(kind: str, match: re.Match[str], options: dict[str, str]) -> Database:
    fold = {key.casefold(): key for key in options}
    taken = {
        key: options.pop(fold[key])
        for key in ("user", "username", "password", "databasename", "database")
        if key in fold
    }
    name: str | None = match["name"] or taken.get("databasename") or taken.get("database")
    login, _, secret = (match["login"] or "").partition("/" if kind == "oracle" else ":")
    if kind == "oracle" and name:
        options, name = (
            ({"service_name": name[1:]}, None) if name.startswith("/") else ({}, name[1:])
        )
    kind = "mssql" if kind == "sqlserver" else kind
    return Database(
        kind,
        match["host"],
        int(match["port"]) if match["port"] else None,
        name,
        unquote(login) or taken.get("user") or taken.get("username"),
        unquote(secret) or taken.get("password"),
        options,
        _PYTHON_DRIVERS.get(kind),
    )
