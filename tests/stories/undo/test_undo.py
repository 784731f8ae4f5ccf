"""Taking runs back, newest first: every table row for row, every mark, snapshot record and hold as it was."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from tests.crashing import agrees

from strandline import failpoints
from strandline.errors import Overtaken, UndoRefused, UsageError
from strandline.project import StrandlineProject
from strandline.testing.frames import read_table, spelled
from strandline.testing.projects import make_project

TABLES = ("bronze", "silver", "dim", "gold", "log")
OURS = (
    "_batch_id",
    "_extracted_at",
    "_last_seen",
    "_valid_from",
    "_valid_to",
)  # numbers and instants of a run


class Shop:
    """A database; snapshots of it, what lives, its history, a count, and a log that is read by its mark."""

    def __init__(self, folder: Path, platform: Any) -> None:
        self.folder, self.platform = folder, platform
        self.database = sqlite3.connect(folder / "erp.db", isolation_level=None)
        self.database.execute("CREATE TABLE c (id INTEGER, name TEXT, u INTEGER)")
        self.database.executemany(
            "INSERT INTO c VALUES (?, ?, 1)", [(i, f"name {i}") for i in range(10)]
        )
        self.project: StrandlineProject = self.load()

    def load(self, **more: Any) -> StrandlineProject:
        look = {
            "mode": "snapshot_diff",
            "keys": ["id"],
            "max_delete_percent": 25,
            "on_threshold_breach": "hold",
        }
        lake = {"connection": "lake"}
        nodes = [
            {
                "name": "bronze",
                "read": {"connection": "erp", "table": "c"},
                "write": {**lake, "table": "bronze", "mode": "append", "add_metadata": True},
            },
            {
                "name": "silver",
                "read": {**lake, "table": "bronze"},
                "transform": {"steps": [{"operation": "detect_deletes", "params": look}]},
                "write": {**lake, "table": "silver", "mode": "upsert", "keys": ["id"]},
            },
            {
                "name": "dim",
                "read": {**lake, "table": "silver"},
                "transformation_sql": "SELECT id, name FROM source",
                "write": {**lake, "table": "dim", "mode": "scd2", "keys": ["id"]},
            },
            {
                "name": "gold",
                "read": {**lake, "table": "silver"},
                "transformation_sql": "SELECT count(*) AS n FROM source",
                "write": {**lake, "table": "gold", "mode": "overwrite"},
            },
            {
                "name": "log",
                "read": {
                    "connection": "erp",
                    "table": "c",
                    "incremental": {"mode": "stateful", "column": "u"},
                },
                "write": {**lake, "table": "log", "mode": "append"},
            },
        ]
        erp = {"type": "sql", "url": "sqlite:///erp.db"}
        return make_project(self.folder, nodes, connections={"erp": erp}, **more)

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.database.execute(statement)

    def run(self, **how: Any) -> Any:
        return self.project.run(platform=self.platform, check=True, **how)

    def undo(self, run_id: str, **how: Any) -> Any:
        return self.project.undo(run_id, platform=self.platform, **how)

    def rows(self, *without: str) -> dict[str, Counter[tuple[tuple[str, str], ...]]]:
        """Every table that is there; a column that is NULL may as well not be there."""
        found = {}
        for name in TABLES:
            if not (self.folder / "lake" / name).exists():
                found[name] = Counter()
                continue
            rows = read_table(self.folder / "lake" / name).rows
            found[name] = Counter(
                tuple(
                    sorted(
                        (k, spelled(v)) for k, v in r.items() if v is not None and k not in without
                    )
                )
                for r in rows
            )
        return found

    def records(self) -> dict[str, Any]:
        """What later runs go by."""
        kept = ("marks", "snapshot", "held", "kind", "notes")
        rows = {r.node: r.covered.as_dict() for r in self.project.store.all_control()}
        holds = {n: sorted(h.key for h in found) for n, found in self.project.holds().items()}
        return {n: {k: c.get(k) for k in kept} for n, c in rows.items()} | {"holds": holds}


CHANGES: list[list[str]] = [
    ["UPDATE c SET name = 'changed', u = 2 WHERE id = 1", "INSERT INTO c VALUES (10, 'new', 2)"],
    ["DELETE FROM c WHERE id = 2", "UPDATE c SET u = 3, name = 'x' WHERE id = 4"],
    ["DELETE FROM c WHERE id > 5"],  # more than a quarter: held
    [
        "INSERT INTO c VALUES (2, 'back', 4)",
        "INSERT INTO c VALUES (7, 'name 7', 1)",
    ],  # revived, and one hold ended
    ["ALTER TABLE c ADD COLUMN note TEXT", "INSERT INTO c VALUES (11, 'eleven', 5, 'hello')"],
]


@pytest.mark.long_on_spark
@pytest.mark.long
def test_the_last_five_runs_newest_first(tmp_path: Path, engine_name: str, platform: Any) -> None:
    shop = Shop(tmp_path, platform)
    runs = [shop.run().run_id]
    seen = [(shop.rows(), shop.records())]
    changes = (
        CHANGES if engine_name == "pandas" else CHANGES[1:3]
    )  # where a run takes seconds: a delete, and a hold
    last = len(changes)
    for statements in changes:
        shop.sql(*statements)
        runs.append(shop.run().run_id)
        seen.append((shop.rows(), shop.records()))
    gone = [*([10] if CHANGES[0] in changes else []), 6, 7, 8, 9]  # as texts, in their order
    assert seen[1 + changes.index(CHANGES[2])][1]["holds"] == {
        "silver": [f'{{"id": {i}}}' for i in gone]
    }

    shop.undo(runs[last])
    again = shop.run()  # the same result as before the undo
    assert shop.rows(*OURS) == {n: _without(rows) for n, rows in seen[last][0].items()}
    shop.undo(again.run_id)
    for k in range(last, 0, -1):
        if k < last:
            result = shop.undo(runs[k])
            assert result.exit_code in (0, 3), result
        rows, records = shop.rows(), shop.records()
        assert rows == seen[k - 1][0], k
        assert records == seen[k - 1][1], k

    first = shop.undo(runs[0])
    assert {n.name: n.deleted for n in first.nodes} == {
        "bronze": 10,
        "silver": 10,
        "dim": 10,
        "gold": 1,
        "log": 10,
    }
    assert all(not rows for rows in shop.rows().values())  # made by the run, and empty now
    with pytest.raises(UsageError, match="already undone"):
        shop.undo(runs[0])
    shop.run()
    alive = {r["id"] for r in read_table(tmp_path / "lake" / "silver").rows}
    assert alive == {i for (i,) in shop.database.execute("SELECT id FROM c")}


def _without(rows: Counter[tuple[tuple[str, str], ...]]) -> Counter[tuple[tuple[str, str], ...]]:
    found: Counter[tuple[tuple[str, str], ...]] = Counter()
    for row, n in rows.items():
        found[tuple((k, v) for k, v in row if k not in OURS)] += n
    return found


@pytest.fixture
def shop(tmp_path: Path, pandas_platform: Any) -> Shop:
    return Shop(tmp_path, pandas_platform)


def test_a_dry_run_writes_nothing(shop: Shop) -> None:
    run = shop.run().run_id
    before, history = shop.rows(), shop.project.store.runs()
    result = shop.undo(run, dry_run=True)
    assert (result.dry_run, result.undone, result.status) == (True, run, "success")
    assert [(n.name, n.deleted, n.version) for n in result.nodes][-1] == ("bronze", 10, None)
    assert (shop.rows(), shop.project.store.runs()) == (before, history)


def test_later_runs_are_in_the_way_and_quiet_ones_are_not(shop: Shop) -> None:
    first = shop.run().run_id
    shop.sql(*CHANGES[0])
    second = shop.run().run_id
    with pytest.raises(UndoRefused) as refused:
        shop.undo(first)
    assert any(o.startswith("lake.silver: run") and second in o for o in refused.value.obstacles)
    shop.run(select=["silver", "dim", "gold"])  # nothing new for them
    shop.undo(second)
    shop.undo(first)
    assert all(not rows for rows in shop.rows().values())


def test_a_consumer_in_a_later_run_is_in_the_way(shop: Shop) -> None:
    bronze = shop.run(select="bronze").run_id
    silver = shop.run(select="silver").run_id
    with pytest.raises(UndoRefused, match=f"node `silver` consumed version 0 in run {silver}"):
        shop.undo(bronze)
    shop.undo(silver)
    shop.undo(bronze)
    assert not shop.rows()["bronze"]


def test_commits_of_others_and_vacuumed_files_are_in_the_way(shop: Shop) -> None:
    shop.run()
    shop.sql(*CHANGES[0])
    second = shop.run().run_id
    place = str(shop.folder / "lake" / "gold")
    DeltaTable(place).optimize.compact()  # touches no row
    assert shop.undo(second, dry_run=True).status == "success"
    vacuumed = DeltaTable(str(shop.folder / "lake" / "gold"))
    vacuumed.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(UndoRefused, match=r"lake\.gold: 1 of the 1 files of version 0 are gone"):
        shop.undo(second)
    write_deltalake(place, DeltaTable(place).to_pyarrow_table(), mode="append")
    with pytest.raises(UndoRefused, match=r"version \d+ is another writer's \(WRITE\)"):
        shop.undo(second)


def test_files_with_awkward_names_are_not_taken_for_vacuumed(
    tmp_path: Path, pandas_platform: Any
) -> None:
    write = {"connection": "lake", "table": "t", "mode": "append", "partition_by": ["p"]}
    node = {"name": "n", "read": {"connection": "files", "path": "a.csv"}, "write": write}
    folder = tmp_path / "my lake"
    project = make_project(folder, [node])
    for text in ("id,p\n1,ä b\n", "id,p\n2,c/d\n"):
        (folder / "landing" / "a.csv").write_text(text)
        last = project.run(platform=pandas_platform, check=True).run_id
    assert project.undo(last, platform=pandas_platform).status == "success"
    assert [r["p"] for r in read_table(folder / "lake" / "t").rows] == ["ä b"]


def test_what_cannot_be_undone_is_told(shop: Shop) -> None:
    with pytest.raises(UsageError, match="there is no run `x`"):
        shop.undo("x")
    first = shop.run().run_id
    undone = shop.undo(first).run_id
    with pytest.raises(UsageError, match="is itself an undo"):
        shop.undo(undone)


def test_an_approval_taken_back_opens_its_holds_again(shop: Shop) -> None:
    shop.run()
    shop.sql("DELETE FROM c WHERE id > 5")
    held = shop.run().run_id
    before = shop.rows(), shop.project.holds()
    approved = shop.project.approve(held, platform=shop.platform, check=True)
    assert shop.project.holds() == {}
    shop.undo(approved.run_id)
    assert (shop.rows(), shop.project.holds()) == before
    rejected = shop.project.reject(held)
    shop.undo(rejected.run_id)
    assert shop.project.holds() == before[1]
    assert sum(n.held for n in shop.run().nodes) == 4


@pytest.mark.parametrize(
    "point",
    ["undo.before", "commit.before", "commit.after", "log.after", "put.before", "undo.after"],
)
def test_an_undo_that_died_is_finished_by_asking_again(shop: Shop, point: str) -> None:
    shop.run()
    before = shop.rows(), shop.records()
    shop.sql(*CHANGES[0], *CHANGES[1])
    second = shop.run(select=["bronze", "silver"]).run_id
    with failpoints.armed(f"{point}@silver:raise"):
        assert shop.undo(second).exit_code == 1
    shop.undo(second)
    assert (shop.rows(), shop.records()) == before
    agrees(shop.folder, TABLES)
    with pytest.raises(UsageError, match="already undone"):
        shop.undo(second)


@pytest.mark.parametrize("point", ["reject.before", "log.before", "log.after"])
@pytest.mark.long
def test_a_rejection_that_died_is_made_by_asking_again(shop: Shop, point: str) -> None:
    shop.run()
    shop.sql("DELETE FROM c WHERE id > 5")
    held = shop.run().run_id
    with failpoints.armed(f"{point}@silver:raise"), pytest.raises(failpoints.InjectedFault):
        shop.project.reject(held)
    if point == "reject.before":
        shop.project.reject(held)  # else the decision is noted, and counts
    assert shop.project.holds() == {}
    assert sum(n.held for n in shop.run().nodes) == 0
    agrees(shop.folder, TABLES)


def meanwhile(at: str, node: str, act: Callable[[], object]) -> failpoints.Hook:
    """Does something once, the first time that a node passes a point."""
    left = [act]

    def hook(name: str, passing: str | None) -> None:
        if (name, passing) == (at, node) and left:
            left.pop()()

    return hook


@pytest.mark.parametrize("at", ["undo.before", "running.after", "commit.before"])
@pytest.mark.parametrize("who", ["run", "foreign"])
def test_a_commit_that_lands_after_the_look_is_not_destroyed(shop: Shop, at: str, who: str) -> None:
    shop.run(select="log")
    shop.sql("INSERT INTO c VALUES (10, 'new', 2)")
    second = shop.run(select="log").run_id
    place, others = str(shop.folder / "lake" / "log"), []

    def commit() -> None:
        if who == "run":
            shop.sql("INSERT INTO c VALUES (11, 'newer', 3)")
            others.append(shop.run(select="log").run_id)
        else:
            write_deltalake(place, DeltaTable(place).to_pyarrow_table().slice(0, 1), mode="append")
            others.append("another writer")

    with failpoints.armed(meanwhile(at, "log", commit)):
        result = shop.undo(second)
    assert (result.exit_code, [n.status for n in result.nodes]) == (4, ["fenced"])
    assert others[0] in result.nodes[0].error["message"]
    assert len(read_table(shop.folder / "lake" / "log").rows) == 12
    with pytest.raises(UndoRefused, match=others[0]):
        shop.undo(second)


def test_tidying_after_the_look_is_met_by_asking_again(shop: Shop) -> None:
    shop.run(select="log")
    shop.sql("INSERT INTO c VALUES (10, 'new', 2)")
    second = shop.run(select="log").run_id
    tidy = meanwhile(
        "commit.before", "log", DeltaTable(str(shop.folder / "lake" / "log")).optimize.compact
    )
    with failpoints.armed(tidy):
        assert shop.undo(second).exit_code == 4
    assert shop.undo(second).exit_code == 0
    assert len(read_table(shop.folder / "lake" / "log").rows) == 10
    agrees(shop.folder, ("log",))


def test_a_table_format_that_lets_an_undo_land_late_is_told_of(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strandline.lake.delta import log as delta_log

    shop.run(select="log")
    shop.sql("INSERT INTO c VALUES (10, 'new', 2)")
    second = shop.run(select="log").run_id
    place = str(shop.folder / "lake" / "log")
    row = DeltaTable(place).to_pyarrow_table().slice(0, 1)
    monkeypatch.setattr(delta_log, "open_on", lambda table, *_: delta_log.open_table(table))
    with failpoints.armed(
        meanwhile("commit.before", "log", lambda: write_deltalake(place, row, mode="append"))
    ):
        result = shop.undo(second)
    assert result.exit_code == 1
    assert (
        "version 2, by another writer (WRITE) came in between, and may be lost"
        in result.nodes[0].error["message"]
    )


def test_a_table_that_was_made_anew_is_not_emptied(shop: Shop) -> None:
    first = shop.run(select="log").run_id
    shutil.rmtree(shop.folder / "lake" / "log")
    shop.sql("UPDATE c SET u = 2")
    second = shop.run(select="log").run_id
    before = shop.rows()
    for dry_run in (True, False):
        with pytest.raises(
            UndoRefused, match=rf"lake\.log: version 0 is run {second}'s: the table was made anew"
        ):
            shop.undo(first, dry_run=dry_run)
    assert shop.rows() == before


def test_a_consumer_by_another_connection_is_in_the_way(
    tmp_path: Path, pandas_platform: Any
) -> None:
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.csv").write_text("id\n1\n")
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    nodes = [
        {
            "name": "a",
            "read": {"connection": "files", "path": "a.csv"},
            "write": {"connection": "lake", "table": "a", "mode": "append"},
        },
        {
            "name": "b",
            "read": {"connection": "lake2", "table": "a"},
            "write": {"connection": "lake2", "table": "b", "mode": "append"},
        },
    ]
    for path in ("lake", "link"):
        lakes = {"lake2": {"type": "lake", "path": path}}
        project = make_project(tmp_path, nodes, connections=lakes)
        first = project.run("a", platform=pandas_platform, check=True).run_id
        second = project.run("b", platform=pandas_platform, check=True).run_id
        with pytest.raises(
            UndoRefused, match=rf"lake\.a: node `b` consumed version \d in run {second}"
        ):
            project.undo(first, platform=pandas_platform)


def held(shop: Shop) -> str:
    """A run that only held deletes."""
    shop.run(select=["bronze", "silver"])
    shop.sql("DELETE FROM c WHERE id > 5")
    shop.run(select="bronze")
    run: str = shop.run(select="silver").run_id
    return run


@pytest.mark.parametrize("decided", ["approve", "reject"])
def test_a_run_that_only_held_is_not_undone_under_a_later_one(shop: Shop, decided: str) -> None:
    first = held(shop)
    how = {"platform": shop.platform} if decided == "approve" else {}
    second = getattr(shop.project, decided)(first, **how).run_id
    before = shop.rows(), shop.project.store.runs()
    for dry_run in (True, False):
        with pytest.raises(UndoRefused, match=rf"lake\.silver: run {second} worked on it later"):
            shop.undo(first, dry_run=dry_run)
    assert (shop.rows(), shop.project.store.runs()) == before
    shop.undo(second)
    assert len(shop.project.holds()["silver"]) == 4
    shop.undo(first)
    assert shop.project.holds() == {}


def test_a_run_that_held_deletes_of_a_table_that_is_gone_is_rejected_and_not_undone(
    shop: Shop,
) -> None:
    run = held(shop)
    shutil.rmtree(shop.folder / "lake" / "silver")
    before = shop.project.store.runs()
    for dry_run in (True, False):
        with pytest.raises(UndoRefused, match=r"lake\.silver: the table is gone") as refused:
            shop.undo(run, dry_run=dry_run)
        assert refused.value.obstacles == ["lake.silver: the table is gone"]
    assert shop.project.store.runs() == before
    shop.project.reject(run)  # a decision needs no table
    assert shop.project.holds() == {}
    assert sum(n.held for n in shop.run(select="silver").nodes) == 0


def test_a_table_that_is_gone_is_named_once(shop: Shop) -> None:
    run = shop.run(select=["bronze", "silver"]).run_id
    shutil.rmtree(shop.folder / "lake" / "silver")
    with pytest.raises(UndoRefused) as refused:
        shop.undo(run)
    assert refused.value.obstacles == ["lake.silver: the table is gone"]


def test_a_rejection_is_not_undone_under_a_later_run(shop: Shop) -> None:
    rejected = shop.project.reject(held(shop)).run_id
    shop.sql("INSERT INTO c VALUES (20, 'new', 2)")
    shop.run(select="bronze")
    later = shop.run(select="silver").run_id
    with pytest.raises(UndoRefused, match=rf"lake\.silver: run {later} worked on it later"):
        shop.undo(rejected)
    shop.undo(later)
    shop.undo(rejected)
    assert len(shop.project.holds()["silver"]) == 4


def test_rows_are_not_taken_back_under_a_later_hold(shop: Shop) -> None:
    shop.run(select=["bronze", "silver"])
    shop.sql("UPDATE c SET name = 'x' WHERE id = 1")
    shop.run(select="bronze")
    changed = shop.run(select="silver").run_id
    shop.sql("DELETE FROM c WHERE id > 5")
    shop.run(select="bronze")
    holding = shop.run(select="silver").run_id
    with pytest.raises(UndoRefused, match=rf"lake\.silver: run {holding} worked on it later"):
        shop.undo(changed)


def test_a_rejection_looks_again(shop: Shop) -> None:
    run = held(shop)
    approve = meanwhile(
        "reject.before", "silver", lambda: shop.project.approve(run, platform=shop.platform)
    )
    with (
        failpoints.armed(approve),
        pytest.raises(Overtaken, match=f"run {run} holds no deletes any more") as lost,
    ):
        shop.project.reject(run)
    assert lost.value.exit_code == 4
    assert not [c for c in shop.project.store.changes("silver") if c.verb == "reject"]
    assert (
        sum(bool(r["_is_deleted"]) for r in read_table(shop.folder / "lake" / "silver").rows) == 4
    )
    agrees(shop.folder, ("bronze", "silver"))


def test_a_rejection_keeps_to_what_is_still_held(shop: Shop) -> None:
    run = held(shop)

    def comes_back() -> None:
        shop.sql("INSERT INTO c VALUES (7, 'name 7', 1)")
        shop.run(select="bronze")
        shop.run(select="silver")

    with failpoints.armed(meanwhile("reject.before", "silver", comes_back)):
        result = shop.project.reject(run)
    assert result.nodes[0].warnings == ["3 held deletes are rejected"]
    assert shop.project.holds() == {}


@pytest.mark.parametrize("point", ["commit.after", "put.after"])
def test_a_run_that_only_finished_a_record_names_the_run_to_undo(shop: Shop, point: str) -> None:
    shop.run(select="log")
    before = shop.rows()
    shop.sql("INSERT INTO c VALUES (10, 'new', 2)")
    with failpoints.armed(f"{point}@log:raise"):
        dead = shop.project.run("log", platform=shop.platform).run_id
    finished = shop.run(select="log")
    assert [(n.name, n.status, n.inserted, n.version) for n in finished.nodes] == [
        ("log", "unchanged", 0, None)
    ]
    assert f"(1 row inserted by run {dead})" in finished.nodes[0].warnings[0]
    remark = next(r for r in shop.project.store.runs() if r.run_id == finished.run_id)
    assert (remark.status, remark.inserted, remark.version) == (
        "recovered",
        0,
        None,
    )  # the rows are the dead run's
    for dry_run in (True, False):
        with pytest.raises(UsageError, match=f"has only finished the record of run {dead}") as told:
            shop.undo(finished.run_id, dry_run=dry_run)
        assert f"strandline undo {dead}" in str(told.value)
    shop.undo(dead)
    assert shop.rows() == before
    agrees(shop.folder, ("log",))


def test_a_dry_run_finds_a_run_that_landed_and_died(shop: Shop) -> None:
    shop.run(select="log")
    shop.sql("INSERT INTO c VALUES (10, 'new', 2)")

    def dies(name: str, node: str | None) -> None:
        if (name, node) == ("commit.after", "log"):
            raise KeyboardInterrupt  # nothing that a run could record

    with failpoints.armed(dies), pytest.raises(KeyboardInterrupt):
        shop.project.run("log", platform=shop.platform, threads=1)
    place = shop.folder / "lake" / "log"
    dead = json.loads(DeltaTable(str(place)).history(1)[0]["userMetadata"])["strandline"]["run_id"]
    before = shop.project.store.runs(), shop.project.store.all_control()
    assert dead not in {r.run_id for r in before[0]}
    dry = shop.undo(dead, dry_run=True)
    assert [(n.name, n.deleted) for n in dry.nodes] == [("log", 1)]
    assert (shop.project.store.runs(), shop.project.store.all_control()) == before
    assert [(n.name, n.deleted) for n in shop.undo(dead).nodes] == [("log", 1)]
