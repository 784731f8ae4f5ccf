"""The question that a keyed table is asked: what is compared, and the names that rows carry while it is answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlglot import exp

from strandline.errors import UnknownColumn
from strandline.sql.hash import key_hash
from strandline.strategy.absence import Absence
from strandline.strategy.fit import Fit
from strandline.types import Column, Relation

ELSE, NOTE, STREAK = "_strandline_else", "_strandline_note", "_strandline_streak"
IN, FOUND, SEEN, COPIES = (
    "_strandline_in",
    "_strandline_found",
    "_strandline_seen",
    "_strandline_copies",
)
OLD, STATE, ALIVE, NULL_KEY = (
    "_strandline_old_",
    "_strandline_state",
    "_strandline_alive",
    "_strandline_null_key",
)
VERSION, WAS, PLAIN = "_strandline_version", "_strandline_was", "_strandline_plain"
CAME = "_strandline_came"
GONE = "_strandline_gone"
ABSENT = "_strandline_absent"  # of a row that is gone: it did not come to say so, the source has it no more
_TYPES = {
    "row_hash": "bigint",
    "deleted": "boolean",
    "is_current": "boolean",
}  # of the others: timestamp


@dataclass(frozen=True)
class Keeping:
    """What a keyed table keeps: its keys, its system columns by role, and the instant this batch writes there."""

    keys: tuple[str, ...]
    roles: Mapping[str, str]
    at: datetime
    hard: bool = False
    track: tuple[
        str, ...
    ] = ()  # of a history: the columns whose changes open a version; () is all of them
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
    gone: str | None = (
        None  # a boolean column of the rows, and of no table: this row announces a delete
    )
    announces: bool = False  # may rows say themselves that they are gone?
    sequence: str | None = (
        None  # a column of the rows and the table that says which of two rows is newer
    )
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
    def both(self) -> bool:
        """Does every row of the table come along, also those that the slice lacks?"""
        return self.target is not None and self.absence is not None and not self.absence.announced

    @property
    def paired(self) -> bool:
        """Can a key that came twice be told afterwards, by a stored row that was met twice, or a new one that comes
        twice? That is cheaper than counting all rows by their keys. A row that announces a delete may be neither.
        """
        return self.both and not self.unique and not self.keeping.history and self.gone is None

    @property
    def whole(self) -> bool:
        """Must rows that only the table has come along with all their values?"""
        return self.keeping.history and self.absence is not None and self.absence.live

    @property
    def noted(self) -> bool:
        """Did earlier runs note something of single keys?"""
        return self.absence is not None and self.absence.notes is not None


def key_hash_of(columns: Sequence[Column], values: Sequence[exp.Expr] | None = None) -> exp.Expr:
    """The name of a key in the records: a hash over its values, alike on every engine."""
    tree = key_hash(list(columns), where="detect_deletes, keys")
    if values is None:
        return tree
    by_name = {c.name: v for c, v in zip(columns, values, strict=True)}
    return tree.transform(lambda n: by_name[n.name].copy() if isinstance(n, exp.Column) else n)
