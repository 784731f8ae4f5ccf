"""Delta Lake tables, known by their logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from strandline.lake.base import Key
from strandline.lake.delta import feed, log, past
from strandline.lake.delta.limits import DELTA_LIMITS
from strandline.strategy.changes import ChangeSet
from strandline.types import Column, Commit, Table, TableState, Token


class DeltaFormat:
    """The Delta format; its metadata is read in process, beside Spark too."""

    name = "delta"
    limits = DELTA_LIMITS

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
        del table
        return version - 1

    def moved(self, table: Table, after: int, upto: int) -> bool:
        return after > upto or feed.changed(table, after, upto)

    def gap(self, table: Table, after: int, upto: int, *, vectors: bool) -> str | None:
        if after > upto:
            return f"it is at version {upto}, older than {after}"
        return feed.gap(table, after, upto, vectors=vectors)

    def keep_feed(self, table: Table) -> None:
        feed.enable(table)

    def add_columns(self, table: Table, columns: Sequence[Column]) -> None:
        log.add_columns(table, columns)

    def overlooked(
        self,
        table: Table,
        version: int,
        changes: ChangeSet,
        token: Token,
        record: Mapping[str, Any],
    ) -> str | None:
        return log.overlooked(table, version, changes, token, record)

    def rows_at(self, table: Table, version: int, key: Key) -> list[dict[str, Any]] | None:
        return past.rows_at(table, version, key)
