"""Feeds of Iceberg tables, over whatever happens to them; and of either format into the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from strandline.lake import describe
from strandline.plan.inputs import table_of
from strandline.testing.frames import read_table
from strandline.testing.projects import LAKES, make_project


class Shop:
    """A file of customers, what lives of them in Silver, and two Golds that follow it."""

    def __init__(self, folder: Path, silver: str, gold: str) -> None:
        self.folder = folder
        keyed = {"connection": "gold", "keys": ["id"]}
        detect = {"mode": "snapshot_diff", "keys": ["id"], "max_delete_percent": None}
        feed = {
            "connection": "silver", "table": "c", "alias": "c", "cdc_strategy": "cdf",
            "primary_keys": ["id"],
        }  # fmt: skip
        nodes = [
            {
                "name": "silver",
                "read": {"connection": "files", "path": "c.csv", "schema": {"id": "bigint"}},
                "transform": {"steps": [{"operation": "detect_deletes", "params": detect}]},
                "write": {"connection": "silver", "table": "c", "mode": "upsert", "keys": ["id"]},
            },
            {
                "name": "now",
                "sources": [feed],
                "transformation_sql": "SELECT c.id, upper(c.name) AS name FROM c",
                "write": {**keyed, "table": "now", "mode": "upsert", "delete_strategy": "hard"},
            },
            {
                "name": "dim",
                "sources": [feed],
                "transformation_sql": "SELECT c.id, c.name FROM c",
                "write": {**keyed, "table": "dim", "mode": "scd2"},
            },
        ]
        lakes = {"silver": self.lake(silver, "silver"), "gold": self.lake(gold, "gold")}
        self.project = make_project(folder, nodes, connections=lakes)

    @staticmethod
    def lake(format_: str, name: str) -> dict[str, Any]:
        if format_ == "delta":
            return LAKES["delta"] | {"path": name}
        catalog = {"type": "sql", "uri": f"sqlite:///{name}/ice.db", "warehouse": f"{name}/ice"}
        return LAKES["iceberg"] | {"catalog": catalog}

    def run(self, *names: str | None, select: str | None = None) -> dict[str, Any]:
        """Customers by their numbers; one of None is not there."""
        lines = [f"{i},{name}" for i, name in enumerate(names) if name is not None]
        (self.folder / "landing" / "c.csv").write_text("\n".join(["id,name", *lines, ""]))
        result = self.project.run(select)
        assert result.exit_code == 0, result
        return {n.name: n for n in result.nodes}

    def ice(self, layer: str, table: str) -> Any:
        uri = f"sqlite:///{self.folder / layer / 'ice.db'}"
        return load_catalog(layer, type="sql", uri=uri).load_table((layer, table))

    def rows(self, table: str) -> list[dict[str, Any]]:
        return read_table(self.folder / "gold" / table).rows

    def agree(self, *names: str | None) -> None:
        """Both Golds hold what the source had last."""
        wanted = {(i, n) for i, n in enumerate(names) if n is not None}
        assert {(r["id"], r["name"]) for r in self.rows("now")} == {
            (i, n.upper()) for i, n in wanted
        }
        current = [r for r in self.rows("dim") if r["_is_current"]]
        assert {(r["id"], r["name"]) for r in current} == wanted


PAIRS = [("iceberg", "iceberg"), ("iceberg", "delta"), ("delta", "iceberg")]


@pytest.mark.parametrize(("silver", "gold"), PAIRS)
def test_gold_follows_silver_of_either_format(tmp_path: Path, silver: str, gold: str) -> None:
    shop = Shop(tmp_path, silver, gold)
    shop.run("a", "b", "c")
    shop.agree("a", "b", "c")
    nodes = shop.run("a", "bb", None, "d")
    assert (nodes["now"].inserted, nodes["now"].updated, nodes["now"].deleted) == (1, 1, 1)
    shop.agree("a", "bb", None, "d")
    assert {n.status for n in shop.run("a", "bb", None, "d").values()} == {"unchanged"}
    shop.run("a", None, "c", "d")
    shop.agree("a", None, "c", "d")


def test_an_expired_snapshot_is_computed_again(tmp_path: Path) -> None:
    """The feed begins at a snapshot that is gone: nothing is skipped, and the run says so."""
    shop = Shop(tmp_path, "iceberg", "iceberg")
    shop.run("a", "b")
    shop.run("a", "bb", select="silver")
    shop.run("a", "bb", "c", select="silver")
    ice = shop.ice("silver", "c")
    old = [s.snapshot_id for s in ice.metadata.snapshots][:-1]
    ice.maintenance.expire_snapshots().by_ids(old).commit()
    nodes = shop.run("a", "bb", "c")
    assert any("is expired" in w for w in nodes["now"].warnings)
    shop.agree("a", "bb", "c")


def test_a_rollback_of_silver_is_followed(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "iceberg", "iceberg")
    shop.run("a", "b")
    kept = shop.ice("silver", "c").metadata.current_snapshot().snapshot_id
    shop.run("a", None, "c")
    shop.agree("a", None, "c")
    with shop.ice("silver", "c").manage_snapshots() as manage:
        manage.rollback_to_snapshot(kept)
    result = shop.project.run("now,dim")
    assert result.exit_code == 0
    shop.agree("a", "b")
    shop.run("a", "b", "c2")
    shop.agree("a", "b", "c2")


def test_a_table_that_was_dropped_is_loaded_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "iceberg", "iceberg")
    shop.run("a", "b")
    first = describe(table_of(shop.project.config, "silver", "c"))
    shop.ice("silver", "c").catalog.drop_table("silver.c")
    shop.run("a", None, "c")
    second = describe(table_of(shop.project.config, "silver", "c"))
    assert first is not None
    assert second is not None
    assert first.table_id != second.table_id
    shop.agree("a", None, "c")


def test_undo_puts_the_rows_of_before_back(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "iceberg", "iceberg")
    shop.run("a", "b", "c")
    before = {t: sorted(map(str, shop.rows(t))) for t in ("now", "dim")}
    shop.run("a", None, "cc", "d")
    run_id = shop.project.store.runs(1)[0].run_id
    undone = shop.project.undo(run_id)
    assert undone.exit_code == 0
    assert {t: sorted(map(str, shop.rows(t))) for t in ("now", "dim")} == before
    shop.run("a", None, "cc", "d")
    shop.agree("a", None, "cc", "d")


def test_a_rollback_moves_the_watermark_back(tmp_path: Path) -> None:
    """The rows that the rollback took out are read again, and no row twice."""
    node = {
        "name": "log",
        "read": {
            "connection": "files",
            "path": "c.csv",
            "schema": {"id": "bigint", "u": "bigint"},
            "incremental": {"mode": "stateful", "column": "u"},
        },
        "write": {"connection": "bronze", "table": "log", "mode": "append"},
    }
    project = make_project(tmp_path, [node], connections={"bronze": Shop.lake("iceberg", "bronze")})
    rows = ["id,u"]

    def run(*more: str) -> list[tuple[int, int]]:
        rows.extend(more)
        (tmp_path / "landing" / "c.csv").write_text("\n".join([*rows, ""]))
        assert project.run().exit_code == 0
        return sorted((r["id"], r["u"]) for r in read_table(tmp_path / "bronze" / "log").rows)

    uri = f"sqlite:///{tmp_path / 'bronze' / 'ice.db'}"
    run("1,1", "2,2")
    table = load_catalog("bronze", type="sql", uri=uri).load_table("bronze.log")
    kept = table.metadata.current_snapshot().snapshot_id
    assert run("3,3") == [(1, 1), (2, 2), (3, 3)]
    with (
        load_catalog("bronze", type="sql", uri=uri).load_table("bronze.log").manage_snapshots() as m
    ):
        m.rollback_to_snapshot(kept)
    assert run("4,4") == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert run() == [(1, 1), (2, 2), (3, 3), (4, 4)]
