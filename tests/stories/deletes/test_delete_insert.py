"""delete_insert: keys with several rows come and go as a whole, flagged or removed, in one commit."""

from __future__ import annotations

from typing import Any

import pytest
from tests.lab import lab

from strandline.errors import ConfigError, TableError
from strandline.testing.frames import read_table, write_parquet
from strandline.testing.oracle import Frame
from strandline.testing.projects import execute, make_project

KEYED = {"mode": "delete_insert", "keys": ["k", "part"]}
COLUMNS = {"k": "int", "part": "string", "v": "string"}
Rows = list[tuple[Any, ...]]


def frame(rows: Rows, **more: str) -> Frame:
    columns = {**COLUMNS, **more}
    return Frame([*columns.items()], [dict(zip(columns, row, strict=True)) for row in rows])


class Shop:
    """Extracts in Bronze, and Silver that looks for what the newest one lacks."""

    def __init__(self, folder: Any, platform: Any, params: dict[str, Any], **write: Any) -> None:
        bronze = {
            "name": "b",
            "read": {"connection": "files", "path": "t.parquet"},
            "write": {"connection": "lake", "table": "b", "mode": "append"},
        }
        step = {"mode": "snapshot_diff", "keys": KEYED["keys"], "max_delete_percent": 90, **params}
        silver = {
            "name": "s",
            "read": {"connection": "lake", "table": "b"},
            "transform": {"steps": [{"operation": "detect_deletes", "params": step}]},
            "write": {"connection": "lake", "table": "s", **KEYED, **write},
        }
        self.folder, self.platform = folder, platform
        self.project = make_project(folder, [bronze, silver])

    def run(self, rows: Rows) -> Any:
        write_parquet(self.folder / "landing" / "t.parquet", frame(rows))
        return self.project.run(platform=self.platform, check=True).nodes[1]

    def table(self) -> list[tuple[Any, ...]]:
        rows = read_table(self.folder / "lake" / "s").rows
        return sorted(((r["k"], r["part"], r["v"], r.get("_is_deleted")) for r in rows), key=str)


ONE: Rows = [
    (1, "x", "a"),
    (1, "x", "b"),
    (1, None, "n"),
    (2, "x", "c"),
    (2, "x", "c"),
    (3, "x", "d"),
]


def counts(node: Any) -> tuple[int, int, int, int]:
    return node.inserted, node.updated, node.deleted, node.reopened


def test_a_key_that_is_gone_is_flagged_with_all_its_rows_and_comes_back(
    tmp_path: Any, platform: Any
) -> None:
    shop = Shop(tmp_path, platform, {})
    assert counts(shop.run(ONE)) == (6, 0, 0, 0)
    two: Rows = [(1, "x", "B"), (1, None, "n"), (3, "x", "d"), (3, "x", "e"), (4, "x", "f")]
    assert counts(shop.run(two)) == (1, 3, 2, 0)
    assert shop.table() == [
        (1, "x", "B", False), (1, None, "n", False), (2, "x", "c", True), (2, "x", "c", True),
        (3, "x", "d", False), (3, "x", "e", False), (4, "x", "f", False),
    ]  # fmt: skip
    assert counts(shop.run(two)) == (0, 0, 0, 0)
    assert counts(shop.run([*two, (2, "x", "c"), (2, "x", "c")])) == (0, 0, 0, 2)
    assert {row[3] for row in shop.table()} == {False}


@pytest.mark.long_on_spark
def test_hard_deletes_remove_all_rows_of_a_key(tmp_path: Any, platform: Any) -> None:
    shop = Shop(tmp_path, platform, {"soft_delete_col": None})
    shop.run(ONE)
    assert counts(shop.run([(1, "x", "a"), (1, "x", "b"), (2, "x", "c")])) == (0, 1, 1, 0)
    nameless = (1, None, "n", None)  # a key with a NULL is never found deleted
    living = [(1, "x", "a", None), (1, "x", "b", None), nameless, (2, "x", "c", None)]
    assert shop.table() == living


@pytest.mark.long_on_spark
def test_ignored_deletes_change_nothing(tmp_path: Any, pandas_platform: Any) -> None:
    shop = Shop(tmp_path, pandas_platform, {}, delete_strategy="ignore")
    shop.run(ONE)
    assert shop.run([(1, "x", "a")]).deleted == 0
    assert {row[0] for row in shop.table()} == {1, 2, 3}


@pytest.mark.long_on_spark
def test_a_mass_delete_is_held_and_approved(tmp_path: Any, pandas_platform: Any) -> None:
    shop = Shop(
        tmp_path, pandas_platform, {"max_delete_percent": 10, "on_threshold_breach": "hold"}
    )
    shop.run(ONE)
    held = shop.run([(1, "x", "z")])
    assert (held.status, held.held, counts(held)) == ("held", 2, (0, 1, 0, 0))
    run = next(iter(shop.project.holds().values()))[0].run_id
    result = shop.project.approve(run, platform=pandas_platform)
    assert result.nodes[0].deleted == 3
    assert [r[:3] for r in shop.table() if r[3]] == [(2, "x", "c"), (2, "x", "c"), (3, "x", "d")]


@pytest.mark.long_on_spark
def test_rows_that_announce_their_delete(platform: Any) -> None:
    """A key is gone when all of its rows say so; one that still has a row is replaced."""
    write = {**KEYED, "delete_when": "v = 'gone'"}
    with lab(platform, write) as at:
        at.run(frame(ONE))
        result = at.run(
            frame([(1, "x", "gone"), (1, "x", "b"), (2, "x", "gone"), (9, "x", "gone")])
        )
        assert counts(result) == (0, 1, 2, 0)
        shown = {(r["k"], r["part"], r["v"], r["_is_deleted"]) for r in at.table().rows}
        assert shown == {
            (1, "x", "b", False), (1, None, "n", False), (2, "x", "c", True), (3, "x", "d", False),
        }  # fmt: skip
        assert len(at.table().rows) == 5


@pytest.mark.long_on_spark
def test_a_column_that_the_slice_lacks_becomes_null_where_rows_are_replaced(platform: Any) -> None:
    with lab(platform, KEYED) as at:
        at.run(Frame([("k", "int"), ("part", "string"), ("v", "string")], frame(ONE).rows))
        lacking = Frame(
            [("k", "int"), ("part", "string"), ("w", "int")], [{"k": 1, "part": "x", "w": 7}]
        )
        at.run(lacking)
        assert sorted(at.table().names) == ["k", "part", "v", "w"]
        shown = [(r["v"], r["w"]) for r in at.table().rows if (r["k"], r["part"]) == (1, "x")]
        assert shown == [(None, 7)]
        assert {r["w"] for r in at.table().rows if r["k"] != 1} == {None}


@pytest.mark.long_on_spark
def test_a_live_source_says_which_keys_are_gone(tmp_path: Any, platform: Any) -> None:
    execute(
        tmp_path / "shop.db",
        "CREATE TABLE t (k INTEGER, v TEXT)",
        "INSERT INTO t VALUES (1, 'a'), (1, 'b'), (2, 'c')",
    )
    step = {
        "mode": "sql_compare",
        "keys": ["k"],
        "source_connection": "erp",
        "source_table": "t",
        "max_delete_percent": 90,
    }
    node = {
        "name": "n",
        "read": {"connection": "erp", "table": "t"},
        "transform": {"steps": [{"operation": "detect_deletes", "params": step}]},
        "write": {"connection": "lake", "table": "s", "mode": "delete_insert", "keys": ["k"]},
    }
    project = make_project(
        tmp_path, [node], connections={"erp": {"type": "sql", "url": "sqlite:///shop.db"}}
    )
    project.run(platform=platform, check=True)
    execute(tmp_path / "shop.db", "DELETE FROM t WHERE k = 1")
    assert counts(project.run(platform=platform, check=True).nodes[0]) == (0, 0, 2, 0)
    shown = sorted(
        (r["k"], r["v"], r["_is_deleted"]) for r in read_table(tmp_path / "lake" / "s").rows
    )
    assert shown == [(1, "a", True), (1, "b", True), (2, "c", False)]


@pytest.mark.long_on_spark
def test_one_changed_row_of_a_followed_table_brings_all_rows_of_its_key(
    tmp_path: Any, platform: Any
) -> None:
    """Of a key with two rows one changes: the other one is not lost."""
    upsert = {"connection": "lake", "table": "lines", "mode": "upsert", "keys": ["line"]}
    lines = {"name": "lines", "read": {"connection": "files", "path": "t.parquet"}, "write": upsert}
    source = {
        "connection": "lake",
        "table": "lines",
        "alias": "l",
        "cdc_strategy": "cdf",
        "primary_keys": ["line"],
    }
    orders = {
        "name": "orders",
        "sources": [source],
        "transformation_sql": "SELECT l.k, l.line, l.v FROM l",
        "write": {
            "connection": "lake",
            "table": "orders",
            "mode": "delete_insert",
            "keys": ["k"],
            "delete_strategy": "hard",
        },
    }
    project = make_project(tmp_path, [lines, orders])

    def run(*rows: tuple[int, int, str]) -> list[tuple[Any, ...]]:
        columns = [("line", "int"), ("k", "int"), ("v", "string")]
        batch = Frame(columns, [dict(zip(("line", "k", "v"), r, strict=True)) for r in rows])
        write_parquet(tmp_path / "landing" / "t.parquet", batch)
        project.run(platform=platform, check=True)
        found = read_table(tmp_path / "lake" / "orders").rows
        return sorted((r["k"], r["line"], r["v"]) for r in found)

    run((1, 1, "a"), (2, 1, "b"), (3, 2, "c"))
    assert run((1, 1, "A"), (4, 3, "d")) == [(1, 1, "A"), (1, 2, "b"), (2, 3, "c"), (3, 4, "d")]
    assert run((3, 1, "c")) == [(1, 1, "A"), (1, 2, "b"), (1, 3, "c"), (3, 4, "d")]


@pytest.mark.long_on_spark
def test_undo_puts_the_rows_of_a_key_back(tmp_path: Any, pandas_platform: Any) -> None:
    shop = Shop(tmp_path, pandas_platform, {})
    shop.run(ONE)
    before = shop.table()
    write_parquet(tmp_path / "landing" / "t.parquet", frame([(1, "x", "q")]))
    run = shop.project.run(platform=pandas_platform, check=True)
    assert shop.table() != before
    shop.project.undo(run.run_id, platform=pandas_platform)
    assert shop.table() == before


@pytest.mark.long_on_spark
def test_a_table_stays_what_it_is(pandas_platform: Any, tmp_path: Any) -> None:
    read = {"connection": "files", "path": "t.parquet"}
    write_parquet(tmp_path / "landing" / "t.parquet", frame([(1, "x", "a"), (2, "x", "a")]))

    def run(mode: str, table: str) -> None:
        write = {"connection": "lake", "table": table, "mode": mode, "keys": ["k", "part"]}
        make_project(tmp_path, [{"name": "n", "read": read, "write": write}]).run(
            platform=pandas_platform, check=True
        )

    run("delete_insert", "t")
    with pytest.raises(TableError, match="may hold several rows of a key"):
        run("upsert", "t")
    run("upsert", "u")
    with pytest.raises(TableError, match="keeps one row of each key"):
        run("delete_insert", "u")


@pytest.mark.long_on_spark
@pytest.mark.parametrize(
    "given",
    [
        {"keys": []},
        {"row_hash": True},
        {"sequence_by": "v"},
        {"update_condition": "source.v > target.v"},
    ],
)
def test_what_delete_insert_does_not_take(tmp_path: Any, given: dict[str, Any]) -> None:
    write = {"connection": "lake", "table": "t", **KEYED, **given}
    with pytest.raises(ConfigError):
        make_project(
            tmp_path,
            [{"name": "n", "read": {"connection": "files", "path": "t.parquet"}, "write": write}],
        ).validate()
