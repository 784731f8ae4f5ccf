"""What earlier batches left of a table: how far its sources have been read, as far as the rows are still in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from strandline.control import ledger
from strandline.control.ledger import ORIGINS, Batch, ControlRow
from strandline.control.past import UNKNOWN, Standing, TableCommit, removed
from strandline.engine import delta_log, delta_past
from strandline.job import Job
from strandline.types import TableState

POSITIONS = ("marks", "window", "files", "sources")
"""The part of a coverage that says how far a batch has read."""


@dataclass(frozen=True)
class Left:
    """What holds of the newest batch of a table: what it covered, its number, and what there is to warn of."""

    coverage: Mapping[str, Any] = field(default_factory=dict)
    batch: int | None = None
    said: tuple[str, ...] = ()


def left(job: Job, this: Batch, state: TableState | None) -> Left:
    """What the last batch of a table left; of a table that is gone, or is another one, nothing holds."""
    rows = list(this.previous.values())
    found, last = ledger.covered(rows), ledger.finished(rows) or None
    if state is None:
        return Left()
    if found.get(ledger.TABLE) not in (None, state.table_id):
        return Left(said=_warned(found, {}, f"{job.target.label} was made anew since batch {last}: {_anew(job)}"))
    known = int(found.get("target") or 0)
    if known > state.version:  # an older copy of the table was put back
        older = delta_log.last_batch(job.target)
        return Left(older.record["coverage"], older.batch) if older else Left()
    standing = _removed(job, state.version, known) if "target" in found and known < state.version else None
    if standing is not None:
        return _moved_back(job, this, found, standing)
    return Left(found, last, _taken_over(job, this, ledger.newest(rows)))


def _taken_over(job: Job, this: Batch, row: ControlRow | None) -> tuple[str, ...]:
    """The warning where the watermark is that of another project: it may be this one, or one with rules of its own."""
    if row is None or row.project in (None, job.project.config.project):
        return ()
    marks = this.of_its_sources(row.covered).get("marks", {})
    if not marks:
        return ()
    shown = ", ".join(f"{name} = {text}" for name, (text, _) in marks.items())
    told = (
        f"reads on from the watermark {shown} of project `{row.project}`, node `{row.node}`, which fed "
        f"{job.target.label} from the same source: rows below it are not read; if that is another pipeline, give this "
        "one a table of its own"
    )
    return (told,)


def _removed(job: Job, now: int, known: int) -> Standing | None:
    """What other writers have removed since the last batch; most tables have none, and the newest commits say so."""
    since = delta_past.commits(job.target, now - known)
    if not any(c.restores is not None or c.replaces for c in since):
        return None
    commits = {c.version: c for c in delta_past.commits(job.target)}
    return removed(commits, now, known, lambda commit: _own(job, commit))


def _own(job: Job, commit: TableCommit) -> bool:
    """Is this a batch of the node, perhaps from when it had another name?"""
    coverage = commit.record.get("coverage")
    if coverage is None:
        return False
    return commit.record.get("app_id") == job.app_id or coverage.get(ORIGINS) == job.origins


def _moved_back(job: Job, this: Batch, found: Mapping[str, Any], standing: Standing) -> Left:
    """What the newest batch that is still in the table had read; what is known of single rows stays known."""
    batch, by = standing.batch, standing.removed_by
    older = this.of_its_sources(batch.record["coverage"]) if batch else {}
    coverage = {k: v for k, v in found.items() if k not in POSITIONS}
    coverage |= {k: v for k, v in older.items() if k in POSITIONS}
    told = f"version {by.version} of {job.target.label} is {_what(by)} that no run of strandline made: "
    number = int(batch.record["batch"]) if batch else None
    if batch is None:
        told += _anew(job)
    else:
        told += f"the newest batch that is still in the table is {number}, and the source is read on from there"
    return Left(coverage, number, _warned(found, older, told))


def _what(commit: TableCommit) -> str:
    if commit.restores is None:
        return f"an overwrite of all rows ({commit.operation})"
    to = "an older version" if commit.restores == UNKNOWN else f"version {commit.restores}"
    return f"a RESTORE to {to}"


def _anew(job: Job) -> str:
    return f"no batch is left in {job.target.label}, so the source is read anew"


def _warned(found: Mapping[str, Any], older: Mapping[str, Any], told: str) -> tuple[str, ...]:
    """The warning, where the node reads on from somewhere; one that reads everything each time reads the same."""
    positions = ("marks", "files", "sources") if "recipe" in found else ("marks", "files")
    return (told,) if any(found.get(k) != older.get(k) for k in positions) else ()
