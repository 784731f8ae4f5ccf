"""What one batch read, wrote and left behind: one frozen value, for the batches that come after it.

The control tables keep it as JSON, and so does the data commit itself, so that the table
itself can tell what a lost record said.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple


class Pin(NamedTuple):
    """A lake table as a batch read it: its id, its version, and the batch that fed it where snapshots are compared."""

    table_id: str
    version: int
    batch: str | None = None


@dataclass(frozen=True)
class FilesRead:
    """The files that an append has read and that the next one would take by their time: stamps by name."""

    since: datetime
    read: Mapping[str, str]


@dataclass(frozen=True)
class Fed:
    """The batch whose rows are in a table again after an undo; None: as before the first."""

    batch: str | None


@dataclass(frozen=True)
class MissedKeys:
    """The keys that a batch found in the live source and nowhere else, as texts; none when there were too many."""

    number: int
    columns: tuple[tuple[str, str], ...]  # name and type
    keys: tuple[tuple[str, ...], ...] = ()
    hashes: tuple[str, ...] = ()  # of keys of several columns

    def again(self, before: MissedKeys | None) -> MissedKeys:
        """Those that the batch before had found too."""
        if before is None or before.columns != self.columns:
            return replace(self, number=0, keys=(), hashes=())
        if not self.keys:
            return self if not before.keys else replace(self, number=0)
        return self.only(set(self.keys) & set(before.keys))

    def only(self, keys: set[tuple[str, ...]]) -> MissedKeys:
        """Some of them."""
        hashes = self.hashes or ("",) * len(self.keys)
        left = [(key, hash_) for key, hash_ in zip(self.keys, hashes, strict=True) if key in keys]
        told = tuple(hash_ for _, hash_ in left) if self.hashes else ()
        return replace(self, number=len(left), keys=tuple(key for key, _ in left), hashes=told)


@dataclass(frozen=True)
class Before:
    """What a table's last batch had left, which an undo puts back: its id and its coverage."""

    batch: str | None
    coverage: Coverage


@dataclass(frozen=True)
class Coverage:
    """What one batch read, what it wrote, and how it ended."""

    # what was read
    kind: Literal["full", "increment"] | None = None
    digest: str | None = None  # of the node's configuration
    recipe: str | None = None  # of what decides which rows a feed brings
    followed: str | None = None  # how the changes of its sources were followed
    sources: Mapping[str, Pin] = field(default_factory=dict)
    marks: Mapping[str, tuple[str, str]] = field(
        default_factory=dict
    )  # watermarks: text and type by column
    window: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    future: Mapping[str, str] = field(
        default_factory=dict
    )  # by column, the value in the future that was warned of
    snapshot: Any = None  # which snapshot was compared: a batch number, or a value and its type
    files: FilesRead | None = None
    missed: MissedKeys | None = None
    # what was written
    mode: str | None = None
    table: str | None = None  # the table's id
    target: int | None = None  # its version afterwards
    keys: tuple[str, ...] | None = None
    at: datetime | None = None  # the instant that its rows carry
    lacks: tuple[str, ...] = ()  # columns of the table that the source no longer had
    notes: int = 0  # open notes on single keys
    held: int = 0
    before: Before | None = None  # what the batch found
    # how it ended
    run: str | None = None  # the run that brought it to its end
    batch: str | None = None  # the id of the batch, which appended rows carry
    commit: int | None = None  # the number of the newest commit of its source, or its own
    committed: bool | None = None  # and whether it made it
    undoes: str | None = None  # the run that it takes back
    feed: Fed | None = None
    back: int | None = (
        None  # the version of the table that it takes back; None: the batch had not touched it
    )

    @property
    def whole(self) -> bool:
        """True for a batch that read everything there was."""
        return self.kind == "full"

    @property
    def known(self) -> bool:
        """True unless nothing at all is recorded."""
        return self != NOTHING

    def from_elsewhere(self) -> Coverage:
        """What it says for a node that reads another source now: all but how far this one was read."""
        unread = replace(self, marks={}, window={}, future={}, sources={}, snapshot=None)
        unread = replace(unread, files=None, missed=None, digest=None, feed=None, undoes=None)
        return unread.put_back()

    def of_table(self) -> Coverage:
        """What it says of the table itself: it holds for another source of that table too."""
        return Coverage(
            mode=self.mode,
            table=self.table,
            keys=self.keys,
            at=self.at,
            lacks=self.lacks,
            notes=self.notes,
            held=self.held,
        )

    def with_table_of(self, newest: Coverage) -> Coverage:
        """The coverage with what the newest batch of the table, from whatever source, knows of the table itself."""
        if newest is self:
            return self
        at = max(filter(None, (self.at, newest.at)), default=None)
        notes = max(self.notes, newest.notes)
        return replace(self, keys=newest.keys, at=at, lacks=newest.lacks, notes=notes)

    def with_position_of(self, other: Coverage) -> Coverage:
        """The coverage with how far another batch had read."""
        return replace(
            self, marks=other.marks, window=other.window, files=other.files, sources=other.sources
        )

    def put_back(self) -> Coverage:
        """What an undo puts back: not who brought it about, or by taking back which run."""
        return replace(
            self,
            run=None,
            batch=None,
            commit=None,
            committed=None,
            back=None,
            before=None,
            undoes=None,
        )

    def is_of(self, table_id: str) -> bool:
        """True unless the batch wrote another table than this one."""
        return self.table in (None, table_id)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form; what is not known is left out."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: _plain(value) for name, value in found.items() if value != _DEFAULTS[name]}

    def to_json(self) -> str:
        """The text in the control tables."""
        return json.dumps(self.as_dict(), sort_keys=True)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Coverage:
        """The coverage that `as_dict` wrote."""
        return cls(
            **{
                name: _READ[name](value) if name in _READ else value
                for name, value in values.items()
            }
        )

    @classmethod
    def from_json(cls, text: str | None) -> Coverage:
        """The coverage that `to_json` wrote; NOTHING for no text."""
        return cls.from_dict(json.loads(text)) if text else NOTHING

    @classmethod
    def in_commit(cls, record: Mapping[str, Any]) -> Coverage:
        """The coverage that a data commit carries; NOTHING when it carries none."""
        return cls.from_dict(record.get("coverage") or {})


def _plain(value: Any) -> Any:
    """A value of a field as JSON has it."""
    match value:
        case datetime():
            return value.isoformat()
        case FilesRead(since, read):
            return {"since": since.isoformat(), "read": dict(read)}
        case Fed(batch):
            return {"batch": batch}
        case MissedKeys(number, columns, keys, hashes):
            return {
                "number": number,
                "columns": _plain(columns),
                "keys": _plain(keys),
                "hashes": _plain(hashes),
            }
        case Before(batch, coverage):
            return {"batch": batch, "coverage": coverage.as_dict()}
        case Mapping():
            return {name: _plain(inner) for name, inner in value.items()}
        case tuple():
            return [_plain(inner) for inner in value]
        case _:
            return value


def _pairs(value: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(pair) for name, pair in value.items()}


def _tuples(value: Sequence[Sequence[str]]) -> tuple[Any, ...]:
    return tuple(map(tuple, value))


_READ: dict[str, Callable[[Any], Any]] = {
    "sources": lambda v: {name: Pin(*pin) for name, pin in v.items()},
    "marks": _pairs,
    "window": _pairs,
    "snapshot": lambda v: tuple(v) if isinstance(v, list) else v,
    "files": lambda v: FilesRead(datetime.fromisoformat(v["since"]), v["read"]),
    "keys": tuple,
    "at": datetime.fromisoformat,
    "lacks": tuple,
    "before": lambda v: Before(v["batch"], Coverage.from_dict(v["coverage"])),
    "missed": lambda v: MissedKeys(
        v["number"], _tuples(v["columns"]), _tuples(v["keys"]), tuple(v["hashes"])
    ),
    "feed": lambda v: Fed(v["batch"]),
}
_DEFAULTS = {
    f.name: f.default_factory() if f.default_factory is not MISSING else f.default
    for f in fields(Coverage)
}
NOTHING = Coverage()
"""The coverage before the first batch."""
NO_BATCH = Before(None, NOTHING)
"""What a table's first batch finds."""
