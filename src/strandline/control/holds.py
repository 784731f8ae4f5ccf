"""Held deletes: which are open, of which run, and what a person has decided. Pure, over the records of single rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from strandline.control.ledger import DECISIONS, ChangeRow

_ENDS = ("reject", "approve", "missing", "seen", "delete")


def order_of_notes(note: ChangeRow) -> tuple[int, bool]:
    """The place of a note among those of its table; what a batch saw comes after what a person decided beside it."""
    return note.batch, note.verb not in DECISIONS


def open_holds(
    changes: Iterable[ChangeRow], run_id: str | None = None
) -> dict[str, list[ChangeRow]]:
    """The holds that no person has decided on yet, by the id of the table; of one run, or of all."""
    found: dict[str, list[ChangeRow]] = {}
    for row in _newest(changes):
        if row.verb == "hold" and run_id in (None, row.run_id):
            found.setdefault(row.table_id, []).append(row)
    return found


def approvals(changes: Iterable[ChangeRow]) -> list[ChangeRow]:
    """The deletes that a person has approved and no batch has applied yet."""
    return [r for r in _newest(changes) if r.verb == "approve"]


def _newest(changes: Iterable[ChangeRow]) -> list[ChangeRow]:
    """The newest note on each key."""
    newest: dict[tuple[str, str], ChangeRow] = {}
    for row in sorted(changes, key=order_of_notes):
        if row.verb == "hold" or row.verb in _ENDS:
            newest[row.table_id, row.key_hash] = row
    return list(newest.values())


def unapprovable(
    held: Sequence[ChangeRow], node: str, keys: Sequence[str], *, looks: bool
) -> str | None:
    """Why no run can apply held deletes to what a node is now; None when one can look again for their keys."""
    if not looks:
        return f"node `{node}` no longer looks for deletes"
    before = list(json.loads(held[0].key))
    if {k.casefold() for k in before} != {k.casefold() for k in keys}:
        return f"the keys of node `{node}` are ({', '.join(keys)}) now, and they are held by ({', '.join(before)})"
    return None
