"""Who holds a batch number, and what the records lack. Pure: the rules of docs/exactly-once.md, one function each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strandline.control.coverage import Coverage
from strandline.control.ledger import ControlRow, RunRow, covered, finished, newest, number
from strandline.types import Commit, Counts

LANDED = "which had landed before its runner died"
UNRECORDED = "which the control tables did not know: they were deleted, or they are others than those of its run"


@dataclass(frozen=True)
class Found:
    """A batch that has come to its end, and of which `etl_control` does not know."""

    batch: int
    run_id: str
    version: int | None
    coverage: Coverage
    counts: Counts | None
    metrics: Mapping[str, Any]
    why: str  # nobody had recorded it
    rows_read: int | None = None
    logged: bool = False  # the history has it
    target: str | None = None  # the table that it wrote, if that is not the one that was looked at
    begun: bool = True  # the records say that it was begun: its runner died, they were not lost

    @property
    def told(self) -> str:
        """What the records tell of it, once it is in them."""
        return f"finished the record of batch {self.batch}, {self.why}"


def found(
    rows: Sequence[ControlRow], target: str, commit: Commit | None, ended: RunRow | None
) -> Found | None:
    """What the table or the history knows and the node's records do not: a runner died, or the records were lost."""
    if (
        commit is not None
        and commit.number > known(rows, target)
        and not (ended and ended.run_id == commit.run_id)
    ):
        coverage = replace(
            Coverage.in_commit(commit.record), target=commit.version, commit=commit.number
        )
        carried = commit.record.get("counts")
        counts = Counts(**carried) if carried else None
        metrics = commit.metrics
        next_one = (
            bool(rows) and commit.number == known(rows, target) + 1
        )  # the node has written another table since
        begun = next_one or _begun(rows, commit.batch)
        why = LANDED if begun else UNRECORDED
        return Found(
            commit.batch, commit.run_id, commit.version, coverage, counts, metrics, why, begun=begun
        )
    if ended is not None and ended.batch > finished(rows):
        there = ended.target_table if ended.target_table != target else None
        read = ended.rows_read
        why = "which was in the history only"
        begun = _begun(rows, ended.batch)
        return Found(
            ended.batch,
            ended.run_id,
            ended.version,
            ended.coverage,
            ended.counts,
            {},
            why,
            read,
            True,
            there,
            begun,
        )
    return None


def no_lower(before: Sequence[ControlRow], row: ControlRow) -> ControlRow:
    """The row with the highest version that it or one before it has processed."""
    versions = [
        r.last_processed_version for r in (*before, row) if r.last_processed_version is not None
    ]
    return replace(row, last_processed_version=max(versions, default=None))


def _begun(rows: Sequence[ControlRow], batch: int) -> bool:
    """Do the records say that a batch was begun and not ended? Each is announced before its commit."""
    return any(r.batch_status != "SUCCESS" and number(r) == batch for r in rows)


def known(rows: Sequence[ControlRow], target: str) -> int:
    """The number of the newest commit to a table that a node's records know; once, it was the batch's own."""
    mine = [r for r in rows if r.target_table == target]
    commit = covered(mine).commit
    return finished(mine) if commit is None else commit


def holder(rows: Sequence[ControlRow]) -> str | None:
    """The run that brought the newest finished batch to its end."""
    return covered(rows).run


def merged(there: Sequence[ControlRow], rows: Sequence[ControlRow]) -> Sequence[ControlRow]:
    """What a node's rows become; none when the records have gone further than the batch that is announced or failed.

    A record only goes forward. It says what the newest commit covered, or a quiet ending that knew of that commit.
    """
    last, batch, target = finished(there), max(map(number, rows)), rows[0].target_table
    if rows[0].batch_status != "SUCCESS" or not there:
        return rows if batch > last else ()
    mine = covered(rows)
    before = known(there, target)
    # a quiet ending may know of more than the node's own rows do: of commits under another name
    assert mine.commit is not None, "an ending says which commits it knew"
    later = mine.commit > before if mine.committed else mine.commit >= before and batch > last
    if later:
        return rows if batch >= last else [_renumbered(r, last) for r in rows]
    old = newest(r for r in there if r.target_table == target)
    return [_still_covering(r, old) for r in rows] if batch > last else ()


def replaced(there: Sequence[ControlRow], rows: Sequence[ControlRow]) -> list[ControlRow]:
    """A node's rows, with these in the place of those of the same targets and sources.

    Sources that the node no longer reads may have been left at work: once its batch is recorded, they are as they were
    before, and those that were never finished go.
    """
    mine = {(r.target_table, r.source_table) for r in rows}
    kept = [r for r in there if (r.target_table, r.source_table) not in mine]
    if rows[0].batch_status == "SUCCESS":
        kept = healed(kept)
    return [*kept, *rows]


def healed(rows: Sequence[ControlRow]) -> list[ControlRow]:
    """Rows that nobody will bring to an end, as they were before; those that were never finished go."""
    return [r if r.batch_status == "SUCCESS" else _as_before(r) for r in rows if _ever_finished(r)]


def _ever_finished(row: ControlRow) -> bool:
    return row.batch_status == "SUCCESS" or row.coverage is not None


def _as_before(row: ControlRow) -> ControlRow:
    """The row as the last finished batch left it, as far as it is known."""
    before = replace(
        row, batch_id=f"{row.node}/{number(row) - 1}", batch_status="SUCCESS", error_message=None
    )
    return replace(before, batch_completed_at=row.updated_at)


def _still_covering(row: ControlRow, old: ControlRow | None) -> ControlRow:
    if old is None:
        return row
    mark, type_ = old.watermark_value, old.watermark_type
    return replace(row, coverage=old.coverage, watermark_value=mark, watermark_type=type_)


def _renumbered(row: ControlRow, batch: int) -> ControlRow:
    return replace(row, batch_id=f"{row.node}/{batch}")


def held_by_another(history: Sequence[RunRow], row: RunRow) -> RunRow | None:
    """The batch of another run that ended this number, or a later one; a commit outdoes what committed nothing."""
    others = [
        r
        for r in history
        if r.recorded and r.target_table == row.target_table and r.batch >= row.batch
    ]
    if (
        any(r.run_id == row.run_id and r.batch == row.batch for r in others)
        or row.version is not None
    ):
        return None
    return min(others, key=lambda r: r.batch, default=None)


def outdone(history: Sequence[RunRow], row: RunRow) -> str | None:
    """The run whose quiet ending of the same number this row's commit takes back."""
    mine = (row.target_table, row.batch)
    same = (
        r
        for r in history
        if r.recorded and (r.target_table, r.batch) == mine and r.run_id != row.run_id
    )
    return next((r.run_id for r in same), None) if row.version is not None else None


def counting(history: Sequence[RunRow]) -> set[tuple[str, str, int]]:
    """Run, node and batch of whatever has come to its end and was not taken back.

    An undo takes back every batch of a run; a commit takes back the quiet ending of its own number.
    """
    takes = [r for r in history if r.recorded and r.takes_back]
    undone = {(r.takes_back, r.node) for r in takes if r.coverage.undoes}
    outdone_ = {(r.takes_back, r.node, r.batch) for r in takes}
    ended = {(r.run_id, r.node, r.batch) for r in history if r.recorded}
    return {e for e in ended if e[:2] not in undone and e not in outdone_}
