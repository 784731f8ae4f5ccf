"""Random tables and batches, with the values that have broken pipelines before."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from strandline.testing.oracle import (
    Columns,
    Frame,
    NotCastable,
    cast,
    digits,
    family,
    key_of,
    same,
)
from strandline.testing.projects import LAKE
from strandline.testing.shapes import reshaped

# --- values ------------------------------------------------------------------------------------------------

TEXTS = [
    "",
    " ",
    "a",
    "A",
    "a ",
    " a",
    "null",
    "NULL",
    "'",
    '"',
    "`",
    "\\",
    "\\n",
    "a\nb",
    "a\tb",
    "a\r\nb",
    "%_",
    "é",
    "e\u0301",
    "ß",
    "ss",
    "İ",
    "😀",
    "👩‍👩‍👧",
    "\u0000",
    "\u200b",
    "\ufeff",
    "𝒳",
    "日本",
    "0",
    "1",
    "01",
    "1.0",
    "true",
    "a:b",
    "N",
]
# around the changes of Zurich's clocks in 2024, the edges of what is commonly used, and microseconds
LOCALS = [
    datetime(1900, 1, 1),
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime(1970, 1, 1),
    datetime(2024, 3, 31, 0, 59, 59, 999999),
    datetime(2024, 3, 31, 1, 59, 59, 999999),
    datetime(2024, 3, 31, 2, 30),
    datetime(2024, 10, 27, 0, 30),
    datetime(2024, 10, 27, 1, 30),
    datetime(2024, 10, 27, 2, 30, 0, 1),
    datetime(2038, 1, 19, 3, 14, 8),
    datetime(2200, 12, 31, 23, 59, 59, 999999),
]
FLOATS = [
    0.0,
    -0.0,
    float("nan"),
    float("inf"),
    float("-inf"),
    0.1,
    1.5,
    -1.5,
    5e-324,
    1.7976931348623157e308,
]
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
DECIMALS = [
    "decimal(5,2)",
    "decimal(10,0)",
    "decimal(18,6)",
    "decimal(38,0)",
    "decimal(38,18)",
    "decimal(9,9)",
    "decimal(1,0)",
]
_NARROW = {"tinyint", "smallint"} if os.environ.get(LAKE) == "iceberg" else set()
TYPES = [
    *(t for t in _BITS if t not in _NARROW),  # an Iceberg table keeps them as int
    *DECIMALS,
    "string",
    "boolean",
    "date",
    "timestamp",
    "timestamp_ntz",
    "binary",
    "double",
    "float",
]
HASHABLE = [t for t in TYPES if family(t) != "float"]


def values(type_: str) -> SearchStrategy[Any]:  # noqa: PLR0911 (one line per family)
    """Values of a type, the awkward ones often."""
    match family(type_):
        case "integer":
            limit = 1 << (_BITS[type_] - 1)
            return st.sampled_from([0, 1, -1, 2, limit - 1, -limit]) | st.integers(
                -limit, limit - 1
            )
        case "decimal":
            return _decimals(type_)
        case "string":
            return st.sampled_from(TEXTS) | st.text(
                st.characters(exclude_categories=["Cs"]), max_size=6
            )
        case "boolean":
            return st.booleans()
        case "date":
            days = [
                date(1900, 1, 1),
                date(1970, 1, 1),
                date(2024, 2, 29),
                date(2024, 3, 31),
                date(2200, 12, 31),
            ]
            return st.sampled_from(days) | st.dates(date(1900, 1, 1), date(2200, 12, 31))
        case "timestamp":
            return _locals().map(lambda t: t.replace(tzinfo=UTC))
        case "timestamp_ntz":
            return _locals()
        case "binary":
            return st.sampled_from(
                [b"", b"\x00", b"\x00\x00", b"\xff", b"a", b"\\x00"]
            ) | st.binary(max_size=4)
    width = 32 if type_ == "float" else 64
    known = st.sampled_from(
        [
            f
            for f in FLOATS
            if width == 64 or (f != 1.7976931348623157e308 and f not in (0.1, 5e-324))
        ]
    )
    # one NaN: deltalake tells its many bit patterns apart when it matches keys
    return known | st.floats(width=width).map(lambda x: x if x == x else float("nan"))  # noqa: PLR0124


def _decimals(type_: str) -> SearchStrategy[Decimal]:
    precision, scale = digits(type_)
    most = 10**precision - 1
    unscaled = st.sampled_from([0, 1, -1, 10, -10, 100, most, -most]).filter(
        lambda n: abs(n) <= most
    )
    return (unscaled | st.integers(-most, most)).map(lambda n: _scaled(n, scale))


def _scaled(unscaled: int, scale: int) -> Decimal:
    sign, text = int(unscaled < 0), str(abs(unscaled))
    return Decimal((sign, tuple(map(int, text)), -scale))


def _locals() -> SearchStrategy[datetime]:
    return st.sampled_from(LOCALS) | st.datetimes(datetime(1900, 1, 1), datetime(2200, 12, 31)).map(
        lambda t: t.replace(fold=0)
    )


# --- columns -----------------------------------------------------------------------------------------------

# Delta tables without column mapping refuse blanks, commas, semicolons, braces, brackets, tabs and = in names.
NAMES = [
    "id",
    "value",
    "MixedCase",
    "Größe",
    "naïve",
    "列",
    "o'clock",
    'say"hi"',
    "tick`tack",
    "select",
    "a.b",
    "1st",
    "x-y",
    "%",
    "😀",
    "back\\slash",
    "_",
    "source",
    "target",
    "e\u0301",
]


@st.composite
def columns(draw: DrawFn, low: int = 1, high: int = 4, types: list[str] | None = None) -> Columns:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=low, max_size=high, unique=True))
    return [(n, draw(st.sampled_from(types or TYPES))) for n in names]


@st.composite
def frames(draw: DrawFn, cols: Columns, pools: dict[str, list[Any]], most: int = 8) -> Frame:
    """Rows whose values come from small pools, so that they meet again."""
    row = st.fixed_dictionaries({n: st.sampled_from(pools[n]) for n, _ in cols})
    size = draw(
        st.sampled_from([3, 4, 6, most, 0, 1])
    )  # Hypothesis prefers what comes first: small, but not trivial
    return Frame(cols, draw(st.lists(row, min_size=size, max_size=size)))


@st.composite
def pools_of(draw: DrawFn, cols: Columns, most: int = 3) -> dict[str, list[Any]]:
    """A few values for each column, NULL among them more often than not."""
    return {
        n: [*draw(st.lists(values(t), min_size=2, max_size=most)), *draw(_maybe_null())]
        for n, t in cols
    }


def _maybe_null() -> SearchStrategy[list[None]]:
    return st.sampled_from([[None], [None], []])


@st.composite
def tables(
    draw: DrawFn, low: int = 1, high: int = 4, types: list[str] | None = None, most: int = 12
) -> Frame:
    cols = draw(columns(low, high, types))
    return draw(frames(cols, draw(pools_of(cols)), most))


# --- sequences of batches ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A write, and the batches that go through it."""

    keys: list[str]
    batches: list[Frame]
    write: dict[str, Any] = field(default_factory=dict)


_NARROW = {
    "bigint": ["int", "tinyint"],
    "int": ["smallint"],
    "decimal(18,6)": ["decimal(5,2)", "smallint"],
    "decimal(38,18)": ["decimal(18,6)", "bigint"],
    "decimal(38,0)": ["decimal(10,0)"],
    "timestamp_ntz": ["date"],
    "timestamp": ["date"],
    "double": ["float"],
}
PARTITIONS = ["int", "bigint", "string", "date", "boolean"]


@st.composite
def cases(draw: DrawFn, *, keyed: bool, unique: bool = True, varied: bool = True) -> Case:
    """1 to 4 batches: columns come and go, change their spelling or narrow their type; values repeat."""
    cols = draw(columns(3 if keyed else 1, 6))
    keys = [n for n, _ in cols[: draw(st.sampled_from([1, 1, 2, 3]))]] if keyed else []
    pools = draw(pools_of(cols))
    partitioned = draw(st.booleans()) and _partition(cols, pools)
    count = draw(st.sampled_from([3, 2, 4, 1]))
    batches = []
    for number in range(count):
        carried = [c for c in cols if c[0] in (*keys, partitioned) or draw(_likely())]
        carried = draw(st.permutations(carried)) if draw(st.booleans()) else carried
        if all(c[0] == partitioned for c in carried):  # a table needs a column besides
            carried = cols
        batch = draw(frames(carried, pools))
        batch = _unique(batch, keys) if keyed and unique else batch
        batches.append(_varied(draw, batch, spelled=number > 0) if varied else batch)
    write: dict[str, Any] = {"partition_by": [partitioned]} if partitioned else {}
    if draw(st.booleans()):
        write["add_metadata"] = draw(
            st.sampled_from([True, {"source_connection": True, "extracted_at": False}])
        )
    return Case(keys, batches, write)


def _likely() -> SearchStrategy[bool]:
    return st.sampled_from([True, True, True, False])


def _partition(cols: Columns, pools: dict[str, list[Any]]) -> str | None:
    """A column to partition by, if one is fit for it: Delta cannot tell '' from NULL there."""
    for name, type_ in reversed(cols):
        if type_ in PARTITIONS and len(cols) > 1:
            pools[name] = [v for v in pools[name] if v != ""] or [None]
            return name
    return None


def _unique(batch: Frame, keys: list[str]) -> Frame:
    rows = {key_of(row, keys): row for row in batch.rows}
    return Frame(batch.columns, list(rows.values()))


def _varied(draw: DrawFn, batch: Frame, *, spelled: bool) -> Frame:
    """The batch with a column in a narrower type that still holds its values, or spelled in other case.

    Where an earlier batch was narrower the table's column becomes wider, else it holds the batch as it is.
    """
    for name, type_ in batch.columns:
        if type_ in _NARROW and draw(st.sampled_from([False, False, True])):
            batch = _narrowed(batch, name, type_, draw(st.sampled_from(_NARROW[type_])))
    if not spelled:
        return batch
    if draw(st.sampled_from([False, False, True])):
        names = {n: n.upper() if n.upper().casefold() == n.casefold() else n for n in batch.names}
        batch = Frame(
            [(names[n], t) for n, t in batch.columns],
            [{names[n]: v for n, v in r.items()} for r in batch.rows],
        )
    return batch


def _narrowed(batch: Frame, name: str, wide: str, narrow: str) -> Frame:
    rows = []
    for row in batch.rows:
        try:
            value = cast(row[name], wide, narrow)
        except (NotCastable, OverflowError):
            return batch
        if narrow == "float" and value is not None:
            try:
                value = struct.unpack("f", struct.pack("f", value))[0]
            except OverflowError:
                return batch
        if not same(reshaped(value, narrow, wide), row[name]):
            return batch
        rows.append({**row, name: value})
    return Frame([(n, narrow if n == name else t) for n, t in batch.columns], rows)
