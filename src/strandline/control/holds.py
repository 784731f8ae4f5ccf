"""Held deletes: which are open, and of which run. Pure, over the records of single rows."""

from __future__ import annotations

from collections.abc import Iterable

from strandline.control.ledger import ChangeRow

_ENDS = ("reject", "missing", "seen", "delete")


def open_holds(changes: Iterable[ChangeRow], run_id: str | None = None) -> dict[str, list[ChangeRow]]:
    """The holds that nobody has decided on yet, by node; of one run, or of all."""
    newest: dict[tuple[str, str], ChangeRow] = {}
    for row in sorted(changes, key=lambda r: r.batch):
        if row.verb == "hold" or row.verb in _ENDS:
            newest[row.node, row.key_hash] = row
    found: dict[str, list[ChangeRow]] = {}
    for row in newest.values():
        if row.verb == "hold" and run_id in (None, row.run_id):
            found.setdefault(row.node, []).append(row)
    return found
