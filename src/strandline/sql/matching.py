"""Keys as columns that plain equality tells apart, NULLs among them.

`a <=> b` makes Spark derive columns of its own to join by, so rows that were just counted or ranked by the same key are
shuffled and sorted again. With the derived columns written out, one shuffle serves both.
"""

from __future__ import annotations

from datetime import UTC, date, datetime

from sqlglot import exp

from strandline.sql.expr import Literal, all_of, cast, col, eq, is_null, lit, named, same
from strandline.sql.portable import family

_VALUE, _NULL = "_strandline_key_", "_strandline_null_"
_INSTEAD: dict[str, Literal] = {  # what stands for NULL, beside a flag that says so
    "integer": 0,
    "decimal": 0,
    "float": 0,
    "text": "",
    "boolean": False,
    "date": date(1970, 1, 1),
    "timestamp": datetime(1970, 1, 1, tzinfo=UTC),
    "timestamp_ntz": datetime(1970, 1, 1),  # noqa: DTZ001 – that is its meaning
    "binary": "",
}


def match_columns(number: int, type_: str, value: exp.Expr) -> list[exp.Alias]:
    """A key's value and whether it is NULL; of types without a value to stand for NULL, the value alone."""
    if family(type_) not in _INSTEAD:
        return [named(value, f"{_VALUE}{number}")]
    there = exp.Coalesce(this=value, expressions=[cast(lit(_INSTEAD[family(type_)]), type_)])
    return [named(there, f"{_VALUE}{number}"), named(is_null(value.copy()), f"{_NULL}{number}")]


def same_match(number: int, type_: str, left: str, right: str) -> exp.Expr:
    """Is it the same key on both sides?"""
    if family(type_) not in _INSTEAD:
        return same(*(col(f"{_VALUE}{number}", side) for side in (left, right)))
    return all_of(
        eq(col(f"{name}{number}", left), col(f"{name}{number}", right)) for name in (_VALUE, _NULL)
    )
