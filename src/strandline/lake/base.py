"""What a table format is: what a table is now, what happened to it, what it was, and how it is moved forward.

A version is a number that a format gives to a state of a table. Versions are compared, never computed: the version
before a commit is its `parent`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from strandline.sql.values import Value
from strandline.strategy.changes import ChangeSet
from strandline.strategy.evolution import Limits
from strandline.types import Column, Commit, Table, TableState, Token

Key = Mapping[str, Value | float | bytes | None]
"""The values of a row's key, in the types of today."""


class TableFormat(Protocol):
    """One table format. It never evaluates a query: that is an engine's work."""

    name: str
    limits: Limits  # what its tables can hold and change

    def describe(self, table: Table, app_id: str | None = None) -> TableState | None:
        """The table as it is, with the newest commit under `app_id`; None when there is no table."""

    def at(self, table: Table, version: int) -> TableState | None:
        """The table as it was; None when that version can no longer be read."""

    def unreadable(self, table: Table, version: int) -> str | None:
        """Why a version can no longer be read; None when it can."""

    def history(self, table: Table) -> Iterator[Commit]:
        """The commits that the table still knows, the newest first, read as far as they are asked for."""

    def since(self, table: Table, version: int) -> list[Commit] | None:
        """The commits after a version, the newest first; None when the table of now does not follow that version.

        Then an older copy of it was put back, or it was rolled back.
        """

    def preceding(self, table: Table, version: int) -> int:
        """The version before a version, whether or not it can still be read."""

    def moved(self, table: Table, after: int, upto: int) -> bool:
        """True unless no row can have come or gone after one version up to another."""

    def gap(self, table: Table, after: int, upto: int, *, vectors: bool) -> str | None:
        """Why the feed between two versions is not complete; None when it is.

        `vectors` says whether the reader can tell what a deletion vector took out of a file.
        """

    def keep_feed(self, table: Table) -> None:
        """Let the table keep a feed from now on."""

    def add_columns(self, table: Table, columns: Sequence[Column]) -> None:
        """Add optional columns at the end, in a commit without rows."""

    def overlooked(
        self,
        table: Table,
        version: int,
        changes: ChangeSet,
        token: Token,
        record: Mapping[str, Any],
    ) -> str | None:
        """What came between looking at the table and the commit of a version, and makes void what was found."""

    def rows_at(self, table: Table, version: int, key: Key) -> list[dict[str, Any]] | None:
        """The rows of a key at a version; None when they can no longer be read."""
