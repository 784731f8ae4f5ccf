"""What the history lacks: the state is written after it, so it never knows more, unless the history was lost. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.control.fence import holder
from strandline.control.ledger import BY_HAND, ControlRow, RunRow, finished


def lost(control: Sequence[ControlRow], history: Sequence[RunRow]) -> dict[str, int]:
    """By node, the newest batch that `etl_control` knows to be finished, where `etl_runs` lacks the run that did it.

    That run may have done it under another name, so the history is that of all names.
    """
    rows: dict[str, list[ControlRow]] = {}
    for row in control:
        if not row.node.startswith(BY_HAND):
            rows.setdefault(row.node, []).append(row)
    told = {None, *(row.run_id for row in history)}  # records of before do not say who
    return {node: finished(mine) for node, mine in rows.items() if holder(mine) not in told}
