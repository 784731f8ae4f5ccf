"""The small grammar of watermark expressions: literals, arithmetic, date_add, date_sub and CAST, worked out here.

An expression is parsed as Spark SQL and walked node by node; what is not in the list is refused by its name.
Numbers are exact fractions until the end. Nothing is ever handed to `eval` or to a database.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from functools import lru_cache

from sqlglot import exp

from strandline.config.queries import SqlError
from strandline.errors import TransformError
from strandline.sql.portable import family, parse
from strandline.sql.values import ORDERED, Value, converted, from_text, half_up

LAST_VALUE = "${last_value}"
HINT = "an expression is made of '${last_value}', literals, date_sub(…, days), date_add(…, days), CAST, + - * /"
MAX_PARENTHESES = 50

_Worked = Fraction | date | str
_SIGNS: dict[type[exp.Expr], Callable[[Fraction, Fraction], Fraction]] = {
    exp.Add: lambda a, b: a + b,
    exp.Sub: lambda a, b: a - b,
    exp.Mul: lambda a, b: a * b,
    exp.Div: lambda a, b: a / b,
}
_LARGEST = (
    10**60
)  # far above any column's value, and small enough for exact arithmetic to stay quick
# one value and more of every kind that a column may have; what goes wrong with all of them is a mistake
_SAMPLES: tuple[tuple[Value, str], ...] = (
    *((n, "bigint") for n in (1, 1000, -1000)),
    *((converted(Fraction(n, 4), "decimal(38,18)"), "decimal(38,18)") for n in (1, 4002, -4002)),
    (date(2024, 6, 15), "date"),
    (datetime(2024, 6, 15, 12, 30, 45, 678901, tzinfo=UTC), "timestamp"),
    (datetime(2024, 6, 15, tzinfo=UTC), "timestamp"),
    (datetime(2024, 6, 15, 12, 30, 45, 678901), "timestamp_ntz"),  # noqa: DTZ001  # it has no zone
    *((text, "string") for text in ("1", "1000", "2024-06-15", "2024-06-15 12:30:45.678901")),
)


def evaluate(expression: str, last: Value | None) -> _Worked:
    """What an expression gives for a last value; SqlError says what in it cannot be."""
    return _work(_tree(expression), last)


def mentions_last_value(expression: str) -> bool:
    return any(_is_last(node) for node in _tree(expression).find_all(exp.Literal))


def check_expression(expression: str) -> None:
    """Refuse an expression that is outside the grammar, or that makes sense for no kind of column."""
    first: SqlError | None = None
    for value, type_ in _SAMPLES:
        try:
            bound(expression, value, type_)
        except SqlError as error:
            first = first or error
        else:
            return
    assert first is not None
    raise first


def raises_bound(expression: str) -> bool:
    """May the expression give a bound above the last value, so that rows between the two are never read?"""
    if not mentions_last_value(expression):
        return False
    for value, type_ in _SAMPLES:
        try:
            if _suits(expression, value) and _above(evaluate(expression, value), value, type_):
                return True
        except (SqlError, ValueError, OverflowError):  # not an expression for this kind of column
            continue
    return False


def _suits(expression: str, value: Value) -> bool:
    """May a column hold this value whose last value is cast so? One to whole numbers says that there are no others."""
    if isinstance(value, str | date):
        return True
    casts = (
        _work(c, value) for c in _tree(expression).find_all(exp.Cast) if _is_last(c.this.unnest())
    )
    return all(isinstance(number, str) or number == value for number in casts)


def _above(worked: _Worked, last: Value, type_: str) -> bool:
    """Both as values of the column; a text that is calculated with as a number, or as a time, stands for one."""
    if family(type_) == "text" and not isinstance(worked, str):
        type_ = "timestamp" if isinstance(worked, date) else "decimal(38,18)"
    return bool(converted(worked, type_) > converted(last, type_))  # type: ignore[operator]  # both are of one type


def bound(expression: str, last: Value | None, type_: str) -> Value:
    """What an expression gives, in the type of its column; numbers are rounded down."""
    try:
        return converted(evaluate(expression, last), type_)
    except SqlError:
        raise
    except (ValueError, OverflowError) as error:
        raise SqlError(f"`{expression}` gives no value of type {type_}: {error}") from error


@lru_cache(maxsize=256)
def _tree(expression: str) -> exp.Expr:
    if len(expression) > 1000:
        raise SqlError("an expression has at most 1000 characters", HINT)
    if (
        expression.count("(") > MAX_PARENTHESES
    ):  # how deep the parser can go depends on who called it
        raise SqlError(
            f"nested too deep: an expression has at most {MAX_PARENTHESES} pairs of parentheses",
            HINT,
        )
    try:
        return parse(expression, "expression")
    except TransformError as error:
        raise SqlError(error.message.removeprefix("expression: "), HINT) from error


def _is_last(node: exp.Expr) -> bool:
    return isinstance(node, exp.Literal) and bool(node.is_string) and node.this == LAST_VALUE


def _work(node: exp.Expr, last: Value | None) -> _Worked:
    match node:
        case exp.Literal():
            return _literal(node, last)
        case exp.Paren():
            return _work(node.this, last)
        case exp.Neg():
            return -_number(_work(node.this, last), node)
        case exp.Add() | exp.Sub() | exp.Mul() | exp.Div():
            return _arithmetic(node, _work(node.this, last), _work(node.expression, last))
        case exp.TsOrDsAdd() if node.text("unit").upper() == "DAY":
            return _shifted(_work(node.this, last), _work(node.expression, last), node)
        case exp.Cast() if type(node) is exp.Cast:
            return _cast(node, _work(node.this, last))
        case exp.Parameter():
            raise SqlError(
                "${last_value} stands without quotes", "write '${last_value}', also for numbers"
            )
    raise SqlError(f"`{_shown(node)}` may not stand in an expression", HINT)


def _literal(node: exp.Literal, last: Value | None) -> _Worked:
    text = str(node.this)
    if _is_last(node):
        assert last is not None, "without a last value there is nothing to work out"
        return last if isinstance(last, str | date) else Fraction(last)
    if node.is_string:
        if LAST_VALUE in text:
            raise SqlError(
                f"'{text}' holds more than ${{last_value}}",
                "let '${last_value}' stand alone in its quotes",
            )
        return text
    if not re.fullmatch(r"[0-9]{0,38}(\.[0-9]{0,38})?", text):
        raise SqlError(
            f"`{text}` is not a plain number", "write its digits out, without an exponent"
        )
    return Fraction(text.rstrip(".") or "0")


def _arithmetic(node: exp.Binary, left: _Worked, right: _Worked) -> _Worked:
    if (
        isinstance(left, date)
        and isinstance(node, exp.Add | exp.Sub)
        and isinstance(right, Fraction)
    ):
        if isinstance(left, datetime):
            raise SqlError(f"`{_shown(node)}`: a number cannot be added to a timestamp", HINT)
        return _shifted(left, right if isinstance(node, exp.Add) else -right, node)
    a, b = _number(left, node), _number(right, node)
    if isinstance(node, exp.Div) and b == 0:
        raise SqlError(f"`{_shown(node)}` divides by zero")
    return _bounded(_SIGNS[type(node)](a, b), node)


def _bounded(number: Fraction, node: exp.Expr) -> Fraction:
    if max(abs(number.numerator), number.denominator) > _LARGEST:
        raise SqlError(f"`{_shown(node)}` is too large a number")
    return number


def _number(value: _Worked, node: exp.Expr) -> Fraction:
    if isinstance(value, Fraction):
        return value
    kind = (
        "text" if isinstance(value, str) else "timestamp" if isinstance(value, datetime) else "date"
    )
    raise SqlError(
        f"`{_shown(node)}` calculates with a {kind}",
        "use CAST for text, date_sub and date_add for dates",
    )


def _shifted(value: _Worked, days: _Worked, node: exp.Expr) -> date:
    """date_add and date_sub give dates, as in Spark: the time of a timestamp is cut off."""
    number = _number(days, node)
    if number.denominator != 1:
        raise SqlError(f"`{_shown(node)}` shifts by a part of a day", "give whole days")
    try:
        start = converted(
            from_text(value, "timestamp") if isinstance(value, str) else value, "date"
        )
        assert isinstance(start, date)
        return start + timedelta(days=number.numerator)
    except (ValueError, OverflowError) as error:
        raise SqlError(f"`{_shown(node)}` is not a date: {error}") from error


def _cast(node: exp.Cast, value: _Worked) -> _Worked:
    type_ = node.to.sql(dialect="spark").lower().replace(" ", "")
    kind = family(type_)
    if kind not in ORDERED:
        raise SqlError(f"`{_shown(node)}`: a value of type {type_} has no exact order", HINT)
    try:
        result = converted(value, type_, half_up if kind == "decimal" else math.trunc)
    except (ValueError, OverflowError) as error:
        raise SqlError(f"`{_shown(node)}`: {error}") from error
    return result if isinstance(result, str | date) else Fraction(result)


def _shown(node: exp.Expr) -> str:
    return node.sql(dialect="spark")
