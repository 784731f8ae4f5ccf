"""The in-process engine: DuckDB evaluates, deltalake or PyIceberg commits. No JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import duckdb

from strandline.engine.base import (
    Engine,
    FeedSource,
    FileSource,
    LakeSource,
    Scan,
    Source,
    SqlSource,
)
from strandline.engine.local import delta, feeds, scans
from strandline.engine.local.duck import DuckWorkspace
from strandline.engine.local.failures import translated
from strandline.engine.sources.files import in_utf8
from strandline.engine.staging import scratch, sweep_scratch
from strandline.sql.portable import DUCK_MACROS
from strandline.strategy.changes import ChangeSet
from strandline.types import Table, Token


class LocalWorkspace(DuckWorkspace):
    """One node's DuckDB: spills to a folder of its own, in UTC."""

    # deltalake 1.6: a MERGE that brings columns gives the table another id, and them any order; partitions move
    merges_columns = frozenset({"iceberg"})

    def scan(self, source: Source) -> Scan:
        with translated(source.label, self.files):
            if isinstance(source, FileSource):
                source = in_utf8(source, self.folder / self.fresh("text"))
                self.files.append(source)
            if isinstance(source, SqlSource):
                name, rows = scans.sql(self, source)
                return Scan(self.relation(name), lambda: rows)
            if isinstance(source, FileSource):
                relation = self.relation(scans.files(self, source))
            else:
                relation = self.relation(self._lake(source))
            return Scan(relation, lambda: self.count(relation))

    def _lake(self, source: LakeSource | FeedSource) -> str:
        """The rows or the changes of a lake table, as its format keeps them."""
        if source.table.format == "delta":
            if isinstance(source, FeedSource):
                return feeds.feed(self, source)
            return scans.lake(self, source)
        from strandline.engine.local import iceberg_scans

        if isinstance(source, FeedSource):
            return iceberg_scans.iceberg_feed(self, source)
        return iceberg_scans.iceberg_rows(self, source)

    def apply(
        self, table: Table, changes: ChangeSet, token: Token, record: Mapping[str, Any]
    ) -> int:
        with translated(table.label, self.files):
            if table.format == "delta":
                return delta.apply(self, table, changes, token, record)
            from strandline.engine.local import iceberg

            return iceberg.apply(self, table, changes, token, record)


class LocalPlatform:
    """Opens a DuckDB per node; there is nothing to share."""

    def __init__(self, memory_limit: str = "1GB") -> None:
        self.memory_limit = memory_limit

    @classmethod
    def start(cls) -> LocalPlatform:
        """A platform, after what killed runs have left was swept."""
        sweep_scratch()
        return cls()

    @contextmanager
    def workspace(self, name: str) -> Iterator[Engine]:
        with scratch(name) as folder:
            connection = duckdb.connect(str(folder / "workspace.duckdb"))
            try:
                connection.execute("SET TimeZone = 'UTC'")
                connection.execute(f"SET memory_limit = '{self.memory_limit}'")
                connection.execute(f"SET temp_directory = '{folder}'")
                connection.execute("SET enable_progress_bar = false")
                for macro in DUCK_MACROS:
                    connection.execute(macro)
                yield LocalWorkspace(connection, folder)
            finally:
                connection.close()

    def close(self) -> None:
        """Nothing was started."""
