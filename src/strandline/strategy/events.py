"""The events of a history in business time: what a slice says of its keys, each thing once, and what is known besides.

A history with `effective_at` is a function of the set of its events, so every distinct event is kept in a table of its
own. Here a slice becomes events, events that are there already are left out, and what a run found out by itself (a key
is gone, a deleted key is there again) becomes events at batch time. `fold` makes versions of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlglot import exp

from strandline.sql.expr import (
    OUTER,
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
    ordered,
    over,
    same,
    select,
    table,
)
from strandline.sql.hash import hashable, row_hash
from strandline.sql.portable import family
from strandline.strategy.changes import ACTION, METADATA, is_true
from strandline.strategy.question import ELSE, GONE, IN, NOTE, SEEN, WAS
from strandline.types import Column, Relation, Schema

ROLES = {"instant": "_instant", "kind": "_kind", "batch_id": "_batch_id", "row_hash": "_row_hash"}
"""What the table of events keeps besides the slice's columns."""
INSTANT, KIND, BATCH, HASH = ROLES.values()
SYSTEM = (
    Column(INSTANT, "timestamp"),
    Column(KIND, "string"),
    Column(BATCH, "bigint"),
    Column(HASH, "bigint"),
)
UPSERT, DELETE = "upsert", "delete"
TIMES = ("timestamp", "timestamp_ntz", "date")
_RANK, _FRESH, _WORD = "_strandline_rank", "_strandline_fresh", "_strandline_word"
_UP, _DOWN, _MISSED = "_strandline_up", "_strandline_down", "_strandline_missed"


@dataclass(frozen=True)
class Course:
    """What a history is told: its columns, when a row is true, which of two rows counts, and what opens a version."""

    keys: tuple[str, ...]
    columns: Schema  # of the events, what strandline keeps aside
    effective_at: str
    at: datetime
    batch: int
    tracked: tuple[str, ...]
    sequence_by: str | None = None
    hard: bool = False
    open_end: datetime | None = None

    @property
    def told(self) -> list[Column]:
        """The columns that tell two events apart: not where a row came from."""
        return [c for c in self.columns if c.fold not in METADATA]


def slice_events(
    rows: Relation, course: Course, gone: exp.Expr | None, *, ignore: bool
) -> exp.Select:
    """The rows of a slice as events; `gone` is the condition by which a row announces a delete."""
    kind = (
        case((is_true(gone), lit(DELETE)), default=lit(UPSERT)) if gone is not None else lit(UPSERT)
    )
    when = rows.schema.get(course.effective_at)
    assert when is not None
    values = [
        named(
            cast(col(come.name) if (come := rows.schema.get(c.name)) else exp.null(), c.type),
            c.name,
        )
        for c in course.columns
    ]
    tree = select(*values, named(cast(col(when.name), "timestamp"), INSTANT), named(kind, KIND))
    tree = tree.from_(table(rows.name))
    return tree.where(negate(is_true(gone.copy()))) if ignore and gone is not None else tree


def filled(come: exp.Query, stored: Relation, course: Course, kept: Sequence[str]) -> exp.Select:
    """Events of a slice that lacks columns which older ones had: there they take what held until then."""
    names = [*course.columns.names, INSTANT, KIND]
    number = named(over(exp.RowNumber(), [], [ordered(col(INSTANT))]), _RANK)
    numbered = select(*map(col, names), number).from_(come.subquery("c"))
    known = (
        select(*values_of(stored, course))
        .from_(table(stored.name, OUTER))
        .where(eq(col(KIND, OUTER), lit(UPSERT)))
    )
    until = exp.LTE(this=col(INSTANT, "o"), expression=col(INSTANT, "n"))
    on = all_of([*(same(col(k, "n"), col(k, "o")) for k in course.keys), until])
    lacks = {k.casefold() for k in kept}
    values = [named(col(n, "o" if n.casefold() in lacks else "n"), n) for n in names]
    order = [exp.Ordered(this=col(INSTANT, "o"), desc=True, nulls_first=False)]
    order += [exp.Ordered(**{**t.args, "this": _of(t.this, "o")}) for t in weight(course)]
    newest_ = exp.Window(
        this=exp.RowNumber(), partition_by=[col(_RANK, "n")], order=exp.Order(expressions=order)
    )
    joined = select(*values, named(newest_, _FRESH)).from_(numbered.subquery("n"))
    joined = joined.join(known.subquery("o"), on=on, join_type="left")
    return select(*map(col, names)).from_(joined.subquery("j")).where(eq(col(_FRESH), lit(1)))


def _of(tree: exp.Expr, alias: str) -> exp.Expr:
    """An expression over the columns of one side of a join."""
    return tree.transform(
        lambda node: col(node.name, alias) if isinstance(node, exp.Column) else node
    )


def fresh(come: exp.Query, stored: Relation | None, course: Course) -> exp.Select:
    """The events that are not there yet, each once, with the batch that brings them."""
    names = course.columns.names
    hashed = select(*map(col, names), col(INSTANT), col(KIND), named(row_hash(course.told), HASH))
    hashed = hashed.from_(come.subquery("c"))
    apart = [c.name for c in course.told if not hashable(c) and family(c.type) != "map"]
    metadata = [ordered(col(c.name)) for c in course.columns if c.fold in METADATA]
    copy = over(
        exp.RowNumber(),
        [*course.keys, INSTANT, KIND, HASH, *apart],
        metadata or [ordered(col(HASH))],
    )
    ranked = select(*map(col, names), col(INSTANT), col(KIND), col(HASH), named(copy, _RANK))
    ranked = ranked.from_(hashed.subquery("h"))
    batch = named(cast(lit(course.batch), "bigint"), BATCH)
    tree = select(
        *(named(col(n, OUTER), n) for n in (*names, INSTANT, KIND)),
        batch,
        named(col(HASH, OUTER), HASH),
    )
    tree = tree.from_(ranked.subquery(OUTER)).where(eq(col(_RANK, OUTER), lit(1)))
    if stored is None:
        return tree
    there = [same(col(k, OUTER), col(k, "s")) for k in course.keys]
    there += [eq(col(n, OUTER), col(n, "s")) for n in (INSTANT, KIND, HASH)]
    there += [
        same(col(n, OUTER), col(n, "s")) if n in stored.schema else is_null(col(n, OUTER))
        for n in apart
    ]
    have = select(lit(1)).from_(table(stored.name, "s")).where(all_of(there))
    return tree.where(exp.Not(this=exp.Exists(this=have)))


def weight(course: Course) -> list[exp.Ordered]:
    """Which of two events of one key and instant counts: the first in this order."""
    sequence = [ordered(col(course.sequence_by), desc=True)] if course.sequence_by else []
    if sequence:  # which a delete that a run found out does not have
        sequence.insert(0, ordered(case((_found_out(course), lit(0)), default=lit(1))))
    values = [ordered(col(c.name), desc=True) for c in course.told if family(c.type) != "map"]
    zeros = [
        ordered(cast(col(c.name), "string"), desc=True)
        for c in course.told
        if family(c.type) == "float"
    ]
    return [*sequence, ordered(col(KIND)), *values, *zeros]  # `delete` stands before `upsert`


def _found_out(course: Course) -> exp.Expr:
    """Is this a delete that a run found by itself? No row says so, and none says when."""
    return is_null(col(course.effective_at))


def newest(come: Relation, course: Course) -> exp.Select:
    """The keys of a slice, each once, and whether the newest that it says of them is a delete."""
    order = [ordered(col(INSTANT), desc=True), *weight(course)]
    ranked = select(
        *map(col, course.keys), col(KIND), named(over(exp.RowNumber(), course.keys, order), _RANK)
    )
    gone = named(eq(col(KIND), lit(DELETE)), GONE)
    tree = select(*map(col, course.keys), gone).from_(ranked.from_(table(come.name)).subquery("r"))
    return tree.where(eq(col(_RANK), lit(1)))


def of_keys(
    events: Relation, keys: Relation, course: Course, columns: Sequence[exp.Expr]
) -> exp.Select:
    """The events of certain keys; columns that came later than the table are NULL in it."""
    have = select(lit(1)).from_(table(keys.name, "k"))
    have = have.where(all_of(same(col(k, "k"), col(k, OUTER)) for k in course.keys))
    return select(*columns).from_(table(events.name, OUTER)).where(exp.Exists(this=have))


def values_of(events: Relation, course: Course) -> list[exp.Expr]:
    """The columns of events, from a table that may not have the newest of them yet."""
    values = [
        named(cast(col(c.name, OUTER) if c.name in events.schema else exp.null(), c.type), c.name)
        for c in (*course.columns, SYSTEM[0], SYSTEM[1])
    ]
    return list(values)


# --- what a run finds out by itself ------------------------------------------------------------------------


def words(decided: Relation, course: Course, *, applied: bool) -> exp.Select:
    """What evidence says of keys whose history it may contradict: gone, or there."""
    approved = eq(col(NOTE), lit("approved"))
    verb = col(ACTION) if applied else case((is_true(approved), col(ACTION)), default=col(ELSE))
    gone = one_of(verb, ("delete", "bury"))
    # the live source does not have it, and news of it came in: it was dead before and stays so
    still = all_of(
        [
            col(WAS),
            is_true(col(IN)),
            negate(is_true(col(SEEN))),
            negate(col(GONE)),
            eq(col(ACTION), lit("stay")),
        ]
    )
    back = all_of([is_true(col(SEEN)), any_of([col(WAS), one_of(col(ACTION), ("insert",))])])
    word = case(
        (any_of([gone, still]), lit(DELETE)),
        (back, lit(UPSERT)),
        default=cast(exp.null(), "string"),
    )
    told = select(*map(col, course.keys), named(word, _WORD)).from_(table(decided.name))
    return (
        select(*map(col, course.keys), col(_WORD))
        .from_(told.subquery("d"))
        .where(negate(is_null(col(_WORD))))
    )


def found(said: Relation, come: Relation, stored: Relation | None, course: Course) -> exp.Select:
    """Events at batch time for what evidence says and the events do not: a living key is gone, a dead one is there."""
    known: exp.Query = of_keys(
        come, said, course, [*values_of(come, course), named(exp.true(), _FRESH)]
    )
    if stored is not None:
        old = of_keys(
            stored, said, course, [*values_of(stored, course), named(exp.false(), _FRESH)]
        )
        known = exp.union(known, old, distinct=False)
    state = known_state(known, course)
    on = all_of(same(col(k, "w"), col(k, "l")) for k in course.keys)
    both = table(said.name, "w")
    alive = any_of(
        [is_null(col(_DOWN, "l")), exp.GT(this=col(_UP, "l"), expression=col(_DOWN, "l"))]
    )
    goes = all_of([eq(col(_WORD, "w"), lit(DELETE)), negate(is_null(col(_UP, "l"))), alive])
    dead = any_of([is_null(col(_UP, "l")), exp.GTE(this=col(_DOWN, "l"), expression=col(_UP, "l"))])
    # a delete that is announced for later may well be seen until then; one that was found by its absence is refuted
    past = exp.LT(this=col(_DOWN, "l"), expression=lit(course.at))
    refuted = any_of([past, is_true(eq(col(_MISSED, "l"), col(_DOWN, "l")))])
    comes = all_of(
        [eq(col(_WORD, "w"), lit(UPSERT)), eq(col(KIND, "l"), lit(UPSERT)), refuted, dead]
    )
    keys = {k.casefold() for k in course.keys}
    values = [
        named(
            col(c.name, "l")
            if c.fold in keys
            else case((comes.copy(), col(c.name, "l")), default=exp.null()),
            c.name,
        )
        for c in course.columns
    ]
    # a version that begins only later is over before it begins, and comes back right after that
    instant = case(
        (goes.copy(), _at_least(course, col(_UP, "l"))),
        default=_at_least(course, _next(col(_DOWN, "l"))),
    )
    tree = select(*values, named(instant, INSTANT), named(col(_WORD, "w"), KIND)).from_(both)
    return tree.join(state.subquery("l"), on=on).where(any_of([goes, comes]))


def _at_least(course: Course, other: exp.Expr) -> exp.Expr:
    """Batch time, or a later instant."""
    return exp.Greatest(
        this=lit(course.at), expressions=[exp.Coalesce(this=other, expressions=[lit(course.at)])]
    )


def _next(instant: exp.Expr) -> exp.Expr:
    """The instant after this one."""
    return exp.Add(
        this=instant,
        expression=exp.Interval(this=exp.Literal.string("1"), unit=exp.var("MICROSECOND")),
    )


def known_state(known: exp.Query, course: Course) -> exp.Select:
    """Per key the last upsert and the last delete, and the values to come back with: of this slice, else the last."""
    names = [*course.columns.names, KIND]
    down = eq(col(KIND), lit(DELETE))
    which = {
        _UP: eq(col(KIND), lit(UPSERT)),
        _DOWN: down,
        _MISSED: all_of([down.copy(), _found_out(course)]),
    }
    last = {
        name: over(exp.Max(this=case((condition, col(INSTANT)), default=exp.null())), course.keys)
        for name, condition in which.items()
    }
    order = [
        ordered(col(KIND), desc=True),
        ordered(col(_FRESH), desc=True),
        ordered(col(INSTANT), desc=True),
    ]
    rank = over(exp.RowNumber(), course.keys, [*order, *weight(course)])
    facts = [named(tree, name) for name, tree in last.items()]
    ranked = select(*map(col, names), *facts, named(rank, _RANK)).from_(known.subquery("e"))
    return (
        select(*map(col, (*names, *which)))
        .from_(ranked.subquery("r"))
        .where(eq(col(_RANK), lit(1)))
    )
