"""The records of batches: what the control tables hold, as plain values.

All are keyed by the table's id, and how far a source was read by (table id, source identity); names are labels.
`etl_runs` gets one row per batch, for ever; `etl_control` holds the newest state per table and source.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

from strandline.control.coverage import NOTHING, Coverage
from strandline.types import Counts, Table, TableState, Token

BY_HAND = "by hand: "
"""How the nodes of batches begin that no node of a project runs."""

RECORDED = ("success", "held", "unchanged")
"""The endings of a batch that count: what it noted of single rows is true."""

DECISIONS = ("approve", "reject")
"""What a person decides on a held delete: a note on (table id, key), which counts by itself."""

UNDOING = "undoing"
"""The status of a row that an undo writes for each node before it takes the first one back."""


def table_key(table: Table, state: TableState | None) -> str:
    """What the records of a table are found by: its id; until it has one, the place where it is to be."""
    return state.table_id if state else f"at {table.location}"


@dataclass(frozen=True)
class Notebook:
    """The records that hold what was noted of single rows: two lake tables at fixed versions."""

    changes: tuple[Table, int]
    runs: tuple[Table, int]


@dataclass(frozen=True)
class ControlRow:
    """A row of `etl_control`: seed 003's columns, then ours."""

    target_table: str
    source_table: str
    last_processed_version: int | None
    batch_id: str
    batch_started_at: datetime | None
    batch_completed_at: datetime | None
    batch_status: str
    rows_read: int | None
    rows_written: int | None
    error_message: str | None
    updated_at: datetime
    node: str
    load_id: str | None
    watermark_value: str | None
    watermark_type: str | None
    coverage: Coverage | None  # of the last finished batch; None: none was finished
    project: str
    table_id: str
    source: str  # the identity of all that is read
    revision: int = 0  # goes up with each finished batch of the table

    @property
    def line(self) -> tuple[str, str]:
        """The table and the source that it tells of."""
        return self.table_id, self.source

    @property
    def covered(self) -> Coverage:
        """What the batch covered."""
        return self.coverage or NOTHING


@dataclass(frozen=True)
class RunRow:
    """A row of `etl_runs`: one batch."""

    run_id: str
    project: str
    node: str
    batch: int
    target_table: str
    status: str
    started_at: datetime
    completed_at: datetime
    seconds: float
    rows_read: int | None
    inserted: int
    updated: int
    deleted: int
    reopened: int
    held: int
    version: int | None
    token: str | None  # of its commit
    coverage: Coverage
    warnings: str | None
    error: str | None
    table_id: str
    source: str
    metrics: str | None = None  # seconds per step, as JSON
    recovery: str | None = None  # what was found of a runner that died, and what was done about it
    takes_back: str | None = None  # the run whose batch of this table and source no longer counts

    @property
    def recorded(self) -> bool:
        """True for a batch that was brought to its end."""
        return self.status in RECORDED

    @property
    def counts(self) -> Counts:
        """How many rows each verb touched."""
        return Counts(
            inserted=self.inserted,
            updated=self.updated,
            deleted=self.deleted,
            reopened=self.reopened,
            held=self.held,
        )

    @property
    def line(self) -> tuple[str, str]:
        """The table that it wrote, and the source."""
        return self.table_id, self.source

    @property
    def ending(self) -> tuple[str, str, int]:
        """What tells its batch from all others."""
        return self.run_id, self.node, self.batch


@dataclass(frozen=True)
class ChangeRow:
    """A row of `etl_changes`: what a batch did to one row, or noted of it, and why.

    It counts once its batch is recorded; what a person decides counts at once.
    """

    run_id: str
    project: str
    node: str
    batch: int
    target_table: str
    verb: str
    mode: str | None
    reason: str
    key: str
    key_hash: str
    streak: int | None
    at: datetime
    table_id: str
    source: str

    @property
    def line(self) -> tuple[str, str]:
        """The table, and the source of the batch that noted it."""
        return self.table_id, self.source

    @property
    def ending(self) -> tuple[str, str, int]:
        """The batch that noted it."""
        return self.run_id, self.node, self.batch


class Store(Protocol):
    """Where control rows are kept."""

    def states(self) -> list[ControlRow]:
        """The newest state of all tables and sources, of all projects."""

    def put(self, rows: Sequence[ControlRow], seen: int) -> int | None:
        """Replace the state of a table and source, as `fence.merged` says; returns its revision.

        None: the records have gone on since `seen`, and nothing was put.
        """

    def log(self, row: RunRow, revision: int = 0) -> None:
        """Add a batch to the history, once; the revision is that of the state which it led to."""

    def list_undo(self, rows: Sequence[RunRow]) -> None:
        """Write down what an undo is going to take back, before it does."""

    def told(self, line: tuple[str, str]) -> int:
        """The newest revision of a table and source whose batch is in the history."""

    def log_changes(self, token: Token, batch: int, rows: Sequence[ChangeRow]) -> None:
        """Note what a batch is about to do to single rows, in place of what its run has noted for it before."""

    def decide(self, rows: Sequence[ChangeRow], held: Sequence[ChangeRow]) -> bool:
        """Note what a person decides on deletes that are held, unless they no longer are: then False."""

    def changes(self, node: str | None = None) -> list[ChangeRow]:
        """What recorded batches did to single rows, the oldest first."""

    def noted(self) -> set[tuple[str, str]]:
        """The runs and nodes, of all projects, whose recorded batches tell something of single rows."""

    def notebook(self) -> Notebook | None:
        """The tables that hold what was noted of single rows, for an engine to read; None when nothing was."""

    def runs(self, limit: int | None = None) -> list[RunRow]:
        """The newest batches of this project first."""

    def all_runs(self) -> list[RunRow]:
        """Those of all projects that keep their records here."""


@dataclass(frozen=True)
class Records:
    """What is known of one table: the states of its sources, of which one is the batch's own."""

    table_id: str
    source: str
    rows: Sequence[ControlRow] = ()  # of the table, and of attempts to make it
    writer: tuple[str, str] = ("", "")  # the names of project and node

    @property
    def mine(self) -> list[ControlRow]:
        """The rows of the own source, one for each thing it reads."""
        return [r for r in self.rows if r.line == (self.table_id, self.source)]

    @property
    def begun(self) -> bool:
        """Is there a record of the own source, be it of an attempt to make the table?"""
        return any(r.source == self.source for r in self.rows)

    @property
    def revision(self) -> int:
        """How far the own source's state has gone."""
        return max((r.revision for r in self.mine), default=0)

    @property
    def next(self) -> int:
        """The number that people see of the next batch."""
        return max((r.revision for r in self.rows), default=0) + 1

    @property
    def known(self) -> int:
        """The number of the newest commit to the table that any record knows."""
        return max((r.covered.commit or 0 for r in self.rows), default=0)

    @property
    def unfinished(self) -> bool:
        """Was a batch of the own source begun that has not come to its end?"""
        return any(r.batch_status != "SUCCESS" for r in self.mine)

    @property
    def last(self) -> Coverage:
        """What the last finished batch of the own source covered."""
        return covered(self.mine)

    @property
    def memory(self) -> Coverage:
        """What holds for the next batch: how far its source was read, and what is known of the table."""
        mine, table = newest(self.mine), newest(self.rows)
        left = newest(r for r in self.rows if (r.project, r.node) == self.writer)
        if table is None:
            return NOTHING
        if mine is None:
            known = left.covered.from_elsewhere() if left else table.covered.of_table()
        elif left and left.revision > mine.revision:  # its node has read another source since
            known = replace(mine.covered, sources={}, digest=None)
        else:
            known = mine.covered
        return known.with_table_of(table.covered)


@dataclass(frozen=True)
class Batch:
    """One batch of one node on its way through the ledger."""

    token: Token
    number: int  # as people see it
    target: str
    sources: tuple[str, ...]
    started_at: datetime
    records: Records
    loads: Mapping[str, str] = field(default_factory=dict)  # by source, its load_id

    def coverage(self) -> Coverage:
        """What the last batch covered, if it finished."""
        return NOTHING if self.records.unfinished else self.records.memory


def covered(rows: Iterable[ControlRow]) -> Coverage:
    """What the newest finished batch of these covered."""
    row = newest(rows)
    return row.covered if row else NOTHING


def newest(rows: Iterable[ControlRow]) -> ControlRow | None:
    """The row that tells of the newest finished batch; one that was only announced tells nothing."""
    return max((r for r in rows if r.coverage is not None), key=lambda r: r.revision, default=None)


def control_rows(
    batch: Batch,
    status: str,
    now: datetime,
    *,
    rows_read: int | None = None,
    rows_written: int | None = None,
    versions: Mapping[str, int] | None = None,
    coverage: Coverage | None = None,
    error: str | None = None,
) -> list[ControlRow]:
    """The state of every source of a batch; what is not known yet is left to the store."""
    if coverage is not None and coverage.committed:
        coverage = replace(coverage, before=None)  # the commit tells
    value, type_ = _watermark(coverage or NOTHING)
    return [
        ControlRow(
            target_table=batch.target,
            source_table=source,
            last_processed_version=(versions or {}).get(source),
            batch_id=batch.token.batch_id,
            batch_started_at=batch.started_at,
            batch_completed_at=None if status == "RUNNING" else now,
            batch_status=status,
            rows_read=rows_read,
            rows_written=rows_written,
            error_message=error,
            updated_at=now,
            node=batch.token.node,
            load_id=batch.loads.get(source),
            watermark_value=value,
            watermark_type=type_,
            coverage=coverage,
            project=batch.token.project,
            table_id=batch.records.table_id,
            source=batch.records.source,
            revision=batch.number,
        )
        for source in batch.sources
    ]


def _watermark(coverage: Coverage) -> tuple[str | None, str | None]:
    """The mark of a batch as people look for it: its text and type, of several columns as JSON."""
    marks = coverage.marks
    if len(marks) == 1:
        ((value, type_),) = marks.values()
        return value, type_
    return (json.dumps(marks, sort_keys=True), "json") if marks else (None, None)
