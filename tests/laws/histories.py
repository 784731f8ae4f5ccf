"""Generated histories of a table: how it is made, and the change sets that are committed to it one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Literal

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from tests.meaning.tables import TYPES, columns, pools_of

from strandline.testing.change_sets import VERB, PlainChange, rows_after
from strandline.testing.oracle import Columns, Row, family, key_of

SOFT = {"deleted": "_is_deleted", "last_seen": "_last_seen"}
VERSIONED = {
    "valid_from": "_valid_from",
    "valid_to": "_valid_to",
    "is_current": "_is_current",
    "deleted": "_is_deleted",
}
SYSTEM = {"deleted": "boolean", "is_current": "boolean"}  # and all others are instants
PARTS = {  # what a table may be partitioned by; an empty text is refused before it gets here
    "string": ["x", "é 1", "a/b=c", "50%", "日本", None],
    "int": [0, -1, 2**31 - 1, None],
    "date": [datetime(2024, 2, 29).date(), datetime(1900, 1, 1).date(), None],
    "bigint": [1, 2**60, None],
}
START = datetime(2024, 10, 27, 0, 30, 0, 1, tzinfo=UTC)
Kind = Literal["rows", "soft", "hard", "versions"]


@dataclass(frozen=True)
class Step:
    """Columns that the table gets first, by ALTER, and what is committed then."""

    change: PlainChange
    added: Columns = field(default_factory=list)
    system: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # by role
    before: list[Row] = field(default_factory=list)  # the rows on which it is committed
    after: list[Row] = field(default_factory=list)


@dataclass(frozen=True)
class History:
    """A table and its steps; the last two are both made for the version before them."""

    kind: Kind
    steps: list[Step]
    rival: Step
    number: int  # by which tests take their own choices


@st.composite
def histories(draw: DrawFn, types: Sequence[str] = TYPES) -> History:
    """One number decides nearly everything: so the first history is as rich as the last."""
    number = draw(st.integers(0, 2**40))
    dice = Random(number)
    kind: Kind = dice.choice(["rows", "soft", "soft", "hard", "versions", "versions"])
    cols = draw(columns(2, 4, list(types)))
    key_types = [t for t in types if family(t) not in ("float", "binary")]
    keys = cols[: dice.choice([1, 1, 2]) if len(cols) > 2 else 1]
    cols = [(n, dice.choice(key_types) if (n, t) in keys else t) for n, t in cols]
    pools = draw(pools_of(cols, most=4))
    maker = _Maker(dice, kind, cols, pools, [n for n, _ in cols[: len(keys)]])
    steps = [maker.first()]
    for _ in range(draw(st.sampled_from([2, 3, 1]))):
        steps.append(maker.next(steps[-1]))
    rival = maker.next(replace(steps[-1], after=steps[-1].before), evolves=False)
    return History(kind, steps, rival, number)


class _Maker:
    """Makes up one step after another."""

    def __init__(
        self, dice: Random, kind: Kind, cols: Columns, pools: dict[str, list[Any]], keys: list[str]
    ) -> None:
        self.dice, self.kind, self.keys = dice, kind, keys
        self.columns, self.pools = list(cols), dict(pools)
        self.parts: list[str] = []
        if dice.random() < 0.4:
            type_ = dice.choice(list(PARTS))
            self.columns.append(("_part", type_))
            self.pools["_part"], self.parts = PARTS[type_], ["_part"]
        late = kind == "soft" and dice.random() < 0.3  # the flag comes with a later step
        self.roles = {} if late else {"soft": SOFT, "versions": VERSIONED}.get(kind, {})
        self.hours = 0

    @property
    def every(self) -> Columns:
        """The columns of the table, system columns included."""
        return [*self.columns, *((n, SYSTEM.get(r, "timestamp")) for r, n in self.roles.items())]

    @property
    def locator(self) -> list[str]:
        begins = [VERSIONED["valid_from"]] if self.kind == "versions" else []
        return [*self.keys, *begins] if self.kind != "rows" else []

    def first(self) -> Step:
        rows = self._new_rows([], self.dice.choice([3, 4, 6, 0]))
        change = self._change(rows, "nothing")
        return Step(change, after=rows_after([], change))

    def next(self, last: Step, *, evolves: bool = True) -> Step:
        """A step on the table that the last one has left."""
        added, system = self._evolved() if evolves and self.dice.random() < 0.3 else ([], {})
        filled = {name: False for role, (name, _) in system.items() if role == "deleted"}
        names = [n for n, _ in self.every]
        before = [{**dict.fromkeys(names), **row, **filled} for row in last.after]
        change = self._committed(before)
        return Step(change, added, system, before, rows_after(before, change))

    def _evolved(self) -> tuple[Columns, dict[str, tuple[str, str]]]:
        if self.kind == "soft" and not self.roles:
            self.roles = SOFT
            return [], {r: (n, SYSTEM.get(r, "timestamp")) for r, n in SOFT.items()}
        new = (
            f"added {len(self.columns)}".replace(" ", "_"),
            self.dice.choice(["string", "decimal(10,2)"]),
        )
        self.columns.append(new)
        self.pools[new[0]] = [None, *(["é", ""] if new[1] == "string" else [])]
        return [new], {}

    def _committed(self, before: list[Row]) -> PlainChange:
        everything = self.dice.random() < (0.4 if self.kind == "rows" else 0.1)
        if everything or self.kind == "rows":
            rows = self._new_rows([], self.dice.choice([1, 3, 5, 0] if everything else [1, 3]))
            return self._change(rows, "everything" if everything else "nothing")
        rows = [self._touched(row) for row in before if self.dice.random() < 0.6]
        rows += self._new_rows(before, self.dice.choice([0, 1, 2]) if rows else 2)
        return self._change(rows or self._new_rows(before, 3), "replaced")

    def _change(self, rows: list[Row], removals: Any) -> PlainChange:
        return PlainChange(
            rows, self.every, removals, self.locator, self.roles, self.parts,
            hard=self.kind == "hard", drops=self.kind == "versions",
        )  # fmt: skip

    def _touched(self, row: Row) -> Row:
        """What becomes of a stored row; a verb that leaves its values alone carries none of them."""
        verbs = {
            "soft": ["update", "update", *(["delete", "revive"] if self.roles else [])],
            "hard": ["update", "delete"],
            "versions": ["update", "close", "close", "delete", "drop"],
        }
        verb = self.dice.choice(verbs[self.kind])
        new = {n: row[n] if n in self.locator else self._value(n) for n, _ in self.columns}
        if verb != "update":
            new = {n: v if n in self.locator else None for n, v in new.items()}
        system = self._system(gone=verb in ("delete", "close"))
        return {**new, **system, **{n: row[n] for n in self.locator}, VERB: verb}

    def _new_rows(self, before: Sequence[Row], most: int) -> list[Row]:
        found: dict[Any, Row] = {}
        taken = {key_of(row, self.locator) for row in before}
        for number in range(most):
            row = {n: self._value(n) for n, _ in self.columns} | self._system(gone=False)
            key = key_of(row, self.locator) if self.locator else number
            if key not in taken:
                found[key] = {**row, VERB: "insert"}
        return list(found.values())

    def _system(self, *, gone: bool) -> Row:
        self.hours += 1
        now = START + timedelta(hours=self.hours)
        values = {"deleted": gone, "is_current": not gone, "valid_to": now if gone else None}
        return {name: values.get(role, now) for role, name in self.roles.items()}

    def _value(self, name: str) -> Any:
        return self.dice.choice(self.pools[name])
