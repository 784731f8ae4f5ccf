"""The control tables on path-based storage: small Delta tables, written by deltalake without any Spark job."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from strandline.control.ledger import RECORDED, ChangeRow, ControlRow, Notebook, RunRow
from strandline.control.loads import LoadRow
from strandline.engine.delta_rows import delta_rows
from strandline.errors import CommitConflict
from strandline.types import Table

_TRIES = 20


class DeltaStore:
    """`etl_runs`, `etl_control` and `etl_changes` under one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()  # one writer per process; other processes are met by retrying

    def control(self, node: str) -> list[ControlRow]:
        return [r for r in self.all_control() if r.node == node]

    def all_control(self) -> list[ControlRow]:
        return [ControlRow(**r) for r in self._read("etl_control")]

    def put(self, rows: Sequence[ControlRow]) -> None:
        self._merge("etl_control", _arrow(ControlRow, rows), ("target_table", "source_table", "node"))

    def loads(self, source: str, identifier: str) -> list[LoadRow]:
        """The loads of a source under one identifier."""
        rows = [LoadRow(**r) for r in self._read("etl_loads")]
        return [r for r in rows if (r.source_table, r.delta_load_identifier) == (source, identifier)]

    def put_loads(self, rows: Sequence[LoadRow]) -> None:
        if rows:
            self._merge("etl_loads", _arrow(LoadRow, rows), ("load_id",))

    def _merge(self, name: str, data: pa.Table, keys: Sequence[str]) -> None:
        """Replace the rows with these keys, in one commit."""
        on = " AND ".join(f"s.{k} = t.{k}" for k in keys)

        def write() -> None:
            location = str(self.folder / name)
            try:
                table = DeltaTable(location)
            except TableNotFoundError:
                write_deltalake(location, data, mode="error")
                return
            merge = table.merge(data, predicate=on, source_alias="s", target_alias="t")
            merge.when_matched_update_all().when_not_matched_insert_all().execute()

        self._retried(write)

    def log(self, row: RunRow) -> None:
        data = _arrow(RunRow, [row])
        self._retried(lambda: write_deltalake(str(self.folder / "etl_runs"), data, mode="append"))

    def log_changes(self, rows: Sequence[ChangeRow]) -> None:
        if rows:
            data = _arrow(ChangeRow, rows)
            self._retried(lambda: write_deltalake(str(self.folder / "etl_changes"), data, mode="append"))

    def notebook(self) -> Notebook | None:
        found = {}
        for name in ("etl_changes", "etl_runs"):
            place = str(self.folder / name)
            try:
                found[name] = (Table(name, place), DeltaTable(place).version())
            except TableNotFoundError:
                return None
        return Notebook(found["etl_changes"], found["etl_runs"])

    def changes(self, node: str | None = None) -> list[ChangeRow]:
        """What recorded batches did to single rows, the oldest first."""
        recorded = {(r.run_id, r.node, r.batch) for r in self.runs() if r.status in RECORDED}
        rows = [ChangeRow(**r) for r in self._read("etl_changes") if node in (None, r["node"])]
        return sorted((r for r in rows if (r.run_id, r.node, r.batch) in recorded), key=lambda r: (r.at, r.batch))

    def runs(self, limit: int | None = None) -> list[RunRow]:
        rows = [RunRow(**r) for r in self._read("etl_runs")]
        return sorted(rows, key=lambda r: (r.started_at, r.completed_at), reverse=True)[:limit]

    def _read(self, name: str) -> list[dict[str, Any]]:
        try:
            table = DeltaTable(str(self.folder / name))
        except TableNotFoundError:
            return []
        return list(delta_rows(table).to_pylist())

    def _retried(self, write: Callable[[], Any]) -> None:
        """Another process may commit at the same moment: look again and write again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._lock:
            for attempt in range(_TRIES):
                try:
                    write()
                except (CommitFailedError, DeltaError) as e:
                    if attempt == _TRIES - 1 or not _conflict(e):
                        raise CommitConflict(f"the control tables cannot be written: {e}") from e
                    time.sleep(random.uniform(0.01, 0.05) * (attempt + 1))  # noqa: S311 – spreads writers, hides nothing
                else:
                    return


def _conflict(error: Exception) -> bool:
    return isinstance(error, CommitFailedError) or "already exists" in str(error).lower()


_ARROW = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    datetime: pa.timestamp("us", tz="UTC"),
}
Row = ControlRow | RunRow | ChangeRow | LoadRow


def _arrow(kind: type[Row], rows: Sequence[Row]) -> pa.Table:
    fields = []
    for name, hint in get_type_hints(kind).items():
        plain = next(a for a in getattr(hint, "__args__", (hint,)) if a is not type(None))
        fields.append(pa.field(name, _ARROW[plain]))
    return pa.Table.from_pylist([asdict(r) for r in rows], schema=pa.schema(fields))
