"""What a node reads, as frozen models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from strandline.config.base import Count, Model, Text, repeated
from strandline.config.deletes import SystemColumnsConfig
from strandline.config.feeds import FeedOptions, feed_mistakes
from strandline.config.increments import IncrementalConfig, WatermarkConfig
from strandline.config.positions import Mistake
from strandline.config.queries import SqlError, check_type
from strandline.errors import did_you_mean

_ENCODINGS = (
    "utf-8",
    "latin-1",
    "cp1252",
    "utf-16",
    "utf-16-le",
    "iso-8859-15",
    "cp1250",
    "cp850",
    "shift_jis",
)
ALIAS = r"^[A-Za-z_][A-Za-z0-9_]*$"

FileFormat = Literal["csv", "json", "parquet"]
_ENDINGS: dict[str, FileFormat] = {
    ".csv": "csv", ".csv.gz": "csv", ".json": "json", ".json.gz": "json", ".jsonl": "json", ".jsonl.gz": "json",
    ".ndjson": "json", ".ndjson.gz": "json", ".parquet": "parquet",
}  # fmt: skip


class CsvOptions(Model):
    """How a CSV file is written down.

    **Business problem:** every sender has another idea of CSV.
    **Solution:** the delimiter, whether the first line names the columns, which text means NULL, whether quoted
    values may hold line breaks, and the encoding: UTF-8 unless it says `latin-1`, `cp1252`, `utf-16` or another one.

    ```yaml
    read: {connection: files, path: customers.csv, options: {delimiter: ";", null_value: "n/a", encoding: cp1252}}
    ```
    """

    delimiter: str = ","
    header: bool = True
    null_value: str | None = None
    multiline: bool = True
    encoding: Text = "utf-8"

    def mistakes(self) -> Iterator[Mistake]:
        try:
            b"a".decode(self.encoding, "ignore")
        except LookupError:
            hint = did_you_mean(self.encoding, _ENCODINGS) or f"for example {', '.join(_ENCODINGS)}"
            yield Mistake(("encoding",), f"there is no encoding `{self.encoding}`", hint)
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n\0':
            yield Mistake(
                ("delimiter",),
                f"expected one character, found {self.delimiter!r}",
                'for a tab write "\\t"',
            )


class ReadConfig(Model):
    """What a node reads.

    **Business problem:** rows come from databases, files and other tables of the lake.
    **Solution:** a connection and exactly one of `table`, `query` and `path`. CSV columns are strings unless
    `schema` gives their types. `partition_column` and `num_partitions` let Spark read a large table in parallel.
    `incremental` or `watermark` read only what may be new. Steps over files may name `_source_file`: the path of the
    row's file below the connection. It is written only with `add_metadata`, or when SQL selects it.

    **Which rows of a lake table:** its living rows. Of a table with a delete flag these are the rows that are not
    flagged, of an `scd2` table the current version of each key that is not deleted. `include_deleted: true` adds the
    deleted rows (of `scd2` the last version of each deleted key), `versions: all` reads every version. Deleted rows
    carry their flag; other system columns are left out unless SQL or a step names them. SQL or steps that name
    `_valid_from`, `_valid_to` or `_is_current` need `versions: all` or `versions: current`. Of a dimension the default
    members and the rows that only facts know of are left out, unless `include_members: true`. `system_columns` names
    the system columns of a table that strandline has not written; without it such a table is read whole.

    ```yaml
    read: {connection: erp, table: public.customers}
    read: {connection: erp, table: orders, incremental: {mode: stateful, column: updated_at, watermark_lag: 2h}}
    read: {connection: files, format: csv, path: "customers/*.csv", schema: {customer_id: bigint}}
    read: {connection: silver, table: customers, versions: all}
    read: {connection: dwh, table: dim_store, system_columns: {is_current: active, valid_from: since, valid_to: until}}
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
    num_partitions: Count | None = None
    incremental: IncrementalConfig | None = None
    watermark: list[WatermarkConfig] = Field(default_factory=list)
    include_deleted: bool = False
    versions: Literal["all", "current"] | None = None
    include_members: bool = False
    system_columns: SystemColumnsConfig | None = None

    @property
    def with_deleted(self) -> bool:
        """Are deleted rows read too?"""
        return self.include_deleted or self.versions == "all"

    @property
    def limited(self) -> bool:
        """Does a watermark limit it to a part of what is there?"""
        return (self.incremental is not None and self.incremental.mode != "cdf") or bool(
            self.watermark
        )

    @property
    def feed(self) -> FeedOptions | None:
        """How its change feed is read; None when it is not."""
        return self.incremental if self.incremental and self.incremental.mode == "cdf" else None

    @property
    def wildcard(self) -> bool:
        """May its path match several files?"""
        return any(char in (self.path or "") for char in "*?[")

    @property
    def feed_loc(self) -> tuple[str, ...]:
        """Where the options of its feed stand."""
        return ("incremental",)

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
            yield Mistake(
                (extra,),
                f"`{extra}` and `{given[0]}` exclude each other",
                "keep exactly one of them",
            )
        if len(given) == 1:
            yield from self._format_mistakes(given[0])
            yield from self._partition_mistakes(given[0])
            yield from self._increment_mistakes(given[0])
        yield from self._schema_mistakes()

    def _increment_mistakes(self, given: str) -> Iterator[Mistake]:
        if self.incremental and self.watermark:
            yield Mistake(
                ("watermark",),
                "`watermark` and `incremental` exclude each other",
                "keep one of them",
            )
        plain = self.incremental is not None and self.incremental.mode == "stateful"
        if plain and self.incremental and self.incremental.column is None and given != "path":
            yield Mistake(
                ("incremental", "column"),
                "`column` is missing",
                "name the column that grows with changes",
            )
        for index, name in repeated([w.column_name for w in self.watermark]):
            yield Mistake(
                ("watermark", index, "column_name"), f"column `{name}` stands twice in `watermark`"
            )

    def _format_mistakes(self, given: str) -> Iterator[Mistake]:
        if given == "path" and self.format == "sql":
            yield Mistake(("format",), "`format: sql` reads a `table` or a `query`, not a `path`")
        if given != "path" and self.format not in (None, "sql"):
            yield Mistake(("format",), f"`format: {self.format}` reads a `path`, not a `{given}`")
        if self.options is not None and self.file_format != "csv":
            yield Mistake(("options",), "`options` are for csv files only")
        if self.schema_ is not None and self.file_format not in ("csv", "json"):
            yield Mistake(
                ("schema",),
                "`schema` is for csv and json files only",
                "use a `cast` step to change types",
            )

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
            yield Mistake(
                ("schema", column),
                f"column `{column}` is given twice; case does not matter in names",
            )
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
    def feed_loc(self) -> tuple[str, ...]:
        return () if self.cdc_strategy == "cdf" else super().feed_loc

    @property
    def triggers(self) -> bool:
        return self.cdc_strategy != "lookup"

    def mistakes(self) -> Iterator[Mistake]:
        yield from super().mistakes()
        yield from feed_mistakes(self, used=self.cdc_strategy == "cdf", instead="cdc_strategy: cdf")
        for key in ("incremental", "watermark"):
            if "cdc_strategy" in self.model_fields_set and getattr(self, key):
                yield Mistake(
                    (key,), f"`{key}` and `cdc_strategy` exclude each other", "keep one of them"
                )
