"""The meaning of a table's history: what each run makes of the slice it read and of what it knows to be absent.

A node keeps a `State`: its table and what it remembers between runs. `step` is one run: it takes the slice and the
`Evidence` of presence and absence, judges the deletes that follow, and gives the next state with its counts, or a
`Refused` that leaves everything as it was. Evidence comes from a full snapshot, from the keys of the live source, from
a window that a watermark read again, or, where nothing looks for deletes, from the rows that came since the last run.
Like the rest of the oracle it is plain Python and shares no code with what it judges.

A stored row is *alive* unless it is flagged deleted; in `scd2` only the current version of a key can be alive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from strandline.testing.oracle import (
    Columns,
    Condition,
    Duplicates,
    Frame,
    Outcome,
    Row,
    append,
    duplicates,
    is_metadata,
    key_of,
    rank,
    same,
)

Key = tuple[Any, ...]

SOFT_COLUMNS: Columns = [("_is_deleted", "boolean"), ("_last_seen", "timestamp")]
SCD2_COLUMNS: Columns = [
    ("_valid_from", "timestamp"),
    ("_valid_to", "timestamp"),
    ("_is_current", "boolean"),
    *SOFT_COLUMNS,
]
_SYSTEM = {name for name, _ in SCD2_COLUMNS}


@dataclass(frozen=True)
class Rules:
    """What a node's configuration says: how it writes, what becomes of deletes, and how they are judged."""

    keys: Sequence[str]
    mode: Literal["upsert", "scd2"] = "upsert"
    deletes: Literal["none", "soft", "hard"] = "soft"  # none: the node has no delete detection
    condition: Condition | None = None
    sequence: str | None = None  # sequence_by: of two rows the higher one is newer
    scope: Callable[[Row], bool | None] = lambda _: True  # target_filter
    max_delete_percent: float | None = 50.0
    max_delete_count: int | None = None
    on_threshold_breach: Literal["warn", "error", "skip", "hold"] = "warn"
    on_empty_source: Literal["hold", "error", "apply"] = "hold"
    on_first_run: Literal["skip", "error"] = "skip"
    confirm_runs: int = 1

    @property
    def system(self) -> Columns:
        """The columns that the books are kept in."""
        return (
            SCD2_COLUMNS if self.mode == "scd2" else SOFT_COLUMNS if self.deletes == "soft" else []
        )


@dataclass(frozen=True)
class State:
    """A node between two runs: its table, and what it remembers."""

    table: Frame | None = None
    mark: Any = None  # the highest value of the watermark column read so far
    snapshot: Any = None  # the newest snapshot that was worked on
    missing: Mapping[Key, int] = field(
        default_factory=dict
    )  # living keys, and how many times running they were missed
    held: frozenset[Key] = frozenset()
    silenced: frozenset[Key] = frozenset()  # rejected holds


@dataclass(frozen=True)
class Evidence:
    """What a run knows: the keys that are there, and of which stored rows it would know that they are not."""

    seen: frozenset[Key]
    covers: Callable[[Row], bool]
    empty: bool = False  # the source showed no key at all
    live: bool = (
        False  # the source itself was asked: slice rows that it does not have are out of date
    )
    fresh: bool = True  # false: the same snapshot as the last time
    first: bool = False  # there is nothing to compare with yet
    off: bool = False  # nothing looks for deletes: `seen` are the keys that came since the last run


@dataclass(frozen=True)
class Counts:
    """What a run did, and how many deletes wait for a person."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    reopened: int = 0
    held: int = 0


@dataclass(frozen=True)
class Ran:
    """A run that went through."""

    state: State
    counts: Counts
    created: bool = False
    breached: bool = False  # a limit was exceeded, whatever was done about it

    @property
    def table(self) -> Frame:
        assert self.state.table is not None
        return self.state.table

    @property
    def commits(self) -> bool:
        c = self.counts
        return bool(self.created or c.inserted or c.updated or c.deleted or c.reopened)

    @property
    def status(self) -> str:
        return "held" if self.counts.held else "success" if self.commits else "unchanged"


@dataclass(frozen=True)
class Refused:
    """A run that failed and wrote nothing."""

    reason: Literal["duplicates", "threshold", "empty", "first run"]
    keys: Sequence[Key] = ()


# --- reading -----------------------------------------------------------------------------------------------


def lower_bound(mark: Any, lag: Any = None) -> Any:
    """Where a stateful read starts; None: at the beginning."""
    return mark if mark is None or lag is None else mark - lag


def read_since(source: Frame, column: str, low: Any) -> Frame:
    """A stateful read: the lower bound included, rows without a mark each time."""
    return Frame(source.columns, [row for row in source.rows if _from(row[column], low)])


def _from(value: Any, low: Any) -> bool:
    return low is None or value is None or value >= low


def next_mark(mark: Any, slice_: Frame, column: str) -> Any:
    """The highest value read; never lower than before."""
    return max((v for v in (mark, highest(slice_, column)) if v is not None), default=None)


def highest(slice_: Frame, column: str) -> Any:
    return max((row[column] for row in slice_.rows if row[column] is not None), default=None)


def append_new(target: Frame | None, slice_: Frame, column: str, low: Any) -> Outcome:
    """An incremental append: what was read again and is there already does not come twice."""
    names = [n for n in slice_.names if not is_metadata(n)]
    stored = target.rows if target else []
    there = Counter(key_of(row, names) for row in stored if _from(row[column], low))
    come = []
    for row in slice_.rows:
        key = key_of(row, names)
        if there[key]:
            there[key] -= 1
        else:
            come.append(row)
    return append(target, Frame(slice_.columns, come))


# --- evidence ----------------------------------------------------------------------------------------------


def _keys(frame: Frame, keys: Sequence[str]) -> frozenset[Key]:
    return frozenset(key_of(row, keys) for row in frame.rows)


def _no_key(rows: Iterable[Row], keys: Sequence[str]) -> bool:
    """Rows that have lost their keys are as little evidence as no rows."""
    return not any(all(row[k] is not None for k in keys) for row in rows)


def by_arrival(came: Frame, keys: Sequence[str]) -> Evidence:
    """Detection switched off: rows that came since the last run show what is there, and nothing about the rest."""
    return Evidence(_keys(came, keys), covers=lambda _: False, off=True)


def by_snapshot(slice_: Frame, keys: Sequence[str], snapshot: Any, last: Any) -> Evidence:
    """`snapshot_diff`: the slice is the newest snapshot; one must have been worked on before, and not this one."""
    fresh = snapshot != last
    return Evidence(
        _keys(slice_, keys),
        covers=lambda _: last is not None and fresh,
        empty=_no_key(slice_.rows, keys),
        fresh=fresh,
        first=last is None,
    )


def by_source(live: Iterable[Row], keys: Sequence[str]) -> Evidence:
    """`sql_compare`: the keys that the live source has now."""
    rows = list(live)
    seen = frozenset(key_of(row, keys) for row in rows)
    return Evidence(seen, covers=lambda _: True, empty=_no_key(rows, keys), live=True)


def by_window(
    slice_: Frame,
    keys: Sequence[str],
    column: str,
    low: Any,
    partition_by: Sequence[str] = (),
    *,
    first: bool = False,
) -> Evidence:
    """`watermark_window`: stored rows whose mark lies in what was read, in partitions that the slice has.

    As long as no run has left a mark (`first`), it says nothing of them, wherever the read began.
    """
    first, high = first or low is None, highest(slice_, column)
    partitions = _keys(slice_, partition_by)

    def covers(row: Row) -> bool:
        if first or high is None or row[column] is None:
            return False
        return bool(low <= row[column] <= high) and key_of(row, partition_by) in partitions

    return Evidence(_keys(slice_, keys), covers, first=first)


# --- one run -----------------------------------------------------------------------------------------------


def step(
    state: State, slice_: Frame, evidence: Evidence, rules: Rules, now: datetime
) -> Ran | Refused:
    """One run of a node: what it found, what was decided about it, and the table afterwards."""
    twice = duplicates(slice_.rows, rules.keys)
    if isinstance(twice, Duplicates):
        return Refused("duplicates", twice.keys)
    if evidence.first and rules.on_first_run == "error":
        return Refused("first run")
    books = _Books(state, slice_, rules, now)
    if evidence.off:  # what waits for a person or for another run goes on waiting
        books.apply(evidence, set(), set(), trusted=False)
        counts = Counts(**books.did, held=len(state.held))
        return Ran(replace(state, table=books.frame()), counts, created=state.table is None)
    absent = books.absent(evidence)
    missing = {k: n for k, n in state.missing.items() if k not in evidence.seen}
    missing |= {k: missing.get(k, 0) + 1 for k in absent}
    held, silenced = state.held - evidence.seen, state.silenced - evidence.seen
    found = {k for k in absent if missing[k] >= rules.confirm_runs} - held - silenced
    verdict, breached = judge(found, books.in_scope, evidence, rules)
    if verdict == "error":
        return Refused("empty" if evidence.empty else "threshold", sorted(found, key=repr))
    held |= found if verdict == "hold" else frozenset()
    deletes = found if verdict == "apply" else set()
    trusted = verdict == "apply" and (not evidence.empty or rules.on_empty_source == "apply")
    books.apply(evidence, absent, deletes, trusted=trusted and rules.confirm_runs == 1)
    after = replace(
        state,
        table=books.frame(),
        missing={k: n for k, n in missing.items() if k not in deletes},
        held=held,
        silenced=silenced,
    )
    return Ran(
        after, Counts(**books.did, held=len(held)), created=state.table is None, breached=breached
    )


def judge(found: set[Key], in_scope: int, evidence: Evidence, rules: Rules) -> tuple[str, bool]:
    """apply, hold, skip or error, and whether a limit was exceeded; an empty source is judged by its own rule."""
    if not found:
        return "apply", False
    if evidence.empty:
        return rules.on_empty_source, False
    percent = 100 * len(found) / in_scope
    too_many = rules.max_delete_count is not None and len(found) > rules.max_delete_count
    too_much = rules.max_delete_percent is not None and percent > rules.max_delete_percent
    if not too_many and not too_much:
        return "apply", False
    return "apply" if rules.on_threshold_breach == "warn" else rules.on_threshold_breach, True


def reject(state: State, keys: Iterable[Key]) -> State:
    """A person says no: these keys are left in peace until they are seen again."""
    chosen = state.held & frozenset(keys)
    return replace(state, held=state.held - chosen, silenced=state.silenced | chosen)


# --- the table during a run --------------------------------------------------------------------------------


class _Books:
    """A table while a run works on it: the newest row of each key, and what was done."""

    def __init__(self, state: State, slice_: Frame, rules: Rules, now: datetime) -> None:
        self.rules, self.now, self.slice = rules, now, slice_
        self.columns = _columns(state.table, slice_, rules)
        blank = dict.fromkeys(n for n, _ in self.columns)
        self.rows: list[Row] = [
            {**blank, **row} for row in (state.table.rows if state.table else [])
        ]
        self.newest: dict[Key, Row] = {}
        for row in sorted(self.rows, key=_age):
            self.newest[self._key(row)] = row
        self.in_scope = sum(
            1 for row in self.newest.values() if alive(row) and rules.scope(row) is True
        )
        self.did: Counter[str] = Counter()

    def _key(self, row: Row) -> Key:
        return key_of(row, self.rules.keys)

    def frame(self) -> Frame:
        return Frame(self.columns, self.rows)

    def absent(self, evidence: Evidence) -> set[Key]:
        """Living rows that should have been seen and were not; a NULL in the key is nobody's absence."""
        return {
            key
            for key, row in self.newest.items()
            if self.rules.deletes != "none"
            and alive(row)
            and None not in key
            and key not in evidence.seen
            and evidence.covers(row)
            and self.rules.scope(row) is True
        }

    def apply(
        self, evidence: Evidence, absent: set[Key], deletes: set[Key], *, trusted: bool
    ) -> None:
        """The slice's rows, then the deletes, then the rows that only the live source shows to be back.

        `trusted`: may absence be applied? Else a row that only comes now, and is gone at the source, comes alive.
        """
        carried = {self._key(row): row for row in self.slice.rows}
        for key, row in carried.items():
            outdated = evidence.live and key not in evidence.seen and None not in key
            if evidence.off and self._stays_deleted(key, row, evidence):
                continue
            if key not in absent:  # a delete, even one that waits, is the last word about its key
                self._take(key, row, outdated=outdated and (trusted or key in self.newest))
        for key in deletes:
            self._delete(key)
        for key, row in list(self.newest.items()) if evidence.live else []:
            if not alive(row) and key in evidence.seen and key not in carried:
                self._reopen(key, row)

    def _stays_deleted(self, key: Key, row: Row, evidence: Evidence) -> bool:
        """Detection is off, and the row says nothing new of a deleted one: it was there before, or is older."""
        old = self.newest.get(key)
        return (
            old is not None
            and not alive(old)
            and (key not in evidence.seen or self._older(row, old))
        )

    def _take(self, key: Key, row: Row, *, outdated: bool) -> None:
        old = self.newest.get(key)
        if old is None and outdated:
            if self.rules.deletes == "soft":
                self._put("inserted", key, None, {**self._opened(row), **self._gone()})
        elif old is None:
            self._put("inserted", key, None, self._opened(row))
        elif not alive(old):
            if not outdated:
                self._reopen(key, old if self._older(row, old) else {**old, **row})
        elif self._older(row, old):
            pass  # an older row never overwrites a newer one
        elif self._changed(old, row):
            self._put("updated", key, old, self._opened({**old, **row}))

    def _older(self, row: Row, old: Row) -> bool:
        by = self.rules.sequence
        return by is not None and rank(row[by]) < rank(old[by])

    def _changed(self, old: Row, row: Row) -> bool:
        if all(same(value, old[name]) for name, value in row.items() if not is_metadata(name)):
            return False
        return self.rules.condition is None or self.rules.condition({**old, **row}, old) is True

    def _reopen(self, key: Key, row: Row) -> None:
        """Back again, even when nothing else changed: the flag falls, or a new version begins."""
        self._put("reopened", key, self.newest[key], self._opened(row))

    def _delete(self, key: Key) -> None:
        if self.rules.deletes == "hard":  # every version goes
            self.rows = [row for row in self.rows if self._key(row) != key]
        else:
            old = self.newest[key]
            self.rows = [{**row, **self._gone()} if row is old else row for row in self.rows]
        self.did["deleted"] += 1

    def _put(self, verb: str, key: Key, old: Row | None, new: Row) -> None:
        """The new row comes; the old one goes, or in `scd2` is closed if it was still open."""
        stay = []
        for row in self.rows:
            if row is not old:
                stay.append(row)
            elif self.rules.mode == "scd2":
                stay.append({**row, **self._closed()} if row["_is_current"] else row)
        self.rows = [*stay, new]
        self.newest[key] = new
        self.did[verb] += 1

    def _opened(self, row: Row) -> Row:
        """A row as it is written when its key is there."""
        system = {
            "_is_deleted": False,
            "_last_seen": self.now,
            "_valid_from": self.now,
            "_valid_to": None,
        }
        system["_is_current"] = True
        mine = {name for name, _ in self.rules.system}
        values = {name: row.get(name) for name, _ in self.columns}
        return {**values, **{name: value for name, value in system.items() if name in mine}}

    def _closed(self) -> Row:
        return {"_valid_to": self.now, "_is_current": False, "_last_seen": self.now}

    def _gone(self) -> Row:
        """What a soft delete writes; everything else in the row stays."""
        flags = {"_is_deleted": True, "_last_seen": self.now}
        return {**self._closed(), **flags} if self.rules.mode == "scd2" else flags


def alive(row: Row) -> bool:
    """A flag that is NULL deletes nothing."""
    return row.get("_is_deleted") is not True and row.get("_is_current", True) is not False


def _age(row: Row) -> tuple[Any, ...]:
    """The order of a key's versions: by their beginning; the current one, if any, is the last."""
    return () if "_valid_from" not in row else (row["_valid_from"], row["_is_current"] is True)


def _columns(table: Frame | None, slice_: Frame, rules: Rules) -> Columns:
    """The columns that were there, the new ones of the slice, and the system columns at the end."""
    old = [c for c in table.columns if c[0] not in _SYSTEM] if table else []
    new = [c for c in slice_.columns if c[0] not in dict(old)]
    return [*old, *new, *rules.system]
