"""DuckDB evaluates: what every engine in this process does with a query, wherever its tables are kept."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from sqlglot import exp

from strandline.engine.arrow_types import settled
from strandline.engine.base import FileSource, Staged
from strandline.engine.local.failures import translated
from strandline.engine.local.types import from_duckdb
from strandline.errors import EngineError, TransformError
from strandline.failpoints import point
from strandline.sql.answers import ANSWERS
from strandline.sql.expr import named, rows_of, select, table
from strandline.sql.macros import MACROS
from strandline.sql.portable import render
from strandline.types import Column, Relation, Schema

# a function of `sql/macros.py` or `sql/answers.py`, not one of the few that are always there
_TAUGHT = re.compile(r"(?i)\bstrandline_(?!mantissa\(|digits\(|divide\()\w+\(")


class DuckWorkspace:
    """One node's DuckDB: it evaluates queries over whatever was given a name in it."""

    dialect = "duckdb"

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path | None = None) -> None:
        self.connection = connection
        self.folder = folder or Path()
        self._numbers = itertools.count(1)
        self._taught = False
        self._kept: list[object] = []  # Arrow objects that views refer to
        self.files: list[FileSource] = []  # read lazily, so their faults appear anywhere

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
            # unlike a macro, a function is known to all who share the database: one of them may have brought it
            with suppress(duckdb.CatalogException):
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

    def count(self, relation: Relation) -> int:
        return int(self.run(f'SELECT COUNT(*) FROM "{relation.name}"').fetchall()[0][0])
