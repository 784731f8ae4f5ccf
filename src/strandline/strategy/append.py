"""append: every row of the slice comes, nothing goes. overwrite: the slice is the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlglot import exp

from strandline.schema.diff import Fit
from strandline.sql.expr import case, cast, col, eq, lit, named, select, table
from strandline.sql.portable import family, fault
from strandline.strategy.changes import ACTION, METADATA, Proposal, Removals
from strandline.types import Column, Relation, Schema, Snapshot


def append(rows: Relation, fit: Fit, partition_by: tuple[str, ...], *, first: bool) -> Proposal:
    """All rows are additions."""
    return Proposal(_additions(rows, fit), fit.columns, partition_by=partition_by, lazy=first)


def overwrite(slice_: Snapshot, fit: Fit, partition_by: tuple[str, ...], *, first: bool) -> Proposal:
    """All rows of the slice come and all rows of the target go; only a snapshot may replace a table."""
    rows = _additions(slice_.rows, fit)
    return Proposal(rows, fit.columns, Removals.EVERYTHING, partition_by=partition_by, lazy=first)


def difference(slice_: Relation, target: Relation, columns: Schema) -> exp.Select:
    """How many rows come and go between two tables, as multisets and without their metadata: one row, two counts."""
    compared = [c for c in columns if c.fold not in METADATA]
    sides = [_side(relation, compared, weight) for relation, weight in ((slice_, 1), (target, -1))]
    grouped = select(named(exp.Sum(this=col("_n")), "_n"))
    grouped = grouped.from_(exp.union(*sides, distinct=False).subquery("b"))
    grouped = grouped.group_by(*(col(c.name) for c in compared)) if compared else grouped
    zero, n = exp.Literal.number(0), col("_n")
    come = exp.Sum(this=exp.Case(ifs=[exp.If(this=exp.GT(this=n, expression=zero), true=n)], default=zero))
    go = exp.Sum(this=exp.Case(ifs=[exp.If(this=exp.LT(this=n, expression=zero), true=exp.Neg(this=n))], default=zero))
    counts = [
        named(cast(exp.Coalesce(this=s, expressions=[zero]), "bigint"), name)
        for s, name in ((come, "come"), (go, "go"))
    ]
    return select(*counts).from_(grouped.subquery("d"))


def partitionable(rows: Relation, partition_by: Sequence[str]) -> exp.Select:
    """The rows, with an error for what Delta would read back as NULL: an empty text in a partition column."""
    parts = {p.casefold() for p in partition_by}
    values = [
        named(_not_empty(c) if c.fold in parts and family(c.type) == "text" else col(c.name), c.name)
        for c in rows.schema
    ]
    return select(*values).from_(table(rows.name))


def _not_empty(column: Column) -> exp.Expr:
    return case((eq(col(column.name), lit("")), fault("partition", lit(column.name))), default=col(column.name))


def _side(relation: Relation, columns: list[Column], weight: int) -> exp.Select:
    return select(*_values(relation, columns), named(lit(weight), "_n")).from_(table(relation.name))


def _additions(rows: Relation, fit: Fit) -> exp.Select:
    return select(*_values(rows, fit.columns), named(lit("insert"), ACTION)).from_(table(rows.name))


def _values(rows: Relation, columns: Iterable[Column]) -> list[exp.Alias]:
    """The columns to write, from rows that may spell them in other case, or lack them."""
    return [
        named(cast(col(come.name) if (come := rows.schema.get(c.name)) else exp.null(), c.type), c.name)
        for c in columns
    ]
