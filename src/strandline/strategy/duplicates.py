"""Keys that a slice holds more than once."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from strandline.sql.expr import col, lit, named, select, table
from strandline.types import Relation


def duplicates(rows: Relation, keys: Sequence[str], limit: int) -> exp.Select:
    """How many keys occur more than once, and the first few of them."""
    columns = [col(k) for k in keys]
    groups = select(*columns).from_(table(rows.name)).group_by(*columns)
    groups = groups.having(exp.GT(this=exp.Count(this=exp.Star()), expression=lit(1)))
    total = named(exp.Window(this=exp.Count(this=exp.Star())), "n")
    order = [exp.Ordered(this=c.copy(), nulls_first=True) for c in columns]
    return (
        select(*(c.copy() for c in columns), total)
        .from_(groups.subquery("g"))
        .order_by(*order)
        .limit(limit)
    )
