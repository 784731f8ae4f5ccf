"""From decisions to rows: what is counted, what a verdict makes of it, and what is written, system columns included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    lit,
    named,
    negate,
    one_of,
    same,
    select,
    table,
)
from strandline.strategy.changes import ACTION, Proposal, Removals, is_true
from strandline.strategy.keyed import decide
from strandline.strategy.question import (
    ALIVE,
    CAME,
    ELSE,
    FOUND,
    GONE,
    NOTE,
    NULL_KEY,
    SEEN,
    VERSION,
    Keeping,
    Question,
)
from strandline.types import Counts, Relation


def keep() -> exp.Expr:
    """The decided rows that matter later: what is written, and what is noted."""
    idle = one_of(col(ACTION), ("unchanged", "stay"))
    return any_of([negate(idle), one_of(col(NOTE), ("seen", "missing"))])


def decision_measures() -> dict[str, exp.Expr]:
    """What is counted while the decisions are evaluated."""
    action, note = col(ACTION), col(NOTE)
    counted = {
        "inserted": eq(action, lit("insert")),
        "updated": one_of(action, ("update", "amend", "recall")),
        "unchanged": eq(action, lit("unchanged")),
        "reopened": one_of(action, ("reopen", "revive")),
        "deleted": eq(action, lit("delete")),
        "buried": eq(action, lit("bury")),
        "approved": eq(note, lit("approved")),
        "open": eq(note, lit("open")),
        "silenced": eq(note, lit("silenced")),
        "missing": eq(note, lit("missing")),
        "seen": eq(note, lit("seen")),
        "alive": col(ALIVE),
        "null_keys": col(NULL_KEY),
        "came": col(CAME),
        "met": is_true(col(FOUND)),
        "present": is_true(col(SEEN)),
    }
    return {name: count_where(condition) for name, condition in counted.items()}


def _unapproved() -> exp.Expr:
    return exp.NEQ(
        this=exp.Coalesce(this=col(NOTE), expressions=[lit("")]), expression=lit("approved")
    )


def counts_of(measured: Mapping[str, Any], keeping: Keeping, *, applied: bool) -> Counts:
    """How many rows each verb touches under a verdict."""
    m = measured
    if applied:
        buried = 0 if keeping.hard else m["buried"]
        return Counts(
            m["inserted"] + buried,
            m["updated"],
            m["deleted"],
            m["unchanged"],
            m["reopened"],
            m["open"],
        )
    return Counts(
        inserted=m["inserted"] + m["buried"],
        updated=m["updated"],
        deleted=m["approved"],
        unchanged=m["unchanged"],
        reopened=m["reopened"],
        held=m["open"],
    )


_VERB = "_strandline_verb"


def additions(decided: Relation, q: Question, *, applied: bool) -> exp.Select:
    """The rows to write, each with its verb and its system columns."""
    verb: exp.Expr = col(ACTION)
    if not applied:
        doubtful = all_of([one_of(col(ACTION), ("delete", "bury")), _unapproved()])
        verb = case((doubtful, col(ELSE)), default=verb)
    dropped = ("unchanged", "stay", *(("bury",) if q.keeping.hard else ()))
    values = [col(c.name) for c in q.fit.columns]
    hashed = [col(q.keeping.roles["row_hash"])] if "row_hash" in q.keeping.roles else []
    spoken = select(*values, *hashed, *map(col, (VERSION, GONE)), named(verb, _VERB)).from_(
        table(decided.name)
    )
    rows = _versions(spoken) if q.keeping.history else spoken
    system = [named(_system(q, role), name) for role, name in q.keeping.roles.items()]
    shown = case(*_shown(q), default=col(_VERB))
    outer = select(*(v.copy() for v in values), *system, named(shown, ACTION)).from_(
        rows.subquery("v")
    )
    return outer.where(negate(one_of(col(_VERB), dropped)))


def _shown(q: Question) -> list[tuple[exp.Expr, exp.Expr]]:
    """The verbs that the table is told: what is decided in many ways is written in few."""
    found = [
        (eq(col(_VERB), lit("bury")), lit("insert")),
        (one_of(col(_VERB), ("amend", "recall")), lit("update")),
    ]
    if q.sequence is not None:  # a delete that was announced also writes when that was
        found.append((all_of([eq(col(_VERB), lit("delete")), col(GONE)]), lit("update")))
    return found


def _versions(spoken: exp.Select) -> exp.Select:
    """A changed row of a history is two: the version that ends and the one that begins."""
    part = "_strandline_part"
    two = exp.union(select(named(lit(0), part)), select(named(lit(1), part)), distinct=False)
    ends = all_of([eq(col(_VERB, "x"), lit("update")), eq(col(part, "p"), lit(1))])
    columns = [e.alias_or_name for e in spoken.expressions if e.alias_or_name != _VERB]
    verb = named(case((ends, lit("close")), default=col(_VERB, "x")), _VERB)
    doubled = select(*(named(col(c, "x"), c) for c in columns), verb).from_(spoken.subquery("x"))
    doubled = doubled.join(two.subquery("p"), join_type="cross")
    return doubled.where(any_of([eq(col(part, "p"), lit(0)), eq(col(_VERB, "x"), lit("update"))]))


def _system(q: Question, role: str) -> exp.Expr:
    """What a system column holds in a row to write."""
    at, ends = lit(q.keeping.at), one_of(col(_VERB), ("close", "delete", "bury"))
    match role:
        case "row_hash":
            return col(q.keeping.roles["row_hash"])
        case "deleted":
            return one_of(col(_VERB), ("delete", "bury", "recall"))
        case "is_current":
            return negate(ends)
        case "valid_from":
            return case(
                (one_of(col(_VERB), ("close", "delete", "amend")), col(VERSION)), default=at
            )
        case "valid_to":
            return case((ends, at), default=cast(lit(q.keeping.open_end), "timestamp"))
    return at


def proposal(q: Question, partition_by: tuple[str, ...]) -> Proposal:
    """The shape of the change set to come; its rows are the decisions."""
    columns = q.fit.columns.plus(*q.keeping.columns)
    locator = tuple(c.name for c in q.keys)
    if q.keeping.history:
        locator += (q.keeping.roles["valid_from"],)
    lazy = q.target is None and (q.absence is None or not q.absence.live)
    roles = dict(q.keeping.roles)
    return Proposal(
        decide(q),
        columns,
        Removals.REPLACED,
        locator,
        partition_by,
        roles,
        q.keeping.hard,
        lazy=lazy,
    )


def all_versions(gone: Relation, q: Question) -> exp.Select:
    """For a hard delete in a history: every version of the keys that go, as rows to delete."""
    target = q.target
    assert target is not None
    there = {c.fold for c in target.schema}
    columns = [*q.fit.columns, *q.keeping.columns]
    values = [
        named(col(c.name, OUTER) if c.fold in there else cast(exp.null(), c.type), c.name)
        for c in columns
    ]
    hit = select(lit(1)).from_(table(gone.name, "g"))
    hit = hit.where(
        all_of(
            [
                *(same(col(c.name, "g"), col(c.name, OUTER)) for c in q.keys),
                eq(col(ACTION, "g"), lit("delete")),
            ]
        )
    )
    rows = select(*values, named(lit("delete"), ACTION)).from_(table(target.name, OUTER))
    return rows.where(exp.Exists(this=hit))
