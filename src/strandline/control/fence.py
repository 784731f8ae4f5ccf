"""Which batch a state tells of, and what records lack. Pure: the rules of docs/exactly-once.md, one function each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from strandline.control.coverage import Coverage
from strandline.control.ledger import (
    DECISIONS,
    ChangeRow,
    ControlRow,
    Records,
    RunRow,
    covered,
    newest,
)
from strandline.types import Commit, Counts

LANDED = "which had landed before its runner died"
UNRECORDED = "which the control tables did not know: they were deleted, or they are others than those of its run"
UNTOLD = "which was in the state only"
STATELESS = "which was in the history only"


@dataclass(frozen=True)
class Found:
    """A batch that has come to its end, and that a record lacks."""

    batch: str  # its id
    run_id: str
    node: str
    number: int  # as people see it
    version: int | None
    coverage: Coverage
    why: str  # no record tells of it
    counts: Counts | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    rows_read: int | None = None
    begun: bool = True  # the records say that it was begun: its runner died, they were not lost
    logged: bool = False  # the history has it
    put: int | None = None  # the revision of the state that has it

    @property
    def told(self) -> str:
        """What the records tell of it, once it is in them."""
        return f"finished the record of batch {self.number}, {self.why}"


def landed(records: Records, commit: Commit) -> Found:
    """A commit that the state of its source does not know: its runner died, or the records were lost."""
    carried = commit.record.get("counts")
    coverage = Coverage.in_commit(commit.record)
    coverage = replace(
        coverage,
        table=coverage.table or records.table_id,  # the commit that made it could not know its id
        target=commit.version,
        run=commit.run_id,
        batch=commit.batch_id,
        commit=commit.number,
        committed=True,
    )
    return Found(
        commit.batch_id,
        commit.run_id,
        commit.node,
        int(commit.record.get("batch") or records.next),
        commit.version,
        coverage,
        LANDED if records.begun else UNRECORDED,
        Counts(**carried) if carried else None,
        commit.metrics,
        begun=records.begun,
    )


def stateless(row: RunRow) -> Found:
    """A batch of the history that no state tells of: that was lost."""
    return Found(
        f"{row.run_id}/{row.node}",
        row.run_id,
        row.node,
        row.batch,
        row.version,
        row.coverage,
        STATELESS,
        row.counts,
        rows_read=row.rows_read,
        begun=False,
        logged=True,
    )


def untold(row: ControlRow, commit: Commit | None) -> Found:
    """A batch of the state that the history does not tell of: its runner died in between."""
    made = commit if commit and commit.number == row.covered.commit else None
    carried = made.record.get("counts") if made else None
    before = Coverage.in_commit(made.record).before if made else row.covered.before
    batch_id = row.covered.batch or row.batch_id
    run_id, _, node = batch_id.partition("/")
    return Found(
        batch_id,
        run_id,
        node,
        row.revision,
        row.covered.target if row.covered.committed else None,
        replace(row.covered, before=before),
        UNTOLD,
        Counts(**carried) if carried else None if made else Counts(held=row.covered.held),
        made.metrics if made else {},
        row.rows_read,
        put=row.revision,
    )


def merged(
    there: Sequence[ControlRow], rows: Sequence[ControlRow], seen: int
) -> list[ControlRow] | None:
    """All states, with these in place of what is known of their table and source; None when they come too late.

    A commit is true whatever the records say: its state replaces that of an older commit. A batch without one replaces
    the state that it has looked at, or nothing; so do the announcement and the failure of a batch.
    """
    first = rows[0]
    mine = [r for r in there if r.line == first.line]
    state = newest(mine)
    revision = max((r.revision for r in mine), default=0)
    if first.batch_status == "SUCCESS" and first.covered.committed:
        if (first.covered.commit or 0) <= (covered(mine).commit or 0):
            return None
    elif revision != seen or (
        first.batch_status != "SUCCESS" and any(_made_by(r, first) for r in there)
    ):
        return None
    if first.batch_status != "SUCCESS":
        new = [_unfinished(r, mine, state) for r in rows]
        kept = [
            r for r in there if r not in mine or r.source_table not in {n.source_table for n in new}
        ]
        return [*kept, *new]
    table = [r.revision for r in there if r.table_id == first.table_id]
    next_ = max(first.revision, max(table, default=0) + 1)
    before = {r.source_table: r for r in mine}
    new = [_finished(r, before.get(r.source_table), next_) for r in rows]
    others = (r for r in there if r not in mine and not _attempt(r, first))
    return [*(healed for r in others if (healed := _healed(r, first))), *new]


def _healed(row: ControlRow, done: ControlRow) -> ControlRow | None:
    """A state that its node left for another source, at work or failed: as the last finished batch left it, if any."""
    mine = (row.project, row.node, row.table_id) == (done.project, done.node, done.table_id)
    if not mine or row.batch_status == "SUCCESS":
        return row
    return replace(row, batch_status="SUCCESS", error_message=None) if row.coverage else None


def _made_by(row: ControlRow, batch: ControlRow) -> bool:
    """Has this batch made its table, so that what failed came after its end?"""
    same = row.covered.batch == batch.batch_id and row.table_id != batch.table_id
    return same and row.target_table == batch.target_table


def _attempt(row: ControlRow, made: ControlRow) -> bool:
    """Is this the record of an attempt to make the table that has now been made?"""
    same = made.target_table == row.target_table and (
        made.source == row.source or (made.project, made.node) == (row.project, row.node)
    )
    return (
        same
        and row.coverage is None
        and row.table_id != made.table_id
        and row.table_id.startswith("at ")
    )


def _unfinished(
    row: ControlRow, mine: Sequence[ControlRow], state: ControlRow | None
) -> ControlRow:
    """A batch at work, or failed: what is known of the last finished one stays."""
    old = next((r for r in mine if r.source_table == row.source_table), None)
    return replace(
        row,
        coverage=state.coverage if state else None,
        revision=state.revision if state else 0,
        watermark_value=state.watermark_value if state else None,
        watermark_type=state.watermark_type if state else None,
        last_processed_version=old.last_processed_version if old else None,
    )


def _finished(row: ControlRow, old: ControlRow | None, revision: int) -> ControlRow:
    """A finished batch; what an undo does not know was not known before."""
    row = replace(row, revision=revision)
    if old is None or row.covered.undoes:
        return row
    version = row.last_processed_version
    return replace(
        row, last_processed_version=old.last_processed_version if version is None else version
    )


def no_lower(before: Sequence[ControlRow], row: ControlRow) -> ControlRow:
    """The row with the highest version that it or one before it has processed."""
    versions = [
        r.last_processed_version for r in (*before, row) if r.last_processed_version is not None
    ]
    return replace(row, last_processed_version=max(versions, default=None))


def true_notes(
    notes: Iterable[ChangeRow], history: Sequence[RunRow], also: Collection[str] = ()
) -> list[ChangeRow]:
    """The notes of batches that count, and what people decided and was not taken back; `also` those of these runs."""
    counts = counting(history) | {r.ending for r in history if r.recorded and r.run_id in also}
    back = undone(history)
    return [
        n
        for n in notes
        if n.ending in counts
        or (n.verb in DECISIONS and (n.run_id in also or (n.run_id, *n.line) not in back))
    ]


def undone(history: Sequence[RunRow]) -> set[tuple[str, str, str]]:
    """Run, table and source of what was taken back."""
    return {(r.takes_back, *r.line) for r in history if r.recorded and r.takes_back}


def counting(history: Sequence[RunRow]) -> set[tuple[str, str, int]]:
    """Run, node and batch of whatever has come to its end and was not taken back."""
    back = undone(history)
    return {r.ending for r in history if r.recorded and (r.run_id, *r.line) not in back}
