"""Who holds a batch number, and what the records lack. Pure: the rules of docs/exactly-once.md, one function each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.control.ledger import ControlRow, RunRow, finished, number
from strandline.types import Commit

RUN = "run"  # in a batch's coverage: the run that brought it to its end
COMMITTED = "committed"  # and whether it has committed anything


@dataclass(frozen=True)
class Found:
    """A batch that has come to its end, and of which `etl_control` does not know."""

    batch: int
    run_id: str
    version: int | None
    coverage: Mapping[str, Any]
    counts: Mapping[str, int] | None
    metrics: Mapping[str, Any]
    told: str
    rows_read: int | None = None


def found(rows: Sequence[ControlRow], commit: Commit | None, ended: RunRow | None) -> Found | None:
    """What the table or the history knows and the records do not: a runner died in between."""
    if commit is not None and _unrecorded(rows, commit):
        coverage = {**commit.record.get("coverage", {}), "target": commit.version}
        told = f"finished the record of batch {commit.batch}, which had landed before its runner died"
        counts = commit.record.get("counts")
        metrics = commit.record.get("metrics", {})
        return Found(commit.batch, commit.run_id, commit.version, coverage, counts, metrics, told)
    if ended is not None and ended.batch > finished(rows):
        told = f"finished the record of batch {ended.batch}, which was in the history only"
        counts = {n: getattr(ended, n) for n in ("inserted", "updated", "deleted", "reopened", "held")}
        coverage = json.loads(ended.coverage or "{}")
        return Found(ended.batch, ended.run_id, ended.version, coverage, counts, {}, told, ended.rows_read)
    return None


def _unrecorded(rows: Sequence[ControlRow], commit: Commit) -> bool:
    """A commit above the newest number; or under it, while the record is that of a batch that committed nothing."""
    newest = finished(rows)
    if commit.batch != newest:
        return commit.batch > newest
    holder = _holder(rows, newest)
    return holder is not None and commit.run_id not in ("", holder)


def _holder(rows: Sequence[ControlRow], newest: int) -> str | None:
    for row in rows:
        if number(row) - (row.batch_status != "SUCCESS") == newest and row.coverage:
            run: str | None = json.loads(row.coverage).get(RUN)
            return run
    return None


def goes_forward(there: Sequence[ControlRow], rows: Sequence[ControlRow]) -> bool:
    """May these rows of a node replace what is there? Records only go forward; a commit outdoes a quiet ending."""
    newest, batch = finished(there), max(map(number, rows))
    if batch > newest:
        return True
    coverage = json.loads(rows[0].coverage or "{}")
    done = rows[0].batch_status == "SUCCESS" and bool(coverage.get(COMMITTED))
    return done and batch == newest and _holder(there, newest) not in (None, coverage.get(RUN))


def held_by_another(history: Sequence[RunRow], row: RunRow) -> RunRow | None:
    """The batch of another run that ended this number, or a later one; a commit outdoes what committed nothing."""
    others = [r for r in history if r.counts and r.node == row.node and r.batch >= row.batch]
    if any(r.run_id == row.run_id and r.batch == row.batch for r in others) or row.version is not None:
        return None
    return min(others, key=lambda r: r.batch, default=None)


def outdone(history: Sequence[RunRow], row: RunRow) -> str | None:
    """The run whose quiet ending of the same number this row's commit takes back."""
    same = (r for r in history if r.counts and (r.node, r.batch) == (row.node, row.batch) and r.run_id != row.run_id)
    return next((r.run_id for r in same), None) if row.version is not None else None


def counting(history: Sequence[RunRow]) -> set[tuple[str, str, int]]:
    """Run, node and batch of whatever has come to its end and was not taken back."""
    back = {(r.takes_back, r.node) for r in history if r.counts and r.takes_back}
    return {(r.run_id, r.node, r.batch) for r in history if r.counts and (r.run_id, r.node) not in back}
