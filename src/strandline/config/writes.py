"""Where the rows of a node go, as frozen models."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from strandline.config.base import Model, Text, repeated, sql_text
from strandline.config.deletes import SystemColumnsConfig
from strandline.config.positions import Mistake
from strandline.config.queries import check_condition, check_row
from strandline.config.star import DefaultMembersConfig, SurrogateKeyConfig


class WriteMetadataConfig(Model):
    """Which metadata columns a write adds.

    **Business problem:** months later somebody asks where a Bronze row came from.
    **Solution:** `_extracted_at`, `_source_file`, `_source_connection` and `_source_table`, each where it applies. Of a
    query, `_source_table` is the node's name and the tables that the query reads. Rows that bring a column of such a
    name of their own are refused: rename it in a step.

    ```yaml
    write: {connection: bronze, table: customers, mode: append, add_metadata: {source_connection: true}}
    ```
    """

    extracted_at: bool = True
    source_file: bool = True
    source_connection: bool = False
    source_table: bool = False


EVENTS = "__events"
QUARANTINE = "__quarantine"
"""What is added to a table's name where the events of its history are kept."""
FORGETS = (
    "`sequence_by` and hard deletes exclude each other: a removed row forgets its sequence, "
    "and a late older row would bring it back"
)
SOFT_INSTEAD = (
    "use delete_strategy: soft, which keeps the flagged row and its sequence, "
    "or mode: scd2 with effective_at"
)


def instant(value: datetime | date | str) -> datetime:
    """A point in time as written in YAML: a date is its first moment, a time without a zone is UTC."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value.strip())
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


Evolution = Literal["add", "strict", "off"]


def _flag_or_columns(value: object) -> str:
    return "columns" if isinstance(value, dict | Model) else "flag"


class WriteConfig(Model):
    """Where the rows of a node go, and how.

    **Business problem:** the same rows may come again, changed or not, and the table must stay right.
    **Solution:** `append` adds them, `overwrite` replaces the table, `upsert` merges them by `keys`; unchanged rows
    are not written. `delete_insert` replaces all rows of a key. `scd2` keeps every version with its time.
    `update_condition` says which changes count. `row_hash: false` leaves `_row_hash` out. `delete_strategy` says what
    becomes of deletes that were found: `soft` flags them, `hard` removes the rows, `ignore` leaves them. With `keys`,
    an incremental `append` compares the rows it reads again with what was appended last of their key; `add_metadata`
    tells which that is. A column that such a read lacks keeps the value known of the key.

    ```yaml
    write: {connection: silver, table: customers, mode: upsert, keys: [customer_id]}
    ```

    **All rows of a key at once:** `delete_insert` replaces the rows of every key that comes by the rows that come, in
    one commit. A key may have several rows; one whose rows are the same, metadata aside, is left alone. A column that
    the rows lack becomes NULL where rows are replaced.

    ```yaml
    write: {connection: silver, table: order_lines, mode: delete_insert, keys: [order_id]}
    ```

    **Columns that come and go:** `schema_evolution` says what may become of the table's columns: `add` (default),
    `strict` or `off`; a node may say it for all of its targets. `relax_not_null: true` lets NOT NULL columns be NULL.

    ```yaml
    write: {connection: silver, table: customers, mode: upsert, keys: [customer_id], schema_evolution: strict}
    ```

    **Several targets:** a list of such maps, each with a mode of its own; they are written together or not at all.

    ```yaml
    write:
      - {connection: silver, table: customers, mode: upsert, keys: [customer_id]}
      - {connection: gold, table: dim_customer, mode: scd2, keys: [customer_id]}
    ```

    **Rows that come late** (`upsert`): with `sequence_by` an older row never overwrites a newer one, nor brings back
    one whose delete was announced. `delete_when` is a condition over the new rows: those announce a delete.

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

    **Keys of its own** (`upsert`, `scd2`): `surrogate_key` gives each row a BIGINT that never changes, in `scd2` each
    version; `durable_key` names a column that all versions of a key share. `default_members: true` adds the rows −1
    (unknown) and −2 (not applicable).

    ```yaml
    write:
      {connection: gold, table: dim_customer, mode: scd2, keys: [customer_id],
       surrogate_key: {column: customer_sk, strategy: hash}, durable_key: customer_dk, default_members: true}
    ```
    """

    connection: Text
    table: Text
    mode: Literal["append", "overwrite", "upsert", "scd2", "delete_insert"]
    keys: list[Text] = Field(default_factory=list)
    update_condition: Annotated[str, sql_text(check_condition)] | None = None
    partition_by: list[Text] = Field(default_factory=list)
    add_metadata: Annotated[
        Annotated[bool, Tag("flag")] | Annotated[WriteMetadataConfig, Tag("columns")],
        Discriminator(_flag_or_columns),
    ] = False
    row_hash: bool = True
    schema_evolution: Evolution | None = None
    relax_not_null: bool = False
    delete_strategy: Literal["soft", "hard", "ignore"] | None = None
    delete_when: Annotated[str, sql_text(check_row)] | None = None
    sequence_by: Text | None = None
    track: list[Text] | None = None
    effective_at: Text | None = None
    open_end: datetime | date | Text | None = None
    surrogate_key: SurrogateKeyConfig | None = None
    durable_key: Text | None = None
    default_members: Annotated[
        Annotated[bool, Tag("flag")] | Annotated[DefaultMembersConfig, Tag("columns")],
        Discriminator(_flag_or_columns),
    ] = False
    system_columns: SystemColumnsConfig = Field(default_factory=SystemColumnsConfig)

    @property
    def keyed(self) -> bool:
        """Does it compare rows with the table by their keys?"""
        return self.mode in ("upsert", "scd2", "delete_insert")

    @property
    def announces(self) -> bool:
        """Do rows say themselves that they are gone, and is that applied?"""
        return self.delete_when is not None and self.delete_strategy != "ignore"

    @property
    def conditions(self) -> list[str]:
        """What decides, row by row, what is written of it."""
        return [sql for sql in (self.delete_when, self.update_condition) if sql is not None]

    def metadata(self) -> WriteMetadataConfig:
        """The metadata columns asked for: `true` is all four, `false` is none."""
        if isinstance(self.add_metadata, WriteMetadataConfig):
            return self.add_metadata
        return WriteMetadataConfig(
            **dict.fromkeys(WriteMetadataConfig.model_fields, self.add_metadata)
        )

    def mistakes(self) -> Iterator[Mistake]:
        if self.keyed and not self.keys:
            yield Mistake(
                ("keys",),
                f"mode: {self.mode} needs keys: [...]",
                "name the columns that identify a row",
            )
        idle: tuple[str, ...] = (
            () if self.keyed else ("update_condition", "row_hash", "system_columns")
        )
        idle += ("update_condition",) if self.mode in ("scd2", "delete_insert") else ()
        idle += ("row_hash", "sequence_by") if self.mode == "delete_insert" else ()
        idle += (
            ("keys",) if self.mode == "overwrite" else ()
        )  # `append` knows them in an incremental read
        for key in idle:
            if key in self.model_fields_set:
                yield Mistake(
                    (key,),
                    f"`{key}` does nothing with mode: {self.mode}",
                    "remove it, or use mode: upsert",
                )
        for key in ("keys", "partition_by", "track"):
            for index, name in repeated(getattr(self, key) or []):
                yield Mistake(
                    (key, index),
                    f"column `{name}` stands twice in `{key}`; case does not matter in names",
                )
        yield from self._history_mistakes()
        yield from self._order_mistakes()
        yield from self._key_mistakes()

    def _history_mistakes(self) -> Iterator[Mistake]:
        for key in ("track", "effective_at", "open_end"):
            if getattr(self, key) is not None and self.mode != "scd2":
                yield Mistake(
                    (key,),
                    f"`{key}` does nothing with mode: {self.mode}",
                    "remove it, or use mode: scd2",
                )
        if self.track is not None and not self.track:
            message = "`track: []` would never open a second version"
            yield Mistake(
                ("track",),
                message,
                "name the columns whose changes are versions, or leave it out for all",
            )
        keys = {k.casefold() for k in self.keys}
        for index, name in enumerate(self.track or []):
            if name.casefold() in keys:
                yield Mistake(
                    ("track", index),
                    f"`{name}` is a key, which never changes inside a row",
                    "remove it",
                )
        for key in ("effective_at", "sequence_by"):
            if (getattr(self, key) or "").casefold() in keys:
                message = f"`{getattr(self, key)}` is a key of the table and cannot say which of its rows is newer"
                yield Mistake((key,), message, "name another column, or take it out of `keys`")
        if self.open_end is not None:
            try:
                instant(self.open_end)
            except (ValueError, OverflowError):
                message = f"{self.open_end!r} is not a timestamp"
                yield Mistake(
                    ("open_end",), message, 'write it like "9999-12-31" or "2999-12-31 00:00:00"'
                )

    def _order_mistakes(self) -> Iterator[Mistake]:
        if self.delete_when is not None and not self.keyed:
            message = f"`delete_when` cannot be done with mode: {self.mode}, which never deletes a row by its key"
            yield Mistake(
                ("delete_when",),
                message,
                "use mode: upsert or scd2, or a filter step to leave rows out",
            )
        if self.sequence_by is None:
            return
        if self.mode == "delete_insert":
            return  # told above
        if not self.keyed:
            message = f"`sequence_by` does nothing with mode: {self.mode}"
            yield Mistake(("sequence_by",), message, "remove it, or use mode: upsert")
        elif self.mode == "scd2" and self.effective_at is None:
            message = "`sequence_by` decides between rows of one instant, and versions by batch time have none"
            yield Mistake(
                ("sequence_by",),
                message,
                "add effective_at: with the column that says when a row became true",
            )
        elif self.mode == "upsert" and self.delete_strategy == "hard":
            yield Mistake(("sequence_by",), FORGETS, SOFT_INSTEAD)

    def _key_mistakes(self) -> Iterator[Mistake]:
        key = self.surrogate_key
        if key is not None and not self.keyed:
            message = f"`surrogate_key` does nothing with mode: {self.mode}"
            yield Mistake(("surrogate_key",), message, "remove it, or use mode: upsert or scd2")
        for name in ("durable_key", "default_members"):
            if getattr(self, name) and key is None:
                hint = "add surrogate_key: {column: …}"
                yield Mistake((name,), f"`{name}` needs a surrogate_key", hint)
        if self.durable_key and self.mode == "upsert":
            message = "`durable_key` does nothing with mode: upsert, where a key has one row"
            yield Mistake(("durable_key",), message, "remove it, or use mode: scd2")
        own = [key.column] if key else []
        own += [self.durable_key] if self.durable_key else []
        for name in own:
            if name.casefold() in {k.casefold() for k in self.keys}:
                message = f"`{name}` is one of the keys, which come from the source"
                yield Mistake(("surrogate_key",), message, "give the new key another name")
        for _, name in repeated(own):
            yield Mistake(("durable_key",), f"both keys are called `{name}`", "rename one of them")

    @property
    def members(self) -> DefaultMembersConfig | None:
        """The default members of the table; None when it has none."""
        given = self.default_members
        if isinstance(given, DefaultMembersConfig):
            return given
        return DefaultMembersConfig() if given else None
