"""The control tables on path-based storage: small Delta tables, written by deltalake without any Spark job."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from strandline.control import fence
from strandline.control.coverage import Coverage
from strandline.control.holds import carried_over, with_decisions
from strandline.control.ledger import BY_HAND, ChangeRow, ControlRow, Notebook, RunRow
from strandline.control.loads import LoadRow
from strandline.control.store_faults import unreadable, unwritable, wrong_shape
from strandline.errors import CommitConflict, Fenced, taken
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
        self.project = project  # whose records these are: several projects may keep theirs here; None: everybody's
        self._noted: set[tuple[str, str, int]] = (
            set()
        )  # the batches for which this process has noted something
        self._lock = threading.Lock()  # one writer per process; other processes are met by retrying

    def control(self, node: str, target: str | None = None) -> list[ControlRow]:
        return [r for r in self._control() if r.node == node or _wrote(r, target)]

    def writers(self, target: str) -> list[ControlRow]:
        return [r for r in self._control() if _wrote(r, target)]

    def all_control(self) -> list[ControlRow]:
        return [r for r in self._control() if self._mine(r.project)]

    def _control(self) -> list[ControlRow]:
        return [_from_stored(ControlRow, r) for r in self._read("etl_control")]

    def _mine(self, project: str | None) -> bool:
        return None in (project, self.project) or project == self.project

    def put(self, rows: Sequence[ControlRow]) -> bool:
        """The whole table is read and written again, in a commit that lands only on what was read."""

        def write() -> bool:
            table = _opened(self.folder / "etl_control")
            there = [_from_stored(ControlRow, r) for r in self._rows("etl_control", table)]
            node, project = rows[0].node, rows[0].project or ""
            before = [r for r in there if r.by(project, node)]
            new = fence.merged(before, rows)
            if not new:
                return False
            others = [r for r in there if not r.by(project, node)]
            if (
                rows[0].batch_status == "SUCCESS"
            ):  # a node of another name that had begun to write this table
                left = [
                    r
                    for r in others
                    if _wrote(r, rows[0].target_table) and r.project in (None, project)
                ]
                others = [*(r for r in others if r not in left), *fence.healed(left)]
            point("control.write", node)
            after = [*others, *fence.replaced(before, new)]
            self._write("etl_control", table, _arrow(ControlRow, after), "overwrite")
            return True

        return self._retried(write)

    def put_by_hand(self, row: ControlRow, *, back: bool = False) -> ControlRow:
        """Put the state of a batch that no node runs; its version is never lowered, unless it goes `back` on purpose.

        Returns the row as it was put. Another process may have put a higher version since this one looked.
        """
        mine = (row.target_table, row.source_table, row.node)

        def write() -> ControlRow:
            table = _opened(self.folder / "etl_control")
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
            table = _opened(self.folder / "etl_loads")
            there = [LoadRow(**r) for r in self._rows("etl_loads", table)]
            kept = [r for r in there if r.load_id not in mine]
            self._write("etl_loads", table, _arrow(LoadRow, [*kept, *rows]), "overwrite")

        if rows:
            self._retried(write)

    def log(self, row: RunRow) -> RunRow:
        """One ending of a number: its commit carries the number, and lands only on what was read."""
        app_id = row.token.rpartition("/")[0]

        def write() -> RunRow:
            table = _opened(self.folder / "etl_runs")
            last = (table.transaction_version(app_id) if table else None) or 0
            told = row
            if row.recorded and last >= row.batch:
                history = self._history(table, app_id)
                if there := next((r for r in history if r.by == row.by and r.recorded), None):
                    return there
                if other := fence.held_by_another(history, row):
                    raise Fenced(taken(row.node, row.batch, other.run_id))
                if row.takes_back is None and (quiet := fence.outdone(history, row)):
                    told = self._deciding(replace(row, takes_back=quiet))
            point("control.write", row.node)
            number = [Transaction(app_id, row.batch)] if row.recorded and row.batch > last else None
            self._write("etl_runs", table, _arrow(RunRow, [told]), "append", number)
            return told

        return self._retried(write)

    def _deciding(self, row: RunRow) -> RunRow:
        """A batch whose commit outdoes a quiet ending; what a person rejected is noted for it, before it counts."""
        noted = [
            ChangeRow(**r)
            for r in self._read("etl_changes")
            if r["run_id"] in (row.run_id, row.takes_back)
        ]
        kept = carried_over(row, noted)
        if not kept:
            return row
        before = f"{_same((row.run_id, row.node, row.batch))} AND verb = 'reject'"  # of a runner that died after this
        table = _opened(self.folder / "etl_changes")
        self._write("etl_changes", table, _arrow(ChangeRow, kept), "overwrite", replacing=before)
        return with_decisions(row, kept)

    def ended(self, app_id: str, after: int) -> RunRow | None:
        table = _opened(self.folder / "etl_runs")
        if table is None or (table.transaction_version(app_id) or 0) <= after:
            return None
        newer = [r for r in self._history(table, app_id) if r.recorded and r.batch > after]
        return max(newer, key=lambda r: (r.batch, r.version is not None), default=None)

    def _history(self, table: DeltaTable | None, app_id: str) -> list[RunRow]:
        rows = self._rows("etl_runs", table)
        return [_from_stored(RunRow, r) for r in rows if r["token"].rpartition("/")[0] == app_id]

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

    def log_changes(self, token: Token, rows: Sequence[ChangeRow]) -> None:
        """One commit: a node that is tried again keeps its number, so what the attempt before noted goes with it."""
        mine = (token.run_id, token.node, token.batch)
        before = _same(mine) if mine in self._noted else None
        if not rows and before is None:
            return
        self._noted.add(
            mine
        )  # before it is written: a commit may land and its writer not hear of it

        def write() -> None:
            table = _opened(self.folder / "etl_changes")
            replacing = before if table is not None else None
            mode: Literal["append", "overwrite"] = "append" if replacing is None else "overwrite"
            self._write("etl_changes", table, _arrow(ChangeRow, rows), mode, replacing=replacing)

        self._retried(write)

    def notebook(self) -> Notebook | None:
        found = {}
        for name in ("etl_changes", "etl_runs"):
            table = _opened(self.folder / name)
            if table is None:
                return None
            found[name] = (Table(name, str(self.folder / name)), table.version())
        return Notebook(found["etl_changes"], found["etl_runs"])

    def changes(self, node: str | None = None, also: Collection[str] = ()) -> list[ChangeRow]:
        """What recorded batches did to single rows, the oldest first; `also` those of runs that no longer count."""
        runs = self.all_runs()
        recorded = fence.counting(runs) | {
            (r.run_id, r.node, r.batch) for r in runs if r.recorded and r.run_id in also
        }
        rows = [ChangeRow(**r) for r in self._read("etl_changes") if node in (None, r["node"])]
        rows = self._named([r for r in rows if (r.run_id, r.node, r.batch) in recorded])
        return sorted(rows, key=lambda r: (r.at, r.batch))

    def _named(self, rows: Sequence[ChangeRow]) -> list[ChangeRow]:
        """What is told of this project's tables, under the names they have now; not of those that were made anew."""
        control = self.all_control()
        now = {name: r.target_table for r in control for name in r.covered.formerly}
        since = {r.target_table: r.covered.since or 0 for r in control}
        mine = [r for r in rows if self._mine(r.project) or (r.project, r.target_table) in now]
        mine = [
            replace(r, target_table=now.get((r.project, r.target_table), r.target_table))
            for r in mine
        ]
        return [r for r in mine if r.batch >= since.get(r.target_table, 0)]

    def noted(self) -> set[tuple[str, str]]:
        recorded = fence.counting(self.all_runs())
        rows = ((r["run_id"], r["node"], r["batch"]) for r in self._read("etl_changes"))
        return {row[:2] for row in rows if row in recorded}

    def runs(self, limit: int | None = None) -> list[RunRow]:
        return [r for r in self.all_runs() if self._mine(r.project)][:limit]

    def all_runs(self) -> list[RunRow]:
        rows = [_from_stored(RunRow, r) for r in self._read("etl_runs")]
        return sorted(rows, key=lambda r: (r.started_at, r.completed_at), reverse=True)

    def _read(self, name: str) -> list[dict[str, Any]]:
        return self._rows(name, _opened(self.folder / name))

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


def _wrote(row: ControlRow, target: str | None) -> bool:
    return row.target_table == target and not row.node.startswith(BY_HAND)


def _opened(place: Path) -> DeltaTable | None:
    """A control table; None when there is none yet, or a runner died before its first commit."""
    try:
        table = DeltaTable(str(place))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as e:
        raise unreadable(place, e) from e
    if (shape := table.metadata().description) != _SHAPE:
        raise wrong_shape(place, shape, _SHAPE)
    return table


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
