"""The control tables on path-based storage: small Delta tables, written by deltalake without any Spark job."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from strandline.control import fence
from strandline.control.coverage import Coverage
from strandline.control.holds import open_holds, order_of_notes
from strandline.control.ledger import (
    RECORDED,
    UNDOING,
    ChangeRow,
    ControlRow,
    Notebook,
    RunRow,
)
from strandline.control.loads import LoadRow
from strandline.control.store_faults import unreadable, unwritable, wrong_shape
from strandline.errors import CommitConflict
from strandline.failpoints import point
from strandline.journal import log
from strandline.lake.delta.rows import delta_rows
from strandline.types import Table, Token

_TRIES = 60
_TIDY = 100  # commits from one tidying to the next
_PROPERTIES = {
    "delta.checkpointInterval": "10"
}  # many small commits, each opened anew: replaying 100 takes 60 ms
_SHAPE = "strandline control table, shape 1"
"""What a control table says of its shape; another one is refused."""
_T = TypeVar("_T")
_Row = TypeVar("_Row", ControlRow, RunRow, ChangeRow, LoadRow)


class DeltaStore:
    """`etl_runs`, `etl_control` and `etl_changes` under one folder."""

    def __init__(self, folder: Path, project: str | None = None) -> None:
        self.folder = folder
        self.project = (
            project  # whose history is shown: several projects may keep theirs here; None: all
        )
        self._noted: set[tuple[str, str, int]] = (
            set()
        )  # the batches for which this process has noted something
        self._lock = threading.Lock()  # one writer per process; other processes are met by retrying

    def states(self) -> list[ControlRow]:
        return [_from_stored(ControlRow, r) for r in self._read("etl_control")]

    def all_control(self) -> list[ControlRow]:
        """The newest state of all that this project has written."""
        return [r for r in self.states() if self._mine(r.project)]

    def _mine(self, project: str) -> bool:
        return self.project in (None, project)

    def put(self, rows: Sequence[ControlRow], seen: int) -> int | None:
        """The whole table is read and written again, in a commit that lands only on what was read."""

        def write() -> int | None:
            table = self._opened("etl_control")
            there = [_from_stored(ControlRow, r) for r in self._rows("etl_control", table)]
            after = fence.merged(there, rows, seen)
            if after is None:
                return None
            point("control.write", rows[0].node)
            self._write("etl_control", table, _arrow(ControlRow, after), "overwrite")
            return max(r.revision for r in after if r.line == rows[0].line)

        return self._retried(write)

    def put_by_hand(self, row: ControlRow, *, back: bool = False) -> ControlRow:
        """Put the state of a batch that no node runs; its version is never lowered, unless it goes `back` on purpose.

        Returns the row as it was put. Another process may have put a higher version since this one looked.
        """
        mine = (row.target_table, row.source_table, row.node)

        def write() -> ControlRow:
            table = self._opened("etl_control")
            there = [_from_stored(ControlRow, r) for r in self._rows("etl_control", table)]
            before = [r for r in there if (r.target_table, r.source_table, r.node) == mine]
            new = row if back else fence.no_lower(before, row)
            kept = [r for r in there if r not in before]
            self._write("etl_control", table, _arrow(ControlRow, [*kept, new]), "overwrite")
            return new

        return self._retried(write)

    def loads(self, source: str, identifier: str) -> list[LoadRow]:
        """The loads of a source under one identifier."""
        rows = [LoadRow(**r) for r in self._read("etl_loads")]
        return [
            r for r in rows if (r.source_table, r.delta_load_identifier) == (source, identifier)
        ]

    def put_loads(self, rows: Sequence[LoadRow]) -> None:
        """Put loads in the place of those with the same ids, in one commit that lands only on what was read."""
        mine = {r.load_id for r in rows}

        def write() -> None:
            table = self._opened("etl_loads")
            there = [LoadRow(**r) for r in self._rows("etl_loads", table)]
            kept = [r for r in there if r.load_id not in mine]
            self._write("etl_loads", table, _arrow(LoadRow, [*kept, *rows]), "overwrite")

        if rows:
            self._retried(write)

    def log(self, row: RunRow, revision: int = 0) -> None:
        """The commit carries the revision, so that a look at the log tells whether a batch is there."""
        app_id = _app_id(row.line)

        def write() -> None:
            table = self._opened("etl_runs")
            last = (table.transaction_version(app_id) if table else None) or 0
            if row.recorded and last >= revision:
                history = self._rows("etl_runs", table)
                if any(r["status"] in RECORDED and _ending(r) == row.ending for r in history):
                    return
            point("control.write", row.node)
            number = [Transaction(app_id, revision)] if row.recorded and revision > last else None
            self._write("etl_runs", table, _arrow(RunRow, [row]), "append", number)

        self._retried(write)

    def told(self, line: tuple[str, str]) -> int:
        table = self._opened("etl_runs")
        return (table.transaction_version(_app_id(line)) if table else None) or 0

    def _write(
        self,
        name: str,
        table: DeltaTable | None,
        rows: pa.Table,
        mode: Literal["append", "overwrite"],
        number: list[Transaction] | None = None,
        *,
        replacing: str | None = None,
    ) -> None:
        """One commit, on exactly the version that was read: whoever is second fails, and looks again."""
        properties = CommitProperties(app_transactions=number, max_commit_retries=0)
        where = str(self.folder / name) if table is None else table
        tidy = table is not None and (table.version() + 1) % _TIDY == 0
        evolve: Any = "merge" if table is not None else None
        how: Any = mode if table is not None else "error"
        write_deltalake(
            where,
            rows,
            mode=how,
            schema_mode=evolve,
            predicate=replacing,
            configuration=_PROPERTIES if table is None else None,
            description=_SHAPE if table is None else None,
            commit_properties=properties,
        )
        if tidy:
            self._tidy(name)

    def _tidy(self, name: str) -> None:
        """Every commit leaves a small file: now and then they become one, and those replaced a week ago are removed."""
        try:
            table = DeltaTable(str(self.folder / name))
            table.optimize.compact()
            table.vacuum(dry_run=False)
        except (
            DeltaError,
            OSError,
        ) as e:  # somebody else is tidying, or writing: there will be another time
            log.debug("%s is not tidied: %s", name, e)

    def log_changes(self, token: Token, batch: int, rows: Sequence[ChangeRow]) -> None:
        """One commit: a node that is tried again keeps its number, so what the attempt before noted goes with it."""
        mine = (token.run_id, token.node, batch)
        before = _same(mine) if mine in self._noted else None
        if not rows and before is None:
            return
        self._noted.add(
            mine
        )  # before it is written: a commit may land and its writer not hear of it

        def write() -> None:
            table = self._opened("etl_changes")
            replacing = before if table is not None else None
            mode: Literal["append", "overwrite"] = "append" if replacing is None else "overwrite"
            self._write("etl_changes", table, _arrow(ChangeRow, rows), mode, replacing=replacing)

        self._retried(write)

    def decide(self, rows: Sequence[ChangeRow], held: Sequence[ChangeRow]) -> bool:
        """One commit, which lands only on the notes that say that all of these deletes are still held."""
        keys = {(h.table_id, h.key_hash) for h in held}

        def write() -> bool:
            table = self._opened("etl_changes")
            noted = [ChangeRow(**r) for r in self._rows("etl_changes", table)]
            open_ = open_holds(fence.true_notes(noted, self.all_runs()))
            if not keys <= {(h.table_id, h.key_hash) for found in open_.values() for h in found}:
                return False
            self._write("etl_changes", table, _arrow(ChangeRow, rows), "append")
            return True

        return self._retried(write)

    def notebook(self) -> Notebook | None:
        found = {}
        for name in ("etl_changes", "etl_runs"):
            table = self._opened(name)
            if table is None:
                return None
            found[name] = (Table(name, str(self.folder / name)), table.version())
        return Notebook(found["etl_changes"], found["etl_runs"])

    def changes(self, node: str | None = None, also: Collection[str] = ()) -> list[ChangeRow]:
        """What recorded batches did to single rows, the oldest first; `also` those of runs that no longer count."""
        rows = [ChangeRow(**r) for r in self._read("etl_changes") if node in (None, r["node"])]
        return sorted(fence.true_notes(rows, self.all_runs(), also), key=order_of_notes)

    def noted(self) -> set[tuple[str, str]]:
        recorded = fence.counting(self.all_runs())
        rows = ((r["run_id"], r["node"], r["batch"]) for r in self._read("etl_changes"))
        return {row[:2] for row in rows if row in recorded}

    def runs(self, limit: int | None = None) -> list[RunRow]:
        return [r for r in self.all_runs() if self._mine(r.project) and r.status != UNDOING][:limit]

    def list_undo(self, rows: Sequence[RunRow]) -> None:
        """The list of an undo, in one commit."""

        def write() -> None:
            table = self._opened("etl_runs")
            self._write("etl_runs", table, _arrow(RunRow, rows), "append")

        self._retried(write)

    def all_runs(self) -> list[RunRow]:
        rows = [_from_stored(RunRow, r) for r in self._read("etl_runs")]
        return sorted(rows, key=lambda r: (r.started_at, r.completed_at), reverse=True)

    def _read(self, name: str) -> list[dict[str, Any]]:
        return self._rows(name, self._opened(name))

    def _opened(self, name: str) -> DeltaTable | None:
        """A control table of the shape that is known here; None when there is none yet."""
        table = _opened(self.folder / name)
        if table is not None and (shape := table.metadata().description) != _SHAPE:
            raise wrong_shape(self.folder / name, shape, _SHAPE)
        return table

    def _rows(self, name: str, table: DeltaTable | None) -> list[dict[str, Any]]:
        if table is None:
            return []
        try:
            return list(delta_rows(table).to_pylist())
        except Exception as e:  # DataFusion's errors are plain Exceptions
            raise unreadable(self.folder / name, e) from e

    def _retried(self, write: Callable[[], _T]) -> _T:
        """Another process may commit at the same moment: look again and write again. Nothing else passes by itself."""
        with self._lock:
            for attempt in itertools.count(1):
                try:
                    self.folder.mkdir(parents=True, exist_ok=True)
                    return write()
                except (DeltaError, OSError) as e:
                    if not _conflict(e):
                        raise unwritable(self.folder, e) from e
                    if attempt == _TRIES:
                        text = f"others write the control tables in {self.folder} all the time"
                        raise CommitConflict(text, hint="run again") from e
                    time.sleep(random.uniform(0.005, 0.05) * min(attempt, 10))  # noqa: S311 – spreads writers
        raise AssertionError("the last attempt returns or raises")


def _app_id(line: tuple[str, str]) -> str:
    return "/".join(line)


def _ending(row: Mapping[str, Any]) -> tuple[str, str, int]:
    return row["run_id"], row["node"], row["batch"]


def _opened(place: Path) -> DeltaTable | None:
    """A control table; None when there is none yet, or a runner died before its first commit."""
    try:
        return DeltaTable(str(place))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as e:
        raise unreadable(place, e) from e


def _same(batch: tuple[str, str, int]) -> str:
    """The condition that picks the rows of one batch, as deltalake reads it."""
    run_id, node = (text.replace("'", "''") for text in batch[:2])
    return f"run_id = '{run_id}' AND node = '{node}' AND batch = {batch[2]}"


def _conflict(error: Exception) -> bool:
    return isinstance(error, CommitFailedError) or "already exists" in str(error).lower()


_ARROW = {
    Coverage: pa.string(),
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    datetime: pa.timestamp("us", tz="UTC"),
}


def _arrow(kind: type[_Row], rows: Sequence[_Row]) -> pa.Table:
    columns = {}
    for name, hint in get_type_hints(kind).items():
        plain = next(a for a in getattr(hint, "__args__", (hint,)) if a is not type(None))
        columns[name] = pa.array([_stored(getattr(r, name)) for r in rows], _ARROW[plain])
    return pa.table(columns)


def _stored(value: Any) -> Any:
    return value.to_json() if isinstance(value, Coverage) else value


def _from_stored(kind: type[_Row], values: dict[str, Any]) -> _Row:
    """A row as it was written; a batch without a coverage covered nothing, a state without one was never reached."""
    text = values.get("coverage")
    if text is not None or kind is RunRow:
        values = {**values, "coverage": Coverage.from_json(text)}
    return kind(**values)
