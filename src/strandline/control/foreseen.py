"""The records as the next run will find them, once it has finished what dead runners left; nothing is written."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.control import fence
from strandline.control.ledger import ChangeRow, ControlRow, Notebook, RunRow, Store


class Foreseen:
    """A store that keeps in memory what it is told."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows: dict[str, list[ControlRow]] = {}

    def control(self, node: str, target: str | None = None) -> list[ControlRow]:
        mine = self._rows[node] if node in self._rows else self._store.control(node)
        return mine if target is None else [*mine, *(r for r in self.writers(target) if r.node != node)]

    def writers(self, target: str) -> list[ControlRow]:
        known = [r for r in self._store.writers(target) if r.node not in self._rows]
        return [*known, *(r for rows in self._rows.values() for r in rows if r.target_table == target)]

    def put(self, rows: Sequence[ControlRow]) -> bool:
        node = rows[0].node
        before = self.control(node)
        new = fence.merged(before, rows)
        if new:
            self._rows[node] = fence.replaced(before, new)
        return bool(new)

    def log(self, row: RunRow) -> None:
        """Not told to anybody."""

    def ended(self, app_id: str, node: str, after: int) -> RunRow | None:
        return self._store.ended(app_id, node, after)

    def log_changes(self, rows: Sequence[ChangeRow]) -> None:
        """Not noted."""

    def changes(self, node: str | None = None) -> list[ChangeRow]:
        return self._store.changes(node)

    def notebook(self) -> Notebook | None:
        return self._store.notebook()

    def runs(self, limit: int | None = None) -> list[RunRow]:
        return self._store.runs(limit)
