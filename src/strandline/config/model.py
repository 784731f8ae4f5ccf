"""The project file as frozen models. Their docstrings are the YAML reference.

A key is accepted only when it does something; a map is refused as a whole with every mistake in it.
Rules that need more than one map (connections, other nodes) are in `check`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from strandline.config.base import Count, EngineName, Model, Number, Text, repeated, sql_text
from strandline.config.connections import Connection
from strandline.config.deletes import DeletesConfig
from strandline.config.increments import SettingsConfig
from strandline.config.positions import Loc, Mistake
from strandline.config.queries import parse_select
from strandline.config.reads import ReadConfig, SourceConfig
from strandline.config.writes import WriteConfig

PROJECT_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_-]*$"
NODE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"


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

    **Several targets:** `write` may be a list. The first target goes by the node's name, each other one is called
    `name.table` in `ls`, `status`, `history` and results; `--select` and `depends_on` with the node's name mean all of
    them. Each keeps its own marks and reads the source for itself, one after the other. When one fails, those that the
    run had written are taken back, and nothing that waits for any of them runs.

    ```yaml
    nodes:
      - name: orders
        read: {connection: erp, table: orders, incremental: {mode: stateful, column: updated_at}}
        write:
          - {connection: silver, table: orders, mode: upsert, keys: [order_id]}
          - {connection: bronze, table: orders_log, mode: append, add_metadata: true}
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
            yield Mistake(
                ("sources",), "`read` and `sources` exclude each other", "keep exactly one of them"
            )
        if not self.read and not self.sources:
            yield Mistake((), "one of `read` and `sources` is missing")
        for index, alias in repeated([source.alias for source in self.sources]):
            yield Mistake(
                ("sources", index, "alias"),
                f"alias `{alias}` stands twice; case does not matter in names",
            )
        for index, source in enumerate(self.sources if len(self.sources) > 1 else ()):
            for key in ("incremental", "watermark"):
                if getattr(source, key):
                    message = f"`{key}` reads one source, and this node has {len(self.sources)}"
                    yield Mistake(
                        ("sources", index, key),
                        message,
                        "read it incrementally in a node of its own",
                    )
        if (
            self.write.mode == "append"
            and self.write.keys
            and not any(read.limited for _, read in self.reads())
        ):
            message = "`keys` does nothing with mode: append and a full read"
            yield Mistake(("write", "keys"), message, "remove it, or use mode: upsert")
        if len(self.sources) > 1 and not self.transformation_sql:
            yield Mistake(
                ("sources",), "several sources need a `transformation_sql` that joins them"
            )
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

    attempts: Count = 3
    wait: Number = 0.5


class ProjectConfig(Model):
    """A project: its connections and its nodes.

    **Business problem:** pipelines should be read and reviewed like any other source.
    **Solution:** one `strandline.yaml`; `include` adds files with more nodes, connections and vars.
    `{{ var('x') }}` and `{{ env('NAME') }}` may stand in every text.

    ```yaml
    project: shop
    engine: local
    vars: {country: CH}
    include: [nodes/*.yaml]
    connections:
      bronze: {type: lake, path: lake/bronze}
    deletes: {max_delete_percent: 5, on_threshold_breach: hold}
    nodes: []
    ```
    """

    project: Annotated[str, StringConstraints(pattern=PROJECT_NAME)]
    engine: EngineName = "spark"
    spark: SparkConfig = Field(default_factory=SparkConfig)
    connections: dict[str, Connection] = Field(default_factory=dict)
    control: ControlConfig | None = None
    deletes: DeletesConfig | None = None
    retry: RetryConfig = Field(default_factory=RetryConfig)
    vars: dict[str, Any] = Field(default_factory=dict)
    include: list[Text] = Field(default_factory=list)
    nodes: list[NodeConfig]
