"""`undo RUN`: every table, watermark, snapshot record and hold of a run as it was before it.

Nothing is rewound: each table gets a new commit with a new token, that puts the rows of the version before back.
Columns that the run added stay, and a table that the run made is empty afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from strandline.control.ledger import RunRow
from strandline.control.undo import Taking, in_the_way, takings
from strandline.engine.base import Engine, LakeSource
from strandline.engine.delta_past import commits, unreadable
from strandline.errors import UndoRefused
from strandline.faults import point
from strandline.job import Job
from strandline.ready import Ready
from strandline.result import NodeResult
from strandline.run import Runner, versions_of
from strandline.sql.expr import cast, col, named, rows_of, select, table
from strandline.strategy import append as appending
from strandline.strategy.changes import ChangeSet, Counts, Removals
from strandline.types import Relation, TableState


def planned(
    jobs: Sequence[Job], run_id: str, history: Sequence[RunRow], noted: set[tuple[str, str]]
) -> list[tuple[Job, Taking]]:
    """What an undo will do, the last node first; raises when something is in the way."""
    by_node = {job.node.name: job for job in jobs}
    taken = takings(history, run_id, noted)
    gone = [t for t in taken if t.node not in by_node or by_node[t.node].target.label != t.table]
    if gone:
        raise UndoRefused(run_id, [f"{t.table}: node `{t.node}` of this project no longer writes it" for t in gone])
    past = {t.table: commits(by_node[t.node].target) for t in taken}
    obstacles = [str(o) for o in in_the_way(taken, history, past, noted)]
    folded = [t for t in taken if by_node[t.node].events is not None]
    obstacles += [f"{t.table}: it is folded from events (effective_at), which are never taken back" for t in folded]
    for t in taken:
        version = t.batch.version
        lost = unreadable(by_node[t.node].target, version - 1) if version else None
        obstacles += [f"{t.table}: {lost}"] if lost else []
    if obstacles:
        raise UndoRefused(run_id, obstacles)
    order = {job.node.name: i for i, job in enumerate(jobs)}
    return [(by_node[t.node], t) for t in sorted(taken, key=lambda t: -order[t.node])]


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
    coverage = taking.coverage
    versions = versions_of(job, coverage)
    note = f"took back batch {taking.batch.batch} of run {taking.batch.run_id}"
    if state is None or taking.batch.version is None:
        empty = Relation("", state.schema) if state else None
        changes = _changes(empty, state, Counts(held=int(coverage.get("held", 0))))
    else:
        changes = _restored(job, engine, state, taking.batch.version)
    return Ready(changes, coverage, lambda: None, versions, warnings=(note,))


def _restored(job: Job, engine: Engine, state: TableState, version: int) -> ChangeSet:
    """The rows of the version before in place of all there are, in the columns that the table has by now."""
    now = engine.scan(LakeSource(job.target, state.version)).relation
    if version == 0:
        rows = engine.query(rows_of(now).limit(0))
    else:
        then = engine.scan(LakeSource(job.target, version - 1)).relation
        rows = engine.query(_reshaped(then, state))
    come, go = engine.fetch(appending.difference(rows, now, state.schema))[0]
    return _changes(rows, state, Counts(inserted=int(come), deleted=int(go)))


def _reshaped(then: Relation, state: TableState) -> exp.Select:
    """Rows in the columns of today: what they had not is NULL, and a flag that they had not is false."""
    flag = state.roles.get("deleted", "").casefold()
    values = []
    for c in state.schema:
        old = then.schema.get(c.name)
        missing = exp.false() if c.fold == flag else exp.null()
        values.append(named(cast(col(old.name) if old else missing, c.type), c.name))
    return select(*values).from_(table(then.name))


def _changes(rows: Relation | None, state: TableState | None, counts: Counts) -> ChangeSet:
    assert state is not None, "a batch that was recorded has a table"
    return ChangeSet(
        rows or Relation("", state.schema),
        state.schema,
        Removals.EVERYTHING,
        (),
        state.partition_by,
        state.roles,
        counts,
    )
