"""The loads of hand-written jobs: which versions of a source each of them read, and whether it came to its end.

A load is registered when it is read and processed when its writes are done. One that was read and never processed goes
stale as soon as the same versions are read again; what comes after the last processed one is read next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime


@dataclass(frozen=True)
class LoadRow:
    """A row of `etl_loads`: one load. Without a start it began with the whole table."""

    load_id: str
    source_table: str
    delta_load_identifier: str
    table_id: str
    start_commit_version: int | None
    end_commit_version: int
    is_processed: bool
    is_stale: bool
    registered_at: datetime
    processed_at: datetime | None


def position(rows: Sequence[LoadRow]) -> LoadRow | None:
    """The load to go on from: the newest that was processed and is not stale."""
    done = [r for r in rows if r.is_processed and not r.is_stale]
    return max(done, key=lambda r: r.registered_at, default=None)


def interrupted(rows: Sequence[LoadRow]) -> list[LoadRow]:
    """Loads that were read and never processed, as the stale ones that they are now."""
    return [replace(r, is_stale=True) for r in rows if not r.is_processed and not r.is_stale]


def forgotten(rows: Sequence[LoadRow]) -> list[LoadRow]:
    """Every load as a stale one: the next begins with the whole table."""
    return [replace(r, is_stale=True) for r in rows if not r.is_stale]
