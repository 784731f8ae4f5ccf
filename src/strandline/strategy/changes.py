"""Change sets: what goes and what comes.

A strategy reads a slice and a target and *proposes*: one query whose rows each carry their verb (`_action`), the
columns to write, and which target rows the additions replace. The run evaluates the proposal once, judges it, and the
engine applies it in one commit. Nothing here has an effect.

Some verbs carry whole rows (insert, update, reopen). Others only touch the system columns of a row that stays as it
is (delete, close, revive): their other columns are not there, and nobody writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from sqlglot import exp

from strandline.sql.expr import (
    OUTER,
    all_of,
    case,
    cast,
    col,
    count_where,
    eq,
    lit,
    named,
    negate,
    one_of,
    same_keys,
    select,
    table,
)
from strandline.sql.expr import (
    same as same_values,
)
from strandline.sql.portable import family
from strandline.strategy.evolution import SchemaChange
from strandline.types import Column, Counts, Relation, Schema

ACTION = "_action"
ROW_HASH = "_row_hash"
METADATA = ("_extracted_at", "_source_file", "_source_connection", "_source_table", "_batch_id")
"""The names of metadata columns. `checks` lets no other column of such a name through, so here the name tells."""
TOUCHING = ("delete", "close", "revive")  # verbs that write system columns only
DROP = "drop"  # the verb of a version that is no more: its row goes, whatever becomes of deletes


class Removals(Enum):
    """Which target rows go."""

    NOTHING = "nothing"
    REPLACED = "replaced"  # those whose locator an addition carries that is not an insert
    EVERYTHING = "everything"


@dataclass(frozen=True)
class Proposal:
    """A change set before it is evaluated."""

    rows: exp.Query
    columns: Schema
    removals: Removals = Removals.NOTHING
    keys: tuple[str, ...] = ()  # the row locator: the keys, or the keys and the version
    partition_by: tuple[str, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    hard: bool = False
    drops: bool = False  # may rows be dropped, whatever becomes of deletes?
    lazy: bool = False  # a first load is evaluated inside its commit: there is a table to make, whatever it holds

    @property
    def keep(self) -> exp.Expr:
        return exp.NEQ(this=col(ACTION), expression=lit("unchanged"))


@dataclass(frozen=True)
class ChangeSet:
    """An evaluated change set: additions with their verbs, and which target rows they replace."""

    additions: Relation
    columns: Schema
    removals: Removals
    keys: tuple[str, ...]
    partition_by: tuple[str, ...]
    roles: Mapping[str, str]
    counts: Counts | None  # None: lazily evaluated, counted by the commit
    ranges: Mapping[str, tuple[Any, Any]] = field(
        default_factory=dict
    )  # where the replaced keys lie
    hard: bool = False
    drops: bool = False
    base: int | None = (
        None  # the only version of the table on which it may be committed; None: on any
    )
    seen: int | None = None  # the version that was looked at; what has come since may make it void
    evolves: tuple[
        SchemaChange, ...
    ] = ()  # what becomes of the table's columns, in the same commit
    rewrites: bool = False  # the same rows anew, in other columns, and what changes among them

    @property
    def system(self) -> tuple[str, ...]:
        return tuple(self.roles.values())

    @property
    def inserts_only(self) -> bool:
        if self.removals is Removals.NOTHING:
            return True
        c = self.counts
        return (
            self.removals is Removals.REPLACED
            and c is not None
            and not (c.updated or c.deleted or c.reopened)
        )

    @property
    def replaces_only(self) -> bool:
        """Has every addition a stored row that it replaces or touches? A history gets new ones with every change."""
        return (
            self.counts is not None
            and not self.counts.inserted
            and not self.drops
            and "valid_from" not in self.roles
        )

    @property
    def removing(self) -> tuple[str, ...]:
        """The verbs whose rows are really removed."""
        return (*((DROP,) if self.drops else ()), *(("delete",) if self.hard else ()))

    @property
    def touched(self) -> list[str]:
        """The columns that a touching verb writes: what strandline keeps, but not what finds or sums up the row."""
        fixed = {"row_hash", "valid_from", "batch_id", "surrogate_key", "durable_key", "skeleton"}
        return [name for role, name in self.roles.items() if role not in fixed]


_VERBS = {
    "inserted": ("insert",),
    "updated": ("update",),
    "deleted": ("delete",),
    "unchanged": ("unchanged",),
}
_RANGED = (
    "integer",
    "date",
    "text",
)  # the kinds of keys whose files a table format can tell apart by their range


def measures() -> dict[str, exp.Expr]:
    """What is counted while a change set is evaluated."""
    return {name: count_where(one_of(col(ACTION), verbs)) for name, verbs in _VERBS.items()}


def range_measures(proposal: Proposal) -> dict[str, exp.Expr]:
    """The lowest and highest key of the rows to replace, where a range of them can be looked up."""
    found: dict[str, exp.Expr] = {}
    for key in proposal.keys if proposal.removals is Removals.REPLACED else ():
        column = proposal.columns.get(key)
        if column and family(column.type) in _RANGED:
            there = one_of(col(ACTION), ("update", "amend", "recall", "reopen", DROP, *TOUCHING))
            replaced = case((there, col(column.name)), default=exp.null())
            found |= {
                f"low {key}": exp.Min(this=replaced),
                f"high {key}": exp.Max(this=replaced.copy()),
            }
            null = exp.and_(there.copy(), exp.Is(this=col(column.name), expression=exp.null()))
            found[f"null {key}"] = count_where(null)
    return found


def key_ranges(measured: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Per key column the range in which rows are replaced; a NULL among them lies in no range."""
    keys = [name.removeprefix("low ") for name in measured if name.startswith("low ")]
    return {
        k: (measured[f"low {k}"], measured[f"high {k}"])
        for k in keys
        if measured[f"low {k}"] is not None and not measured[f"null {k}"]
    }


def after(changes: ChangeSet, target: Relation | None) -> exp.Query:
    """The table as it will be: target − removals + additions, each with its system columns."""
    come = _come(changes)
    if target is None or changes.removals is Removals.EVERYTHING:
        return come
    there = target.schema
    stay = select(
        *(
            named(
                _filled(changes, c, col(c.name, OUTER) if c.name in there else exp.null()), c.name
            )
            for c in changes.columns
        )
    ).from_(table(target.name, OUTER))
    if changes.inserts_only:  # such rows need no verb
        return exp.union(stay, come, distinct=False)
    come = come.where(negate(one_of(col(ACTION), (DROP, *TOUCHING))))
    match = (
        select(lit(1))
        .from_(table(changes.additions.name, "c"))
        .where(same_keys(changes.keys, "c", OUTER))
    )
    stay = stay.where(exp.Not(this=exp.Exists(this=match)))
    return exp.union(
        exp.union(stay, come, distinct=False), _touched_rows(changes, target), distinct=False
    )


def coming(changes: ChangeSet, target: Relation | None) -> exp.Query:
    """The rows that are written where stored rows are not changed in place: those that come, and those touched.

    There is no target when no row is touched.
    """
    come = _come(changes).where(negate(one_of(col(ACTION), (DROP, *TOUCHING))))
    if target is None:
        return come
    return exp.union(come, _touched_rows(changes, target), distinct=False)


def _come(changes: ChangeSet) -> exp.Select:
    """The additions in the table's columns; what they lack is NULL."""
    have = changes.additions.schema
    values = [
        col(c.name) if c.name in have else named(cast(exp.null(), c.type), c.name)
        for c in changes.columns
    ]
    return select(*values).from_(table(changes.additions.name))


def _filled(changes: ChangeSet, column: Column, value: exp.Expr) -> exp.Expr:
    """A stored value in the type of today; a delete flag is false where there was none."""
    stored = cast(value, column.type)
    flag = changes.roles.get("deleted", "").casefold()
    return is_true(stored) if column.fold == flag else stored


def _touched_rows(changes: ChangeSet, target: Relation) -> exp.Select:
    """The rows that stay but for what strandline keeps of them."""
    touched = {name.casefold() for name in changes.touched}
    values = [
        named(
            cast(
                col(c.name, "c")
                if c.fold in touched
                else col(c.name, "t")
                if c.name in target.schema
                else exp.null(),
                c.type,
            ),
            c.name,
        )
        for c in changes.columns
    ]
    verbs = tuple(v for v in TOUCHING if not (changes.hard and v == "delete"))
    on = all_of([same_keys(changes.keys, "c", "t"), one_of(col(ACTION, "c"), verbs)])
    return (
        select(*values)
        .from_(table(target.name, "t"))
        .join(table(changes.additions.name, "c"), on=on)
    )


def match(changes: ChangeSet, stored: str, come: str) -> exp.Expr:
    """Which stored row an addition replaces: by its locator, and by literal bounds that let whole files be skipped."""
    bounds = [
        exp.Between(this=col(key, stored), low=lit(low), high=lit(high))
        for key, (low, high) in changes.ranges.items()
    ]
    # a key that has a range holds no NULL among the rows to replace, and plain equality is the cheaper join
    same = [
        (eq if key in changes.ranges else same_values)(col(key, come), col(key, stored))
        for key in changes.keys
    ]
    # where rows are dropped, others of the same key may come: those replace nothing
    apart = [exp.NEQ(this=col(ACTION, come), expression=lit("insert"))] if changes.drops else []
    return all_of([*apart, *same, *bounds])


def evaluated(
    proposal: Proposal,
    additions: Relation,
    counts: Counts | None,
    ranges: Mapping[str, tuple[Any, Any]] | None = None,
) -> ChangeSet:
    return ChangeSet(
        additions,
        proposal.columns,
        proposal.removals,
        proposal.keys,
        proposal.partition_by,
        proposal.roles,
        counts,
        ranges or {},
        proposal.hard,
        proposal.drops,
    )


def is_true(tree: exp.Expr) -> exp.Expr:
    """A flag that may be NULL, which means no."""
    return exp.Coalesce(this=tree, expressions=[exp.false()])


def living(roles: Mapping[str, str], alias: str | None = None) -> exp.Expr:
    """The rows of a table that are not deleted, by the flag it carries; of a history the current versions."""
    current, deleted = roles.get("is_current"), roles.get("deleted")
    parts = [is_true(col(current, alias))] if current else []
    parts += [negate(is_true(col(deleted, alias)))] if deleted else []
    return all_of(parts) if parts else exp.true()
