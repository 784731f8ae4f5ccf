"""What a dead run leaves, other than its batch: control tables half written, staged files, a run that is half done."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.crashing import Runs, agrees

from strandline import failpoints
from strandline.engine.staging import owner, staging, sweep
from strandline.errors import (
    CommitConflict,
    ReadError,
    SourceDown,
    StalePlan,
    StrandlineError,
    UsageError,
)
from strandline.project import StrandlineProject
from strandline.run.record import Recorder
from strandline.run.retry import Checkpoint, Retry, folder_of, kept
from strandline.testing.frames import read_table
from strandline.testing.projects import make_project

READ = {"connection": "files", "path": "rows.csv", "schema": {"id": "bigint"}}
LAKE = {"connection": "lake"}


def project(folder: Path, mode: str = "upsert") -> StrandlineProject:
    keys = {"keys": ["id"]} if mode in ("upsert", "scd2") else {}
    nodes = [
        {"name": "a", "read": READ, "write": {**LAKE, "table": "a", "mode": mode, **keys}},
        {
            "name": "b",
            "read": {**LAKE, "table": "a"},
            "write": {**LAKE, "table": "b", "mode": "upsert", "keys": ["id"]},
        },
        {"name": "c", "read": READ, "write": {**LAKE, "table": "c", "mode": "overwrite"}},
    ]
    return make_project(folder, nodes)


def land(folder: Path, *rows: tuple[int, str]) -> None:
    (folder / "landing" / "rows.csv").write_text("id,v\n" + "".join(f"{i},{v}\n" for i, v in rows))


def content(folder: Path, table: str = "a") -> list[tuple[int, str]]:
    return sorted((r["id"], r["v"]) for r in read_table(folder / "lake" / table).rows)


def dies(loaded: StrandlineProject, platform: Any, fault: str, **how: Any) -> None:
    """A fault of ours, which no code expects."""
    with failpoints.armed(f"{fault}:raise"):
        loaded.run(platform=platform, threads=1, **how)


@pytest.fixture
def loaded(tmp_path: Path, pandas_platform: Any) -> StrandlineProject:
    found = project(tmp_path)
    land(tmp_path, (1, "a"), (2, "b"))
    found.run(platform=pandas_platform, check=True)
    land(tmp_path, (1, "A"), (3, "c"))
    return found


def test_an_unexpected_error_does_not_leave_a_node_at_work(
    loaded: StrandlineProject, pandas_platform: Any
) -> None:
    with failpoints.armed("judged@a:raise"):
        result = loaded.run(platform=pandas_platform)
    statuses = {n.name: n.status for n in result.nodes}
    assert statuses == {"a": "failed", "b": "skipped", "c": "success"}
    assert "internal error: InjectedFault" in result.nodes[0].error["message"]
    state = next(r for r in loaded.store.states() if r.node == "a")
    assert state.batch_status == "FAILED"
    assert "InjectedFault" in str(state.error_message)


@pytest.mark.parametrize("gone", ["etl_control", "etl_runs", "etl_changes", "everything"])
@pytest.mark.parametrize("left", ["nothing", "an empty log"])
def test_control_tables_that_are_gone_or_half_written(
    loaded: StrandlineProject, tmp_path: Path, pandas_platform: Any, gone: str, left: str
) -> None:
    dies(loaded, pandas_platform, "log.before@a")
    folder = loaded.store.folder
    names = ["etl_control", "etl_runs", "etl_changes"] if gone == "everything" else [gone]
    for name in names:
        shutil.rmtree(folder / name, ignore_errors=True)
        if left == "an empty log":
            (folder / name / "_delta_log").mkdir(parents=True)
    assert loaded.run(platform=pandas_platform).exit_code == 0
    assert content(tmp_path) == content(tmp_path, "b") == [(1, "A"), (2, "b"), (3, "c")]
    assert content(tmp_path, "c") == [(1, "A"), (3, "c")]
    assert {r.batch_status for r in loaded.store.all_control()} == {"SUCCESS"}
    assert [n.status for n in loaded.run(platform=pandas_platform).nodes] == ["unchanged"] * 3


@pytest.mark.parametrize("point", ["log.before", "put.before"])
def test_a_full_read_is_not_appended_twice(
    tmp_path: Path, pandas_platform: Any, point: str
) -> None:
    loaded = project(tmp_path, "append")
    land(tmp_path, (1, "a"))
    dies(loaded, pandas_platform, f"{point}@a")
    assert loaded.run(platform=pandas_platform).exit_code == 0
    assert content(tmp_path) == [(1, "a")]
    agrees(tmp_path, ("a", "b", "c"))


@pytest.mark.parametrize("ran_before", [False, True])
def test_a_source_that_was_renamed_after_a_death_is_not_at_work_for_ever(
    tmp_path: Path, pandas_platform: Any, monkeypatch: pytest.MonkeyPatch, ran_before: bool
) -> None:
    write = {**LAKE, "table": "a", "mode": "append"}
    old, new = (
        {"name": "a", "read": {**READ, "path": f"{f}.csv"}, "write": write} for f in ("rows", "new")
    )
    loaded = make_project(tmp_path, [old])
    land(tmp_path, (1, "a"))
    if ran_before:
        loaded.run(platform=pandas_platform, check=True)
    monkeypatch.setattr(Recorder, "_fail", lambda *_: None)  # as dead as one that is killed
    dies(loaded, pandas_platform, "judged@a")
    monkeypatch.undo()
    assert [r.batch_status for r in loaded.store.all_control()] == ["RUNNING"]
    (tmp_path / "landing" / "rows.csv").rename(tmp_path / "landing" / "new.csv")
    renamed = make_project(tmp_path, [new])
    renamed.run(platform=pandas_platform, check=True)
    states = {r.source_table: (r.batch_status, r.revision) for r in renamed.store.all_control()}
    assert states["files.new.csv"] == ("SUCCESS", 1 + ran_before)
    # how far the other file was read stays known, for when it is read again
    assert states.get("files.rows.csv") == (("SUCCESS", 1) if ran_before else None)
    agrees(tmp_path, ("a",))


def test_status_tells_what_was_found_and_done(tmp_path: Path, pandas_platform: Any) -> None:
    from strandline.cli.records import _states

    loaded = project(tmp_path)
    land(tmp_path, (1, "a"))
    expected = {
        "commit.after": "finished the record of batch 1, which had landed before its runner died",
        "log.before": "finished the record of batch 1, which was in the state only",
        "commit.before": None,  # it could say that it failed
    }
    for point, text in expected.items():
        shutil.rmtree(tmp_path / "lake", ignore_errors=True)
        dies(loaded, pandas_platform, f"{point}@a", select="a")
        loaded.run("a", platform=pandas_platform, check=True)
        state = next(s for s in _states(loaded) if s["name"] == "a")
        assert (state["recovery"] and state["recovery"]["done"]) == text
        assert state["status"] == "SUCCESS"


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("point", ["commit.after", "log.before"])
def test_whoever_finishes_a_record_does_not_claim_its_rows(
    tmp_path: Path, pandas_platform: Any, mode: str, point: str
) -> None:
    """The rows are those of the run that died; the history and the result of each run say the same."""
    loaded = project(tmp_path, mode)
    land(tmp_path, (1, "a"), (2, "b"))
    dies(loaded, pandas_platform, f"{point}@a", select="a")
    dead = loaded.store.all_runs()[-1].run_id
    result = loaded.run("a", platform=pandas_platform)
    node = result.nodes[0]
    assert (node.status, node.inserted, node.updated, node.version) == ("unchanged", 0, 0, None)
    told = {
        "commit.after": "which had landed before its runner died",
        "log.before": "which was in the state only",
    }
    assert node.warnings == [
        f"finished the record of batch 1 (2 rows inserted by run {dead}), {told[point]}"
    ]
    rows = [r for r in loaded.store.runs() if r.status != "failed"]
    inserted = {
        run_id: sum(r.inserted for r in rows if r.run_id == run_id)
        for run_id in (dead, result.run_id)
    }
    assert inserted == {dead: 2, result.run_id: 0}


@pytest.mark.parametrize(
    ("mode", "later"), [("append", False), ("upsert", False), ("upsert", True)]
)
@pytest.mark.parametrize("point", ["log.before", "put.before"])
def test_what_an_earlier_attempt_landed_is_counted(
    tmp_path: Path, pandas_platform: Any, point: str, mode: str, later: bool
) -> None:
    """A run whose record fails once finishes it in its next attempt: the rows are its own, with what comes after."""
    loaded = project(tmp_path, mode)
    land(tmp_path, (1, "a"), (2, "b"))
    passed = []

    def fails_once(name: str, node: str | None) -> None:
        if (name, node) == (point, "a") and not passed:
            passed.append(name)
            if later:
                land(tmp_path, (1, "A"), (2, "b"), (3, "c"))
            raise CommitConflict("the control tables cannot be written")

    with failpoints.armed(fails_once):
        result = loaded.run("a", platform=pandas_platform, retry=Retry(2, 0.0), check=True).nodes[0]
    assert passed
    counts = (result.status, result.inserted, result.updated, result.version)
    assert counts == (("success", 3, 1, 1) if later else ("success", 2, 0, 0))


# --- staged files ------------------------------------------------------------------------------------------


def test_what_the_dead_have_staged_is_swept_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with staging(tmp_path, "mine") as mine:
        mine.mkdir()
        owner = mine.name.rpartition(".of.")[2]
        place, _, process = owner.rpartition("~")
        pid, _, began = process.partition("+")
        names = {
            "dead": f"x-1.of.{place}~{2**22 + 7}+{began}",  # no such process can be
            "reborn": f"x-2.of.{place}~{pid}+1",  # the same number, begun at another time
            "elsewhere": f"x-3.of.other-host~{2**22 + 7}+{began}",
            "old": "x-4.of.other-host~1+1",
        }
        for name in names.values():
            (tmp_path / name).mkdir()
        os.utime(tmp_path / names["old"], (0, 0))
        monkeypatch.setenv("STRANDLINE_ENABLE_STAGING_CLEANUP", "0")
        assert sweep(tmp_path) == []
        monkeypatch.delenv("STRANDLINE_ENABLE_STAGING_CLEANUP")
        assert sorted(sweep(tmp_path)) == sorted(names[n] for n in ("dead", "reborn", "old"))
        assert {f.name for f in tmp_path.iterdir()} == {mine.name, names["elsewhere"]}
    assert not mine.exists()


@pytest.mark.parametrize("moment", ["before it is opened", "before it is read"])
def test_a_process_that_ends_while_it_is_looked_at_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    code = "from strandline.engine.staging import owner; print(owner(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        left = tmp_path / f"x-1.of.{other.stdout.readline().strip()}"
        left.mkdir()
        assert sweep(tmp_path) == []
        opened = io.open

        def ends(file: Any, *args: Any, **how: Any) -> Any:
            mine = str(file) == f"/proc/{other.pid}/stat"
            if mine and moment == "before it is opened":
                other.kill()
                other.wait()
            found = opened(file, *args, **how)
            if mine and moment == "before it is read":
                other.kill()
                other.wait()
            return found

        monkeypatch.setattr(io, "open", ends)
        assert sweep(tmp_path) == [left.name]
    assert not left.exists()


def test_what_cannot_be_looked_at_is_left_and_fails_nobody(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "a file").touch()
    (tmp_path / "strange.of.").mkdir()
    (tmp_path / f"digits.of.{owner().rpartition('~')[0]}~²+1").mkdir()
    assert sweep(tmp_path) == []


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary ones, where nobody else works."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)  # asked for anew
    return folder


@pytest.mark.parametrize("do", ["run", "plan", "follow"])
def test_what_a_killed_command_leaves_the_next_run_sweeps(
    loaded: StrandlineProject, tmp_path: Path, temporary: Path, pandas_platform: Any, do: str
) -> None:
    plan = tmp_path / "x.plan"
    if do == "follow":
        loaded.plan(platform=pandas_platform, out=plan)
    how = {"run": {}, "plan": {"out": str(plan)}, "follow": {"path": str(plan)}}[do]
    with Runs() as runs:
        assert runs.run(
            tmp_path, 2, {"plan": "read.after:kill"}.get(do, "commit.before:kill"), do=do, **how
        ).killed
        assert len(list(temporary.iterdir())) == (
            1 if do == "run" else 2
        )  # the node's, and the rows of the plan
        runs.run(tmp_path, 2)
    assert list(temporary.iterdir()) == []


def test_a_plan_leaves_nothing_behind_unless_that_is_asked_for(
    loaded: StrandlineProject,
    tmp_path: Path,
    temporary: Path,
    pandas_platform: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = tmp_path / "x.plan"
    loaded.plan(platform=pandas_platform, out=plan)
    with failpoints.armed(
        "judged@a:raise"
    ):  # one that cannot be made is not kept, nor are its rows
        loaded.plan(platform=pandas_platform, out=tmp_path / "y.plan")
    assert list(temporary.iterdir()) == []
    monkeypatch.setenv("STRANDLINE_ENABLE_STAGING_CLEANUP", "0")
    loaded.follow(plan, platform=pandas_platform, check=True)
    assert len(list(temporary.glob("*/plan.json"))) == 1


# --- trying again ------------------------------------------------------------------------------------------


def failing(
    times: int, error: StrandlineError, node: str = "a"
) -> Callable[[str, str | None], None]:
    """A source that is down for some attempts."""
    left = [times]

    def hook(name: str, at: str | None) -> None:
        if (name, at) == ("read.after", node) and left[0]:
            left[0] -= 1
            raise error

    return hook


@pytest.mark.parametrize(
    "error", [SourceDown("down"), CommitConflict("met")], ids=["down", "conflict"]
)
def test_what_passes_by_itself_is_tried_again(
    loaded: StrandlineProject, tmp_path: Path, pandas_platform: Any, error: StrandlineError
) -> None:
    waited: list[float] = []
    with failpoints.armed(failing(2, error)):
        result = loaded.run(
            platform=pandas_platform, threads=1, retry=Retry(3, 0.5, sleep=waited.append)
        )
    assert (result.exit_code, waited) == (0, [0.5, 1.0])
    assert content(tmp_path) == [(1, "A"), (2, "b"), (3, "c")]
    assert [r.status for r in loaded.store.runs() if r.node == "a"].count("failed") == 2
    land(tmp_path, (9, "z"))
    with failpoints.armed(failing(3, error)):
        last = loaded.run(
            platform=pandas_platform, retry=Retry(3, 0.5, longest=0.7, sleep=waited.append)
        )
    assert (last.exit_code, waited[2:]) == (1, [0.5, 0.7])


def test_what_will_not_pass_is_not_tried_again(
    loaded: StrandlineProject, pandas_platform: Any
) -> None:
    waited: list[float] = []
    with failpoints.armed(failing(1, ReadError("no"))):
        result = loaded.run(platform=pandas_platform, retry=Retry(sleep=waited.append))
    assert (result.exit_code, waited) == (1, [])


def test_retry_does_what_failed_and_what_waits_for_it(
    loaded: StrandlineProject, tmp_path: Path, pandas_platform: Any
) -> None:
    dies(loaded, pandas_platform, "judged@a")
    assert unfinished(loaded) == ["a", "b"]
    again = loaded.retry(platform=pandas_platform)
    assert again is not None
    assert [(n.name, n.status) for n in again.nodes] == [("a", "success"), ("b", "success")]
    assert content(tmp_path, "b") == [(1, "A"), (2, "b"), (3, "c")]
    assert loaded.retry(platform=pandas_platform) is None


def test_the_newest_checkpoint_is_the_last_begun_whatever_the_clock_said(tmp_path: Path) -> None:
    for run_id in ("20250102T000000-ffff", "20250102T000000-0000", "20250101T000000-8888"):
        Checkpoint(tmp_path, run_id, ["a"]).begin()
        assert kept(tmp_path)[0].run_id == run_id
    for n in range(30):
        Checkpoint(tmp_path, f"20250101T000000-{n}", ["a"]).begin()
    assert len(list(tmp_path.iterdir())) == 20
    assert [c.run_id for c in kept(tmp_path)] == [f"20250101T000000-{n}" for n in range(29, 9, -1)]


def retried(loaded: StrandlineProject, platform: Any) -> list[tuple[str, str]]:
    """What a retry does; and then nothing is left."""
    again = loaded.retry(platform=platform)
    assert loaded.retry(platform=platform) is None
    return [(n.name, n.status) for n in again.nodes] if again else []


def unfinished(loaded: StrandlineProject) -> list[str]:
    """What a retry would run."""
    left = loaded.unfinished()
    assert left is not None
    return list(left.nodes)


def leftovers(loaded: StrandlineProject) -> list[list[str]]:
    """What each run left, the newest run first."""
    return [list(left.nodes) for left in loaded.leftovers()]


def test_what_an_older_run_left_is_named_and_not_retried(
    loaded: StrandlineProject, tmp_path: Path, pandas_platform: Any
) -> None:
    dies(loaded, pandas_platform, "judged@a")
    assert leftovers(loaded) == [["a", "b"], []]
    loaded.run("c", platform=pandas_platform, check=True)
    assert leftovers(loaded) == [[], ["a", "b"], []]
    assert loaded.retry(platform=pandas_platform) is None
    loaded.run("b", platform=pandas_platform, check=True)
    old = loaded.leftovers()[2]
    assert (list(old.nodes), old.hint) == (["a"], 'strandline run --select "a+"')
    loaded.run("a+", platform=pandas_platform, check=True)
    assert not any(leftovers(loaded))
    assert content(tmp_path, "b") == [(1, "A"), (2, "b"), (3, "c")]


def test_a_run_that_is_at_work_has_left_nothing_yet(loaded: StrandlineProject) -> None:
    with Checkpoint(loaded._checkpoints, "alive", ["a"], owner=owner()).at_work():
        assert not any(leftovers(loaded))
    assert leftovers(loaded) == [["a"], []]


def test_retry_runs_what_depends_on_a_failed_node_also_if_it_was_not_chosen(
    loaded: StrandlineProject, pandas_platform: Any
) -> None:
    dies(loaded, pandas_platform, "judged@a", select="a")
    assert retried(loaded, pandas_platform) == [("a", "success"), ("b", "success")]


def test_an_approval_is_tried_again_as_one(tmp_path: Path, pandas_platform: Any) -> None:
    look = {
        "mode": "snapshot_diff",
        "keys": ["id"],
        "max_delete_percent": 0,
        "on_threshold_breach": "hold",
    }
    write, steps = (
        {**LAKE, "mode": "upsert", "keys": ["id"]},
        [{"operation": "detect_deletes", "params": look}],
    )
    nodes = [
        {"name": n, "read": READ, "transform": {"steps": steps}, "write": {**write, "table": n}}
        for n in ("a", "b")
    ]
    loaded = make_project(tmp_path, nodes)
    land(tmp_path, (1, "a"), (2, "b"))
    loaded.run(platform=pandas_platform, check=True)
    land(tmp_path, (1, "a"))
    held = loaded.run("a", platform=pandas_platform).run_id
    with failpoints.armed("judged@a:raise"):
        loaded.approve(held, platform=pandas_platform)
    again = loaded.retry(platform=pandas_platform)
    assert again is not None
    assert [(n.name, n.deleted, n.held) for n in again.nodes] == [("a", 1, 0)]
    assert loaded.retry(platform=pandas_platform) is None


def test_projects_that_share_their_records_have_checkpoints_of_their_own(
    tmp_path: Path, pandas_platform: Any
) -> None:
    write = {**LAKE, "mode": "upsert", "keys": ["id"]}
    shared = {"connections": {"lake": {"type": "lake", "path": str(tmp_path / "lake")}}}
    ours, theirs = (
        make_project(
            tmp_path / name,
            [{"name": name, "read": READ, "write": {**write, "table": name}}],
            project=name,
            **shared,
        )
        for name in ("ours", "theirs")
    )
    assert ours.store.folder == theirs.store.folder
    for name in ("ours", "theirs"):
        land(tmp_path / name, (1, "a"))
    dies(ours, pandas_platform, "judged")
    theirs.run(platform=pandas_platform, check=True)
    with Checkpoint(theirs._checkpoints, "alive", ["theirs"], owner=owner()).at_work():
        assert retried(ours, pandas_platform) == [
            ("ours", "success")
        ]  # who else is at work does not matter


def test_names_of_projects_do_not_meet_in_a_folder(tmp_path: Path) -> None:
    names = ["shop", "Shop", "shop-", "x" * 300, "x" * 301]
    folders = [folder_of(tmp_path, name) for name in names]
    assert len({str(f).casefold() for f in folders}) == len(names)
    for folder in folders:
        folder.mkdir(parents=True)


def test_retry_after_a_kill(
    loaded: StrandlineProject, tmp_path: Path, pandas_platform: Any
) -> None:
    with Runs() as runs:
        assert runs.run(tmp_path, 2, "commit.before@a:kill").killed
    assert set(unfinished(loaded)) == {"a", "b", "c"}
    again = loaded.retry(platform=pandas_platform)
    assert again is not None
    assert again.exit_code == 0
    assert content(tmp_path, "b") == [(1, "A"), (2, "b"), (3, "c")]


def test_retry_does_what_failed_after_an_earlier_batch_of_the_same_run(
    loaded: StrandlineProject, tmp_path: Path, pandas_platform: Any
) -> None:
    """The first attempt lands and its record fails; the second finishes that, and fails in a batch of its own."""
    passed = []

    def fails(name: str, node: str | None) -> None:
        if node == "a" and name == "log.before" and not passed:
            passed.append(name)
            land(tmp_path, (1, "A"), (1, "twice"))
            raise CommitConflict("the control tables cannot be written")

    with failpoints.armed(fails):
        result = loaded.run("a", platform=pandas_platform, retry=Retry(2, 0.0))
    assert result.nodes[0].error["code"] == "duplicate_keys"
    land(tmp_path, (1, "A"), (3, "c"), (4, "d"))
    assert retried(loaded, pandas_platform) == [("a", "success"), ("b", "success")]


@pytest.mark.parametrize("point", ["log.after@a", "checkpoint.before@a"])
def test_retry_asks_the_records_too(tmp_path: Path, pandas_platform: Any, point: str) -> None:
    loaded = project(tmp_path, "append")
    land(tmp_path, (1, "a"))
    with suppress(failpoints.InjectedFault):
        dies(loaded, pandas_platform, point)
    again = loaded.retry(platform=pandas_platform)
    assert again is None or "a" not in [n.name for n in again.nodes]
    assert content(tmp_path) == content(tmp_path, "b") == [(1, "a")]


def test_retry_does_not_repeat_what_another_runner_has_done_meanwhile(
    tmp_path: Path, pandas_platform: Any
) -> None:
    loaded, others = project(tmp_path, "append"), []
    land(tmp_path, (1, "a"))

    def overtaken(name: str, node: str | None) -> None:
        if (name, node) == ("commit.before", "a") and not others:
            there = set(loaded._checkpoints.iterdir())
            others.append("begins here, and does not call for a third")
            project(tmp_path, "append").run("a", platform=pandas_platform, check=True)
            for file in set(loaded._checkpoints.iterdir()) - there:
                file.unlink()  # as if it had begun on another machine: the last run is the loser

    with failpoints.armed(overtaken):
        assert loaded.run(platform=pandas_platform, threads=1).nodes[0].status == "fenced"
    assert retried(loaded, pandas_platform) == [("b", "success")]
    assert content(tmp_path) == content(tmp_path, "b") == [(1, "a")]


def test_a_run_that_is_still_at_work_is_not_retried(loaded: StrandlineProject) -> None:
    checkpoint = Checkpoint(loaded._checkpoints, "alive", ["a"], owner=owner())
    with checkpoint.at_work(), pytest.raises(UsageError, match="run alive is still at work"):
        loaded.unfinished()
    assert unfinished(loaded) == ["a", "b"]


def test_an_older_run_that_is_still_at_work_stops_a_retry_too(
    loaded: StrandlineProject, pandas_platform: Any
) -> None:
    checkpoint = Checkpoint(loaded._checkpoints, "alive", ["a"], owner=owner())
    with checkpoint.at_work():
        dies(loaded, pandas_platform, "judged@c", select="c")
        with pytest.raises(UsageError, match="run alive is still at work"):
            loaded.unfinished()


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"run_id": "x"',
        "[]",
        '{"unknown": 1}',
        '{"run_id": "x", "nodes": null}',
        '{"run_id": "x", "nodes": [["a"]]}',
        '{"run_id": "x", "nodes": ["a"], "ended": ["a"]}',
    ],
)
def test_a_checkpoint_that_cannot_be_read(loaded: StrandlineProject, text: str) -> None:
    newest = max(loaded._checkpoints.iterdir())
    newest.write_text(text)
    with pytest.raises(UsageError, match=f"{newest.name} cannot be read"):
        loaded.unfinished()


def test_without_a_checkpoint_of_the_last_run_retry_refuses(
    loaded: StrandlineProject, pandas_platform: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLINE_ENABLE_CHECKPOINTS", "0")
    dies(loaded, pandas_platform, "judged@a")
    monkeypatch.delenv("STRANDLINE_ENABLE_CHECKPOINTS")
    with pytest.raises(UsageError, match="the last run kept no checkpoint"):
        loaded.retry(platform=pandas_platform)


def test_metrics_of_each_batch(
    loaded: StrandlineProject, pandas_platform: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = json.loads(loaded.store.runs()[0].metrics or "{}")
    assert {"read", "transform", "reconcile", "evaluate", "apply"} <= set(newest)
    monkeypatch.setenv("STRANDLINE_ENABLE_METRICS", "0")
    loaded.run(platform=pandas_platform)
    assert loaded.store.runs()[0].metrics is None


def test_retry_tells_of_a_plan_that_failed(
    loaded: StrandlineProject, tmp_path: Path, pandas_platform: Any
) -> None:
    loaded.plan(platform=pandas_platform, out=tmp_path / "x.plan")
    with failpoints.armed("commit.before@a:raise"):
        run_id = loaded.follow(tmp_path / "x.plan", platform=pandas_platform).run_id
    with pytest.raises(UsageError, match=f"run {run_id} applied a plan, and left: a, b") as told:
        loaded.retry(platform=pandas_platform)
    assert 'strandline run --select "a+, b+"' in str(told.value)
    dies(
        loaded, pandas_platform, "commit.before@a", select=["a", "b"]
    )  # somebody has decided to do without it
    assert retried(loaded, pandas_platform) == [("a", "success"), ("b", "success")]


# --- plans over what a dead run left -----------------------------------------------------------------------


@pytest.mark.parametrize("point", ["log.before", "put.before"])
def test_a_plan_counts_what_a_dead_run_landed(
    tmp_path: Path, pandas_platform: Any, point: str
) -> None:
    loaded = project(tmp_path, "append")
    land(tmp_path, (1, "a"))
    loaded.run(platform=pandas_platform, check=True)
    land(tmp_path, (1, "a"), (2, "b"))
    dies(loaded, pandas_platform, f"{point}@a", select="a")
    dead = loaded.store.runs()[0].run_id
    before = loaded.store.all_control()
    plan = loaded.plan("a", platform=pandas_platform, out=tmp_path / "x.plan").nodes[0]
    assert (plan.status, plan.inserted) == ("unchanged", 0)
    assert plan.warnings == ["a run first finishes the record of batch 2, whose runner died"]
    assert loaded.store.all_control() == before  # a plan writes nothing
    loaded.follow(tmp_path / "x.plan", platform=pandas_platform, check=True)
    assert content(tmp_path) == [(1, "a"), (1, "a"), (2, "b")]
    agrees(tmp_path, ("a", "b", "c"))
    loaded.undo(dead, platform=pandas_platform)
    assert content(tmp_path) == [(1, "a")]


def test_a_plan_goes_on_from_the_watermark_that_landed(
    tmp_path: Path, pandas_platform: Any
) -> None:
    read = {**READ, "incremental": {"mode": "stateful", "column": "id"}}
    node = {
        "name": "a",
        "read": read,
        "write": {**LAKE, "table": "a", "mode": "upsert", "keys": ["id"]},
    }
    loaded = make_project(tmp_path, [node])
    land(tmp_path, (1, "a"))
    dies(loaded, pandas_platform, "log.before@a")
    land(tmp_path, (0, "below the mark"), (1, "a"), (2, "b"))
    plan = loaded.plan(platform=pandas_platform, out=tmp_path / "x.plan").nodes[0]
    assert (plan.inserted, plan.updated) == (1, 0)
    loaded.follow(tmp_path / "x.plan", platform=pandas_platform, check=True)
    assert content(tmp_path) == [(1, "a"), (2, "b")]
    agrees(tmp_path, ("a",))


def test_a_plan_from_before_the_death_is_stale(tmp_path: Path, pandas_platform: Any) -> None:
    loaded = project(tmp_path, "append")
    land(tmp_path, (1, "a"))
    loaded.plan("a", platform=pandas_platform, out=tmp_path / "x.plan")
    dies(loaded, pandas_platform, "log.before@a", select="a")
    with pytest.raises(StalePlan, match="stale plan"):
        loaded.follow(tmp_path / "x.plan", platform=pandas_platform)
    assert content(tmp_path) == [(1, "a")]
    agrees(tmp_path, ("a",))


# --- a delete flag that is there, and not filled in --------------------------------------------------------


def flagged(folder: Path, soft: bool) -> StrandlineProject:
    """A table that gets a delete flag once its deletes are no longer hard."""
    flag = {"soft_delete_col": "_is_deleted" if soft else None}
    params = {"mode": "snapshot_diff", "keys": ["id"], "max_delete_percent": None, **flag}
    steps = [{"operation": "detect_deletes", "params": params}]
    write = {**LAKE, "table": "t", "mode": "upsert", "keys": ["id"]}
    return make_project(
        folder, [{"name": "n", "read": READ, "transform": {"steps": steps}, "write": write}]
    )


def unflagged(folder: Path, platform: Any) -> None:
    found = flagged(folder, soft=False)
    land(folder, (1, "a"), (2, "b"), (3, "c"), (4, "d"))
    found.run(platform=platform, check=True)


def by_plan(found: StrandlineProject, folder: Path, platform: Any) -> None:
    found.plan(platform=platform, out=folder / "x.plan")
    found.follow(folder / "x.plan", platform=platform, check=True)


def without_records(found: StrandlineProject, _folder: Path, platform: Any) -> None:
    shutil.rmtree(found.store.folder)
    found.run(platform=platform, check=True)


def undone(found: StrandlineProject, folder: Path, platform: Any) -> None:
    """Back to the first batch, which knew of no flag."""
    found.undo(found.store.runs()[-1].run_id, platform=platform)
    found.run(platform=platform, check=True)


@pytest.mark.parametrize("then", [by_plan, without_records, undone])
def test_a_flag_that_a_dead_runner_added_is_filled_in(
    tmp_path: Path, pandas_platform: Any, then: Callable
) -> None:
    unflagged(tmp_path, pandas_platform)
    found = flagged(tmp_path, soft=True)
    land(tmp_path, (1, "a"), (2, "B"), (3, "c"))
    dies(found, pandas_platform, "alter.fill")
    then(found, tmp_path, pandas_platform)
    shown = {r["id"]: r["_is_deleted"] for r in read_table(tmp_path / "lake" / "t").rows}
    assert shown == {1: False, 2: False, 3: False} | ({} if then is undone else {4: True})


@pytest.mark.parametrize("soft", [True, False], ids=["same", "older"])
def test_a_flag_that_was_added_since_the_look_is_filled_in(
    tmp_path: Path, pandas_platform: Any, soft: bool
) -> None:
    """Whoever adds it dies; the runner beside it has looked before, and may not even want the flag."""
    unflagged(tmp_path, pandas_platform)
    land(tmp_path, (1, "a"), (2, "B"), (3, "c"), (4, "d"), (5, "e"))
    found, other = flagged(tmp_path, soft=soft), flagged(tmp_path, soft=True)
    passed = []

    def beside(name: str, _node: str | None) -> None:
        if name == "judged" and not passed:
            passed.append(name)
            dies(other, pandas_platform, "alter.fill")

    with failpoints.armed(beside):
        found.run(platform=pandas_platform, check=True, retry=Retry(2, 0.0))
    assert {r["_is_deleted"] for r in read_table(tmp_path / "lake" / "t").rows} == {False}


def test_a_run_goes_on_when_its_checkpoint_can_no_longer_be_written(
    loaded: StrandlineProject,
    tmp_path: Path,
    pandas_platform: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def hook(name: str, _node: str | None) -> None:
        if (
            name == "checkpoint.before"
        ):  # a file where the folder was: nobody can write below it, whoever asks
            shutil.rmtree(loaded._checkpoints, ignore_errors=True)
            loaded._checkpoints.parent.mkdir(parents=True, exist_ok=True)
            loaded._checkpoints.unlink(missing_ok=True)
            loaded._checkpoints.touch()

    with failpoints.armed(hook):
        result = loaded.run(platform=pandas_platform, threads=1)
    assert {n.status for n in result.nodes} == {"success"}
    assert any("Not a directory" in r.getMessage() for r in caplog.records)
