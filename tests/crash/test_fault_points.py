"""Dies at every point, in every write mode, killed or by a fault of ours: the next run makes good, whatever it was."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.crashing import EVENTS, PINNED, Runs, agrees, picture

from strandline.failpoints import POINTS
from strandline.project import load
from strandline.testing.projects import make_project

MODES: dict[str, dict[str, Any]] = {
    "append": {},
    "overwrite": {},
    "upsert": {"keys": ["id"]},
    "scd2": {"keys": ["id"]},
    "full append": {"mode": "append"},  # every run reads everything, and appends it
    "events": {
        "mode": "scd2",
        "keys": ["id"],
        "effective_at": "e",
    },  # two tables: the events are committed first
}
ONE = "id,v,u\n1,a,1\n2,b,1\n3,c,1\n"
TWO = "id,v,u,w\n2,B,2,x\n3,c,1,\n4,d,2,y\n"  # one changed, one gone, one new, and a new column
THREE = "id,v,u,w\n2,B,2,x\n4,D,3,y\n5,e,3,z\n"
LANDED = {1: ONE, 2: TWO, 3: THREE}
ELSEWHERE = {"reject.before", "undo.before", "undo.after"}  # not in a run: tried where they are
IN_RECOVERY = {"recover.before", "recover.after"}
NUMBERED = [f"control.write#{n}" for n in (2, 3)]  # the first announces, the others log and record
INSIDE = [p for p in POINTS if p not in ELSEWHERE] + NUMBERED
KEY = ("running.after", "commit.before", "commit.after", "log.after", "put.before", "alter.fill")
# between the two commits of a history, and while the next run folds what the first of them brought
SECOND = [
    f"{p}#2"
    for p in ("commit.before", "commit.rows", "commit.after", "readback.after", "alter.fill")
]
FOLDING = (
    "notes.after",
    "alter.before",
    "commit.before",
    "commit.after",
    "log.before",
    "log.after",
    "put.before",
)
BETWEEN = [*SECOND, *(f"commit.after>{p}" for p in FOLDING)]
# a batch that is recorded is over: what appends everything does so again in the run after it
ENDED = ("sweep.before", "sweep.after", "checkpoint.before", "checkpoint.after", "run.end")
RECORDED = ("recover.after", "put.after", *ENDED)


def quick() -> set[tuple[str, str, str]]:
    """Every point once, the modes in turn: killed, and those around the commit failed in another mode."""
    modes, found = list(MODES), set()
    for i, point in enumerate(INSIDE):
        found.add((modes[i % len(modes)], point, "kill"))
        if point in KEY:
            found.add((modes[(i + 2) % len(modes)], point, "raise"))
    return found | {
        ("events", point, ("kill", "raise")[i // 2 % 2])
        for i, point in enumerate(BETWEEN)
        if i % 2 == 0
    }


def cases() -> Iterator[Any]:
    """Every point in every mode, killed and failed; all but the quick ones in `make long`."""
    soon = quick()
    every = itertools.product(MODES, INSIDE, ("kill", "raise"))
    for case in (*every, *itertools.product(["events"], BETWEEN, ("kill", "raise"))):
        yield pytest.param(*case, id="-".join(case), marks=[] if case in soon else pytest.mark.long)


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    with Runs() as started:
        yield started


def project(folder: Path, mode: str, *, soft: bool) -> None:
    """One node; from its second run on it only marks what is deleted, for which its table needs more system columns."""
    steps: list[dict[str, Any]] = []
    if "keys" in MODES[mode]:
        params: dict[str, Any] = {
            "mode": "snapshot_diff",
            "keys": ["id"],
            "max_delete_percent": None,
        }
        params |= {"soft_delete_col": "_is_deleted" if soft or mode != "upsert" else None}
        steps = [{"operation": "detect_deletes", "params": params}]
    if mode == "events":
        day = "CAST(concat('2024-01-0', CAST(u AS STRING)) AS TIMESTAMP)"
        steps = [{"operation": "derive", "params": {"columns": {"e": day}}}, *steps]
    write = {
        "connection": "lake",
        "table": "t",
        "mode": mode,
        "add_metadata": {"extracted_at": True},
        **MODES[mode],
    }
    node: dict[str, Any] = {
        "name": "n",
        "read": {
            "connection": "files",
            "path": "rows.csv",
            "schema": {"id": "bigint", "u": "bigint"},
        },
        "write": write,
        "change_log": "all",
    }
    if (
        mode == "append"
    ):  # without a mark, a full read would append everything again, each time it is run
        node["read"]["incremental"] = {"mode": "stateful", "column": "u"}
    make_project(folder, [node | ({"transform": {"steps": steps}} if steps else {})], **PINNED)


def recorded(folder: Path) -> bool:
    """Do the records know the second batch?"""
    return any(
        (r.revision, r.batch_status) == (2, "SUCCESS") for r in load(folder).store.all_control()
    )


class Case:
    """A project after its first run, and as it is after more that nothing disturbs."""

    def __init__(self, folder: Path, runs: Runs, mode: str) -> None:
        self.folder, self.start, self.runs, self.mode = folder, folder / "start", runs, mode
        self.tables = ("t", f"t{EVENTS}") if mode == "events" else ("t",)
        self.start.mkdir()
        project(self.start, mode, soft=False)
        self.lands(self.start, ONE)
        assert runs.run(self.start, 1).statuses() == ["success"]
        self.expected: dict[tuple[int, ...], Any] = {}

    def whole(self, *hours: int) -> Any:
        """The picture after undisturbed runs of what has landed by these hours."""
        if hours not in self.expected:
            folder = self.copy(self.folder / "whole")
            for hour in hours:
                self.lands(folder, LANDED[hour])
                ended = self.runs.run(folder, hour)
                assert ended.statuses()[0] == "success", ended
            self.expected[hours] = picture(folder, self.tables)
            shutil.rmtree(folder)
        return self.expected[hours]

    def copy(self, to: Path) -> Path:
        shutil.copytree(self.start, to)
        project(to, self.mode, soft=True)
        return to

    @staticmethod
    def lands(folder: Path, text: str) -> None:
        (folder / "landing").mkdir(exist_ok=True)
        (folder / "landing" / "rows.csv").write_text(text)

    def dies(self, folder: Path, *faults: str) -> None:
        """Die at each of the points, one run after the other; then run again, and once more."""
        done = (2,)
        if self.mode == "full append" and faults[-1].rpartition(":")[0] in RECORDED:
            done = (2, 2)
        self.copy(folder)
        self.lands(folder, TWO)
        for fault in faults:
            ended = self.runs.run(folder, 2, fault)
            assert ended.killed == fault.endswith("kill"), (fault, ended)
            if not ended.killed and "raised" not in ended.result:
                # a fault after everything was recorded is a fault all the same
                assert ended.statuses()[0] in ("failed", "success"), ended
        assert self.runs.run(folder, 2).statuses()[0] in ("success", "unchanged")
        self.is_good(folder, *done)
        self.lands(folder, THREE)
        self.runs.run(folder, 3)
        self.is_good(folder, *done, 3)
        shutil.rmtree(folder)

    def is_good(self, folder: Path, *hours: int) -> None:
        agrees(folder, self.tables)
        assert picture(folder, self.tables) == self.whole(*hours)


@pytest.fixture(scope="module")
def prepared(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    return cache(lambda mode: Case(tmp_path_factory.mktemp(mode), runs, mode))


@pytest.mark.parametrize(("mode", "point", "action"), list(cases()))
def test_nothing_twice_and_nothing_lost(
    prepared: Callable[[str], Case], tmp_path: Path, mode: str, point: str, action: str
) -> None:
    *first, last = (f"log.before>{point}" if point in IN_RECOVERY else point).split(">")
    prepared(mode).dies(tmp_path / "p", *(f"{p}:kill" for p in first), f"{last}:{action}")


def test_killed_at_random_times(
    prepared: Callable[[str], Case],
    runs: Runs,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """As often as it takes to get through; in `make soak` for half an hour."""
    minutes, dice = float(os.environ.get("STRANDLINE_SOAK_MINUTES", "0")), random.Random(7)
    ends, deaths, rounds = time.monotonic() + 60 * minutes, 0, 0
    while rounds < len(MODES) or time.monotonic() < ends:
        case = prepared(list(MODES)[rounds % len(MODES)])
        folder = tmp_path / f"p{rounds}"
        case.copy(folder)
        case.lands(folder, TWO)
        longest = 1.0  # seconds; a little more after each death, since a busy machine may need them to get through
        while (ended := runs.run(folder, 2, alarm=dice.uniform(0.01, longest))).killed:
            deaths, longest = deaths + 1, longest * 1.1
            if case.mode == "full append" and recorded(
                folder
            ):  # died after its batch: another run is another batch
                break
        assert ended.killed or ended.statuses()[0] in ("success", "unchanged"), ended
        case.is_good(folder, 2)
        shutil.rmtree(folder)
        rounds += 1
    record_property("deaths", deaths)
    print(f"{rounds} batches, {deaths} deaths, 0 differences")  # noqa: T201 – the count that `make soak` reports


def test_there_are_enough_points() -> None:
    assert len(POINTS) >= 20
