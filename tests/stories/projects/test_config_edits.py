"""A configuration that changes between runs: what is known belongs to the table and to the sources that were read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from strandline.errors import TableError
from strandline.testing.frames import read_table
from strandline.testing.projects import execute, make_project

LAKE = {"connection": "lake"}
MARKED = {"connection": "erp", "table": "s", "incremental": {"mode": "stateful", "column": "u"}}


def node(name: str, read: Any, table: str, mode: str = "upsert", **more: Any) -> dict[str, Any]:
    keys = {"keys": ["id"]} if mode == "upsert" else {}
    reading = {"sources": read} if isinstance(read, list) else {"read": read}
    return {
        "name": name,
        **reading,
        "write": {**LAKE, "table": table, "mode": mode, **keys},
        **more,
    }


def fed(table: str, alias: str | None = None) -> dict[str, Any]:
    if alias is None:
        return {**LAKE, "table": table, "incremental": {"mode": "cdf"}}
    return {**LAKE, "table": table, "alias": alias, "cdc_strategy": "cdf"}


class Shop:
    """Tables that others write, and nodes that are declared anew each time."""

    def __init__(self, folder: Path, platform: Any) -> None:
        self.folder, self.platform = folder, platform

    def place(self, name: str) -> str:
        return str(self.folder / "lake" / name)

    def write(self, name: str, *rows: tuple[int, str], mode: Any = "error") -> None:
        data = pa.table(
            {"id": pa.array([i for i, _ in rows], pa.int64()), "v": [v for _, v in rows]}
        )
        feed = {"delta.enableChangeDataFeed": "true"} if mode == "error" else None
        write_deltalake(self.place(name), data, mode=mode, configuration=feed)

    def delete(self, name: str, where: str) -> None:
        DeltaTable(self.place(name)).delete(where)

    def erp(self, *statements: str) -> None:
        execute(self.folder / "erp.db", *statements)

    def run(self, *nodes: dict[str, Any]) -> list[str]:
        connections = {"erp": {"type": "sql", "url": "sqlite:///erp.db"}}
        self.project = make_project(self.folder, nodes, connections=connections)
        return [n.status for n in self.project.run(platform=self.platform, check=True).nodes]

    def living(self, name: str, column: str = "v") -> list[tuple[int, Any]]:
        rows = read_table(self.place(name)).rows
        return sorted((r["id"], r[column]) for r in rows if not r.get("_is_deleted"))


@pytest.fixture
def shop(tmp_path: Path, pandas_platform: Any) -> Shop:
    return Shop(tmp_path, pandas_platform)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_another_source_after_quiet_runs(shop: Shop, mode: str) -> None:
    shop.write("src", (1, "a"))
    for status in ("success", "unchanged", "unchanged"):
        assert shop.run(node("n", fed("src"), "t", mode)) == [status]
    shop.write("src2", (1, "a"), (2, "b"), (3, "c"))
    assert shop.run(node("n", fed("src2"), "t", mode)) == ["success"]
    newest = max(
        [r for r in shop.project.store.states() if r.node == "n"], key=lambda r: r.updated_at
    )
    assert newest.source_table == "lake.src2"
    assert newest.coverage is not None
    shop.delete("src2", "id = 2")
    shop.run(node("n", fed("src2"), "t", mode))
    assert shop.living("t") == (
        [(1, "a"), (3, "c")] if mode == "upsert" else [(1, "a"), (2, "b"), (3, "c")]
    )


@pytest.mark.parametrize("how", ["renamed", "dropped"])
def test_a_new_table_starts_at_the_beginning(shop: Shop, how: str) -> None:
    shop.erp("CREATE TABLE s (id INTEGER, u INTEGER)", "INSERT INTO s VALUES (1, 1), (2, 2)")
    shop.run(node("n", MARKED, "t"))
    shop.erp("INSERT INTO s VALUES (3, 3)")
    if how == "dropped":
        shutil.rmtree(shop.place("t"))
    shop.run(node("n", MARKED, "other" if how == "renamed" else "t"))
    assert shop.living("other" if how == "renamed" else "t", "u") == [(1, 1), (2, 2), (3, 3)]


def test_there_and_back_again_skips_nothing(shop: Shop) -> None:
    shop.write("src", (1, "a"), (2, "b"))
    shop.run(node("n", fed("src"), "one"))
    shop.delete("src", "id = 1")
    shop.write("src", (3, "c"), mode="append")
    shop.run(node("n", fed("src"), "two"))
    shop.write("src", (4, "d"), mode="append")
    shop.run(node("n", fed("src"), "one"))
    assert shop.living("one") == [(2, "b"), (3, "c"), (4, "d")]


def test_a_source_of_another_name_has_no_mark(shop: Shop) -> None:
    shop.erp("CREATE TABLE s (id INTEGER, u INTEGER)", "INSERT INTO s VALUES (1, 5)")
    shop.run(node("n", MARKED, "t"))
    shop.erp("CREATE TABLE s2 (id INTEGER, u INTEGER)", "INSERT INTO s2 VALUES (2, 1)")
    shop.run(node("n", {**MARKED, "table": "s2"}, "t"))
    assert shop.living("t", "u") == [(1, 5), (2, 1)]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_node_of_another_name_goes_on_where_its_table_is(shop: Shop, mode: str) -> None:
    shop.write("src", (1, "a"), (2, "b"))
    shop.run(node("n", fed("src"), "t", mode))
    shop.delete("src", "id = 1")
    shop.run(node("renamed", fed("src"), "t", mode))
    assert shop.living("t") == ([(2, "b")] if mode == "upsert" else [(1, "a"), (2, "b")])


def test_two_nodes_that_change_names(shop: Shop) -> None:
    shop.erp("CREATE TABLE s (id INTEGER, u INTEGER)", "INSERT INTO s VALUES (1, 1), (2, 2)")
    shop.write("src", (1, "a"), (2, "b"))
    shop.run(node("m", MARKED, "one"), node("n", fed("src"), "two"))
    shop.run(node("m", MARKED, "one"), node("n", fed("src"), "two"))
    shop.erp("INSERT INTO s VALUES (3, 3)")
    shop.delete("src", "id = 1")
    shop.run(node("n", MARKED, "one"), node("m", fed("src"), "two"))
    assert shop.living("one", "u") == [(1, 1), (2, 2), (3, 3)]
    assert shop.living("two") == [(2, "b")]


def test_snapshots_are_told_apart_whatever_their_node_is_called(shop: Shop) -> None:
    shop.erp(
        "CREATE TABLE s (id INTEGER, v TEXT)", "INSERT INTO s VALUES (1, 'a'), (2, 'b'), (3, 'c')"
    )
    read = {"connection": "erp", "table": "s"}
    steps = {
        "steps": [
            {"operation": "detect_deletes", "params": {"mode": "snapshot_diff", "keys": ["id"]}}
        ]
    }
    silver = node("silver", {**LAKE, "table": "b"}, "t", transform=steps)
    shop.run(node("bronze", read, "b", "append"), silver)
    shop.erp("DELETE FROM s WHERE id = 3")
    shop.run(node("bronze", read, "b", "append"), silver)
    assert shop.living("t") == [(1, "a"), (2, "b")]
    shop.erp("UPDATE s SET v = 'B' WHERE id = 2")
    shop.run(node("renamed", read, "b", "append"), silver)
    assert shop.living("t") == [(1, "a"), (2, "B")]


@pytest.mark.parametrize("others", [("a2", "b"), ("a", "b2")])
def test_one_of_two_sources_is_another_one(shop: Shop, others: tuple[str, str]) -> None:
    sql = {"transformation_sql": "SELECT a.id, a.v FROM a JOIN b ON a.id = b.id"}
    for name in ("a", "b"):
        shop.write(name, (1, "a"), (2, "b"))
        shop.write(name + "2", (2, "b"))
    shop.run(node("n", [fed("a", "a"), fed("b", "b")], "t", **sql))
    shop.run(node("n", [fed(others[0], "a"), fed(others[1], "b")], "t", **sql))
    assert shop.living("t") == [(2, "b")]


def test_a_source_that_was_left_out_for_a_while(shop: Shop) -> None:
    both = node(
        "n",
        [fed("a", "a"), fed("b", "b")],
        "t",
        transformation_sql="SELECT a.id, a.v FROM a JOIN b USING (id)",
    )
    one = node("n", [fed("b", "b")], "t", transformation_sql="SELECT b.id, b.v FROM b")
    shop.write("a", (1, "a"), (2, "b"))
    shop.write("b", (1, "x"), (2, "y"), (3, "z"))
    for nodes, expected in (
        (both, [(1, "a"), (2, "b")]),
        (one, [(1, "x"), (2, "y"), (3, "z")]),
        (both, [(1, "a"), (2, "b")]),
    ):
        shop.run(nodes)
        assert shop.living("t") == expected


def test_files_of_another_folder_are_read_whatever_their_names(shop: Shop) -> None:
    for folder in ("one", "two"):
        place = shop.folder / "landing" / folder
        place.mkdir(parents=True)
        (place / "rows.csv").write_text(f"id,v\n1,{folder}\n")
    for folder in ("one", "two"):
        read = {
            "connection": "files",
            "path": f"{folder}/*.csv",
            "incremental": {"mode": "stateful"},
        }
        shop.run(node("n", read, "t", "append"))
    assert [v for _, v in shop.living("t")] == ["one", "two"]


def test_a_column_that_bronze_keeps_is_there_for_a_new_silver(shop: Shop) -> None:
    shop.erp("CREATE TABLE s (id INTEGER, v TEXT)", "INSERT INTO s VALUES (1, 'a')")
    read = {"connection": "erp", "table": "s"}
    steps = {
        "steps": [
            {"operation": "detect_deletes", "params": {"mode": "snapshot_diff", "keys": ["id"]}}
        ]
    }
    bronze = node("bronze", read, "b", transform=steps)
    shop.run(bronze)
    shop.erp("ALTER TABLE s DROP COLUMN v")
    shop.run(bronze, node("silver", {**LAKE, "table": "b"}, "t", transform=steps))
    assert shop.living("t") == [(1, "a")]


def test_a_bronze_that_turns_from_append_to_overwrite_and_back(shop: Shop) -> None:
    steps = [
        {"operation": "deduplicate", "params": {"keys": ["id"], "order_by": "v DESC"}},
        {"operation": "detect_deletes", "params": {"mode": "snapshot_diff", "keys": ["id"]}},
    ]
    silver = node("silver", {**LAKE, "table": "b"}, "s", transform={"steps": steps})
    shop.erp("CREATE TABLE s (id INTEGER, v TEXT)", "INSERT INTO s VALUES (0, 'a'), (1, 'b')")
    for i, mode in enumerate(("append", "overwrite", "append", "overwrite", "overwrite")):
        shop.erp(f"DELETE FROM s WHERE id = {i}", f"INSERT INTO s VALUES ({i + 2}, 'c')")
        assert shop.run(node("b", {"connection": "erp", "table": "s"}, "b", mode), silver) == [
            "success",
            "success",
        ]
        assert [i for i, _ in shop.living("s")] == [i + 1, i + 2]


@pytest.mark.parametrize("after", ["append", "overwrite"])
@pytest.mark.parametrize(
    ("before", "kept"), [("upsert", "one row of each key, and `_row_hash`"), ("scd2", "versions")]
)
def test_a_table_stays_what_it_is(shop: Shop, before: str, kept: str, after: str) -> None:
    shop.write("src", (1, "a"))
    source = {**LAKE, "table": "src"}
    first = node("n", source, "t", before)
    shop.run(first | {"write": {**first["write"], "keys": ["id"]}})
    shop.write("src", (1, "b"), mode="overwrite")
    with pytest.raises(TableError, match=f"lake.t keeps {kept}"):
        shop.run(node("n", source, "t", after))
    assert shop.living("t") == [(1, "a")]
