"""The loaders for hand-written PySpark jobs: every change of a Delta table once, deletes included.

```python
from strandline.loader import DeltaLoaderFactory, DeltaLoadOptions, DeltaManager

options = DeltaLoadOptions(
    strategy="CDF", delta_load_identifier="nightly", strategy_options={"deduplication_columns": ["id"]}
)
loader = DeltaLoaderFactory.create_loader(table_identifier="silver.customers", options=options)
changes = loader.get_data()  # with _change_type: insert, update or delete
DeltaManager().merge_dataframe(table="gold.customers", data_frame=changes, key_columns=["id"])
loader.consume_data()
```

A table is a name, a path, or an object with `.identifier`. What was read is kept in `etl_loads` and `etl_control`, in
the schema or folder that `STRANDLINE_ETL_SCHEMA` names (default: `.strandline` in the working directory).
"""

from __future__ import annotations

import inspect
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline import delivery
from strandline.control import ledger, loads
from strandline.control.ledger import BY_HAND, ControlRow
from strandline.control.loads import LoadRow
from strandline.delivery import Wanted
from strandline.engine.control_store import DeltaStore
from strandline.engine.delta_log import describe, describe_at
from strandline.errors import EmptySource, Fenced, ReadError, UnknownColumn, UsageError, did_you_mean
from strandline.journal import log
from strandline.types import Relation, Table, TableState, Token

if TYPE_CHECKING:
    from strandline.engine.spark.frames import DataFrame, Frames

_SCHEMA = "STRANDLINE_ETL_SCHEMA"


def _frames() -> Frames:
    from strandline.engine.spark.frames import Frames

    return Frames()


def _store(frames: Frames, control: str | Path | None) -> DeltaStore:
    place = str(control or os.environ.get(_SCHEMA) or Path.cwd() / ".strandline")
    return DeltaStore(Path(place).absolute() if "/" in place else frames.schema_folder(place))


def _now() -> datetime:
    return datetime.now(UTC)


# --- seed 003: loading by hand, with a control table -------------------------------------------------------


class DataLoader:
    """Reads Delta tables: whole, or what changed since a version."""

    def load_full_snapshot(self, table: object, **wanted: Any) -> DataFrame:
        """The living rows of a table, fixed to the version it has now; or others, by the options of `Wanted`."""
        frames, lake, state = _opened(table)
        state = Wanted(**wanted).of(state, lake, ())
        return frames.frame(delivery.snapshot(frames.engine, lake, state))

    def load_cdf(
        self, table: object, start_version: int, deduplicate_keys: Sequence[str] | None = None, **wanted: Any
    ) -> DataFrame:
        """The net change from `start_version` (included) to now, with `_change_type`; with keys one row of each."""
        frames, lake, state = _opened(table)
        state = Wanted(**wanted).of(state, lake, deduplicate_keys or ())
        keys = _checked(deduplicate_keys or (), state, lake)
        if start_version > state.version:
            return frames.frame(delivery.nothing(frames.engine, state))
        rows = delivery.since(frames.engine, lake, state, start_version - 1, keys)
        if rows is None:
            raise _lost(lake, start_version - 1)
        return frames.frame(rows)

    def get_latest_version(self, table: object) -> int:
        """The version that a table has now."""
        return _opened(table)[2].version


class ETLControlManager:
    """What was processed, and how it went: one row of `etl_control` per target and source."""

    def __init__(self, control: str | Path | None = None) -> None:
        self._control = control

    def get_watermark(self, target: object, source: object) -> int | None:
        """The last version of the source that a finished batch has brought into the target; None before the first."""
        row = self._row(_name(target), _name(source))
        return row.last_processed_version if row else None

    def batch_start(self, target: object, source: object) -> str:
        """A batch is running; returns its id."""
        return self._put(target, source, "RUNNING").batch_id

    def batch_complete(self, target: object, source: object, version: int, rows_read: int, rows_written: int) -> None:
        """The batch is done: the next one starts after `version`."""
        self._put(target, source, "SUCCESS", version, rows_read=rows_read, rows_written=rows_written)

    def batch_fail(self, target: object, source: object, error_message: str) -> None:
        """The batch failed: the watermark stays where it was."""
        self._put(target, source, "FAILED", error=error_message)

    @property
    def _store(self) -> DeltaStore:
        return _store(_frames(), self._control)

    def _row(self, target: str, source: str) -> ControlRow | None:
        rows = self._store.control(BY_HAND + target)
        return next((r for r in rows if r.source_table == source), None)

    def _put(
        self,
        target: object,
        source: object,
        status: str,
        version: int | None = None,
        *,
        rows_read: int | None = None,
        rows_written: int | None = None,
        error: str | None = None,
    ) -> ControlRow:
        into, label, now = _name(target), _name(source), _now()
        row = self._row(into, label)
        token = Token("", BY_HAND + into, 0, "")
        batch = ledger.next_batch([row] if row else [], token, into, [label], now)
        if status != "RUNNING" and row is not None and row.batch_status == "RUNNING":
            batch = replace(batch, started_at=row.batch_started_at or now)
        versions = {label: version} if version is not None else None
        (new,) = ledger.control_rows(
            batch, status, now, rows_read=rows_read, rows_written=rows_written, versions=versions, error=error
        )
        self._store.put_by_hand([new])
        return new


def load_full_snapshot(table: object, **wanted: Any) -> DataFrame:
    """`DataLoader().load_full_snapshot`."""
    return DataLoader().load_full_snapshot(table, **wanted)


def load_cdf(
    table: object, start_version: int, deduplicate_keys: Sequence[str] | None = None, **wanted: Any
) -> DataFrame:
    """`DataLoader().load_cdf`."""
    return DataLoader().load_cdf(table, start_version, deduplicate_keys, **wanted)


def get_latest_version(table: object) -> int:
    """`DataLoader().get_latest_version`."""
    return DataLoader().get_latest_version(table)


def get_watermark(target: object, source: object) -> int | None:
    """`ETLControlManager().get_watermark`."""
    return ETLControlManager().get_watermark(target, source)


def batch_start(target: object, source: object) -> str:
    """`ETLControlManager().batch_start`."""
    return ETLControlManager().batch_start(target, source)


def batch_complete(target: object, source: object, version: int, rows_read: int, rows_written: int) -> None:
    """`ETLControlManager().batch_complete`."""
    ETLControlManager().batch_complete(target, source, version, rows_read, rows_written)


def batch_fail(target: object, source: object, error_message: str) -> None:
    """`ETLControlManager().batch_fail`."""
    ETLControlManager().batch_fail(target, source, error_message)


# --- seed 002: delta loads ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeltaLoadOptions:
    """How a table is loaded, and under which name its position is kept.

    `strategy_options`: `deduplication_columns` (one row per key, the newest), `from_commit_version` (the first load
    starts with the changes of that version instead of the whole table), `to_commit_version` (read no further).
    `versions`, `include_deleted` and `system_columns` say which rows, as in a node's read; a load that changes them
    needs another identifier, or `reset()`.
    """

    strategy: str
    delta_load_identifier: str
    strategy_options: Mapping[str, Any] = field(default_factory=dict)
    control: str | Path | None = None  # the schema or folder of the control tables
    versions: str | None = None
    include_deleted: bool = False
    system_columns: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.strategy.upper() != "CDF":
            raise UsageError(f"strategy {self.strategy!r} is not known", hint='use strategy="CDF"')
        known = ("deduplication_columns", "from_commit_version", "to_commit_version")
        for key in self.strategy_options:
            if key not in known:
                raise UsageError(f"strategy_options: {key!r} is not known", hint=did_you_mean(key, known))

    @property
    def keys(self) -> Sequence[str]:
        return self.strategy_options.get("deduplication_columns") or ()

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.versions, self.include_deleted, self.system_columns)


DeltaLoadOption = DeltaLoadOptions  # as seed 002's example imports it


class DeltaLoaderFactory:
    """Makes loaders."""

    @staticmethod
    def create_loader(table_identifier: object, options: DeltaLoadOptions) -> DeltaLoader:
        """A loader of one table under one identifier."""
        return DeltaLoader(table_identifier, options)


class DeltaLoader:
    """Delivers what changed in a table since the last load that was consumed under the same identifier."""

    def __init__(self, table_identifier: object, options: DeltaLoadOptions) -> None:
        self.table, self.options = table_identifier, options
        self._load: LoadRow | None = None
        self._frame: DataFrame | None = None
        self._whole = False

    def verify(self) -> None:
        """Can this table be loaded? Raises what is in the way; a feed that is off is not, but is said."""
        _, lake, state = _opened(self.table)
        state = self.options.wanted.of(state, lake, self.options.keys)
        _checked(self.options.keys, state, lake)
        if not state.feed:
            log.warning("%s keeps no change feed: its snapshots are compared instead", lake.label)

    def get_data(self) -> DataFrame:
        """What changed, with `_change_type` (insert, update, delete); the first time every row, as inserts.

        The versions are fixed now, however late the frame is evaluated. A load that was read before and not consumed
        is stale from here on.
        """
        frames, lake, state = _opened(self.table, self.options.strategy_options.get("to_commit_version"))
        state = self.options.wanted.of(state, lake, self.options.keys)
        keys = _checked(self.options.keys, state, lake)
        store = _store(frames, self.options.control)
        earlier = store.loads(lake.location, self.options.delta_load_identifier)
        start, rows = self._read(frames, lake, state, loads.position(earlier), keys)
        load = LoadRow(
            load_id=uuid.uuid4().hex,
            source_table=lake.location,
            delta_load_identifier=self.options.delta_load_identifier,
            table_id=state.table_id,
            start_commit_version=start,
            end_commit_version=state.version,
            is_processed=False,
            is_stale=False,
            registered_at=_now(),
            processed_at=None,
        )
        store.put_loads([*loads.interrupted(earlier), load])
        self._load = load
        self._frame = frames.frame(rows)
        return self._frame

    read_data = get_data

    def write_data(
        self,
        write_callable: Callable[..., Any] | None = None,
        *,
        table: object = None,
        key_columns: Sequence[str] = (),
        tables: Sequence[object] = (),
    ) -> None:
        """Read, write, consume: into one `table` by its keys, or by a function of your own into several `tables`.

        The function gets the frame. When it fails, all `tables` are put back together, but never over somebody else's
        commit.
        """
        if (write_callable is None) == (table is None):
            raise UsageError("write_data needs a function, or a table with key_columns", hint="give one of them")
        data = self.get_data()
        assert self._load is not None
        frames = _frames()
        with frames.together([*tables, *([table] if table is not None else [])], self._load.load_id):
            if write_callable is not None:
                _call(write_callable, data)
            else:
                self._refuse_empty(data)
                frames.merge(table, data, key_columns, whole=self._whole)
            self.consume_data()

    def consume_data(self) -> None:
        """Everything that was read is written: the next load goes on from there."""
        load = self._load
        if load is None:
            raise UsageError("nothing was read yet", hint="call get_data() first")
        store = _store(_frames(), self.options.control)
        stored = [r for r in store.loads(load.source_table, load.delta_load_identifier) if r.load_id == load.load_id]
        if not stored or stored[0].is_stale:
            raise Fenced(
                f"load {load.delta_load_identifier!r} of {load.source_table} was read again meanwhile, or reset",
                hint="read again with get_data(): what this load wrote will be delivered once more",
            )
        self._load = replace(load, is_processed=True, processed_at=_now())
        store.put_loads([self._load])

    def reset(self) -> None:
        """Forget every load under this identifier: the next one delivers the whole table."""
        frames, lake, _ = _opened(self.table)
        store = _store(frames, self.options.control)
        store.put_loads(loads.forgotten(store.loads(lake.location, self.options.delta_load_identifier)))
        self._load = None

    def _read(
        self, frames: Frames, lake: Table, state: TableState, last: LoadRow | None, keys: Sequence[str]
    ) -> tuple[int | None, Relation]:
        """From where, and what."""
        self._whole = False
        given = self.options.strategy_options.get("from_commit_version")
        after = last.end_commit_version if last else None if given is None else int(given) - 1
        if after is None:
            return None, delivery.whole(frames.engine, lake, state, keys)
        same = last is None or last.table_id == state.table_id
        newest = self.options.strategy_options.get("to_commit_version")
        if same and newest is not None and after > state.version:
            told = f"version {after} was consumed already" if last else f"from_commit_version is {given}"
            raise UsageError(
                f"{lake.label}: to_commit_version {newest} lies before the versions to be read: {told}",
                hint="leave to_commit_version out or raise it, or start over with reset()",
            )
        rows = delivery.since(frames.engine, lake, state, after, keys) if same and after <= state.version else None
        if rows is not None:
            return after, rows
        if last is None:
            raise _lost(lake, after)
        log.warning("%s: nobody can tell what changed after version %s: every row is delivered", lake.label, after)
        self._whole = True
        return None, delivery.whole(frames.engine, lake, state, keys)

    def _refuse_empty(self, data: DataFrame) -> None:
        if self._whole and data.isEmpty():
            raise EmptySource(
                f"{_name(self.table)} came back empty, and nobody can tell what was deleted: nothing is written",
                percent=100.0, found=0, alive=0,
                hint="look at the table; if it is empty rightly, empty the target by hand",
            )  # fmt: skip


class DeltaManager:
    """Writes frames into Delta tables."""

    def merge_dataframe(self, table: object, data_frame: DataFrame, key_columns: Sequence[str]) -> int | None:
        """Merge rows by their keys, NULL-safe, in one commit; the new version, or None when nothing was committed.

        A `_change_type` is applied (deletes delete) and never stored. Only rows that differ are written; columns are
        added, never dropped; a key that comes twice is an error. A table that is not there is made.
        """
        return _frames().merge(table, data_frame, list(key_columns))


def _call(write: Callable[..., Any], data: DataFrame) -> None:
    named_ = "data_frame" in inspect.signature(write).parameters
    write(data_frame=data) if named_ else write(data)


def _opened(table: object, version: int | None = None) -> tuple[Frames, Table, TableState]:
    """A table as it is, or as it was at an older version."""
    frames = _frames()
    lake = frames.place(table)
    state = describe(lake)
    if state is None:
        raise ReadError(f"there is no Delta table {lake.label}", hint="give its name in the catalog, or its path")
    if version is not None and version > state.version:
        raise ReadError(f"{lake.label} is at version {state.version}: there is no version {version} yet")
    return frames, lake, state if version in (None, state.version) else describe_at(lake, int(version))


def _checked(keys: Sequence[str], state: TableState, lake: Table) -> list[str]:
    known = delivery.columns_of(state)
    for key in keys:
        if key not in known:
            raise UnknownColumn(key, known.names, where=f"{lake.label}, deduplication columns")
    return [c.name for k in keys if (c := known.get(k))]


def _name(table: object) -> str:
    return str(getattr(table, "identifier", table))


def _lost(lake: Table, after: int) -> ReadError:
    return ReadError(
        f"{lake.label}: what changed after version {after} can no longer be read",
        hint="load it whole: load_full_snapshot, or reset() and get_data()",
    )
