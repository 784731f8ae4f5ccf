"""A table format in memory, as small as one can be: each version is a whole Arrow table, and versions are opaque."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Lock
from typing import Any

import pyarrow as pa

from strandline.errors import CommitConflict
from strandline.lake.base import Key
from strandline.lake.delta.limits import DELTA_LIMITS
from strandline.lake.delta.types import to_arrow
from strandline.strategy.evolution import AddColumn, AddField, Fill, Relax
from strandline.testing.oracle import same
from strandline.types import Column, Commit, Table, TableState


@dataclass(frozen=True)
class Kept:
    """One version of a table."""

    state: TableState
    commit: Commit
    rows: pa.Table


class MemoryFormat:
    """Tables by their locations, each with all its versions, the newest last."""

    name = "memory"
    limits = replace(
        DELTA_LIMITS, title="memory", carried=frozenset({AddColumn, AddField, Relax, Fill})
    )

    def __init__(self) -> None:
        self.tables: dict[str, list[Kept]] = {}
        self._lock, self._numbers = Lock(), itertools.count(1)

    def describe(self, table: Table, app_id: str | None = None) -> TableState | None:
        kept = self.tables.get(table.location)
        own = (c for c in self.history(table) if app_id is not None and c.app_id == app_id)
        return replace(kept[-1].state, commit=next(own, None)) if kept else None

    def at(self, table: Table, version: int) -> TableState | None:
        kept = self.tables.get(table.location, [])
        return next((k.state for k in kept if k.state.version == version), None)

    def unreadable(self, table: Table, version: int) -> str | None:
        return None if self.at(table, version) else f"there is no version {version}"

    def history(self, table: Table) -> Iterator[Commit]:
        return (kept.commit for kept in reversed(self.tables.get(table.location, [])))

    def since(self, table: Table, version: int) -> list[Commit] | None:
        line = list(self.history(table))
        after = list(itertools.takewhile(lambda c: c.version != version, line))
        return after if len(after) < len(line) or version < 0 else None

    def preceding(self, table: Table, version: int) -> int:
        found = next((c for c in self.history(table) if c.version == version), None)
        return -1 if found is None or found.parent is None else found.parent

    def moved(self, table: Table, after: int, upto: int) -> bool:
        later = self.since(table, upto) or []
        return any(c.moves_rows for c in self.since(table, after) or [] if c not in later)

    def gap(self, table: Table, after: int, upto: int, **_: object) -> str | None:  # noqa: ARG002
        return None if after < 0 else self.unreadable(table, after)

    def add_columns(self, table: Table, columns: Sequence[Column]) -> None:
        kept = self.tables[table.location][-1]
        rows = kept.rows
        for c in columns:
            rows = rows.append_column(c.name, pa.nulls(rows.num_rows, to_arrow(c.type)))
        made = replace(kept.state, schema=kept.state.schema.plus(*columns))
        note = Commit(0, parent=kept.state.version, operation="ADD COLUMNS", moves_rows=False)
        self.commit(table, made, rows, note)

    def overlooked(self, *_: object, **__: object) -> None:
        """Nothing: a commit lands on the version that it was made for; and no feed needs keeping."""

    keep_feed = overlooked

    def rows_at(self, table: Table, version: int, key: Key) -> list[dict[str, Any]] | None:
        rows = self.rows(table, version).to_pylist()
        return [row for row in rows if all(same(row.get(n), v) for n, v in key.items())]

    def rows(self, table: Table, version: int) -> pa.Table:
        return next(k.rows for k in self.tables[table.location] if k.state.version == version)

    def commit(self, table: Table, made: TableState, rows: pa.Table, note: Commit) -> int:
        with self._lock:
            kept = self.tables.setdefault(table.location, [])
            if (kept[-1].state.version if kept else None) != note.parent:
                raise CommitConflict(f"{table.label}: it is no longer at version {note.parent}")
            version = next(self._numbers) * 2_654_435_761 % 2**32
            record = json.loads(json.dumps(note.record, default=str))
            commit = replace(note, version=version, record=record, at=datetime.now(UTC))
            kept.append(Kept(replace(made, version=version, commit=None), commit, rows))
        return version


MEMORY = MemoryFormat()
