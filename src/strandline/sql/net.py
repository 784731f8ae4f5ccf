"""The net change of a table between two versions: which rows came and are still there, and which are gone.

Rows are told apart by all their columns and counted: +1 for one that came, −1 for one that went. What came and went
again, and what was written anew as it was, cancels out, in whatever order and in however many versions it happened.
"""

from __future__ import annotations

from sqlglot import exp

from strandline.sql.dedupe import newest_per_key
from strandline.sql.expr import (
    all_of,
    any_of,
    call,
    case,
    cast,
    col,
    count_where,
    eq,
    lit,
    named,
    one_of,
    ordered,
    rows_of,
    select,
    table,
)
from strandline.types import Column, Relation, Schema

SIGN, WHEN = "_strandline_sign", "_strandline_when"
CHANGE_TYPE, COMMIT_VERSION = "_change_type", "_commit_version"
_NET, _COPY = "_strandline_net", "_strandline_copy"


def of_feed(changes: Relation, columns: Schema) -> exp.Select:
    """The rows of a feed, signed."""
    sign = case((one_of(col(CHANGE_TYPE), ("insert", "update_postimage")), lit(1)), default=lit(-1))
    values = [col(c.name) for c in columns]
    return select(*values, named(sign, SIGN), named(col(COMMIT_VERSION), WHEN)).from_(
        table(changes.name)
    )


def of_snapshots(old: Relation | None, new: Relation, columns: Schema) -> exp.Query:
    """Two snapshots, signed: what only one of them has remains."""
    sides = [_signed(new, columns, 1), *([_signed(old, columns, -1)] if old else [])]
    return exp.union(*sides, distinct=False) if len(sides) > 1 else sides[0]


def _signed(rows: Relation, columns: Schema, sign: int) -> exp.Select:
    """The rows in the newest types; a column that they do not have yet is NULL."""
    there = rows.schema
    values = [
        named(cast(col(c.name) if c.name in there else exp.null(), c.type), c.name) for c in columns
    ]
    when = named(cast(exp.null(), "bigint"), WHEN)
    return select(*values, named(lit(sign), SIGN), when).from_(table(rows.name))


def net(signed: exp.Query, columns: Schema) -> exp.Select:
    """What remains: each row as often as it came (+1) or went (−1) on balance."""
    values, same = [col(c.name) for c in columns], [_comparable(c) for c in columns]
    total = exp.Window(this=exp.Sum(this=col(SIGN)), partition_by=same)
    newest = [ordered(col(WHEN), desc=True)]
    copy = exp.Window(
        this=exp.RowNumber(),
        partition_by=[*(s.copy() for s in same), col(SIGN)],
        order=exp.Order(expressions=newest),
    )
    facts = [named(total, _NET), named(copy, _COPY), col(SIGN), col(WHEN)]
    counted = select(*values, *facts).from_(signed.subquery("c"))
    came = all_of([eq(col(SIGN), lit(1)), exp.LTE(this=col(_COPY), expression=col(_NET))])
    went = all_of(
        [eq(col(SIGN), lit(-1)), exp.LTE(this=col(_COPY), expression=exp.Neg(this=col(_NET)))]
    )
    remains = select(*(v.copy() for v in values), col(SIGN), col(WHEN)).from_(counted.subquery("n"))
    return remains.where(any_of([exp.Paren(this=came), exp.Paren(this=went)]))


def _comparable(column: Column) -> exp.Expr:
    """Maps cannot be grouped; their text can."""
    return call("comparable", col(column.name)) if "map<" in column.type else col(column.name)


def measures() -> dict[str, exp.Expr]:
    return {"came": count_where(eq(col(SIGN), lit(1))), "went": count_where(eq(col(SIGN), lit(-1)))}


def side(moved: Relation, columns: Schema, sign: int) -> exp.Select:
    """One side of a net change."""
    return rows_of(moved, columns).where(eq(col(SIGN), lit(sign)))


def newest(moved: Relation, columns: Schema, keys: list[str]) -> exp.Select:
    """Of the rows that came, the one of the newest version per key; ties go to the highest of all columns."""
    came = newest_per_key(moved, keys, [ordered(col(WHEN), desc=True)])
    return rows_of(moved, columns).from_(came.subquery("w"))
