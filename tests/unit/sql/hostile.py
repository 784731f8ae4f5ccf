"""Rows on which engines part ways: NULL, empty and odd text, extremes of every type, the ends of calendars."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

from strandline.testing.oracle import Frame

COLUMNS = [
    ("id", "int"),
    ("i", "int"),
    ("j", "bigint"),
    ("n", "int"),  # small: a position, a count
    ("d", "decimal(10,2)"),
    ("w", "decimal(38,10)"),
    ("x", "decimal(38,0)"),
    ("f", "double"),
    ("g", "double"),  # between -1 and 1
    ("s", "string"),
    ("p", "string"),
    ("c", "string"),  # a list with commas
    ("b", "boolean"),
    ("y", "binary"),
    ("dt", "date"),
    ("du", "date"),
    ("ts", "timestamp"),
    ("tn", "timestamp_ntz"),
    ("k", "string"),  # a group
]


def _utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc]  # year, month, day, …


_NULLS = (None,) * 17
_MAX, _MIN = 2**63 - 1, -(2**63)
_ROWS = [
    (7, 2, 1, "1.50", "1234567890.0123456789", 10**37, 1.5, 0.5, "abc", "b", "a,b,c", True, b"abc",
     date(2024, 2, 29), date(2023, 2, 28), _utc(2024, 3, 31, 1, 59, 59, 999999), datetime(2024, 3, 31, 2, 30)),
    (-7, -3, -1, "-2.55", "-0.0000000001", -(10**38 - 1), -2.5, -0.5, "Straße ẞ", "ß", ",,", False, b"",
     date(1900, 1, 1), date(1899, 12, 31), _utc(1900, 1, 1), datetime(1900, 1, 1)),
    (2**31 - 1, _MAX, 2, "99999999.99", "9999999999999999999999999999.9999999999", 10**38 - 1, 1e308, 1.0, "", "",
     "", None, b"\x00\xff", date(9999, 12, 31), date(9999, 1, 31), _utc(9999, 12, 31, 23, 59, 59, 999999),
     datetime(9999, 12, 31, 23, 59, 59, 999999)),
    (-(2**31), _MIN, -2, "-99999999.99", "-9999999999999999999999999999.9999999999", 0, -1e308, -1.0, " a😀é́ ",
     "😀", "a, b ,😀", True, "😀é".encode(), date(1, 1, 1), date(1, 12, 31), _utc(1, 1, 1), datetime(1, 1, 1)),
    _NULLS,
    (0, 0, 0, "0.00", "0", 1, 0.0, 0.0, "a'b\\c\n", "'", "x", False, b"\n", date(1970, 1, 1), date(1969, 12, 31),
     _utc(1969, 12, 31, 23, 59, 59, 999999), datetime(1970, 1, 1)),
    (1, 1, 3, "0.05", "0.5", -1, -0.0, -0.0, "İIıi ǆ ﬁ", "i", "b,a,b,", True, b"Zz", date(2024, 12, 30),
     date(2024, 1, 31), _utc(2024, 10, 27, 0, 30), datetime(2024, 10, 27, 2, 30, 0, 1)),
    (-1, -1, 4, "-0.05", "2.5", 25, float("nan"), 1e-10, "hello wORLD\tfoo-bar o'neil", "o", "c", None, b"a b",
     date(2021, 1, 3), date(2020, 12, 28), _utc(2021, 1, 3, 13, 5, 7, 100), datetime(2021, 1, 3, 0, 0, 59, 120000)),
    (31, 2**53 + 1, 5, "1.45", "-2.5", -25, float("inf"), 1e-300, "NULL", "L", "null,,a", False, b"\x80",
     date(2023, 1, 1), date(2023, 12, 31), _utc(2200, 12, 31, 12, 0, 0, 500000), datetime(2200, 6, 15, 12)),
    (-32, -(2**53) - 1, -5, "1.55", "1.005", 5, float("-inf"), -1e-10, "日本語 ٣۴ e\u0301 👩‍👩‍👧", "本", "日,本",
     True, "日本".encode(), date(1582, 10, 15), date(1582, 10, 4), _utc(1582, 10, 15, 0, 0, 0, 1),
     datetime(1582, 10, 4, 23, 59, 59)),
    (1000003, 10**18, 10, "2.50", "3", 10, 5e-324, 0.1, "1,234.50", "4", "10,9", None, b"\xf0\x9f",
     date(2000, 2, 29), date(2000, 2, 29), _utc(2000, 2, 29, 12), datetime(2000, 2, 29, 12)),
    (12, 255, 7, "-2.50", "-1234567890.5", 7, 0.1, -0.9, "ABCabc", "c", "a,a", False, b"ABC",
     date(2024, 3, 31), date(2024, 2, 29), _utc(2024, 2, 29, 23, 59, 59), datetime(2024, 2, 29, 23, 59, 59)),
]  # fmt: skip
_GROUPS = ["k1", "k1", "k2", "k2", "k1", "k2", "k1", "k3", "k3", "k1", None, "k4"]
_NAMES = [name for name, _ in COLUMNS]
_DECIMALS = {name for name, type_ in COLUMNS if type_.startswith("decimal")}


def _row(number: int, values: tuple[object, ...], group: str | None) -> dict[str, object]:
    row = dict(zip(_NAMES, (number, *values, group), strict=True))
    return {n: Decimal(str(v)) if n in _DECIMALS and v is not None else v for n, v in row.items()}


HOSTILE = Frame(
    COLUMNS, [_row(n, v, g) for n, (v, g) in enumerate(zip(_ROWS, _GROUPS, strict=True), start=1)]
)
