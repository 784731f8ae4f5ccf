"""The in-process engine: DuckDB evaluates, deltalake or PyIceberg commits. No JVM."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from sqlglot import exp

from strandline.engine.arrow_types import settled
from strandline.engine.base import (
    Engine,
    FeedSource,
    FileSource,
    LakeSource,
    Scan,
    Source,
    SqlSource,
    Staged,
)
from strandline.engine.local import delta, feeds, scans
from strandline.engine.local.failures import translated
from strandline.engine.local.types import from_duckdb
from strandline.engine.sources.files import in_utf8
from strandline.engine.staging import scratch, sweep_scratch
from strandline.errors import EngineError, TransformError
from strandline.failpoints import point
from strandline.sql.answers import ANSWERS
from strandline.sql.expr import named, rows_of, select, table
from strandline.sql.macros import MACROS
from strandline.sql.portable import DUCK_MACROS, render
from strandline.strategy.changes import ChangeSet
from strandline.types import Column, Relation, Schema, Table, Token

# a function of `sql/macros.py` or `sql/answers.py`, not one of the few that are always there
_TAUGHT = re.compile(r"(?i)\bstrandline_(?!mantissa\(|digits\(|divide\()\w+\(")


class LocalWorkspace:
    """One node's DuckDB: spills to a folder of its own, in UTC."""

    dialect = "duckdb"

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
        self.connection = connection
        self.folder = folder
        self._numbers = itertools.count(1)
        self._taught = False
        self._kept: list[object] = []  # Arrow objects that views refer to
        self.files: list[FileSource] = []  # read lazily, so their faults appear anywhere

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
            return Scan(relation, lambda: self._count(relation))

    def _lake(self, source: LakeSource | FeedSource) -> str:
        """The rows or the changes of a lake table, as its format keeps them."""
        if source.table.format == "delta":
            return (
                feeds.feed(self, source)
                if isinstance(source, FeedSource)
                else scans.lake(self, source)
            )
        from strandline.engine.local.iceberg_scans import iceberg_feed, iceberg_rows

        return (
            iceberg_feed(self, source)
            if isinstance(source, FeedSource)
            else iceberg_rows(self, source)
        )

    def query(self, tree: exp.Query) -> Relation:
        with translated("query", self.files):
            return self._made("VIEW", self.fresh("v"), tree)

    def stage(
        self, tree: exp.Query, measures: Mapping[str, exp.Expr], keep: exp.Expr | None
    ) -> Staged:
        name = self.fresh("staged")
        point("stage.before")
        with translated("stage", self.files):
            relation = self._made("TABLE", name, tree)
            measured = select(*(named(m, n) for n, m in measures.items())).from_(table(name))
            values = self.fetch(measured)[0]
            kept = self.query(rows_of(relation).where(keep)) if keep is not None else relation
        point("stage.after")
        return Staged(kept, dict(zip(measures, values, strict=True)))

    def fetch(self, tree: exp.Query) -> list[tuple[Any, ...]]:
        with translated("fetch", self.files):
            # through Arrow: DuckDB's own conversion of timestamps would need pytz
            columns = [c.to_pylist() for c in self.arrow(tree).read_all().columns]
            return list(zip(*columns, strict=True))

    def call(self, function: Callable[[Any], Any], rows: Relation) -> Relation:
        try:
            import pandas as pd
        except ModuleNotFoundError:
            hint = "pip install 'strandline[pandas]'"
            raise EngineError(
                "a python step needs pandas, which is not installed", hint=hint
            ) from None
        frame = self.arrow(rows_of(rows)).read_all().to_pandas(types_mapper=pd.ArrowDtype)
        result = function(frame)
        if not isinstance(result, pd.DataFrame):
            raise TransformError(
                f"the python step returned {type(result).__name__}, expected a pandas DataFrame",
                hint="return the frame at the end of the function",
            )
        Schema(
            tuple(Column(str(c), "") for c in result.columns)
        )  # two names that differ only in case are refused
        name = self.fresh("py")
        self.register(name, settled(pa.Table.from_pandas(result, preserve_index=False)))
        return self.relation(name)

    def alter(self, table: Table, add: Sequence[Column], system: Mapping[str, Column]) -> None:
        with translated(table.label):
            if table.format == "delta":
                delta.add_columns(table, add, system)
                return
            from strandline.engine.local import iceberg

            iceberg.alter(self, table, add, system)

    def apply(
        self, table: Table, changes: ChangeSet, token: Token, record: Mapping[str, Any]
    ) -> int:
        with translated(table.label, self.files):
            if table.format == "delta":
                return delta.apply(self, table, changes, token, record)
            from strandline.engine.local import iceberg

            return iceberg.apply(self, table, changes, token, record)

    # --- what scans and commits are made of ----------------------------------------------------------------

    def run(self, sql: str) -> duckdb.DuckDBPyConnection:
        self._teach(sql)
        return self.connection.execute(sql)

    def _teach(self, sql: str) -> None:
        """Make Spark's functions known to DuckDB, once SQL asks for one: for most nodes that would be time lost."""
        if self._taught or not _TAUGHT.search(sql):
            return
        self._taught = True
        for macro in MACROS:
            self.connection.execute(macro)
        for name, answer in ANSWERS.items():
            self.connection.create_function(
                name, answer.function, list(answer.arguments), answer.result
            )

    def fresh(self, kind: str) -> str:
        return f"_{kind}{next(self._numbers)}"

    def register(self, name: str, rows: object) -> None:
        self._kept.append(rows)
        self.connection.register(name, rows)

    def relation(self, name: str) -> Relation:
        """A named relation with its columns."""
        return Relation(name, self._columns(f'SELECT * FROM "{name}"'))

    def _made(self, kind: str, name: str, tree: exp.Query) -> Relation:
        """A view or table of a query. Its columns are asked for first: DuckDB would rename those that are alike."""
        sql = render(tree, self.dialect)
        columns = self._columns(sql)
        self.run(f'CREATE TEMP {kind} "{name}" AS {sql}')
        return Relation(name, columns)

    def _columns(self, sql: str) -> Schema:
        described = self.run(f"DESCRIBE {sql}").fetchall()
        return Schema(tuple(Column(str(r[0]), from_duckdb(str(r[1]))) for r in described))

    def arrow(self, tree: exp.Query) -> pa.RecordBatchReader:
        """Rows as a stream of Arrow batches."""
        sql = render(tree, self.dialect)
        self._teach(sql)
        return self.connection.sql(sql).to_arrow_reader(100_000)

    def _count(self, relation: Relation) -> int:
        return int(self.run(f'SELECT COUNT(*) FROM "{relation.name}"').fetchall()[0][0])


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
