"""Held deletes: which are open, and of which run. Pure, over the records of single rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from strandline.control.ledger import ChangeRow

_ENDS = ("reject", "missing", "seen", "delete")


def open_holds(changes: Iterable[ChangeRow], run_id: str | None = None) -> dict[str, list[ChangeRow]]:
    """The holds that nobody has decided on yet, by table, whatever its node was called; of one run, or of all."""
    newest: dict[tuple[str, str], ChangeRow] = {}
    for row in sorted(changes, key=lambda r: r.batch):
        if row.verb == "hold" or row.verb in _ENDS:
            newest[row.target_table, row.key_hash] = row
    found: dict[str, list[ChangeRow]] = {}
    for row in newest.values():
        if row.verb == "hold" and run_id in (None, row.run_id):
            found.setdefault(row.target_table, []).append(row)
    return found


def unapprovable(held: Sequence[ChangeRow], node: str, table: str, keys: Sequence[str], *, looks: bool) -> str | None:
    """Why no run can apply held deletes to what a node is now; None when one can look again for their keys."""
    first = held[0]
    if first.target_table != table:
        return f"node `{node}` writes {table} now, and they are held for {first.target_table}"
    if not looks:
        return f"node `{node}` no longer looks for deletes"
    before = list(json.loads(first.key))
    if {k.casefold() for k in before} != {k.casefold() for k in keys}:
        return f"the keys of node `{node}` are ({', '.join(keys)}) now, and they are held by ({', '.join(before)})"
    return None
