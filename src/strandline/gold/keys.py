"""Surrogate keys: which rows of a change set keep the key that is stored, and which keys the others are given.

A row keeps the key of the stored row that it replaces. A version of a history keeps the key of the stored version whose
start it contains: a late event may move a start, or end a version earlier, and facts that carry its key stay right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from strandline.sql.expr import (
    all_of,
    any_of,
    call,
    case,
    cast,
    col,
    concat,
    count_where,
    eq,
    is_null,
    lit,
    named,
    negate,
    one_of,
    ordered,
    over,
    same_keys,
    select,
    table,
)
from strandline.sql.hash import key_hash
from strandline.strategy.changes import ACTION, DROP, TOUCHING, ChangeSet
from strandline.types import Relation

KEY, DURABLE = "_strandline_key", "_strandline_durable"
LOST = "_strandline_lost"
"""Is the key of a new row taken already?"""
_TEXT, _TRY, _RANK, _NEW = (f"_strandline_key_{n}" for n in ("text", "try", "rank", "new"))


@dataclass(frozen=True)
class KeyRule:
    """How the rows of a table get their surrogate keys."""

    column: str
    strategy: Literal["hash", "sequence", "identity"]
    keys: tuple[str, ...]
    durable: str | None = None
    span: tuple[str, str] | None = None  # of a history: when a version begins and ends

    @property
    def locator(self) -> list[str]:
        """The columns that tell one row of the table from the others."""
        return [*self.keys, *(self.span or ())[:1]]


def numbered(changes: ChangeSet, target: Relation | None, rule: KeyRule, last: int) -> exp.Select:
    """The rows of a change set with their keys: the stored one, or a new one, which may be taken by another row.

    `last` is the highest number that a sequence has given.
    """
    stored = _stored(changes, target, rule)
    columns = [c.name for c in changes.additions.schema]
    new = all_of([_whole(), is_null(col(KEY))])
    hashed = [c for n in rule.locator if (c := changes.columns.get(n))]
    text = case((new, key_hash(hashed, where="surrogate_key")), default=cast(exp.null(), "string"))
    line = [ordered(col(n)) for n in rule.locator]
    place = over(exp.RowNumber(), [_NEW], line)
    marked = select(
        *map(col, [*columns, KEY, DURABLE]), named(new.copy(), _NEW), named(text, _TEXT)
    ).from_(stored.subquery("s"))
    number: exp.Expr = call("hex63", col(_TEXT))
    if rule.strategy == "sequence":
        number = exp.Add(this=lit(last), expression=place)
    given = case((col(_NEW), cast(number, "bigint")), default=col(KEY))
    facts = [named(given, KEY), col(DURABLE), col(_NEW), col(_TEXT), named(lit(0), _TRY)]
    return select(*map(col, columns), *facts).from_(marked.subquery("m"))


def collided(rows: exp.Query, target: Relation | None, rule: KeyRule) -> exp.Select:
    """The rows, each with whether its key is that of another row; of two new rows the first keeps it."""
    names = [e.alias_or_name for e in rows.selects if e.alias_or_name != LOST]
    line = [ordered(col(n)) for n in rule.locator]
    rank = named(over(exp.RowNumber(), [KEY, _NEW], line), _RANK)
    ranked = select(*map(col, names), rank).from_(rows.subquery("k")).subquery("r")
    late = all_of([col(_NEW, "r"), exp.GT(this=col(_RANK, "r"), expression=lit(1))])
    values = [col(n, "r") for n in names]
    if target is None or rule.column not in target.schema:
        return select(*values, named(late, LOST)).from_(ranked)
    taken = select(named(col(rule.column), KEY)).distinct().from_(table(target.name))
    on = all_of([col(_NEW, "r"), eq(col(KEY, "r"), col(KEY, "t"))])
    lost = any_of([late, negate(is_null(col(KEY, "t")))])
    joined = select(*values, named(lost, LOST)).from_(ranked)
    return joined.join(taken.subquery("t"), on=on, join_type="left")


def again(rows: Relation) -> exp.Select:
    """The rows, those whose keys were taken with the hash of their key and a counter."""
    counted = exp.Add(this=col(_TRY), expression=lit(1))
    text = concat(col(_TEXT), lit(":"), cast(counted, "string"))
    number = call("hex63", call("sha256_hex", text))
    values = {
        KEY: case((col(LOST), cast(number, "bigint")), default=col(KEY)),
        _TRY: case((col(LOST), counted.copy()), default=col(_TRY)),
    }
    names = [n for n in rows.schema.names if n != LOST]
    return select(*(named(values[n], n) if n in values else col(n) for n in names)).from_(
        table(rows.name)
    )


def key_counts() -> dict[str, exp.Expr]:
    """How many rows got a new key, and how many of these were taken."""
    return {"new": count_where(col(_NEW)), "lost": count_where(col(LOST))}


def keyed_rows(rows: Relation, columns: Sequence[str], rule: KeyRule) -> exp.Select:
    """The rows of the change set under their own names, with the columns of their keys."""
    values = [*map(col, columns), named(col(KEY), rule.column)]
    if rule.durable:
        line = [ordered(col(n)) for n in rule.locator]
        first = over(exp.FirstValue(this=col(KEY)), [*rule.keys, _NEW], line)
        given = exp.Coalesce(this=col(DURABLE), expressions=[first])
        values.append(named(given, rule.durable))
    return select(*values, col(ACTION)).from_(table(rows.name))


def _whole() -> exp.Expr:
    """Is it a row that is written with all its values?"""
    return negate(one_of(col(ACTION), (DROP, *TOUCHING)))


def _stored(changes: ChangeSet, target: Relation | None, rule: KeyRule) -> exp.Select:
    """The rows of a change set, each with the key that is stored for it, and its durable key."""
    names = changes.additions.schema.names
    nothing = cast(exp.null(), "bigint")
    if target is None:
        bare = [named(nothing, KEY), named(nothing.copy(), DURABLE)]
        return select(*map(col, names), *bare).from_(table(changes.additions.name))
    column = target.schema.get(rule.column)
    there = named(col(column.name, "t") if column else nothing, KEY)
    values = [col(n, "a") for n in names]
    rows = select(*values, there).from_(table(changes.additions.name, "a"))
    rows = rows.join(table(target.name, "t"), on=_replaces(rule), join_type="left")
    if rule.span:
        rank = over(exp.RowNumber(), [], [ordered(col(rule.span[0], "t"))])
        rank.set("partition_by", [col(n, "a") for n in (*rule.locator, ACTION)])
        ranked = rows.select(named(rank, _RANK), copy=False).subquery("j")
        rows = select(*map(col, names), col(KEY)).from_(ranked)
        rows = rows.where(eq(col(_RANK), lit(1)))
    if not rule.durable:
        return select(*map(col, names), col(KEY), named(nothing.copy(), DURABLE)).from_(
            rows.subquery("b")
        )
    durable = select(*map(col, rule.keys), named(exp.Max(this=col(rule.durable)), DURABLE))
    durable = durable.from_(table(target.name)).group_by(*map(col, rule.keys))
    both = select(*(col(n, "b") for n in (*names, KEY)), col(DURABLE, "d"))
    both = both.from_(rows.subquery("b"))
    return both.join(durable.subquery("d"), on=same_keys(rule.keys, "b", "d"), join_type="left")


def _replaces(rule: KeyRule) -> exp.Expr:
    """Which stored row a row of the change set goes on from."""
    key = same_keys(rule.keys, "a", "t")
    if rule.span is None:
        return key
    begins, ends = rule.span
    start = col(begins, "t")
    exact = eq(start, col(begins, "a"))
    inside = all_of(
        [
            exp.GTE(this=start.copy(), expression=col(begins, "a")),
            any_of([is_null(col(ends, "a")), exp.LT(this=start.copy(), expression=col(ends, "a"))]),
        ]
    )
    touches = one_of(col(ACTION, "a"), (DROP, *TOUCHING))
    return all_of([key, case((touches, exact), default=inside)])
