"""Undos that were left half-way: some tables of a run are as before it, others are not, and no run puts them right."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from strandline.control.fence import counting, undone
from strandline.control.ledger import UNDOING, RunRow
from strandline.errors import CommitConflict
from strandline.plan.job import Job
from strandline.run.runner import Runner


@dataclass(frozen=True)
class HalfUndone:
    """A run that was taken back in part."""

    run_id: str
    by: str  # the undo
    left: list[str]  # the nodes that it has not reached

    def __str__(self) -> str:
        nodes = ", ".join(self.left)
        return f"the undo of run {self.run_id} is at work, or was left half-way: {nodes} not taken back yet"

    @property
    def hint(self) -> str:
        """The way out, and what closes it."""
        return f"strandline undo {self.run_id} finishes it; once a run has gone on from here, it is refused"


def half_undone(jobs: Sequence[Job], runner: Runner, running: Collection[str]) -> list[HalfUndone]:
    """The undos that have taken back a part of their list, and can still be finished by asking again.

    `running` are the nodes whose records say that a runner is at work.
    """
    if not jobs:
        return []
    history = runner.store.all_runs()
    for job in (j for j in jobs if j.node.name in running):  # it may have landed without a record
        with suppress(CommitConflict):  # what only a run can tell
            history = [*runner.unrecorded(job), *history]
    project = jobs[0].project.config.project
    lists: dict[str, list[RunRow]] = {}
    for row in history:
        if row.status == UNDOING and row.project == project and row.takes_back:
            lists.setdefault(row.takes_back, []).append(row)
    back = undone(history)
    found = []
    for run_id, rows in lists.items():
        done = {r.line for r in rows if (run_id, *r.line) in back}
        listed = sorted(rows, key=lambda r: r.started_at)
        left = list(dict.fromkeys(r.node for r in listed if r.line not in done))
        if done and left and not _went_on(run_id, done, history):
            found.append(HalfUndone(run_id, rows[0].run_id, left))
    return found


def _went_on(run_id: str, done: set[tuple[str, str]], history: Sequence[RunRow]) -> bool:
    """Has a run worked on what was taken back since?"""
    counts = counting(history)
    undos = {r.line: r.batch for r in history if r.recorded and r.takes_back == run_id}
    later = (r for r in history if r.line in done and r.ending in counts and not r.coverage.undoes)
    return any(r.batch > undos[r.line] for r in later)
