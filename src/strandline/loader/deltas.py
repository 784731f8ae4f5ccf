"""Delta loads: what changed in a table since the last load that was consumed (seed 002)."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.control import loads
from strandline.control.loads import LoadRow
from strandline.errors import Fenced, ReadError, UsageError, did_you_mean
from strandline.journal import log
from strandline.loader import delivery
from strandline.loader.delivery import Wanted
from strandline.loader.tables import hinted, job_frames, job_store, opened, spelled_keys, utc_now
from strandline.types import Relation, Table, TableState

if TYPE_CHECKING:
    from strandline.engine.spark.frames import DataFrame, Frames


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
                raise UsageError(
                    f"strategy_options: {key!r} is not known", hint=did_you_mean(key, known)
                )

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

    @hinted()
    def verify(self) -> None:
        """Raise what is in the way of a load; a feed that is off is not, but is warned of."""
        _, lake, state = opened(self.table)
        state = self.options.wanted.of(state, lake, self.options.keys)
        spelled_keys(self.options.keys, state, lake)
        if not state.feed:
            log.warning("%s keeps no change feed: its snapshots are compared instead", lake.label)

    @hinted()
    def get_data(self) -> DataFrame:
        """What changed, with `_change_type` (insert, update, delete); the first time every row, as inserts.

        The versions are fixed now, however late the frame is evaluated. A load that was read before and not consumed
        is stale from here on. When what was deleted can no longer be told, this is an error that says the way out.
        """
        return self._registered(whole_serves=False)[0]

    read_data = get_data

    def _registered(self, *, whole_serves: bool) -> tuple[DataFrame, bool]:
        """The rows of a load that is now on record, and whether they are all rows in place of lost changes."""
        frames, lake, state = opened(
            self.table, self.options.strategy_options.get("to_commit_version")
        )
        with frames.told(lake.label):
            state = self.options.wanted.of(state, lake, self.options.keys)
            keys = spelled_keys(self.options.keys, state, lake)
            store = job_store(self.options.control)
            earlier = store.loads(lake.location, self.options.delta_load_identifier)
            last = loads.position(earlier)
            start, rows = self._read(frames, lake, state, last, keys)
            whole = last is not None and start is None
            if whole and not whole_serves:
                raise _deletes_lost(lake)
            data = frames.frame(rows).drop(delivery.VERSION)
        load = self._row(lake, state, start)
        store.put_loads([*loads.interrupted(earlier), load])
        self._load = load
        return data, whole

    def _row(self, lake: Table, state: TableState, start: int | None) -> LoadRow:
        return LoadRow(
            load_id=uuid.uuid4().hex,
            source_table=lake.location,
            delta_load_identifier=self.options.delta_load_identifier,
            table_id=state.table_id,
            start_commit_version=start,
            end_commit_version=state.version,
            is_processed=False,
            is_stale=False,
            registered_at=utc_now(),
            processed_at=None,
        )

    @hinted()
    def write_data(
        self,
        write_callable: Callable[..., Any] | None = None,
        *,
        table: object = None,
        key_columns: Sequence[str] = (),
        tables: Sequence[object] = (),
    ) -> None:
        """Read, write and consume: into one `table` by its keys, or by a function of your own into several `tables`.

        The function gets the frame. When it fails, all `tables` are put back together, but never over somebody else's
        commit.
        """
        if (write_callable is None) == (table is None):
            raise UsageError(
                "write_data needs a function, or a table with key_columns", hint="give one of them"
            )
        data, whole = self._registered(whole_serves=table is not None)
        assert self._load is not None
        frames = job_frames()
        with frames.together(
            [*tables, *([table] if table is not None else [])], self._load.load_id
        ):
            if write_callable is not None:
                _call(write_callable, data)
            else:
                frames.merge(table, data, key_columns, whole=whole)
            self.consume_data()

    @hinted()
    def consume_data(self) -> None:
        """Everything that was read is written: the next load goes on from there."""
        load = self._load
        if load is None:
            raise UsageError("nothing was read yet", hint="call get_data() first")
        store = job_store(self.options.control)
        stored = [
            r
            for r in store.loads(load.source_table, load.delta_load_identifier)
            if r.load_id == load.load_id
        ]
        if not stored or stored[0].is_stale:
            raise Fenced(
                f"load {load.delta_load_identifier!r} of {load.source_table} was read again meanwhile, or reset",
                hint="read again with get_data(): what this load wrote will be delivered once more",
            )
        self._load = replace(load, is_processed=True, processed_at=utc_now())
        store.put_loads([self._load])

    @hinted()
    def reset(self) -> None:
        """Forget every load under this identifier: the next one delivers the whole table."""
        _, lake, _ = opened(self.table)
        store = job_store(self.options.control)
        store.put_loads(
            loads.forgotten(store.loads(lake.location, self.options.delta_load_identifier))
        )
        self._load = None

    def _read(
        self,
        frames: Frames,
        lake: Table,
        state: TableState,
        last: LoadRow | None,
        keys: Sequence[str],
    ) -> tuple[int | None, Relation]:
        """From where, and what."""
        given = self.options.strategy_options.get("from_commit_version")
        after = last.end_commit_version if last else None if given is None else int(given) - 1
        if after is None:
            return None, delivery.whole(frames.engine, lake, state, keys)
        same = last is None or last.table_id == state.table_id
        newest = self.options.strategy_options.get("to_commit_version")
        if same and newest is not None and after > state.version:
            told = (
                f"version {after} was consumed already"
                if last
                else f"from_commit_version is {given}"
            )
            raise UsageError(
                f"{lake.label}: to_commit_version {newest} lies before the versions to be read: {told}",
                hint="leave to_commit_version out or raise it, or start over with reset()",
            )
        known = last.table_id if last else None
        rows = (
            delivery.since(frames.engine, lake, state, after, keys, known)
            if after <= state.version
            else None
        )
        if rows is not None:
            return after, rows
        if last is None:
            raise _range_lost(lake, after)
        log.warning(
            "%s: nobody can tell what changed after version %s: all rows are read",
            lake.label,
            after,
        )
        return None, delivery.whole(frames.engine, lake, state, keys)


def _call(write: Callable[..., Any], data: DataFrame) -> None:
    named_ = "data_frame" in inspect.signature(write).parameters
    write(data_frame=data) if named_ else write(data)


def _range_lost(lake: Table, after: int) -> ReadError:
    return ReadError(
        f"{lake.label}: what changed after version {after} can no longer be read",
        hint="raise from_commit_version, or leave it out: the first load then delivers the whole table",
    )


def _deletes_lost(lake: Table) -> ReadError:
    return ReadError(
        f"{lake.label}: its older versions can no longer be read (vacuumed, or the table was made anew), "
        "so what was deleted since the last load is unknown",
        hint="write_data(table=…, key_columns=[…]) also deletes the rows that the source no longer has; or call "
        "reset(), read all rows with get_data(), and merge_dataframe(…, whole=True), which deletes the others",
    )
