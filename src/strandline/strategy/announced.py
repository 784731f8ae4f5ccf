"""Rows that announce a delete, beside the rows that come: keys, and nothing else of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from strandline.sql.expr import all_of, cast, col, eq, lit, named, rows_of, same, select, table
from strandline.strategy.changes import living
from strandline.strategy.question import ABSENT, key_hash_of
from strandline.types import Column, Relation

ANNOUNCED = "_strandline_announced"


def announcing(rows: Relation, gone: Relation) -> exp.Query:
    """Both in one relation, told apart by a flag; the rows that come may announce deletes of their own."""
    columns = rows.schema.without(ANNOUNCED)
    flag = col(ANNOUNCED) if ANNOUNCED in rows.schema else exp.false()
    come = select(
        *map(col, columns.names), named(flag, ANNOUNCED), named(exp.false(), ABSENT)
    ).from_(table(rows.name))
    values = [
        named(cast(col(c.name) if c.name in gone.schema else exp.null(), c.type), c.name)
        for c in columns
    ]
    went = select(*values, named(exp.true(), ANNOUNCED), named(exp.true(), ABSENT)).from_(
        table(gone.name)
    )
    return exp.union(come, went, distinct=False)


def held_keys(
    target: Relation,
    roles: Mapping[str, str],
    notes: Relation,
    rows: Relation,
    keys: Sequence[Column],
) -> exp.Select:
    """The keys of living rows whose delete is held, unless a row of theirs has come: they are still gone."""
    stored = [c for k in keys if (c := target.schema.get(k.name))]
    hashed = key_hash_of(stored, [col(c.name, "t") for c in stored])
    come = select(lit(1)).from_(table(rows.name, "s"))
    come = come.where(
        all_of(same(col(k.name, "s"), col(c.name, "t")) for k, c in zip(keys, stored, strict=True))
    )
    values = [
        named(cast(col(c.name, "t"), k.type), k.name) for k, c in zip(keys, stored, strict=True)
    ]
    on = all_of([eq(hashed, col("key_hash", "n")), eq(col("state", "n"), lit("hold"))])
    held = select(*values).from_(table(target.name, "t")).join(table(notes.name, "n"), on=on)
    return held.where(all_of([living(roles, "t"), exp.Not(this=exp.Exists(this=come))]))


def together(one: Relation, other: Relation) -> exp.Query:
    """The keys of both, each once."""
    values = [
        named(cast(col(o.name), c.type), c.name)
        for c in one.schema
        if (o := other.schema.get(c.name))
    ]
    return exp.union(rows_of(one), select(*values).from_(table(other.name)), distinct=True)
