"""`undo RUN`: every table, watermark, snapshot record and hold of a run as it was before it.

Nothing is rewound: each table gets a new commit with a new token, that puts the rows of the version before back.
Columns that the run added stay, and a table that the run made is empty afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from strandline import restore
from strandline.batch import Landing
from strandline.control.ledger import RunRow
from strandline.control.undo import BACK, Taking, in_the_way, takings
from strandline.engine.base import Engine
from strandline.engine.delta_past import Commit, commits, unreadable
from strandline.errors import UndoRefused
from strandline.faults import point
from strandline.job import Job
from strandline.ready import Ready
from strandline.result import NodeResult
from strandline.run import Runner, taken_back
from strandline.strategy.changes import Counts
from strandline.types import TableState


def planned(
    jobs: Sequence[Job], run_id: str, history: Sequence[RunRow], noted: set[tuple[str, str]]
) -> list[tuple[Job, Taking]]:
    """What an undo will do, the last node first; raises when something is in the way."""
    by_node = {job.node.name: job for job in jobs}
    taken = takings(history, run_id, noted)
    gone = [t for t in taken if t.node not in by_node or by_node[t.node].target.label != t.table]
    if gone:
        raise UndoRefused(run_id, [f"{t.table}: node `{t.node}` of this project no longer writes it" for t in gone])
    places = {p.label: p for t in taken for p in (by_node[t.node].target, by_node[t.node].events) if p}
    past = {label: commits(place) for label, place in places.items()}
    taken = [replace(t, events=_events(by_node[t.node], t, past)) for t in taken]
    obstacles = [str(o) for o in in_the_way(taken, history, past, noted)]
    for label, version in (made for t in taken for made in t.made):
        lost = unreadable(places[label], version - 1) if version else None
        obstacles += [f"{label}: {lost}"] if lost else []
    if obstacles:
        raise UndoRefused(run_id, obstacles)
    order = {job.node.name: i for i, job in enumerate(jobs)}
    return [(by_node[t.node], t) for t in sorted(taken, key=lambda t: -order[t.node])]


def _events(job: Job, taking: Taking, past: Mapping[str, Sequence[Commit]]) -> tuple[str, int] | None:
    """The version that the batch made of the table of its events, if it had new ones."""
    if job.events is None:
        return None
    batch = taking.batch
    mine = (c.version for c in past[job.events.label] if (c.record.get("run_id"), c.record.get("batch")) == batch.by)
    version = next(mine, None)
    return (job.events.label, version) if version is not None else None


def undo_node(runner: Runner, job: Job, engine: Engine, taking: Taking) -> NodeResult:
    """Take back one batch: a batch of its own."""
    began = time.monotonic()
    point("undo.before", job.node.name)
    records, state, _ = runner.settle(job, engine.describe, began)
    this = runner.after(job, records, runner.landed(job, engine.describe, state))
    ready = _ready(job, engine, state, taking)
    if at := this.memory().get("at"):  # the instants that a table was given only ever go forward
        ready = replace(ready, coverage={**ready.coverage, "at": at})
    with runner.announced(job, this, began):
        result = runner.land(job, engine, this, state, ready, began)
    point("undo.after", job.node.name)
    return result


def foreseen(job: Job, engine: Engine, taking: Taking) -> NodeResult:
    """What taking back one batch would do; nothing is written."""
    began = time.monotonic()
    counts = _ready(job, engine, engine.describe(job.target), taking).changes.counts or Counts()
    result = NodeResult(job.node.name, "success" if counts.any else "unchanged", inserted=counts.inserted)
    return replace(result, deleted=counts.deleted, seconds=round(time.monotonic() - began, 3))


def _ready(job: Job, engine: Engine, state: TableState | None, taking: Taking) -> Ready:
    assert state is not None, "a batch that was recorded has a table"
    version, events = taking.batch.version, None
    coverage = {**taking.coverage, BACK: version}
    if taking.events is not None and job.events is not None:
        written = engine.describe(job.events)
        assert written is not None, "and its events are there"
        events = Landing(job.events, written, restore.without(job.events, engine, written, taking.events[1]), ())
    ready = taken_back(job, engine, state, coverage)
    note = f"took back batch {taking.batch.batch} of run {taking.batch.run_id}"
    return replace(ready, warnings=(note,), events=events)
