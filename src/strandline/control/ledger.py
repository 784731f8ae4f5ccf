"""The records of batches: what the control tables hold, as plain values.

`etl_runs` gets one row per batch, for ever; `etl_control` holds the newest state per target and source.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

from strandline.control.coverage import NOTHING, Coverage
from strandline.types import Counts, Table, Token

BY_HAND = "by hand: "
"""How the nodes of batches begin that no node of a project runs."""

RECORDED = ("success", "held", "unchanged")
"""The endings of a batch that count: what it noted of single rows is true."""


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
    project: str | None = None  # older rows do not say

    def by(self, project: str, node: str) -> bool:
        """Is this the row of that node?"""
        return self.node == node and self.project in (None, project)

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
    token: str
    coverage: Coverage
    warnings: str | None
    error: str | None
    metrics: str | None = None  # seconds per step, as JSON
    recovery: str | None = None  # what was found of a runner that died, and what was done about it
    takes_back: str | None = None  # the run whose batch of this node no longer counts
    quarantined: int | None = 0  # older rows do not say

    @property
    def recorded(self) -> bool:
        """True for a batch that was brought to its end; of a number, one is."""
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
            quarantined=self.quarantined or 0,
        )

    @property
    def by(self) -> tuple[str, int]:
        """The run and the number that its commits carry."""
        return self.run_id, self.batch


@dataclass(frozen=True)
class ChangeRow:
    """A row of `etl_changes`: what a batch did to one row, or noted of it, and why.

    It counts once its batch is recorded.
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


class Store(Protocol):
    """Where control rows are kept."""

    def control(self, node: str, target: str | None = None) -> list[ControlRow]:
        """The newest state of nodes of this name, and of those that wrote a table of this name, in any project."""

    def writers(self, target: str) -> list[ControlRow]:
        """The newest state of whatever nodes have written a table of this name, in whatever project."""

    def put(self, rows: Sequence[ControlRow]) -> bool:
        """Replace the state of these targets and sources, unless the records have gone further: then False."""

    def log(self, row: RunRow) -> RunRow:
        """Add a batch to the history, once; raises Fenced when another run has ended this number.

        Returns it as it is told there: with what a person has decided under its number meanwhile.
        """

    def ended(self, app_id: str, after: int) -> RunRow | None:
        """The newest batch of a node that the history knows, if its number is higher than this."""

    def log_changes(self, token: Token, rows: Sequence[ChangeRow]) -> None:
        """Note what a batch is about to do to single rows, in place of what its run has noted for it before."""

    def changes(self, node: str | None = None) -> list[ChangeRow]:
        """What recorded batches did to single rows, the oldest first; under the names that tables have now."""

    def noted(self) -> set[tuple[str, str]]:
        """The runs and nodes, of all projects, whose recorded batches tell something of single rows."""

    def notebook(self) -> Notebook | None:
        """The tables that hold what was noted of single rows, for an engine to read; None when nothing was."""

    def runs(self, limit: int | None = None) -> list[RunRow]:
        """The newest batches of this project first."""

    def all_runs(self) -> list[RunRow]:
        """Those of all projects that keep their records here."""


@dataclass(frozen=True)
class Batch:
    """One batch of one node on its way through the ledger."""

    token: Token
    target: str
    sources: tuple[str, ...]
    started_at: datetime
    previous: Mapping[str, ControlRow] = field(default_factory=dict)  # by source, of this target
    loads: Mapping[str, str] = field(
        default_factory=dict
    )  # the load_id under which a source is followed

    @property
    def batch_id(self) -> str:
        return f"{self.token.node}/{self.token.batch}"

    def coverage(self) -> Coverage:
        """What the last batch covered, if it finished."""
        return NOTHING if unfinished(list(self.previous.values())) else self.memory()

    def memory(self) -> Coverage:
        """What the last finished batch of this target covered, whatever was tried since.

        How far it had read holds for the sources that it had read, not for others that are read now.
        """
        return self.of_its_sources(covered(list(self.previous.values())))

    def of_its_sources(self, memory: Coverage) -> Coverage:
        """What holds for this batch of what an earlier one covered."""
        if memory.reads is None:
            same = set(self.sources) <= set(self.previous)
        else:
            same = set(self.sources) == set(memory.reads)
        memory = replace(memory, quarantined=0, quarantine=None)  # that was another batch's
        return memory if same else memory.without_position()


@dataclass(frozen=True)
class Whose:
    """A table as a node knows it: what it is called, which one it is, and where its rows come from."""

    project: str
    target: str
    table_id: str | None
    origins: Sequence[str]

    def rows(self, rows: Sequence[ControlRow]) -> list[ControlRow]:
        """The rows that tell of this table or of its node, without those of others who call theirs the same.

        What is known of it under other names is known of it: of a connection that was renamed, and of a project.
        Another project that feeds the same table from elsewhere keeps its own marks.
        """
        found = []
        for row in rows:
            here, covered = row.project in (None, self.project), row.covered
            same = self.table_id is not None and covered.table == self.table_id
            if same and (row.target_table != self.target or not here):
                if here or covered.origins == tuple(self.origins):
                    found.append(self._renamed(row, covered))
            elif here:
                found.append(row)
        return found

    def _renamed(self, row: ControlRow, covered: Coverage) -> ControlRow:
        names = {*covered.formerly, (row.project or self.project, row.target_table)}
        known = replace(covered, formerly=tuple(sorted(names)))
        return replace(row, target_table=self.target, coverage=known)


def next_batch(
    rows: Sequence[ControlRow], token: Token, target: str, sources: Sequence[str], now: datetime
) -> Batch:
    """The batch after the newest finished one; a batch that was started and never finished keeps its number."""
    mine = sorted((r for r in rows if r.target_table == target), key=_age)
    previous = {r.source_table: r for r in mine}
    return Batch(replace(token, batch=finished(rows) + 1), target, tuple(sources), now, previous)


def covered(rows: Sequence[ControlRow]) -> Coverage:
    """What the newest finished batch of these covered."""
    row = newest(rows)
    return row.covered if row else NOTHING


def newest(rows: Iterable[ControlRow]) -> ControlRow | None:
    """The row that tells of the newest finished batch; one that was only announced for a new source tells nothing."""
    return max((r for r in rows if r.coverage is not None), key=_age, default=None)


def _age(row: ControlRow) -> tuple[int, datetime]:
    """Rows by the last batch that they know to be finished."""
    return number(row) - (row.batch_status != "SUCCESS"), row.updated_at


def finished(rows: Sequence[ControlRow]) -> int:
    """The number of the newest batch whose record is complete."""
    numbers = [number(r) - (r.batch_status != "SUCCESS") for r in rows]
    return max(numbers, default=0)


def number(row: ControlRow) -> int:
    return int(row.batch_id.rpartition("/")[2])


def unfinished(rows: Sequence[ControlRow]) -> bool:
    """Was a batch begun that has not come to its end?"""
    return any(r.batch_status != "SUCCESS" and number(r) > finished(rows) for r in rows)


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
    """The state of every source of a batch; what is not known yet stays as it was."""
    rows = []
    if coverage is not None:
        coverage = replace(coverage, before=None)  # the history tells
    value, type_ = _watermark(coverage or NOTHING)
    undone = bool(coverage and coverage.undoes)  # what is not known then was not known before
    for source in batch.sources:
        old = batch.previous.get(source) if not undone else None
        version = (versions or {}).get(source, old.last_processed_version if old else None)
        rows.append(
            ControlRow(
                target_table=batch.target,
                source_table=source,
                last_processed_version=version,
                batch_id=batch.batch_id,
                batch_started_at=batch.started_at,
                batch_completed_at=None if status == "RUNNING" else now,
                batch_status=status,
                rows_read=rows_read,
                rows_written=rows_written,
                error_message=error,
                updated_at=now,
                node=batch.token.node,
                load_id=batch.loads.get(source),
                watermark_value=value or (old.watermark_value if old else None),
                watermark_type=type_ or (old.watermark_type if old else None),
                coverage=coverage if coverage is not None else (old.coverage if old else None),
                project=batch.token.project,
            )
        )
    return rows


def _watermark(coverage: Coverage) -> tuple[str | None, str | None]:
    """The mark of a batch as people look for it: its text and type, of several columns as JSON."""
    marks = coverage.marks
    if len(marks) == 1:
        ((value, type_),) = marks.values()
        return value, type_
    return (json.dumps(marks, sort_keys=True), "json") if marks else (None, None)
