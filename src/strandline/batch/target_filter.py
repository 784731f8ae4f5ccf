"""The user's condition that says which rows of a table deletes are looked for among."""

from __future__ import annotations

from sqlglot import exp

from strandline.engine.base import Engine, LakeSource
from strandline.errors import TransformError, UnknownColumn
from strandline.plan.job import Job
from strandline.sql.expr import rows_of, select
from strandline.sql.portable import parse
from strandline.sql.tested import refuse_untested
from strandline.sql.typing import spark_expression
from strandline.types import Schema, TableState


def target_filter(job: Job, engine: Engine, state: TableState | None) -> exp.Expr | None:
    """The condition over the table's own columns; None without one, or without a table."""
    text = job.detection.target_filter if job.detection else None
    if text is None or state is None:
        return None
    where = _where(job)
    tree = _bound(parse(text, where), state.schema, where)
    if engine.dialect == "spark":
        return tree
    refuse_untested(tree, where)
    return spark_expression(tree, {"": state.schema}, where, job.clock.now)


def _where(job: Job) -> str:
    return f"{job.node.name}: target_filter"


def _bound(tree: exp.Expr, schema: Schema, where: str) -> exp.Expr:
    for node in list(tree.find_all(exp.Column)):
        found = schema.get(node.name)
        if found is None:
            raise UnknownColumn(node.name, schema.names, where=where)
        if tree.unnest() is node and found.type != "boolean":
            raise TransformError(
                f"{where}: expected a condition, found column `{found.name}` of type {found.type}",
                hint=f"compare it with a value, like {found.name} = …",
            )
        node.set("table", None)
        node.set("this", exp.to_identifier(found.name, quoted=True))
    return tree


def fault(
    job: Job, engine: Engine, state: TableState | None, error: TransformError
) -> TransformError | None:
    """Is the filter what failed in a batch? No engine knows which part of a query it was, so it is tried by itself.

    Asked only when something has failed: it reads the table.
    """
    if state is None or error.message.startswith(_where(job)):
        return None
    condition = target_filter(job, engine, state)
    if condition is None:
        return None
    try:
        rows = engine.scan(LakeSource(job.target, state.version)).relation
        engine.fetch(
            select(exp.Count(this=exp.Star())).from_(rows_of(rows).where(condition).subquery("r"))
        )
    except TransformError as e:
        return TransformError(f"{_where(job)}: {e.message}", hint=e.hint)
    return None
