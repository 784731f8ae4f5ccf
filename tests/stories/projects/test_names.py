"""Names that change, and names that two projects share: what is known belongs to the table, and to who wrote it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from strandline import failpoints
from strandline.control.gaps import lost
from strandline.errors import UndoRefused, UsageError
from strandline.lake import last_batch
from strandline.run.retry import Retry
from strandline.testing.frames import read_table
from strandline.testing.projects import execute, make_project
from strandline.types import Table

LAKE = {"connection": "lake"}
MARKED = {"connection": "erp", "table": "s", "incremental": {"mode": "stateful", "column": "u"}}
ALL = {"connection": "erp", "table": "s"}


class Died(BaseException):
    """What no code of a run catches, as if the process were gone."""


@contextmanager
def dies(at: str) -> Iterator[None]:
    def hook(name: str, _node: str | None) -> None:
        if name == at:
            raise Died

    with failpoints.armed(hook), pytest.raises(Died):
        yield


class Place:
    """A folder with a source table `s`, and a project that is declared anew for each run."""

    def __init__(self, folder: Path, platform: Any, name: str = "test") -> None:
        self.folder, self.platform, self.name = folder, platform, name
        folder.mkdir(exist_ok=True)
        self.more: dict[str, Any] = {}
        self.erp("CREATE TABLE s (id INTEGER, v TEXT, u INTEGER)")

    def erp(self, *statements: str) -> None:
        execute(self.folder / "erp.db", *statements)

    def add(self, *marks: int) -> None:
        self.erp(*(f"INSERT INTO s VALUES ({u}, 'v{u}', {u})" for u in marks))

    def declare(self, *nodes: dict[str, Any]) -> Any:
        erp = {"type": "sql", "url": "sqlite:///erp.db"}
        more = {**self.more, "connections": {"erp": erp, **self.more.get("connections", {})}}
        self.project = make_project(self.folder, nodes, **more | {"project": self.name})
        return self.project

    def run(self, *nodes: dict[str, Any]) -> Any:
        self.last = self.declare(*nodes).run(platform=self.platform, check=True)
        return self.last

    def undo(self, run: Any) -> Any:
        return self.project.undo(run.run_id, platform=self.platform)

    def ids(self, table: str = "t", **kept: Any) -> list[int]:
        rows = read_table(self.folder / "lake" / table).rows
        return sorted(r["id"] for r in rows if all(r.get(k) == v for k, v in kept.items()))


@pytest.fixture
def place(tmp_path: Path, pandas_platform: Any) -> Place:
    return Place(tmp_path / "p", pandas_platform)


def node(
    read: Any = MARKED, table: str = "t", mode: str = "append", name: str = "n", **more: Any
) -> dict[str, Any]:
    keys = {"keys": ["id"]} if mode == "upsert" else {}
    return {
        "name": name,
        "read": read,
        "write": {**LAKE, "table": table, "mode": mode, **keys},
        **more,
    }


# --- undo ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["another table", "made anew"])
def test_an_undo_puts_back_the_mark_of_its_own_table(place: Place, how: str) -> None:
    place.add(1, 2)
    place.run(node())
    table = "t2" if how == "another table" else "t"
    if how == "made anew":
        shutil.rmtree(place.folder / "lake" / "t")
    place.undo(place.run(node(table=table)))
    assert place.ids(table) == []
    place.add(3)
    place.run(node(table=table))
    assert place.ids(table) == [1, 2, 3]


def test_a_run_that_only_moved_a_mark_is_undone(place: Place) -> None:
    def without(text: str) -> dict[str, Any]:
        step = {"operation": "filter", "params": {"condition": f"v <> '{text}'"}}
        return node(transform={"steps": [step]})

    place.add(1)
    place.run(without("x"))
    place.erp("INSERT INTO s VALUES (2, 'x', 2), (3, 'x', 3)")
    moved = place.run(without("x"))
    assert moved.nodes[0].status == "unchanged"
    place.undo(moved)
    with pytest.raises(UsageError, match="already undone"):
        place.undo(moved)
    place.run(without("none"))
    assert place.ids() == [1, 2, 3]
    with pytest.raises(UsageError, match="has changed nothing"):
        place.undo(place.run(without("none")))


def test_an_empty_extract_is_taken_back(place: Place) -> None:
    detect = {"operation": "detect_deletes", "params": {"mode": "snapshot_diff", "keys": ["id"]}}
    bronze = node(ALL, "b", name="b")
    silver = node({**LAKE, "table": "b"}, mode="upsert", name="s", transform={"steps": [detect]})
    place.add(1, 2)
    place.run(bronze, silver)
    place.erp("DELETE FROM s")
    empty = place.declare(bronze, silver).run("b", platform=place.platform, check=True)
    place.undo(empty)
    assert [n.held for n in place.project.run("s", platform=place.platform, check=True).nodes] == [
        0
    ]


def test_what_the_records_lost_of_the_batch_before_its_commit_still_says(place: Place) -> None:
    place.add(1, 2)
    place.run(node())
    place.add(3)
    run = place.run(node())
    shutil.rmtree(place.folder / "lake" / "_strandline")
    place.run(node())  # finishes the record of what has landed
    place.undo(run)
    assert place.ids() == [1, 2]
    marks = [r.covered.as_dict().get("marks") for r in place.project.store.all_control()]
    assert marks == [{"u": ["2", "bigint"]}]


def test_an_undo_sees_who_consumed_in_another_project(place: Place) -> None:
    place.add(1)
    made = place.run(node())
    first = place.project
    place.name, place.more = "other", {"connections": {"store": {"type": "lake", "path": "lake"}}}
    place.run(node({"connection": "store", "table": "t"}, "copy", "upsert", "c"))
    with pytest.raises(UndoRefused, match="node `c` consumed version"):
        first.undo(made.run_id, platform=place.platform)


# --- two projects with their records in one place --------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path, pandas_platform: Any) -> list[Place]:
    """North and south: each with a database and a lake of its own, and what is recorded of both in one folder."""
    places = [Place(tmp_path / name, pandas_platform, name) for name in ("north", "south")]
    ops = {"type": "lake", "path": str(tmp_path / "ops")}
    for place in places:
        place.more = {"connections": {"ops": ops}, "control": {"connection": "ops"}}
    return places


def test_nodes_of_one_name_in_two_projects_know_nothing_of_each_other(two: list[Place]) -> None:
    north, south = two
    for place, mark in zip(two, (1, 100), strict=True):
        place.add(mark)
        place.run(node())
    north.add(2)
    north.run(node())
    south.add(101)
    undone = south.run(node())
    assert (north.ids(), south.ids()) == ([1, 2], [100, 101])
    south.undo(undone)
    assert south.ids() == [100]
    assert {r.project for r in north.project.store.runs()} == {"north"}
    north.add(3)
    north.run(node())
    assert north.ids() == [1, 2, 3]


def test_what_died_in_one_project_is_finished_there(two: list[Place]) -> None:
    north, south = two
    for place in two:
        place.add(1)
        place.run(node(ALL))
    with dies("commit.after"):
        south.declare(node(ALL)).run(platform=south.platform)
    north.run(node(ALL))
    south.run(node(ALL))
    assert (north.ids(), south.ids()) == ([1, 1], [1, 1])


def test_two_projects_that_write_one_table_keep_their_places(place: Place) -> None:
    place.add(1)
    place.run(node(ALL, name="n1"))
    place.name = "other"
    place.run(node(ALL, name="n2"))
    with dies("commit.after"):
        place.declare(node(ALL, name="n2")).run(platform=place.platform)
    place.name = "test"
    place.run(node(ALL, name="n1"))
    place.name = "other"
    place.run(node(ALL, name="n2"))
    assert place.ids() == [1] * 4


# --- other names after a death -----------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["commit.after", "put.after"])
@pytest.mark.parametrize("renamed", ["node", "project"])
def test_a_batch_that_landed_under_another_name_is_finished_and_not_repeated(
    place: Place, renamed: str, point: str
) -> None:
    place.add(1)
    place.run(node(ALL))
    with dies(point):
        place.declare(node(ALL)).run(platform=place.platform)
    place.name = "renamed" if renamed == "project" else "test"
    name = "m" if renamed == "node" else "n"
    first = place.run(node(ALL, name=name)).nodes[0]
    assert (first.name, place.ids()) == (name, [1, 1])
    assert any("died" in w or "in the state only" in w for w in first.warnings)
    place.run(node(ALL, name=name))
    assert place.ids() == [1, 1, 1]
    assert {r.batch_status for r in place.project.store.states()} == {"SUCCESS"}


@pytest.mark.parametrize("renamed", ["node", "project"])
def test_a_batch_that_never_landed_under_another_name_is_done_and_heals(
    place: Place, renamed: str
) -> None:
    place.add(1)
    place.run(node())
    place.add(2)
    with dies("running.after"):
        place.declare(node()).run(platform=place.platform)
    place.name = "renamed" if renamed == "project" else "test"
    place.run(node(name="m" if renamed == "node" else "n"))
    assert place.ids() == [1, 2]
    mine = [r.batch_status for r in place.project.store.all_control()]
    assert set(mine) == {"SUCCESS"}


def test_names_that_died_one_after_the_other(place: Place) -> None:
    place.add(1)
    place.run(node())
    place.add(2)
    for name, point in (("n", "running.after"), ("m", "commit.after")):
        with dies(point):
            place.declare(node(name=name)).run(platform=place.platform)
    place.add(3)
    for name in ("m", "k"):
        place.run(node(name=name))
    assert place.ids() == [1, 2, 3]
    assert {r.batch_status for r in place.project.store.all_control()} == {"SUCCESS"}


def test_what_was_held_stays_held_under_another_name_of_the_project(place: Place) -> None:
    params = {
        "mode": "snapshot_diff",
        "keys": ["id"],
        "max_delete_count": 0,
        "on_threshold_breach": "hold",
    }
    looking = node(
        ALL, mode="upsert", transform={"steps": [{"operation": "detect_deletes", "params": params}]}
    )
    place.add(1, 2)
    place.run(looking)
    place.erp("DELETE FROM s WHERE id = 1")
    held = place.run(looking)
    place.name = "renamed"
    assert [place.run(looking).nodes[0].held for _ in range(2)] == [1, 1]
    assert {n: len(rows) for n, rows in place.project.holds().items()} == {"n": 1}
    place.project.approve(held.run_id, platform=place.platform, check=True)
    assert place.ids(_is_deleted=True) == [1]


@pytest.mark.parametrize("point", ["commit.after", "put.after"])
def test_another_table_after_a_death_and_back_again(place: Place, point: str) -> None:
    place.add(1)
    place.run(node(ALL))
    with dies(point):
        place.declare(node(ALL)).run(platform=place.platform)
    place.run(node(ALL, "t2"))
    place.run(node(ALL, "t2"))
    assert place.ids("t2") == [1, 1]
    place.run(node(ALL))
    assert place.ids() == [1, 1]
    place.run(node(ALL, "t2"))
    assert place.ids("t2") == [1, 1, 1]


# --- back again, and other names for the same table --------------------------------------------------------------

FED = node({**LAKE, "table": "b", "incremental": {"mode": "cdf"}}, "t", "append", "n")
KEPT = node(ALL, "b", "upsert", "b")
DETECT = {"operation": "detect_deletes", "params": {"mode": "snapshot_diff", "keys": ["id"]}}


def test_a_project_that_is_renamed_and_renamed_back_goes_on(place: Place) -> None:
    for name, new in (("test", (1,)), ("other", (2,)), ("test", ()), ("other", (3,))):
        place.name = name
        place.add(*new)
        place.run(KEPT, FED)
    assert place.ids() == [1, 2, 3]


def test_extracts_are_numbered_on_under_all_names(place: Place) -> None:
    bronze = node(ALL, "b", "append", "b")
    silver = node({**LAKE, "table": "b"}, "t", "upsert", "s", transform={"steps": [DETECT]})
    place.add(1, 2, 3)
    place.run(bronze, silver)
    place.name = "other"
    place.run(bronze, silver)
    place.name = "test"
    place.erp("DELETE FROM s WHERE id = 3")
    place.run(bronze, silver)
    assert place.ids(_is_deleted=True) == [3]


def test_another_project_that_feeds_the_same_table_has_its_own_mark(
    tmp_path: Path, pandas_platform: Any
) -> None:
    north, south = (Place(tmp_path / name, pandas_platform, name) for name in ("north", "south"))
    for place, marks in ((north, (100, 101)), (south, (1, 2))):
        place.more = {
            "connections": {"lake": {"type": "lake", "path": str(tmp_path / "north" / "lake")}}
        }
        place.add(*marks)
        place.run(node())
    assert north.ids() == [1, 2, 100, 101]


def test_a_first_run_that_died_is_finished_under_another_name_of_the_project(place: Place) -> None:
    place.add(1)
    with dies("commit.after"):
        place.declare(node(ALL)).run(platform=place.platform)
    place.name = "other"
    place.run(node(ALL))
    assert place.ids() == [1]


def test_records_that_are_lost_are_made_again_under_another_name_too(place: Place) -> None:
    place.add(1)
    place.run(node(ALL))
    shutil.rmtree(place.folder / "lake" / "_strandline")
    place.run(node(ALL, name="m"))
    assert place.ids() == [1, 1]  # a full extract of each run


def test_a_table_that_somebody_made_anew_is_read_from_the_start(place: Place) -> None:
    place.add(1, 2)
    with dies("commit.after"):
        place.declare(node()).run(platform=place.platform)
    place.run(node())  # finishes the record
    table = str(place.folder / "lake" / "t")
    schema = DeltaTable(table).schema()
    shutil.rmtree(table)
    DeltaTable.create(table, schema=schema)
    place.add(3)
    place.run(node())
    assert place.ids() == [1, 2, 3]


def test_a_backup_that_is_put_back_goes_on_where_it_was(place: Place) -> None:
    table, backup = place.folder / "lake" / "t", place.folder / "backup"
    place.add(1)
    place.run(KEPT, FED)
    shutil.copytree(table, backup)
    place.add(2)
    place.run(KEPT, FED)
    shutil.rmtree(table)
    shutil.copytree(backup, table)
    place.add(3)
    place.run(KEPT, FED)
    assert place.ids() == [1, 2, 3]


def test_a_mark_is_not_put_back_into_a_table_that_was_made_anew(place: Place) -> None:
    kept = node(transform={"steps": [{"operation": "filter", "params": {"condition": "v <> 'x'"}}]})
    place.add(1, 2)
    place.run(kept)
    place.erp("INSERT INTO s VALUES (3, 'x', 3)")
    moved = place.run(kept)
    shutil.rmtree(place.folder / "lake" / "t")
    place.undo(place.run(kept))
    with pytest.raises(UndoRefused, match="made anew"):
        place.undo(moved)
    place.run(kept)
    assert place.ids() == [1, 2]


def test_an_undo_under_another_name_of_the_project_puts_back_what_was_before(place: Place) -> None:
    kept = node(transform={"steps": [{"operation": "filter", "params": {"condition": "v <> 'x'"}}]})
    place.add(1)
    place.run(kept)
    place.name = "other"
    place.erp("INSERT INTO s VALUES (2, 'x', 2)")
    place.undo(place.run(kept))
    newest = max(place.project.store.all_control(), key=lambda r: r.updated_at)
    assert newest.covered.marks == {"u": ("1", "bigint")}


@pytest.mark.parametrize("kind", [ALL, MARKED])
def test_another_name_of_the_connection_is_the_same_table(place: Place, kind: Any) -> None:
    place.more = {
        "connections": {"store": {"type": "lake", "path": "lake"}},
        "control": {"connection": "lake"},
    }
    place.add(1)
    place.run(node(kind))
    place.add(2)
    place.run(node(kind))
    renamed = node(kind)
    renamed["write"]["connection"] = "store"
    place.add(3)
    foreseen = place.declare(renamed).plan(platform=place.platform).nodes[0]
    done = place.run(renamed).nodes[0]
    assert (foreseen.inserted, done.inserted) == (done.inserted, 3 if kind is ALL else 1)
    assert place.ids() == ([1, 1, 1, 2, 2, 3] if kind is ALL else [1, 2, 3])
    place.undo(place.project.run(platform=place.platform) if kind is ALL else place.last)
    assert place.ids() == ([1, 1, 1, 2, 2, 3] if kind is ALL else [1, 2])
    newest = max(place.project.store.all_control(), key=lambda r: r.updated_at)
    assert newest.covered.marks == ({} if kind is ALL else {"u": ("2", "bigint")})


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_two_runners_at_once_under_two_names_of_a_node(place: Place, mode: str) -> None:
    place.add(1)
    place.run(node(mode=mode))
    place.add(2)
    loaded, runs = place.declare(node(mode=mode)), []

    def hook(name: str, by: str | None) -> None:
        if (name, by) == ("commit.before", "n") and not runs:
            runs.append(place.run(node(mode=mode, name="m")))

    with failpoints.armed(hook):
        result = loaded.run(platform=place.platform, retry=Retry(wait=0))
    assert [(n.status, n.inserted) for n in (*runs[0].nodes, *result.nodes)] == [
        ("success", 1),
        ("fenced", 0),
    ]
    assert result.exit_code == 4
    assert place.ids() == [1, 2]


def test_an_append_tries_again_beside_a_project_that_feeds_the_same_table_from_elsewhere(
    place: Place,
) -> None:
    """Both commits would have the same number: one lands, the other one looks again."""
    place.erp("CREATE TABLE other AS SELECT * FROM s")
    place.add(1)
    place.run(node())
    place.add(2)
    loaded, looks = place.declare(node()), list[str]()
    place.name = "theirs"

    def hook(name: str, by: str | None) -> None:
        if (name, by) == ("commit.before", "n"):
            looks.append(name)
        if len(looks) == 1 and by == "n" and name == "commit.before":
            place.run(node({**ALL, "table": "other"}, name="m"))

    place.erp("INSERT INTO other VALUES (9, 'x', 9)")
    with failpoints.armed(hook):
        loaded.run(platform=place.platform, retry=Retry(wait=0), check=True)
    assert place.ids() == [1, 2, 9]
    assert len(looks) == 2


def test_an_append_makes_no_table_of_half_its_rows(place: Place) -> None:
    """The table goes between the look and the commit: the rows that it had are read again."""
    place.add(1)
    place.run(node())
    place.add(2)
    loaded = place.declare(node())

    def hook(name: str, _by: str | None) -> None:
        if name == "commit.before" and place.ids() == [1]:
            shutil.move(place.folder / "lake" / "t", place.folder / "away")

    def ids_or_none() -> list[int]:
        return Place.ids(place) if (place.folder / "lake" / "t").exists() else []

    place.ids = ids_or_none  # type: ignore[method-assign]
    with failpoints.armed(hook):
        loaded.run(platform=place.platform, retry=Retry(wait=0), check=True)
    assert place.ids() == [1, 2]


def test_a_dry_run_of_an_undo_finds_what_landed_under_another_name(place: Place) -> None:
    place.add(1)
    with dies("commit.after"):
        place.declare(node()).run(platform=place.platform)
    commit = last_batch(Table("lake.t", str(place.folder / "lake" / "t")))
    assert commit is not None
    renamed = place.declare(node(name="m"))
    assert [
        n.deleted for n in renamed.undo(commit.run_id, platform=place.platform, dry_run=True).nodes
    ] == [1]
    assert renamed.undo(commit.run_id, platform=place.platform).exit_code == 0
    assert place.ids() == []


def test_a_renamed_node_whose_first_batch_fails_has_lost_no_history(place: Place) -> None:
    place.add(1)
    place.run(node())
    with failpoints.armed("commit.before@m:raise"):
        place.declare(node(name="m")).run(platform=place.platform)
    assert lost(place.project.store.all_control(), place.project.store.all_runs()) == {}
    shutil.rmtree(place.folder / "lake" / "_strandline" / "etl_runs")
    assert set(lost(place.project.store.all_control(), place.project.store.all_runs())) == {"m"}
