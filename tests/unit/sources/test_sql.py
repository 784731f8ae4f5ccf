"""Databases: every type survives, both engines read the same, and what need not travel stays."""

from __future__ import annotations

import sqlite3
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
import sqlalchemy

from strandline.batch.metadata import metadata_columns
from strandline.config.reads import ReadConfig
from strandline.engine.base import SqlEndpoint, SqlSource
from strandline.engine.local.workspace import LocalPlatform
from strandline.engine.sources.sql import opened, plan_read
from strandline.errors import CastError, ReadError
from strandline.lake.delta.log import open_table
from strandline.plan.job import Job
from strandline.plan.pushdown import predicates, pushed
from strandline.plan.watermark import Mark, limits
from strandline.sql.expr import col, select
from strandline.sql.expr import table as table_
from strandline.sql.portable import parse
from strandline.testing.frames import read_table
from strandline.testing.projects import make_project
from strandline.types import Clock, Schema, Table


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
    project = make_project(
        tmp_path, [node], connections={"erp": {"type": "sql", "url": url, **login}}
    )
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
    assert {"i": None, "s": None, "bin": None}.items() <= next(
        r for r in table.rows if r["i"] is None
    ).items()


def test_a_text_in_a_number_column_is_an_error_that_names_both(tmp_path, platform, shop):
    shop.execute("CREATE TABLE t (amount INTEGER)")
    shop.execute("INSERT INTO t VALUES ('twelve')")
    shop.commit()
    with pytest.raises(
        ReadError.__mro__[1], match="column `amount`: the value 'twelve' is not a bigint"
    ):
        run(tmp_path, platform, bronze({"table": "t"}))
    assert open_table(Table("t", str(tmp_path / "lake" / "t"))) is None


def test_a_query_with_a_cte_and_computed_columns(tmp_path, platform, shop):
    shop.execute("CREATE TABLE t (id INTEGER, amount DECIMAL(8,2))")
    shop.executemany("INSERT INTO t VALUES (?, ?)", [(i, i / 4) for i in range(10)])
    shop.commit()
    query = "WITH x AS (SELECT * FROM t) SELECT id, amount, id * 2 AS twice, amount / 3.0 AS third FROM x WHERE id > 7;"
    node = bronze({"query": query})
    node["write"]["add_metadata"] = {"extracted_at": False, "source_table": True}
    _, table = run(tmp_path, platform, node)
    assert dict(table.columns) == {
        "id": "bigint", "amount": "decimal(8,2)", "twice": "bigint", "third": "double", "_source_table": "string",
    }  # fmt: skip
    assert {r["_source_table"] for r in table.rows} == {"n (t)"}
    assert sorted((r["id"], r["amount"], r["twice"]) for r in table.rows) == [
        (8, Decimal("2.00"), 16),
        (9, Decimal("2.25"), 18),
    ]


@pytest.mark.parametrize(
    ("query", "url", "tables"),
    [
        (
            'SELECT * FROM public.orders o JOIN "Kunden" k ON k.id = o.id',
            "postgresql://db/shop",
            "public.orders, Kunden",
        ),
        ("SELECT * FROM [dbo].[Orders]", "jdbc:sqlserver://db;databaseName=shop", "dbo.Orders"),
        ("SELECT 1 AS one", "sqlite:///shop.db", None),
        ("this is read by the database alone (", "sqlite:///shop.db", None),
    ],
)
def test_a_query_goes_by_its_node_and_its_tables(tmp_path, query, url, tables):
    node = bronze({"query": query})
    node["write"]["add_metadata"] = {"source_table": True, "extracted_at": False}
    project = make_project(
        tmp_path, [node], connections={"erp": {"type": "sql", "url": url}}
    ).config
    ((name, value),) = metadata_columns(
        Job(project, project.config.nodes[0], Clock(datetime(2024, 1, 1)))
    )
    assert (name, value.name) == ("_source_table", f"n ({tables})" if tables else "n")


ENDINGS = [
    "-- all of them",
    ";\n-- all of them\n",
    "; /* all */ ;",
    "\n/* all\n of them */",
    " -- ü😀 ; --",
]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("where", ["sqlite", "postgres"])
def test_a_query_may_end_in_a_comment(tmp_path, shop, request, where, ending):
    url = (
        f"sqlite:///{tmp_path}/shop.db"
        if where == "sqlite"
        else request.getfixturevalue("postgres_url")
    )
    endpoint = SqlEndpoint("erp", sqlalchemy.make_url(url), lambda: None)
    query = f"/* keys */ SELECT 1 AS id, 'ü😀 -- ; ' AS name {ending}"
    statement = plan_read(SqlSource(endpoint, query=query), partitioned=False).statement
    with opened(endpoint) as connection:
        assert connection.exec_driver_sql(statement).one()[1] == "ü😀 -- ; "


@pytest.mark.long_on_spark
def test_a_query_with_a_comment_is_read_and_compared(tmp_path, platform, shop):
    shop.execute("CREATE TABLE t (id INTEGER, name TEXT)")
    shop.executemany("INSERT INTO t VALUES (?, 'a')", [(1,), (2,)])
    shop.commit()
    step = {
        "mode": "sql_compare",
        "keys": ["id"],
        "source_connection": "erp",
        "source_query": "SELECT id FROM t -- all",
    }
    node = bronze({"query": "SELECT id, name\nFROM t;\n-- all of them"})
    node["transform"] = {
        "steps": [{"operation": "detect_deletes", "params": {**step, "max_delete_percent": None}}]
    }
    node["write"] |= {"mode": "upsert", "keys": ["id"]}
    run(tmp_path, platform, node)
    shop.execute("DELETE FROM t WHERE id = 1")
    shop.commit()
    _, table = run(tmp_path, platform, node)
    assert {r["id"]: r["_is_deleted"] for r in table.rows} == {1: True, 2: False}


@pytest.mark.parametrize("column", ["id", "day"])
def test_partitioned_reads_lose_and_double_nothing(tmp_path, platform, shop, column):
    shop.execute("CREATE TABLE t (id INTEGER, day DATE)")
    shop.executemany(
        "INSERT INTO t VALUES (?, ?)",
        [(i, f"2024-{i % 12 + 1:02}-{i % 28 + 1:02}") for i in range(500)],
    )
    shop.execute("INSERT INTO t VALUES (NULL, NULL)")
    shop.commit()
    result, table = run(
        tmp_path, platform, bronze({"table": "t", "partition_column": column, "num_partitions": 4})
    )
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
        SqlEndpoint("erp", url, None),
        table="t",
        columns=columns_needed(node),
        where=tuple(predicates(node)),
    )
    return plan_read(source, partitioned=False).statement


def test_columns_and_filters_are_pushed_down(tmp_path, shop):
    text = statement(
        tmp_path,
        shop,
        [
            {
                "operation": "filter",
                "params": {"condition": "ID > 10 AND name = 'x' AND day >= DATE '2024-01-01'"},
            },
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
    assert "WHERE" not in statement(
        tmp_path, shop, [{"operation": "filter", "params": {"condition": condition}}]
    )


def test_a_pushed_filter_is_still_evaluated_here(tmp_path, platform, shop):
    shop.execute("CREATE TABLE t (id INTEGER, name TEXT COLLATE NOCASE)")
    shop.executemany("INSERT INTO t VALUES (?, ?)", [(1, "a"), (2, "A"), (3, "b")])
    shop.commit()
    node = bronze(
        {"table": "t"},
        transform={"steps": [{"operation": "filter", "params": {"condition": "name = 'a'"}}]},
    )
    result, table = run(tmp_path, platform, node)
    assert [r["id"] for r in table.rows] == [1]
    assert result.rows_read == 2  # the database's own collation let both through


# --- lower bounds of incremental reads ---------------------------------------------------------------------


def limited(endpoint_url, table, column, type_, low):
    """What arrives of a table when the database is given a lower bound, before the engine filters again."""
    found = limits(
        ReadConfig(
            connection="erp", table=table, incremental={"mode": "stateful", "column": column}
        ),
        Schema.of((column, type_)),
        {column: Mark(low, type_)},
        datetime(2024, 6, 15, tzinfo=UTC),
        "n",
    )
    endpoint = SqlEndpoint("erp", sqlalchemy.make_url(endpoint_url), None)
    assert found.predicate is not None
    source = SqlSource(endpoint, table=table, where=(found.predicate,))
    with LocalPlatform().workspace("n") as engine:
        relation = engine.scan(source).relation
        arrived = {r[0] for r in engine.fetch(select(col("id")).from_(table_(relation.name)))}
        kept = {
            r[0]
            for r in engine.fetch(
                select(col("id")).from_(table_(relation.name)).where(found.predicate)
            )
        }
        everything = engine.scan(SqlSource(endpoint, table=table)).relation
        expected = {
            r[0]
            for r in engine.fetch(
                select(col("id")).from_(table_(everything.name)).where(found.predicate)
            )
        }
    assert kept == expected, "the database dropped a row that the engine keeps"
    return arrived


SQLITE_LIMITS = [
    (
        "TIMESTAMP",
        "timestamp_ntz",
        datetime(2024, 6, 1, 0, 0),
        ["2024-06-01", "2024-06-01T00:00:00", "2024-06-01 00:00", " 2024-06-01 00:00:00.1 ", "2024-05-31 23:59:59.9"],
        ["2024-05-30 23:59:59", "2023-01-01"],
    ),
    (
        "TIMESTAMP WITH TIME ZONE",
        "timestamp",
        datetime(2024, 6, 1, 6, 0, tzinfo=UTC),
        ["2024-05-31T13:00:00-17:00", "2024-06-01T06:00:00Z", "2024-06-01 23:59:00+17:59", "2024-05-31T23:00:00-07:00"],
        ["2024-05-30T23:00:00-07:00"],
    ),
    ("DATE", "date", date(2024, 6, 1), ["2024-06-01", " 2024-06-01 ", "2025-01-01"], ["2024-05-31"]),
    ("TEXT COLLATE NOCASE", "string", "Z", ["Z", "_", "a", "é", "\U0001f600", "\uff5e"], ["A", "Y", "10"]),
    ("STRING", "string", "10", ["10", "9", "9.5", 9, 100, "a"], ["-1", "1"]),  # no type of SQLite: it keeps numbers
    ("DECIMAL(20,17)", "decimal(20,17)", Decimal("0.12345678901234600"), [0.1234567890123456, 0.2], [0.1]),
    ("INTEGER", "bigint", -5, [-5, "0", 7], [-6]),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "type_", "low", "inside", "outside"), SQLITE_LIMITS)
def test_sqlite_loses_no_row_to_a_lower_bound(
    tmp_path, shop, declared, type_, low, inside, outside
):
    shop.execute(f"CREATE TABLE t (id INTEGER, c {declared})")
    shop.executemany("INSERT INTO t VALUES (?, ?)", list(enumerate([*inside, None, *outside])))
    shop.commit()
    arrived = limited(f"sqlite:///{tmp_path / 'shop.db'}", "t", "c", type_, low)
    assert arrived == set(range(len(inside) + 1)), (
        "the NULL comes too, and what is far below does not travel"
    )


def test_a_time_that_is_none_is_told_even_below_the_bound(tmp_path, shop):
    shop.execute("CREATE TABLE t (id INTEGER, c TIMESTAMP)")
    shop.execute("INSERT INTO t VALUES (1, '12/05/2023')")
    shop.commit()
    with pytest.raises(CastError, match="12/05/2023"):
        limited(
            f"sqlite:///{tmp_path / 'shop.db'}", "t", "c", "timestamp_ntz", datetime(2024, 6, 1)
        )


def test_text_of_a_database_in_utf_16_is_compared_here(tmp_path, shop):
    shop.execute("PRAGMA encoding = 'UTF-16le'")
    shop.execute("CREATE TABLE t (id INTEGER, c TEXT)")
    shop.executemany("INSERT INTO t VALUES (?, ?)", [(1, "Ā"), (2, "a"), (3, "A")])
    shop.commit()
    assert limited(f"sqlite:///{tmp_path / 'shop.db'}", "t", "c", "string", "a") == {1, 2, 3}


POSTGRES_LIMITS = [
    (
        "timestamptz",
        "timestamp",
        datetime(2024, 6, 1, 0, 0, 0, 1, tzinfo=UTC),
        ["2024-06-01 02:00:00.000001+02", "2024-06-01 00:00:01+00"],
        ["2024-06-01 00:00:00+00", "2024-06-01 01:59:59+02"],
    ),
    (
        "timestamp",
        "timestamp_ntz",
        datetime(2024, 6, 1, 0, 0, 0, 1),
        ["2024-06-01 00:00:00.000001", "9999-12-31 00:00:00"],
        ["2024-06-01 00:00:00", "0001-01-01 00:00:00"],
    ),
    ("date", "date", date(2024, 6, 1), ["2024-06-01"], ["2024-05-31"]),
    ("numeric", "decimal(38,18)", Decimal("1.123456789012345679"), ["1.1234567890123456789", "2"], ["1.1"]),
    ("numeric(12,3)", "decimal(12,3)", Decimal("-5.250"), ["-5.25", "0"], ["-5.251"]),
    ("bigint", "bigint", -5, ["-5", "0"], ["-6"]),
    ("text", "string", "Z", ["Z", "a", "_", "é", "\U0001f600"], ["A", "10"]),
    ("text", "string", "a'b\\c%s", ["a'b\\c%s", "b"], ["a"]),
    ("char(5)", "string", "ab", ["ab", "b"], ["aa"]),
    ("uuid", "string", "b0000000-0000-0000-0000-000000000000", ["b0000000-0000-0000-0000-000000000000"],
     ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "type_", "low", "inside", "outside"), POSTGRES_LIMITS)
def test_postgres_applies_a_lower_bound_exactly(
    postgres_url, declared, type_, low, inside, outside
):
    engine = sqlalchemy.create_engine(postgres_url)
    with engine.begin() as c:
        c.exec_driver_sql("DROP TABLE IF EXISTS limited")
        c.exec_driver_sql(f"CREATE TABLE limited (id int, c {declared})")
        for number, value in enumerate([*inside, None, *outside]):
            c.exec_driver_sql(
                f"INSERT INTO limited VALUES (%s, CAST(%s AS {declared}))", (number, value)
            )
    engine.dispose()
    assert limited(postgres_url, "limited", "c", type_, low) == set(range(len(inside) + 1))


TYPES = {"n": "int", "t": "timestamp", "s": "string", "d": "date"}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("n >= 5 AND s >= 'a'", "n >= 5"),  # the rest stays here
        ("n >= 5 OR s >= 'a'", None),
        (
            "(t >= TIMESTAMP '2024-01-01 00:00:00+00:00' OR t IS NULL) AND (n >= 5 OR n IS NULL)",
            "(n >= 5 OR n IS NULL)",
        ),
        ("s >= 'a'", None),
        ("n >= 1e3", None),
        ("missing IS NULL", None),
        ("d >= DATE 'tomorrow'", None),
    ],
)
def test_other_databases_compare_numbers_and_dates_only(sql, expected):
    found = pushed(parse(sql, "test"), TYPES, "mysql")
    assert (found.sql() if found is not None else None) == expected
