"""delete_insert: all rows of a key at once. A key is compared as a whole, and what differs is replaced.

The question that `keyed` answers for rows is asked here of keys: each side is one row per key, and a flag says whether
the rows of the key differ. So absence, held deletes and verdicts mean for keys what they mean for rows. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from strandline.sql.expr import (
    OUTER,
    all_of,
    call,
    case,
    cast,
    col,
    count_where,
    eq,
    is_null,
    lit,
    named,
    negate,
    one_of,
    same,
    same_keys,
    select,
    table,
)
from strandline.sql.nested import outer, parts
from strandline.strategy.announced import ANNOUNCED
from strandline.strategy.changes import ACTION, DROP, METADATA, TOUCHING, is_true, living
from strandline.strategy.fit import Fit
from strandline.types import Column, Relation, Schema

DIFFERS = Column(
    "_strandline_differs", "boolean"
)  # do the rows of a key differ from the stored ones?
_SCOPE, _AMONG, _SIDE, _ROWS = (
    "_strandline_scope",
    "_strandline_among",
    "_strandline_side",
    "_strandline_rows",
)
_COMES = ("insert", "update", "reopen")  # verbs of keys whose rows all come


@dataclass(frozen=True)
class Groups:
    """The rows behind the keys: those to write, in the table's columns, and those that are stored."""

    rows: Relation  # with a flag, where rows announce a delete
    target: Relation | None
    columns: Schema
    keys: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        return [k.name for k in self.keys]


def whole_rows(rows: Relation, fit: Fit) -> exp.Select:
    """The rows in the table's columns: one that they lack is NULL."""
    values = [
        named(
            cast(col(come.name) if (come := rows.schema.get(c.name)) else exp.null(), c.type),
            c.name,
        )
        for c in fit.columns
    ]
    flag = [col(ANNOUNCED)] if ANNOUNCED in rows.schema else []
    return select(*values, *flag).from_(table(rows.name))


def _come(groups: Groups) -> exp.Expr:
    """The rows that do not announce their delete."""
    announces = ANNOUNCED in groups.rows.schema
    return negate(is_true(col(ANNOUNCED))) if announces else exp.true()


# --- one row per key ---------------------------------------------------------------------------------------


def asked(groups: Groups) -> exp.Select:
    """The keys of the slice: do their rows differ from the stored ones, and are they all gone?"""
    keys = groups.names
    gone = is_true(col(ANNOUNCED)) if ANNOUNCED in groups.rows.schema else exp.false()
    one = select(*map(col, keys), named(_every(gone), ANNOUNCED)).from_(table(groups.rows.name))
    one = one.group_by(*map(col, keys))
    flag = [col(ANNOUNCED, "s")] if ANNOUNCED in groups.rows.schema else []
    if groups.target is None:
        return select(*(col(k, "s") for k in keys), named(exp.true(), DIFFERS.name), *flag).from_(
            one.subquery("s")
        )
    differs = named(negate(is_null(col(DIFFERS.name, "d"))), DIFFERS.name)
    tree = select(*(col(k, "s") for k in keys), differs, *flag).from_(one.subquery("s"))
    return tree.join(
        _differing(groups).subquery("d"), on=same_keys(keys, "s", "d"), join_type="left"
    )


def _every(condition: exp.Expr) -> exp.Expr:
    """Does a condition hold of all rows of a group?"""
    return eq(exp.Min(this=case((condition, lit(1)), default=lit(0))), lit(1))


def _differing(groups: Groups) -> exp.Select:
    """The keys whose rows are not the stored ones, as multisets and without their metadata."""
    keys, target = groups.names, groups.target
    assert target is not None
    others = [c for c in groups.columns if c.fold not in METADATA and c.name not in keys]
    names = [f"_strandline_c{i}" for i in range(len(others))]
    come = (
        select(*map(col, keys), *_comparable(others, groups.rows, names), named(lit(1), _SIDE))
        .from_(table(groups.rows.name))
        .where(_come(groups))
    )
    have = select(
        *map(col, keys), *_comparable(others, target, names), named(lit(-1), _SIDE)
    ).from_(table(target.name))
    both = exp.union(come, have, distinct=False)
    rows = select(*map(col, keys)).from_(both.subquery("b")).group_by(*map(col, [*keys, *names]))
    rows = rows.having(exp.NEQ(this=exp.Sum(this=col(_SIDE)), expression=lit(0)))
    once = select(*map(col, keys), named(exp.true(), DIFFERS.name)).from_(rows.subquery("r"))
    return once.group_by(*map(col, keys))


def _comparable(columns: Sequence[Column], rows: Relation, names: Sequence[str]) -> list[exp.Expr]:
    """The values to group by; maps, by which Spark does not group, as their text."""
    found: list[exp.Expr] = []
    for column, name in zip(columns, names, strict=True):
        value: exp.Expr = col(column.name) if column.name in rows.schema else exp.null()
        value = call("comparable", value) if _has_map(column.type) else cast(value, column.type)
        found.append(named(value, name))
    return found


def _has_map(type_: str) -> bool:
    return outer(type_) == "map" or any(_has_map(inner) for _, inner in parts(type_))


def stored(
    groups: Groups,
    roles: Mapping[str, str],
    scope: exp.Expr | None = None,
    among: exp.Expr | None = None,
) -> exp.Select:
    """The stored keys: deleted when all of their rows are; in question when all of their living rows are."""
    target, keys = groups.target, groups.names
    assert target is not None
    deleted = roles.get("deleted")
    there = [name for role, name in roles.items() if role != "deleted"]
    values = [named(exp.Max(this=col(n)), n) for n in there if n in target.schema]
    if deleted is not None:
        values.append(named(_every(is_true(col(deleted))), deleted))
    alive = living(roles)
    for name, limit in ((_SCOPE, scope), (_AMONG, among)):
        held = is_true(exp.Paren(this=limit.copy())) if limit is not None else exp.true()
        values.append(named(_every(exp.or_(negate(alive.copy()), held)), name))
    differs = named(exp.false(), DIFFERS.name)
    tree = select(*map(col, keys), *values).from_(table(target.name)).group_by(*map(col, keys))
    names = [*keys, *(v.alias for v in values)]
    return select(*map(col, names), differs).from_(tree.subquery("t"))


def limits_of(
    scope: exp.Expr | None, among: exp.Expr | None
) -> tuple[exp.Expr | None, exp.Expr | None]:
    """The limits over stored rows as limits over stored keys."""
    return col(_SCOPE) if scope is not None else None, col(_AMONG) if among is not None else None


# --- from keys back to rows --------------------------------------------------------------------------------


def additions(decided: Relation, groups: Groups, roles: Mapping[str, str]) -> exp.Query:
    """The rows to write: whole rows of keys that are new or differ, and one row for each key whose stored rows go.

    `decided` has a row for each key to write, with its verb and system columns.
    """
    system = list(roles.values())
    values = [col(c.name, "r") for c in groups.columns]
    come = select(*values, *(col(n, "d") for n in system), named(lit("insert"), ACTION))
    come = come.from_(table(groups.rows.name, "r")).join(
        table(decided.name, "d"), on=same_keys(groups.names, "r", "d")
    )
    come = come.where(all_of([one_of(col(ACTION, "d"), _COMES), _of(_come(groups), "r")]))
    replaced = case((one_of(col(ACTION), ("update", "reopen")), lit(DROP)), default=col(ACTION))
    located = {k.fold for k in groups.keys}
    only = [
        named(col(c.name) if c.fold in located else cast(exp.null(), c.type), c.name)
        for c in groups.columns
    ]
    goes = select(*only, *map(col, system), named(replaced, ACTION)).from_(table(decided.name))
    goes = goes.where(one_of(col(ACTION), ("update", "reopen", *TOUCHING)))
    buried = select(*(o.copy() for o in only), *map(col, system), named(lit("insert"), ACTION))
    buried = buried.from_(table(decided.name, OUTER)).where(_buried(groups))
    return exp.union(exp.union(come, goes, distinct=False), buried, distinct=False)


def _buried(groups: Groups) -> exp.Expr:
    """A key that only comes to be deleted has no row to write: its key is written, flagged."""
    row = select(lit(1)).from_(table(groups.rows.name, "x"))
    row = row.where(all_of([*_matches(groups, "x"), _of(_come(groups), "x")]))
    return all_of([eq(col(ACTION, OUTER), lit("insert")), exp.Not(this=exp.Exists(this=row))])


def _matches(groups: Groups, alias: str) -> list[exp.Expr]:
    return [same(col(k, alias), col(k, OUTER)) for k in groups.names]


def _of(tree: exp.Expr, alias: str) -> exp.Expr:
    return tree.transform(
        lambda node: col(node.name, alias) if isinstance(node, exp.Column) else node
    )


def counted(decided: Relation, groups: Groups) -> exp.Select:
    """How many rows come for new keys, for keys that differ and for keys that are back, and how many go."""
    keys = groups.names
    verb = col(ACTION, "d")
    sides = [(groups.rows, _of(_come(groups), "r"), 1)]
    sides += [(groups.target, exp.true(), 0)] if groups.target is not None else []
    found = []
    for rows, where, side in sides:
        joined = select(named(verb.copy(), ACTION), named(lit(side), _ROWS))
        joined = joined.from_(table(rows.name, "r")).join(
            table(decided.name, "d"), on=same_keys(keys, "r", "d")
        )
        found.append(joined.where(where))
    both: exp.Query = exp.union(*found, distinct=False) if len(found) > 1 else found[0]
    comes = eq(col(_ROWS), lit(1))
    goes = eq(col(_ROWS), lit(0))
    sums = {
        "inserted": all_of([comes, eq(col(ACTION), lit("insert"))]),
        "updated": all_of([comes.copy(), eq(col(ACTION), lit("update"))]),
        "reopened": exp.or_(
            all_of([comes.copy(), eq(col(ACTION), lit("reopen"))]),
            all_of([goes, eq(col(ACTION), lit("revive"))]),
        ),
        "deleted": all_of([goes.copy(), eq(col(ACTION), lit("delete"))]),
    }
    return select(*(named(count_where(c), n) for n, c in sums.items())).from_(both.subquery("b"))
