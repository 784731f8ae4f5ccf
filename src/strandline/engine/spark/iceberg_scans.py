"""Iceberg tables in Spark: whole versions through Iceberg's own reader, changes from the files that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import pyarrow as pa
from pyiceberg.schema import Schema as IceSchema
from pyiceberg.table import Table as IceTable
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType, _parse_datatype_string

from strandline.engine.base import FeedSource, LakeSource
from strandline.engine.spark.scans import Counted, counted, stored_in
from strandline.errors import TableError
from strandline.lake.iceberg import log
from strandline.lake.iceberg.catalogs import opened
from strandline.lake.iceberg.files import (
    LiveFile,
    deletion_vectors,
    is_vector,
    live,
    refuse_renamed,
)
from strandline.lake.iceberg.types import to_spark
from strandline.sql.net import CHANGE_TYPE, COMMIT_VERSION
from strandline.sql.portable import render
from strandline.types import Table

FILE, POS = "_strandline_file", "_strandline_pos"
_BY_ID = "spark.sql.parquet.fieldId.read.enabled"


def know_catalog(session: SparkSession, table: Table) -> None:
    """Tell a session of a table's catalog; PyIceberg opens the same one under the same name."""
    catalog = table.catalog
    assert catalog is not None, "an Iceberg table has a catalog"
    start = f"spark.sql.catalog.{catalog.name}"
    if session.conf.get(start, None):
        return
    for key, value in catalog.spark().items():
        session.conf.set(f"{start}.{key}" if key else start, value)


def spark_name(table: Table, *more: str) -> str:
    """A table's name in Spark SQL, or that of one of its branches."""
    assert table.catalog is not None
    return ".".join(ticked(part) for part in (table.catalog.name, *table.name, *more))


def ticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def opened_source(session: SparkSession, source: LakeSource | FeedSource) -> Counted:
    """The rows of a version, or the changes between two."""
    found = opened(source.table)
    if found is None:
        raise TableError(f"{source.table.label}: the table is gone", hint="run again")
    know_catalog(session, source.table)
    schema = log.schema_at(found.metadata, source.version)
    if isinstance(source, FeedSource):
        frame = _feed(session, found, schema, source)
        columns = [f.col(ticked(c.name)) for c in source.columns]
        shown = [*columns, f.col(CHANGE_TYPE), f.col(COMMIT_VERSION)]
        return counted(_some(frame, source).select(*shown))
    frame = _version(session, found, schema, source)
    return counted(_some(frame, source).drop(*source.hidden))


def _some(frame: DataFrame, source: LakeSource | FeedSource) -> DataFrame:
    return frame if source.where is None else frame.where(f.expr(render(source.where, "spark")))


def _version(
    session: SparkSession, found: IceTable, schema: IceSchema, source: LakeSource
) -> DataFrame:
    """A table at one version, in the columns of a schema that may be newer than it."""
    then = found.metadata.snapshot_by_id(source.version)
    if then is None:
        return session.createDataFrame([], _struct(schema))
    name = spark_name(source.table)
    rows = session.sql(f"SELECT * FROM {name} VERSION AS OF {source.version}")
    schemas = {s.schema_id: s for s in found.metadata.schemas}
    old = schemas.get(then.schema_id, schema) if then.schema_id is not None else schema
    values: list[SparkColumn] = []
    for field in schema.fields:
        there = old.find_column_name(field.field_id)
        value = f.col(ticked(there)) if there else f.lit(None)
        type_ = to_spark(field.field_type)
        same = there and to_spark(old.find_type(field.field_id)) == type_
        values.append((value if same else value.cast(type_)).alias(field.name))
    return rows.select(*values)


def _struct(schema: IceSchema) -> StructType:
    """A schema in Spark's words, each column with its number."""
    return StructType(
        [
            StructField(
                field.name,
                _parse_datatype_string(to_spark(field.field_type)),
                nullable=True,
                metadata={"parquet.field.id": field.field_id},
            )
            for field in schema.fields
        ]
    )


def _feed(
    session: SparkSession, found: IceTable, schema: IceSchema, source: FeedSource
) -> DataFrame:
    """Rows of files that came or went between two versions, and rows that deletes took or gave back."""
    refuse_renamed(found.metadata, schema, source.table)
    session.conf.set(_BY_ID, "true")
    then = {file.uri: file for file in live(found, source.table, source.after)}
    now = {file.uri: file for file in live(found, source.table, source.version)}
    reader = _Files(session, found, _struct(schema))
    parts = [
        reader.told(reader.rows([x for u, x in now.items() if u not in then]), "insert"),
        reader.told(reader.rows([x for u, x in then.items() if u not in now]), "delete"),
        *reader.redeleted(then, now),
    ]
    rows = reduce(DataFrame.unionByName, parts)
    return rows.withColumn(COMMIT_VERSION, f.lit(source.version).cast("bigint"))


class _Files:
    """Reads files of one table in the columns of one schema."""

    def __init__(self, session: SparkSession, found: IceTable, columns: StructType) -> None:
        self.session, self.found, self.columns = session, found, columns

    def rows(self, files: Sequence[LiveFile]) -> DataFrame:
        """The rows of files that are not deleted."""
        whole = [file for file in files if not file.deletes]
        some = [file for file in files if file.deletes]
        rows = self._read(whole)
        if some:
            rows = rows.unionByName(
                self._read(some).join(self.deletes(some), [FILE, POS], "left_anti")
            )
        return rows.select(*(ticked(c.name) for c in self.columns))

    def told(self, rows: DataFrame, verb: str) -> DataFrame:
        return rows.withColumn(CHANGE_TYPE, f.lit(verb))

    def redeleted(
        self, then: Mapping[str, LiveFile], now: Mapping[str, LiveFile]
    ) -> list[DataFrame]:
        """The rows of files that are in both versions, of which other rows are deleted."""
        both = [
            (then[u], file)
            for u, file in now.items()
            if u in then and then[u].deleted_by != file.deleted_by
        ]
        if not both:
            return []
        before, after = ([pair[side] for pair in both] for side in (0, 1))
        rows = self._read(after)
        names = [ticked(c.name) for c in self.columns]
        parts = []
        for came, there, verb in ((after, before, "delete"), (before, after, "insert")):
            turned = self.deletes(came).subtract(self.deletes(there))
            parts.append(
                self.told(rows.join(turned, [FILE, POS], "left_semi").select(*names), verb)
            )
        return parts

    def deletes(self, files: Sequence[LiveFile]) -> DataFrame:
        """The positions that deletes take out of files."""
        stored = sorted({d.file_path for x in files for d in x.deletes if not is_vector(d)})
        vectors = [
            pa.table({FILE: [_plain(uri)] * len(positions), POS: positions.cast(pa.int64())})
            for uri, positions in deletion_vectors(self.found, files)
        ]
        parts = [self.session.createDataFrame([], f"{FILE} string, {POS} bigint")]
        if stored:
            path = f.regexp_replace("file_path", "^file:/+", "/").alias(FILE)
            read = self.session.read.schema("file_path string, pos bigint").parquet(*stored)
            parts.append(read.select(path, f.col("pos").alias(POS)))
        if vectors:
            parts.append(self.session.createDataFrame(pa.concat_tables(vectors)))
        return reduce(DataFrame.union, parts)

    def _read(self, files: Sequence[LiveFile]) -> DataFrame:
        """All rows of files, each with where it is stored."""
        if not files:
            empty = self.session.createDataFrame([], self.columns)
            return empty.select("*", f.lit("").alias(FILE), f.lit(0).cast("bigint").alias(POS))
        rows = self.session.read.schema(self.columns).parquet(*(x.uri for x in files))
        position = f.col("_metadata.row_index").alias(POS)
        return rows.select("*", stored_in().alias(FILE), position)


def _plain(uri: str) -> str:
    """A path without the scheme of files on this machine."""
    return "/" + uri.removeprefix("file:").lstrip("/") if uri.startswith("file:") else uri
