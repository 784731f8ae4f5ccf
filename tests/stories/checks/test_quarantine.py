"""Rows that checks put aside: where they are, when they come back, and what is never concluded from them."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from strandline import failpoints
from strandline.errors import ConfigError, ExpectationFailed, StrandlineError, UsageError
from strandline.testing.frames import read_table
from strandline.testing.projects import make_project


def check(*expectations: dict[str, Any]) -> dict[str, Any]:
    return {"operation": "validate", "params": {"expectations": list(expectations)}}


GOOD_EMAIL = {"check": "regex", "column": "email", "pattern": "@", "severity": "quarantine"}


class Shop:
    """Customers of a database, checked on their way into a table."""

    def __init__(
        self, folder: Path, platform: Any, steps: list[dict[str, Any]], **write: Any
    ) -> None:
        self.folder, self.platform = folder, platform
        self.database = sqlite3.connect(folder / "erp.db", isolation_level=None)
        self.database.execute("CREATE TABLE c (id INTEGER, email TEXT)")
        self.write = {"connection": "lake", "table": "t", "mode": "upsert", "keys": ["id"], **write}
        self.load(steps)

    def load(self, steps: list[dict[str, Any]], **read: Any) -> None:
        node = {
            "name": "n",
            "read": {"connection": "erp", "table": "c", **read},
            "transform": {"steps": steps},
            "write": {k: v for k, v in self.write.items() if v is not None},
        }
        erp = {"type": "sql", "url": "sqlite:///erp.db"}
        self.project = make_project(self.folder, [node], connections={"erp": erp})

    def source(self, *rows: tuple[int | None, str | None]) -> None:
        self.database.execute("DELETE FROM c")
        self.database.executemany("INSERT INTO c VALUES (?, ?)", rows)

    def run(self, **how: Any) -> Any:
        return self.project.run(platform=self.platform, check=True, **how).nodes[0]

    def dies(self, fault: str) -> None:
        with failpoints.armed(f"{fault}:raise"):
            assert self.project.run(platform=self.platform).status == "failed"

    def rows(self) -> list[tuple[Any, ...]]:
        found = read_table(self.folder / "lake" / "t").rows
        return sorted((r["id"], r["email"]) for r in found if not r.get("_is_deleted"))

    def aside(self) -> list[tuple[Any, ...]]:
        found = read_table(self.folder / "lake" / "t__quarantine").rows
        return sorted((r["id"], r["email"]) for r in found)


@pytest.fixture
def shop(tmp_path: Path, platform: Any) -> Shop:
    return Shop(tmp_path, platform, [check(GOOD_EMAIL)])


def test_a_bad_row_waits_once_and_leaves_when_the_source_is_mended(shop: Shop) -> None:
    shop.source((1, "a@x"), (2, "nothing"))
    first = shop.run()
    assert (first.inserted, first.quarantined, first.status) == (1, 1, "success")
    assert (shop.rows(), shop.aside()) == ([(1, "a@x")], [(2, "nothing")])
    again = shop.run()
    assert (again.quarantined, again.status) == (1, "unchanged")
    assert shop.aside() == [(2, "nothing")]
    shop.source((1, "a@x"), (2, "still not"), (3, "bad"))
    shop.run()
    assert shop.aside() == [(2, "still not"), (3, "bad")]
    shop.source((1, "a@x"), (2, "b@x"), (3, "bad"))
    mended = shop.run()
    assert (mended.inserted, mended.quarantined) == (1, 1)
    assert (shop.rows(), shop.aside()) == ([(1, "a@x"), (2, "b@x")], [(3, "bad")])
    rows = read_table(shop.folder / "lake" / "t__quarantine").rows
    assert rows[0]["_reasons"] == "regex(email)"
    assert rows[0]["_node"] == "n"
    assert rows[0]["_run_id"]
    assert rows[0]["_quarantined_at"] is not None


@pytest.mark.long_on_spark
def test_a_row_in_quarantine_is_not_missing(tmp_path: Path, platform: Any) -> None:
    """Its key was in the source."""
    params = {"mode": "snapshot_diff", "keys": ["id"]}
    for place in (0, 1):
        folder = tmp_path / str(place)
        folder.mkdir()
        steps = [check(GOOD_EMAIL)]
        steps.insert(place, {"operation": "detect_deletes", "params": params})
        shop = Shop(folder, platform, steps)
        shop.source((1, "a@x"), (2, "b@x"), (3, "c@x"))
        shop.run()
        shop.source((1, "a@x"), (2, "gone bad"))
        found = shop.run()
        assert (found.deleted, found.quarantined) == (1, 1)  # 3 is gone, and 2 is not
        assert shop.rows() == [(1, "a@x"), (2, "b@x")]


@pytest.mark.long_on_spark
def test_a_row_in_quarantine_is_not_missing_under_another_name(
    tmp_path: Path, platform: Any
) -> None:
    """Keys are renamed and cast after the check."""
    steps = [
        check(GOOD_EMAIL),
        {"operation": "cast", "params": {"columns": {"id": "string"}}},
        {"operation": "rename", "params": {"columns": {"id": "number"}}},
        {"operation": "detect_deletes", "params": {"mode": "snapshot_diff", "keys": ["number"]}},
    ]
    shop = Shop(tmp_path, platform, steps, keys=["number"])
    shop.source((1, "a@x"), (2, "b@x"), (3, "c@x"))
    shop.run()
    shop.source((1, "a@x"), (2, "gone bad"))
    assert (shop.run().deleted) == 1


@pytest.mark.long_on_spark
def test_nothing_is_inferred_where_the_keys_of_bad_rows_are_not_known(
    tmp_path: Path, platform: Any
) -> None:
    steps = [
        check(GOOD_EMAIL),
        {"operation": "derive", "params": {"columns": {"k": "id * 2"}}},
        {"operation": "detect_deletes", "params": {"mode": "snapshot_diff", "keys": ["k"]}},
    ]
    shop = Shop(tmp_path, platform, steps, keys=["k"])
    shop.source((1, "a@x"), (2, "b@x"), (3, "c@x"))
    shop.run()
    shop.source((1, "a@x"), (2, "gone bad"))
    found = shop.run()
    assert found.deleted == 0
    assert any("no deletes are inferred" in w for w in found.warnings)
    shop.source((1, "a@x"))
    assert shop.run().deleted == 2


@pytest.mark.long_on_spark
def test_a_refused_batch_writes_nothing_and_shows_rows(tmp_path: Path, platform: Any) -> None:
    unique = {"check": "unique", "columns": ["id"]}
    count = {"check": "row_count", "min": 5, "severity": "warn"}
    shop = Shop(tmp_path, platform, [check(GOOD_EMAIL, unique, count)])
    shop.source((1, "a@x"), (1, "b@x"), (2, "bad"))
    with pytest.raises(ExpectationFailed) as failed:
        shop.run()
    assert "2 rows fail unique(id): id=1" in failed.value.message
    assert (failed.value.file, failed.value.line is not None) == ("strandline.yaml", True)
    assert not (tmp_path / "lake" / "t").exists()
    assert not (tmp_path / "lake" / "t__quarantine").exists()
    shop.source((1, "a@x"), (2, "bad"))
    found = shop.run()
    assert any("row_count: 2 rows, expected at least 5" in w for w in found.warnings)


@pytest.mark.long_on_spark
@pytest.mark.parametrize(
    "fault", ["quarantine.after", "commit.before", "commit.after", "log.before", "put.after"]
)
def test_a_crash_neither_loses_nor_doubles_rows(shop: Shop, fault: str) -> None:
    shop.source((1, "a@x"), (2, "bad"))
    shop.run()
    shop.source((1, "a@x"), (2, "b@x"), (3, "bad"))
    shop.dies(fault)
    shop.run()
    assert (shop.rows(), shop.aside()) == ([(1, "a@x"), (2, "b@x")], [(3, "bad")])
    shop.run()
    assert shop.aside() == [(3, "bad")]


@pytest.mark.long_on_spark
def test_undo_takes_rows_out_and_puts_them_back(shop: Shop) -> None:
    shop.source((1, "a@x"), (2, "bad"))
    shop.run()
    shop.source((1, "a@x"), (2, "b@x"), (3, "bad"))
    shop.run()
    latest = shop.project.store.runs(1)[0]
    assert latest.quarantined == 1
    shop.project.undo(latest.run_id, platform=shop.platform)
    assert (shop.rows(), shop.aside()) == ([(1, "a@x")], [(2, "bad")])
    shop.run()
    assert (shop.rows(), shop.aside()) == ([(1, "a@x"), (2, "b@x")], [(3, "bad")])


@pytest.mark.long_on_spark
def test_undo_of_a_run_that_only_put_rows_aside(shop: Shop) -> None:
    shop.source((1, "a@x"))
    shop.run()
    shop.source((1, "a@x"), (2, "bad"))
    shop.run()
    shop.project.undo(shop.project.store.runs(1)[0].run_id, platform=shop.platform)
    assert shop.aside() == []


@pytest.mark.long_on_spark
def test_plan_tells_how_many_rows_would_be_put_aside(shop: Shop) -> None:
    shop.source((1, "a@x"), (2, "bad"))
    planned = shop.project.plan(platform=shop.platform, out=shop.folder / "plan.zip")
    assert (planned.nodes[0].inserted, planned.nodes[0].quarantined) == (1, 1)
    assert not (shop.folder / "lake" / "t__quarantine").exists()
    done = shop.project.follow(shop.folder / "plan.zip", platform=shop.platform).nodes[0]
    assert (done.inserted, done.quarantined) == (1, 1)
    assert shop.aside() == [(2, "bad")]


@pytest.mark.long_on_spark
def test_a_column_may_have_two_types(tmp_path: Path, platform: Any) -> None:
    """A contract before the cast, and a check after it."""
    steps = [
        check(
            {"check": "regex", "column": "email", "pattern": "^[0-9]+$", "severity": "quarantine"}
        ),
        {"operation": "cast", "params": {"columns": {"email": "int"}}},
        check({"check": "range", "column": "email", "max": 10, "severity": "quarantine"}),
    ]
    shop = Shop(tmp_path, platform, steps)
    shop.source((1, "5"), (2, "x"), (3, "11"))
    assert shop.run().quarantined == 2
    found = read_table(tmp_path / "lake" / "t__quarantine").rows
    assert sorted((r["id"], r["email"], r["email__int"]) for r in found) == [
        (2, "x", None),
        (3, None, 11),
    ]
    assert shop.run().status == "unchanged"


@pytest.mark.long_on_spark
def test_equal_rows_of_an_append_are_kept_apart(tmp_path: Path, platform: Any) -> None:
    shop = Shop(tmp_path, platform, [], mode="append", keys=None)
    shop.load([check(GOOD_EMAIL)], incremental={"mode": "stateful", "column": "id"})
    shop.source((1, "a@x"), (1, "bad"), (1, "bad"))
    assert shop.run().quarantined == 2
    assert shop.aside() == [(1, "bad"), (1, "bad")]
    shop.run()  # the bound is read again
    assert shop.aside() == [(1, "bad"), (1, "bad")]
    assert shop.rows() == [(1, "a@x")]


# --- release -----------------------------------------------------------------------------------------------


def release(shop: Shop, *keys: dict[str, str | None]) -> Any:
    return shop.project.release("n", keys or None, platform=shop.platform, check=True).nodes[0]


def mend(shop: Shop, **values: str) -> None:
    """A person mends rows where they are."""
    table = DeltaTable(str(shop.folder / "lake" / "t__quarantine"))
    for id_, email in values.items():
        number = id_.removeprefix("_")
        table.update({"email": f"'{email}'"}, predicate=f"id = {number}")


def test_mended_rows_pass_and_others_stay(shop: Shop) -> None:
    shop.source((1, "a@x"), (2, "bad"), (3, "bad"), (4, "bad"))
    shop.run()
    mend(shop, _2="b@x", _3="c@x")
    found = release(shop)
    assert (found.inserted, found.quarantined, found.rows_read) == (2, 1, 3)
    assert shop.rows() == [(1, "a@x"), (2, "b@x"), (3, "c@x")]
    assert shop.aside() == [(4, "bad")]


@pytest.mark.long_on_spark
def test_only_chosen_rows_are_released(shop: Shop) -> None:
    shop.source((1, "a@x"), (2, "bad"), (3, "bad"))
    shop.run()
    mend(shop, _2="b@x", _3="c@x")
    assert release(shop, {"id": "3"}).inserted == 1
    assert (shop.rows(), shop.aside()) == ([(1, "a@x"), (3, "c@x")], [(2, "b@x")])
    with pytest.raises(UsageError):
        release(shop, {"id": "9"})


@pytest.mark.long_on_spark
def test_rows_pass_when_the_rules_have_changed(shop: Shop) -> None:
    shop.source((1, "a@x"), (2, "bad"))
    shop.run()
    shop.load([check({**GOOD_EMAIL, "pattern": "."})])
    assert release(shop).inserted == 1
    assert shop.aside() == []


@pytest.mark.long_on_spark
@pytest.mark.parametrize("mode", ["upsert", "append"])
@pytest.mark.parametrize(
    "fault", ["quarantine.after", "commit.before", "commit.after", "log.after", "quarantine.sweep"]
)
def test_a_crash_in_a_release(tmp_path: Path, platform: Any, mode: str, fault: str) -> None:
    keyed = {"keys": ["id"]} if mode == "upsert" else {"keys": None}
    shop = Shop(tmp_path, platform, [check(GOOD_EMAIL)], mode=mode, **keyed)
    shop.load([check(GOOD_EMAIL)], incremental={"mode": "stateful", "column": "id"})
    shop.source((1, "a@x"), (2, "bad"), (3, "bad"))
    shop.run()
    mend(shop, _2="b@x")
    with failpoints.armed(f"{fault}:raise"):
        shop.project.release("n", platform=platform)
    release(shop)
    assert shop.rows() == [(1, "a@x"), (2, "b@x")]
    shop.run()
    assert shop.rows() == [(1, "a@x"), (2, "b@x")]
    assert shop.aside() == [(3, "bad")]


@pytest.mark.long_on_spark
def test_a_released_row_deletes_nothing(tmp_path: Path, platform: Any) -> None:
    detect = {"operation": "detect_deletes", "params": {"mode": "snapshot_diff", "keys": ["id"]}}
    shop = Shop(tmp_path, platform, [check(GOOD_EMAIL), detect])
    shop.source((1, "a@x"), (2, "b@x"), (3, "bad"))
    shop.run()
    shop.source((1, "a@x"), (3, "bad"))
    assert shop.run().deleted == 1
    mend(shop, _3="c@x")
    found = release(shop)
    assert (found.inserted, found.deleted) == (1, 0)
    assert shop.rows() == [(1, "a@x"), (3, "c@x")]
    shop.source((1, "a@x"))
    assert shop.run().deleted == 1


@pytest.mark.long_on_spark
def test_undo_of_a_release(shop: Shop) -> None:
    shop.source((1, "a@x"), (2, "bad"))
    shop.run()
    mend(shop, _2="b@x")
    release(shop)
    assert shop.aside() == []
    shop.project.undo(shop.project.store.runs(1)[0].run_id, platform=shop.platform)
    assert (shop.rows(), shop.aside()) == ([(1, "a@x")], [(2, "b@x")])
    release(shop)
    assert (shop.rows(), shop.aside()) == ([(1, "a@x"), (2, "b@x")], [])


@pytest.mark.long_on_spark
def test_what_cannot_be_released_one_by_one(tmp_path: Path, platform: Any) -> None:
    shop = Shop(tmp_path, platform, [check(GOOD_EMAIL)], mode="overwrite", keys=None)
    shop.source((1, "a@x"), (2, "bad"))
    shop.run()
    with pytest.raises(StrandlineError) as refused:
        release(shop)
    assert "overwrite" in refused.value.message


# --- other tables ------------------------------------------------------------------------------------------


@pytest.mark.long_on_spark
def test_each_value_exists_in_another_table(tmp_path: Path, platform: Any) -> None:
    """The table of the parents is written first; its deleted rows do not count; a plan looks at it as it would be."""
    parents, children = (
        {
            "name": name,
            "read": {"connection": "files", "path": f"{name}.csv", "schema": {"id": "int"}},
            "write": {"connection": "lake", "table": name, "mode": "upsert", "keys": ["id"]},
        }
        for name in ("zebras", "foals")
    )
    exists = {"check": "relationship", "column": "mother", "connection": "lake", "table": "zebras"}
    checks = check({**exists, "field": "id", "severity": "quarantine"})
    children["read"]["schema"] = {"id": "int", "mother": "int"}
    children["transform"] = {"steps": [checks]}
    detect = {"mode": "snapshot_diff", "keys": ["id"]}
    parents["transform"] = {"steps": [{"operation": "detect_deletes", "params": detect}]}
    project = make_project(tmp_path, [children, parents])
    (tmp_path / "landing" / "zebras.csv").write_text("id\n1\n2\n")
    (tmp_path / "landing" / "foals.csv").write_text("id,mother\n10,1\n11,7\n12,\n")
    planned = {n.name: n for n in project.plan(platform=platform).nodes}
    assert (planned["foals"].inserted, planned["foals"].quarantined) == (2, 1)
    found = {n.name: n for n in project.run(platform=platform, check=True).nodes}
    assert (found["foals"].inserted, found["foals"].quarantined) == (2, 1)
    (tmp_path / "landing" / "zebras.csv").write_text("id\n1\n7\n")
    project.run(platform=platform, check=True)
    assert [r["id"] for r in read_table(tmp_path / "lake" / "foals").rows if r["id"] == 11] == [11]


@pytest.mark.long_on_spark
def test_a_feed_deletes_no_row_that_is_in_quarantine(tmp_path: Path, platform: Any) -> None:
    """An update that is bad now is neither written nor a delete; a real delete is one."""
    shop = Shop(tmp_path, platform, [])
    shop.project = make_project(
        tmp_path,
        [
            {
                "name": "b",
                "read": {"connection": "erp", "table": "c"},
                "transform": {
                    "steps": [
                        {
                            "operation": "detect_deletes",
                            "params": {"mode": "snapshot_diff", "keys": ["id"]},
                        }
                    ]
                },
                "write": {"connection": "lake", "table": "b", "mode": "upsert", "keys": ["id"]},
            },
            {
                "name": "n",
                "read": {"connection": "lake", "table": "b", "incremental": {"mode": "cdf"}},
                "transform": {"steps": [check(GOOD_EMAIL)]},
                "write": {"connection": "lake", "table": "t", "mode": "upsert", "keys": ["id"]},
            },
        ],
        connections={"erp": {"type": "sql", "url": "sqlite:///erp.db"}},
    )
    shop.source((1, "a@x"), (2, "b@x"), (3, "c@x"))
    shop.project.run(platform=platform, check=True)
    shop.source((1, "a@x"), (2, "gone bad"))
    found = shop.project.run(platform=platform, check=True).nodes[1]
    assert (found.deleted, found.quarantined) == (1, 1)
    assert shop.rows() == [(1, "a@x"), (2, "b@x")]
    assert shop.aside() == [(2, "gone bad")]
    shop.source((1, "a@x"), (2, "b2@x"))
    shop.project.run(platform=platform, check=True)
    assert (shop.rows(), shop.aside()) == ([(1, "a@x"), (2, "b2@x")], [])


@pytest.mark.long_on_spark
def test_snapshots_of_a_table_that_lacks_quarantined_rows_are_refused(tmp_path: Path) -> None:
    nodes = [
        {
            "name": "bronze",
            "read": {"connection": "files", "path": "a.csv"},
            "transform": {"steps": [check(GOOD_EMAIL)]},
            "write": {"connection": "lake", "table": "bronze", "mode": "append"},
        },
        {
            "name": "silver",
            "read": {"connection": "lake", "table": "bronze"},
            "transform": {
                "steps": [
                    {
                        "operation": "detect_deletes",
                        "params": {"mode": "snapshot_diff", "keys": ["id"]},
                    }
                ]
            },
            "write": {"connection": "lake", "table": "silver", "mode": "upsert", "keys": ["id"]},
        },
    ]
    with pytest.raises(ConfigError) as refused:
        make_project(tmp_path, nodes)
    assert "into quarantine: they would count as deleted" in str(refused.value)
