"""What earlier batches noted of single keys of a table: held, rejected, or missing so many times running."""

from __future__ import annotations

from sqlglot import exp

from strandline.control.ledger import DECISIONS, RECORDED, Notebook
from strandline.engine.base import Engine, LakeSource
from strandline.plan.job import Job
from strandline.sql.expr import (
    all_of,
    any_of,
    case,
    col,
    eq,
    lit,
    named,
    one_of,
    ordered,
    over,
    select,
    table,
)
from strandline.types import Relation

_NOTES = ("hold", "reject", "approve", "missing", "seen", "delete")


def open_notes(engine: Engine, notebook: Notebook, job: Job) -> Relation:
    """The open notes of a table, one row per key: held, decided on, or missing so many times running."""
    changes, runs = (
        engine.scan(LakeSource(t, v)).relation for t, v in (notebook.changes, notebook.runs)
    )
    ended = one_of(col("status", "r"), RECORDED)
    batch = (eq(col(n, "r"), col(n, "c")) for n in ("run_id", "node", "batch"))
    counted = select(lit(1)).from_(table(runs.name, "r")).where(all_of([*batch, ended]))
    line = (eq(col(n, "r"), col(n, "c")) for n in ("table_id", "source"))
    undo = [eq(col("takes_back", "r"), col("run_id", "c")), *line, ended.copy()]
    back = select(lit(1)).from_(table(runs.name, "r")).where(all_of(undo))
    decided = one_of(col("verb", "c"), DECISIONS)
    here = eq(col("table_id", "c"), lit(job.past.memory.table or ""))
    true = any_of([decided, exp.Exists(this=counted)])
    mine = [here, one_of(col("verb", "c"), _NOTES), true, exp.Not(this=exp.Exists(this=back))]
    names = ("key_hash", "verb", "streak")
    saw = case((decided.copy(), lit(0)), default=lit(1))  # what a batch saw comes after a decision
    fine = select(*(named(col(n, "c"), n) for n in (*names, "batch")), named(saw, "saw"))
    fine = fine.from_(table(changes.name, "c")).where(all_of(mine))
    order = [ordered(col("batch"), desc=True), ordered(col("saw"), desc=True)]
    rank = over(exp.RowNumber(), ["key_hash"], order)
    ranked = select(*map(col, names), named(rank, "_n")).from_(fine.subquery("f"))
    last = select(col("key_hash"), named(col("verb"), "state"), col("streak"))
    open_ = one_of(col("verb"), ("hold", "reject", "approve", "missing"))
    newest = eq(col("_n"), lit(1))
    return engine.query(last.from_(ranked.subquery("x")).where(all_of([newest, open_])))
