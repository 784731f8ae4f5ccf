"""The keys of rows that checks have put aside: they were in the source, so they are not missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from sqlglot import exp

from strandline.config.key_columns import source_columns
from strandline.config.model import NodeConfig
from strandline.engine.base import Engine
from strandline.plan.job import Job
from strandline.sql.expr import OUTER, all_of, col, lit, named, same, select, table
from strandline.sql.portable import checked_cast
from strandline.transform.lineage import named_anew
from strandline.transform.registry import Rejected
from strandline.types import Column, Relation, Schema


def keys_at(
    node: NodeConfig,
    step: int,
    columns: Schema,
    keys: Sequence[str],
    until: int | None = None,
) -> list[Column] | None:
    """The columns that hold the keys where a step sees the rows; None where a later step computes them."""
    steps = node.transform.steps if node.transform else []
    if node.transformation_sql is not None and until is None and not _passes_keys(node):
        return None
    names = source_columns(steps[step + 1 : until], keys)
    found = [columns.get(n) if n is not None else None for n in names]
    return [c for c in found if c is not None] if None not in found else None


def _passes_keys(node: NodeConfig) -> bool:
    """Does the node's SQL pass its keys on as they are?"""
    return node.transformation_sql is None or not named_anew(
        node.transformation_sql, {k.casefold() for k in node.write.keys}
    )


def with_rejected_keys(
    job: Job,
    engine: Engine,
    rows: Relation,
    rejected: Sequence[Rejected],
    keys: Sequence[str],
    until: int | None,
) -> Relation | None:
    """The keys of some rows and of those that were put aside before them; None where the latter are not known."""
    some = [r for r in rejected if r.any and (until is None or r.step < until)]
    if not some:
        return rows
    own = [c for k in keys if (c := rows.schema.get(k))]
    trees: list[exp.Query] = [select(*(col(c.name) for c in own)).from_(table(rows.name))]
    for part in some:
        places = keys_at(job.node, part.step, part.rows.schema, [c.name for c in own], until)
        if places is None:
            return None
        values = [
            named(checked_cast(col(p.name), p.type, c.type, p.name, safe=True), c.name)
            for p, c in zip(places, own, strict=True)
        ]
        trees.append(select(*values).from_(table(part.rows.name)))
    return engine.query(reduce(lambda one, other: exp.union(one, other, distinct=False), trees))


def only_of_keys(
    job: Job, engine: Engine, rejected: Sequence[Rejected], among: Relation, keys: Sequence[str]
) -> tuple[Rejected, ...]:
    """The rows that were put aside and have one of these keys; all of them where their keys are not known."""
    found = []
    for part in rejected:
        places = keys_at(job.node, part.step, part.rows.schema, keys)
        if not part.any or places is None:
            found.append(part)
            continue
        on = [
            same(
                checked_cast(col(p.name, OUTER), p.type, c.type, p.name, safe=True),
                col(c.name, "w"),
            )
            for p, k in zip(places, keys, strict=True)
            if (c := among.schema.get(k))
        ]
        there = select(lit(1)).from_(table(among.name, "w")).where(all_of(on))
        mine = select(*(col(n, OUTER) for n in part.rows.schema.names))
        mine = mine.from_(table(part.rows.name, OUTER)).where(exp.Exists(this=there))
        found.append(replace(part, rows=engine.query(mine)))
    return tuple(found)
