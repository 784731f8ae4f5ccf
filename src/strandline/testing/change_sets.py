"""What a change set does to a table, in plain Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from strandline.testing.oracle import Columns, Row, key_of

VERB = "_action"
TOUCHES = ("delete", "close", "revive")
UNTOUCHED = ("row_hash", "valid_from", "batch_id")


@dataclass(frozen=True)
class PlainChange:
    """Rows with their verbs, and which stored rows they replace; a commit, or only a part of one."""

    rows: list[Row]
    columns: Columns
    removals: Literal["nothing", "replaced", "everything"]
    keys: Sequence[str] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    partition_by: Sequence[str] = ()
    hard: bool = False
    drops: bool = False

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.columns]

    @property
    def touched(self) -> list[str]:
        """The columns that a verb writes which leaves the others as they are."""
        return [name for role, name in self.roles.items() if role not in UNTOUCHED]


def rows_after(stored: Sequence[Row], change: PlainChange) -> list[Row]:
    """The rows of the table after a change."""
    came = [{n: row[n] for n in change.names} for row in change.rows]
    there = [{n: row.get(n) for n in change.names} for row in stored]
    if change.removals == "everything":
        return came
    if change.removals == "nothing":
        return there + came
    table = {key_of(row, change.keys): row for row in there}
    for row in change.rows:
        key, verb = key_of(row, change.keys), row[VERB]
        if verb == "drop" or (verb == "delete" and change.hard):
            table.pop(key)
        elif verb in TOUCHES:
            table[key] = {**table[key], **{n: row[n] for n in change.touched}}
        else:
            table[key] = {n: row[n] for n in change.names}
    return list(table.values())
