"""upsert and scd2: compare a slice with a table by its keys, and say of every row what becomes of it.

One query joins slice, table, evidence of absence and open notes, and gives each row two verbs: what happens to it when
deletes are applied (`_action`) and when they are not (`_else`). It is evaluated once; then the verdict is known, and
`additions` turns decisions into the rows to write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlglot import exp

from strandline.errors import UnknownColumn
from strandline.schema.diff import Fit
from strandline.sql.expr import (
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
    one_of,
    ordered,
    over,
    same,
    select,
    table,
)
from strandline.sql.hash import hashable, key_hash, row_hash
from strandline.sql.portable import fault
from strandline.strategy.absence import Absence, seen_keys
from strandline.strategy.changes import ACTION, METADATA, Counts, Proposal, Removals, is_true
from strandline.types import Column, Relation, Schema

ELSE, NOTE, STREAK = "_strandline_else", "_strandline_note", "_strandline_streak"
_IN, _FOUND, _SEEN, _COPIES = "_strandline_in", "_strandline_found", "_strandline_seen", "_strandline_copies"
_OLD, _STATE, _ALIVE, _NULL_KEY = "_strandline_old_", "_strandline_state", "_strandline_alive", "_strandline_null_key"
_VERSION, _WAS, _PLAIN = "_strandline_version", "_strandline_was", "_strandline_plain"
_TYPES = {"row_hash": "bigint", "deleted": "boolean", "is_current": "boolean"}  # of the others: timestamp


@dataclass(frozen=True)
class Keeping:
    """What a keyed table keeps: its keys, its system columns by role, and the instant this batch writes there."""

    keys: tuple[str, ...]
    roles: Mapping[str, str]
    at: datetime
    hard: bool = False

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
    facts = [_IN, _FOUND, _SEEN, _COPIES, *([STREAK, _STATE + "_note", _STATE + "_run"] if _notes(q) else [])]
    old = [col(_OLD + c.name) for c in (q.target.schema if q.target else ())]
    hashed_rows = select(*values, *hashed, *map(col, facts), *old).from_(_joined(q).subquery("j"))
    kept = [*values, *(col(h.alias) for h in hashed)]
    extra = [named(_old(q, "valid_from", "timestamp"), _VERSION), named(_was(q), _WAS)]
    streak = named(col(STREAK) if _notes(q) else lit(0), STREAK)
    verbs = [named(_plain(q), _PLAIN), named(_state(q), _STATE), *_measured(q)]
    judged = select(*kept, *extra, streak, *verbs).from_(hashed_rows.subquery("h"))
    told = [named(_otherwise(), ELSE), named(_action(), ACTION), named(_note(), NOTE)]
    return select(*kept, *map(col, (_VERSION, _WAS, STREAK, _ALIVE, _NULL_KEY)), *told).from_(judged.subquery("d"))


# --- joining -----------------------------------------------------------------------------------------------


def _notes(q: Question) -> bool:
    return q.absence is not None and q.absence.notes is not None


def _joined(q: Question) -> exp.Select:
    """Slice, table, evidence and notes side by side; with evidence also the rows that only the table has."""
    keys = {c.fold for c in q.keys}
    both = q.absence is not None and q.target is not None
    values = [named(_value(q, c, key=c.fold in keys, both=both), c.name) for c in q.fit.columns]
    found = col(_FOUND, "t") if q.target else cast(exp.null(), "boolean")
    old = [named(col(c.name, "t"), _OLD + c.name) for c in (q.target.schema if q.target else ())]
    facts = [named(col(_IN, "s"), _IN), named(found, _FOUND), named(_seen(q), _SEEN), named(col(_COPIES, "s"), _COPIES)]
    if _notes(q):
        facts += [named(col(n, "n"), a) for n, a in (("streak", STREAK), ("state", _STATE + "_note"))]
        facts.append(named(col("run_id", "n"), _STATE + "_run"))
    tree = select(*values, *facts, *old).from_(_slice(q).subquery("s"))
    if q.target is not None:
        # the slice's keys take the table's types before they are compared
        on = all_of(same(cast(col(_their(q, c), "s"), c.type), col(c.name, "t")) for c in q.keys)
        tree = tree.join(_stored(q).subquery("t"), on=on, join_type="full" if both else "left")
    if q.absence is not None and q.absence.seen is not None:
        tree = tree.join(seen_keys(q.absence, q.keys).subquery("e"), on=_same_key(q, "e"), join_type="left")
    if _notes(q) and q.absence is not None and q.absence.notes is not None:
        hashed = key_hash_of(q.keys, [_key(q, c) for c in q.keys])
        tree = tree.join(table(q.absence.notes.name, "n"), on=eq(hashed, col("key_hash", "n")), join_type="left")
    return tree


def _slice(q: Question) -> exp.Select:
    copies = lit(1) if q.unique else over(exp.Count(this=exp.Star()), [_their(q, c) for c in q.keys])
    columns = [col(n) for n in q.rows.schema.names]
    return select(*columns, named(copies, _COPIES), named(exp.true(), _IN)).from_(table(q.rows.name))


def _stored(q: Question) -> exp.Select:
    """The rows to compare with: all of them, or of a history the newest version that is current or deleted."""
    target = q.target
    assert target is not None
    columns = [col(n) for n in target.schema.names]
    rows = select(*columns, named(exp.true(), _FOUND)).from_(table(target.name))
    if not q.keeping.history:
        return rows
    roles = q.keeping.roles
    newest = over(exp.RowNumber(), [c.name for c in q.keys], [ordered(col(roles["valid_from"]), desc=True)])
    ended = any_of([is_true(col(roles["is_current"])), is_true(col(roles["deleted"]))])
    ranked = select(*(c.copy() for c in columns), named(newest, "_strandline_rank"))
    ranked = ranked.from_(table(target.name)).where(ended)
    return rows.from_(ranked.subquery("r")).where(eq(col("_strandline_rank"), lit(1)))


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
    return col("_strandline_there", "e") if q.absence.seen is not None else col(_IN, "s")


def _value(q: Question, c: Column, *, key: bool, both: bool) -> exp.Expr:
    """A column as it would be stored: the slice's value, and the stored one where the slice has no such column."""
    come, target = q.rows.schema.get(c.name), q.target
    if key:
        return _key(q, c)
    there = target is not None and c.name in target.schema
    if come is None:
        return col(c.name, "t") if there else cast(exp.null(), c.type)
    value = cast(col(come.name, "s"), c.type)
    if both and there and q.whole:
        return case((is_null(col(_IN, "s")), col(c.name, "t")), default=value)
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
    return hashed if q.absence is None or q.whole else case((col(_IN), hashed), default=exp.null())


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
    outside = (is_null(col(_IN)), lit("stay"))
    if q.target is None:
        return case(duplicate, outside, default=lit("insert"))
    missing = (is_null(col(_FOUND)), lit("insert"))
    branches: list[tuple[exp.Expr, exp.Expr]] = [duplicate, outside, missing]
    absence = q.absence
    if absence is not None and absence.live:  # what the source no longer has is no news of a row that is gone already
        branches.append((all_of([_dead(q), negate(is_true(col(_SEEN)))]), lit("stay")))
    if q.keeping.history or absence is not None:
        branches.append((_dead(q), lit("reopen")))
    branches.append((all_of(_equal(q)), lit("unchanged")))
    if q.condition is not None:
        bound = _bind(q.condition, q.fit.columns, q.target)
        branches.append((negate(exp.Coalesce(this=bound, expressions=[exp.false()])), lit("unchanged")))
    return case(*branches, default=lit("update"))


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
    """What absence says of a row, before any verdict."""
    a = q.absence
    if a is None:
        return cast(exp.null(), "string")
    unseen, note = negate(is_true(col(_SEEN))), col(_STATE + "_note")
    missing = all_of([_alive(q), unseen, _whole_key(q)])
    candidate = all_of([missing, _within(a.scope)])
    branches: list[tuple[exp.Expr, exp.Expr]] = []
    if a.live:
        back = all_of([_dead(q), is_null(col(_IN)), is_true(col(_SEEN))])
        branches.append((back, lit("reopen" if q.keeping.history else "revive")))
    if _notes(q):
        held = eq(note, lit("hold"))
        alive = all_of([_alive(q), is_true(col(_SEEN)), negate(is_null(note))])
        branches.append((alive, lit("seen")))
        if a.approved:
            branches.append((all_of([missing, held, eq(col(_STATE + "_run"), lit(a.approved))]), lit("approved")))
        branches.append((all_of([missing, held]), lit("open")))
        branches.append((all_of([missing, eq(note, lit("reject"))]), lit("silenced")))
    if a.confirm > 1:
        streak = exp.Coalesce(this=col(STREAK), expressions=[lit(0)]) if _notes(q) else lit(0)
        times = exp.Add(this=streak, expression=lit(1)) if a.fresh else streak
        branches.append((all_of([candidate, exp.LT(this=times, expression=lit(a.confirm))]), lit("missing")))
    branches.append((candidate, lit("delete")))
    if a.live and a.confirm == 1:
        branches.append((all_of([is_null(col(_FOUND)), unseen, _whole_key(q)]), lit("bury")))
    return case(*branches, default=cast(exp.null(), "string"))


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
    found missing?
    """
    a = q.absence
    if a is None or q.target is None:
        return [named(exp.false(), _ALIVE), named(exp.false(), _NULL_KEY)]
    nameless = all_of([_alive(q), _within(a.scope), negate(_whole_key(q))])
    return [named(all_of([_alive(q), _within(a.among)]), _ALIVE), named(nameless, _NULL_KEY)]


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


# --- measuring and writing ---------------------------------------------------------------------------------


def keep() -> exp.Expr:
    """The decided rows that matter later: what is written, and what is noted."""
    idle = one_of(col(ACTION), ("unchanged", "stay"))
    return any_of([negate(idle), one_of(col(NOTE), ("seen", "missing"))])


def decision_measures() -> dict[str, exp.Expr]:
    """What is counted while the decisions are evaluated."""
    action, note = col(ACTION), col(NOTE)
    counted = {
        "inserted": eq(action, lit("insert")),
        "updated": eq(action, lit("update")),
        "unchanged": eq(action, lit("unchanged")),
        "reopened": one_of(action, ("reopen", "revive")),
        "deleted": eq(action, lit("delete")),
        "buried": eq(action, lit("bury")),
        "approved": eq(note, lit("approved")),
        "open": eq(note, lit("open")),
        "silenced": eq(note, lit("silenced")),
        "missing": eq(note, lit("missing")),
        "seen": eq(note, lit("seen")),
        "alive": col(_ALIVE),
        "null_keys": col(_NULL_KEY),
    }
    return {name: count_where(condition) for name, condition in counted.items()}


def _unapproved() -> exp.Expr:
    return exp.NEQ(this=exp.Coalesce(this=col(NOTE), expressions=[lit("")]), expression=lit("approved"))


def counts_of(measured: Mapping[str, Any], keeping: Keeping, *, applied: bool) -> Counts:
    """How many rows each verb touches under a verdict."""
    m = measured
    if applied:
        buried = 0 if keeping.hard else m["buried"]
        return Counts(m["inserted"] + buried, m["updated"], m["deleted"], m["unchanged"], m["reopened"], m["open"])
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
    spoken = select(*values, *hashed, col(_VERSION), col(_WAS), named(verb, _VERB)).from_(table(decided.name))
    rows = _versions(spoken) if q.keeping.history else spoken
    system = [named(_system(q, role), name) for role, name in q.keeping.roles.items()]
    shown = case((eq(col(_VERB), lit("bury")), lit("insert")), default=col(_VERB))
    outer = select(*(v.copy() for v in values), *system, named(shown, ACTION)).from_(rows.subquery("v"))
    return outer.where(negate(one_of(col(_VERB), dropped)))


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
            gone = one_of(col(_VERB), ("delete", "bury"))
            stays = all_of([eq(col(_VERB), lit("update")), col(_WAS)])  # nothing says that it is back
            return any_of([gone, stays]) if not q.keeping.history else gone
        case "is_current":
            return negate(ends)
        case "valid_from":
            return case((one_of(col(_VERB), ("close", "delete")), col(_VERSION)), default=at)
        case "valid_to":
            return case((ends, at), default=cast(exp.null(), "timestamp"))
    return at


def proposal(q: Question, partition_by: tuple[str, ...]) -> Proposal:
    """The shape of the change set to come; its rows are the decisions."""
    columns = q.fit.columns.plus(*q.keeping.columns)
    locator = tuple(c.name for c in q.keys)
    if q.keeping.history:
        locator += (q.keeping.roles["valid_from"],)
    lazy = q.target is None and (q.absence is None or not q.absence.live)
    roles = dict(q.keeping.roles)
    return Proposal(decide(q), columns, Removals.REPLACED, locator, partition_by, roles, q.keeping.hard, lazy)


def all_versions(gone: Relation, q: Question) -> exp.Select:
    """For a hard delete in a history: every version of the keys that go, as rows to delete."""
    target = q.target
    assert target is not None
    there = {c.fold for c in target.schema}
    columns = [*q.fit.columns, *q.keeping.columns]
    values = [named(col(c.name, "t") if c.fold in there else cast(exp.null(), c.type), c.name) for c in columns]
    hit = select(lit(1)).from_(table(gone.name, "g"))
    hit = hit.where(
        all_of([*(eq(col(c.name, "g"), col(c.name, "t")) for c in q.keys), eq(col(ACTION, "g"), lit("delete"))])
    )
    rows = select(*values, named(lit("delete"), ACTION)).from_(table(target.name, "t"))
    return rows.where(exp.Exists(this=hit))
