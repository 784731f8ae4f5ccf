"""append: every row of the slice comes, nothing goes. overwrite: the slice is the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from strandline.schema.diff import Fit
from strandline.sql.expr import (
    OUTER,
    all_of,
    any_of,
    case,
    cast,
    col,
    eq,
    is_null,
    lit,
    named,
    ordered,
    over,
    same,
    select,
    table,
)
from strandline.sql.portable import family, fault
from strandline.strategy.changes import ACTION, METADATA, Proposal, Removals
from strandline.types import Column, Relation, Schema, Snapshot

_COPY = "_strandline_copy"


@dataclass(frozen=True)
class Reread:
    """The part of the table that a limited read brings again."""

    target: Relation
    lows: Mapping[str, Any]
    marks: Sequence[str] = ()
    keys: Sequence[str] = ()


@dataclass(frozen=True)
class Stamp:
    """The batch that appended rows belong to, and the column that says so."""

    column: str
    batch: int


@dataclass(frozen=True)
class Appending:
    """What an append is told besides its rows."""

    partition_by: tuple[str, ...] = ()
    first: bool = False
    stamp: Stamp | None = None
    reread: Reread | None = None


def append(rows: Relation, fit: Fit, how: Appending) -> Proposal:
    """All rows are additions, but for those of a limited read that the table has already."""
    tree = _additions(rows, fit, how.stamp) if how.reread is None else _new(rows, fit, how.reread, how.stamp)
    columns = fit.columns.plus(Column(how.stamp.column, "bigint")) if how.stamp else fit.columns
    roles = {"batch_id": how.stamp.column} if how.stamp else {}
    return Proposal(tree, columns, partition_by=how.partition_by, roles=roles, lazy=how.first)


def overwrite(slice_: Snapshot, fit: Fit, partition_by: tuple[str, ...], *, first: bool) -> Proposal:
    """All rows of the slice come and all rows of the target go; only a snapshot may replace a table."""
    rows = _additions(slice_.rows, fit, None)
    return Proposal(rows, fit.columns, Removals.EVERYTHING, partition_by=partition_by, lazy=first)


# --- what a limited read brings again ----------------------------------------------------------------------


def _new(rows: Relation, fit: Fit, reread: Reread, stamp: Stamp | None) -> exp.Select:
    """The rows that the table does not have yet, as multisets: two equal rows need two that are there."""
    compared = [c for c in fit.columns if c.fold not in METADATA and c.name in rows.schema and family(c.type) != "map"]
    names = [c.name for c in compared]
    come = select(*_values(rows, fit.columns)).from_(table(rows.name))
    come = select(*(col(n) for n in fit.columns.names), named(_copy(names), _COPY)).from_(come.subquery("r"))
    there = select(*_values(reread.target, compared)).from_(_range(reread, fit.columns).subquery("g"))
    there = select(*map(col, names), named(_copy(names), _COPY)).from_(there.subquery("u"))
    on = all_of([*(same(col(n, OUTER), col(n, "t")) for n in names), eq(col(_COPY, OUTER), col(_COPY, "t"))])
    have = select(lit(1)).from_(there.subquery("t")).where(on)
    stamped = [named(cast(lit(stamp.batch), "bigint"), stamp.column)] if stamp else []
    out = select(*(col(n, OUTER) for n in fit.columns.names), *stamped, named(lit("insert"), ACTION))
    return out.from_(come.subquery(OUTER)).where(exp.Not(this=exp.Exists(this=have)))


def _copy(names: Sequence[str]) -> exp.Expr:
    """Which of several equal rows this one is."""
    return over(exp.RowNumber(), names, [ordered(col(names[0]))]) if names else over(exp.RowNumber(), [])


def _range(reread: Reread, columns: Schema) -> exp.Select:
    """The rows of the table that the read may bring again; with keys the newest row of each key only."""
    target = reread.target
    every = [col(n) for n in target.schema.names]
    rows = select(*every).from_(table(target.name))
    if len(reread.lows) == 1:
        ((name, low),) = reread.lows.items()
        if (column := target.schema.get(name)) and family(column.type) == family_of(columns, name):
            at_least = exp.GTE(this=col(column.name), expression=cast(lit(low), column.type))
            rows = rows.where(any_of([at_least, is_null(col(column.name))]))
    if not reread.keys:
        return rows
    keys = [c.name for k in reread.keys if (c := target.schema.get(k))]
    order = [*reread.marks, "_extracted_at", "_batch_id"]
    newest = [ordered(col(c.name), desc=True) for n in order if (c := target.schema.get(n))]
    rank = over(exp.RowNumber(), keys, newest or [ordered(col(keys[0]))])
    ranked = select(*(e.copy() for e in every), named(rank, "_strandline_rank")).from_(rows.subquery("w"))
    return select(*(e.copy() for e in every)).from_(ranked.subquery("n")).where(eq(col("_strandline_rank"), lit(1)))


def family_of(columns: Schema, name: str) -> str:
    found = columns.get(name)
    return family(found.type) if found else ""


# --- overwriting -------------------------------------------------------------------------------------------


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


def _additions(rows: Relation, fit: Fit, stamp: Stamp | None) -> exp.Select:
    stamped = [named(cast(lit(stamp.batch), "bigint"), stamp.column)] if stamp else []
    return select(*_values(rows, fit.columns), *stamped, named(lit("insert"), ACTION)).from_(table(rows.name))


def _values(rows: Relation, columns: Iterable[Column]) -> list[exp.Alias]:
    """The columns to write, from rows that may spell them in other case, or lack them."""
    return [
        named(cast(col(come.name) if (come := rows.schema.get(c.name)) else exp.null(), c.type), c.name)
        for c in columns
    ]
