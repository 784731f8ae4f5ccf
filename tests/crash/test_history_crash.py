"""Killed between the events of a history and its table: the next run rolls forward, and nothing is lost or doubled."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from tests.stories.history.test_history import TIME, TIMED, day, frame, versions

from strandline.testing.events import assert_sound
from strandline.testing.frames import read_table, write_parquet
from strandline.testing.projects import make_project

# dies as hard as a process can: when the events are there and the table is about to be written, or when both are
KILLED = """
import os, signal, sys
from strandline.control.store import DeltaStore
from strandline.project import load
if sys.argv[2] == "pandas":
    from strandline.engine.local.workspace import LocalWorkspace as Workspace
else:
    from strandline.engine.spark.workspace import SparkWorkspace as Workspace
apply, put = Workspace.apply, DeltaStore.put
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
def until_the_table(self, table, *args):
    return apply(self, table, *args) if table.location.endswith("__events") else die()
if sys.argv[3] == "table":
    Workspace.apply = until_the_table
else:
    DeltaStore.put = lambda self, rows, seen: (
        die() if rows[0].batch_status == "SUCCESS" else put(self, rows, seen)
    )
load(sys.argv[1], engine=sys.argv[2]).run()
"""


class Shop:
    """One history over a file."""

    def __init__(self, folder, platform, **write):
        self.folder, self.platform = folder, platform
        node = {
            "name": "n",
            "read": {"connection": "files", "path": "rows.parquet"},
            "write": {"connection": "lake", "table": "t", **TIME, **write},
        }
        self.project = make_project(folder, [node], spark={"master": "local[2]"})

    def land(self, *rows, columns=TIMED):
        write_parquet(self.folder / "landing" / "rows.parquet", frame(columns, *rows))

    def run(self):
        return self.project.run(platform=self.platform, check=True).nodes[0]

    def killed(self, engine, point):
        command = [sys.executable, "-c", KILLED, self.folder, engine, point]
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()

    def rows(self):
        found = read_table(self.folder / "lake" / "t")
        assert_sound(found.rows, ["id"])
        return versions(found, "id", "name", "_valid_from", "_valid_to", "_is_deleted")

    def events(self):
        return len(read_table(self.folder / "lake" / "t__events").rows)

    def batches(self):
        runs = [r for r in self.project.store.runs(20) if r.recorded and r.status != "unchanged"]
        return sorted((r.batch, r.inserted, r.updated, r.deleted) for r in runs)


FIRST = [(1, "Ada", "1", "U", day(1)), (2, "Bob", "1", "U", day(1))]
SECOND = [(1, "Eve", "1", "U", day(5)), (2, None, None, "D", day(7)), (3, "Cy", "1", "U", day(2))]
AFTER = [
    (1, "Ada", day(1), day(5), False),
    (1, "Eve", day(5), None, False),
    (2, "Bob", day(1), day(7), True),
    (3, "Cy", day(2), None, False),
]
POINTS = [
    ("pandas", "table"),
    ("pandas", "log"),
    pytest.param("spark", "table", marks=pytest.mark.spark),  # starts a JVM of its own
]


@pytest.mark.parametrize(("engine_name", "point"), POINTS, indirect=["engine_name"])
@pytest.mark.long_on_spark
def test_the_next_run_folds_what_had_landed(tmp_path, engine_name, platform, point):
    shop = Shop(tmp_path, platform)
    shop.land(*FIRST)
    shop.run()
    shop.land(*SECOND)
    shop.killed(engine_name, point)
    assert shop.events() == 5
    assert shop.rows() == (
        AFTER
        if point == "log"
        else [(k, n, day(1), None, False) for k, n in ((1, "Ada"), (2, "Bob"))]
    )
    assert next(r for r in shop.project.store.states() if r.node == "n").batch_status == "RUNNING"

    shop.land(*SECOND, (1, "Eva", "1", "U", day(9)))  # and the source has gone on meanwhile
    result = shop.run()
    assert result.updated == 1
    assert shop.rows() == [
        AFTER[0],
        (1, "Eve", day(5), day(9), False),
        (1, "Eva", day(9), None, False),
        *AFTER[2:],
    ]
    assert shop.events() == 6
    assert shop.batches() == [(1, 2, 0, 0), (2, 1, 1, 1), (3, 0, 1, 0)]
    assert shop.run().status == "unchanged"


def test_killed_in_its_very_first_batch(tmp_path, pandas_platform):
    shop = Shop(tmp_path, pandas_platform)
    shop.land(*FIRST)
    shop.killed("pandas", "table")
    assert not (tmp_path / "lake" / "t").exists()
    assert shop.run().status == "unchanged"  # all of it had landed
    assert [r[:2] for r in shop.rows()] == [(1, "Ada"), (2, "Bob")]
    assert shop.batches() == [(1, 2, 0, 0)]


def test_a_column_that_came_with_the_dead_run(tmp_path, pandas_platform):
    shop = Shop(tmp_path, pandas_platform)
    shop.land(*FIRST)
    shop.run()
    shop.land((*SECOND[0], "Bern"), columns=[*TIMED, ("city", "string")])
    shop.killed("pandas", "table")
    shop.run()
    assert versions(read_table(tmp_path / "lake" / "t"), "id", "name", "city") == [
        (1, "Ada", None),
        (1, "Eve", "Bern"),
        (2, "Bob", None),
    ]


def test_a_plan_over_what_a_dead_run_left(tmp_path, pandas_platform):
    """The plan shows what the next run will do, events that nobody folded included."""
    shop = Shop(tmp_path, pandas_platform)
    shop.land(*FIRST)
    shop.run()
    shop.land(*SECOND)
    shop.killed("pandas", "table")
    planned = shop.project.plan(platform=pandas_platform).nodes[0]
    assert (planned.inserted, planned.updated, planned.deleted) == (1, 1, 1)


def test_events_that_change_nothing_are_no_alarm(tmp_path, pandas_platform):
    """They are committed, the table is not, and no run takes that for a dead one."""
    shop = Shop(tmp_path, pandas_platform)
    shop.land(*FIRST)
    shop.run()
    shop.land((9, None, None, "D", day(3)))
    result = shop.run()
    assert (result.status, shop.events()) == ("unchanged", 3)
    assert result.warnings == []
    assert shop.run().warnings == []
    shop.land((9, "Zed", "1", "U", day(1)))
    shop.run()
    assert shop.rows()[-1] == (9, "Zed", day(1), day(3), True)


def test_two_runners_of_one_batch(tmp_path, pandas_platform, monkeypatch):
    """The events are the fence: the second one writes nothing."""
    from strandline.engine.local.workspace import LocalWorkspace

    shop = Shop(tmp_path, pandas_platform)
    shop.land(*FIRST)
    shop.run()
    shop.land(*SECOND)
    original, entered = LocalWorkspace.apply, []

    def overtaken(self, *args):
        if not entered:
            entered.append(1)
            assert shop.run().status == "success"
        return original(self, *args)

    monkeypatch.setattr(LocalWorkspace, "apply", overtaken)
    result = shop.project.run(platform=pandas_platform)
    assert (result.nodes[0].status, result.exit_code) == ("fenced", 4)
    assert shop.rows() == AFTER
    assert shop.events() == 5
