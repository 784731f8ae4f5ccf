"""Held deletes: which are open, of which run, and what a person has decided. Pure, over the records of single rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from strandline.control.ledger import ChangeRow, RunRow
from strandline.words import agree, plural

_ENDS = ("reject", "missing", "seen", "delete")


def open_holds(
    changes: Iterable[ChangeRow], run_id: str | None = None
) -> dict[str, list[ChangeRow]]:
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


def carried_over(row: RunRow, notes: Iterable[ChangeRow]) -> list[ChangeRow]:
    """What a person rejected in the ending that this row takes back, as notes of its own batch.

    A rejection is not nothing: the runner that committed could not see it. Where its batch tells of the key itself, it
    was seen again or its delete approved, and that stays.
    """
    notes = [n for n in notes if (n.node, n.batch) == (row.node, row.batch)]
    mine = {n.key_hash for n in notes if n.run_id == row.run_id and n.verb != "reject"}
    theirs = [
        n
        for n in notes
        if n.run_id == row.takes_back and n.verb == "reject" and n.key_hash not in mine
    ]
    why = f"decided by run {row.takes_back}, while this one was at work"
    return [replace(n, run_id=row.run_id, reason=f"{n.reason}; {why}") for n in theirs]


def with_decisions(row: RunRow, rejected: Sequence[ChangeRow]) -> RunRow:
    """The row of a batch to which these rejections belong: what they silence it no longer holds."""
    held = max(0, row.held - sum(n.target_table == row.target_table for n in rejected))
    what = f"{plural(len(rejected), 'held delete')} {agree(len(rejected), 'is', 'are')} rejected"
    said = f"{what}: a person has decided so in run {row.takes_back} meanwhile"
    told = replace(row, held=held, status="held" if held else "success")
    warnings = json.dumps([*json.loads(row.warnings or "[]"), said])
    return replace(told, coverage=replace(row.coverage, held=held), warnings=warnings)


def unapprovable(
    held: Sequence[ChangeRow], node: str, table: str, keys: Sequence[str], *, looks: bool
) -> str | None:
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
