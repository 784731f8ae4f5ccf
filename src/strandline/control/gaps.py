"""What the history lacks: the state is written after it, so it never knows more, unless the history was lost. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.control.ledger import BY_HAND, ControlRow, RunRow, finished


def lost(control: Sequence[ControlRow], history: Sequence[RunRow]) -> dict[str, int]:
    """By node, the newest batch that `etl_control` knows to be finished, where `etl_runs` does not reach it."""
    rows: dict[str, list[ControlRow]] = {}
    for row in control:
        if not row.node.startswith(BY_HAND):
            rows.setdefault(row.node, []).append(row)
    known = {node: finished(mine) for node, mine in rows.items()}
    told: dict[str, int] = {}
    for batch in history:
        if batch.counts:
            told[batch.node] = max(told.get(batch.node, 0), batch.batch)
    return {node: batch for node, batch in known.items() if batch > told.get(node, 0)}
