"""Databases: every type survives, both engines read the same, and what need not travel stays."""

from __future__ import annotations

import sqlite3
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
import sqlalchemy

from strandline.engine.base import SqlEndpoint, SqlSource
from strandline.engine.sources.sql import plan_read
from strandline.errors import ReadError
from strandline.plan.pushdown import predicates
from strandline.testing.frames import read_table
from strandline.testing.projects import make_project


@pytest.fixture
def shop(tmp_path):
    connection = sqlite3.connect(tmp_path / "shop.db")
    yield connection
    connection.close()


def bronze(read, **node):
    return {
        "name": "n",
        "read": {"connection": "erp", "format": "sql", **read},
        "write": {"connection": "lake", "table": "t", "mode": "overwrite"},
        **node,
    }


def run(tmp_path, platform, node, url="sqlite:///shop.db", **login):
    project = make_project(tmp_path, [node], connections={"erp": {"type": "sql", "url": url, **login}})
    result = project.run(platform=platform, check=True).nodes[0]
    return result, read_table(tmp_path / "lake" / "t")


def test_sqlite_types_survive(tmp_path, platform, shop):
    shop.execute(
        "CREATE TABLE t (i INTEGER, big BIGINT, d DECIMAL(12,2), loose NUMERIC, r REAL, s VARCHAR(20), b BOOLEAN,"
        " day DATE, at TIMESTAMP, zoned TIMESTAMPTZ, bin BLOB, odd)"
    )
    shop.execute(
        "INSERT INTO t VALUES (1, 9223372036854775807, 19.99, 0.5, 0.1, '', 1, '2024-02-29',"
        " '2024-03-31 02:30:00.123456', '2024-03-31 02:30:00+02:00', x'00ff', 'x')"
    )
    shop.execute(f"INSERT INTO t VALUES ({', '.join(['NULL'] * 12)})")
    shop.commit()
    _, table = run(tmp_path, platform, bronze({"table": "t"}))
    assert dict(table.columns) == {
        "i": "bigint", "big": "bigint", "d": "decimal(12,2)", "loose": "decimal(38,18)", "r": "double", "s": "string",
        "b": "boolean", "day": "date", "at": "timestamp_ntz", "zoned": "timestamp", "bin": "binary", "odd": "string",
    }  # fmt: skip
    full = next(r for r in table.rows if r["i"] == 1)
    assert full == {
        "i": 1, "big": 9223372036854775807, "d": Decimal("19.99"), "loose": Decimal("0.5"), "r": 0.1, "s": "",
        "b": True, "day": date(2024, 2, 29), "at": datetime(2024, 3, 31, 2, 30, 0, 123456),
        "zoned": datetime(2024, 3, 31, 0, 30, tzinfo=UTC), "bin": b"\x00\xff", "odd": "x",
    }  # fmt: skip
    assert {"i": None, "s": None, "bin": None}.items() <= next(r for r in table.rows if r["i"] is None).items()


def test_a_text_in_a_number_column_is_an_error_that_names_both(tmp_path, platform, shop):
    shop.execute("CREATE TABLE t (amount INTEGER)")
    shop.execute("INSERT INTO t VALUES ('twelve')")
    shop.commit()
    with pytest.raises(ReadError.__mro__[1], match="column `amount`: the value 'twelve' is not a bigint"):
        run(tmp_path, platform, bronze({"table": "t"}))
    assert not (tmp_path / "lake" / "t").exists()


def test_a_query_with_a_cte_and_computed_columns(tmp_path, platform, shop):
    shop.execute("CREATE TABLE t (id INTEGER, amount DECIMAL(8,2))")
    shop.executemany("INSERT INTO t VALUES (?, ?)", [(i, i / 4) for i in range(10)])
    shop.commit()
    query = "WITH x AS (SELECT * FROM t) SELECT id, amount, id * 2 AS twice, amount / 3.0 AS third FROM x WHERE id > 7;"
    _, table = run(tmp_path, platform, bronze({"query": query}))
    assert dict(table.columns) == {"id": "bigint", "amount": "decimal(8,2)", "twice": "bigint", "third": "double"}
    assert sorted((r["id"], r["amount"], r["twice"]) for r in table.rows) == [
        (8, Decimal("2.00"), 16),
        (9, Decimal("2.25"), 18),
    ]


@pytest.mark.parametrize("column", ["id", "day"])
def test_partitioned_reads_lose_and_double_nothing(tmp_path, platform, shop, column):
    shop.execute("CREATE TABLE t (id INTEGER, day DATE)")
    shop.executemany("INSERT INTO t VALUES (?, ?)", [(i, f"2024-{i % 12 + 1:02}-{i % 28 + 1:02}") for i in range(500)])
    shop.execute("INSERT INTO t VALUES (NULL, NULL)")
    shop.commit()
    result, table = run(tmp_path, platform, bronze({"table": "t", "partition_column": column, "num_partitions": 4}))
    assert result.rows_read == 501
    assert sorted(r["id"] for r in table.rows if r["id"] is not None) == list(range(500))
    assert sum(r["id"] is None for r in table.rows) == 1


def test_postgres_types_survive(tmp_path, platform, postgres_url, monkeypatch):
    engine = sqlalchemy.create_engine(postgres_url)
    with engine.begin() as c:
        c.exec_driver_sql('DROP TABLE IF EXISTS "Types"')
        c.exec_driver_sql(
            'CREATE TABLE "Types" (id int, n numeric, d numeric(12,3), at timestamp, zoned timestamptz, day date,'
            " b boolean, bin bytea, t text, c char(5), u uuid, j jsonb, a int[], f4 real, f8 double precision,"
            " s smallint, big bigint, clock time)"
        )
        c.exec_driver_sql(
            'INSERT INTO "Types" VALUES (1, 1.1234567890123456789, 12.345, $$2024-03-31 02:30:00.123456$$,'
            " $$2024-03-31 02:30:00+02$$, $$1900-01-01$$, true, $$\\x00ff$$, $$h€llo$$, $$ab$$,"
            ' $$a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11$$, $${"k":1}$$, $${1,2}$$, 1.5, 0.1, 3, 9223372036854775807,'
            " $$10:11:12$$)"
        )
        c.exec_driver_sql('INSERT INTO "Types" (id, t) VALUES (2, $$$$)')
    engine.dispose()
    url = sqlalchemy.make_url(postgres_url)
    monkeypatch.setenv("STRANDLINE_TEST_PASSWORD", str(url.password))
    where = f"postgresql://{url.host}:{url.port}/{url.database}"
    login = {"user": url.username, "password": "${env:STRANDLINE_TEST_PASSWORD}"}
    _, table = run(tmp_path, platform, bronze({"table": "public.types"}), where, **login)
    assert dict(table.columns) == {
        "id": "int", "n": "decimal(38,18)", "d": "decimal(12,3)", "at": "timestamp_ntz", "zoned": "timestamp",
        "day": "date", "b": "boolean", "bin": "binary", "t": "string", "c": "string", "u": "string", "j": "string",
        "a": "string", "f4": "float", "f8": "double", "s": "smallint", "big": "bigint", "clock": "string",
    }  # fmt: skip
    first, second = sorted(table.rows, key=lambda r: r["id"])
    assert first == {
        "id": 1, "n": Decimal("1.123456789012345679"), "d": Decimal("12.345"), "bin": b"\x00\xff", "t": "h€llo",
        "at": datetime(2024, 3, 31, 2, 30, 0, 123456), "zoned": datetime(2024, 3, 31, 0, 30, tzinfo=UTC), "c": "ab",
        "day": date(1900, 1, 1), "b": True, "u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "j": '{"k": 1}', "a": "{1,2}",
        "f4": 1.5, "f8": 0.1, "s": 3, "big": 9223372036854775807, "clock": "10:11:12",
    }  # fmt: skip
    assert second["t"] == ""
    assert {k for k, v in second.items() if v is not None} == {"id", "t"}


def statement(tmp_path, shop, steps):
    """The statement that a node with these steps would send."""
    shop.execute("CREATE TABLE t (id INTEGER, name TEXT, amount DECIMAL(8,2), day DATE)")
    shop.commit()
    node = make_project(
        tmp_path,
        [bronze({"table": "t"}, transform={"steps": steps})],
        connections={"erp": {"type": "sql", "url": "sqlite:///shop.db"}},
    ).config.config.nodes[0]
    from strandline.plan.pushdown import columns_needed

    url = sqlalchemy.make_url(f"sqlite:///{tmp_path / 'shop.db'}")
    source = SqlSource(
        SqlEndpoint("erp", url, None), table="t", columns=columns_needed(node), where=tuple(predicates(node))
    )
    return plan_read(source, partitioned=False).statement


def test_columns_and_filters_are_pushed_down(tmp_path, shop):
    text = statement(
        tmp_path,
        shop,
        [
            {"operation": "filter", "params": {"condition": "ID > 10 AND name = 'x' AND day >= DATE '2024-01-01'"}},
            {"operation": "select", "params": {"columns": ["id", "name", "day"]}},
        ],
    )
    assert "amount" not in text
    assert '"q"."id" > 10' in text
    assert '"q"."name" = \'x\'' in text
    assert "2024-01-01" in text


@pytest.mark.parametrize(
    "condition",
    [
        "name > 'a'",  # collations order differently
        "name LIKE 'a%'",  # and some fold case
        "upper(name) = 'A'",
        "name = 5",  # Spark casts the text, SQLite the number
        "id > 10 OR length(name) = 3",
    ],
)
def test_a_filter_that_a_database_might_read_differently_stays_here(tmp_path, shop, condition):
    assert "WHERE" not in statement(tmp_path, shop, [{"operation": "filter", "params": {"condition": condition}}])


def test_a_pushed_filter_is_still_evaluated_here(tmp_path, platform, shop):
    shop.execute("CREATE TABLE t (id INTEGER, name TEXT COLLATE NOCASE)")
    shop.executemany("INSERT INTO t VALUES (?, ?)", [(1, "a"), (2, "A"), (3, "b")])
    shop.commit()
    node = bronze({"table": "t"}, transform={"steps": [{"operation": "filter", "params": {"condition": "name = 'a'"}}]})
    result, table = run(tmp_path, platform, node)
    assert [r["id"] for r in table.rows] == [1]
    assert result.rows_read == 2  # the database's own collation let both through
