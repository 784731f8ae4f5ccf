"""The meaning of every strategy and every step, in plain Python.

A table is a `Frame`: its columns with their Spark types, and its rows as dictionaries. Both engines must give exactly
what these functions give. They are written to be read, not to be fast, and they share no code with what they judge.

Equality is NULL-safe and Spark's: NULL equals NULL, NaN equals NaN, 0.0 equals -0.0, 1.50 equals 1.5; text compares by
code point. Values are int, Decimal, float, str, bool, date, datetime (aware: an instant, naive: `timestamp_ntz`),
bytes, None.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from strandline.testing import shapes

Row = dict[str, Any]
Columns = list[tuple[str, str]]

METADATA = ("_extracted_at", "_source_file", "_source_connection", "_source_table", "_batch_id")


@dataclass(frozen=True)
class Frame:
    """Columns in order, each with its Spark type, and rows in no order."""

    columns: Columns
    rows: list[Row] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.columns]

    def find(self, name: str) -> str | None:
        """A column's name as this frame spells it."""
        return next((n for n in self.names if n.casefold() == name.casefold()), None)


@dataclass(frozen=True)
class Outcome:
    """The table after a batch, and what the batch did to it."""

    after: Frame
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0
    created: bool = False
    evolved: bool = False

    @property
    def commits(self) -> bool:
        """Is there anything to commit? A new table is, even an empty one, and so are new columns."""
        changed = self.inserted or self.updated or self.deleted
        return bool(self.created or self.evolved or changed)


@dataclass(frozen=True)
class Duplicates:
    """The error of a slice that holds keys more than once."""

    keys: list[tuple[Any, ...]]


# --- equality and order ------------------------------------------------------------------------------------


def comparable(value: Any) -> Any:
    """A value such that two of them are equal exactly when the values are NULL-safe equal."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0  # -0.0 + 0.0 is 0.0
    if isinstance(value, dict):
        return tuple((k, comparable(v)) for k, v in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(comparable, value))
    return value


def same(left: Any, right: Any) -> bool:
    return bool(comparable(left) == comparable(right))


def key_of(row: Row, keys: Sequence[str]) -> tuple[Any, ...]:
    return tuple(comparable(row[k]) for k in keys)


def rank(value: Any) -> tuple[Any, ...]:
    """Where a value stands in ascending order: NULL first, NaN after every number."""
    if value is None:
        return (0,)
    if isinstance(value, float) and math.isnan(value):
        return (2,)
    return (1, value)


# --- write modes -------------------------------------------------------------------------------------------


def append(target: Frame | None, slice_: Frame) -> Outcome:
    """Every row of the slice comes; its new columns come even without a row."""
    columns = _union(target, slice_)
    come = [_full(row, columns) for row in _fitted(slice_, columns)]
    stay = _stored(target, columns)
    evolved = _evolved(target, columns)
    return Outcome(Frame(columns, stay + come), len(come), created=target is None, evolved=evolved)


def overwrite(target: Frame | None, slice_: Frame) -> Outcome:
    """The slice is the table; nothing happens when it already is, metadata aside."""
    columns = _union(target, slice_)
    come = [_full(row, columns) for row in _fitted(slice_, columns)]
    if target is None:
        return Outcome(Frame(columns, come), inserted=len(come), created=True)
    compared = [n for n, _ in columns if not is_metadata(n)]
    new = Counter(key_of(row, compared) for row in come)
    stay = _stored(target, columns)
    old = Counter(key_of(row, compared) for row in stay)
    inserted, deleted = (new - old).total(), (old - new).total()
    after = Frame(columns, come if inserted or deleted else stay)
    return Outcome(
        after,
        inserted=inserted,
        deleted=deleted,
        unchanged=len(come) - inserted,
        evolved=_evolved(target, columns),
    )


Condition = Callable[[Row, Row], bool | None]


def upsert(
    target: Frame | None, slice_: Frame, keys: Sequence[str], condition: Condition | None = None
) -> Outcome | Duplicates:
    """One row per key: new keys are inserted, changed rows updated, unchanged rows left alone."""
    columns = _union(target, slice_)
    keys = [_spelled(k, columns) for k in keys]
    rows = _fitted(slice_, columns)
    if found := duplicates(rows, keys):
        return found
    table = {key_of(row, keys): row for row in _stored(target, columns)}
    did = Counter[str]()
    for row in rows:
        key = key_of(row, keys)
        verb = _verb(row, table.get(key), condition)
        did[verb] += 1
        if verb != "unchanged":
            table[key] = {**_full(table.get(key, {}), columns), **row}
    after = Frame(columns, list(table.values()))
    return Outcome(after, **did, created=target is None, evolved=_evolved(target, columns))


def delete_insert(target: Frame | None, slice_: Frame, keys: Sequence[str]) -> Outcome:
    """All rows of the slice's keys are replaced by the slice's; a key whose rows are the same is left alone."""
    columns = _union(target, slice_)
    keys = [_spelled(k, columns) for k in keys]
    compared = [n for n, _ in columns if not is_metadata(n)]
    come, have = defaultdict(list), defaultdict(list)
    for row in _fitted(slice_, columns):
        come[key_of(row, keys)].append(_full(row, columns))
    for row in _stored(target, columns):
        have[key_of(row, keys)].append(row)
    did = Counter[str]()
    for key, rows in come.items():
        old = have.get(key, [])
        alike = Counter(key_of(r, compared) for r in rows) == Counter(
            key_of(r, compared) for r in old
        )
        did["unchanged" if alike else "updated" if old else "inserted"] += len(rows)
        have[key] = old if alike else rows
    after = Frame(columns, [row for rows in have.values() for row in rows])
    return Outcome(after, **did, created=target is None, evolved=_evolved(target, columns))


def _verb(row: Row, old: Row | None, condition: Condition | None) -> str:
    if old is None:
        return "inserted"
    if all(same(value, old[name]) for name, value in row.items() if not is_metadata(name)):
        return "unchanged"
    if condition is not None and condition({**old, **row}, old) is not True:
        return "unchanged"
    return "updated"


def duplicates(rows: Iterable[Row], keys: Sequence[str]) -> Duplicates | None:
    seen = Counter(key_of(row, keys) for row in rows)
    twice = [key for key, n in seen.items() if n > 1]
    return Duplicates(twice) if twice else None


def is_metadata(name: str) -> bool:
    return name.casefold() in METADATA


def _union(target: Frame | None, slice_: Frame) -> Columns:
    """The table's columns after the batch: those it had, then the new ones."""
    return shapes.union(target.columns if target else None, slice_.columns)


def _evolved(target: Frame | None, columns: Columns) -> bool:
    return target is not None and target.columns != columns


def _stored(target: Frame | None, columns: Columns) -> list[Row]:
    """The table's rows in the types that its columns have now, NULL where it had none."""
    if target is None:
        return []
    types = dict(columns)
    return [
        _full({n: shapes.reshaped(row[n], t, types[n]) for n, t in target.columns}, columns)
        for row in target.rows
    ]


def _fitted(slice_: Frame, columns: Columns) -> list[Row]:
    """The slice's rows with the table's spelling and types; columns that the slice lacks stay out."""
    by_fold = {name.casefold(): (name, type_) for name, type_ in columns}
    return [
        {
            by_fold[n.casefold()][0]: shapes.reshaped(row[n], t, by_fold[n.casefold()][1])
            for n, t in slice_.columns
        }
        for row in slice_.rows
    ]


def _full(row: Row, columns: Columns) -> Row:
    return {name: row.get(name) for name, _ in columns}


def _spelled(name: str, columns: Columns) -> str:
    return next(n for n, _ in columns if n.casefold() == name.casefold())


def with_metadata(slice_: Frame, values: Mapping[str, Any]) -> Frame:
    """The rows with metadata columns at the end; they replace columns of the same name."""
    kept = [(n, t) for n, t in slice_.columns if n.casefold() not in values]
    added = [(n, "timestamp" if n == "_extracted_at" else "string") for n in values]
    return Frame(kept + added, [{**{n: row[n] for n, _ in kept}, **values} for row in slice_.rows])


# --- steps -------------------------------------------------------------------------------------------------


def deduplicate(frame: Frame, keys: Sequence[str], order: Sequence[tuple[str, str]] = ()) -> Frame:
    """One row per key: the first in `order` (column, `asc` or `desc`).

    Ties go to the highest `_source_file`, then to the highest values of all columns.
    """
    best: dict[tuple[Any, ...], Row] = {}
    for row in frame.rows:
        key = key_of(row, keys)
        if key not in best or _before(row, best[key], frame, order):
            best[key] = row
    return Frame(frame.columns, list(best.values()))


def _before(row: Row, other: Row, frame: Frame, order: Sequence[tuple[str, str]]) -> bool:
    names = sorted(frame.names, key=lambda name: name.casefold() != "_source_file")
    terms = [*order, *((name, "desc") for name in names)]
    for name, direction in terms:
        left, right = rank(row[name]), rank(other[name])
        if left != right:
            return left > right if direction == "desc" else left < right
    return _signs(row) > _signs(other)  # equal rows may still differ in the sign of a zero


def _signs(row: Row) -> list[float]:
    return [math.copysign(1, v) for v in row.values() if isinstance(v, float) and not math.isnan(v)]


def filter_(frame: Frame, condition: Callable[[Row], bool | None]) -> Frame:
    """The rows for which the condition is true; neither false nor NULL."""
    return Frame(frame.columns, [row for row in frame.rows if condition(row) is True])


def select(frame: Frame, names: Sequence[str]) -> Frame:
    types = dict(frame.columns)
    return Frame([(n, types[n]) for n in names], [{n: row[n] for n in names} for row in frame.rows])


def drop(frame: Frame, names: Sequence[str]) -> Frame:
    return select(frame, [n for n in frame.names if n not in names])


def rename(frame: Frame, names: Mapping[str, str]) -> Frame:
    columns = [(names.get(n, n), t) for n, t in frame.columns]
    return Frame(columns, [{names.get(n, n): v for n, v in row.items()} for row in frame.rows])


def derive(frame: Frame, name: str, type_: str, value: Callable[[Row], Any]) -> Frame:
    """A column from an expression: in place when it is there, else at the end."""
    types = {**dict(frame.columns), name: type_}
    return Frame(list(types.items()), [{**row, name: value(row)} for row in frame.rows])


def cast_columns(frame: Frame, types: Mapping[str, str]) -> Frame:
    """Columns with new types; raises `NotCastable` for a value that does not fit."""
    columns = [(n, types.get(n, t)) for n, t in frame.columns]
    return Frame(
        columns,
        [{n: cast(row[n], t, types.get(n, t)) for n, t in frame.columns} for row in frame.rows],
    )


def hash_columns(frame: Frame, names: Sequence[str]) -> Frame:
    """Values replaced by their hash; NULL stays NULL."""
    columns = [(n, "string" if n in names else t) for n, t in frame.columns]
    return Frame(
        columns,
        [{n: _hashed(row[n], t, n in names) for n, t in frame.columns} for row in frame.rows],
    )


def _hashed(value: Any, type_: str, chosen: bool) -> Any:  # noqa: FBT001
    return key_hash([(value, type_)]) if chosen and value is not None else value


def generate_surrogate_key(frame: Frame, names: Sequence[str], output: str = "_hash_key") -> Frame:
    types = dict(frame.columns)
    kept = drop(frame, [output])
    return derive(kept, output, "string", lambda row: key_hash([(row[n], types[n]) for n in names]))


# --- hashes ------------------------------------------------------------------------------------------------

_TAGS = {
    "integer": "i", "decimal": "d", "string": "s", "boolean": "b", "date": "D", "timestamp": "t", "timestamp_ntz": "n",
    "binary": "x",
}  # fmt: skip


def key_hash(values: Sequence[tuple[Any, str]]) -> str:
    """SHA-256 over typed values, NULLs tagged, lengths in front: 64 hex digits."""
    return _sha256(
        "".join("N" if value is None else _tagged(value, type_) for value, type_ in values)
    )


def row_hash(row: Row, columns: Columns) -> int:
    """60 bits over the non-NULL values, each after its column's name; floats, metadata and system columns left out."""
    text = ""
    for name, type_ in columns:
        if row[name] is not None and family(type_) in _TAGS and not is_metadata(name):
            value = hash_text(row[name])
            size = f"{len(value.encode())}:" if family(type_) == "string" else ""
            text += f";{len(name.casefold())}:{name.casefold()}{_TAGS[family(type_)]}{size}{value}"
    return int(_sha256(text)[:15], 16)


def _tagged(value: Any, type_: str) -> str:
    text = hash_text(value)
    return f"{_TAGS[family(type_)]}{len(text)}:{text}"


def hash_text(value: Any) -> str:
    """A value's text in a hash: decimals without trailing zeros, timestamps in microseconds, bytes in hex."""
    match value:
        case bool():
            return "true" if value else "false"
        case Decimal():
            text = f"{value:f}"
            return text.rstrip("0").rstrip(".") if "." in text else text
        case datetime():
            return str(micros(value))
        case bytes():
            return value.hex().upper()
    return str(value)


def micros(value: datetime) -> int:
    """Microseconds since 1970, of an instant or of a local time read as UTC."""
    start = datetime(1970, 1, 1, tzinfo=UTC)
    return ((value if value.tzinfo else value.replace(tzinfo=UTC)) - start) // timedelta(
        microseconds=1
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# --- types and casts ---------------------------------------------------------------------------------------


class NotCastable(Exception):
    """A value does not fit the type asked for."""


_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


def family(type_: str) -> str:
    base = type_.partition("(")[0]
    return "integer" if base in _BITS else "float" if base in ("float", "double") else base


def digits(type_: str) -> tuple[int, int]:
    """Precision and scale of `decimal(p,s)`."""
    found = re.fullmatch(r"decimal\((\d+),(\d+)\)", type_)
    assert found is not None, type_
    return int(found[1]), int(found[2])


def cast(value: Any, source: str, target: str) -> Any:  # noqa: C901, PLR0911 (one line per type)
    """CAST in Spark's ANSI meaning, with one grammar for text; what does not fit raises."""
    if value is None or source == target:
        return value
    if family(source) == "string" and target != "binary":
        return parse(value, target)
    match family(target):
        case "string":
            return to_text(value)
        case "integer":
            return _integer(_truncated(value), target)
        case "decimal":
            return _decimal(
                Decimal(repr(value)) if isinstance(value, float) else Decimal(value), target
            )
        case "float":
            return float(value)
        case "boolean":
            return value != 0
        case "binary":
            return value.encode()
        case "date":
            return value.astimezone(UTC).date() if value.tzinfo else value.date()
        case "timestamp":
            return _midnight(value).replace(tzinfo=UTC)
        case "timestamp_ntz":
            return (
                _midnight(value).astimezone(UTC).replace(tzinfo=None)
                if isinstance(value, datetime)
                else _midnight(value)
            )
    raise NotCastable(f"{source} to {target}")


def _midnight(value: date) -> datetime:
    return value if isinstance(value, datetime) else datetime.combine(value, time())


def to_text(value: Any) -> str:
    """Text of anything but a float, whose text no two engines share."""
    match value:
        case bool():
            return "true" if value else "false"
        case Decimal():
            return f"{value:f}"
        case datetime():
            return f"{value.year:04}-{value:%m-%d %H:%M:%S.%f}"
        case bytes():
            return value.decode()
    return str(value)


def _truncated(value: Any) -> int:
    if isinstance(value, float) and not math.isfinite(value):
        raise NotCastable(str(value))
    return int(value)


def _integer(value: int, type_: str) -> int:
    limit = 1 << (_BITS[type_] - 1)
    if not -limit <= value < limit:
        raise NotCastable(f"{value} as {type_}")
    return value


def _decimal(value: Decimal, type_: str) -> Decimal:
    precision, scale = digits(type_)
    if not value.is_finite():
        raise NotCastable(str(value))
    rounded = value.quantize(
        Decimal(1).scaleb(-scale), rounding=ROUND_HALF_UP, context=Context(prec=2000)
    )
    if rounded and rounded.adjusted() + 1 > precision - scale:
        raise NotCastable(f"{value} as {type_}")
    return rounded or abs(rounded)  # there is no negative zero


_DAY = r"(\d{4})-(\d\d)-(\d\d)"
_MINUTES, _SECONDS = r"([01]\d|2[0-3]):([0-5]\d)", r":([0-5]\d)(?:\.(\d{1,6}))?"
_ZONE = r"(Z|[+-](?:0\d|1[0-7]):[0-5]\d)"
_DIGITS = r"[+-]?(\d+(\.\d*)?|\.\d+)"
_GRAMMAR = {
    "integer": r"[+-]?\d{1,19}",
    "decimal": _DIGITS,
    "float": rf"(?i)({_DIGITS}(e[+-]?\d{{1,3}})?|nan|[+-]?inf(inity)?)",
    "boolean": r"(?i)true|false|t|f|yes|no|y|n|1|0",
    "date": _DAY,
    "timestamp": rf"{_DAY}(?:[ T]{_MINUTES}(?:{_SECONDS}{_ZONE}?)?)?",
    "timestamp_ntz": rf"{_DAY}(?:[ T]{_MINUTES}(?:{_SECONDS})?)?",
}


def parse(text: str, type_: str) -> Any:
    """A value from text: blanks around it do not matter; what is outside the grammar is refused."""
    kind, text = family(type_), text.strip(" ")
    found = re.fullmatch(_GRAMMAR[kind], text, re.ASCII)
    if not found:
        raise NotCastable(f"{text!r} as {type_}")
    try:
        match kind:
            case "integer":
                return _integer(int(text), type_)
            case "decimal":
                return _decimal(Decimal(text), type_)
            case "float":
                return float(text)
            case "boolean":
                return text.lower() in ("true", "t", "yes", "y", "1")
            case "date":
                return date.fromisoformat(text)
            case _:
                return _instant(found) if kind == "timestamp" else _local(found)
    except ValueError as e:
        raise NotCastable(f"{text!r} as {type_}") from e


def _local(found: re.Match[str]) -> datetime:
    year, month, day, hour, minute, second = (int(found[i] or 0) for i in range(1, 7))
    return datetime(year, month, day, hour, minute, second, int((found[7] or "").ljust(6, "0")))  # noqa: DTZ001


def _instant(found: re.Match[str]) -> datetime:
    zone = found[8]
    shift = timedelta()
    if zone and zone != "Z":
        shift = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:6])) * (
            -1 if zone[0] == "-" else 1
        )
    return _local(found).replace(tzinfo=UTC) - shift
