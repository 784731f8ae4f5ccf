"""Keys into dimensions: which row of a dimension each fact belongs to, which have none, and which facts moved.

versions of a key          which facts they answer to (by event time)
─────────────────          ──────────────────────────────────────────────────────────────
1  t1 to t2                before t2: what is before the first version belongs to the first
2  t3 to t4, deleted       from t3 to t4
newest: 2                  from t2 to t3, from t4 on, and facts without a time
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from strandline.config.star import UNKNOWN, ForeignKeyConfig
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
    same_keys,
    select,
    table,
)
from strandline.strategy.changes import ACTION, DROP, TOUCHING, is_true
from strandline.types import Column, Relation, Schema

_KEY, _LOW, _HIGH, _LAST, _NEXT, _FIRST, _NEWEST = (
    f"_strandline_{n}" for n in ("key", "low", "high", "last", "next", "first", "newest")
)
_FOUND = "_strandline_found_"


@dataclass(frozen=True)
class Lookup:
    """A foreign key and the dimension that it leads into, as it is now."""

    config: ForeignKeyConfig
    rows: Relation  # without its default members
    roles: Mapping[str, str]

    @property
    def column(self) -> Column:
        return Column(self.config.column, "bigint")

    @property
    def timed(self) -> bool:
        """Does it matter when a fact happened?"""
        return self.config.event_time is not None and "valid_from" in self.roles

    def checked(self, facts: Schema, label: str) -> None:
        """An error when a fact lacks a column of the lookup."""
        wanted = [*self.config.lookup, *filter(None, [self.config.event_time])]
        for name in wanted:
            if name not in facts:
                where = f"{label}: foreign_keys, {self.config.column}"
                raise UnknownColumn(name, facts.names, where=where)

    def spans(self) -> exp.Query:
        """The surrogate keys of the dimension, each with the keys and the times of the facts that it answers to."""
        keys = [self._spelled(k) for k in self.config.lookup.values()]
        names = [*keys, _KEY]
        rows = self._lined(keys)
        if "valid_from" not in self.roles:
            return select(*map(col, names)).from_(rows.subquery("r"))
        newest = exp.Is(this=col(_NEXT), expression=exp.null())
        if not self.timed:
            return select(*map(col, names)).from_(rows.subquery("r")).where(newest)
        low = case((col(_FIRST), cast(exp.null(), "timestamp")), default=col(_LOW))
        valid = select(*map(col, names), named(low, _LOW), col(_HIGH), named(newest.copy(), _LAST))
        gap = any_of([newest.copy(), exp.LT(this=col(_HIGH), expression=col(_NEXT))])
        after = select(
            *map(col, keys),
            named(col(_NEWEST), _KEY),
            named(col(_HIGH), _LOW),
            named(col(_NEXT), _HIGH),
            named(exp.false(), _LAST),
        )
        ended = all_of([negate(is_null(col(_HIGH))), gap])
        return exp.union(
            valid.from_(rows.subquery("r")),
            after.from_(rows.copy().subquery("r")).where(ended),
            distinct=False,
        )

    def _lined(self, keys: Sequence[str]) -> exp.Select:
        """The versions of each key beside the one that follows and the newest."""
        key = named(col(self.roles["surrogate_key"]), _KEY)
        if "valid_from" not in self.roles:
            return select(*map(col, keys), key).from_(table(self.rows.name))
        begins = self.roles["valid_from"]
        line = [ordered(col(begins))]
        back = [ordered(col(begins), desc=True)]
        current = is_true(col(self.roles["is_current"]))
        ends = case((current, cast(exp.null(), "timestamp")), default=col(self.roles["valid_to"]))
        first = over(exp.RowNumber(), keys, line)
        facts = [
            named(col(begins), _LOW),
            named(ends, _HIGH),
            named(over(exp.Lead(this=col(begins)), keys, line), _NEXT),
            named(eq(first, lit(1)), _FIRST),
            named(over(exp.FirstValue(this=col(self.roles["surrogate_key"])), keys, back), _NEWEST),
        ]
        return select(*map(col, keys), key, *facts).from_(table(self.rows.name))

    def match(self, facts: str, spans: str, schema: Schema) -> exp.Expr:
        """Does a fact belong to a row of `spans`?"""
        pairs = []
        for mine, theirs in self.config.lookup.items():
            column = self.rows.schema.get(theirs)
            fact = schema.get(mine)
            assert column is not None
            assert fact is not None
            pairs.append(eq(cast(col(fact.name, facts), column.type), col(column.name, spans)))
        if not self.timed:
            return all_of(pairs)
        time = schema.get(self.config.event_time or "")
        assert time is not None
        when = cast(col(time.name, facts), "timestamp")
        low, high = col(_LOW, spans), col(_HIGH, spans)
        inside = all_of(
            [
                any_of([is_null(low), exp.LTE(this=low.copy(), expression=when)]),
                any_of([is_null(high), exp.LT(this=when.copy(), expression=high.copy())]),
            ]
        )
        never = all_of([is_null(when.copy()), is_true(col(_LAST, spans))])
        timeless = all_of([negate(is_null(when.copy())), inside])
        return all_of([*pairs, any_of([never, timeless])])

    def nameless(self, facts: str, schema: Schema) -> exp.Expr:
        """Has a fact a NULL where the key of a member should be?"""
        named_ = [c for n in self.config.lookup if (c := schema.get(n))]
        return any_of(is_null(col(c.name, facts)) for c in named_)

    def _spelled(self, name: str) -> str:
        column = self.rows.schema.get(name)
        if column is None:
            where = f"foreign_keys, {self.config.column}: {self.config.dimension}"
            raise UnknownColumn(name, self.rows.schema.names, where=where)
        return column.name


def resolved(facts: Relation, lookups: Sequence[Lookup]) -> exp.Select:
    """The facts, each with the key that every lookup finds, by its column; NULL where a member is missing."""
    values: list[exp.Expr] = [col(n, "f") for n in facts.schema.names]
    tree = select().from_(table(facts.name, "f"))
    for number, lookup in enumerate(lookups):
        spans = f"d{number}"
        on = lookup.match("f", spans, facts.schema)
        tree = tree.join(lookup.spans().subquery(spans), on=on, join_type="left")
        key = case((lookup.nameless("f", facts.schema), lit(UNKNOWN)), default=col(_KEY, spans))
        values.append(named(cast(key, "bigint"), _FOUND + lookup.config.column))
    return tree.select(*values, copy=False)


def missing(found: Relation, lookups: Sequence[Lookup]) -> exp.Query:
    """The keys of members that facts name and one dimension lacks, each once, in the dimension's columns."""
    parts = []
    for lookup in lookups:
        keys = []
        for mine, theirs in lookup.config.lookup.items():
            fact, column = found.schema.get(mine), lookup.rows.schema.get(theirs)
            assert fact is not None
            assert column is not None
            keys.append(named(cast(col(fact.name), column.type), column.name))
        order = [c.name for c in lookup.rows.schema]
        keys.sort(key=lambda k: order.index(k.alias))
        lacks = all_of([is_null(col(_FOUND + lookup.config.column)), _whole()])
        parts.append(select(*keys).from_(table(found.name)).where(lacks))
    if len(parts) == 1:
        return parts[0].distinct()
    return exp.union(*parts, distinct=True)


def _whole() -> exp.Expr:
    touches = exp.In(this=col(ACTION), expressions=[lit(v) for v in (DROP, *TOUCHING)])
    return negate(touches)


def fact_rows(found: Relation, names: Sequence[str], lookups: Sequence[Lookup]) -> exp.Select:
    """The rows of a change set with their foreign keys; −1 where the member is missing."""
    keys = []
    for lookup in lookups:
        name = lookup.config.column
        given = exp.Coalesce(this=col(_FOUND + name), expressions=[lit(UNKNOWN)])
        keys.append(named(cast(given, "bigint"), name))
    return select(*map(col, names), *keys, col(ACTION)).from_(table(found.name))


# --- facts that are stored already -------------------------------------------------------------------------


def others(target: Relation, changes: Relation, keys: Sequence[str]) -> exp.Select:
    """The stored rows that a change set does not touch."""
    match = select(lit(1)).from_(table(changes.name, "c")).where(same_keys(keys, "c", target.name))
    every = [col(n) for n in target.schema.names]
    return select(*every).from_(table(target.name)).where(exp.Not(this=exp.Exists(this=match)))


def repointed(
    found: Relation, lookups: Sequence[Lookup], columns: Schema, writes: Mapping[str, exp.Expr]
) -> exp.Select:
    """The stored facts that belong to another row of a dimension by now, as rows to write.

    With `repoint` these are all whose member was not known or has got another history; else only those whose row of
    the dimension is gone. `writes` are the system columns that every written row gets.
    """
    keys: dict[str, exp.Expr] = {}
    moved, tree = [], select().from_(table(found.name, "f"))
    for number, lookup in enumerate(lookups):
        name, there = lookup.config.column, f"k{number}"
        have: exp.Expr = col(name, "f") if name in found.schema else cast(exp.null(), "bigint")
        alive = select(named(col(lookup.roles["surrogate_key"]), _KEY)).from_(
            table(lookup.rows.name)
        )
        on = eq(have.copy(), col(_KEY, there))
        tree = tree.join(alive.subquery(there), on=on, join_type="left")
        member = exp.LT(this=have.copy(), expression=lit(0))
        lost = all_of([is_null(col(_KEY, there)), any_of([is_null(have.copy()), negate(member)])])
        stays = case((lost, lit(UNKNOWN)), default=have.copy())
        now = exp.Coalesce(this=col(_FOUND + name, "f"), expressions=[stays])
        takes: exp.Expr = exp.true() if lookup.config.repoint else lost.copy()
        keys[name.casefold()] = case((takes, now), default=have.copy())
        differs = exp.NEQ(
            this=exp.Coalesce(this=have.copy(), expressions=[lit(-9)]), expression=now.copy()
        )
        moved.append(all_of([takes.copy(), differs]))
    values = []
    for c in columns:
        stored: exp.Expr = col(c.name, "f") if c.name in found.schema else exp.null()
        value = {**writes, **keys}.get(c.fold, stored)
        values.append(named(cast(value, c.type), c.name))
    return tree.select(*values, named(lit("update"), ACTION), copy=False).where(any_of(moved))
