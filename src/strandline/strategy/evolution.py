"""Schema changes as values: what a table gets before or with the rows of a batch. Nothing is ever dropped.

A table format says what it can do in `Limits`; nothing here knows which format that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strandline.sql.portable import family
from strandline.types import Column


@dataclass(frozen=True)
class AddColumn:
    """A new column at the end, NULL in the rows that are there; `role` says what strandline keeps in it."""

    column: Column
    role: str | None = None

    @property
    def told(self) -> str:
        return f"adds column `{self.column.name}` ({self.column.type})"

    @property
    def gets(self) -> str:
        """The type that comes into the table."""
        return self.column.type


@dataclass(frozen=True)
class AddField:
    """A new field inside a struct, NULL in the rows that are there."""

    path: str
    type: str

    @property
    def told(self) -> str:
        return f"adds field `{self.path}` ({self.type})"

    @property
    def gets(self) -> str:
        """The type that comes into the table."""
        return self.type


@dataclass(frozen=True)
class Widen:
    """A column, or a field inside one, in a type that holds every value it held."""

    path: str
    old: str
    new: str

    @property
    def told(self) -> str:
        return f"widens `{self.path}` from {self.old} to {self.new}"

    @property
    def gets(self) -> str:
        """The type that comes into the table."""
        return self.new

    @property
    def changes_text(self) -> bool:
        """Tell whether a value has another text in the row hash than before."""
        return family(self.old) != family(self.new)


@dataclass(frozen=True)
class Relax:
    """A column that is no longer NOT NULL."""

    name: str

    @property
    def told(self) -> str:
        return f"lets `{self.name}` be NULL"

    @property
    def gets(self) -> str:
        """No type comes into the table."""
        return ""


@dataclass(frozen=True)
class Fill:
    """A new flag is false in the rows that are there."""

    name: str

    @property
    def told(self) -> str:
        return f"sets `{self.name}` to false in the rows that are there"

    @property
    def gets(self) -> str:
        """No type comes into the table."""
        return ""


SchemaChange = AddColumn | AddField | Widen | Relax | Fill


@dataclass(frozen=True)
class Limits:
    """What a table format can hold and change."""

    title: str  # what people call the format
    forbidden: frozenset[str]  # signs that no column name may hold
    types: frozenset[str]  # the types that it stores, apart from nested ones
    widenings: frozenset[str]  # how a column may become wider: see `strategy.widening`
    carried: frozenset[type]  # changes that a commit of any rows carries
    appended: frozenset[type]  # changes that a commit carries that only adds rows


def rewrites(changes: Sequence[SchemaChange], limits: Limits, *, adds_only: bool) -> bool:
    """Tell whether the table must be written anew for these changes to come in the commit of its rows."""
    free = limits.carried | (limits.appended if adds_only else frozenset())
    return any(type(change) not in free for change in changes)


def new_names(changes: Sequence[SchemaChange]) -> list[str]:
    """The names of the columns that are added."""
    return [c.column.name for c in changes if isinstance(c, AddColumn)]


_KINDS: dict[str, type[AddColumn | AddField | Widen | Relax | Fill]] = {
    "add_column": AddColumn,
    "add_field": AddField,
    "widen": Widen,
    "relax": Relax,
    "fill": Fill,
}


def change_to_json(change: SchemaChange) -> dict[str, Any]:
    """A change as plain values, for `--json` and plan files."""
    kind = next(k for k, c in _KINDS.items() if isinstance(change, c))
    if isinstance(change, AddColumn):
        told = {"column": change.column.name, "type": change.column.type, "role": change.role}
        return {"change": kind, **told}
    return {"change": kind, **vars(change)}


def change_from_json(given: dict[str, Any]) -> SchemaChange:
    """A change read back from plain values."""
    values = dict(given)
    kind = _KINDS[values.pop("change")]
    if kind is AddColumn:
        return AddColumn(Column(values["column"], values["type"]), values["role"])
    return kind(**values)
