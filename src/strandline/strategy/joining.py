"""Slice, table, evidence of absence and open notes side by side, by their keys."""

from __future__ import annotations

from sqlglot import exp

from strandline.errors import UnknownColumn
from strandline.sql.expr import (
    all_of,
    any_of,
    case,
    cast,
    col,
    eq,
    is_null,
    lit,
    named,
    negate,
    ordered,
    over,
    select,
    table,
)
from strandline.sql.matching import match_columns, same_match
from strandline.strategy.absence import seen_keys
from strandline.strategy.changes import is_true
from strandline.strategy.question import (
    ABSENT,
    COPIES,
    FOUND,
    GONE,
    IN,
    OLD,
    SEEN,
    STATE,
    STREAK,
    Question,
    key_hash_of,
)
from strandline.types import Column


def joined(q: Question) -> exp.Select:
    """Slice, table, evidence and notes side by side; with evidence also the rows that only the table has."""
    keys = {c.fold for c in q.keys}
    values = [named(_value(q, c, key=c.fold in keys), c.name) for c in q.fit.columns]
    found = col(FOUND, "t") if q.target else cast(exp.null(), "boolean")
    old = [named(col(c.name, "t"), OLD + c.name) for c in (q.target.schema if q.target else ())]
    gone = is_true(col(q.gone, "s")) if q.gone else exp.false()
    facts = [
        named(col(IN, "s"), IN),
        named(found, FOUND),
        named(_seen(q), SEEN),
        named(col(COPIES, "s"), COPIES),
    ]
    facts += [named(gone, GONE), named(_absent(q), ABSENT)]
    if q.noted:
        facts += [
            named(col(n, "n"), a) for n, a in (("streak", STREAK), ("state", STATE + "_note"))
        ]
    tree = select(*values, *facts, *old).from_(_slice(q).subquery("s"))
    if q.target is not None:
        on = all_of(same_match(i, c.type, "s", "t") for i, c in enumerate(q.keys))
        tree = tree.join(_stored(q).subquery("t"), on=on, join_type="full" if q.both else "left")
    if q.absence is not None and q.absence.seen is not None:
        tree = tree.join(
            seen_keys(q.absence, q.keys).subquery("e"), on=_same_key(q, "e"), join_type="left"
        )
    if q.noted and q.absence is not None and q.absence.notes is not None:
        hashed = key_hash_of(q.keys, [_key(q, c) for c in q.keys])
        tree = tree.join(
            table(q.absence.notes.name, "n"), on=eq(hashed, col("key_hash", "n")), join_type="left"
        )
    return tree


def _slice(q: Question) -> exp.Select:
    """The slice with its keys in the table's types, and how often each of them occurs, if that is to be known now."""
    columns = [col(n) for n in q.rows.schema.names]
    keyed = [
        m
        for i, c in enumerate(q.keys)
        for m in match_columns(i, c.type, cast(col(_their(q, c)), c.type))
    ]
    rows = select(*columns, *keyed).from_(table(q.rows.name))
    copies = (
        lit(1)
        if q.unique or q.paired
        else over(exp.Count(this=exp.Star()), [k.alias for k in keyed])
    )
    names = [*(c.copy() for c in columns), *(col(k.alias) for k in keyed)]
    return select(*names, named(copies, COPIES), named(exp.true(), IN)).from_(rows.subquery("k"))


def _stored(q: Question) -> exp.Select:
    """The rows to compare with: all of them, or of a history the newest version that is current or deleted."""
    target = q.target
    assert target is not None
    columns = [col(n) for n in target.schema.names]
    keyed = [m for i, c in enumerate(q.keys) for m in match_columns(i, c.type, col(c.name))]
    rows = select(*columns, *keyed, named(exp.true(), FOUND)).from_(table(target.name))
    if not q.keeping.history:
        return rows
    roles, names = q.keeping.roles, [k.alias for k in keyed]
    newest = over(exp.RowNumber(), names, [ordered(col(roles["valid_from"]), desc=True)])
    ended = any_of([is_true(col(roles["is_current"])), is_true(col(roles["deleted"]))])
    every = [*target.schema.names, *names, FOUND]
    ranked = select(*map(col, every), named(newest, "_strandline_rank")).from_(
        rows.where(ended).subquery("k")
    )
    return (
        select(*map(col, every))
        .from_(ranked.subquery("r"))
        .where(eq(col("_strandline_rank"), lit(1)))
    )


def _their(q: Question, column: Column) -> str:
    """A key as the slice spells it."""
    found = q.rows.schema.get(column.name)
    if found is None:
        raise UnknownColumn(column.name, q.rows.schema.names, where="keys")
    return found.name


def _key(q: Question, column: Column) -> exp.Expr:
    mine = cast(col(_their(q, column), "s"), column.type)
    if q.target is None or q.absence is None:
        return mine
    return exp.Coalesce(this=mine, expressions=[col(column.name, "t")])


def _same_key(q: Question, alias: str) -> exp.Expr:
    """A key with a NULL is nobody's evidence, so plain equality is enough."""
    return all_of(eq(_key(q, c), col(c.name, alias)) for c in q.keys)


def _seen(q: Question) -> exp.Expr:
    if q.absence is None:
        return cast(exp.null(), "boolean")
    seen = col("_strandline_there", "e") if q.absence.seen is not None else col(IN, "s")
    if q.gone is None:
        return seen
    return all_of(
        [seen, negate(is_true(col(q.gone, "s")))]
    )  # a row that announces a delete shows no presence


def _absent(q: Question) -> exp.Expr:
    return is_true(col(ABSENT, "s")) if ABSENT in q.rows.schema else exp.false()


def _value(q: Question, c: Column, *, key: bool) -> exp.Expr:
    """A column as it would be stored: the slice's value, and the stored one where the slice has no such column."""
    come, target = q.rows.schema.get(c.name), q.target
    if key:
        return _key(q, c)
    there = target is not None and c.name in target.schema
    if come is None:
        return col(c.name, "t") if there else cast(exp.null(), c.type)
    value: exp.Expr = cast(col(come.name, "s"), c.type)
    if there and q.sequence and q.gone:
        # what a row was stays to be seen when its delete is announced; only when that was is written, if a row says so
        when = c.name.casefold() == q.sequence.casefold()
        stays = all_of(
            [_absent(q) if when else is_true(col(q.gone, "s")), is_true(col(FOUND, "t"))]
        )
        value = case((stays, col(c.name, "t")), default=value)
    if q.both and there and q.whole:
        return case((is_null(col(IN, "s")), col(c.name, "t")), default=value)
    return value
