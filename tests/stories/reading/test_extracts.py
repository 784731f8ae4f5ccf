"""Dated full extracts in a folder: several snapshots in one read, told apart by their names or by a column."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest

from strandline.errors import ConfigError, ReadError
from strandline.testing.frames import read_table
from strandline.testing.projects import make_project

NEWEST = {"operation": "deduplicate", "params": {"keys": ["id"]}}
DAY = {
    "operation": "derive",
    "params": {"columns": {"day": "CAST(substring(_source_file, 10, 10) AS date)"}},
}
TYPES = {"id": "bigint", "price": "bigint"}


def detect(column: str | None = "_source_file", **params):
    named = {"snapshot_column": column} if column else {}
    params = {
        "mode": "snapshot_diff",
        "keys": ["id"],
        "max_delete_percent": None,
        **named,
        **params,
    }
    return {"operation": "detect_deletes", "params": params}


def node(name, steps, read=None, **write):
    return {
        "name": name,
        "read": read or {"connection": "files", "path": "products_*.csv", "schema": TYPES},
        "transform": {"steps": steps},
        "write": {"connection": "lake", "table": name, "mode": "upsert", "keys": ["id"], **write},
    }


def bronze(**read):
    return {
        "name": "bronze",
        "read": {"connection": "files", "path": "products_*.csv", "schema": TYPES, **read},
        "write": {"connection": "lake", "table": "bronze", "mode": "append", "add_metadata": True},
    }


LAKE = {"connection": "lake", "table": "bronze"}
BY_TIME = {"incremental": {"mode": "stateful"}}


class Folder:
    """Extracts that arrive in a folder, and the tables made of them."""

    def __init__(self, folder, platform):
        self.folder, self.platform, self._minute = folder, platform, 0

    def declare(self, *nodes):
        self.project = make_project(self.folder, nodes)
        return self

    def put(self, name, *rows):
        path = self.folder / "landing" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(["id,price", *(f"{i},{p}" for i, p in rows)]) + "\n")
        self._minute += 1
        at = datetime(2024, 6, 1, 12, self._minute, tzinfo=UTC).timestamp()
        os.utime(path, (at, at))
        return self

    def run(self):
        return {n.name: n for n in self.project.run(platform=self.platform, check=True).nodes}

    def living(self, name):
        return sorted(
            (r["id"], r["price"])
            for r in read_table(self.folder / "lake" / name).rows
            if not r.get("_is_deleted")
        )

    def names(self, name):
        return read_table(self.folder / "lake" / name).names


@pytest.fixture
def folder(tmp_path, platform):
    return Folder(tmp_path, platform)


@pytest.fixture
def quick(tmp_path, pandas_platform):
    return Folder(tmp_path, pandas_platform)


NO_DAY = {"operation": "drop", "params": {"columns": ["day"]}}


@pytest.mark.long_on_spark
def test_the_newest_of_several_extracts_is_the_snapshot(folder):
    """By the names of the files, and by a day that is derived from them: a delete and a lower price."""
    folder.declare(node("named", [detect()]), node("derived", [DAY, detect("day"), NO_DAY]))
    folder.put("products_2024-05-30.csv", (1, 9), (4, 40)).put(
        "products_2024-05-31.csv", (1, 10), (2, 20), (3, 30)
    )
    assert [r.inserted for r in folder.run().values()] == [3, 3]
    folder.put("products_2024-06-01.csv", (1, 10), (2, 15))
    assert [(r.updated, r.deleted) for r in folder.run().values()] == [(1, 1), (1, 1)]
    assert folder.living("named") == folder.living("derived") == [(1, 10), (2, 15)]
    assert (
        folder.names("named")
        == folder.names("derived")
        == ["id", "price", "_row_hash", "_is_deleted", "_last_seen"]
    )


def test_extracts_that_bronze_keeps_and_one_that_arrives_late(quick):
    quick.declare(
        node("named", [detect()]), bronze(**BY_TIME), node("silver", [NEWEST, detect()], LAKE)
    )
    quick.put("products_2024-05-31.csv", (1, 10), (2, 20), (3, 30)).run()
    quick.put("products_2024-06-01.csv", (1, 10), (2, 15)).run()
    quick.put("products_2024-05-29.csv", (1, 9), (4, 40))
    late = quick.run()
    assert (late["named"].status, late["bronze"].inserted, late["silver"].status) == (
        "unchanged",
        2,
        "unchanged",
    )
    assert quick.living("named") == quick.living("silver") == [(1, 10), (2, 15)]


def test_an_extract_without_rows_is_the_newest_all_the_same(quick):
    quick.declare(node("named", [detect()]))
    quick.put("products_1.csv", (1, 10)).run()
    quick.put("products_2.csv")
    assert (quick.run()["named"].held, quick.living("named")) == (1, [(1, 10)])


def test_files_by_their_time_that_bring_nothing_new_are_no_empty_extract(quick):
    read = {"connection": "files", "path": "products_*.csv", "schema": TYPES, **BY_TIME}
    quick.declare(node("named", [detect()], read))
    quick.put("products_1.csv", (1, 10), (2, 20)).run()
    (quick.folder / "landing" / "products_1.csv").unlink()  # put away
    quick.put("products_0.csv", (1, 9))
    os.utime(quick.folder / "landing" / "products_0.csv", (0, 0))  # written long before
    assert (quick.run()["named"].held, quick.living("named")) == (0, [(1, 10), (2, 20)])
    quick.put("products_2.csv", (1, 11))
    assert (quick.run()["named"].deleted, quick.living("named")) == (1, [(1, 11)])


def test_extracts_in_parts_are_told_by_their_day(quick):
    quick.declare(node("parts", [DAY, NEWEST, detect("day"), NO_DAY]))
    quick.put("products_2024-05-31_1.csv", (1, 10), (2, 20)).put(
        "products_2024-05-31_2.csv", (3, 30)
    ).run()
    quick.put("products_2024-06-01_1.csv", (1, 10)).put("products_2024-06-01_2.csv", (3, 33))
    assert (quick.run()["parts"].deleted, quick.living("parts")) == (1, [(1, 10), (3, 33)])
    quick.declare(node("named", [detect()]))
    with pytest.raises(ReadError, match="cannot tell which is newer") as refused:
        quick.run()
    assert "derive" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("products_9.csv", "products_10.csv"),  # by their text, 9 is the later one
        ("products_2024-1-31.csv", "products_2024-12-1.csv"),
        ("products_01_2023.csv", "products_12_2022.csv"),  # two numbers
        ("products_may.csv", "products_jun.csv"),
        (
            "products_2024-06-01_1.csv",
            "products_2024-06-01_2.csv",
        ),  # two parts of one day, not two days
        ("products_20240601_1.csv", "products_20240601_2.csv"),
    ],
)
def test_names_that_do_not_say_which_extract_is_newer_are_named(quick, one, other):
    quick.declare(node("named", [detect()])).put(one, (1, 10)).put(other, (1, 11))
    with pytest.raises(ReadError) as refused:
        quick.run()
    told = str(refused.value)
    assert f"`{one}`" in told
    assert f"`{other}`" in told


def test_a_name_is_compared_with_that_of_the_last_extract(quick):
    """The old file was put away: still nobody can say whether 10 comes after 9."""
    quick.declare(node("named", [detect()])).put("products_9.csv", (1, 10)).run()
    (quick.folder / "landing" / "products_9.csv").unlink()
    quick.put("products_10.csv", (1, 11))
    with pytest.raises(ReadError, match=r"`products_10\.csv` and `products_9\.csv`"):
        quick.run()


HINT = "snapshot_column: _source_file"


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("t", [detect(None)])], "`products_*.csv` may match several extracts"),
        (
            [bronze(), node("t", [NEWEST, detect(None)], LAKE)],
            "node `bronze` reads `products_*.csv`, which may match several",
        ),
    ],
)
def test_a_wildcard_needs_a_snapshot_column_whatever_matches_today(quick, nodes, message):
    quick.put("products_1.csv", (1, 10))
    with pytest.raises(ConfigError) as refused:
        quick.declare(*nodes)
    assert message in str(refused.value)
    assert HINT in str(refused.value)


def test_ties_go_to_the_newest_file(quick):
    """Also where Bronze read several files in one run: all of its rows have one `_extracted_at`."""
    newest = {
        "operation": "deduplicate",
        "params": {"keys": ["id"], "order_by": "_extracted_at DESC"},
    }
    quick.declare(node("direct", [NEWEST]), bronze(), node("silver", [newest], LAKE))
    quick.put("products_1.csv", (1, 20), (2, 5)).put("products_2.csv", (1, 15)).run()
    assert quick.living("direct") == quick.living("silver") == [(1, 15), (2, 5)]
    assert "_source_file" not in quick.names("direct")


@pytest.mark.parametrize(
    ("more", "written"),
    [
        ({}, ["id", "price"]),
        ({"transformation_sql": "SELECT * FROM source"}, ["id", "price"]),
        (
            {"transformation_sql": "SELECT id, price, _source_file AS file FROM source"},
            ["id", "price", "file"],
        ),
        (
            {"write": {"add_metadata": {"extracted_at": False, "source_file": True}}},
            ["id", "price", "_source_file"],
        ),
    ],
)
def test_the_file_is_a_column_for_steps_and_is_written_when_asked(quick, more, written):
    only = {"operation": "filter", "params": {"condition": "_source_file <> 'products_2.csv'"}}
    made = node("t", [only], **more.get("write", {})) | {
        k: v for k, v in more.items() if k != "write"
    }
    quick.declare(made).put("products_1.csv", (1, 10)).put("products_2.csv", (2, 20)).run()
    assert quick.living("t") == [(1, 10)]
    assert [n for n in quick.names("t") if n != "_row_hash"] == written


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            [NEWEST, DAY, detect("day")],
            "transform.steps[0] (deduplicate) chooses among the rows of all extracts before transform.steps[1]",
        ),
        (
            [detect("day"), DAY],
            "there is no column `day`: neither the source has it, nor does a step before detect_deletes",
        ),
    ],
)
def test_a_snapshot_column_is_made_before_rows_are_chosen(quick, steps, message):
    quick.declare(node("t", steps)).put("products_2024-06-01.csv", (1, 10))
    with pytest.raises(ReadError) as refused:
        quick.run()
    assert message in str(refused.value)


def test_files_that_have_a_column_of_that_name_are_refused_where_it_is_needed(quick):
    quick.declare(node("t", [NEWEST], {"connection": "files", "path": "own.csv"}))
    (quick.folder / "landing" / "own.csv").write_text("id,price,_Source_File\n1,10,x\n")
    with pytest.raises(ReadError, match=r"`own\.csv`: the files have a column `_Source_File`"):
        quick.run()
