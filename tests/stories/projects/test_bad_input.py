"""What goes wrong outside: each fault is told in our words, names what to do, and leaves nothing half written."""

from __future__ import annotations

import socket
import sqlite3
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy
from deltalake import write_deltalake
from sqlglot import exp

from strandline.errors import StrandlineError, UnknownColumn
from strandline.project import load
from strandline.sql.portable import parse
from strandline.sql.spoken import spoken
from strandline.testing.frames import read_table
from strandline.testing.projects import make_project

SECRET = "not-the-right-one"


@pytest.fixture
def shop(tmp_path):
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("CREATE TABLE t (id INTEGER, name TEXT, amount REAL)")
        connection.executemany(
            "INSERT INTO t VALUES (?, ?, ?)", [(1, "a", 0.5), (1, "b", 1.5), (None, "c", 2.5)]
        )
    connection.close()
    return "sqlite:///shop.db"


def failed(tmp_path, platform, url, *, read=None, steps=(), sql=None, login=None, **write):
    """Run one node that must fail; returns its error."""
    node = {
        "name": "n",
        "read": {"connection": "erp", **(read or {"table": "t"})},
        "write": {"connection": "lake", "table": "t", "mode": "append", **write},
    }
    if steps:
        node["transform"] = {
            "steps": [{"operation": name, "params": params} for name, params in steps]
        }
    if sql:
        node["transformation_sql"] = sql
    connections = {"erp": {"type": "sql", "url": url, **(login or {})}}
    before = committed(tmp_path)
    project = make_project(tmp_path, [node], connections=connections)
    result = project.run(platform=platform)
    error = result.nodes[0].error
    assert result.exit_code == 1
    assert error is not None
    text = f"{error['message']} {error['hint']}"
    assert SECRET not in text
    assert not any(
        word in text
        for word in ("Traceback", "java.", "py4j", "\tat ", "org.apache", "sqlalchemy", "\n")
    )
    assert committed(tmp_path) == before
    assert error["file"] == "strandline.yaml"
    assert line_of(tmp_path, error)
    return error


def line_of(tmp_path, error):
    """The text of the line that an error names."""
    return (tmp_path / "strandline.yaml").read_text().splitlines()[error["line"] - 1].strip()


def committed(tmp_path):
    """What the table's log holds; files of a write that failed are nobody's, and may stay."""
    return sorted(p.name for p in (tmp_path / "lake" / "t" / "_delta_log").glob("*.json"))


def test_a_dead_database(tmp_path, platform):
    with socket.socket() as taken:  # bound and not listening: nobody answers there
        taken.bind(("127.0.0.1", 0))
        url = f"postgresql://127.0.0.1:{taken.getsockname()[1]}/shop"
        error = failed(tmp_path, platform, url, login={"user": "etl"})
    assert error["code"] == "source_down"
    assert "connection `erp`: the database cannot be reached" in error["message"]


@pytest.mark.long_on_spark
def test_a_wrong_password(tmp_path, platform, postgres_url, monkeypatch):
    url = sqlalchemy.make_url(postgres_url)
    monkeypatch.setenv("STRANDLINE_TEST_PASSWORD", SECRET)
    login = {"user": url.username, "password": "${env:STRANDLINE_TEST_PASSWORD}"}
    error = failed(
        tmp_path, platform, f"postgresql://{url.host}:{url.port}/{url.database}", login=login
    )
    assert (
        error["message"]
        == f"connection `erp`: the database refused user `{url.username}`: wrong user or password"
    )
    assert "password:" in error["hint"]


def test_a_connection_lost_in_the_middle_of_reading(tmp_path, platform, postgres_url, monkeypatch):
    url = sqlalchemy.make_url(postgres_url)
    monkeypatch.setenv("STRANDLINE_TEST_PASSWORD", str(url.password))
    login = {"user": url.username, "password": "${env:STRANDLINE_TEST_PASSWORD}"}
    dies = "SELECT g, CASE WHEN g = 90000 THEN pg_terminate_backend(pg_backend_pid()) END AS x "
    dies += "FROM generate_series(1, 99999) g"
    where = f"postgresql://{url.host}:{url.port}/{url.database}"
    error = failed(tmp_path, platform, where, read={"query": dies}, login=login)
    assert error["code"] == "source_down"
    assert "terminating connection" in error["message"]


@pytest.mark.long_on_spark
def test_a_password_that_is_not_set(tmp_path, platform, monkeypatch):
    monkeypatch.delenv("STRANDLINE_TEST_PASSWORD", raising=False)
    login = {"user": "etl", "password": "${env:STRANDLINE_TEST_PASSWORD}"}
    error = failed(tmp_path, platform, "postgresql://127.0.0.1:1/shop", login=login)
    assert "the environment variable `STRANDLINE_TEST_PASSWORD` is not set" in error["message"]


@pytest.mark.long_on_spark
def test_a_missing_database_file(tmp_path, platform):
    error = failed(tmp_path, platform, "sqlite:///gone.db")
    assert "there is no SQLite file gone.db" in error["message"]
    assert not (tmp_path / "gone.db").exists()  # asking for it did not make it


@pytest.mark.long_on_spark
def test_a_missing_table_names_the_nearest(tmp_path, platform, shop):
    error = failed(tmp_path, platform, shop, read={"table": "tt"})
    assert error["message"] == "connection `erp`: there is no table `tt`"
    assert error["hint"] == "did you mean `t`?"


def test_a_query_the_database_refuses(tmp_path, platform, shop):
    error = failed(tmp_path, platform, shop, read={"query": "SELECT nope FROM t"})
    assert "no such column: nope" in error["message"]


@pytest.mark.long_on_spark
def test_a_table_that_is_not_delta(tmp_path, platform, shop):
    (tmp_path / "lake" / "t").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), tmp_path / "lake" / "t" / "part-0.parquet")
    error = failed(tmp_path, platform, shop)
    assert error["message"] == "lake.t: what is stored there is not a Delta table"
    assert error["hint"]


LONG = partial(pytest.param, marks=pytest.mark.long_on_spark)


@pytest.mark.parametrize(
    ("steps", "sql", "write"),
    [
        ([("filter", {"condition": "amuont > 1"})], None, {}),
        LONG([("select", {"columns": ["id", "amuont"]})], None, {}),
        LONG([("cast", {"columns": {"amuont": "int"}})], None, {}),
        LONG([("deduplicate", {"keys": ["id"], "order_by": "amuont DESC"})], None, {}),
        LONG([], "SELECT source.amuont FROM source", {}),
        ([], "SELECT amuont FROM source", {}),
        ([], None, {"mode": "upsert", "keys": ["amuont"]}),
        ([], None, {"partition_by": ["amuont"]}),
    ],
)
def test_a_column_that_does_not_exist_names_the_nearest(
    tmp_path, platform, shop, steps, sql, write
):
    error = failed(tmp_path, platform, shop, steps=steps, sql=sql, **write)
    assert error["code"] == "unknown_column"
    assert "there is no column `amuont`; there are: id, name, amount" in error["message"]
    assert error["hint"] == "did you mean `amount`?"


def test_a_value_that_cannot_be_cast(tmp_path, platform, shop):
    error = failed(tmp_path, platform, shop, steps=[("cast", {"columns": {"name": "date"}})])
    assert error["code"] == "cast"
    assert "is not a date" in error["message"]
    assert "column `name`" in error["message"]


def test_duplicate_keys_are_shown(tmp_path, platform, shop):
    error = failed(tmp_path, platform, shop, mode="upsert", keys=["id"])
    assert error["code"] == "duplicate_keys"
    assert (
        "1 key of (id) occurs more than once in the rows to write, for example id=1"
        in error["message"]
    )
    assert "deduplicate" in error["hint"]
    assert load(tmp_path).plan(platform=platform).nodes[0].error == error  # a plan says the same


@pytest.mark.long_on_spark
def test_duplicate_keys_against_an_existing_table(tmp_path, platform, shop):
    node = {
        "name": "n",
        "read": {"connection": "erp", "query": "SELECT * FROM t WHERE name <> 'b'"},
        "write": {"connection": "lake", "table": "t", "mode": "upsert", "keys": ["id"]},
    }
    make_project(tmp_path, [node], connections={"erp": {"type": "sql", "url": shop}}).run(
        platform=platform, check=True
    )
    error = failed(tmp_path, platform, shop, mode="upsert", keys=["id"])
    assert error["code"] == "duplicate_keys"  # although one of the two equals the stored row
    assert len(read_table(tmp_path / "lake" / "t").rows) == 2


def test_a_type_the_table_cannot_hold(tmp_path, platform, shop):
    node = {
        "name": "n",
        "read": {"connection": "erp", "query": "SELECT id, 1 AS amount FROM t"},
        "write": {"connection": "lake", "table": "t", "mode": "append"},
    }
    make_project(tmp_path, [node], connections={"erp": {"type": "sql", "url": shop}}).run(
        platform=platform, check=True
    )
    error = failed(tmp_path, platform, shop)
    assert error["message"] == (
        "lake.t: column `amount` is bigint in the table, but the rows bring double, "
        "and Delta has no type for both that the column can become"
    )


@pytest.mark.long_on_spark
def test_division_by_zero(tmp_path, platform, shop):
    error = failed(tmp_path, platform, shop, sql="SELECT id / (amount - amount) AS x FROM source")
    assert "division by zero" in error["message"].lower()


@pytest.mark.long_on_spark
def test_a_name_that_delta_cannot_hold(tmp_path, platform, shop):
    error = failed(
        tmp_path, platform, shop, steps=[("rename", {"columns": {"name": "first name"}})]
    )
    assert "cannot have a column called `first name`" in error["message"]
    assert "first_name" in error["hint"]


@pytest.mark.parametrize(
    ("wrong", "line", "told"),
    [
        ({"steps": [("drop", {"columns": ["amount"]}), ("filter", {"condition": "amount > 1"})]}, "- operation: filter",
         "n: transform.steps[1] (filter): "),
        ({"sql": "SELECT source.amuont FROM source"}, "transformation_sql: SELECT source.amuont FROM source",
         "n: transformation_sql, source: "),
        ({"read": {"table": "tt"}}, "read:", "connection `erp`: "),
        ({"partition_by": ["amuont"]}, "partition_by:", "n: write.partition_by: "),
        ({"mode": "upsert", "keys": ["id"]}, "- name: n", "1 key of (id) occurs more than once in the rows to write, "),
    ],
)  # fmt: skip
def test_an_error_names_the_line_of_the_key_to_change(
    tmp_path, pandas_platform, shop, wrong, line, told
):
    error = failed(tmp_path, pandas_platform, shop, **wrong)
    assert line_of(tmp_path, error) == line
    assert error["message"].startswith(told)
    with pytest.raises(StrandlineError) as raised:
        load(tmp_path).run(platform=pandas_platform, check=True)
    assert raised.value.line == error["line"]


def test_the_second_target_of_a_node_has_a_line_of_its_own(tmp_path, pandas_platform, shop):
    writes = [
        {"connection": "lake", "table": t, "mode": "append", "partition_by": [c]}
        for t, c in (("a", "id"), ("b", "x"))
    ]
    node = {
        "name": "n",
        "read": {"connection": "erp", "query": "SELECT id, name FROM t"},
        "write": writes,
    }
    project = make_project(tmp_path, [node], connections={"erp": {"type": "sql", "url": shop}})
    first, second = project.run(platform=pandas_platform).nodes
    assert (
        line_of(tmp_path, first.error) == "- name: n"
    )  # it was taken back, because the other one failed
    lines = (tmp_path / "strandline.yaml").read_text().splitlines()
    assert lines[second.error["line"] - 1 : second.error["line"] + 1] == [
        "    partition_by:",
        "    - x",
    ]


def test_a_secret_that_is_not_set_is_told_at_its_connection(tmp_path, pandas_platform, monkeypatch):
    monkeypatch.delenv("STRANDLINE_TEST_PASSWORD", raising=False)
    login = {"user": "etl", "password": "${env:STRANDLINE_TEST_PASSWORD}"}
    error = failed(tmp_path, pandas_platform, "postgresql://127.0.0.1:1/shop", login=login)
    assert line_of(tmp_path, error) == "password: ${env:STRANDLINE_TEST_PASSWORD}"


def test_a_wrong_column_of_a_join_lists_the_columns_of_each_source(tmp_path, platform, shop):
    reads = [{"connection": "erp", "table": "t", "alias": a} for a in ("a", "b")]
    sql = "SELECT a.id, nmae FROM a JOIN (SELECT id AS other FROM b) x ON x.other = a.id"
    node = {"name": "n", "sources": reads, "transformation_sql": sql}
    node["write"] = {"connection": "lake", "table": "t", "mode": "overwrite"}
    error = (
        make_project(tmp_path, [node], connections={"erp": {"type": "sql", "url": shop}})
        .run(platform=platform)
        .nodes[0]
        .error
    )
    assert error["message"] == (
        "n: transformation_sql: there is no column `nmae`; there are: a: id, name, amount; b: id, name, amount"
    )
    assert error["hint"] == "did you mean `name`?"


def test_of_very_many_columns_the_nearest_are_listed():
    error = UnknownColumn("amuont", [*(f"column_{i}" for i in range(200)), "amount"], where="n")
    assert error.message.startswith(
        "n: there is no column `amuont`; there are 201, the nearest: amount, "
    )
    assert len(error.message) < 250
    assert error.hint == "did you mean `amount`?"


@pytest.mark.long_on_spark
def test_an_alias_that_is_no_source_is_told_where_a_struct_might_have_been(tmp_path, platform):
    """Where rows may hold a struct only the run can tell: `k.id` might be a part of `k`."""
    landing = tmp_path / "landing"
    landing.mkdir()
    pq.write_table(pa.table({"id": [1], "k": [{"x": 2}]}), landing / "a.parquet")
    node = {
        "name": "n",
        "read": {"connection": "files", "path": "a.parquet"},
        "transformation_sql": "SELECT k.x FROM source",
    }
    node["write"] = {"connection": "lake", "table": "t", "mode": "overwrite"}
    assert make_project(tmp_path, [node]).run(platform=platform).nodes[0].inserted == 1
    node["transformation_sql"] = "SELECT sorce.id FROM source"
    error = make_project(tmp_path, [node]).run(platform=platform).nodes[0].error
    assert (
        error["message"]
        == "n: transformation_sql: `sorce.id`: `sorce` is not one of the sources: `source`"
    )
    assert error["hint"] == "did you mean `source`?"


@pytest.mark.parametrize(
    "written",
    [
        "date_format(name, 'y')",
        "Collect_List(name)",
        "zeroifnull(id)",
        "transform(array(id), x -> x)",
    ],
)
def test_a_function_is_named_as_it_was_written(written):
    tree = parse(f"SELECT {written} FROM source", "")
    function = next(tree.find_all(exp.Func))
    assert spoken(function) == f"the function {written[: written.index('(')]}()"


@pytest.mark.parametrize(
    "mode", ["append", pytest.param("upsert", marks=pytest.mark.long_on_spark)]
)
def test_not_null_names_the_column_and_nothing_is_written(tmp_path, platform, shop, mode):
    """Also no column is added: the rows are looked at before the table gets its new columns."""
    declared = pa.schema(
        [pa.field("id", pa.int64()), pa.field("name", pa.string(), nullable=False)]
    )
    write_deltalake(tmp_path / "lake" / "t", pa.table({"id": [9], "name": ["z"]}, declared))
    write = {"mode": mode, **({"keys": ["id"]} if mode == "upsert" else {})}
    query = "SELECT 1 AS id, NULL AS name, 'x' AS new UNION ALL SELECT 2, 'b', 'y' ORDER BY id"
    error = failed(
        tmp_path,
        platform,
        shop,
        read={"query": query},
        steps=[("cast", {"columns": {"name": "string"}})],
        **write,
    )
    some = ", for example id=1" if mode == "upsert" else ""
    assert error["message"] == (
        f"lake.t: column `name` is NOT NULL in the table, and 1 of the rows to write has NULL there{some}; "
        "nothing was written"
    )
    error = failed(tmp_path, platform, shop, read={"query": "SELECT 1 AS id, 'x' AS new"}, **write)
    told = "lake.t: column `name` is NOT NULL in the table, and the rows to write do not bring it; nothing was written"
    assert error["message"] == told
    planned = load(tmp_path).plan(platform=platform).nodes[0]
    assert planned.error == error
    assert read_table(tmp_path / "lake" / "t").names == ["id", "name"]
