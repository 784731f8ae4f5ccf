"""The records as the next run will find them, once it has finished what dead runners left; nothing is written."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.control import fence
from strandline.control.ledger import ChangeRow, ControlRow, Notebook, RunRow, Store
from strandline.types import Token


class Foreseen:
    """A store that keeps in memory what it is told."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows: dict[tuple[str | None, str], list[ControlRow]] = {}

    def control(self, node: str, target: str | None = None) -> list[ControlRow]:
        known = self._store.control(node, target)
        said = [
            r
            for rows in self._rows.values()
            for r in rows
            if r.node == node or r.target_table == target
        ]
        return [*self._unsaid(known), *said]

    def writers(self, target: str) -> list[ControlRow]:
        known = self._unsaid(self._store.writers(target))
        return [
            *known,
            *(r for rows in self._rows.values() for r in rows if r.target_table == target),
        ]

    def _unsaid(self, known: Sequence[ControlRow]) -> list[ControlRow]:
        """The rows of nodes that nothing was said of meanwhile."""
        return [
            r for r in known if not any(r.by(project or "", node) for project, node in self._rows)
        ]

    def put(self, rows: Sequence[ControlRow]) -> bool:
        node, project = rows[0].node, rows[0].project or ""
        before = [r for r in self.control(node, rows[0].target_table) if r.by(project, node)]
        new = fence.merged(before, rows)
        if new:
            self._rows[project, node] = fence.replaced(before, new)
        return bool(new)

    def log(self, row: RunRow) -> RunRow:
        """Not told to anybody."""
        return row

    def ended(self, app_id: str, after: int) -> RunRow | None:
        return self._store.ended(app_id, after)

    def log_changes(self, token: Token, rows: Sequence[ChangeRow]) -> None:
        """Not noted."""

    def changes(self, node: str | None = None) -> list[ChangeRow]:
        return self._store.changes(node)

    def noted(self) -> set[tuple[str, str]]:
        return self._store.noted()

    def notebook(self) -> Notebook | None:
        return self._store.notebook()

    def runs(self, limit: int | None = None) -> list[RunRow]:
        return self._store.runs(limit)

    def all_runs(self) -> list[RunRow]:
        return self._store.all_runs()
