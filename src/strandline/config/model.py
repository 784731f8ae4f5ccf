"""The project file as frozen models. Their docstrings are the YAML reference.

A key is accepted only when it does something; a map is refused as a whole with every mistake in it.
Rules that need more than one map (connections, other nodes) are in `check`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from strandline.config.positions import Loc, Mistake
from strandline.config.queries import SqlError, check_condition, check_type, parse_select

PROJECT_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_-]*$"
NODE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
ALIAS = r"^[A-Za-z_][A-Za-z0-9_]*$"

SALVAGE = "salvage"
"""As the context of a validation: read what can be read of a map whose mistakes are told already."""

Text = Annotated[str, StringConstraints(min_length=1)]
FileFormat = Literal["csv", "json", "parquet"]
_ENDINGS: dict[str, FileFormat] = {
    ".csv": "csv", ".csv.gz": "csv", ".json": "json", ".json.gz": "json", ".jsonl": "json", ".jsonl.gz": "json",
    ".ndjson": "json", ".ndjson.gz": "json", ".parquet": "parquet",
}  # fmt: skip


def _sql(check: Callable[[str], object]) -> AfterValidator:
    """A text that must pass a check of `queries`."""

    def checked(text: str) -> str:
        try:
            check(text)
        except SqlError as mistake:
            raise _custom(Mistake((), mistake.message, mistake.hint)) from mistake
        return text

    return AfterValidator(checked)


def _custom(mistake: Mistake) -> PydanticCustomError:
    # The text goes through ctx, because a template would take braces in it for its own.
    return PydanticCustomError("strandline", "{message}", {"message": mistake.message, "hint": mistake.hint})


def repeated(names: list[str]) -> list[tuple[int, str]]:
    """The names, with their places, that stood in the list before; names compare case-insensitively."""
    seen: Counter[str] = Counter()
    again = []
    for index, name in enumerate(names):
        if seen[name.casefold()]:
            again.append((index, name))
        seen[name.casefold()] += 1
    return again


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    def mistakes(self) -> Iterator[Mistake]:
        """What is wrong between the keys of this map, each at the key to change."""
        return iter(())

    @model_validator(mode="after")
    def _all_mistakes(self, info: ValidationInfo) -> Self:
        if info.context == SALVAGE:
            return self
        if found := list(self.mistakes()):
            raise ValidationError.from_exception_data(
                type(self).__name__, [InitErrorDetails(type=_custom(m), loc=m.loc, input=None) for m in found]
            )
        return self


class SqlConnection(_Model):
    """A database to read from.

    **Business problem:** the rows live in an ERP or a shop database, and its password must not live in a file.
    **Solution:** a SQLAlchemy or JDBC URL; user and password are references, resolved when the connection opens.
    `jdbc_url` replaces the JDBC URL that Spark would derive, `driver` its JDBC class.

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


class FilesConnection(_Model):
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


class LakeConnection(_Model):
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


class CsvOptions(_Model):
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


class ReadConfig(_Model):
    """What a node reads.

    **Business problem:** rows come from databases, files and other tables of the lake.
    **Solution:** a connection and exactly one of `table`, `query` and `path`. CSV columns are strings unless
    `schema` gives their types. `partition_column` and `num_partitions` let Spark read a large table in parallel.

    ```yaml
    read: {connection: erp, table: public.customers}
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
        yield from self._schema_mistakes()

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


class SourceConfig(ReadConfig):
    """One of several things a node reads, under the name its SQL calls it.

    **Business problem:** a dimension or a fact joins several tables.
    **Solution:** a `read` with an `alias`; `transformation_sql` selects from the aliases.

    ```yaml
    sources:
      - {connection: silver, table: customers, alias: c}
      - {connection: silver, table: orders, alias: o}
    ```
    """

    alias: Annotated[str, StringConstraints(pattern=ALIAS)]


class StepConfig(_Model):
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


class TransformConfig(_Model):
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


class WriteMetadataConfig(_Model):
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


def _flag_or_columns(value: object) -> str:
    return "columns" if isinstance(value, dict | WriteMetadataConfig) else "flag"


class WriteConfig(_Model):
    """Where the rows of a node go, and how.

    **Business problem:** the same rows may come again, changed or not, and the table must stay right.
    **Solution:** `append` adds them, `overwrite` replaces the table, `upsert` merges them by `keys`; unchanged rows
    are not written. `update_condition` says which changes count. `row_hash: false` leaves `_row_hash` out.

    ```yaml
    write: {connection: silver, table: customers, mode: upsert, keys: [customer_id]}
    ```
    """

    connection: Text
    table: Text
    mode: Literal["append", "overwrite", "upsert"]
    keys: list[Text] = Field(default_factory=list)
    update_condition: Annotated[str, _sql(check_condition)] | None = None
    partition_by: list[Text] = Field(default_factory=list)
    add_metadata: Annotated[
        Annotated[bool, Tag("flag")] | Annotated[WriteMetadataConfig, Tag("columns")], Discriminator(_flag_or_columns)
    ] = False
    row_hash: bool = True

    def metadata(self) -> WriteMetadataConfig:
        """The metadata columns asked for: `true` is all four, `false` is none."""
        if isinstance(self.add_metadata, WriteMetadataConfig):
            return self.add_metadata
        return WriteMetadataConfig(**dict.fromkeys(WriteMetadataConfig.model_fields, self.add_metadata))

    def mistakes(self) -> Iterator[Mistake]:
        if self.mode == "upsert" and not self.keys:
            yield Mistake(("keys",), "mode: upsert needs keys: [...]", "name the columns that identify a row")
        if self.mode != "upsert":
            for key in ("keys", "update_condition", "row_hash"):
                if key in self.model_fields_set:
                    yield Mistake(
                        (key,), f"`{key}` does nothing with mode: {self.mode}", "remove it, or use mode: upsert"
                    )
        for key in ("keys", "partition_by"):
            for index, name in repeated(getattr(self, key)):
                yield Mistake((key, index), f"column `{name}` stands twice in `{key}`; case does not matter in names")


class NodeConfig(_Model):
    """One table and how it is made: read, transform, write.

    **Business problem:** a lakehouse is many small flows that depend on each other.
    **Solution:** each is a node; who reads what another writes runs after it (`depends_on` adds to that).
    With `read`, `transformation_sql` calls the rows `source`; with `sources`, by their aliases.

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
    transform: TransformConfig | None = None
    transformation_sql: Annotated[str, _sql(parse_select)] | None = None
    write: WriteConfig

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
        if len(self.sources) > 1 and not self.transformation_sql:
            yield Mistake(("sources",), "several sources need a `transformation_sql` that joins them")
        if len(self.sources) > 1 and self.transform and self.transform.steps:
            yield Mistake(
                ("transform", "steps"),
                f"steps work on one source, and this node has {len(self.sources)}",
                "do it in the transformation_sql, or in an upstream node",
            )


class SparkConfig(_Model):
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


class ControlConfig(_Model):
    """Where strandline keeps its own records.

    **Business problem:** a killed run must be recognised and finished by the next one.
    **Solution:** control tables in a folder of a lake connection; by default of the first one.

    ```yaml
    control: {connection: bronze, schema: _strandline}
    ```
    """

    connection: Text | None = None
    schema_: Text = Field(default="_strandline", alias="schema")


class ProjectConfig(_Model):
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
    vars: dict[str, Any] = Field(default_factory=dict)
    include: list[Text] = Field(default_factory=list)
    nodes: list[NodeConfig]
