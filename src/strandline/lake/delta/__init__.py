"""Delta Lake tables, known by their logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strandline.lake.base import Key
from strandline.lake.delta import feed, log, past
from strandline.strategy.changes import ChangeSet
from strandline.types import Commit, Table, TableState, Token


class DeltaFormat:
    """The Delta format; its metadata is read in process, beside Spark too."""

    name = "delta"

    def describe(self, table: Table, app_id: str | None = None) -> TableState | None:
        return log.describe(table, app_id)

    def at(self, table: Table, version: int) -> TableState | None:
        return None if past.unreadable(table, version) else log.describe_at(table, version)

    def unreadable(self, table: Table, version: int) -> str | None:
        return past.unreadable(table, version)

    def history(self, table: Table) -> Iterator[Commit]:
        return past.history(table)

    def moved(self, table: Table, after: int, upto: int) -> bool:
        return feed.changed(table, after, upto)

    def gap(self, table: Table, after: int, upto: int, *, vectors: bool) -> str | None:
        return feed.gap(table, after, upto, vectors=vectors)

    def keep_feed(self, table: Table) -> None:
        feed.enable(table)

    def overlooked(
        self,
        table: Table,
        version: int,
        changes: ChangeSet,
        token: Token,  # noqa: ARG002 – other formats may look for it
        record: Mapping[str, Any],  # noqa: ARG002
    ) -> str | None:
        return log.overlooked(table, version, changes)

    def rows_at(self, table: Table, version: int, key: Key) -> list[dict[str, Any]] | None:
        return past.rows_at(table, version, key)
