"""Giving sources a name in Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import reduce
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable
from py4j.protocol import Py4JError
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType
from sqlglot import exp

from strandline.engine.arrow_types import untyped_parquet
from strandline.engine.base import FeedSource, FileSource, LakeSource, SqlSource
from strandline.engine.sources import files as file_sources
from strandline.engine.sources import sql as sql_sources
from strandline.engine.sources import texts
from strandline.engine.spark.observed import observed
from strandline.lake.delta.feed import CHANGE, VERSION
from strandline.lake.delta.rows import row_count
from strandline.sql.expr import col, lit, named
from strandline.sql.portable import checked_cast, render

Counted = tuple[DataFrame, Callable[[], int | None]]
_FETCH_SIZE = "10000"


def sql(session: SparkSession, source: SqlSource) -> Counted:
    """A database read through JDBC: bounded memory by its fetch size, parallel where bounds are given."""
    read = sql_sources.plan_read(source, partitioned=True)
    jdbc = source.endpoint.jdbc()
    options = {
        "url": jdbc.url,
        "user": jdbc.user,
        "password": jdbc.password,
        "driver": jdbc.driver,
        "fetchsize": _FETCH_SIZE,
        "preferTimestampNTZ": "true",
        "customSchema": ", ".join(
            f"`{c.name}` {c.wire}" for c in read.columns if c.wire != "binary"
        ),
    }
    given = {k: v for k, v in options.items() if v}
    dbtable = f"({read.statement}) _strandline"
    if read.bounds:
        properties = {k: v for k, v in given.items() if k != "url"}
        frame = session.read.jdbc(jdbc.url, dbtable, predicates=read.bounds, properties=properties)
    else:
        frame = session.read.format("jdbc").options(**given, dbtable=dbtable).load()
    values = [
        named(checked_cast(col(c.name), c.wire, c.type, c.name), c.name) for c in read.columns
    ]
    return counted(frame.select(*(f.expr(render(v, "spark")) for v in values)))


def lake(session: SparkSession, source: LakeSource) -> Counted:
    """A Delta table at one version; how many rows it has, its log knows."""
    frame = (
        session.read.format("delta")
        .option("versionAsOf", source.version)
        .load(source.table.location)
    )
    if source.where is not None:
        return counted(frame.where(f.expr(render(source.where, "spark"))).drop(*source.hidden))
    return frame.drop(*source.hidden), lambda: row_count(
        DeltaTable(source.table.location, version=source.version)
    )


def feed(session: SparkSession, source: FeedSource) -> Counted:
    """The changed rows of a Delta table, each with how and when."""
    reader = session.read.format("delta").option("readChangeFeed", "true")
    reader = reader.option("startingVersion", source.after + 1).option(
        "endingVersion", source.version
    )
    frame = reader.load(source.table.location)
    if source.where is not None:
        frame = frame.where(f.expr(render(source.where, "spark")))
    columns = [f"`{_tick(c.name)}`" for c in source.columns]
    return counted(frame.select(*columns, CHANGE, f.col(VERSION).cast("bigint").alias(VERSION)))


def files(session: SparkSession, source: FileSource) -> Counted:
    """CSV, JSON or Parquet files as one frame."""
    reader = {"csv": _csv, "json": _json, "parquet": _parquet}[source.format]
    if file_sources.quiet(source):
        return reader(session, file_sources.shape(source))[0].limit(0), lambda: 0
    return reader(session, source)


def _paths(paths: Iterable[Path]) -> list[str]:
    """The files as Spark takes them; a name such as `report[1].csv` is no pattern."""
    return [re.sub(r"([\\*?\[\]{}])", r"\\\1", str(path)) for path in paths]


def _csv(session: SparkSession, source: FileSource) -> Counted:
    """Each group of files with one header is read by it; the groups are stacked by column name."""
    groups = file_sources.csv_groups(source)
    every = file_sources.union_columns(groups)
    types = {k.casefold(): v for k, v in (source.schema or {}).items()}
    frames = []
    for group in groups:
        texts.refuse_other_text(
            group.files, source
        )  # Spark itself would replace what it cannot decode
        frame = (
            session.read.schema(", ".join(f"`{_tick(c)}` string" for c in group.columns))
            .option("sep", source.delimiter)
            .option("header", source.header)
            .option("quote", '"')
            .option("escape", '"')
            .option("multiLine", source.multiline)
            .option("mode", "FAILFAST")
            .option(
                "nullValue", "\u0001strandline-null\u0001"
            )  # only what is absent is NULL; '' stays ''
            .option("emptyValue", "")
            .option("maxCharsPerColumn", -1)
            .option("encoding", "UTF-8")
            .csv(_paths(group.files))
        )
        here = {c.casefold() for c in group.columns}
        values = []
        for c in every:
            text = col(c) if c.casefold() in here else lit(None)
            tree = checked_cast(
                _null_if(text, source.null_value), "string", types.get(c.casefold(), "string"), c
            )
            values.append(
                f.expr(render(tree, "spark")).cast(types.get(c.casefold(), "string")).alias(c)
            )
        frames.append(frame.select(*values, *_file_column(source)))
    return counted(reduce(lambda a, b: a.unionByName(b), frames))


def _null_if(text: exp.Expr, null_value: str | None) -> exp.Expr:
    return text if null_value is None else exp.Nullif(this=text, expression=lit(null_value))


def _json(session: SparkSession, source: FileSource) -> Counted:
    reader, paths = (
        session.read.option("mode", "FAILFAST"),
        _paths(file_sources.find(source)),
    )
    if source.schema:
        reader = reader.schema(", ".join(f"`{_tick(n)}` {t}" for n, t in source.schema.items()))
    frame = reader.json(paths)
    file_sources.refuse_own(frame.columns, source)
    texts = (
        set()
        if source.schema
        else {c.name for c in frame.schema if isinstance(c.dataType, StringType)}
    )
    # Spark takes a field that is null in every object for text: asked once more, it leaves those out
    untyped = (
        texts - set(reader.option("dropFieldIfAllNull", True).json(paths).columns)
        if texts
        else set()
    )
    return counted(frame.select(*_columns(frame, untyped), *_file_column(source)))


def _parquet(session: SparkSession, source: FileSource) -> Counted:
    """How many rows there are, the files' footers know."""
    paths = file_sources.find(source)
    untyped = untyped_parquet(source, paths)
    frame = session.read.option("mergeSchema", "true").parquet(*_paths(paths))
    frame = frame.select(*_columns(frame, untyped), *_file_column(source))
    return frame, lambda: sum(pq.read_metadata(p).num_rows for p in paths)


def _columns(frame: DataFrame, untyped: set[str]) -> list[SparkColumn]:
    """The columns of files; those without a type are NULL."""
    return [f.lit(None).alias(c) if c in untyped else f.col(f"`{_tick(c)}`") for c in frame.columns]


def _file_column(source: FileSource) -> list[SparkColumn]:
    """The file's path below its connection."""
    if not source.file_column:
        return []
    path = stored_in()
    start = len(str(source.root.resolve())) + 2
    return [path.substr(f.lit(start), f.length(path)).alias(source.file_column)]


def stored_in() -> SparkColumn:
    """The path of a row's file."""
    # Spark percent-encodes some characters of the path, but a plus sign stands for itself
    escaped = f.replace(f.col("_metadata.file_path"), f.lit("+"), f.lit("%2B"))
    return f.regexp_replace(f.url_decode(escaped), "^file:/+", "/")


def counted(frame: DataFrame) -> Counted:
    """A frame that counts its rows while something else reads it."""
    seen = Observation()

    def rows() -> int | None:
        try:
            found = observed(seen)
        except (
            Py4JError
        ):  # nothing was observed: Spark saw that the rows cannot matter, and read none of them
            return None
        return int(found["n"]) if found else None

    return frame.observe(seen, f.count(f.lit(1)).alias("n")), rows


def _tick(name: str) -> str:
    return name.replace("`", "``")
