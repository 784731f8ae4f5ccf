"""The meaning of a star, in plain Python: which key each row of a dimension has, and which row each fact belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from strandline.testing.oracle import Row, comparable, hash_text, key_of, rank, same

UNKNOWN = -1


@dataclass(frozen=True)
class Dimension:
    """What is configured of a dimension."""

    keys: Sequence[str]
    types: Sequence[str]  # of the keys: i, s, … as hashes tag them
    strategy: str = "hash"
    history: bool = False
    surrogate: str = "sk"
    durable: str | None = None
    bits: int = 63

    def start(self, row: Row) -> datetime | None:
        return row["_valid_from"] if self.history else None

    def place(self, row: Row) -> tuple[Any, ...]:
        """Where a row stands among those that get their keys together."""
        begins = [rank(self.start(row))] if self.history else []
        return (*(rank(row[k]) for k in self.keys), *begins)


def given_keys(before: Sequence[Row], after: Sequence[Row], of: Dimension, last: int = 0) -> int:
    """Set the key of each row of a dimension that has changed; returns the highest number that a sequence has given.

    Default members keep the keys that they have.
    """
    ordinary = [r for r in before if r[of.surrogate] >= 0]
    taken = {r[of.surrogate] for r in before}
    new = []
    for row in after:
        row[of.surrogate] = _stored(row, ordinary, of)
        if row[of.surrogate] is None:
            new.append(row)
    for row in sorted(new, key=of.place):
        last += 1
        row[of.surrogate] = last if of.strategy == "sequence" else _hash(row, of, 0)
    if of.strategy == "hash":
        _without_collisions(new, taken, of)
    if of.durable:
        _durable(ordinary, after, of)
    return last


def _stored(row: Row, before: Sequence[Row], of: Dimension) -> int | None:
    """The key of the stored row, or of the first stored version whose start lies in this one."""
    mine = [r for r in before if key_of(r, of.keys) == key_of(row, of.keys)]
    if of.history:
        start, end = row["_valid_from"], row["_valid_to"]
        mine = [
            r for r in mine if start <= r["_valid_from"] and (end is None or r["_valid_from"] < end)
        ]
        mine.sort(key=lambda r: r["_valid_from"])
    return mine[0][of.surrogate] if mine else None


def _hash(row: Row, of: Dimension, tries: int) -> int:
    values = [(row[k], t) for k, t in zip(of.keys, of.types, strict=True)]
    values += [(of.start(row), "t")] if of.history else []
    text = "".join(
        "N" if v is None else f"{t}{len(hash_text(v))}:{hash_text(v)}" for v, t in values
    )
    digest = hashlib.sha256(text.encode()).hexdigest()
    if tries:
        digest = hashlib.sha256(f"{digest}:{tries}".encode()).hexdigest()
    return (int(digest[:16], 16) >> 1) % (1 << of.bits)


def _without_collisions(new: Sequence[Row], taken: set[int], of: Dimension) -> None:
    """Rows whose key another row has are hashed again, all of them at once, until none is left."""
    tries = {id(r): 0 for r in new}
    while True:
        first: dict[int, Row] = {}
        for row in sorted(new, key=of.place):
            first.setdefault(row[of.surrogate], row)
        lost = [r for r in new if r[of.surrogate] in taken or first[r[of.surrogate]] is not r]
        if not lost:
            return
        for row in lost:
            tries[id(row)] += 1
            row[of.surrogate] = _hash(row, of, tries[id(row)])


def _durable(before: Sequence[Row], after: Sequence[Row], of: Dimension) -> None:
    """All versions of a key share the key of the first of them that there ever was."""
    assert of.durable is not None
    known = {key_of(r, of.keys): r[of.durable] for r in before}
    for row in sorted(after, key=of.place):
        key = key_of(row, of.keys)
        known.setdefault(key, row[of.surrogate])
        row[of.durable] = known[key]


# --- facts -------------------------------------------------------------------------------------------------


def found_key(
    key: Sequence[Any], when: datetime | None, rows: Sequence[Row], of: Dimension
) -> int | None:
    """The row of a dimension that a fact belongs to; None when there is no row of its key at all."""
    if any(v is None for v in key):
        return UNKNOWN
    wanted = tuple(map(comparable, key))
    mine = [r for r in rows if r[of.surrogate] >= 0 and key_of(r, of.keys) == wanted]
    if not mine:
        return None
    if not of.history:
        return int(mine[0][of.surrogate])
    mine.sort(key=lambda r: r["_valid_from"])
    if when is not None:
        for row in mine:
            ends = None if row["_is_current"] else row["_valid_to"]
            if row["_valid_from"] <= when and (ends is None or when < ends):
                return int(row[of.surrogate])
        if when < mine[0]["_valid_from"]:
            return int(mine[0][of.surrogate])
    return int(mine[-1][of.surrogate])


@dataclass(frozen=True)
class Foreign:
    """What is configured of a foreign key."""

    column: str
    lookup: Sequence[str]  # the fact's columns, in the order of the dimension's keys
    event_time: str | None = None
    repoint: bool = False

    def finds(self, fact: Row, rows: Sequence[Row], of: Dimension) -> int | None:
        when = fact[self.event_time] if self.event_time else None
        return found_key([fact[n] for n in self.lookup], when, rows, of)


def early(facts: Sequence[Row], foreign: Foreign, rows: Sequence[Row], of: Dimension) -> set[Any]:
    """The keys of members that facts know and their dimension does not."""
    return {key_of(fact, foreign.lookup) for fact in facts if foreign.finds(fact, rows, of) is None}


def pointed(
    before: Row | None, fact: Row, foreign: Foreign, rows: Sequence[Row], of: Dimension
) -> int:
    """The foreign key of a fact after a batch, which had it as `before`, or not at all."""
    found = foreign.finds(fact, rows, of)
    changed = before is None or any(
        not same(v, before[n]) for n, v in fact.items() if n != foreign.column
    )
    if changed:
        return UNKNOWN if found is None else found
    assert before is not None
    have = int(before[foreign.column])
    lost = have >= 0 and all(r[of.surrogate] != have for r in rows)
    if not (foreign.repoint or lost):
        return have
    return found if found is not None else UNKNOWN if lost else have
