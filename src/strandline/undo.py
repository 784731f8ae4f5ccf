"""`undo RUN`: every table, watermark, snapshot record and hold of a run as it was before it.

Nothing is rewound: each table gets a new commit with a new token, that puts the rows of the version before back.
Columns that the run added stay, and a table that the run made is empty afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from strandline import restore
from strandline.batch import Landing
from strandline.control.fence import counting
from strandline.control.ledger import RunRow, Store
from strandline.control.undo import BACK, Taking, in_the_way, takings
from strandline.engine.base import Engine
from strandline.engine.delta_log import describe
from strandline.engine.delta_past import Commit, commits, unreadable
from strandline.errors import CommitConflict, Overtaken, UndoRefused, UsageError
from strandline.faults import point
from strandline.job import Job
from strandline.ready import Ready
from strandline.result import NodeResult
from strandline.run import Runner, taken_back
from strandline.strategy.changes import Counts
from strandline.types import TableState


def planned(
    jobs: Sequence[Job], run_id: str, everybody: Sequence[RunRow], noted: set[tuple[str, str]]
) -> list[tuple[Job, Taking]]:
    """What an undo will do, the last node first; raises when something is in the way.

    `everybody` is the history of all projects: runs of others may have consumed what this one made.
    """
    by_node = {job.node.name: job for job in jobs}
    mine = [r for r in everybody if r.project == jobs[0].project.config.project]
    history = everybody if any(r.run_id == run_id for r in mine) else mine
    taken = takings(history, run_id, noted)
    gone = [t for t in taken if t.node not in by_node or by_node[t.node].target.label != t.table]
    if gone:
        raise UndoRefused(run_id, [f"{t.table}: node `{t.node}` of this project no longer writes it" for t in gone])
    looked = [_looked(by_node[t.node], t, everybody, noted) for t in taken]
    if obstacles := [o for _, found in looked for o in found]:
        raise UndoRefused(run_id, obstacles)
    order = {job.node.name: i for i, job in enumerate(jobs)}
    return [(by_node[t.node], t) for t, _ in sorted(looked, key=lambda found: -order[found[0].node])]


def refuse_unknown(jobs: Sequence[Job], run_id: str, runner: Runner) -> None:
    """An error when neither the history nor a table knows a run: nothing is to be written for a slip of the pen."""
    history = runner.store.all_runs()
    if any(r.run_id == run_id for r in history):
        return
    try:
        dead = [row for job in jobs for row in runner.unrecorded(job, describe)]
    except CommitConflict:  # only an engine can tell, while it finishes the records
        return
    planned(jobs, run_id, [*dead, *history], noted_in(runner.store))


def of_node(job: Job, run_id: str, store: Store) -> Taking | None:
    """What is to be taken back of one node of a run; None when the run has changed nothing there."""
    alone = [row for row in store.all_runs() if row.run_id != run_id or row.node == job.node.name]
    try:
        found = takings(alone, run_id, noted_in(store))
    except UsageError:  # it was quiet, or finished what another run had begun
        return None
    return found[0]


def _looked(
    job: Job, taking: Taking, history: Sequence[RunRow], noted: set[tuple[str, str]]
) -> tuple[Taking, list[str]]:
    """A batch to take back, with the version of its events; and what is in the way of it now."""
    places = {p.label: p for p in (job.target, job.events) if p}
    past = {label: commits(place) for label, place in places.items()}
    if not past[job.target.label]:  # also under a batch that had only held deletes of it
        return taking, [f"{job.target.label}: the table is gone"]
    taking = replace(taking, events=_events(job, taking, past), carried=_carried(taking, past[job.target.label]))
    ids = {label: state.table_id for label, place in places.items() if (state := describe(place))}
    obstacles = [str(o) for o in in_the_way(taking, history, past, noted, ids)]
    for label, version in taking.made:
        lost = unreadable(places[label], version - 1) if version else None
        obstacles += [f"{label}: {lost}"] if lost else []
    return taking, obstacles


def _carried(taking: Taking, past: Sequence[Commit]) -> Mapping[str, Any] | None:
    """What the commit before says itself, when the records of its batch are lost."""
    made = taking.batch.version
    if taking.before is not None or not made:
        return None
    return next((c.record for c in reversed(past) if c.version < made and "coverage" in c.record), None)


def _events(job: Job, taking: Taking, past: Mapping[str, Sequence[Commit]]) -> tuple[str, int] | None:
    """The version that the batch made of the table of its events, if it had new ones."""
    if job.events is None:
        return None
    batch = taking.batch
    mine = (c.version for c in past[job.events.label] if (c.record.get("run_id"), c.record.get("batch")) == batch.by)
    version = next(mine, None)
    return (job.events.label, version) if version is not None else None


def undo_node(runner: Runner, job: Job, engine: Engine, taking: Taking) -> NodeResult:
    """Take back one batch: a batch of its own, on the tables as they are when it is looked at once more."""
    began = time.monotonic()
    point("undo.before", job.node.name)
    records, state, _ = runner.settle(job, engine.describe, began)
    this = runner.after(job, records, runner.landed(job, engine.describe, state))
    events = engine.describe(job.events) if job.events else None
    taking = _still(runner.store, job, taking)  # after records and tables: what comes to them later is refused
    ready = _ready(job, engine, state, events, taking)
    if at := this.memory().get("at"):  # the instants that a table was given only ever go forward
        ready = replace(ready, coverage={**ready.coverage, "at": at})
    with runner.announced(job, this, began, undoes=taking.batch.run_id):
        result = runner.lander(job, engine, this, state).land(ready, began)
    point("undo.after", job.node.name)
    return result


def _still(store: Store, job: Job, taking: Taking) -> Taking:
    """What was found before, if it is still so; somebody may have run meanwhile."""
    history = store.all_runs()
    taking, obstacles = _looked(job, taking, history, noted_in(store))
    if (taking.batch.run_id, taking.node, taking.batch.batch) not in counting(history):
        obstacles.append(f"{taking.table}: somebody else has undone it meanwhile")
    if obstacles:
        raise Overtaken(
            f"run {taking.batch.run_id} can no longer be undone: {'; '.join(obstacles)}; nothing was written here",
            hint="ask for the undo again: it says what is in the way",
        )
    return taking


def noted_in(store: Store) -> set[tuple[str, str]]:
    """The runs and nodes of which `etl_changes` tells something."""
    return store.noted()


def foreseen(job: Job, engine: Engine, taking: Taking) -> NodeResult:
    """What taking back one batch would do; nothing is written."""
    began = time.monotonic()
    events = engine.describe(job.events) if job.events else None
    counts = _ready(job, engine, engine.describe(job.target), events, taking).changes.counts or Counts()
    result = NodeResult(job.node.name, "success" if counts.any else "unchanged", inserted=counts.inserted)
    return replace(result, deleted=counts.deleted, seconds=round(time.monotonic() - began, 3))


def _ready(job: Job, engine: Engine, state: TableState | None, written: TableState | None, taking: Taking) -> Ready:
    assert state is not None, "a batch that was recorded has a table"
    version, events = taking.batch.version, None
    coverage = {**taking.coverage, BACK: version}
    if taking.events is not None and job.events is not None:
        assert written is not None, "and its events are there"
        events = Landing(job.events, written, restore.without(job.events, engine, written, taking.events[1]), ())
    ready = taken_back(job, engine, state, coverage)
    note = f"took back batch {taking.batch.batch} of run {taking.batch.run_id}"
    return replace(ready, warnings=(note,), events=events)
