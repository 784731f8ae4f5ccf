"""Reading lake tables in process: partition values as the log says, and tables that Spark wrote in its own ways."""

from __future__ import annotations

import string
from datetime import date

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from strandline.engine.local.failures import translated
from strandline.errors import ConfigError, TableError
from strandline.testing.frames import read_table
from strandline.testing.projects import make_project

AWKWARD = ["a b", "x%y", "ü/ö", None, "q'uote", "c=d", " lead", "a+b", "a:b", "100%25"]


def copied(tmp_path, platform, sql="SELECT * FROM source"):
    node = {
        "name": "n",
        "read": {"connection": "lake", "table": "from"},
        "transformation_sql": sql,
        "write": {"connection": "lake", "table": "to", "mode": "overwrite"},
    }
    make_project(tmp_path, [node]).run(platform=platform, check=True)
    return read_table(tmp_path / "lake" / "to")


def test_partition_values_come_from_the_log(tmp_path, platform):
    rows = pa.table(
        {
            "id": pa.array(range(len(AWKWARD)), pa.int64()),
            "p": pa.array(AWKWARD, pa.string()),
            "d": pa.array([date(2024, 2, 29), None] * 5, pa.date32()),
        }
    )
    write_deltalake(tmp_path / "lake" / "from", rows, partition_by=["p", "d"])
    found = copied(tmp_path, platform)
    assert sorted((r["id"], r["p"], r["d"]) for r in found.rows) == [
        tuple(r.values()) for r in rows.to_pylist()
    ]


def test_a_folder_with_an_awkward_name(tmp_path, pandas_platform):
    """What deltalake calls the place of a table is an address, with its blanks and umlauts in percent signs."""
    place = tmp_path / "my lake, 100% ü"
    place.mkdir()
    write_deltalake(
        place / "lake" / "from", pa.table({"id": [1, 2], "p": AWKWARD[:2]}), partition_by=["p"]
    )
    assert sorted(r["p"] for r in copied(place, pandas_platform).rows) == AWKWARD[:2]


def named(tmp_path, where, name):
    """A project with a lake, or a table, of this name."""
    lake, table = (f"lakes/{name}/lake", "t") if where == "lake" else ("lakes", name)
    node = {
        "name": "n",
        "read": {"connection": "files", "path": "a.csv", "schema": {"id": "bigint"}},
        "write": {"connection": "at", "table": table, "mode": "upsert", "keys": ["id"]},
    }
    return make_project(
        tmp_path, [node], connections={"at": {"type": "lake", "path": lake}}
    ), tmp_path / lake / table


def allowed(tmp_path, where, char):
    try:
        named(tmp_path, where, f"a{char}b")
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize(("where", "refused"), [("lake", "\\#?[]^|"), ("table", "\\#?[]^|*{}:")])
def test_under_every_name_that_is_allowed_a_table_is_where_it_should_be(
    tmp_path, pandas_platform, where, refused
):
    fine = [
        c
        for c in string.punctuation + " ü日😀\u00a0\u2028"
        if c != "/" and allowed(tmp_path, where, c)
    ]
    assert set(string.punctuation) - set(fine) == {"/", *refused}
    assert not any(allowed(tmp_path, where, c) for c in "\t\n\x1f\x7f")
    project, place = named(tmp_path, where, f"a{''.join(fine)}b")
    for text in ("id,v\n1,a\n2,b\n", "id,v\n2,c\n3,d\n"):
        (tmp_path / "landing" / "a.csv").write_text(text)
        project.run(platform=pandas_platform, check=True)
    assert sorted((r["id"], r["v"]) for r in read_table(place).rows) == [
        (1, "a"),
        (2, "c"),
        (3, "d"),
    ]
    assert [p.name for p in (tmp_path / "lakes").iterdir() if p.name != "_strandline"] == [
        f"a{''.join(fine)}b"
    ]


def test_a_panic_of_the_table_library_names_the_table(tmp_path):
    told = r"^lake\.t: the library that reads and writes tables broke off: "
    with pytest.raises(TableError, match=told), translated("lake.t"):
        write_deltalake(tmp_path / "a^b", pa.table({"id": [1]}))  # no project may have such a name


def test_a_text_filter_after_a_merge(tmp_path, platform):
    """deltalake's merge writes its text columns in a form that pyarrow cannot filter."""
    place = tmp_path / "lake" / "from"
    write_deltalake(place, pa.table({"id": [1, 2], "c": ["x", "y"]}))
    merge = DeltaTable(place).merge(
        pa.table({"id": [2], "c": ["x"]}), "s.id = t.id", source_alias="s", target_alias="t"
    )
    merge.when_matched_update_all().execute()
    found = copied(tmp_path, platform, "SELECT * FROM source WHERE c = 'x'")
    assert sorted(r["id"] for r in found.rows) == [1, 2]


@pytest.mark.long_on_spark
def test_an_empty_table_has_its_columns(tmp_path, platform):
    write_deltalake(tmp_path / "lake" / "from", pa.table({"id": pa.array([], pa.int32())}))
    found = copied(tmp_path, platform)
    assert found.columns == [("id", "int")]
    assert found.rows == []


def test_a_file_older_than_a_column(tmp_path, platform):
    place = tmp_path / "lake" / "from"
    write_deltalake(place, pa.table({"id": [1]}))
    write_deltalake(place, pa.table({"id": [2], "c": ["x"]}), mode="append", schema_mode="merge")
    assert sorted((r["id"], r["c"]) for r in copied(tmp_path, platform).rows) == [
        (1, None),
        (2, "x"),
    ]


@pytest.mark.spark
def test_what_spark_wrote_with_deletion_vectors(tmp_path, spark_platform, pandas_platform):
    place = tmp_path / "lake" / "from"
    spark = spark_platform.session
    spark.sql(
        f"CREATE TABLE delta.`{place}` (id BIGINT, at TIMESTAMP) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    spark.sql(
        f"INSERT INTO delta.`{place}` SELECT id, TIMESTAMP '2024-03-31 01:00:00' FROM range(10)"
    )
    spark.sql(f"DELETE FROM delta.`{place}` WHERE id % 2 = 0")
    found = copied(tmp_path, pandas_platform)
    assert sorted(r["id"] for r in found.rows) == [1, 3, 5, 7, 9]
    assert dict(found.columns) == {"id": "bigint", "at": "timestamp"}
