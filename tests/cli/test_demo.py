"""The demo from its first row to its last word, in process and with a small shop."""

from __future__ import annotations

import sqlite3
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call

from strandline.cli import demo_data
from strandline.project import StrandlineProject
from strandline.testing.frames import read_table, spelled


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in {
        "CUSTOMERS": 400,
        "PRODUCTS": 20,
        "ORDERS": 900,
        "UPDATED": 30,
        "INSERTED": 7,
        "DELETED": 5,
    }.items():
        monkeypatch.setattr(demo_data, name, number)
    monkeypatch.setattr(demo_data, "REPRICED", 40)


def test_it_shows_what_changed(cli: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)  # as if it were not installed
    answer = cli("demo", "--json")
    assert answer.code == 0
    assert answer.err.startswith(
        "Spark is not installed (pip install 'strandline[spark]'): the demo runs on the local engine.\n"
    )
    told = answer.json
    assert told["rows"] == {"customers": 400, "products": 20, "orders": 900}
    assert told["source_changes"] == {
        "customers_updated": 30, "customers_inserted": 7, "customers_deleted": 5, "orders_updated": 40,
    }  # fmt: skip
    first, second, third = ({n["name"]: n for n in run["nodes"]} for run in told["runs"])
    assert first["silver_customers"]["inserted"] == 400
    assert (second["silver_customers"]["inserted"], second["silver_customers"]["updated"]) == (
        7,
        30,
    )
    assert (second["silver_orders"]["inserted"], second["silver_orders"]["updated"]) == (0, 40)
    assert second["silver_products"]["status"] == "unchanged"
    assert second["silver_customers"]["deleted"] == 5
    assert told["deleted_at_source_still_in_silver"] == 0
    assert [e["event"] for e in told["explained"]["events"]] == ["inserted", "deleted"]
    held = third["silver_customers"]
    assert (held["status"], held["deleted"]) == ("held", 0)
    assert 190 < held["held"] < 210
    assert f"{held['held']} held deletes are rejected" in told["rejected"]["nodes"][0]["warnings"]
    again = cli("run", "--project-dir", ".demo", "--json")
    assert again.code == 0
    customers = next(n for n in again.json["nodes"] if n["name"] == "silver_customers")
    assert (customers["deleted"], customers["reopened"], customers["held"]) == (0, 0, 0)
    assert [r["table"] for r in told["changed_rows"]] == [
        "silver.customers",
        "gold.customer_revenue",
        "gold.country_revenue",
    ]
    assert all(r["before"] != r["after"] for r in told["changed_rows"])
    assert cli("status", "--project-dir", ".demo").code == 0
    assert "engine: local " in (tmp_path / ".demo/strandline.yaml").read_text()


def content(home: Path) -> dict[str, Counter[tuple[str, ...]]]:
    """Every row of every table of the demo's lake; a column without a value may as well not be there."""
    logs = (home / "lake").glob("**/_delta_log")
    tables = sorted(
        str(log.parent.relative_to(home)) for log in logs if not log.parent.name.startswith("etl_")
    )
    return {
        name: Counter(
            tuple(sorted(f"{k} {spelled(v)}" for k, v in r.items() if v is not None))
            for r in read_table(home / name).rows
        )
        for name in tables
    }


@pytest.mark.long
def test_its_last_five_runs_can_be_taken_back_newest_first(
    cli: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, seen = tmp_path / ".demo", []
    run, reject = StrandlineProject.run, StrandlineProject.reject

    def noting(work: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **how: Any) -> Any:
            before = content(home)
            result = work(*args, **how)
            seen.append((result.run_id, before))
            return result

        return noted

    monkeypatch.setattr(StrandlineProject, "run", noting(run))
    monkeypatch.setattr(StrandlineProject, "reject", noting(reject))
    assert cli("demo", "--engine", "pandas", "--quiet").code == 0
    for statement in (
        "UPDATE customers SET name = 'Somebody', updated_at = '2030-01-01 00:00:00' WHERE customer_id < 9",
        "DELETE FROM customers WHERE customer_id IN (11, 12)",
    ):
        with closing(sqlite3.connect(home / "shop.db", isolation_level=None)) as shop:
            shop.execute(statement)
        assert cli("run", "--project-dir", ".demo", "--quiet").code == 0
    assert len(seen) == 6  # three runs and a rejection of the demo itself, and these two
    last = content(home)
    assert last["lake/silver/customers"] != seen[-1][1]["lake/silver/customers"]
    for run_id, before in reversed(seen[1:]):
        undone = cli("undo", run_id, "--project-dir", ".demo", "--json")
        assert undone.code in (0, 3), undone.err
        assert content(home) == before
    assert sum(n["held"] for n in undone.json["nodes"]) == 0


def test_it_can_be_started_again_and_says_what_it_measured(cli: Call) -> None:
    assert cli("demo", "--engine", "pandas", "--quiet").out == ""
    answer = cli("demo", "--engine", "pandas")
    assert answer.code == 0
    assert "A shop in .demo/shop.db: 400 customers, 20 products, 900 orders." in answer.out
    assert "30 customers changed, 7 added, 5 deleted" in answer.out
    assert "9 nodes: 8 succeeded, 1 unchanged in " in answer.out
    assert (
        "5 customers deleted in the shop, 0 of them still alive in silver.customers." in answer.out
    )
    assert "deleted: absent from the newest snapshot (snapshot_diff)" in answer.out
    assert "would be deleted, and are held: " in answer.out
    assert "no customer was deleted" in answer.out
    assert " → " in answer.out


def test_it_touches_no_folder_that_is_not_its_own(cli: Call, tmp_path: Path) -> None:
    mine = tmp_path / "mine" / "lake" / "precious"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    answer = cli("demo", "--dir", "mine", "--engine", "pandas")
    assert answer.code == 2
    assert "was not made by `strandline demo`" in answer.err
    assert mine.read_text() == "mine"
    assert cli("demo", "--dir", "mine/lake/precious", "--engine", "pandas").code == 2


def test_the_shop_is_the_same_each_time(tmp_path: Path) -> None:
    import sqlite3
    from contextlib import closing

    def rows(name: str) -> list[str]:
        demo_data.create(tmp_path / name)
        demo_data.change(tmp_path / name)
        with closing(sqlite3.connect(tmp_path / name)) as shop:
            return list(shop.iterdump())

    assert rows("a.db") == rows("b.db")
