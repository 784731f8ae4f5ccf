"""Detection of deletes that is switched off: which deleted rows have come back.

A row was read after its delete when the node's source did not have it at the end of the node's previous batch
(docs/decisions/0005-deletes.md). A database and files are read anew by every batch; of a lake table the rows count that
came since the version that the previous batch recorded.
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from strandline.batch import compare
from strandline.batch.compare import Transformed
from strandline.batch.read import Slice, feed_of
from strandline.batch.sources import QUIET, Sources
from strandline.engine.base import Engine, LakeSource
from strandline.journal import log
from strandline.plan.inputs import is_lake
from strandline.plan.job import Job
from strandline.sql.expr import col, lit, rows_of, select, table
from strandline.strategy.absence import Absence
from strandline.strategy.changes import is_true
from strandline.types import Arrivals, Relation, TableState


def with_presence(
    job: Job, engine: Engine, slice_: Slice, made: Transformed, state: TableState | None
) -> Transformed:
    """The rows to write, and which of their keys are back where nothing looks for deletes."""
    write = job.node.write
    flag = state.roles.get("deleted") if state else None
    if (
        state is None
        or flag is None
        or not write.keyed
        or write.announces
        or job.detection is not None
    ):
        return made
    anew = len(job.inputs) > 1 or not is_lake(job.project, job.inputs[0].read)
    if not (anew and write.effective_at is None) and not _any_deleted(job, engine, state, flag):
        return made
    keys, warning = (None, None) if anew else _arrived(job, engine, slice_, made)
    back = Absence(Arrivals(keys or made.rows), seen=keys, scope=exp.false())
    return replace(made, presence=back, warnings=(warning,) if warning else ())


def _any_deleted(job: Job, engine: Engine, state: TableState, flag: str) -> bool:
    rows = engine.scan(LakeSource(job.target, state.version)).relation
    return bool(
        engine.fetch(select(lit(1)).from_(table(rows.name)).where(is_true(col(flag))).limit(1))
    )


def _arrived(
    job: Job, engine: Engine, slice_: Slice, made: Transformed
) -> tuple[Relation | None, str | None]:
    """What the rows that came since the last batch become, None when all rows did; and what there is to warn of."""
    if slice_.followed is not None and slice_.followed.how in ("rows", "keys"):
        return None, None
    (input_,) = job.inputs
    sources = Sources(job, engine, fresh=False, silent=True)
    stirred, feed = sources.stirred(input_), feed_of(job, input_)
    if (
        stirred
        and feed is not None
        and feed.coverage.mode == "overwrite"
        and sources.position(input_) is not None
    ):
        return None, None  # the table holds what its newest batch read
    moved = sources.moved(input_) if stirred else QUIET
    if moved.unknown is None and moved.came:
        came = {input_.alias: sources.side(input_, moved, 1)}
        return compare.transform(job, engine, replace(slice_, rows=came)).rows, None
    none = engine.query(rows_of(made.rows).where(exp.false()))
    if moved.unknown is None:
        return none, None
    text = f"deleted rows of {job.target.label} stay deleted until they are read again: {moved.unknown}"
    log.warning("%s: %s", job.node.name, text)
    return none, text
