"""How deletes are found and judged, and what the columns are called that keep the books."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from strandline.config.base import NO_FLAG, Count, Model, Number, Text, Whole, refusal, repeated
from strandline.config.increments import duration
from strandline.config.positions import Mistake
from strandline.errors import did_you_mean


class DeleteDetectionMode(StrEnum):
    """How deletes are found."""

    NONE = "none"
    SNAPSHOT_DIFF = "snapshot_diff"
    SQL_COMPARE = "sql_compare"
    WATERMARK_WINDOW = "watermark_window"
    FEED = "feed"


class DeleteLimits(Model):
    """When deletes that were found are applied, held, skipped or refused."""

    max_delete_percent: Number | None = 50.0
    max_delete_count: Whole | None = None
    on_threshold_breach: Literal["warn", "error", "skip", "hold"] = "warn"
    on_empty_source: Literal["hold", "error", "apply"] = "hold"
    confirm_runs: Count = 1


class DeletesConfig(DeleteLimits):
    """The project's policy for deletes.

    **Business problem:** a source that was loaded half-way looks as if half of its rows were deleted, and a step that
    says nothing about it deletes them with a warning.
    **Solution:** say once for the project when deletes wait for a person. This is the default of every node that
    infers deletes from outside, by a step or by `delete_missing`; a step may say otherwise. Change feeds of tables
    that the project itself writes bring deletes that were judged before: they keep the built-in limits (more than 50 %
    is a warning). A change feed tells a delete once, so `hold` stands in for `skip` there, and `confirm_runs` does not
    apply.

    ```yaml
    deletes: {max_delete_percent: 5, on_threshold_breach: hold}
    ```
    """


class DeleteDetectionConfig(DeleteLimits):
    """Find the rows that the source no longer has.

    **Business problem:** records are deleted in the source database, but the Silver table still shows them.

    **The solution:** say how absence can be known. `snapshot_diff` compares the newest full extract with the living
    rows of the table; `sql_compare` asks the live source for its keys; `watermark_window` looks at what a watermark
    should have read again; with `feed` they come by a change feed, and the step only
    brings limits.
    A path with a wildcard may match several extracts: `snapshot_column` says which rows are of the newest, by a column
    that the rows have or that an earlier step derives, or by the name of their file (`_source_file`).
    Deletes are flagged (`soft_delete_col`) or, with `soft_delete_col: null`, really removed.
    Before they are applied they are judged: too many (`max_delete_percent`, `max_delete_count`) or a source that
    came back empty (`on_empty_source`) do not delete a table. Limits that the step leaves out are those of the
    project's `deletes:`.
    On a first run `snapshot_diff` has no earlier extract to compare with: `on_first_run: skip` loads the rows and finds
    no deletes, `error` fails and writes nothing until `strandline run --first` loads them once.
    `sql_compare` also sees **missed rows**: keys that the live source has, and neither the input of the node nor its
    table, twice running. A row that was committed late, or came back with an old change time, lies behind the
    watermark and is never read. `missed_rows: warn` tells of them; `read` repeats the incremental read for these keys
    in the next run, in this node or in the Bronze node that it reads, without moving the watermark; `ignore` says
    nothing. More than `max_missed_rows` are only warned of. Without `missed_rows` it warns, unless the node that reads
    the database leaves rows out itself (a filter, SQL, a query of its own).

    **Recipe 1: SQL compare (recommended with a high-water mark)**
    ```yaml
    - operation: detect_deletes
      params: {mode: sql_compare, keys: [customer_id], source_connection: erp, source_table: dbo.Customers}
    ```

    **Recipe 2: snapshot diff (full extracts)**
    ```yaml
    - operation: detect_deletes
      params: {mode: snapshot_diff, keys: [customer_id]}
    ```

    **Recipe 3: a critical dimension**
    ```yaml
    - operation: detect_deletes
      params:
        mode: sql_compare
        keys: [customer_id]
        source_connection: erp
        source_table: dbo.Customers
        max_delete_percent: 5
        on_threshold_breach: hold   # a person decides: strandline approve RUN, or reject RUN
        confirm_runs: 2             # gone twice running
    ```

    **Recipe 4: dated full extracts in a folder** (`products_2024-06-01.csv`; the newest by its name is compared)
    ```yaml
    - operation: detect_deletes
      params: {mode: snapshot_diff, keys: [product_id], snapshot_column: _source_file}
    ```

    **Recipe 5: limits for deletes that come by a change feed**
    ```yaml
    - operation: detect_deletes
      params: {mode: feed, keys: [customer_id], max_delete_percent: 10, on_threshold_breach: hold}
    ```

    **Recipe 6: read what the watermark has passed over**
    ```yaml
    - operation: detect_deletes
      params:
        mode: sql_compare
        keys: [order_id]
        source_connection: erp
        source_table: orders
        missed_rows: read
    ```
    """

    mode: DeleteDetectionMode = DeleteDetectionMode.NONE
    keys: list[Text] = Field(default_factory=list)
    soft_delete_col: Text | None = "_is_deleted"
    source_connection: Text | None = None
    source_table: Text | None = None
    source_query: Text | None = None
    snapshot_column: Text | None = None
    on_first_run: Literal["skip", "error"] = "skip"
    target_filter: Text | None = None
    max_window_gap: Annotated[str | int | float | None, NO_FLAG] = None
    missed_rows: Literal["warn", "read", "ignore"] = "warn"
    max_missed_rows: Count = 10_000

    @field_validator("mode", mode="before")
    @classmethod
    def _known_mode(cls, mode: Any) -> Any:
        modes = [str(m) for m in DeleteDetectionMode]
        if mode is None or isinstance(mode, list | dict) or mode in modes:
            return mode
        hint = did_you_mean(str(mode), modes) or f"modes are {', '.join(modes)}"
        raise refusal(Mistake((), f"Unknown delete detection mode: {mode}", hint))

    def mistakes(self) -> Iterator[Mistake]:
        if self.mode is DeleteDetectionMode.NONE:
            return
        compare = DeleteDetectionMode.SQL_COMPARE
        if not self.keys:
            yield Mistake(("keys",), f"delete_detection: 'keys' required for mode='{self.mode}'")
        for index, name in repeated(self.keys):
            yield Mistake(
                ("keys", index),
                f"column `{name}` stands twice in `keys`; case does not matter in names",
            )
        if self.mode is compare and not self.source_connection:
            yield Mistake(
                ("source_connection",),
                "delete_detection: 'source_connection' required for sql_compare",
            )
        if self.mode is compare and not self.source_table and not self.source_query:
            yield Mistake(
                ("source_table",), "delete_detection: 'source_table' or 'source_query' required"
            )
        yield from self._idle_mistakes()
        if self.mode is DeleteDetectionMode.FEED:
            yield from self._once_mistakes()
        if isinstance(self.max_window_gap, str) and duration(self.max_window_gap) is None:
            message = f"{self.max_window_gap!r} is not a duration"
            yield Mistake(("max_window_gap",), message, "write it like 12h, 7d or 2w")

    def _idle_mistakes(self) -> Iterator[Mistake]:
        compare, diff = DeleteDetectionMode.SQL_COMPARE, DeleteDetectionMode.SNAPSHOT_DIFF
        needs = {"source_connection": compare, "source_table": compare, "source_query": compare}
        needs |= {"snapshot_column": diff, "max_window_gap": DeleteDetectionMode.WATERMARK_WINDOW}
        for key, mode in needs.items():
            if getattr(self, key) is not None and self.mode is not mode:
                yield Mistake(
                    (key,),
                    f"`{key}` does nothing with mode: {self.mode}",
                    f"it is for mode: {mode}",
                )
        for key in ("missed_rows", "max_missed_rows"):
            if key in self.model_fields_set and self.mode is not compare:
                yield Mistake(
                    (key,),
                    f"`{key}` does nothing with mode: {self.mode}",
                    f"it is for mode: {compare}",
                )
        if (
            self.on_first_run == "error" and self.mode is not diff
        ):  # the other modes compare with no earlier snapshot
            message = f"`on_first_run: error` does nothing with mode: {self.mode}"
            yield Mistake(("on_first_run",), message, f"it is for mode: {diff}")

    def _once_mistakes(self) -> Iterator[Mistake]:
        """A feed says once that a row is gone."""
        if self.on_threshold_breach == "skip":
            message = "a feed says once that a row is gone: `on_threshold_breach: skip` would lose them for good"
            yield Mistake(
                ("on_threshold_breach",),
                message,
                "use hold, and decide with strandline approve or reject",
            )
        if self.confirm_runs > 1:
            message = (
                "`confirm_runs` does nothing with mode: feed: a feed says once that a row is gone"
            )
            yield Mistake(
                ("confirm_runs",),
                message,
                "remove it; on_threshold_breach: hold lets a person decide",
            )


ROLES = ("deleted", "last_seen", "is_current", "valid_from", "valid_to", "row_hash")
_PRESETS = {
    None: ("_", ("is_deleted", "last_seen", "is_current", "valid_from", "valid_to", "row_hash")),
    "dlf": ("dlf_", ("deleted", "lastSeen", "IsCurrent", "ValidFrom", "ValidTo", "SourceHash")),
    "kimball": (
        "__",
        ("is_deleted", "last_seen", "is_current", "valid_from", "valid_to", "row_hash"),
    ),
}


class SystemColumnsConfig(Model):
    """What the columns are called that strandline keeps for itself.

    **Business problem:** a house has had its own names for "deleted" and "valid to" for years.
    **Solution:** a `preset`, another `prefix`, or each name by itself.

    ```yaml
    write: {connection: silver, table: orders, mode: scd2, keys: [order_id], system_columns: {preset: dlf}}
    ```
    """

    preset: Literal["dlf", "kimball"] | None = None
    prefix: str | None = None
    deleted: Text | None = None
    last_seen: Text | None = None
    is_current: Text | None = None
    valid_from: Text | None = None
    valid_to: Text | None = None
    row_hash: Text | None = None

    def names(self) -> dict[str, str]:
        """The column of each role."""
        prefix, bases = _PRESETS[self.preset]
        prefix = prefix if self.prefix is None else self.prefix
        return {
            role: getattr(self, role) or prefix + base
            for role, base in zip(ROLES, bases, strict=True)
        }

    def mistakes(self) -> Iterator[Mistake]:
        names = self.names()
        for index, name in repeated(list(names.values())):
            yield Mistake(
                (ROLES[index],),
                f"two system columns would be called `{name}`; give one another name",
            )
