"""The Spark engine: one session of its own per node, so that views, settings and tokens never meet."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import NullType
from sqlglot import exp

from strandline.engine.base import (
    FeedSource,
    FileSource,
    LakeSource,
    Scan,
    Source,
    SqlSource,
    Staged,
)
from strandline.engine.sources.files import in_utf8
from strandline.engine.spark import delta, scans
from strandline.engine.spark.failures import translated
from strandline.engine.spark.observed import observed
from strandline.errors import TransformError
from strandline.failpoints import point
from strandline.sql.portable import render
from strandline.strategy.changes import ChangeSet
from strandline.types import Column, Relation, Schema, Table, Token


class SparkWorkspace:
    """One node's Spark session."""

    dialect = "spark"
    merges_columns = frozenset({"delta", "iceberg"})

    def __init__(self, session: SparkSession, staging: Path, prefix: str = "_v") -> None:
        self.session = session
        self.staging = staging
        self.prefix = prefix  # of the views that it makes
        self._numbers = itertools.count(1)
        self.files: list[FileSource] = []  # read lazily, so their faults appear anywhere

    def scan(self, source: Source) -> Scan:
        with translated(source.label, self.files):
            frame, rows = self._open(source)
            return Scan(self.relation(frame), rows)

    def _open(self, source: Source) -> scans.Counted:
        match source:
            case SqlSource():
                return scans.sql(self.session, source)
            case FileSource():
                source = in_utf8(source, self.staging / f"text{next(self._numbers)}")
                self.files.append(source)
                return scans.files(self.session, source)
            case LakeSource() | FeedSource() if source.table.format == "iceberg":
                from strandline.engine.spark import iceberg_scans

                return iceberg_scans.opened_source(self.session, source)
            case LakeSource():
                return scans.lake(self.session, source)
            case FeedSource():
                return scans.feed(self.session, source)

    def query(self, tree: exp.Query) -> Relation:
        with translated("query", self.files):
            return self.relation(self.session.sql(render(tree, self.dialect)))

    def stage(
        self, tree: exp.Query, measures: Mapping[str, exp.Expr], keep: exp.Expr | None
    ) -> Staged:
        """Write the rows to files of this batch; the counts are observed on the way, in the same job."""
        point("stage.before")
        with translated("stage", self.files):
            frame = self.session.sql(render(tree, self.dialect))
            seen = Observation()
            figures = [f.expr(render(m, self.dialect)).alias(n) for n, m in measures.items()]
            nothing = frame.limit(0)
            frame = frame.observe(seen, *figures)
            if keep is not None:
                frame = frame.where(f.expr(render(keep, self.dialect)))
            path = str(self.staging / self._fresh())
            untyped = {
                c.name: f.lit(None) for c in frame.schema if isinstance(c.dataType, NullType)
            }
            frame = frame.withColumns({name: null.cast("string") for name, null in untyped.items()})
            frame.write.parquet(path)
            point("stage.after")
            staged = self.session.read.schema(frame.schema).parquet(path).withColumns(untyped)
            # not observed: Spark saw beforehand that there can be no row
            return Staged(
                self.relation(staged), observed(seen) or nothing.agg(*figures).collect()[0].asDict()
            )

    def fetch(self, tree: exp.Query) -> list[tuple[Any, ...]]:
        with translated("fetch", self.files):
            # through Arrow: rows collected as Python objects would carry the local time zone
            columns = [
                c.to_pylist()
                for c in self.session.sql(render(tree, self.dialect)).toArrow().columns
            ]
            return list(zip(*columns, strict=True))

    def call(self, function: Callable[[Any], Any], rows: Relation) -> Relation:
        with translated("python step", self.files):
            result = function(self.session.table(rows.name))
            if not isinstance(result, DataFrame):
                raise TransformError(
                    f"the python step returned {type(result).__name__}, expected a Spark DataFrame",
                    hint="return the frame at the end of the function",
                )
            return self.relation(result)

    def apply(
        self, table: Table, changes: ChangeSet, token: Token, record: Mapping[str, Any]
    ) -> int:
        with translated(table.label, self.files):
            if table.format == "delta":
                return delta.apply(self.session, table, changes, token, record)
            from strandline.engine.spark import iceberg

            return iceberg.apply(self.session, table, changes, token, record)

    def relation(self, frame: DataFrame) -> Relation:
        """Give a frame a name and note its columns."""
        name = self._fresh()
        columns = Schema(tuple(Column(c.name, c.dataType.simpleString()) for c in frame.schema))
        frame.createOrReplaceTempView(name)
        return Relation(name, columns)

    def _fresh(self) -> str:
        return f"{self.prefix}{next(self._numbers)}"
