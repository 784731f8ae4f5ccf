"""The project file as frozen models. Their docstrings are the YAML reference.

A key is accepted only when it does something; a map is refused as a whole with every mistake in it.
Rules that need more than one map (connections, other nodes) are in `check`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from strandline.config.base import Model, Text, repeated, sql_text
from strandline.config.deletes import SystemColumnsConfig
from strandline.config.feeds import FeedOptions, feed_mistakes
from strandline.config.increments import IncrementalConfig, SettingsConfig, WatermarkConfig
from strandline.config.positions import Loc, Mistake
from strandline.config.queries import SqlError, check_condition, check_row, check_type, parse_select

PROJECT_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_-]*$"
NODE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
ALIAS = r"^[A-Za-z_][A-Za-z0-9_]*$"

FileFormat = Literal["csv", "json", "parquet"]
_ENDINGS: dict[str, FileFormat] = {
    ".csv": "csv", ".csv.gz": "csv", ".json": "json", ".json.gz": "json", ".jsonl": "json", ".jsonl.gz": "json",
    ".ndjson": "json", ".ndjson.gz": "json", ".parquet": "parquet",
}  # fmt: skip


class SqlConnection(Model):
    """A database to read from.

    **Business problem:** the rows live in an ERP or a shop database, and its password must not live in a file.
    **Solution:** a SQLAlchemy or JDBC URL; user and password are references, resolved when the connection opens.
    `jdbc_url` replaces the JDBC URL that Spark would derive, `driver` its JDBC class. `staging: true` marks a database
    that may be empty between two loads: what is absent there is not deleted.

    ```yaml
    connections:
      erp: {type: sql, url: "postgresql://db/shop", user: etl, password: "${env:ERP_PASSWORD}"}
    ```
    """

    type: Literal["sql"]
    url: Text
    user: str | None = None
    password: str | None = Field(default=None, repr=False)
    jdbc_url: Text | None = None
    driver: Text | None = None
    staging: bool = False


class FilesConnection(Model):
    """A folder of files to read from.

    **Business problem:** partners drop CSV, JSON or Parquet files.
    **Solution:** name the folder once; nodes read files or patterns below it and nothing outside it.

    ```yaml
    connections:
      files: {type: files, path: landing}
    ```
    """

    type: Literal["files"]
    path: Text


class LakeConnection(Model):
    """A folder of lake tables: written by nodes, read by others.

    **Business problem:** Bronze, Silver and Gold belong in places of their own.
    **Solution:** one connection per layer; table `customers` is the folder `customers` below its path.

    ```yaml
    connections:
      bronze: {type: lake, format: delta, path: lake/bronze}
    ```
    """

    type: Literal["lake"]
    format: Literal["delta"] = "delta"
    path: Text


Connection = Annotated[SqlConnection | FilesConnection | LakeConnection, Field(discriminator="type")]


class CsvOptions(Model):
    """How a CSV file is written down.

    **Business problem:** every sender has another idea of CSV.
    **Solution:** the delimiter, whether the first line names the columns, which text means NULL, and whether
    quoted values may hold line breaks.

    ```yaml
    read: {connection: files, path: customers.csv, options: {delimiter: ";", null_value: "n/a"}}
    ```
    """

    delimiter: str = ","
    header: bool = True
    null_value: str | None = None
    multiline: bool = True

    def mistakes(self) -> Iterator[Mistake]:
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n\0':
            yield Mistake(("delimiter",), f"expected one character, found {self.delimiter!r}", 'for a tab write "\\t"')


class ReadConfig(Model):
    """What a node reads.

    **Business problem:** rows come from databases, files and other tables of the lake.
    **Solution:** a connection and exactly one of `table`, `query` and `path`. CSV columns are strings unless
    `schema` gives their types. `partition_column` and `num_partitions` let Spark read a large table in parallel.
    `incremental` or `watermark` read only what may be new. Of a lake table with a delete flag the living rows are
    read; `include_deleted: true` reads all.

    ```yaml
    read: {connection: erp, table: public.customers}
    read: {connection: erp, table: orders, incremental: {mode: stateful, column: updated_at, watermark_lag: 2h}}
    read: {connection: files, format: csv, path: "customers/*.csv", schema: {customer_id: bigint}}
    ```
    """

    connection: Text
    format: Literal["sql", "csv", "json", "parquet"] | None = None
    table: Text | None = None
    query: Text | None = None
    path: Text | None = None
    schema_: dict[str, str] | None = Field(default=None, alias="schema")
    options: CsvOptions | None = None
    partition_column: Text | None = None
    num_partitions: int | None = Field(default=None, ge=1)
    incremental: IncrementalConfig | None = None
    watermark: list[WatermarkConfig] = Field(default_factory=list)
    include_deleted: bool = False

    @property
    def limited(self) -> bool:
        """Does a watermark limit it to a part of what is there?"""
        return (self.incremental is not None and self.incremental.mode != "cdf") or bool(self.watermark)

    @property
    def feed(self) -> FeedOptions | None:
        """How its change feed is read; None when it is not."""
        return self.incremental if self.incremental and self.incremental.mode == "cdf" else None

    @property
    def triggers(self) -> bool:
        """Does a change of it make the node run?"""
        return True

    @property
    def file_format(self) -> FileFormat | None:
        """The format of the files: as said, else as their names end; None for a table or a query."""
        if self.path is None or self.format == "sql":
            return None
        if self.format is not None:
            return self.format
        name = self.path.casefold()
        return next((kind for ending, kind in _ENDINGS.items() if name.endswith(ending)), None)

    def mistakes(self) -> Iterator[Mistake]:
        given = [key for key in ("table", "query", "path") if getattr(self, key) is not None]
        if not given:
            yield Mistake((), "one of `table`, `query` and `path` is missing")
        for extra in given[1:]:
            yield Mistake((extra,), f"`{extra}` and `{given[0]}` exclude each other", "keep exactly one of them")
        if len(given) == 1:
            yield from self._format_mistakes(given[0])
            yield from self._partition_mistakes(given[0])
            yield from self._increment_mistakes(given[0])
        yield from self._schema_mistakes()

    def _increment_mistakes(self, given: str) -> Iterator[Mistake]:
        if self.incremental and self.watermark:
            yield Mistake(("watermark",), "`watermark` and `incremental` exclude each other", "keep one of them")
        plain = self.incremental is not None and self.incremental.mode == "stateful"
        if plain and self.incremental and self.incremental.column is None and given != "path":
            yield Mistake(("incremental", "column"), "`column` is missing", "name the column that grows with changes")
        for index, name in repeated([w.column_name for w in self.watermark]):
            yield Mistake(("watermark", index, "column_name"), f"column `{name}` stands twice in `watermark`")

    def _format_mistakes(self, given: str) -> Iterator[Mistake]:
        if given == "path" and self.format == "sql":
            yield Mistake(("format",), "`format: sql` reads a `table` or a `query`, not a `path`")
        if given != "path" and self.format not in (None, "sql"):
            yield Mistake(("format",), f"`format: {self.format}` reads a `path`, not a `{given}`")
        if self.options is not None and self.file_format != "csv":
            yield Mistake(("options",), "`options` are for csv files only")
        if self.schema_ is not None and self.file_format not in ("csv", "json"):
            yield Mistake(("schema",), "`schema` is for csv and json files only", "use a `cast` step to change types")

    def _partition_mistakes(self, given: str) -> Iterator[Mistake]:
        pair = {"partition_column": self.partition_column, "num_partitions": self.num_partitions}
        there = [key for key, value in pair.items() if value is not None]
        if len(there) == 1:
            (other,) = pair.keys() - there
            yield Mistake((there[0],), f"`{there[0]}` needs `{other}` too")
        if there and given == "path":
            yield Mistake((there[0],), f"`{there[0]}` is for tables and queries of a database only")

    def _schema_mistakes(self) -> Iterator[Mistake]:
        columns = self.schema_ or {}
        for _, column in repeated(list(columns)):
            yield Mistake(("schema", column), f"column `{column}` is given twice; case does not matter in names")
        for column, type_ in columns.items():
            try:
                check_type(type_, nested=self.file_format != "csv")
            except SqlError as mistake:
                yield Mistake(("schema", column), mistake.message, mistake.hint)


class SourceConfig(ReadConfig, FeedOptions):
    """One of several things a node reads, under the name its SQL calls it.

    **Business problem:** a dimension or a fact joins several tables.
    **Solution:** a `read` with an `alias`; `transformation_sql` selects from the aliases. `cdc_strategy` says how each
    is followed. `cdf`: by its change feed; changes and deletes pass through the SQL, and the table equals what the SQL
    would give over everything. `full` (default): read whole at one version; once it changes, everything is computed
    again. `lookup`: read whole, but a change of it makes nothing run; rows that are computed anyway see it as it is.

    ```yaml
    sources:
      - {connection: silver, table: orders, alias: o, cdc_strategy: cdf, primary_keys: [order_id]}
      - {connection: silver, table: customers, alias: c, cdc_strategy: cdf, primary_keys: [customer_id]}
      - {connection: silver, table: currencies, alias: r, cdc_strategy: lookup}
    ```
    """

    alias: Annotated[str, StringConstraints(pattern=ALIAS)]
    cdc_strategy: Literal["cdf", "full", "lookup"] = "full"

    @property
    def feed(self) -> FeedOptions | None:
        return self if self.cdc_strategy == "cdf" else super().feed

    @property
    def triggers(self) -> bool:
        return self.cdc_strategy != "lookup"

    def mistakes(self) -> Iterator[Mistake]:
        yield from super().mistakes()
        yield from feed_mistakes(self, used=self.cdc_strategy == "cdf", instead="cdc_strategy: cdf")
        for key in ("incremental", "watermark"):
            if "cdc_strategy" in self.model_fields_set and getattr(self, key):
                yield Mistake((key,), f"`{key}` and `cdc_strategy` exclude each other", "keep one of them")


class StepConfig(Model):
    """One registered step and its parameters.

    **Business problem:** cleaning is the same few operations again and again.
    **Solution:** name the operation; its own reference says which `params` it takes.

    ```yaml
    - operation: deduplicate
      params: {keys: [customer_id], order_by: _extracted_at DESC}
    ```
    """

    operation: Text
    params: dict[str, Any] = Field(default_factory=dict)

    @property
    def brings_limits(self) -> bool:
        """Is it `detect_deletes` with mode: feed, which changes no row?"""
        return self.operation == "detect_deletes" and self.params.get("mode") == "feed"


class TransformConfig(Model):
    """The steps of a node, in order; `transformation_sql` comes after them.

    **Business problem:** raw rows are not yet the rows to keep.
    **Solution:** a list of steps, each over the result of the one before.

    ```yaml
    transform:
      steps:
        - {operation: filter, params: {condition: "amount > 0"}}
    ```
    """

    steps: list[StepConfig]


class WriteMetadataConfig(Model):
    """Which metadata columns a write adds.

    **Business problem:** months later somebody asks where a Bronze row came from.
    **Solution:** `_extracted_at`, `_source_file`, `_source_connection` and `_source_table`, each where it applies.

    ```yaml
    write: {connection: bronze, table: customers, mode: append, add_metadata: {source_connection: true}}
    ```
    """

    extracted_at: bool = True
    source_file: bool = True
    source_connection: bool = False
    source_table: bool = False


EVENTS = "__events"
"""What is added to a table's name where the events of its history are kept."""
FORGETS = (
    "`sequence_by` and hard deletes exclude each other: a removed row forgets its sequence, "
    "and a late older row would bring it back"
)
SOFT_INSTEAD = (
    "use delete_strategy: soft, which keeps the flagged row and its sequence, or mode: scd2 with effective_at"
)


def instant(value: datetime | date | str) -> datetime:
    """A point in time as written in YAML: a date is its first moment, a time without a zone is UTC."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value.strip())
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


def _flag_or_columns(value: object) -> str:
    return "columns" if isinstance(value, dict | WriteMetadataConfig) else "flag"


class WriteConfig(Model):
    """Where the rows of a node go, and how.

    **Business problem:** the same rows may come again, changed or not, and the table must stay right.
    **Solution:** `append` adds them, `overwrite` replaces the table, `upsert` merges them by `keys`; unchanged rows
    are not written. `scd2` keeps every version with its time. `update_condition` says which changes count.
    `row_hash: false` leaves `_row_hash` out. `delete_strategy` says what becomes of deletes that were found: `soft`
    flags them, `hard` removes the rows, `ignore` leaves them. With `keys`, an incremental `append` compares the
    rows it reads again with the newest row of their key only.

    ```yaml
    write: {connection: silver, table: customers, mode: upsert, keys: [customer_id]}
    ```

    **Rows that come late** (`upsert`): with `sequence_by` an older row never overwrites a newer one, nor brings back
    a deleted one. `delete_when` is a condition over the new rows: those announce a delete.

    ```yaml
    write:
      {connection: silver, table: orders, mode: upsert, keys: [order_id], sequence_by: lsn, delete_when: "op = 'D'"}
    ```

    **What opens a version** (`scd2`): a change in any column, or with `track` in one of these; the other columns take
    the latest value inside the version. `open_end` is the end of a version that has none; without it, it is NULL.

    ```yaml
    write: {connection: gold, table: dim_customer, mode: scd2, keys: [customer_id], track: [name, segment]}
    ```

    **Business time** (`scd2`): with `effective_at` a version begins when that column says, not when it was read. Rows
    may come in any order, late and more than once: the table is the same. All of them are kept in `<table>__events`.
    Of rows with the same key and instant the highest `sequence_by` counts.

    ```yaml
    write:
      {connection: gold, table: dim_customer, mode: scd2, keys: [customer_id], effective_at: changed_at,
       sequence_by: lsn, delete_when: "op = 'D'", open_end: "9999-12-31"}
    ```
    """

    connection: Text
    table: Text
    mode: Literal["append", "overwrite", "upsert", "scd2"]
    keys: list[Text] = Field(default_factory=list)
    update_condition: Annotated[str, sql_text(check_condition)] | None = None
    partition_by: list[Text] = Field(default_factory=list)
    add_metadata: Annotated[
        Annotated[bool, Tag("flag")] | Annotated[WriteMetadataConfig, Tag("columns")], Discriminator(_flag_or_columns)
    ] = False
    row_hash: bool = True
    delete_strategy: Literal["soft", "hard", "ignore"] | None = None
    delete_when: Annotated[str, sql_text(check_row)] | None = None
    sequence_by: Text | None = None
    track: list[Text] | None = None
    effective_at: Text | None = None
    open_end: datetime | date | Text | None = None
    system_columns: SystemColumnsConfig = Field(default_factory=SystemColumnsConfig)

    @property
    def keyed(self) -> bool:
        """Does it compare rows with the table by their keys?"""
        return self.mode in ("upsert", "scd2")

    def metadata(self) -> WriteMetadataConfig:
        """The metadata columns asked for: `true` is all four, `false` is none."""
        if isinstance(self.add_metadata, WriteMetadataConfig):
            return self.add_metadata
        return WriteMetadataConfig(**dict.fromkeys(WriteMetadataConfig.model_fields, self.add_metadata))

    def mistakes(self) -> Iterator[Mistake]:
        if self.keyed and not self.keys:
            yield Mistake(("keys",), f"mode: {self.mode} needs keys: [...]", "name the columns that identify a row")
        idle: tuple[str, ...] = () if self.keyed else ("update_condition", "row_hash", "system_columns")
        idle += ("update_condition",) if self.mode == "scd2" else ()
        idle += ("keys",) if self.mode == "overwrite" else ()  # `append` knows them in an incremental read
        for key in idle:
            if key in self.model_fields_set:
                yield Mistake((key,), f"`{key}` does nothing with mode: {self.mode}", "remove it, or use mode: upsert")
        for key in ("keys", "partition_by", "track"):
            for index, name in repeated(getattr(self, key) or []):
                yield Mistake((key, index), f"column `{name}` stands twice in `{key}`; case does not matter in names")
        yield from self._history_mistakes()
        yield from self._order_mistakes()

    def _history_mistakes(self) -> Iterator[Mistake]:
        for key in ("track", "effective_at", "open_end"):
            if getattr(self, key) is not None and self.mode != "scd2":
                yield Mistake((key,), f"`{key}` does nothing with mode: {self.mode}", "remove it, or use mode: scd2")
        if self.track is not None and not self.track:
            message = "`track: []` would never open a second version"
            yield Mistake(("track",), message, "name the columns whose changes are versions, or leave it out for all")
        keys = {k.casefold() for k in self.keys}
        for index, name in enumerate(self.track or []):
            if name.casefold() in keys:
                yield Mistake(("track", index), f"`{name}` is a key, which never changes inside a row", "remove it")
        for key in ("effective_at", "sequence_by"):
            if (getattr(self, key) or "").casefold() in keys:
                message = f"`{getattr(self, key)}` is a key of the table and cannot say which of its rows is newer"
                yield Mistake((key,), message, "name another column, or take it out of `keys`")
        if self.open_end is not None:
            try:
                instant(self.open_end)
            except (ValueError, OverflowError):
                message = f"{self.open_end!r} is not a timestamp"
                yield Mistake(("open_end",), message, 'write it like "9999-12-31" or "2999-12-31 00:00:00"')

    def _order_mistakes(self) -> Iterator[Mistake]:
        if self.delete_when is not None and not self.keyed:
            message = f"`delete_when` cannot be done with mode: {self.mode}, which never deletes a row by its key"
            yield Mistake(("delete_when",), message, "use mode: upsert or scd2, or a filter step to leave rows out")
        if self.sequence_by is None:
            return
        if not self.keyed:
            message = f"`sequence_by` does nothing with mode: {self.mode}"
            yield Mistake(("sequence_by",), message, "remove it, or use mode: upsert")
        elif self.mode == "scd2" and self.effective_at is None:
            message = "`sequence_by` decides between rows of one instant, and versions by batch time have none"
            yield Mistake(
                ("sequence_by",), message, "add effective_at: with the column that says when a row became true"
            )
        elif self.mode == "upsert" and self.delete_strategy == "hard":
            yield Mistake(("sequence_by",), FORGETS, SOFT_INSTEAD)


class NodeConfig(Model):
    """One table and how it is made: read, transform, write.

    **Business problem:** a lakehouse is many small flows that depend on each other.
    **Solution:** each is a node; who reads what another writes runs after it (`depends_on` adds to that).
    With `read`, `transformation_sql` calls the rows `source`; with `sources`, by their aliases. `change_log` says
    which rows `etl_changes` keeps: `deletes` (with holds and revivals), `all` changes, or `none`.

    ```yaml
    nodes:
      - name: silver_customers
        tags: [crm]
        read: {connection: bronze, table: customers}
        transformation_sql: SELECT customer_id, trim(name) AS name FROM source
        write: {connection: silver, table: customers, mode: upsert, keys: [customer_id]}
    ```
    """

    name: Annotated[str, StringConstraints(pattern=NODE_NAME)]
    tags: list[Text] = Field(default_factory=list)
    depends_on: list[Text] = Field(default_factory=list)
    read: ReadConfig | None = None
    sources: list[SourceConfig] = Field(default_factory=list)
    settings: SettingsConfig = Field(default_factory=SettingsConfig)
    transform: TransformConfig | None = None
    transformation_sql: Annotated[str, sql_text(parse_select)] | None = None
    write: WriteConfig
    change_log: Literal["deletes", "all", "none"] = "deletes"

    def reads(self) -> list[tuple[Loc, ReadConfig]]:
        """All it reads, each with its place in the node."""
        single: list[tuple[Loc, ReadConfig]] = [(("read",), self.read)] if self.read else []
        return single + [(("sources", i), source) for i, source in enumerate(self.sources)]

    def aliases(self) -> list[str]:
        """The names under which its SQL finds its rows."""
        return [source.alias for source in self.sources] or ["source"]

    def mistakes(self) -> Iterator[Mistake]:
        if self.read and self.sources:
            yield Mistake(("sources",), "`read` and `sources` exclude each other", "keep exactly one of them")
        if not self.read and not self.sources:
            yield Mistake((), "one of `read` and `sources` is missing")
        for index, alias in repeated([source.alias for source in self.sources]):
            yield Mistake(("sources", index, "alias"), f"alias `{alias}` stands twice; case does not matter in names")
        for index, source in enumerate(self.sources if len(self.sources) > 1 else ()):
            for key in ("incremental", "watermark"):
                if getattr(source, key):
                    message = f"`{key}` reads one source, and this node has {len(self.sources)}"
                    yield Mistake(("sources", index, key), message, "read it incrementally in a node of its own")
        if self.write.mode == "append" and self.write.keys and not any(read.limited for _, read in self.reads()):
            message = "`keys` does nothing with mode: append and a full read"
            yield Mistake(("write", "keys"), message, "remove it, or use mode: upsert")
        if len(self.sources) > 1 and not self.transformation_sql:
            yield Mistake(("sources",), "several sources need a `transformation_sql` that joins them")
        steps = self.transform.steps if self.transform else []
        if len(self.sources) > 1 and any(not s.brings_limits for s in steps):
            yield Mistake(
                ("transform", "steps"),
                f"steps work on one source, and this node has {len(self.sources)}",
                "do it in the transformation_sql, or in an upstream node",
            )


class SparkConfig(Model):
    """The Spark session that strandline starts; an active session is reused.

    **Business problem:** a laptop, a CI job and a cluster need other settings.
    **Solution:** the master, settings and Maven packages. A setting may be a secret: `${env:NAME}`.

    ```yaml
    spark:
      master: "local[4]"
      config: {spark.sql.shuffle.partitions: 8}
      packages: ["org.postgresql:postgresql:42.7.4"]
    ```
    """

    master: Text = "local[*]"
    config: dict[str, str | int | float | bool] = Field(default_factory=dict)
    packages: list[Text] = Field(default_factory=list)


class ControlConfig(Model):
    """Where strandline keeps its own records.

    **Business problem:** a killed run must be recognised and finished by the next one.
    **Solution:** control tables in a folder of a lake connection; by default of the first one.

    ```yaml
    control: {connection: bronze, schema: _strandline}
    ```
    """

    connection: Text | None = None
    schema_: Text = Field(default="_strandline", alias="schema")


class RetryConfig(Model):
    """How often a node is tried again after a fault that passes by itself.

    **Business problem:** a database is restarted, another writer commits at the same moment.
    **Solution:** such a node is tried again, three times in all if not said otherwise, after `wait` seconds, then
    twice as long. Other faults are not: they would only come again.

    ```yaml
    retry: {attempts: 5, wait: 2}
    ```
    """

    attempts: int = Field(default=3, ge=1)
    wait: float = Field(default=0.5, ge=0)


class ProjectConfig(Model):
    """A project: its connections and its nodes.

    **Business problem:** pipelines should be read and reviewed like any other source.
    **Solution:** one `strandline.yaml`; `include` adds files with more nodes, connections and vars.
    `{{ var('x') }}` and `{{ env('NAME') }}` may stand in every text.

    ```yaml
    project: shop
    engine: pandas
    vars: {country: CH}
    include: [nodes/*.yaml]
    connections:
      bronze: {type: lake, path: lake/bronze}
    nodes: []
    ```
    """

    project: Annotated[str, StringConstraints(pattern=PROJECT_NAME)]
    engine: Literal["spark", "pandas"] = "spark"
    spark: SparkConfig = Field(default_factory=SparkConfig)
    connections: dict[str, Connection] = Field(default_factory=dict)
    control: ControlConfig | None = None
    retry: RetryConfig = Field(default_factory=RetryConfig)
    vars: dict[str, Any] = Field(default_factory=dict)
    include: list[Text] = Field(default_factory=list)
    nodes: list[NodeConfig]
