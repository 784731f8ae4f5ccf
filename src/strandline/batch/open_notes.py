"""What earlier batches noted of single keys of a table: held, rejected, or missing so many times running."""

from __future__ import annotations

from sqlglot import exp

from strandline.control.coverage import UNDOES
from strandline.control.ledger import RECORDED, Notebook
from strandline.engine.base import Engine, LakeSource
from strandline.plan.job import Job
from strandline.sql.expr import (
    all_of,
    any_of,
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

_NOTES = ("hold", "reject", "missing", "seen", "delete")


def open_notes(engine: Engine, notebook: Notebook, job: Job) -> Relation:
    """The open notes of a table, one row per key: held, rejected, or missing so many times running."""
    changes, runs = (
        engine.scan(LakeSource(t, v)).relation for t, v in (notebook.changes, notebook.runs)
    )
    counted = select(lit(1)).from_(table(runs.name, "r"))
    same = (eq(col(n, "r"), col(n, "c")) for n in ("run_id", "node", "batch"))
    counted = counted.where(all_of([*same, one_of(col("status", "r"), RECORDED)]))
    names = ("key_hash", "verb", "streak", "run_id")
    newest = over(exp.RowNumber(), ["key_hash"], [ordered(col("batch"), desc=True)])
    called = [(job.project.config.project, job.target.label), *job.past.memory.formerly]
    here = any_of(
        all_of([eq(col("project", "c"), lit(p)), eq(col("target_table", "c"), lit(t))])
        for p, t in called
    )
    since = exp.GTE(this=col("batch", "c"), expression=lit(job.past.memory.since or 0))
    mine = all_of([here, since, one_of(col("verb", "c"), _NOTES), exp.Exists(this=counted)])
    if (
        "takes_back" in runs.schema
    ):  # a run that was undone has noted nothing, nor has one that a commit outdid
        back = select(lit(1)).from_(table(runs.name, "u"))
        which = [
            eq(col("takes_back", "u"), col("run_id", "c")),
            eq(col("node", "u"), col("node", "c")),
        ]
        undoes = exp.Like(this=col("coverage", "u"), expression=lit(f'%"{UNDOES}"%'))
        which.append(any_of([undoes, eq(col("batch", "u"), col("batch", "c"))]))
        back = back.where(all_of([*which, one_of(col("status", "u"), RECORDED)]))
        mine = all_of([mine, exp.Not(this=exp.Exists(this=back))])
    fine = (
        select(*(named(col(n, "c"), n) for n in (*names, "batch")))
        .from_(table(changes.name, "c"))
        .where(mine)
    )
    ranked = select(*map(col, names), named(newest, "_n")).from_(fine.subquery("f"))
    last = select(col("key_hash"), named(col("verb"), "state"), col("streak"), col("run_id")).from_(
        ranked.subquery("x")
    )
    open_ = one_of(col("verb"), ("hold", "reject", "missing"))
    return engine.query(last.where(all_of([eq(col("_n"), lit(1)), open_])))
