"""append: every row of the slice comes, nothing goes. overwrite: the slice is the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

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
from strandline.strategy.fit import Fit
from strandline.types import Column, Relation, Schema, Snapshot

_COPY = "_strandline_copy"  # which of several equal rows
_COPIES = "_strandline_copies"  # how many equal rows there are
_RANK = "_strandline_rank"  # 1: appended last of its key
_ROWS = "_strandline_rows"  # how many rows a key has


@dataclass(frozen=True)
class Reread:
    """The part of the table that a limited read brings again."""

    target: Relation
    lows: Mapping[str, Any]
    marks: Sequence[str] = ()
    keys: Sequence[str] = ()
    apart: Sequence[
        str
    ] = ()  # metadata that keeps equal rows apart: those of another file came with that file


@dataclass(frozen=True)
class Stamp:
    """The batch that appended rows belong to, and the column that says so."""

    column: str
    batch: str


@dataclass(frozen=True)
class Appending:
    """What an append, or an overwrite, is told besides its rows."""

    partition_by: tuple[str, ...] = ()
    first: bool = False
    stamp: Stamp | None = None
    reread: Reread | None = None


def append(rows: Relation, fit: Fit, how: Appending) -> Proposal:
    """All rows are additions, but for those of a limited read that the table has already."""
    tree = (
        _additions(rows, fit, how.stamp)
        if how.reread is None
        else _new(rows, fit, how.reread, how.stamp)
    )
    columns = fit.columns.plus(Column(how.stamp.column, "string")) if how.stamp else fit.columns
    roles = {"batch_id": how.stamp.column} if how.stamp else {}
    return Proposal(tree, columns, partition_by=how.partition_by, roles=roles, lazy=how.first)


def overwrite(slice_: Snapshot, fit: Fit, how: Appending) -> Proposal:
    """All rows of the slice come and all rows of the target go; only a snapshot may replace a table."""
    return replace(append(slice_.rows, fit, how), removals=Removals.EVERYTHING)


# --- what a limited read brings again ----------------------------------------------------------------------


def _new(rows: Relation, fit: Fit, reread: Reread, stamp: Stamp | None) -> exp.Select:
    """The rows that the table does not have yet, as multisets: two equal rows need two that are there.

    With keys, a column that the read lacks keeps the value that the table knows of the key, as in an update: the new
    row says nothing of it, and a NULL would be taken for the source's word by whoever reads the newest row.
    """
    compared = [c for c in _compared(fit.columns, reread) if c.name in rows.schema]
    names = [c.name for c in compared]
    keys = [c.name for k in reread.keys if (c := fit.columns.get(k))]
    come = select(*_values(rows, fit.columns)).from_(table(rows.name))
    several = [named(over(exp.Count(this=exp.Star()), keys), _ROWS)] if keys else []
    come = select(*(col(n) for n in fit.columns.names), named(_copy(names), _COPY), *several).from_(
        come.subquery("r")
    )
    rank, clock = [_RANK] if keys else [], _clock(reread, rows, stamp)
    there = _range(reread, fit.columns)
    if keys:
        there = _ranked(reread, there, clock, [*reread.keys, *reread.apart])
    there = select(*_values(reread.target, compared), *map(col, rank)).from_(there.subquery("g"))
    there = select(*map(col, [*names, *rank]), named(_copy(names, rank), _COPY)).from_(
        there.subquery("u")
    )
    on = [
        *(same(col(n, OUTER), col(n, "t")) for n in names),
        eq(col(_COPY, OUTER), col(_COPY, "t")),
    ]
    if keys:
        # a key that comes with several rows has no newest one: all that the table has of it counts
        several_rows = exp.GT(this=col(_ROWS, OUTER), expression=lit(1))
        on.append(any_of([several_rows, eq(col(_RANK, "t"), lit(1))]))
    have = select(lit(1)).from_(there.subquery("t")).where(all_of(on))
    stamped = [named(lit(stamp.batch), stamp.column)] if stamp else []
    lacked = _lacked(rows, fit) if keys else []
    values = {c.name: named(_known(c), c.name) for c in lacked}
    out = select(
        *(values.get(n, col(n, OUTER)) for n in fit.columns.names),
        *stamped,
        named(lit("insert"), ACTION),
    )
    out = out.from_(come.subquery(OUTER)).where(exp.Not(this=exp.Exists(this=have)))
    if not lacked:
        return out
    last = _last(reread, keys, lacked, clock)
    return out.join(
        last.subquery("l"),
        on=all_of(same(col(k, OUTER), col(k, "l")) for k in keys),
        join_type="left",
    )


def _lacked(rows: Relation, fit: Fit) -> list[Column]:
    """The columns of the table that the read does not bring."""
    return [c for c in fit.columns if c.fold not in METADATA and c.name not in rows.schema]


def _compared(columns: Iterable[Column], reread: Reread) -> list[Column]:
    """The columns by which rows are told apart."""
    quiet = {*METADATA} - {n.casefold() for n in reread.apart}
    return [c for c in columns if c.fold not in quiet and family(c.type) != "map"]


def _copy(names: Sequence[str], first: Sequence[str] = ()) -> exp.Expr:
    """Which of several equal rows this one is."""
    return over(exp.RowNumber(), names, [ordered(col(n)) for n in (*first, *names[:1])])


def _range(reread: Reread, columns: Schema) -> exp.Select:
    """The rows of the table that the read may bring again."""
    target = reread.target
    rows = select(*(col(n) for n in target.schema.names)).from_(table(target.name))
    if len(reread.lows) == 1:
        ((name, low),) = reread.lows.items()
        if (column := target.schema.get(name)) and family(column.type) == family_of(columns, name):
            at_least = exp.GTE(this=col(column.name), expression=cast(lit(low), column.type))
            rows = rows.where(any_of([at_least, is_null(col(column.name))]))
    return rows


def _clock(reread: Reread, rows: Relation, stamp: Stamp | None) -> list[str]:
    """The columns that say when a row was appended; only those that are still written, or the newest had none."""
    wanted = [stamp.column] if stamp else []
    wanted += ["_extracted_at"] if "_extracted_at" in rows.schema else []
    return [c.name for n in wanted if (c := reread.target.schema.get(n))]


def _ranked(
    reread: Reread, rows: exp.Select, clock: Sequence[str], within: Sequence[str]
) -> exp.Select:
    """Rows of the table with their rank among those of their key: 1 for what was appended last, as far as one can tell.

    Where no column says when that was, it is the state with the most copies, then the highest mark: each state was
    appended because the one before it was another, so one that came back has one copy more.
    """
    schema = reread.target.schema

    def spelled(wanted: Iterable[str]) -> list[str]:
        return [c.name for n in wanted if (c := schema.get(n))]

    every = schema.names
    if not clock:
        copies = named(
            over(exp.Count(this=exp.Star()), [c.name for c in _compared(schema, reread)]), _COPIES
        )
        rows = select(*map(col, every), copies).from_(rows.subquery("w"))
        clock = [_COPIES, *spelled(reread.marks)]
    newest = [ordered(col(n), desc=True) for n in clock]
    rank = over(exp.Rank(), spelled(within), newest)
    return select(*map(col, every), named(rank, _RANK)).from_(rows.subquery("n"))


def _known(column: Column) -> exp.Expr:
    """What the table last knew of a column that the read did not bring; of a key with several rows it knows nothing."""
    alone = eq(col(_ROWS, OUTER), lit(1))
    return case((alone, col(column.name, "l")), default=cast(exp.null(), column.type))


def _last(
    reread: Reread, keys: Sequence[str], lacked: Sequence[Column], clock: Sequence[str]
) -> exp.Select:
    """Of every key in the table what was appended last, wherever its mark lies; NULL where that is not one value."""
    whole = select(*(col(n) for n in reread.target.schema.names)).from_(table(reread.target.name))
    ranked = _ranked(reread, whole, clock, reread.keys)
    values = [named(_agreed(c), c.name) for c in lacked]
    last = (
        select(*map(col, keys), *values).from_(ranked.subquery("k")).where(eq(col(_RANK), lit(1)))
    )
    return last.group_by(*map(col, keys))


def _agreed(column: Column) -> exp.Expr:
    """The value that all rows of a group have; NULL when they differ. Maps cannot be compared: that of a single row."""
    value, rows = col(column.name), exp.Count(this=exp.Star())
    if family(column.type) == "map":
        return case((eq(rows, lit(1)), exp.AnyValue(this=value)), default=exp.null())
    low, high = exp.Min(this=value), exp.Max(this=value.copy())
    alike = all_of([eq(low, high), eq(exp.Count(this=value.copy()), rows)])
    return case((alike, low.copy()), default=exp.null())


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
    come = exp.Sum(
        this=exp.Case(ifs=[exp.If(this=exp.GT(this=n, expression=zero), true=n)], default=zero)
    )
    go = exp.Sum(
        this=exp.Case(
            ifs=[exp.If(this=exp.LT(this=n, expression=zero), true=exp.Neg(this=n))], default=zero
        )
    )
    counts = [
        named(cast(exp.Coalesce(this=s, expressions=[zero]), "bigint"), name)
        for s, name in ((come, "come"), (go, "go"))
    ]
    return select(*counts).from_(grouped.subquery("d"))


def partitionable(rows: Relation, partition_by: Sequence[str]) -> exp.Select:
    """The rows, with an error for what Delta would read back as NULL: an empty text in a partition column."""
    parts = {p.casefold() for p in partition_by}
    values = [
        named(
            _not_empty(c) if c.fold in parts and family(c.type) == "text" else col(c.name), c.name
        )
        for c in rows.schema
    ]
    return select(*values).from_(table(rows.name))


def _not_empty(column: Column) -> exp.Expr:
    return case(
        (eq(col(column.name), lit("")), fault("partition", lit(column.name))),
        default=col(column.name),
    )


def _side(relation: Relation, columns: list[Column], weight: int) -> exp.Select:
    return select(*_values(relation, columns), named(lit(weight), "_n")).from_(table(relation.name))


def _additions(rows: Relation, fit: Fit, stamp: Stamp | None) -> exp.Select:
    stamped = [named(lit(stamp.batch), stamp.column)] if stamp else []
    return select(*_values(rows, fit.columns), *stamped, named(lit("insert"), ACTION)).from_(
        table(rows.name)
    )


def _values(rows: Relation, columns: Iterable[Column]) -> list[exp.Alias]:
    """The columns to write, from rows that may spell them in other case, or lack them."""
    return [
        named(
            cast(col(come.name) if (come := rows.schema.get(c.name)) else exp.null(), c.type),
            c.name,
        )
        for c in columns
    ]
