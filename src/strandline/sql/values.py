"""Values of columns in Python: read from text by the one grammar, changed from type to type, written exactly."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from fractions import Fraction

from strandline.sql.portable import family, well_formed

Value = int | Decimal | date | datetime | str
Number = int | Decimal | Fraction
Rounding = Callable[[Fraction], int]

ORDERED = ("integer", "decimal", "date", "timestamp", "timestamp_ntz", "text")
"""The kinds whose values stand in one exact order on every engine; floats do not, because of NaN and rounding."""

_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_LIKE = {
    "integer": "a whole number like 42",
    "decimal": "a number like 12.50",
    "date": "a date like 2024-01-31",
    "timestamp": "a timestamp like 2024-01-31 12:00:00 or 2024-01-31T12:00:00+02:00",
    "timestamp_ntz": "a timestamp without a zone, like 2024-01-31 12:00:00",
    "text": "a text",
}


def like(type_: str) -> str:
    """What a value of this type looks like, for messages."""
    return _LIKE.get(family(type_), type_)


def from_text(text: str, type_: str, rounding: Rounding = math.floor) -> Value:
    """The value that a text stands for; ValueError says what was found and expected."""
    kind = family(type_)
    if kind == "text":
        return text
    bare = text.strip(" ")
    wrong = f"{text!r} is not {like(type_)}"
    if kind not in ORDERED or not well_formed(bare, kind):
        raise ValueError(wrong)
    try:
        match kind:
            case "integer" | "decimal":
                return rescaled(Decimal(bare), type_, rounding)
            case "date":
                return date.fromisoformat(bare)
        moment = datetime.fromisoformat(bare)
        if kind == "timestamp_ntz":
            return moment
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError:
        raise ValueError(f"{text!r} is out of range") from None
    except ValueError as e:  # 2024-02-30 is well formed, and no date
        raise ValueError(f"{wrong}: {e}") from None


def exact(text: str, type_: str) -> Value | float | bytes:
    """The value that a text stands for, of any plain type; ValueError when the type cannot hold all of it.

    Bytes are `0x` and their digits, or the text that they are.
    """
    kind = family(type_)
    if kind == "binary":
        return bytes.fromhex(text.removeprefix("0x")) if text.startswith("0x") else text.encode()
    if kind in ORDERED:
        value = from_text(text, type_)
        if isinstance(value, int | Decimal) and Fraction(text) != value:
            raise ValueError(f"{text!r} is not {like(type_)}")
        return value
    if not well_formed(text, kind):
        raise ValueError(f"{text!r} is not a {kind}")
    if kind == "boolean":
        return text.casefold() in ("true", "t", "yes", "y", "1")
    return float(text) if kind == "float" else text


def spelled_bytes(value: bytes) -> str:
    """Bytes as `exact` reads them, whatever they hold."""
    return f"0x{value.hex()}"


def to_text(value: Value) -> str:
    """A value in full: every digit, microseconds, UTC for instants."""
    match value:
        case Decimal():
            return f"{value:f}"
        case datetime(tzinfo=None):
            return value.isoformat(" ", "microseconds")
        case datetime():
            return value.astimezone(UTC).isoformat(" ", "microseconds")
        case date():
            return value.isoformat()
    return str(value)


def half_up(number: Fraction) -> int:
    """To the nearest whole number, away from zero when in the middle, as a cast to a decimal does."""
    return int(math.copysign(1, number)) * math.floor(abs(number) + Fraction(1, 2))


def rescaled(number: Number, type_: str, rounding: Rounding = math.floor) -> int | Decimal:
    """A number in an integer or decimal type; ValueError when it does not fit."""
    exact = Fraction(number)
    if bits := _BITS.get(type_):
        whole = rounding(exact)
        if not -(2 ** (bits - 1)) <= whole < 2 ** (bits - 1):
            raise ValueError(f"{whole} does not fit {type_}")
        return whole
    precision, scale = digits(type_)
    unscaled = rounding(exact * 10**scale)
    if len(str(abs(unscaled))) > precision and unscaled:
        raise ValueError(f"{unscaled / Decimal(10) ** scale:.6g} does not fit {type_}")
    return Decimal((int(unscaled < 0), tuple(int(d) for d in str(abs(unscaled))), -scale))


def digits(type_: str) -> tuple[int, int]:
    """Precision and scale of a decimal type."""
    found = re.search(r"\(\s*(\d+)\s*(?:,\s*(\d+))?", type_)
    return (int(found[1]), int(found[2] or 0)) if found else (10, 0)


def lowest(type_: str) -> Value:
    """The smallest value of a type whose values cannot go down for ever."""
    match family(type_):
        case "integer":
            return int(-(2 ** (_BITS[type_] - 1)))
        case "decimal":
            precision, scale = digits(type_)
            return Decimal((1, (9,) * precision, -scale))
        case "date":
            return date.min
        case "timestamp":
            return datetime.min.replace(tzinfo=UTC)
    return datetime.min  # noqa: DTZ901  # a timestamp_ntz has no zone


def converted(value: Number | date | str, type_: str, rounding: Rounding = math.floor) -> Value:
    """A value in another type, as a cast in UTC; numbers are rounded down, so that a lower bound never rises."""
    match family(type_), value:
        case "text", datetime():  # in UTC, as a cast to text is
            return _moment(value).isoformat(" ", "microseconds")
        case "text", _:
            return _number_text(value) if isinstance(value, Fraction) else to_text(value)
        case _, str():
            return from_text(value, type_, rounding)
        case (("integer" | "decimal"), int() | Decimal() | Fraction()):
            return rescaled(value, type_, rounding)
        case "date", date():
            return _moment(value).date()
        case "timestamp", date():
            return _moment(value).replace(tzinfo=UTC)
        case "timestamp_ntz", date():
            return _moment(value)
    shown = _number_text(value) if isinstance(value, Fraction) else to_text(value)
    raise ValueError(f"{shown} is not {like(type_)}")


def _number_text(number: Fraction) -> str:
    """Digits of a number; what has no end (a third) is cut where a decimal ends."""
    whole = number.denominator == 1
    return str(number.numerator) if whole else f"{rescaled(number, 'decimal(38,18)'):f}".rstrip("0")


def _moment(value: date) -> datetime:
    """What a clock in UTC shows; midnight for a date."""
    if not isinstance(value, datetime):
        return datetime.combine(value, time.min)
    return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
