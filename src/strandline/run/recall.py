"""What earlier batches left of a table: how far its sources have been read, as far as the rows are still in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.control import ledger
from strandline.control.coverage import NOTHING, Coverage
from strandline.control.ledger import Batch, ControlRow
from strandline.control.past import Standing, removed
from strandline.lake import commits, format_of
from strandline.plan.job import Job
from strandline.types import RESTORED_UNKNOWN, Commit, TableState


@dataclass(frozen=True)
class Left:
    """What holds of the newest batch of a table: what it covered, its number, and what there is to warn of."""

    coverage: Coverage = NOTHING
    batch: int | None = None
    said: tuple[str, ...] = ()


def left(job: Job, this: Batch, state: TableState | None) -> Left:
    """What the last batch of a table left; of a table that is gone, or is another one, nothing holds."""
    rows = list(this.previous.values())
    found, last = ledger.covered(rows), ledger.finished(rows) or None
    if state is None:
        return Left()
    if not found.is_of(state.table_id):
        return Left(
            said=_warned(
                found, NOTHING, f"{job.target.label} was made anew since batch {last}: {_anew(job)}"
            )
        )
    known = found.target
    if known is not None and known != state.version:
        since = format_of(job.target).since(job.target, known)
        if since is None:  # an older copy of the table was put back, or it was rolled back
            older = _newest_own(job)
            return Left(Coverage.in_commit(older.record), older.batch) if older else Left()
        if (standing := _removed(job, since, state.version, known)) is not None:
            return _moved_back(job, this, found, standing)
    return Left(found, last, _taken_over(job, this, ledger.newest(rows)))


def _taken_over(job: Job, this: Batch, row: ControlRow | None) -> tuple[str, ...]:
    """The warning where the watermark is that of another project: it may be this one, or one with rules of its own."""
    if row is None or row.project in (None, job.project.config.project):
        return ()
    marks = this.of_its_sources(row.covered).marks
    if not marks:
        return ()
    shown = ", ".join(f"{name} = {text}" for name, (text, _) in marks.items())
    told = (
        f"reads on from the watermark {shown} of project `{row.project}`, node `{row.node}`, which fed "
        f"{job.target.label} from the same source: rows below it are not read; if that is another pipeline, give this "
        "one a table of its own"
    )
    return (told,)


def _newest_own(job: Job) -> Commit | None:
    """The newest batch of the node in the history of its table, unless another writer has replaced all rows since."""
    for commit in format_of(job.target).history(job.target):
        if commit.replaces:
            return None
        if _own(job, commit):
            return commit
    return None


def _removed(job: Job, since: Sequence[Commit], now: int, known: int) -> Standing | None:
    """What other writers have removed since the last batch; most tables have none, and the newest commits say so."""
    if not any(c.restores is not None or c.replaces for c in since):
        return None
    by_version = {c.version: c for c in commits(job.target)}
    return removed(by_version, now, known, lambda commit: _own(job, commit))


def _own(job: Job, commit: Commit) -> bool:
    """True for a batch of the node, also from when it had another name."""
    if "coverage" not in commit.record:
        return False
    return commit.record.get("app_id") == job.app_id or Coverage.in_commit(
        commit.record
    ).origins == tuple(job.origins)


def _moved_back(job: Job, this: Batch, found: Coverage, standing: Standing) -> Left:
    """What the newest batch that is still in the table had read; what is known of single rows stays known."""
    batch, by = standing.batch, standing.removed_by
    older = this.of_its_sources(Coverage.in_commit(batch.record)) if batch else NOTHING
    told = f"version {by.version} of {job.target.label} is {_what(by)} that no run of strandline made: "
    number = int(batch.record["batch"]) if batch else None
    if batch is None:
        told += _anew(job)
    else:
        told += f"the newest batch that is still in the table is {number}, and the source is read on from there"
    return Left(found.with_position_of(older), number, _warned(found, older, told))


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
