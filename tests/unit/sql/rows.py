"""The rows over which every function is tried: each column holds NULL and the values at which engines part ways."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

from strandline.testing.oracle import Frame

COLUMNS = [
    ("id", "int"),
    ("i", "int"),
    ("j", "bigint"),
    ("d", "decimal(10,2)"),
    ("e", "decimal(18,6)"),
    ("w", "decimal(38,10)"),
    ("f", "double"),
    ("s", "string"),
    ("p", "string"),
    ("b", "boolean"),
    ("dt", "date"),
    ("ts", "timestamp"),
    ("tn", "timestamp_ntz"),
]

_VALUES = [
    (
        1,
        7,
        2,
        Decimal("1.50"),
        Decimal("0.333333"),
        Decimal("1234567890.0123456789"),
        1.5,
        "abc",
        "b",
        True,
        date(2024, 2, 29),
        datetime(2024, 3, 31, 1, 59, 59, 999999, UTC),
        datetime(2024, 3, 31, 2, 30),
    ),
    (
        2,
        -7,
        3,
        Decimal("-2.55"),
        Decimal("2.500000"),
        Decimal("-0.0000000001"),
        -2.5,
        "Straße",
        "ß",
        False,
        date(1900, 1, 1),
        datetime(1900, 1, 1, tzinfo=UTC),
        datetime(1900, 1, 1),
    ),
    (
        3,
        2147483647,
        9007199254740993,
        Decimal("99999999.99"),
        Decimal("-999999999999.999999"),
        Decimal(3),
        1e-7,
        "",
        "",
        None,
        date(2200, 12, 31),
        datetime(2200, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(2200, 12, 31, 23, 59, 59, 1),
    ),
    (4, None, None, None, None, None, None, None, None, None, None, None, None),
    (
        5,
        2,
        -2,
        Decimal("0.05"),
        Decimal("1.005000"),
        Decimal("0.5"),
        2.5,
        " a😀é ",
        "a",
        True,
        date(2024, 12, 31),
        datetime(2024, 10, 27, 0, 30, tzinfo=UTC),
        datetime(2024, 10, 27, 2, 30, 0, 1),
    ),
    (
        6,
        -3,
        7,
        Decimal("0.00"),
        Decimal("0.000000"),
        Decimal(0),
        -0.0,
        "a'b\\c\n",
        "'",
        False,
        date(2023, 1, 1),
        datetime(2024, 10, 27, 1, 30, tzinfo=UTC),
        datetime(2024, 1, 31, 12),
    ),
]

ROWS = Frame(COLUMNS, [dict(zip([n for n, _ in COLUMNS], row, strict=True)) for row in _VALUES])
