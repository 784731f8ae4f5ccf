"""The few values everything speaks in: columns, schemas, relations, tables, slices.

Types are written as Spark SQL writes them (`bigint`, `decimal(10,2)`, `timestamp_ntz`); engines translate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Self

from strandline.errors import TableError


@dataclass(frozen=True)
class Column:
    """A column: its name as written, its type in Spark's words."""

    name: str
    type: str

    @property
    def fold(self) -> str:
        return self.name.casefold()


@dataclass(frozen=True)
class Schema:
    """Columns in order; names compare case-insensitively and may not differ by case alone."""

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, *pairs: tuple[str, str]) -> Schema:
        return cls(tuple(Column(n, t) for n, t in pairs))

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for c in self.columns:
            if c.fold in seen:
                raise TableError(
                    f"two columns differ only in case or not at all: `{seen[c.fold]}` and `{c.name}`",
                    hint="give one of them another name at the source, or with a query: or a rename step",
                )
            seen[c.fold] = c.name

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    @property
    def names(self) -> list[str]:
        return [c.name for c in self.columns]

    def get(self, name: str) -> Column | None:
        fold = name.casefold()
        return next((c for c in self.columns if c.fold == fold), None)

    def without(self, *names: str) -> Schema:
        gone = {n.casefold() for n in names}
        return Schema(tuple(c for c in self.columns if c.fold not in gone))

    def plus(self, *columns: Column) -> Schema:
        return Schema(self.columns + columns)


@dataclass(frozen=True)
class Relation:
    """Rows under a name that the engine knows; trees refer to it by that name."""

    name: str
    schema: Schema


@dataclass(frozen=True)
class Table:
    """A lake table: where it lives. `label` is what people call it, `location` what engines open."""

    label: str
    location: str
    format: str = "delta"


APP = "strandline"
"""The name under which all commits of ours are numbered, in each table by itself."""


@dataclass(frozen=True)
class Token:
    """What a data commit carries: which commit of ours to its table it is, from which source; the rest are labels."""

    project: str
    node: str
    run_id: str
    number: int = 0  # one more than its runner saw there: who looked at the same table has the same
    source: str = ""

    @property
    def app_id(self) -> str:
        return APP

    @property
    def batch_id(self) -> str:
        """The id of the batch, which appended rows carry."""
        return f"{self.run_id}/{self.node}"


_EPOCH = datetime.fromtimestamp(0, UTC)
RESTORED_UNKNOWN = -1
"""The version that a commit restored, where the log does not say which one that was."""


@dataclass(frozen=True)
class Commit:
    """One commit to a table; its record, if it was one of ours."""

    version: int
    record: Mapping[str, Any] = field(default_factory=dict)
    parent: int | None = None  # the version before it; None for the first
    at: datetime = _EPOCH
    operation: str = ""  # in the words of the table format
    restores: int | None = None  # the version that it put back
    replaces: bool = False  # all rows of the table, whatever they were
    moves_rows: bool = True  # or only prepares the table, tidies it up, sets a property
    metrics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        """True for a commit that brought a batch."""
        return "number" in self.record

    @property
    def run_id(self) -> str:
        return str(self.record.get("run_id", ""))

    @property
    def node(self) -> str:
        """The name that its node had."""
        return str(self.record.get("node", ""))

    @property
    def batch_id(self) -> str:
        return f"{self.run_id}/{self.node}"

    @property
    def source(self) -> str:
        """What its rows were read from, as an identity."""
        return str(self.record.get("source", ""))

    @property
    def number(self) -> int:
        """The number of the commit among those of ours to its table."""
        return int(self.record.get("number", 0))


@dataclass(frozen=True)
class TableState:
    """What a table's own log says: the version, the shape, and what a node last committed to it."""

    version: int
    schema: Schema
    partition_by: tuple[str, ...] = ()
    table_id: str = ""
    roles: Mapping[str, str] = field(
        default_factory=dict
    )  # what strandline keeps there: role → column
    commit: Commit | None = None
    feed: bool = False  # does it keep a change feed?
    required: tuple[str, ...] = ()  # the columns that it declares NOT NULL
    metadata: frozenset[str] = (
        frozenset()
    )  # the columns that say where rows came from, marked as such; folded names
    unfilled: bool = False  # has a runner added its delete flag, and not yet made it false in the rows there were?

    @property
    def system(self) -> tuple[str, ...]:
        return tuple(self.roles.values())


@dataclass(frozen=True)
class Evidence:
    """Rows, and what they say of the rows that are not among them."""

    rows: Relation

    def over(self, rows: Relation) -> Self:
        """The same evidence over what steps have made of its rows."""
        return replace(self, rows=rows)


class Snapshot(Evidence):
    """All rows of the source at one moment: what is absent here is absent there."""


@dataclass(frozen=True)
class Window(Evidence):
    """All rows of the source whose watermarks lie in a range: what is absent here is absent from that range."""

    bounds: Mapping[str, tuple[Any, Any]]  # column → lowest and highest value, both included


class LiveKeys(Evidence):
    """The keys the source has at this moment, and nothing but the keys."""


class Changes(Evidence):
    """The rows of the source that changed; those that are gone say so, and what is absent here is as it was."""


class Arrivals(Evidence):
    """The rows of the source that came since the last batch: what they show is there, what is absent is as it was."""


class Increment(Evidence):
    """Some rows of the source; what is absent here may well be there."""


@dataclass(frozen=True)
class Counts:
    """How many rows each verb touched; they add up to what was compared."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0
    reopened: int = 0
    held: int = 0

    @property
    def any(self) -> bool:
        return bool(self.inserted or self.updated or self.deleted or self.reopened)

    @property
    def written(self) -> int:
        return self.inserted + self.updated + self.deleted + self.reopened

    @property
    def shown(self) -> dict[str, int]:
        """The counts that people see, by their names in records and results."""
        return {name: value for name, value in vars(self).items() if name != "unchanged"}

    def plus_written(self, other: Counts) -> Counts:
        """These, and the rows that another batch wrote; what that one held or left alone is its own."""
        return replace(
            self,
            inserted=self.inserted + other.inserted,
            updated=self.updated + other.updated,
            deleted=self.deleted + other.deleted,
            reopened=self.reopened + other.reopened,
        )


@dataclass(frozen=True)
class Clock:
    """The one instant of a run, injected once: every `_extracted_at` and batch time is this."""

    now: datetime
