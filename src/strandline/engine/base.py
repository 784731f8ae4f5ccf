"""What an engine is: six verbs. Everything else is built from them, once, as trees.

A *platform* owns the process-wide part (the Spark session, or nothing) and opens *workspaces*; a workspace is an
`Engine` for one node: its views, settings and staged rows are its own and vanish with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from sqlglot import exp

from strandline.strategy.changes import ChangeSet
from strandline.types import Relation, Schema, Table, Token


@dataclass(frozen=True)
class SqlEndpoint:
    """A database, with its secrets already resolved; never printed, never stored."""

    name: str
    url: Any = field(repr=False)
    jdbc: Callable[[], Any] = field(
        repr=False
    )  # asked by Spark only: not every database has a JDBC form


@dataclass(frozen=True)
class SqlSource:
    """Rows of a database table or query."""

    endpoint: SqlEndpoint
    table: str | None = None
    query: str | None = None
    partition_column: str | None = None
    num_partitions: int | None = None
    columns: tuple[str, ...] | None = None
    where: tuple[exp.Expr, ...] = ()  # hints: what the engine will filter again
    hints: Callable[[Schema], list[exp.Expr]] | None = (
        None  # more of them, once the columns are known
    )
    runs: bool = (
        False  # a single whole-number column may come as runs of consecutive numbers (`key_runs`)
    )

    @property
    def label(self) -> str:
        return f"{self.endpoint.name}: {self.table or 'query'}"


@dataclass(frozen=True)
class FileSource:
    """Rows of files under a folder; `pattern` may hold wildcards."""

    root: Path
    pattern: str
    format: str
    schema: Mapping[str, str] | None = None
    delimiter: str = ","
    header: bool = True
    null_value: str | None = None
    multiline: bool = True
    encoding: str = "utf-8"
    file_column: str | None = None
    since: datetime | None = None  # only files modified at or after it
    only: frozenset[str] | None = None  # and of those only these, by their paths below the root

    @property
    def label(self) -> str:
        return self.pattern


@dataclass(frozen=True)
class LakeSource:
    """Rows of a lake table at one version: those that fulfil `where`, without the `hidden` columns."""

    table: Table
    version: int
    hidden: tuple[str, ...] = ()
    where: exp.Expr | None = None

    @property
    def label(self) -> str:
        return self.table.label


@dataclass(frozen=True)
class FeedSource:
    """What changed in a lake table after one version up to another: the rows of its feed, living ones as `where` says.

    Each row says how it changed (`_change_type`) and when (`_commit_version`). A feed with a gap is never asked for.
    """

    table: Table
    after: int
    version: int
    columns: Schema
    where: exp.Expr | None = None

    @property
    def label(self) -> str:
        return self.table.label


Source = SqlSource | FileSource | LakeSource | FeedSource


@dataclass(frozen=True)
class Scan:
    """A source under a name; `rows_read` answers once something has read it."""

    relation: Relation
    rows_read: Callable[[], int | None]


@dataclass(frozen=True)
class Staged:
    """Rows evaluated exactly once, and what was measured on the way."""

    relation: Relation
    measures: dict[str, Any]


class Engine(Protocol):
    """One workspace of one engine."""

    dialect: str
    merges_columns: frozenset[
        str
    ]  # formats whose MERGE can bring columns, and the table stays the same one

    def scan(self, source: Source) -> Scan:
        """Give a source a name; nothing needs to be read yet."""

    def query(self, tree: exp.Query) -> Relation:
        """Give a query a name; nothing is evaluated yet."""

    def stage(
        self, tree: exp.Query, measures: Mapping[str, exp.Expr], keep: exp.Expr | None
    ) -> Staged:
        """Evaluate a query once: measure all its rows, keep those that fulfil `keep`."""

    def fetch(self, tree: exp.Query) -> list[tuple[Any, ...]]:
        """A small answer, as Python values."""

    def call(self, function: Callable[[Any], Any], rows: Relation) -> Relation:
        """Pass rows through a user's Python function as this engine's own kind of frame."""

    def apply(
        self, table: Table, changes: ChangeSet, token: Token, record: Mapping[str, Any]
    ) -> int:
        """Commit a change set atomically under a token; returns the table's new version."""


class Platform(Protocol):
    """Opens workspaces; closes what it started."""

    def workspace(self, name: str) -> AbstractContextManager[Engine]:
        """An engine of its own for one node."""

    def close(self) -> None:
        """Stop what this platform started, and nothing else."""
