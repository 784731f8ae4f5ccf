"""From events to versions: one query that makes the whole history of some keys, and what that changes in a table.

events        one per key and instant     a version begins where something tracked changes
──────────    ────────────────────────    ─────────────────────────────────────────────────
t1  a         t1  a                       1 starts    │ from t1, to t3, values of t2
t2  a         t2  a                       1           │
t3  b, c      t3  c (the higher)          2 starts    │ from t3, to t4, deleted
t4  deleted   t4  deleted                 2 ends      │
t5  c         t5  c                       3 starts    │ from t5, current
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from strandline.sql.expr import (
    OUTER,
    all_of,
    any_of,
    case,
    cast,
    col,
    count_where,
    eq,
    is_null,
    lit,
    named,
    negate,
    ordered,
    over,
    same,
    select,
    table,
)
from strandline.sql.hash import hashable, row_hash
from strandline.strategy.changes import ACTION, METADATA, is_true
from strandline.strategy.events import DELETE, INSTANT, KIND, UPSERT, Course, weight
from strandline.strategy.fit import Fit
from strandline.types import Column, Relation

KEY_VERB = "_strandline_key_verb"
"""What became of a key as a whole, in one of its rows."""
_BEFORE, _START, _FROM, _TO = (
    "_strandline_before",
    "_strandline_start",
    "_strandline_from",
    "_strandline_to",
)
_NEXT, _ENDED, _LAST_DELETE = "_strandline_next_", "_strandline_ended", "_strandline_last_delete"
_FOLDED, _FOUND, _OLD = "_strandline_folded", "_strandline_found", "_strandline_old_"
_HAD, _WAS, _IS, _CHANGED, _FIRST = (
    f"_strandline_{n}" for n in ("had", "was", "is", "changed", "first")
)


def versions(events: exp.Query, course: Course) -> exp.Select:
    """The versions of all keys of these events: their columns, when they begin and end, and whether by a delete.

    The last event of a version tells its values, and the event after that one when and how it ends.
    """
    names = course.columns.names
    line = [ordered(col(INSTANT))]
    begun = exp.Max(this=case((eq(col(_START), lit(1)), col(INSTANT)), default=exp.null()))
    facts = [
        named(over(begun, course.keys, line), _FROM)
    ]  # a running maximum: the newest start so far
    facts += [
        named(over(exp.Lead(this=col(n)), course.keys, line), _NEXT + n)
        for n in (INSTANT, KIND, _START)
    ]
    last_delete = [col(_LAST_DELETE)] if course.hard else []
    placed = select(*map(col, names), col(KIND), *facts, *last_delete).from_(
        _started(events, course).subquery("s")
    )
    goes_on = all_of([eq(col(_NEXT + KIND), lit(UPSERT)), eq(col(_NEXT + _START), lit(0))])
    ended = is_true(eq(col(_NEXT + KIND), lit(DELETE)))
    told = select(
        *map(col, names), col(_FROM), named(col(_NEXT + INSTANT), _TO), named(ended, _ENDED)
    )
    told = told.from_(placed.subquery("v")).where(
        all_of([eq(col(KIND), lit(UPSERT)), negate(is_true(goes_on))])
    )
    if not course.hard:
        return told
    kept = any_of(
        [is_null(col(_LAST_DELETE)), exp.GT(this=col(_FROM), expression=col(_LAST_DELETE))]
    )
    return told.where(kept)


def _started(events: exp.Query, course: Course) -> exp.Select:
    """One event per key and instant, in their order, each with whether a version starts there."""
    names = [*course.columns.names, INSTANT, KIND]
    before = over(exp.Lag(this=col(INSTANT)), course.keys, [ordered(col(INSTANT)), *weight(course)])
    lined = select(*map(col, names), named(before, _BEFORE)).from_(events.subquery("e"))
    first = any_of([is_null(col(_BEFORE)), exp.LT(this=col(_BEFORE), expression=col(INSTANT))])
    winners = select(*map(col, names)).from_(lined.subquery("l")).where(first)
    line = [ordered(col(INSTANT))]
    facts = [
        named(over(exp.Lag(this=col(n)), course.keys, line), _OLD + n)
        for n in (*course.tracked, KIND)
    ]
    deleted = exp.Max(this=case((eq(col(KIND), lit(DELETE)), col(INSTANT)), default=exp.null()))
    facts += [named(over(deleted, course.keys), _LAST_DELETE)] if course.hard else []
    beside = select(*map(col, names), *facts).from_(winners.subquery("w"))
    differs = (negate(same(col(n), col(_OLD + n))) for n in course.tracked)
    opens = any_of([is_null(col(_OLD + KIND)), eq(col(_OLD + KIND), lit(DELETE)), *differs])
    start = case((all_of([eq(col(KIND), lit(UPSERT)), opens]), lit(1)), default=lit(0))
    kept = [col(_LAST_DELETE)] if course.hard else []
    return select(*map(col, names), *kept, named(start, _START)).from_(beside.subquery("b"))


# --- what that changes -------------------------------------------------------------------------------------


def changes(
    folded: exp.Query,
    keys: Relation,
    target: Relation | None,
    fit: Fit,
    course: Course,
    roles: Mapping[str, str],
) -> exp.Select:
    """The versions of some keys beside those that the table has: a verb for each row, and one for each key."""
    columns = [*fit.columns.names, *roles.values()]
    joined = _joined(folded, keys, target, fit, course, roles)
    found = target.schema if target else None
    verb = _verb(found.names if found else (), fit, roles)
    told = select(
        *map(col, columns),
        *map(col, (_FOLDED, _FOUND)),
        named(verb, ACTION),
        *_alive(target, roles),
    )
    told = told.from_(joined.subquery("j"))
    facts = [
        named(over(exp.Max(this=case((condition, lit(1)), default=lit(0))), course.keys), name)
        for name, condition in (
            (_HAD, is_true(col(_FOUND))),
            (_WAS, col(_WAS)),
            (_IS, all_of([is_true(col(_FOLDED)), is_true(col(roles["is_current"]))])),
            (_CHANGED, exp.NEQ(this=col(ACTION), expression=lit("unchanged"))),
        )
    ]
    changed_first = case((eq(col(ACTION), lit("unchanged")), lit(1)), default=lit(0))
    first = over(
        exp.RowNumber(), course.keys, [ordered(changed_first), ordered(col(roles["valid_from"]))]
    )
    summed = select(*map(col, columns), col(ACTION), *facts, named(first, _FIRST)).from_(
        told.subquery("t")
    )
    return select(*map(col, columns), col(ACTION), named(_key_verb(), KEY_VERB)).from_(
        summed.subquery("s")
    )


def _joined(
    folded: exp.Query,
    keys: Relation,
    target: Relation | None,
    fit: Fit,
    course: Course,
    roles: Mapping[str, str],
) -> exp.Select:
    """Each version as it should be and as it is stored, side by side."""
    begins = roles["valid_from"]
    system = {
        "valid_from": col(_FROM, "f"),
        "valid_to": exp.Coalesce(
            this=col(_TO, "f"), expressions=[cast(lit(course.open_end), "timestamp")]
        ),
        "is_current": is_null(col(_TO, "f")),
        "deleted": col(_ENDED, "f"),
        "last_seen": lit(course.at),
        "row_hash": cast(exp.null(), "bigint"),
    }
    come = [(c, col(c.name, "f") if c.name in course.columns else None) for c in fit.columns]
    if target is None:
        values = [
            named(cast(tree if tree is not None else exp.null(), c.type), c.name)
            for c, tree in come
        ]
        values += [named(system[role], name) for role, name in roles.items()]
        facts = [named(exp.true(), _FOLDED), named(exp.false(), _FOUND)]
        return _hashed(select(*values, *facts).from_(folded.subquery("f")), fit, roles)
    merged = _over_stored(come, target, course)
    system["valid_from"] = exp.Coalesce(this=system["valid_from"], expressions=[col(begins, "t")])
    merged += [named(system[role], name) for role, name in roles.items()]
    facts = [
        named(negate(is_null(col(_FROM, "f"))), _FOLDED),
        named(negate(is_null(col(begins, "t"))), _FOUND),
    ]
    facts += [named(col(n, "t"), _OLD + n) for n in target.schema.names]
    stored, on = _chains_of(target, keys, course, begins)
    both = select(*merged, *facts).from_(folded.subquery("f")).join(stored, on=on, join_type="full")
    return _hashed(both, fit, roles)


def _over_stored(
    come: Sequence[tuple[Column, exp.Expr | None]], target: Relation, course: Course
) -> list[exp.Expr]:
    """The values of a version: what the fold says, else what is stored."""
    located = {k.casefold() for k in course.keys}
    values: list[exp.Expr] = []
    for c, tree in come:
        old: exp.Expr = col(c.name, "t") if c.name in target.schema else exp.null()
        if tree is None:
            new = old
        elif c.fold in located:
            new = exp.Coalesce(this=tree, expressions=[old])
        else:
            new = tree
        values.append(named(cast(new, c.type), c.name))
    return values


def _chains_of(
    target: Relation, keys: Relation, course: Course, begins: str
) -> tuple[exp.Subquery, exp.Expr]:
    """The stored versions of the keys that are folded, and which folded version each one is."""
    mine = select(*(col(n) for n in target.schema.names)).from_(table(target.name, OUTER))
    have = (
        select(lit(1))
        .from_(table(keys.name, "k"))
        .where(all_of(same(col(k, "k"), col(k, OUTER)) for k in course.keys))
    )
    stored = mine.where(exp.Exists(this=have)).subquery("t")
    on = all_of(
        [
            *(same(col(k, "f"), col(k, "t")) for k in course.keys),
            eq(col(_FROM, "f"), col(begins, "t")),
        ]
    )
    return stored, on


def _hashed(rows: exp.Select, fit: Fit, roles: Mapping[str, str]) -> exp.Select:
    """The rows with their hash, where the table keeps one."""
    if "row_hash" not in roles:
        return rows
    name, told = roles["row_hash"], [c for c in fit.columns if c.fold not in METADATA]
    columns: Sequence[exp.Expr] = [
        named(row_hash(told), name) if e.alias_or_name == name else col(e.alias_or_name)
        for e in rows.expressions
    ]
    return select(*columns).from_(rows.subquery("u"))


def _verb(stored: Sequence[str], fit: Fit, roles: Mapping[str, str]) -> exp.Expr:
    """A version that is no more is dropped; one that is as it was is left alone."""
    if not stored:
        return lit("insert")
    told = [c for c in fit.columns if c.fold not in METADATA]
    have = {n.casefold() for n in stored}
    equal = [
        same(col(roles[r]), col(_OLD + roles[r])) for r in ("valid_to", "is_current", "deleted")
    ]
    hashed = roles.get("row_hash")
    if hashed and hashed.casefold() in have:
        equal.append(eq(col(hashed), col(_OLD + hashed)))
        told = [c for c in told if not hashable(c)]
    equal += [
        same(col(c.name), col(_OLD + c.name)) if c.fold in have else is_null(col(c.name))
        for c in told
    ]
    return case(
        (negate(col(_FOLDED)), lit("drop")),
        (negate(col(_FOUND)), lit("insert")),
        (all_of(equal), lit("unchanged")),
        default=lit("update"),
    )


def _alive(target: Relation | None, roles: Mapping[str, str]) -> list[exp.Alias]:
    """Was this row the current one?"""
    if target is None:
        return [named(exp.false(), _WAS)]
    return [named(all_of([col(_FOUND), is_true(col(_OLD + roles["is_current"]))]), _WAS)]


def _key_verb() -> exp.Expr:
    """What became of a key, told in the first of its rows: new to the table, gone, back, or changed."""
    one = {n: eq(col(n), lit(1)) for n in (_HAD, _WAS, _IS, _CHANGED, _FIRST)}
    return case(
        (negate(one[_FIRST]), cast(exp.null(), "string")),
        (negate(one[_CHANGED]), lit("unchanged")),
        (negate(one[_HAD]), lit("insert")),
        (all_of([one[_WAS], negate(one[_IS])]), lit("delete")),
        (all_of([one[_IS].copy(), negate(one[_WAS].copy())]), lit("reopen")),
        default=lit("update"),
    )


def key_measures() -> dict[str, exp.Expr]:
    """Counts are of keys: several versions of one that change are one change."""
    verbs = {
        "inserted": "insert",
        "updated": "update",
        "deleted": "delete",
        "reopened": "reopen",
        "unchanged": "unchanged",
    }
    return {
        name: count_where(is_true(eq(col(KEY_VERB), lit(verb)))) for name, verb in verbs.items()
    }


def tracked(
    columns: Sequence[Column], keys: Sequence[str], quiet: Sequence[str | None]
) -> tuple[str, ...]:
    """The columns whose changes open a version when nobody names them: all that say something of the key."""
    silent = {n.casefold() for n in (*keys, *quiet) if n is not None} | set(METADATA)
    return tuple(c.name for c in columns if c.fold not in silent)
