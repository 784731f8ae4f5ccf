"""Decisions, undos, retries and plans that die at any point that they pass: asked again, they end as undisturbed."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.crashing import PINNED, Runs, agrees, picture, step

from strandline import failpoints
from strandline.testing.projects import make_project

TABLES = ("a", "b")
LAKE = {"connection": "lake"}
READ = {"connection": "files", "path": "rows.csv", "schema": {"id": "bigint", "u": "bigint"}}
ONE = "id,v,u\n" + "".join(f"{i},v{i},1\n" for i in range(1, 9))
TWO = "id,v,u\n1,new,2\n2,v2,1\n3,v3,1\n9,v9,2\n"  # one changed, five gone, one new


def land(folder: Path, text: str) -> None:
    (folder / "landing" / "rows.csv").write_text(text)


# --- what is asked for, and what comes before it -------------------------------------------------------------


def holding(folder: Path, runs: Runs) -> dict[str, Any]:
    """Two tables of which one run holds deletes."""
    params = {
        "mode": "snapshot_diff",
        "keys": ["id"],
        "max_delete_percent": 20,
        "on_threshold_breach": "hold",
    }
    look = {"steps": [{"operation": "detect_deletes", "params": params}]}
    modes = zip(TABLES, ("upsert", "scd2"), strict=True)
    writes = ((n, {**LAKE, "table": n, "mode": mode, "keys": ["id"]}) for n, mode in modes)
    make_project(
        folder,
        [{"name": n, "read": READ, "transform": look, "write": write} for n, write in writes],
        **PINNED,
    )
    runs.ran(folder, ONE, 1, "success")
    return {"run_id": runs.ran(folder, TWO, 2, "held").result["run_id"]}


def in_a_row(folder: Path, **read: Any) -> None:
    """A log of a file, and what is newest in it."""
    newest = {"operation": "deduplicate", "params": {"keys": ["id"], "order_by": "u DESC"}}
    a = {"name": "a", "read": {**READ, **read}, "write": {**LAKE, "table": "a", "mode": "append"}}
    write = {**LAKE, "table": "b", "mode": "upsert", "keys": ["id"]}
    b = {
        "name": "b",
        "read": {**LAKE, "table": "a"},
        "transform": {"steps": [newest]},
        "write": write,
    }
    make_project(folder, [a, b], **PINNED)


def failed(folder: Path, runs: Runs) -> dict[str, Any]:
    """A run that failed before it appended all of a file."""
    in_a_row(folder)
    runs.ran(folder, ONE, 1, "success")
    land(folder, TWO)
    assert runs.run(folder, 2, "commit.before@a:raise").statuses() == ["failed", "skipped"]
    return {}


def planned(folder: Path, runs: Runs) -> dict[str, Any]:
    """A plan of what is new in a file."""
    in_a_row(folder, incremental={"mode": "stateful", "column": "u"})
    runs.ran(folder, ONE, 1, "success")
    land(folder, TWO)
    runs.run(folder, 2, do="plan", out=str(folder / "x.plan"))
    return {"path": "x.plan"}


def ran(folder: Path, runs: Runs) -> dict[str, Any]:
    """A run to take back."""
    in_a_row(folder, incremental={"mode": "stateful", "column": "u"})
    runs.ran(folder, ONE, 1, "success")
    return {"run_id": runs.ran(folder, TWO, 2, "success").result["run_id"]}


@dataclass(frozen=True)
class Command:
    """Something that is asked for; what it says when it had come to its end all the same; and what it passes."""

    prepare: Callable[[Path, Runs], dict[str, Any]]
    over: str
    passes: dict[str, int]


# how often each point is passed, by two nodes
RECORD = {
    "control.write": 4,
    **dict.fromkeys(("log.before", "log.after", "put.before", "put.after"), 2),
}
_LAND = (
    "running.before",
    "running.after",
    "notes.before",
    "notes.after",
    "commit.before",
    "commit.rows",
)
LAND = {
    **RECORD,
    **dict.fromkeys((*_LAND, "commit.after", "readback.after", "sweep.before", "sweep.after"), 2),
}
LAND["control.write"] = 6  # announced, too
NOTED = dict.fromkeys(("checkpoint.before", "checkpoint.after"), 2)
EVALUATED = dict.fromkeys(("node.start", "read.after", "stage.before", "stage.after", "judged"), 2)
RUN = {**LAND, **NOTED, **EVALUATED, "run.start": 1, "run.end": 1}
COMMANDS = {
    "approve": Command(holding, "holds no deletes", RUN),
    "reject": Command(holding, "holds no deletes", {**RECORD, "reject.before": 2}),
    "retry": Command(failed, "", RUN),
    # once more to look at what the plan was made from, and its own rows
    "follow": Command(planned, "StalePlan", {**LAND, **NOTED, "sweep.before": 3, "sweep.after": 3}),
    "undo": Command(ran, "already undone", {**LAND, "undo.before": 2, "undo.after": 2}),
}


# the last time that it is passed, killed; every point that a run passes is tried in tests/crash/test_fault_points.py
QUICK = {
    "approve": ("commit.before", "log.after"),
    "reject": ("reject.before", "put.before"),
    "retry": ("commit.after", "put.after", "checkpoint.before"),
    "follow": ("commit.before", "commit.after", "control.write"),
    "undo": ("undo.before", "commit.after", "undo.after"),
}


def cases() -> Iterator[Any]:
    """Every time that a command passes a point, killed and failed; all but the quick ones in `make long`."""
    soon = {
        (do, f"{p}#{command.passes[p]}", "kill")
        for do, command in COMMANDS.items()
        for p in QUICK[do]
    }
    passed = (
        (do, f"{p}#{n}")
        for do, c in COMMANDS.items()
        for p, m in c.passes.items()
        for n in range(1, m + 1)
    )
    for case in ((*at, action) for at in passed for action in ("kill", "raise")):
        yield pytest.param(*case, id="-".join(case), marks=[] if case in soon else pytest.mark.long)


class Case:
    """A project right before a command, and as it is after it and after one more run."""

    def __init__(self, folder: Path, runs: Runs, do: str) -> None:
        self.runs, self.do, self.start = runs, do, folder / "start"
        self.start.mkdir()
        self.how = COMMANDS[do].prepare(self.start, runs)
        whole, seen = self.copy(folder / "whole"), Counter[str]()
        with failpoints.armed(lambda name, _: seen.update([name])):
            step(str(whole), 3, do=do, **self.asked(whole))
        self.passes = dict(seen)
        self.expected = [picture(whole, TABLES)]
        assert runs.run(whole, 4).result["status"] == "success"
        self.expected.append(picture(whole, TABLES))

    def copy(self, to: Path) -> Path:
        shutil.copytree(self.start, to)
        return to

    def asked(self, folder: Path) -> dict[str, Any]:
        return {k: str(folder / v) if k == "path" else v for k, v in self.how.items()}

    def dies(self, folder: Path, fault: str) -> None:
        """Die, ask again, and run."""
        self.copy(folder)
        died = self.runs.run(folder, 3, fault, do=self.do, **self.asked(folder))
        assert died.killed == fault.endswith("kill"), died
        again = self.runs.run(folder, 3, do=self.do, **self.asked(folder)).result
        over = COMMANDS[self.do].over
        assert over in again["raised"] if "raised" in again else again["status"] == "success", again
        if self.do != "follow":  # a stale plan leaves the rest to the next run
            assert _but_records(picture(folder, TABLES)) == _but_records(self.expected[0])
        assert self.runs.run(folder, 4).result["status"] == "success"
        assert picture(folder, TABLES) == self.expected[1]
        agrees(folder, TABLES)
        shutil.rmtree(folder)


def _but_records(seen: dict[str, Any]) -> dict[str, Any]:
    """What is true already, also where the next run finishes the records."""
    return {k: v for k, v in seen.items() if not k.startswith("record")}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Case]]:
    with Runs() as runs:
        yield cache(lambda do: Case(tmp_path_factory.mktemp(do), runs, do))


@pytest.mark.parametrize(("do", "point", "action"), list(cases()))
def test_asked_again_it_ends_as_if_it_had_not_died(
    prepared: Callable[[str], Case], tmp_path: Path, do: str, point: str, action: str
) -> None:
    prepared(do).dies(tmp_path / "p", f"{point}:{action}")


@pytest.mark.parametrize("do", COMMANDS)
def test_these_are_all_the_points(prepared: Callable[[str], Case], do: str) -> None:
    assert prepared(do).passes == COMMANDS[do].passes
