"""upsert and scd2: compare a slice with a table by its keys, and say of every row what becomes of it.

One query joins slice, table, evidence of absence and open notes, and gives each row two verbs: what happens to it when
deletes are applied (`_action`) and when they are not (`_else`). It is evaluated once; then the verdict is known, and
`additions` turns decisions into the rows to write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlglot import exp

from strandline.errors import UnknownColumn
from strandline.schema.diff import Fit
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
    ordered,
    over,
    same,
    select,
    table,
)
from strandline.sql.hash import hashable, key_hash, row_hash
from strandline.sql.matching import match_columns, same_match
from strandline.sql.portable import fault
from strandline.strategy.absence import Absence, seen_keys
from strandline.strategy.changes import ACTION, METADATA, is_true
from strandline.types import Column, Relation, Schema

ELSE, NOTE, STREAK = "_strandline_else", "_strandline_note", "_strandline_streak"
IN, _FOUND, SEEN, _COPIES = "_strandline_in", "_strandline_found", "_strandline_seen", "_strandline_copies"
_OLD, _STATE, ALIVE, NULL_KEY = "_strandline_old_", "_strandline_state", "_strandline_alive", "_strandline_null_key"
VERSION, WAS, _PLAIN = "_strandline_version", "_strandline_was", "_strandline_plain"
CAME = "_strandline_came"
GONE = "_strandline_gone"
_TYPES = {"row_hash": "bigint", "deleted": "boolean", "is_current": "boolean"}  # of the others: timestamp


@dataclass(frozen=True)
class Keeping:
    """What a keyed table keeps: its keys, its system columns by role, and the instant this batch writes there."""

    keys: tuple[str, ...]
    roles: Mapping[str, str]
    at: datetime
    hard: bool = False
    track: tuple[str, ...] = ()  # of a history: the columns whose changes open a version; () is all of them
    open_end: datetime | None = None  # of a history: the end of a version that has none

    @property
    def history(self) -> bool:
        return "valid_from" in self.roles

    @property
    def columns(self) -> list[Column]:
        return [Column(name, _TYPES.get(role, "timestamp")) for role, name in self.roles.items()]


@dataclass(frozen=True)
class Question:
    """Everything that is compared."""

    rows: Relation
    target: Relation | None
    fit: Fit
    keeping: Keeping
    absence: Absence | None = None
    condition: exp.Expr | None = None
    unique: bool = False
    stored: Mapping[str, str] = field(default_factory=dict)  # the roles that the table has already
    gone: str | None = None  # a boolean column of the rows, and of no table: this row announces a delete
    sequence: str | None = None  # a column of the rows and the table that says which of two rows is newer
    woven: bool = False  # what is announced is an event of a history already: nothing is to be decided about it

    def spelled(self, name: str) -> Column:
        found = self.fit.columns.get(name)
        if found is None:
            raise UnknownColumn(name, self.fit.columns.names, where="keys")
        return found

    @property
    def keys(self) -> list[Column]:
        return [self.spelled(k) for k in self.keeping.keys]

    @property
    def whole(self) -> bool:
        """Must rows that only the table has come along with all their values?"""
        return self.keeping.history and self.absence is not None and self.absence.live


def decide(q: Question) -> exp.Select:
    """Every row of the slice, and with evidence every row of the table, with its verbs."""
    values = [col(c.name) for c in q.fit.columns]
    hashed = [named(_hash(q), q.keeping.roles["row_hash"])] if "row_hash" in q.keeping.roles else []
    facts = [IN, _FOUND, SEEN, _COPIES, GONE, *([STREAK, _STATE + "_note", _STATE + "_run"] if _notes(q) else [])]
    old = [col(_OLD + c.name) for c in (q.target.schema if q.target else ())]
    hashed_rows = select(*values, *hashed, *map(col, facts), *old).from_(_joined(q).subquery("j"))
    kept = [*values, *(col(h.alias) for h in hashed)]
    extra = [named(_old(q, "valid_from", "timestamp"), VERSION), named(_was(q), WAS)]
    streak = named(col(STREAK) if _notes(q) else lit(0), STREAK)
    verbs = [named(_plain(q), _PLAIN), named(_state(q), _STATE), *_measured(q), *map(col, (GONE, IN, SEEN))]
    judged = select(*kept, *extra, streak, *verbs).from_(hashed_rows.subquery("h"))
    told = [named(_otherwise(), ELSE), named(_action(), ACTION), named(_note(), NOTE)]
    facts = [VERSION, WAS, STREAK, ALIVE, NULL_KEY, CAME, GONE, IN, SEEN]
    return select(*kept, *map(col, facts), *told).from_(judged.subquery("d"))


# --- joining -----------------------------------------------------------------------------------------------


def _notes(q: Question) -> bool:
    return q.absence is not None and q.absence.notes is not None


def _joined(q: Question) -> exp.Select:
    """Slice, table, evidence and notes side by side; with evidence also the rows that only the table has."""
    keys = {c.fold for c in q.keys}
    both = q.absence is not None and q.target is not None and not q.absence.announced
    values = [named(_value(q, c, key=c.fold in keys, both=both), c.name) for c in q.fit.columns]
    found = col(_FOUND, "t") if q.target else cast(exp.null(), "boolean")
    old = [named(col(c.name, "t"), _OLD + c.name) for c in (q.target.schema if q.target else ())]
    gone = is_true(col(q.gone, "s")) if q.gone else exp.false()
    facts = [named(col(IN, "s"), IN), named(found, _FOUND), named(_seen(q), SEEN), named(col(_COPIES, "s"), _COPIES)]
    facts.append(named(gone, GONE))
    if _notes(q):
        facts += [named(col(n, "n"), a) for n, a in (("streak", STREAK), ("state", _STATE + "_note"))]
        facts.append(named(col("run_id", "n"), _STATE + "_run"))
    tree = select(*values, *facts, *old).from_(_slice(q).subquery("s"))
    if q.target is not None:
        on = all_of(same_match(i, c.type, "s", "t") for i, c in enumerate(q.keys))
        tree = tree.join(_stored(q).subquery("t"), on=on, join_type="full" if both else "left")
    if q.absence is not None and q.absence.seen is not None:
        tree = tree.join(seen_keys(q.absence, q.keys).subquery("e"), on=_same_key(q, "e"), join_type="left")
    if _notes(q) and q.absence is not None and q.absence.notes is not None:
        hashed = key_hash_of(q.keys, [_key(q, c) for c in q.keys])
        tree = tree.join(table(q.absence.notes.name, "n"), on=eq(hashed, col("key_hash", "n")), join_type="left")
    return tree


def _slice(q: Question) -> exp.Select:
    """The slice with its keys in the table's types, and how often each of them occurs."""
    columns = [col(n) for n in q.rows.schema.names]
    keyed = [m for i, c in enumerate(q.keys) for m in match_columns(i, c.type, cast(col(_their(q, c)), c.type))]
    rows = select(*columns, *keyed).from_(table(q.rows.name))
    copies = lit(1) if q.unique else over(exp.Count(this=exp.Star()), [k.alias for k in keyed])
    names = [*(c.copy() for c in columns), *(col(k.alias) for k in keyed)]
    return select(*names, named(copies, _COPIES), named(exp.true(), IN)).from_(rows.subquery("k"))


def _stored(q: Question) -> exp.Select:
    """The rows to compare with: all of them, or of a history the newest version that is current or deleted."""
    target = q.target
    assert target is not None
    columns = [col(n) for n in target.schema.names]
    keyed = [m for i, c in enumerate(q.keys) for m in match_columns(i, c.type, col(c.name))]
    rows = select(*columns, *keyed, named(exp.true(), _FOUND)).from_(table(target.name))
    if not q.keeping.history:
        return rows
    roles, names = q.keeping.roles, [k.alias for k in keyed]
    newest = over(exp.RowNumber(), names, [ordered(col(roles["valid_from"]), desc=True)])
    ended = any_of([is_true(col(roles["is_current"])), is_true(col(roles["deleted"]))])
    every = [*target.schema.names, *names, _FOUND]
    ranked = select(*map(col, every), named(newest, "_strandline_rank")).from_(rows.where(ended).subquery("k"))
    return select(*map(col, every)).from_(ranked.subquery("r")).where(eq(col("_strandline_rank"), lit(1)))


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
    return all_of([seen, negate(is_true(col(q.gone, "s")))])  # a row that announces a delete shows no presence


def _value(q: Question, c: Column, *, key: bool, both: bool) -> exp.Expr:
    """A column as it would be stored: the slice's value, and the stored one where the slice has no such column."""
    come, target = q.rows.schema.get(c.name), q.target
    if key:
        return _key(q, c)
    there = target is not None and c.name in target.schema
    if come is None:
        return col(c.name, "t") if there else cast(exp.null(), c.type)
    value: exp.Expr = cast(col(come.name, "s"), c.type)
    if there and q.sequence and q.gone and c.name.casefold() != q.sequence.casefold():
        # what a row was stays to be seen when its delete is announced; only when that was is written
        stays = all_of([is_true(col(q.gone, "s")), is_true(col(_FOUND, "t"))])
        value = case((stays, col(c.name, "t")), default=value)
    if both and there and q.whole:
        return case((is_null(col(IN, "s")), col(c.name, "t")), default=value)
    return value


def key_hash_of(columns: Sequence[Column], values: Sequence[exp.Expr] | None = None) -> exp.Expr:
    """The name of a key in the records: a hash over its values, alike on every engine."""
    tree = key_hash(list(columns), where="detect_deletes, keys")
    if values is None:
        return tree
    by_name = {c.name: v for c, v in zip(columns, values, strict=True)}
    return tree.transform(lambda n: by_name[n.name].copy() if isinstance(n, exp.Column) else n)


def _hash(q: Question) -> exp.Expr:
    hashed = row_hash(_compared(q.fit.columns))
    return hashed if q.absence is None or q.whole else case((col(IN), hashed), default=exp.null())


# --- deciding ----------------------------------------------------------------------------------------------


def _old(q: Question, role: str, type_: str) -> exp.Expr:
    """What the table holds in a system column; NULL when it has none yet."""
    name = q.stored.get(role)
    there = q.target is not None and name is not None and name in q.target.schema
    return col(f"{_OLD}{name}") if there else cast(exp.null(), type_)


def _alive(q: Question) -> exp.Expr:
    """Is the stored row alive?"""
    if q.target is None:
        return exp.false()
    if q.keeping.history:
        return all_of([is_true(col(_FOUND)), is_true(_old(q, "is_current", "boolean"))])
    return all_of([is_true(col(_FOUND)), negate(is_true(_old(q, "deleted", "boolean")))])


def _was(q: Question) -> exp.Expr:
    return is_true(_old(q, "deleted", "boolean"))


def _dead(q: Question) -> exp.Expr:
    return all_of([is_true(col(_FOUND)), negate(_alive(q))])


def _plain(q: Question) -> exp.Expr:
    """The verb of a slice's row when no delete is applied."""
    duplicate = (exp.GT(this=col(_COPIES), expression=lit(1)), cast(fault("duplicates"), "string"))
    outside = (is_null(col(IN)), lit("stay"))
    missing = (is_null(col(_FOUND)), lit("insert"))
    branches: list[tuple[exp.Expr, exp.Expr]] = [duplicate, outside, *_announced(q)]
    if q.target is None:
        return case(*branches, default=lit("insert"))
    branches += [missing, *_older(q)]
    absence = q.absence
    if absence is not None and absence.live:  # what the source no longer has is no news of a row that is gone already
        branches.append((all_of([_dead(q), negate(is_true(col(SEEN)))]), lit("stay")))
    if q.keeping.history or absence is not None or q.gone is not None:  # a source that announces deletes shows presence
        branches.append((_dead(q), lit("reopen")))
    branches.append((all_of(_equal(q)), lit("unchanged")))
    if q.keeping.track:  # what is not tracked changes inside the version
        tracked = [c for c in q.fit.columns if c.fold in {t.casefold() for t in q.keeping.track}]
        branches.append((all_of(_unchanged(tracked, q.target)), lit("amend")))
    if q.condition is not None:
        bound = _bind(q.condition, q.fit.columns, q.target)
        branches.append((negate(exp.Coalesce(this=bound, expressions=[exp.false()])), lit("unchanged")))
    return case(*branches, default=lit("update"))


def _announced(q: Question) -> list[tuple[exp.Expr, exp.Expr]]:
    """A row that announces a delete writes nothing by itself; where rows know their order, it is remembered."""
    if q.gone is None:
        return []
    if q.sequence is None:
        return [(col(GONE), lit("stay"))]
    tomb = (all_of([col(GONE), is_null(col(_FOUND))]), lit("bury"))
    if q.target is None:
        return [tomb]
    later = all_of([col(GONE), _dead(q), _compares(q, exp.GT)])
    return [tomb, (later, lit("recall")), (col(GONE), lit("stay"))]


def _older(q: Question) -> list[tuple[exp.Expr, exp.Expr]]:
    """An older row changes nothing; nor does an equal one of a deleted row, unless evidence shows that it is back."""
    if q.sequence is None:
        return []
    older = _compares(q, exp.LT)
    if q.absence is None:
        older = any_of([older, all_of([_dead(q), negate(_compares(q, exp.GT))])])
    return [(older, lit("unchanged"))]


def _compares(q: Question, sign: type[exp.Binary]) -> exp.Expr:
    """Is this row's sequence lower or higher than the stored one? NULL is the lowest."""
    assert q.sequence is not None
    assert q.target is not None
    mine = col(q.spelled(q.sequence).name)
    if q.sequence not in q.target.schema:  # the table has none yet: everything stored is lower
        return negate(is_null(mine)) if sign is exp.GT else exp.false()
    low, high = (mine, col(_OLD + mine.name)) if sign is exp.LT else (col(_OLD + mine.name), mine)
    return any_of(
        [
            all_of([is_null(low), negate(is_null(high.copy()))]),
            exp.Coalesce(this=exp.LT(this=low.copy(), expression=high.copy()), expressions=[exp.false()]),
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
        return [eq(col(q.keeping.roles["row_hash"]), col(_OLD + name)), *_unchanged(changing, target)]
    return _unchanged(changing, target)


def _unchanged(columns: Sequence[Column], target: Relation) -> list[exp.Expr]:
    """A column the table does not have yet is stored as NULL."""
    return [same(col(c.name), col(_OLD + c.name)) if c.name in target.schema else is_null(col(c.name)) for c in columns]


def _compared(columns: Schema) -> list[Column]:
    return [c for c in columns if c.fold not in METADATA]


def _state(q: Question) -> exp.Expr:
    """What absence, or the row itself, says of a delete, before any verdict."""
    a = q.absence
    if a is None:
        return case((all_of([_alive(q), _told(q)]), lit("delete")), default=cast(exp.null(), "string"))
    unseen, note = negate(is_true(col(SEEN))), col(_STATE + "_note")
    # what is announced needs no inference: neither a whole key, nor a window, nor a second time
    told = _told(q)
    inferred = all_of([unseen, _whole_key(q), *([negate(col(GONE))] if q.woven or q.sequence else [])])
    missing = all_of([_alive(q), any_of([told, inferred])])
    candidate = all_of([missing, any_of([told.copy(), _within(a.scope)])])
    branches: list[tuple[exp.Expr, exp.Expr]] = []
    if a.live:
        back = all_of([_dead(q), is_null(col(IN)), is_true(col(SEEN))])
        branches.append((back, lit("reopen" if q.keeping.history else "revive")))
    if _notes(q):
        held = eq(note, lit("hold"))
        alive = all_of([_alive(q), is_true(col(SEEN)), negate(is_null(note))])
        branches.append((alive, lit("seen")))
        if a.approved:
            branches.append((all_of([missing, held, eq(col(_STATE + "_run"), lit(a.approved))]), lit("approved")))
        branches.append((all_of([missing, held]), lit("open")))
        branches.append((all_of([missing, eq(note, lit("reject"))]), lit("silenced")))
    if a.confirm > 1:
        streak = exp.Coalesce(this=col(STREAK), expressions=[lit(0)]) if _notes(q) else lit(0)
        times = exp.Add(this=streak, expression=lit(1)) if a.fresh else streak
        early = all_of([candidate, negate(col(GONE)), exp.LT(this=times, expression=lit(a.confirm))])
        branches.append((early, lit("missing")))
    branches.append((candidate, lit("delete")))
    if a.live and a.confirm == 1:
        branches.append((all_of([is_null(col(_FOUND)), negate(col(GONE)), unseen, _whole_key(q)]), lit("bury")))
    return case(*branches, default=cast(exp.null(), "string"))


def _told(q: Question) -> exp.Expr:
    """Does the row itself say that it is gone, and is that to be decided here? Older news is no news."""
    if q.woven or q.gone is None:
        return exp.false()
    if q.sequence is None or q.target is None:
        return col(GONE)
    return all_of([col(GONE), negate(_compares(q, exp.LT))])


def _whole_key(q: Question) -> exp.Expr:
    """A row whose key holds a NULL is never deleted by inference."""
    return all_of(negate(is_null(col(c.name))) for c in q.keys)


def _within(scope: exp.Expr | None) -> exp.Expr:
    """The user's or the window's limits, over the stored row."""
    if scope is None:
        return exp.true()

    def bind(node: exp.Expr) -> exp.Expr:
        return col(_OLD + node.name) if isinstance(node, exp.Column) else node

    return is_true(exp.Paren(this=scope.copy().transform(bind)))


def _measured(q: Question) -> list[exp.Alias]:
    """Of stored rows: is it one of those that deletes are a share of? Has it a NULL in its key, so that it is never
    found missing? Of rows of the slice: does it show that a key is there?
    """
    a = q.absence
    if a is None or q.target is None:
        return [named(exp.false(), name) for name in (ALIVE, NULL_KEY, CAME)]
    nameless = all_of([_alive(q), _within(a.scope), negate(_whole_key(q))])
    came = all_of([is_true(col(IN)), _whole_key(q)])
    return [named(all_of([_alive(q), _within(a.among)]), ALIVE), named(nameless, NULL_KEY), named(came, CAME)]


_DOOMED = ("delete", "approved", "open", "silenced", "missing")


def _otherwise() -> exp.Expr:
    """What becomes of a row when deletes are not applied: one that may be gone stays as it is."""
    return case((one_of(col(_STATE), _DOOMED), lit("stay")), default=col(_PLAIN))


def _action() -> exp.Expr:
    """What becomes of a row when deletes are applied."""
    removing = (one_of(col(_STATE), ("delete", "approved")), lit("delete"))
    others = (one_of(col(_STATE), ("bury", "revive", "reopen")), col(_STATE))
    return case(removing, others, default=_otherwise())


def _note() -> exp.Expr:
    noted = one_of(col(_STATE), ("seen", "open", "approved", "missing", "silenced"))
    return case((noted, col(_STATE)), default=cast(exp.null(), "string"))


def _bind(condition: exp.Expr, columns: Schema, target: Relation) -> exp.Expr:
    def bind(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column):
            return node
        ours = node.table.casefold() != "target"
        found = columns.get(node.name) or (None if ours else target.schema.get(node.name))
        if found is None:
            raise UnknownColumn(node.name, columns.names, where=f"update_condition, {'source' if ours else 'target'}")
        if ours:
            return col(found.name)
        # a column that this batch brings was NULL until now
        return col(_OLD + found.name) if found.name in target.schema else cast(exp.null(), found.type)

    return exp.Paren(this=condition.copy().transform(bind))
