"""Undo where a table has another writer, another name or another life: what comes back is what the run itself found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strandline import failpoints
from strandline.errors import CommitConflict, UndoRefused, UsageError
from strandline.testing.frames import read_table
from strandline.testing.projects import execute, make_project

LAKE = {"connection": "lake"}
MARKED = {"connection": "erp", "table": "c", "incremental": {"mode": "stateful", "column": "u"}}
HOLDING = {
    "mode": "snapshot_diff",
    "keys": ["id"],
    "max_delete_percent": 10,
    "on_threshold_breach": "hold",
}


def node(name: str, read: Any = None, mode: str = "upsert", **more: Any) -> dict[str, Any]:
    keys = {} if mode == "append" else {"keys": ["id"]}
    read = read or {"connection": "files", "path": f"{name}.csv", "schema": {"id": "bigint"}}
    write = {**LAKE, "table": name, "mode": mode, **keys, **more.pop("write", {})}
    return {"name": name, "read": read, "write": write, **more}


def holding(percent: int = 10, **write: Any) -> dict[str, Any]:
    steps = [{"operation": "detect_deletes", "params": {**HOLDING, "max_delete_percent": percent}}]
    return node("a", transform={"steps": steps}, write=write)


class Place:
    """A folder with sources, and projects that are declared anew as they change."""

    def __init__(self, folder: Path, platform: Any) -> None:
        self.folder, self.platform = folder, platform

    def declare(self, *nodes: dict[str, Any], folder: str = "", **more: Any) -> None:
        erp = {"erp": {"type": "sql", "url": "sqlite:///erp.db"}}
        connections = {**erp, **more.pop("connections", {})}
        self.project = make_project(self.folder / folder, nodes, connections=connections, **more)

    def run(self, **how: Any) -> Any:
        return self.project.run(platform=self.platform, check=True, threads=1, **how)

    def undo(self, run: Any, **how: Any) -> Any:
        return self.project.undo(run.run_id, platform=self.platform, **how)

    def erp(self, *statements: str) -> None:
        execute(self.folder / "erp.db", *statements)

    def land(self, name: str, *ids: int) -> None:
        (self.folder / "landing").mkdir(exist_ok=True)
        (self.folder / "landing" / f"{name}.csv").write_text(
            "id\n" + "".join(f"{i}\n" for i in ids)
        )

    def ids(self, table: str, **kept: Any) -> list[int]:
        rows = read_table(self.folder / "lake" / table).rows
        return sorted(r["id"] for r in rows if all(r.get(k) == v for k, v in kept.items()))

    def rejects(self) -> None:
        """A table `a` of 1, 2 and 3, and a person who rejects the delete of 3."""
        self.declare(holding())
        for ids in ((1, 2, 3), (1, 2)):
            self.land("a", *ids)
            last = self.run()
        self.project.reject(last.run_id)

    def marks(self) -> list[Any]:
        return [r.covered.marks.get("u", (None,))[0] for r in self.project.store.all_control()]


@pytest.fixture
def place(tmp_path: Path, pandas_platform: Any) -> Place:
    return Place(tmp_path, pandas_platform)


# --- another writer ------------------------------------------------------------------------------------------


def two_projects(place: Place, *more: dict[str, Any]) -> dict[str, Callable[[], None]]:
    """Projects that feed table `t`, each from a database of its own; `more` are further targets of the northern one."""

    def declared(name: str, write: Any) -> Callable[[], None]:
        connections = {
            "erp": {"type": "sql", "url": f"sqlite:///{place.folder}/{name}.db"},
            "lake": {"type": "lake", "path": str(place.folder / "lake")},
        }
        load = {"name": "load", "read": MARKED, "write": write}
        return lambda: place.declare(load, folder=name, project=name, connections=connections)

    for name, row in (("north", "(1, 1)"), ("south", "(101, 1000)")):
        (place.folder / name).mkdir()
        execute(
            place.folder / f"{name}.db",
            "CREATE TABLE c (id INTEGER, u INTEGER)",
            f"INSERT INTO c VALUES {row}",
        )
    write = {**LAKE, "table": "t", "mode": "upsert" if not more else "append"}
    write |= {"keys": ["id"]} if not more else {}
    return {
        "north": declared("north", [write, *more] if more else write),
        "south": declared("south", write),
    }


@pytest.mark.parametrize("first", [True, False], ids=["its first run", "a later run"])
def test_the_marks_of_another_project_stay_its_own(place: Place, first: bool) -> None:
    projects = two_projects(place)
    for name in ("south",) if first else ("north", "south"):
        projects[name]()
        place.run()
    execute(place.folder / "north.db", "INSERT INTO c VALUES (2, 2)")
    projects["north"]()
    assert place.undo(place.run()).exit_code == 0
    assert place.marks() == [None if first else "1"]
    place.run()
    assert place.ids("t") == [1, 2, 101]


def test_what_is_taken_back_by_itself_keeps_its_own_marks(place: Place) -> None:
    projects = two_projects(place, {**LAKE, "table": "own", "mode": "upsert", "keys": ["id"]})
    projects["south"]()
    place.run()
    execute(place.folder / "north.db", "INSERT INTO c VALUES (1, 2)")
    projects["north"]()
    result = place.project.run(platform=place.platform, threads=1)
    assert [n.error["code"] for n in result.nodes] == ["taken_back", "duplicate_keys"]
    execute(place.folder / "north.db", "DELETE FROM c WHERE u = 2")
    place.run()
    assert (place.ids("t"), place.ids("own")) == ([1, 101], [1])


# --- another life --------------------------------------------------------------------------------------------


def test_the_marks_of_a_run_that_was_undone_before_do_not_come_back(place: Place) -> None:
    """Its undo had nothing to commit: the table was empty before and after."""
    place.erp(
        "CREATE TABLE c (id INTEGER, u INTEGER)", "INSERT INTO c VALUES (1, 1), (2, 2), (3, 3)"
    )
    for condition in ("id > 100", "id > 0"):
        steps = [{"operation": "filter", "params": {"condition": condition}}]
        place.declare(node("t", MARKED, transform={"steps": steps}))
        place.undo(place.run())
        assert place.marks() == [None]
    place.run()
    assert place.ids("t") == [1, 2, 3]


def test_an_older_copy_of_a_table_comes_back_as_it_was_found(place: Place) -> None:
    place.erp("CREATE TABLE c (id INTEGER, u INTEGER)", "INSERT INTO c VALUES (1, 1)")
    place.declare(node("t", MARKED))
    place.run()
    table, copy = place.folder / "lake" / "t", place.folder / "copy"
    shutil.copytree(table, copy)
    place.erp("INSERT INTO c VALUES (3, 3), (5, 5)")
    place.run()
    shutil.rmtree(table)
    shutil.copytree(copy, table)
    place.erp("INSERT INTO c VALUES (6, 6)")
    place.undo(place.run())
    assert (place.ids("t"), place.marks()) == ([1], ["1"])
    place.run()
    assert place.ids("t") == [1, 3, 5, 6]


def test_what_was_rejected_of_a_table_that_is_gone_does_not_silence_the_new_one(
    place: Place,
) -> None:
    place.rejects()
    shutil.rmtree(place.folder / "lake" / "a")
    place.land("a", 1, 2, 3)
    place.undo(place.run())
    place.run()
    place.land("a", 1, 2)
    assert place.run().nodes[0].held == 1


# --- another name --------------------------------------------------------------------------------------------


def test_what_was_rejected_stays_rejected_when_the_first_run_under_another_name_is_undone(
    place: Place,
) -> None:
    place.rejects()
    renamed = {"store": {"type": "lake", "path": "lake"}}
    place.declare(
        holding(90, connection="store"), connections=renamed, control={"connection": "lake"}
    )
    place.land("a", 1, 2, 4)
    place.undo(place.run())
    place.run()
    assert place.ids("a", _is_deleted=True) == []


@pytest.mark.parametrize("renamed", ["node", "connection", "project"])
def test_the_last_run_is_undone_whatever_its_table_is_called_now(
    place: Place, renamed: str
) -> None:
    place.erp("CREATE TABLE c (id INTEGER, u INTEGER)", "INSERT INTO c VALUES (1, 1)")
    place.declare(node("t", MARKED))
    place.run()
    place.erp("INSERT INTO c VALUES (2, 2)")
    last = place.run()
    after, more = node("t", MARKED), dict[str, Any]()
    if renamed == "node":
        after["name"] = "other"
    elif renamed == "connection":
        after["write"]["connection"] = "store"
        more = {
            "connections": {"store": {"type": "lake", "path": "lake"}},
            "control": {"connection": "lake"},
        }
    else:
        more = {"project": "other"}
    place.declare(after, **more)
    assert [n.deleted for n in place.undo(last, dry_run=True).nodes] == [1]
    assert place.undo(last).exit_code == 0
    assert place.ids("t") == [1]
    with pytest.raises(UsageError, match="already undone"):
        place.undo(last)
    place.erp("INSERT INTO c VALUES (3, 3)")
    place.run()
    assert place.ids("t") == [1, 2, 3]


# --- one run, several batches --------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [False, True], ids=["the same rows", "more rows"])
def test_a_run_that_tried_again_after_it_had_landed_is_undone_whole(
    place: Place, more: bool
) -> None:
    place.declare(node("a"), retry={"wait": 0.0})
    place.land("a", 1)
    place.run()
    place.land("a", 1, 2)
    failed: list[str] = []

    def hook(name: str, _node: str | None) -> None:
        if name == "log.before" and not failed:
            failed.append(name)
            place.land("a", 1, 2, *([3] if more else []))
            raise CommitConflict("the control tables cannot be written", hint="run again")

    with failpoints.armed(hook):
        run = place.run()
    assert place.ids("a") == ([1, 2, 3] if more else [1, 2])
    assert place.undo(run).exit_code == 0
    assert place.ids("a") == [1]
    with pytest.raises(UsageError, match="already undone"):
        place.undo(run)
    place.run()
    assert place.ids("a") == ([1, 2, 3] if more else [1, 2])


# --- who is in the way, and who is not -----------------------------------------------------------------------


def test_a_run_that_is_still_at_work_is_not_undone(place: Place) -> None:
    follows = node("b", {**LAKE, "table": "a"})
    place.declare(node("a"), follows)
    place.land("a", 1)
    refused: list[str] = []

    def hook(name: str, by: str | None) -> None:
        if (name, by) == ("commit.before", "b"):
            run_id = place.project.store.runs()[0].run_id
            with pytest.raises(UsageError, match=f"run {run_id} is still at work on b") as e:
                place.project.undo(run_id, platform=place.platform)
            refused.append(str(e.value))

    with failpoints.armed(hook):
        run = place.run()
    assert len(refused) == 1
    assert place.undo(run).exit_code == 0


def test_whoever_reads_it_at_this_moment_is_in_the_way(place: Place) -> None:
    place.declare(node("a"), node("b", {**LAKE, "table": "a"}))
    place.land("a", 1)
    first = place.run(select="a")
    refused: list[str] = []

    def hook(name: str, by: str | None) -> None:
        if (name, by) == ("commit.before", "b"):
            with pytest.raises(UsageError, match="is still at work on b") as e:
                place.undo(first)
            refused.append(str(e.value))

    with failpoints.armed(hook):
        place.run(select="b")
    assert len(refused) == 1
    assert place.ids("a") == [1]


@pytest.mark.parametrize("how", ["node removed", "table gone", "table made anew"])
def test_what_was_quiet_in_the_run_is_not_in_the_way(place: Place, how: str) -> None:
    place.declare(node("a"), node("b"))
    place.land("a", 1)
    place.land("b", 1)
    place.run()
    place.land("a", 1, 2)
    run = place.run()
    if how == "node removed":
        place.declare(node("a"))
    else:
        shutil.rmtree(place.folder / "lake" / "b")
    if how == "table made anew":
        place.run(select="b")
    assert [n.name for n in place.undo(run).nodes] == ["a"]
    assert place.ids("a") == [1]


def test_a_table_that_the_run_never_touched_is_not_in_the_way(place: Place) -> None:
    place.declare(node("a"), node("b"), node("c", {**LAKE, "table": "a"}))
    for name in ("a", "b"):
        place.land(name, 1)
    first = place.run(select="a")
    place.run(select="b")
    for file in (place.folder / "lake" / "b" / "_delta_log").glob("*.json"):
        file.write_text("garbage{")
    assert place.undo(first, dry_run=True).exit_code == 0
    assert place.undo(first).exit_code == 0
    assert place.ids("a") == []


def test_events_that_the_node_no_longer_has_are_not_left_behind(place: Place) -> None:
    steps = {
        "steps": [
            {
                "operation": "derive",
                "params": {"columns": {"at": "TIMESTAMP '2024-01-01 00:00:00'"}},
            }
        ]
    }
    history = node("a", mode="scd2", transform=steps)
    with_events = {**history, "write": {**history["write"], "effective_at": "at"}}
    place.declare(with_events)
    place.land("a", 1)
    place.run()
    place.land("a", 1, 2)
    run = place.run()
    place.declare(history)
    with pytest.raises(UndoRefused, match=r"lake\.a__events: the run wrote it too"):
        place.undo(run)
    place.declare(with_events)
    place.undo(run)
    assert (place.ids("a"), place.ids("a__events")) == ([1], [1])


def test_an_undo_that_stops_names_what_it_has_not_reached(place: Place) -> None:
    place.declare(node("a"), node("b", {**LAKE, "table": "a"}))
    place.land("a", 1)
    run = place.run()
    with failpoints.armed("commit.before@b:raise"):
        stopped = place.undo(run)
    assert [(n.name, n.status) for n in stopped.nodes] == [("b", "failed"), ("a", "skipped")]
    assert place.undo(run).exit_code == 0
    assert (place.ids("a"), place.ids("b")) == ([], [])
