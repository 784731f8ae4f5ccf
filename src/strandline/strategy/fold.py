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

from strandline.schema.diff import Fit
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
from strandline.types import Column, Relation

KEY_VERB = "_strandline_key_verb"
"""What became of a key as a whole, in one of its rows."""
_RANK, _BEFORE, _START, _VERSION = "_strandline_rank", "_strandline_before", "_strandline_start", "_strandline_version"
_FROM, _ENDED, _NEXT, _TO = "_strandline_from", "_strandline_ended", "_strandline_next", "_strandline_to"
_LAST_DELETE, _FOLDED, _FOUND, _OLD = (
    "_strandline_last_delete",
    "_strandline_folded",
    "_strandline_found",
    "_strandline_old_",
)
_HAD, _WAS, _IS, _CHANGED, _FIRST = (f"_strandline_{n}" for n in ("had", "was", "is", "changed", "first"))


def versions(events: exp.Query, course: Course) -> exp.Select:
    """The versions of all keys of these events: their columns, when they begin and end, and whether by a delete."""
    names = course.columns.names
    ended = over(
        exp.Min(this=case((eq(col(KIND), lit(DELETE)), col(INSTANT)), default=exp.null())), [*course.keys, _VERSION]
    )
    begun = over(exp.Min(this=col(INSTANT)), [*course.keys, _VERSION])
    last = [ordered(col(KIND), desc=True), ordered(col(INSTANT), desc=True)]  # the last upsert tells the values
    rank = over(exp.RowNumber(), [*course.keys, _VERSION], last)
    facts = [named(begun, _FROM), named(ended, _ENDED), named(rank, _RANK), col(_LAST_DELETE)]
    grown = select(*map(col, names), *facts).from_(_numbered(events, course).subquery("n"))
    grown = grown.where(exp.GT(this=col(_VERSION), expression=lit(0)))
    one = select(*map(col, names), *map(col, (_FROM, _ENDED, _LAST_DELETE))).from_(grown.subquery("g"))
    one = one.where(eq(col(_RANK), lit(1)))
    after = over(exp.Lead(this=col(_FROM)), course.keys, [ordered(col(_FROM))])
    out = select(*map(col, names), *map(col, (_FROM, _ENDED, _LAST_DELETE)), named(after, _NEXT)).from_(
        one.subquery("o")
    )
    to = named(exp.Coalesce(this=col(_ENDED), expressions=[col(_NEXT)]), _TO)
    whole = select(*map(col, names), col(_FROM), to, named(negate(is_null(col(_ENDED))), _ENDED)).from_(
        out.subquery("v")
    )
    if not course.hard:
        return whole
    kept = any_of([is_null(col(_LAST_DELETE)), exp.GT(this=col(_FROM), expression=col(_LAST_DELETE))])
    return whole.where(kept)


def _numbered(events: exp.Query, course: Course) -> exp.Select:
    """One event per key and instant, with the number of the version it belongs to; 0 before the first."""
    names = [*course.columns.names, INSTANT, KIND]
    rank = over(exp.RowNumber(), [*course.keys, INSTANT], weight(course))
    ranked = select(*map(col, names), named(rank, _RANK)).from_(events.subquery("e"))
    winners = select(*map(col, names)).from_(ranked.subquery("r")).where(eq(col(_RANK), lit(1)))
    line = [ordered(col(INSTANT))]
    before = [named(over(exp.Lag(this=col(n)), course.keys, line), _OLD + n) for n in course.tracked]
    kind = named(over(exp.Lag(this=col(KIND)), course.keys, line), _BEFORE)
    deleted = exp.Max(this=case((eq(col(KIND), lit(DELETE)), col(INSTANT)), default=exp.null()))
    facts = [*before, kind, named(over(deleted, course.keys), _LAST_DELETE)]
    lined = select(*map(col, names), *facts).from_(winners.subquery("w"))
    differs = any_of(negate(same(col(n), col(_OLD + n))) for n in course.tracked)
    opens = any_of([is_null(col(_BEFORE)), eq(col(_BEFORE), lit(DELETE)), differs])
    start = case((all_of([eq(col(KIND), lit(UPSERT)), opens]), lit(1)), default=lit(0))
    started = select(*map(col, names), col(_LAST_DELETE), named(start, _START)).from_(lined.subquery("l"))
    number = over(exp.Sum(this=col(_START)), course.keys, line)
    return select(*map(col, names), col(_LAST_DELETE), named(number, _VERSION)).from_(started.subquery("s"))


# --- what that changes -------------------------------------------------------------------------------------


def changes(
    folded: exp.Query, keys: Relation, target: Relation | None, fit: Fit, course: Course, roles: Mapping[str, str]
) -> exp.Select:
    """The versions of some keys beside those that the table has: a verb for each row, and one for each key."""
    columns = [*fit.columns.names, *roles.values()]
    joined = _joined(folded, keys, target, fit, course, roles)
    found = target.schema if target else None
    verb = _verb(found.names if found else (), fit, roles)
    told = select(*map(col, columns), *map(col, (_FOLDED, _FOUND)), named(verb, ACTION), *_alive(target, roles))
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
    first = over(exp.RowNumber(), course.keys, [ordered(changed_first), ordered(col(roles["valid_from"]))])
    summed = select(*map(col, columns), col(ACTION), *facts, named(first, _FIRST)).from_(told.subquery("t"))
    return select(*map(col, columns), col(ACTION), named(_key_verb(), KEY_VERB)).from_(summed.subquery("s"))


def _joined(
    folded: exp.Query, keys: Relation, target: Relation | None, fit: Fit, course: Course, roles: Mapping[str, str]
) -> exp.Select:
    """Each version as it should be and as it is stored, side by side."""
    begins = roles["valid_from"]
    system = {
        "valid_from": col(_FROM, "f"),
        "valid_to": exp.Coalesce(this=col(_TO, "f"), expressions=[cast(lit(course.open_end), "timestamp")]),
        "is_current": is_null(col(_TO, "f")),
        "deleted": col(_ENDED, "f"),
        "last_seen": lit(course.at),
        "row_hash": cast(exp.null(), "bigint"),
    }
    come = [(c, col(c.name, "f") if c.name in course.columns else None) for c in fit.columns]
    if target is None:
        values = [named(cast(tree if tree is not None else exp.null(), c.type), c.name) for c, tree in come]
        values += [named(system[role], name) for role, name in roles.items()]
        facts = [named(exp.true(), _FOLDED), named(exp.false(), _FOUND)]
        return _hashed(select(*values, *facts).from_(folded.subquery("f")), fit, roles)
    located = {k.casefold() for k in course.keys}
    values = []
    for c, tree in come:
        old = col(c.name, "t") if c.name in target.schema else exp.null()
        new = old if tree is None else exp.Coalesce(this=tree, expressions=[old]) if c.fold in located else tree
        values.append(named(cast(new, c.type), c.name))
    system["valid_from"] = exp.Coalesce(this=system["valid_from"], expressions=[col(begins, "t")])
    values += [named(system[role], name) for role, name in roles.items()]
    facts = [named(negate(is_null(col(_FROM, "f"))), _FOLDED), named(negate(is_null(col(begins, "t"))), _FOUND)]
    facts += [named(col(n, "t"), _OLD + n) for n in target.schema.names]
    mine = select(*(col(n) for n in target.schema.names)).from_(table(target.name, OUTER))
    have = (
        select(lit(1)).from_(table(keys.name, "k")).where(all_of(same(col(k, "k"), col(k, OUTER)) for k in course.keys))
    )
    stored = mine.where(exp.Exists(this=have)).subquery("t")
    on = all_of([*(same(col(k, "f"), col(k, "t")) for k in course.keys), eq(col(_FROM, "f"), col(begins, "t"))])
    both = select(*values, *facts).from_(folded.subquery("f")).join(stored, on=on, join_type="full")
    return _hashed(both, fit, roles)


def _hashed(rows: exp.Select, fit: Fit, roles: Mapping[str, str]) -> exp.Select:
    """The rows with their hash, where the table keeps one."""
    if "row_hash" not in roles:
        return rows
    name, told = roles["row_hash"], [c for c in fit.columns if c.fold not in METADATA]
    columns: Sequence[exp.Expr] = [
        named(row_hash(told), name) if e.alias_or_name == name else col(e.alias_or_name) for e in rows.expressions
    ]
    return select(*columns).from_(rows.subquery("u"))


def _verb(stored: Sequence[str], fit: Fit, roles: Mapping[str, str]) -> exp.Expr:
    """A version that is no more is dropped; one that is as it was is left alone."""
    if not stored:
        return lit("insert")
    told = [c for c in fit.columns if c.fold not in METADATA]
    have = {n.casefold() for n in stored}
    equal = [same(col(roles[r]), col(_OLD + roles[r])) for r in ("valid_to", "is_current", "deleted")]
    hashed = roles.get("row_hash")
    if hashed and hashed.casefold() in have:
        equal.append(eq(col(hashed), col(_OLD + hashed)))
        told = [c for c in told if not hashable(c)]
    equal += [same(col(c.name), col(_OLD + c.name)) if c.fold in have else is_null(col(c.name)) for c in told]
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
    return {name: count_where(is_true(eq(col(KEY_VERB), lit(verb)))) for name, verb in verbs.items()}


def tracked(columns: Sequence[Column], keys: Sequence[str], quiet: Sequence[str | None]) -> tuple[str, ...]:
    """The columns whose changes open a version when nobody names them: all that say something of the key."""
    silent = {n.casefold() for n in (*keys, *quiet) if n is not None} | set(METADATA)
    return tuple(c.name for c in columns if c.fold not in silent)
