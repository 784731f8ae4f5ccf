"""Iceberg tables, known by the metadata that their catalog points to; read in process, beside Spark too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from strandline.lake.base import Key
from strandline.lake.iceberg import log, past, writing
from strandline.lake.iceberg.limits import ICEBERG_LIMITS
from strandline.strategy.changes import ChangeSet
from strandline.types import Column, Commit, Table, TableState, Token


class IcebergFormat:
    """The Iceberg format. A version is the id of a snapshot; a table without one is at version 0."""

    name = "iceberg"
    limits = ICEBERG_LIMITS

    def describe(self, table: Table, app_id: str | None = None) -> TableState | None:
        return log.describe(table, app_id)

    def at(self, table: Table, version: int) -> TableState | None:
        return None if past.unreadable(table, version) else log.describe_at(table, version)

    def unreadable(self, table: Table, version: int) -> str | None:
        return past.unreadable(table, version)

    def history(self, table: Table) -> Iterator[Commit]:
        return past.history(table)

    def since(self, table: Table, version: int) -> list[Commit] | None:
        return past.since(table, version)

    def preceding(self, table: Table, version: int) -> int:
        return past.preceding(table, version)

    def moved(self, table: Table, after: int, upto: int) -> bool:
        return past.moved(table, after, upto)

    def gap(self, table: Table, after: int, upto: int, *, vectors: bool) -> str | None:
        del vectors
        return past.unreadable(table, after) or past.deletes_by_value(table, after, upto)

    def keep_feed(self, table: Table) -> None:
        """Every Iceberg table has a feed: what differs between two of its snapshots."""

    def add_columns(self, table: Table, columns: Sequence[Column]) -> None:
        writing.add_columns(table, columns)

    def overlooked(
        self,
        table: Table,
        version: int,
        changes: ChangeSet,
        token: Token,
        record: Mapping[str, Any],
    ) -> str | None:
        """A commit lands on the snapshot that was looked at, or not at all."""
        del table, version, changes, token, record
        return None

    def rows_at(self, table: Table, version: int, key: Key) -> list[dict[str, Any]] | None:
        return past.rows_at(table, version, key)
