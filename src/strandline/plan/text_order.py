"""Texts as watermarks: which stand in the order of what they say, and how late a time in a text may be. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from sqlglot import exp

from strandline.sql.expr import case, lit

WITHOUT_ZONE, WITH_ZONE = timedelta(hours=24), timedelta(minutes=5)
"""How far ahead of the clock a time may be: one without a zone may be of any zone."""

_DIGITS, _ZEROS = "0123456789", "0000000000"
_DAY = (
    r"0000-00(?:-00(?:[T ]00:00(?::00(?:[.,]0+)?)?(?P<zone>Z|[+-]00:00[+-][0-9]{2}:[0-9]{2})?)?)?"
)
_TIME = re.compile(_DAY)
_NUMBER = re.compile("0+")
_WEEK = re.compile("0000-W00(?:-0)?")


def signature(text: str) -> str:
    """The shape of a text, with 0 for each digit; behind it the offset from UTC, where it ends with one."""
    shape = text.translate(str.maketrans(_DIGITS, _ZEROS))
    return shape + text[-6:] if shape.endswith(("+00:00", "-00:00")) else shape


def signature_of(text: exp.Expr) -> exp.Expr:
    """The same, as a tree."""
    shape = exp.Anonymous(this="TRANSLATE", expressions=[text, lit(_DIGITS), lit(_ZEROS)])
    last = exp.Right(this=text.copy(), expression=lit(6))
    ends = exp.Right(this=shape.copy(), expression=lit(6))
    zoned = exp.In(this=ends, expressions=[lit("+00:00"), lit("-00:00")])
    return exp.DPipe(this=shape, expression=case((zoned, last), default=lit("")))


def ordered_as_text(found: str) -> bool:
    """Do texts of one signature stand in the order of the numbers, days or times that they say?"""
    return any(kind.fullmatch(found) for kind in (_NUMBER, _TIME, _WEEK))


def is_number(text: str) -> bool:
    """Is this a text of digits alone? A longer one is a higher number, and stands before it."""
    return _NUMBER.fullmatch(signature(text)) is not None


def latest(text: str, now: datetime) -> str | None:
    """The latest time that is not in the future, in the shape of a text; None where it says no time."""
    found = _TIME.fullmatch(signature(text))
    if found is None:
        return None
    zone = found["zone"]
    if zone is None:
        return _poured(text, now.astimezone(UTC) + WITHOUT_ZONE)
    if zone == "Z":
        return _poured(text, now.astimezone(UTC) + WITH_ZONE)
    offset = text[-6:]
    there = datetime.fromisoformat(f"2000-01-01T00:00:00{offset}").tzinfo
    return _poured(text[:-6], (now + WITH_ZONE).astimezone(there)) + offset


def _poured(text: str, moment: datetime) -> str:
    """The text with the digits of another moment."""
    digits = iter(moment.strftime("%Y%m%d%H%M%S%f"))
    return "".join(next(digits, "0") if c in _DIGITS else c for c in text)
