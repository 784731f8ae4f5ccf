"""What the history lacks: the next run of a node finishes it, unless the history was lost. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.control.ledger import BY_HAND, ControlRow, RunRow


def lost(control: Sequence[ControlRow], history: Sequence[RunRow]) -> dict[str, int]:
    """By node, the newest batch that `etl_control` knows to be finished, where `etl_runs` lacks the run that did it."""
    told = {None, *(row.run_id for row in history)}
    return {
        row.node: row.revision
        for row in sorted(control, key=lambda r: r.revision)
        if row.covered.run not in told and not row.node.startswith(BY_HAND)
    }
