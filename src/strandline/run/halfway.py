"""Undos that were left half-way: some tables of a run are as before it, others are not, and no run puts them right."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from strandline.control.ledger import RunRow
from strandline.errors import CommitConflict, UndoRefused, UsageError
from strandline.plan.job import Job
from strandline.run.runner import Runner
from strandline.run.undo import noted_in, planned


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
    """The undos that have taken back a part of their run, and can still be finished by asking again.

    `running` are the nodes whose records say that somebody is at work.
    """
    if not jobs:
        return []
    store, project = runner.store, jobs[0].project
    history = store.all_runs()
    for job in (
        j for j in jobs if j.node.name in running
    ):  # it may have landed and died before its record
        with suppress(CommitConflict):  # what only a run can tell
            history = [*runner.unrecorded(job), *history]
    mine = [r for r in history if r.project == project.config.project and r.recorded]
    begun: dict[str, list[RunRow]] = {}
    for row in mine:
        if (undone := row.coverage.undoes) and not _by_the_run(jobs, row, undone, history):
            begun.setdefault(undone, []).append(row)
    found = []
    for run_id, rows in begun.items():
        if any(_went_on(row, mine) for row in rows):
            continue
        with suppress(
            UsageError, UndoRefused
        ):  # all of it is undone, or somebody has gone on from there
            left = [job.node.name for job, _ in planned(jobs, run_id, history, noted_in(store))]
            found.append(HalfUndone(run_id, rows[0].run_id, left))
    return found


def _by_the_run(jobs: Sequence[Job], row: RunRow, undone: str, history: Sequence[RunRow]) -> bool:
    """Did a run take this back itself, because another target of the same node failed? The rest of it is wanted."""
    names = jobs[0].project.together(row.node)
    return len(names) > 1 and any(
        r.run_id == undone and r.node in names and r.status == "failed"
        for r in history
        if not r.takes_back
    )


def _went_on(undo: RunRow, history: Sequence[RunRow]) -> bool:
    """Has a run worked on the node since it was taken back?"""
    later = (r for r in history if r.node == undo.node and r.batch > undo.batch)
    return any(not r.coverage.undoes for r in later)
