"""Rows in quarantine on their way through their node again: from the check that put them aside to the end.

No source is read, so nothing is concluded from rows that are not among them, and no watermark moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from strandline.batch.compare import Transformed, completed, context_of
from strandline.batch.quarantine import there
from strandline.batch.read import Slice
from strandline.config.model import NodeConfig
from strandline.engine.base import Engine, Scan
from strandline.errors import TransformError, UnknownColumn, UsageError
from strandline.plan.job import Job, feeds_snapshots
from strandline.sql.expr import (
    all_of,
    any_of,
    cast,
    col,
    eq,
    is_null,
    lit,
    named,
    rows_of,
    select,
    table,
)
from strandline.sql.portable import checked_cast, parse
from strandline.strategy import quarantine as shelf
from strandline.transform import registry
from strandline.transform.registry import EngineContext
from strandline.types import Increment, Relation, Schema

_ONE_BY_ONE = {
    "cast",
    "deduplicate",
    "derive",
    "detect_deletes",
    "drop",
    "filter",
    "generate_surrogate_key",
    "hash_columns",
    "rename",
    "select",
    "validate",
}


def released(job: Job, engine: Engine) -> tuple[Slice, Transformed, exp.Expr]:
    """The rows that are put through the node again, what they become, and the condition that tells them."""
    _refuse(job)
    have = there(job, engine)
    stored = have.counting(engine, job) if have else None
    if have is None or stored is None:
        raise _nothing(job)
    chosen = _chosen(job, stored.schema)
    rows = engine.query(rows_of(stored).where(chosen))
    shapes = engine.fetch(
        select(col(shelf.STEP), col(shelf.TYPES), named(exp.Count(this=exp.Star()), "n"))
        .from_(table(rows.name))
        .group_by(col(shelf.STEP), col(shelf.TYPES))
    )
    if not shapes:
        raise _nothing(job)
    steps = job.node.transform.steps if job.node.transform else []
    for step in sorted({s[0] for s in shapes}):
        _refuse_step(job.node, step)
    _refuse_many(job.node, min(s[0] for s in shapes))
    context: EngineContext | None = None
    for index in range(min(s[0] for s in shapes), len(steps)):
        mine = sorted(types for step, types, _ in shapes if step == index)
        context = _joined(job, engine, context, rows, index, mine)
        context = registry.applied(context, steps[index], job.node.name, index)
    assert context is not None, "a check is one of the steps"
    alias, n = job.inputs[0].alias, sum(int(s[2]) for s in shapes)
    slice_ = Slice(
        {alias: context.rows},
        [Scan(context.rows, lambda: n)],
        {},
        job.past.memory,
        Increment(context.rows),
    )
    return slice_, completed(job, engine, slice_, context), chosen


def _nothing(job: Job) -> UsageError:
    which = "with one of these keys " if job.past.release and job.past.release.keys else ""
    return UsageError(
        f"{job.node.name}: no row {which}is in quarantine",
        hint=f"strandline quarantine list {job.node.name}",
    )


def _joined(
    job: Job,
    engine: Engine,
    context: EngineContext | None,
    rows: Relation,
    index: int,
    shapes: Sequence[str],
) -> EngineContext:
    """The rows on their way, and beside them those that this step had put aside."""
    for types in shapes:
        part = engine.query(shelf.released(rows, index, types))
        if context is None:
            context = replace(context_of(job, engine, part), checking=True, partial=True)
        else:
            context = context.with_rows(_together(context.rows, part))
    assert context is not None, "the first step is one that had put rows aside"
    return context


def _together(one: Relation, other: Relation) -> exp.Query:
    """The rows of both, in the columns of both; a column has the type that it has first."""
    new = [c for c in other.schema if c.name not in one.schema]
    columns = one.schema.plus(*new)

    def values(rows: Relation) -> exp.Select:
        found = [
            named(
                checked_cast(col(have.name), have.type, c.type, c.name)
                if (have := rows.schema.get(c.name))
                else cast(exp.null(), c.type),
                c.name,
            )
            for c in columns
        ]
        return select(*found).from_(table(rows.name))

    return exp.union(values(one), values(other), distinct=False)


# --- which rows --------------------------------------------------------------------------------------------


def _chosen(job: Job, columns: Schema) -> exp.Expr:
    keys = job.past.release.keys if job.past.release else None
    if keys is None:
        return exp.true()
    return any_of(exp.Paren(this=_is(job, key, columns)) for key in keys)


def _is(job: Job, key: Mapping[str, str | None], columns: Schema) -> exp.Expr:
    parts = []
    for name, value in key.items():
        column = columns.get(name)
        if column is None:
            raise UnknownColumn(name, columns.names, where=f"{job.node.name}: quarantine")
        mine = cast(col(column.name), "string")
        parts.append(is_null(mine) if value is None else eq(mine, lit(value)))
    return all_of(parts)


# --- what cannot be done one by one ------------------------------------------------------------------------


def _refuse(job: Job) -> None:
    node = job.node
    if node.write.mode == "overwrite":
        raise TransformError(
            f"{node.name}: mode: overwrite writes all rows at once, so some rows cannot be released",
            hint="mend them at the source and run the node",
        )
    if feeds_snapshots(job.project, node):
        raise TransformError(
            f"{node.name}: snapshots of {job.target.label} are compared, and released rows are none",
            hint="mend them at the source: the next extract brings them",
        )


def _refuse_step(node: NodeConfig, step: int) -> None:
    steps = node.transform.steps if node.transform else []
    if step < len(steps) and steps[step].operation == "validate":
        return
    raise TransformError(
        f"{node.name}: rows in quarantine were put aside by {registry.step_name(step, 'validate')}, and it is "
        "not there now",
        hint="bring it back to its place, with the checks that hold now",
    )


def _refuse_many(node: NodeConfig, first: int) -> None:
    """A step or SQL that looks at several rows would say something else of a few of them."""
    for index, step in enumerate(node.transform.steps if node.transform else []):
        if index >= first and step.operation not in _ONE_BY_ONE:
            raise _looks_at_many(node, registry.step_name(index, step.operation))
    if node.transformation_sql is not None and not _row_by_row(node.transformation_sql, node.name):
        raise _looks_at_many(node, "transformation_sql")


def _looks_at_many(node: NodeConfig, what: str) -> TransformError:
    return TransformError(
        f"{node.name}: {what} may look at more than one row, so rows cannot be released one by one",
        hint="mend them at the source and run the node",
    )


def _row_by_row(sql: str, where: str) -> bool:
    tree = parse(sql, where)
    several = (exp.AggFunc, exp.Window, exp.Join, exp.Subquery, exp.Distinct, exp.Limit, exp.CTE)
    plain = isinstance(tree, exp.Select) and not tree.args.get("group")
    return plain and next(tree.find_all(*several), None) is None
