"""The meaning of a history in business time: a table that is a function of the set of its events.

An event says what a key was from an instant on, or that it was gone from then on. `fold` makes the versions of every
key from all its events, whatever order they came in; `counted` says what a batch did by comparing the versions before
and after. `by_sequence` is the same idea for a table of one row per key. Plain Python, and no code shared with what it
judges.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any, Literal

from strandline.testing.oracle import Row, comparable, is_metadata, key_of, rank, same

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Course:
    """What the configuration says of a history: how events are told apart, ordered, and become versions."""

    keys: Sequence[str]
    columns: Sequence[str]
    effective_at: str
    sequence_by: str | None = None
    track: Sequence[str] | None = None
    deletes: Literal["soft", "hard", "ignore"] = "soft"
    delete_when: Callable[[Row], bool | None] = lambda _: False
    open_end: datetime | None = None

    @property
    def tracked(self) -> list[str]:
        """The columns in which a change is a new version."""
        if self.track is not None:
            return list(self.track)
        quiet = {*self.keys, self.effective_at, self.sequence_by}
        return [n for n in self.columns if n not in quiet and not is_metadata(n)]


@dataclass(frozen=True)
class Event:
    """One thing that is known of a key: its values from an instant on, or that it was gone from then on."""

    row: Row
    instant: datetime
    gone: bool = False


class NoInstant(Exception):
    """A row does not say when it was true."""


def instant_of(value: Any) -> datetime:
    """A date is its first moment, a time without a zone is UTC."""
    if value is None:
        raise NoInstant
    assert isinstance(value, date)
    moment = value if isinstance(value, datetime) else datetime.combine(value, time())
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def events_of(rows: Iterable[Row], course: Course) -> list[Event]:
    """The events that a slice brings."""
    told = [
        Event(row, instant_of(row[course.effective_at]), course.delete_when(row) is True)
        for row in rows
    ]
    return [e for e in told if not (e.gone and course.deletes == "ignore")]


def distinct(events: Iterable[Event], course: Course) -> list[Event]:
    """Each event once; where it came from and when it was read tells no two of them apart."""
    found: dict[Any, Event] = {}
    for event in events:
        values = tuple(comparable(event.row.get(n)) for n in course.columns if not is_metadata(n))
        found.setdefault((event.instant, event.gone, values), event)
    return list(found.values())


def fold(events: Iterable[Event], course: Course) -> list[Row]:
    """The table: the versions of all keys."""
    chains: dict[Key, list[Event]] = {}
    for event in events:
        chains.setdefault(key_of(event.row, course.keys), []).append(event)
    return [
        version for chain in chains.values() for version in _versions(_line(chain, course), course)
    ]


def _line(chain: Sequence[Event], course: Course) -> list[Event]:
    """One event per instant, in their order: the highest sequence, then a delete, then the highest values."""
    best: dict[datetime, Event] = {}
    for event in chain:
        rival = best.get(event.instant)
        if rival is None or _weight(event, course) > _weight(rival, course):
            best[event.instant] = event
    return [best[instant] for instant in sorted(best)]


def _weight(event: Event, course: Course) -> tuple[Any, ...]:
    sequence = (rank(event.row.get(course.sequence_by)),) if course.sequence_by else ()
    return (
        *sequence,
        event.gone,
        *(rank(event.row.get(n)) for n in course.columns if not is_metadata(n)),
    )


def _versions(line: Sequence[Event], course: Course) -> list[Row]:
    found: list[Row] = []
    last: Event | None = None  # the event before, unless it was a delete
    for event in line:
        if event.gone:
            if last is not None:
                found[-1] |= {"_valid_to": event.instant, "_is_current": False, "_is_deleted": True}
            if course.deletes == "hard":
                found = []
            last = None
            continue
        values = {n: event.row.get(n) for n in course.columns}
        if last is not None and all(
            same(event.row.get(n), last.row.get(n)) for n in course.tracked
        ):
            found[-1] |= values
        else:
            if last is not None:
                found[-1] |= {"_valid_to": event.instant, "_is_current": False}
            system = {"_valid_to": course.open_end, "_is_current": True, "_is_deleted": False}
            found.append({**values, "_valid_from": event.instant, **system})
        last = event
    return found


def counted(before: Iterable[Row], after: Iterable[Row], keys: Sequence[str]) -> Counter[str]:
    """What a batch did, key by key."""
    old, new = _by_key(before, keys), _by_key(after, keys)
    did: Counter[str] = Counter()
    for key in old.keys() | new.keys():
        then, now = old.get(key, []), new.get(key, [])
        if _told(then) == _told(now):
            continue
        was, is_ = (any(row["_is_current"] for row in rows) for rows in (then, now))
        verb = (
            "inserted"
            if not then
            else "deleted"
            if was and not is_
            else "reopened"
            if is_ and not was
            else None
        )
        did[verb or "updated"] += 1
    return did


def _by_key(rows: Iterable[Row], keys: Sequence[str]) -> dict[Key, list[Row]]:
    found: dict[Key, list[Row]] = {}
    for row in rows:
        found.setdefault(key_of(row, keys), []).append(row)
    return found


def _told(rows: Iterable[Row]) -> list[str]:
    quiet = ("_last_seen", "_row_hash")
    told = [
        {n: comparable(v) for n, v in row.items() if n not in quiet and not is_metadata(n)}
        for row in rows
    ]
    return sorted(repr(sorted(row.items())) for row in told)


# --- what must hold of every history -----------------------------------------------------------------------


def assert_sound(
    rows: Iterable[Row], keys: Sequence[str], open_end: datetime | None = None
) -> None:
    """Half-open intervals in one line: none negative, none that overlap, no gap but after a delete, one current."""
    for key, line in _by_key(rows, keys).items():
        line.sort(key=lambda row: row["_valid_from"])
        for row in line:
            open_ = row["_valid_to"] == open_end
            assert row["_is_current"] == open_, f"{key}: open and current are not the same: {row}"
            assert open_ or row["_valid_from"] < row["_valid_to"], (
                f"{key}: a negative interval: {row}"
            )
            assert not (row["_is_deleted"] and open_), f"{key}: deleted and still open: {row}"
        for row, following in itertools.pairwise(line):
            assert not row["_is_current"], f"{key}: a current version before the last: {row}"
            meets = row["_valid_to"] == following["_valid_from"]
            assert meets or (row["_is_deleted"] and row["_valid_to"] < following["_valid_from"]), (
                f"{key}: {row}"
            )


# --- one row per key, by sequence --------------------------------------------------------------------------


@dataclass(frozen=True)
class Sequenced:
    """What the configuration says of a table of one row per key whose rows know their order."""

    keys: Sequence[str]
    sequence_by: str
    delete_when: Callable[[Row], bool | None] = lambda _: False


def by_sequence(stored: Row | None, row: Row, how: Sequenced) -> Row | None:
    """A stored row, flag included, after another row of its key: older news changes nothing."""
    gone = how.delete_when(row) is True
    if stored is None:
        return {**row, "_is_deleted": gone}
    new, old = rank(row[how.sequence_by]), rank(stored[how.sequence_by])
    if new < old or (
        new == old and stored["_is_deleted"]
    ):  # between equals a delete is the last word
        return stored
    if gone:  # what it was stays to be seen; when it went is remembered
        return {**stored, how.sequence_by: row[how.sequence_by], "_is_deleted": True}
    return {**stored, **row, "_is_deleted": False}
