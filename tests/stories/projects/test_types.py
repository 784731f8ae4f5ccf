"""Types survive, or are refused by the column's name: the same on both engines, and before anything is written."""

from __future__ import annotations

from datetime import datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy

from strandline.errors import StrandlineError
from strandline.testing.frames import read_table
from strandline.testing.projects import execute, make_project

READS: dict[str, dict[str, Any]] = {
    "parquet": {"connection": "files", "path": "t.parquet"},
    "json": {"connection": "files", "path": "t.json"},
    "erp": {"connection": "erp", "table": "t"},
}


class Place:
    """A project of one node, which reads what was put there and writes table `t`."""

    def __init__(self, folder, platform):
        self.folder, self.platform = folder, platform
        self.connection = {"type": "sql", "url": "sqlite:///shop.db"}

    def run(self, read, *, sql=None, steps=(), **write):
        node = {
            "name": "n",
            "read": READS[read] if isinstance(read, str) else read,
            "write": {"connection": "lake", "table": "t", "mode": "overwrite", **write},
        }
        node |= {"transformation_sql": sql} if sql else {}
        node |= {"transform": {"steps": list(steps)}} if steps else {}
        project = make_project(self.folder, [node], connections={"erp": self.connection})
        return project.run(platform=self.platform, check=True).nodes[0]

    def refused(self, read, **how):
        """What a run says that must fail and write nothing."""
        with pytest.raises(StrandlineError) as error:
            self.run(read, **how)
        assert not list((self.folder / "lake" / how.get("table", "t")).glob("_delta_log/*.json"))
        return f"{error.value.message} → {error.value.hint}"

    def parquet(self, **columns):
        (self.folder / "landing").mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), self.folder / "landing" / "t.parquet")

    def table(self):
        return read_table(self.folder / "lake" / "t")


@pytest.fixture
def place(tmp_path, platform):
    return Place(tmp_path, platform)


@pytest.mark.long_on_spark
def test_columns_that_differ_only_in_case_are_refused(place):
    execute(
        place.folder / "shop.db",
        "CREATE TABLE t (id INTEGER, name TEXT)",
        "INSERT INTO t VALUES (1, 'x')",
    )
    said = [place.refused("erp", sql="SELECT id AS a, name AS A FROM source")]
    said.append(place.refused({"connection": "erp", "query": "SELECT id AS a, name AS A FROM t"}))
    said.append(
        place.refused(
            "erp", steps=[{"operation": "rename", "params": {"columns": {"id": "a", "name": "A"}}}]
        )
    )
    place.parquet(a=[1], A=[2])
    said.append(place.refused("parquet"))
    place.parquet(s=pa.array([{"a": 1, "A": 2}]))
    said.append(place.refused("parquet"))
    (place.folder / "landing" / "t.json").write_text('{"a": 1, "A": 2}\n')
    said.append(place.refused("json"))
    for text in said:
        assert "two columns differ only in case or not at all" in text
        assert "`a`" in text
        assert "another name" in text


def test_what_a_table_cannot_hold_is_refused_with_its_column_and_a_cast(place):
    place.parquet(id=[1], at=pa.array([1], pa.timestamp("ns", tz="UTC")))
    said = place.refused("parquet")
    assert "`t.parquet`: column `at` is a timestamp in nanoseconds" in said
    assert "cast it to microseconds" in said
    place.parquet(id=[1], amount=pa.array([Decimal("1.50")], pa.decimal256(50, 2)))
    said = place.refused("parquet")
    assert (
        "column `amount` is decimal(50,2), and a decimal has at most 38 digits → cast it to decimal(38,2)"
        in said
    )
    place.parquet(id=[1], deep=pa.array([[{"at": time(1, 2)}]]))
    assert "column `deep` is time64[us], which no table can hold" in place.refused("parquet")
    execute(place.folder / "shop.db", "CREATE TABLE t (id INTEGER, amount DECIMAL(50,2))")
    said = place.refused("erp")
    assert "column `amount` is decimal(50,2), and a decimal has at most 38 digits" in said
    assert "CAST(amount AS decimal(38,2))" in said
    place.run("erp", sql="SELECT id FROM source")  # what is not read is in nobody's way


UPSERT = {"mode": "upsert", "keys": ["k"], "row_hash": False}
NESTED = {
    "s": pa.array([{"a": 1, "b": [Decimal("1.10")]}, None]),
    "l": pa.array([[datetime(2024, 1, 1)], []], pa.list_(pa.timestamp("us"))),
    "m": pa.array([[("x", 1)], None], pa.map_(pa.string(), pa.int32())),
}


def test_new_columns_of_every_kind_are_added(place):
    place.parquet(k=[1, 2], v=["a", "b"])
    place.run("parquet", **UPSERT)
    place.parquet(
        k=[1, 2], v=["a", "b"], n=pa.array([None, None], pa.int32()), u=pa.nulls(2), **NESTED
    )
    assert place.run("parquet", **UPSERT).updated >= 1
    table = place.table()
    assert dict(table.columns) == {
        "k": "bigint", "v": "string", "n": "int", "s": "struct<a:bigint,b:array<decimal(3,2)>>",
        "l": "array<timestamp_ntz>", "m": "map<string,int>",
    }  # fmt: skip
    first = next(r for r in table.rows if r["k"] == 1)
    assert (first["s"], first["l"]) == ({"a": 1, "b": [Decimal("1.10")]}, [datetime(2024, 1, 1)])
    assert dict(first["m"]) == {"x": 1}


def test_a_typed_column_full_of_nulls_is_added_at_once(tmp_path, pandas_platform):
    place = Place(tmp_path, pandas_platform)
    place.parquet(k=[1, 2], v=["a", "b"])
    place.run("parquet", **UPSERT)
    place.parquet(k=[1, 2], v=["a", "b"], n=pa.array([None, None], pa.int32()), u=pa.nulls(2))
    quiet = place.run("parquet", **UPSERT)
    assert (quiet.status, quiet.counts.written) == ("success", 0)  # a commit of a column alone
    assert place.run("parquet", **UPSERT).status == "unchanged"
    assert place.table().columns == [("k", "bigint"), ("v", "string"), ("n", "int")]
    place.parquet(k=[1, 2], v=["a", "b"], u=[7, None])
    place.run("parquet", **UPSERT)
    assert place.table().columns[-1] == ("u", "bigint")
    place.parquet(k=[1, 2], v=["a", "b"], u=pa.nulls(2))
    place.run("parquet", **UPSERT)  # NULL in every row is a value too, where the type is known
    assert {r["u"] for r in place.table().rows} == {None}


@pytest.mark.long_on_spark
def test_a_column_without_a_type_waits_for_its_first_value(place):
    execute(place.folder / "shop.db", "CREATE TABLE t (id INTEGER)", "INSERT INTO t VALUES (1)")
    place.run("erp", sql="SELECT id, NULL AS x FROM source", mode="append")
    assert place.table().columns == [("id", "bigint")]
    place.run("erp", sql="SELECT id, id AS x FROM source", mode="append")
    assert place.table().columns == [("id", "bigint"), ("x", "bigint")]
    place.run("erp", sql="SELECT id, NULL AS x FROM source", mode="append")
    assert sorted(str(r["x"]) for r in place.table().rows) == ["1", "None", "None"]


@pytest.fixture
def erp(postgres_url, monkeypatch):
    """Run statements in PostgreSQL; and how a project reaches it."""
    url = sqlalchemy.make_url(postgres_url)
    monkeypatch.setenv("STRANDLINE_TEST_PASSWORD", str(url.password))
    engine = sqlalchemy.create_engine(postgres_url)

    def sql(*statements):
        with engine.begin() as c:
            for statement in statements:
                c.exec_driver_sql(statement)
        where = f"postgresql://{url.host}:{url.port}/{url.database}"
        return {
            "type": "sql",
            "url": where,
            "user": url.username,
            "password": "${env:STRANDLINE_TEST_PASSWORD}",
        }

    yield sql
    engine.dispose()


STRANGE = [
    ("day", "date", "infinity"),
    ("at", "timestamp", "-infinity"),
    ("zoned", "timestamptz", "infinity"),
    ("day", "date", "0044-03-15 BC"),
    ("at", "timestamp", "10000-01-01 00:00:00"),
    ("n", "numeric", "NaN"),
    ("n", "numeric", "Infinity"),
    ("d", "numeric(12,3)", "NaN"),
]


@pytest.mark.long_on_spark
def test_values_that_only_postgresql_knows_fail_with_their_column(place, erp, engine_name):
    columns = ", ".join(f"{name} {type_}" for name, type_ in {n: t for n, t, _ in STRANGE}.items())
    place.connection = erp(
        "DROP TABLE IF EXISTS strange", f"CREATE TABLE strange (id int, {columns})"
    )
    read = {"connection": "erp", "table": "strange"}
    edges = "('0001-01-01', '0001-01-01', '9999-12-31 23:59:59.999999+00', -1.5, 999999999.999)"
    for name, _, value in (
        STRANGE if engine_name == "pandas" else STRANGE[::3]
    ):  # each is a job on Spark
        erp(
            "TRUNCATE strange", f"INSERT INTO strange (id, {name}) VALUES (1, NULL), (2, '{value}')"
        )
        said = place.refused(read)
        assert f"column `{name}`: the value '{value}' is not a " in said
        assert f"CAST({name} AS text)" in said
    erp(
        "TRUNCATE strange",
        f"INSERT INTO strange (day, at, zoned, n, d) VALUES {edges}, (NULL, NULL, NULL, NULL, NULL)",
    )
    assert place.run(read).inserted == 2
    erp("DROP TABLE strange", "CREATE TABLE strange (id int, n numeric(50,2))")
    assert "column `n` is decimal(50,2), and a decimal has at most 38 digits" in place.refused(
        read, table="u"
    )


FUNCTIONS = """
import pandas as pd
def at(text):
    return pd.to_datetime([text]).astype("datetime64[ns]")
def whole(frame):
    return frame.assign(at=at("2024-01-01 00:00:00.000001"), kind=frame["name"].astype("category"))
def finer(frame):
    return frame.assign(at=at("2024-01-01 00:00:00.000000001"))
def lasting(frame):
    return frame.assign(took=pd.to_timedelta([1], unit="s"))
def twice(frame):
    return frame.assign(NAME="x")
"""


def test_what_a_python_function_returns_keeps_its_values_or_is_refused(tmp_path, pandas_platform):
    """pandas keeps times in nanoseconds: they become microseconds, unless a value would change."""
    place = Place(tmp_path, pandas_platform)
    (tmp_path / "types_steps.py").write_text(FUNCTIONS)
    execute(tmp_path / "shop.db", "CREATE TABLE t (name TEXT)", "INSERT INTO t VALUES ('x')")

    def step(name):
        return [
            {
                "operation": "python",
                "params": {"function": f"types_steps.{name}", "engine": "pandas"},
            }
        ]

    assert "column `at` as timestamp[ns], and a table keeps timestamp[us]" in place.refused(
        "erp", steps=step("finer")
    )
    assert "column `took` as duration[" in place.refused("erp", steps=step("lasting"))
    assert "differ only in case or not at all: `name` and `NAME`" in place.refused(
        "erp", steps=step("twice")
    )
    place.run("erp", steps=step("whole"))
    assert dict(place.table().columns) == {
        "name": "string",
        "at": "timestamp_ntz",
        "kind": "string",
    }
    assert place.table().rows == [
        {"name": "x", "at": datetime(2024, 1, 1, 0, 0, 0, 1), "kind": "x"}
    ]
