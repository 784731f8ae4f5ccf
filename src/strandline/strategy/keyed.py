"""upsert and scd2: compare a slice with a table by its keys, and say of every row what becomes of it.

Each row gets two verbs: what happens to it when deletes are applied (`_action`) and when they are not (`_else`). The
query is evaluated once; then the verdict is known, and `decisions.additions` turns verbs into the rows to write.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    one_of,
    same,
    select,
)
from strandline.sql.hash import hashable, row_hash
from strandline.sql.portable import fault
from strandline.strategy.changes import ACTION, METADATA, is_true
from strandline.strategy.joining import joined
from strandline.strategy.question import (
    ABSENT,
    ALIVE,
    CAME,
    COPIES,
    ELSE,
    FOUND,
    GONE,
    IN,
    NOTE,
    NULL_KEY,
    OLD,
    PLAIN,
    SEEN,
    STATE,
    STREAK,
    VERSION,
    WAS,
    Question,
)
from strandline.types import Column, Relation, Schema


def decide(q: Question) -> exp.Select:
    """Every row of the slice, and with evidence every row of the table, with its verbs."""
    values = [col(c.name) for c in q.fit.columns]
    hashed = [named(_hash(q), q.keeping.roles["row_hash"])] if "row_hash" in q.keeping.roles else []
    facts = [
        IN,
        FOUND,
        SEEN,
        COPIES,
        GONE,
        ABSENT,
        *([STREAK, STATE + "_note"] if q.noted else []),
    ]
    old = [col(OLD + c.name) for c in (q.target.schema if q.target else ())]
    hashed_rows = select(*values, *hashed, *map(col, facts), *old).from_(joined(q).subquery("j"))
    kept = [*values, *(col(h.alias) for h in hashed)]
    extra = [named(_old(q, "valid_from", "timestamp"), VERSION), named(_was(q), WAS)]
    streak = named(col(STREAK) if q.noted else lit(0), STREAK)
    verbs = [
        named(_plain(q), PLAIN),
        named(_state(q), STATE),
        *_measured(q),
        *map(col, (GONE, IN, SEEN, FOUND)),
    ]
    judged = select(*kept, *extra, streak, *verbs).from_(hashed_rows.subquery("h"))
    told = [named(_otherwise(), ELSE), named(_action(), ACTION), named(_note(), NOTE)]
    facts = [VERSION, WAS, STREAK, ALIVE, NULL_KEY, CAME, GONE, IN, SEEN, FOUND]
    return select(*kept, *map(col, facts), *told).from_(judged.subquery("d"))


def _hash(q: Question) -> exp.Expr:
    hashed = row_hash(_compared(q.fit.columns))
    return hashed if q.absence is None or q.whole else case((col(IN), hashed), default=exp.null())


# --- verbs -------------------------------------------------------------------------------------------------


def _old(q: Question, role: str, type_: str) -> exp.Expr:
    """What the table holds in a system column; NULL when it has none yet."""
    name = q.stored.get(role)
    there = q.target is not None and name is not None and name in q.target.schema
    return col(f"{OLD}{name}") if there else cast(exp.null(), type_)


def _alive(q: Question) -> exp.Expr:
    """Is the stored row alive?"""
    if q.target is None:
        return exp.false()
    if q.keeping.history:
        return all_of([is_true(col(FOUND)), is_true(_old(q, "is_current", "boolean"))])
    return all_of([is_true(col(FOUND)), negate(is_true(_old(q, "deleted", "boolean")))])


def _was(q: Question) -> exp.Expr:
    return is_true(_old(q, "deleted", "boolean"))


def _dead(q: Question) -> exp.Expr:
    return all_of([is_true(col(FOUND)), negate(_alive(q))])


def _plain(q: Question) -> exp.Expr:
    """The verb of a slice's row when no delete is applied."""
    duplicate = (exp.GT(this=col(COPIES), expression=lit(1)), cast(fault("duplicates"), "string"))
    outside = (is_null(col(IN)), lit("stay"))
    missing = (is_null(col(FOUND)), lit("insert"))
    branches: list[tuple[exp.Expr, exp.Expr]] = [duplicate, outside, *_announced(q)]
    if q.target is None:
        return case(*branches, default=lit("insert"))
    branches += [missing, *_older(q)]
    absence = q.absence
    # what the source no longer has, or had before the delete, says nothing new of a row that is deleted already
    if absence is not None and (absence.live or absence.arrivals):
        branches.append((all_of([_dead(q), negate(is_true(col(SEEN)))]), lit("stay")))
    if (
        q.keeping.history or absence is not None or q.gone is not None
    ):  # a source that announces deletes shows presence
        branches.append((_dead(q), lit("reopen")))
    branches.append((all_of(_equal(q)), lit("unchanged")))
    if q.keeping.track:  # what is not tracked changes inside the version
        tracked = [c for c in q.fit.columns if c.fold in {t.casefold() for t in q.keeping.track}]
        branches.append((all_of(_unchanged(tracked, q.target)), lit("amend")))
    if q.condition is not None:
        bound = _bind(q.condition, q.fit.columns, q.target)
        branches.append(
            (negate(exp.Coalesce(this=bound, expressions=[exp.false()])), lit("unchanged"))
        )
    return case(*branches, default=lit("update"))


def _announced(q: Question) -> list[tuple[exp.Expr, exp.Expr]]:
    """A row that announces a delete writes nothing by itself; where rows know their order, it is remembered."""
    if q.gone is None:
        return []
    if q.sequence is None:
        return [(col(GONE), lit("stay"))]
    absent = (col(ABSENT), lit("stay"))
    tomb = (all_of([col(GONE), is_null(col(FOUND))]), lit("bury"))
    if q.target is None:
        return [absent, tomb]
    later = all_of([col(GONE), _dead(q), _compares(q, exp.GT)])
    return [absent, tomb, (later, lit("recall")), (col(GONE), lit("stay"))]


def _older(q: Question) -> list[tuple[exp.Expr, exp.Expr]]:
    """An older row changes nothing; nor does an equal one of a deleted row, unless evidence shows that it is back.

    Where evidence says who is there, an older row of a deleted key is back too, as it was when it was newest: no row
    said that it is gone. Where nothing looks for deletes, an older row says nothing. Where rows announce their deletes,
    an older row is older than that; a key that was only found missing stays deleted with it, since nothing that is
    stored tells the two apart (docs/decisions/0005-deletes.md).
    """
    if q.sequence is None:
        return []
    older = _compares(q, exp.LT)
    if q.absence is None:
        older = any_of([older, all_of([_dead(q), negate(_compares(q, exp.GT))])])
    present = all_of([older.copy(), _dead(q), is_true(col(SEEN))])
    known = q.absence is not None and not q.absence.arrivals and not q.announces
    back = [(present, lit("revive"))] if known else []
    return [*back, (older, lit("unchanged"))]


def _compares(q: Question, sign: type[exp.Binary]) -> exp.Expr:
    """Is this row's sequence lower or higher than the stored one? NULL is the lowest."""
    assert q.sequence is not None
    assert q.target is not None
    mine = col(q.spelled(q.sequence).name)
    if q.sequence not in q.target.schema:  # the table has none yet: everything stored is lower
        return negate(is_null(mine)) if sign is exp.GT else exp.false()
    low, high = (mine, col(OLD + mine.name)) if sign is exp.LT else (col(OLD + mine.name), mine)
    return any_of(
        [
            all_of([is_null(low), negate(is_null(high.copy()))]),
            exp.Coalesce(
                this=exp.LT(this=low.copy(), expression=high.copy()), expressions=[exp.false()]
            ),
        ]
    )


def _equal(q: Question) -> list[exp.Expr]:
    """NULL-safe equality with what is stored; the row hash stands for all columns that it can hold."""
    carried = {c.fold for c in q.rows.schema} - {c.fold for c in q.keys}
    changing = [c for c in _compared(q.fit.columns) if c.fold in carried]
    target = q.target
    assert target is not None
    name = q.stored.get("row_hash")
    if name and name in target.schema and "row_hash" in q.keeping.roles:
        changing = [c for c in changing if not hashable(c)]
        return [
            eq(col(q.keeping.roles["row_hash"]), col(OLD + name)),
            *_unchanged(changing, target),
        ]
    return _unchanged(changing, target)


def _unchanged(columns: Sequence[Column], target: Relation) -> list[exp.Expr]:
    """A column the table does not have yet is stored as NULL."""
    return [
        same(col(c.name), col(OLD + c.name)) if c.name in target.schema else is_null(col(c.name))
        for c in columns
    ]


def _compared(columns: Schema) -> list[Column]:
    return [c for c in columns if c.fold not in METADATA]


def _state(q: Question) -> exp.Expr:
    """What absence, or the row itself, says of a delete, before any verdict."""
    a = q.absence
    if a is None:
        return case(
            (all_of([_alive(q), _told(q)]), lit("delete")), default=cast(exp.null(), "string")
        )
    unseen, note = negate(is_true(col(SEEN))), col(STATE + "_note")
    # what is announced needs no inference: neither a whole key, nor a window, nor a second time
    told = _told(q)
    inferred = all_of(
        [unseen, _whole_key(q), *([negate(col(GONE))] if q.woven or q.sequence else [])]
    )
    missing = all_of([_alive(q), any_of([told, inferred])])
    candidate = all_of([missing, any_of([told.copy(), _within(a.scope)])])
    branches: list[tuple[exp.Expr, exp.Expr]] = []
    if a.live:
        back = all_of([_dead(q), is_null(col(IN)), is_true(col(SEEN))])
        branches.append((back, lit("reopen" if q.keeping.history else "revive")))
    if q.noted:
        held = eq(note, lit("hold"))
        alive = all_of([_alive(q), is_true(col(SEEN)), negate(is_null(note))])
        branches.append((alive, lit("seen")))
        branches.append((all_of([missing, eq(note, lit("approve"))]), lit("approved")))
        branches.append((all_of([missing, held]), lit("open")))
        branches.append((all_of([missing, eq(note, lit("reject"))]), lit("silenced")))
    if a.confirm > 1:
        streak = exp.Coalesce(this=col(STREAK), expressions=[lit(0)]) if q.noted else lit(0)
        times = exp.Add(this=streak, expression=lit(1)) if a.fresh else streak
        early = all_of(
            [candidate, negate(col(GONE)), exp.LT(this=times, expression=lit(a.confirm))]
        )
        branches.append((early, lit("missing")))
    branches.append((candidate, lit("delete")))
    if a.live and a.confirm == 1:
        branches.append(
            (all_of([is_null(col(FOUND)), negate(col(GONE)), unseen, _whole_key(q)]), lit("bury"))
        )
    return case(*branches, default=cast(exp.null(), "string"))


def _told(q: Question) -> exp.Expr:
    """Does the row or its source say that it is gone, and is that to be decided here? A row's older news is no news."""
    if q.woven or q.gone is None:
        return exp.false()
    if q.sequence is None or q.target is None:
        return col(GONE)
    return all_of([col(GONE), any_of([col(ABSENT), negate(_compares(q, exp.LT))])])


def _whole_key(q: Question) -> exp.Expr:
    """A row whose key holds a NULL is never deleted by inference."""
    return all_of(negate(is_null(col(c.name))) for c in q.keys)


def _within(scope: exp.Expr | None) -> exp.Expr:
    """The user's or the window's limits, over the stored row."""
    if scope is None:
        return exp.true()

    def bind(node: exp.Expr) -> exp.Expr:
        return col(OLD + node.name) if isinstance(node, exp.Column) else node

    return is_true(exp.Paren(this=scope.copy().transform(bind)))


def _measured(q: Question) -> list[exp.Alias]:
    """Of stored rows: is it one of those that deletes are a share of? Has it a NULL in its key, so that it is never
    found missing? Of rows of the slice: does it show that the source is not empty?
    """
    a = q.absence
    if a is None or q.target is None:
        return [named(exp.false(), name) for name in (ALIVE, NULL_KEY, CAME)]
    nameless = all_of([_alive(q), _within(a.scope), negate(_whole_key(q)), negate(_told(q))])
    if a.announced:  # what says itself that it is gone needs no whole key
        nameless = exp.false()
    came = is_true(col(IN)) if a.result else all_of([is_true(col(IN)), _whole_key(q)])
    return [
        named(all_of([_alive(q), _within(a.among)]), ALIVE),
        named(nameless, NULL_KEY),
        named(came, CAME),
    ]


_DOOMED = ("delete", "approved", "open", "silenced", "missing")


def _otherwise() -> exp.Expr:
    """What becomes of a row when deletes are not applied: one that may be gone stays as it is."""
    return case((one_of(col(STATE), _DOOMED), lit("stay")), default=col(PLAIN))


def _action() -> exp.Expr:
    """What becomes of a row when deletes are applied."""
    removing = (one_of(col(STATE), ("delete", "approved")), lit("delete"))
    others = (one_of(col(STATE), ("bury", "revive", "reopen")), col(STATE))
    return case(removing, others, default=_otherwise())


def _note() -> exp.Expr:
    noted = one_of(col(STATE), ("seen", "open", "approved", "missing", "silenced"))
    return case((noted, col(STATE)), default=cast(exp.null(), "string"))


def _bind(condition: exp.Expr, columns: Schema, target: Relation) -> exp.Expr:
    def bind(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column):
            return node
        ours = node.table.casefold() != "target"
        found = columns.get(node.name) or (None if ours else target.schema.get(node.name))
        if found is None:
            raise UnknownColumn(
                node.name,
                columns.names,
                where=f"update_condition, {'source' if ours else 'target'}",
            )
        if ours:
            return col(found.name)
        # a column that this batch brings was NULL until now
        return (
            col(OLD + found.name) if found.name in target.schema else cast(exp.null(), found.type)
        )

    return exp.Paren(this=condition.copy().transform(bind))
