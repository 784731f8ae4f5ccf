"""Killed between the commit and its record: the next run finds the batch in the table and finishes the record."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from strandline import failpoints
from strandline.run.retry import Retry
from strandline.testing.frames import read_table
from strandline.testing.projects import make_project

MODES = {"append": {}, "overwrite": {}, "upsert": {"keys": ["id"]}}
# dies as hard as a process can, at the first record that follows a commit
KILLED = """
import os, signal, sys
from strandline.control.store import DeltaStore
from strandline.project import load
point = sys.argv[3]
original = getattr(DeltaStore, point)
def die(self, *args):
    if point == "log" or args[0][0].batch_status == "SUCCESS":
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, *args)
setattr(DeltaStore, point, die)
load(sys.argv[1], engine=sys.argv[2]).run()
"""


def project(folder, mode):
    node = {
        "name": "n",
        "read": {"connection": "files", "path": "rows.csv", "schema": {"id": "bigint"}},
        "write": {"connection": "lake", "table": "t", "mode": mode, **MODES[mode]},
    }
    return make_project(folder, [node], spark={"master": "local[2]"})


def land(folder, rows):
    (folder / "landing").mkdir(exist_ok=True)
    (folder / "landing" / "rows.csv").write_text("id,v\n" + "".join(f"{i},{v}\n" for i, v in rows))


def killed(folder, engine, point):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, folder, engine, point], capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def content(folder):
    return sorted((r["id"], r["v"]) for r in read_table(folder / "lake" / "t").rows)


CASES = [
    *(pytest.param("pandas", mode, point) for mode in MODES for point in ("log", "put")),
    *(
        pytest.param("spark", mode, "log", marks=pytest.mark.spark) for mode in MODES
    ),  # each starts a JVM
]


@pytest.mark.parametrize(("engine_name", "mode", "point"), CASES, indirect=["engine_name"])
@pytest.mark.long
def test_nothing_twice_and_nothing_lost(tmp_path, engine_name, platform, mode, point):
    land(tmp_path, [(1, "a"), (2, "b")])
    project(tmp_path, mode).run(platform=platform)
    land(tmp_path, [(2, "B"), (3, "c")])
    killed(tmp_path, engine_name, point)
    expected = {
        "append": [(1, "a"), (2, "B"), (2, "b"), (3, "c")],
        "overwrite": [(2, "B"), (3, "c")],
        "upsert": [(1, "a"), (2, "B"), (3, "c")],
    }[mode]
    assert content(tmp_path) == expected  # it died after the commit
    store = project(tmp_path, mode).store
    assert next(r for r in store.states() if r.node == "n").batch_status == "RUNNING"

    again = project(tmp_path, mode).run(platform=platform).nodes[0]
    assert content(tmp_path) == expected
    assert again.status in ("success", "unchanged")
    state = next(r for r in store.states() if r.node == "n")
    assert state.batch_status == "SUCCESS"
    batches = {(r.batch, r.inserted, r.updated, r.deleted) for r in store.runs(10)}
    assert (2, *{"append": (2, 0, 0), "overwrite": (2, 0, 2), "upsert": (1, 1, 0)}[mode]) in batches

    project(tmp_path, mode).run(platform=platform)  # and the run after that is an ordinary one
    assert content(tmp_path) == (
        sorted([*expected, (2, "B"), (3, "c")]) if mode == "append" else expected
    )


@pytest.mark.parametrize("mode", MODES)
def test_killed_in_its_very_first_batch(tmp_path, pandas_platform, mode):
    land(tmp_path, [(1, "a")])
    project(tmp_path, mode)
    killed(tmp_path, "pandas", "log")
    assert content(tmp_path) == [(1, "a")]
    project(tmp_path, mode).run(platform=pandas_platform)
    assert content(tmp_path) == [(1, "a")]
    assert (
        next(r for r in project(tmp_path, mode).store.states() if r.node == "n").batch_status
        == "SUCCESS"
    )


def test_what_a_dead_first_write_left_is_not_a_table(tmp_path, platform):
    land(tmp_path, [(1, "a")])
    (tmp_path / "lake" / "t" / "_delta_log").mkdir(parents=True)
    (tmp_path / "lake" / "t" / "part-0.parquet").write_bytes(b"half")
    assert project(tmp_path, "upsert").run(platform=platform).status == "success"
    assert content(tmp_path) == [(1, "a")]


def test_two_runners_of_one_batch(tmp_path, pandas_platform, monkeypatch):
    """The second one finds its number taken when it commits, and writes nothing."""
    from strandline.engine.local.workspace import LocalWorkspace

    land(tmp_path, [(1, "a")])
    project(tmp_path, "append").run(platform=pandas_platform)
    land(tmp_path, [(2, "b")])
    original, entered = LocalWorkspace.apply, []

    def overtaken(self, *args):
        if not entered:
            entered.append(1)
            other = project(tmp_path, "append").run(platform=pandas_platform)
            assert other.nodes[0].status == "success"
        return original(self, *args)

    monkeypatch.setattr(LocalWorkspace, "apply", overtaken)
    result = project(tmp_path, "append").run(platform=pandas_platform)
    assert result.nodes[0].status == "fenced"
    assert result.exit_code == 4
    assert content(tmp_path) == [(1, "a"), (2, "b")]
    assert (
        next(r for r in project(tmp_path, "append").store.states() if r.node == "n").batch_status
        == "SUCCESS"
    )


def evolving(folder, kind):
    """A table that the next batch prepares first: its own columns, those of its events, or its change feed."""
    columns = {"id": "bigint", "at": "timestamp"}
    read = {"connection": "files", "path": "rows.csv", "schema": columns}
    history = {"mode": "scd2", "effective_at": "at"} if kind == "events" else {"mode": "upsert"}
    write = {"connection": "lake", "table": "t", **history, "keys": ["id"]}
    follow = {
        "connection": "lake",
        "table": "t",
        "alias": "t",
        "cdc_strategy": "cdf",
        "primary_keys": ["id"],
    }
    into = {"connection": "lake", "table": "f", "mode": "upsert", "keys": ["id"]}
    follower = {
        "name": "f",
        "sources": [follow],
        "transformation_sql": "SELECT id FROM t",
        "write": into,
    }
    more = [follower] if kind == "feed" else []
    return make_project(folder, [{"name": "n", "read": read, "write": write}, *more])


@pytest.mark.parametrize("other", ["a runner", "somebody"])
@pytest.mark.parametrize("kind", ["column", "events", "feed"])
def test_a_table_that_changes_while_it_is_prepared(
    tmp_path, pandas_platform, monkeypatch, kind, other
):
    """Another runner of the same batch holds it then: exit code 4; a stranger's change is gone along with."""
    from deltalake import DeltaTable

    from strandline.engine.local import delta
    from strandline.lake.delta import feed as delta_feed

    found = evolving(tmp_path, kind)
    (tmp_path / "landing" / "rows.csv").write_text("id,at\n1,2024-01-01\n")
    found.run("n", platform=pandas_platform, check=True)
    table = str(tmp_path / "lake" / ("t__events" if kind == "events" else "t"))
    if kind == "feed":
        DeltaTable(table).alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    (tmp_path / "landing" / "rows.csv").write_text("id,at,w\n1,2024-01-01,x\n2,2024-01-02,y\n")
    passed, ended = [], []

    def opened(*args, **how):
        mine = DeltaTable(*args, **how)
        if passed == ["notes.after"]:
            passed.append("opened")
            if other == "a runner":
                ended.append(
                    evolving(tmp_path, kind).run("n", platform=pandas_platform, check=True)
                )
            else:
                DeltaTable(table).alter.set_table_properties(
                    {"delta.logRetentionDuration": "interval 60 days"}
                )
        return mine

    monkeypatch.setattr(delta_feed if kind == "feed" else delta, "DeltaTable", opened)
    with failpoints.armed(
        lambda name, _: None if passed or name != "notes.after" else passed.append(name)
    ):
        result = found.run("n", platform=pandas_platform, retry=Retry(2, 0.0))
    assert passed == ["notes.after", "opened"]
    expected = ("fenced", 4) if ended else ("success", 0)
    assert (result.nodes[0].status, result.exit_code) == expected, result.nodes[0].error
    assert sorted(
        r["id"] for r in read_table(tmp_path / "lake" / "t").rows if r.get("_is_current", True)
    ) == [1, 2]


def test_two_first_writes_that_both_fail(tmp_path, pandas_platform, monkeypatch):
    """One removes the empty folder that the other is about to look at."""
    from strandline.engine.local import delta

    land(tmp_path, [(1, "a"), (1, "b")])
    original, results = delta._write, []

    def beside(*args):
        if not results:
            results.append(None)
            results[0] = project(tmp_path, "upsert").run(platform=pandas_platform)
        return original(*args)

    monkeypatch.setattr(delta, "_write", beside)
    results.append(project(tmp_path, "upsert").run(platform=pandas_platform))
    assert [r.nodes[0].error["code"] for r in results] == ["duplicate_keys", "duplicate_keys"]
