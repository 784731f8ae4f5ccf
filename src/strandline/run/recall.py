"""What earlier batches left of a table: how far its sources have been read, as far as the rows are still in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from strandline.control import ledger
from strandline.control.coverage import NOTHING, Coverage
from strandline.control.ledger import ControlRow, Records
from strandline.control.past import Standing, removed
from strandline.lake import commits, format_of, newest_from
from strandline.plan.job import Job
from strandline.types import RESTORED_UNKNOWN, Commit, TableState


@dataclass(frozen=True)
class Left:
    """What holds of the newest batch of a table and source: what it covered, its id, and what there is to warn of."""

    coverage: Coverage = NOTHING
    batch: str | None = None
    said: tuple[str, ...] = ()


def left(
    job: Job, records: Records, state: TableState | None, before: Sequence[ControlRow]
) -> Left:
    """What the last batch left; of a table that is gone, or is another one, nothing holds.

    `before` are the states of other tables that were called as this one is.
    """
    found = records.memory
    if state is None:
        return Left()
    if not found.known:
        return Left(said=_another(job, before))
    known = records.last.target
    if known is None:
        return Left(found, records.last.batch)
    if known > state.version:  # an older copy of the table was put back
        older = newest_from(job.target, job.source)
        return Left(Coverage.in_commit(older.record), older.batch_id) if older else Left()
    if known < state.version and (standing := _removed(job, state.version, known)):
        return _moved_back(job, found, standing)
    return Left(found, records.last.batch)


def _another(job: Job, before: Sequence[ControlRow]) -> tuple[str, ...]:
    """The warning for a table that was made anew, when there was a batch of the one before it."""
    last = ledger.newest(r for r in before if r.source == job.source)
    if last is None:
        return ()
    told = f"{job.target.label} was made anew since batch {last.revision}: {_anew(job)}"
    return _warned(last.covered, NOTHING, told)


def _removed(job: Job, now: int, known: int) -> Standing | None:
    """What other writers have removed since the last batch; most tables have none, and the newest commits say so."""
    since = takewhile(lambda c: c.version > known, format_of(job.target).history(job.target))
    if not any(c.restores is not None or c.replaces for c in since):
        return None
    by_version = {c.version: c for c in commits(job.target)}
    return removed(
        by_version, now, known, lambda commit: commit.ours and commit.source == job.source
    )


def _moved_back(job: Job, found: Coverage, standing: Standing) -> Left:
    """What the newest batch that is still in the table had read; what is known of single rows stays known."""
    batch, by = standing.batch, standing.removed_by
    older = Coverage.in_commit(batch.record) if batch else NOTHING
    told = f"version {by.version} of {job.target.label} is {_what(by)} that no run of strandline made: "
    if batch is None:
        told += _anew(job)
    else:
        number = batch.record.get("batch")
        told += f"the newest batch that is still in the table is {number}, and the source is read on from there"
    warned = _warned(found, older, told)
    return Left(found.with_position_of(older), batch.batch_id if batch else None, warned)


def _what(commit: Commit) -> str:
    if commit.restores is None:
        return f"an overwrite of all rows ({commit.operation})"
    to = "an older version" if commit.restores == RESTORED_UNKNOWN else f"version {commit.restores}"
    return f"a RESTORE to {to}"


def _anew(job: Job) -> str:
    return f"no batch is left in {job.target.label}, so the source is read anew"


def _warned(found: Coverage, older: Coverage, told: str) -> tuple[str, ...]:
    """The warning, where the node reads on from somewhere; one that reads everything each time reads the same."""
    moved = (found.marks, found.files) != (older.marks, older.files)
    follows = found.recipe is not None and found.sources != older.sources
    return (told,) if moved or follows else ()
