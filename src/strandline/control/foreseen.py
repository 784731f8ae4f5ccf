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
        self._states: list[ControlRow] | None = None
        self._told: dict[tuple[str, str], int] = {}

    def states(self) -> list[ControlRow]:
        if self._states is None:
            self._states = self._store.states()
        return self._states

    def put(self, rows: Sequence[ControlRow], seen: int) -> int | None:
        after = fence.merged(self.states(), rows, seen)
        if after is None:
            return None
        self._states = after
        return max(r.revision for r in after if r.line == rows[0].line)

    def log(self, row: RunRow, revision: int = 0) -> None:
        """Not told to anybody."""
        self._told[row.line] = max(revision, self._told.get(row.line, 0))

    def list_undo(self, rows: Sequence[RunRow]) -> None:
        """Not listed."""

    def told(self, line: tuple[str, str]) -> int:
        return max(self._store.told(line), self._told.get(line, 0))

    def log_changes(self, token: Token, batch: int, rows: Sequence[ChangeRow]) -> None:
        """Not noted."""

    def decide(self, rows: Sequence[ChangeRow], held: Sequence[ChangeRow]) -> bool:  # noqa: ARG002
        """Not noted."""
        return False

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
