"""How far a source has been read, and from where to read on: the typed high-water marks of its columns.

Lower bounds are inclusive, and rows whose mark is NULL are read every time: nothing is missed, and what comes
twice is found to be there already. See docs/decisions/0004-null-marks.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from sqlglot import exp

from strandline.config.increments import IncrementalConfig, WatermarkConfig, duration
from strandline.config.queries import SqlError
from strandline.config.reads import ReadConfig
from strandline.errors import ReadError, UnknownColumn
from strandline.plan.text_order import WITH_ZONE, WITHOUT_ZONE, is_number, latest
from strandline.sql.bounded import bound, check_expression, mentions_last_value, raises_bound
from strandline.sql.expr import cast, col, lit
from strandline.sql.portable import family
from strandline.sql.values import (
    ORDERED,
    Value,
    converted,
    from_text,
    like,
    lowest,
    rescaled,
    to_text,
)
from strandline.types import Column, Schema

__all__ = [
    "Limits",
    "Mark",
    "advanced",
    "check_expression",
    "decided_by",
    "in_the_future",
    "limits",
    "raises_bound",
]

_TIMES = ("date", "timestamp", "timestamp_ntz")


@dataclass(frozen=True)
class Mark:
    """The highest value seen in a column, and the column's type when it was read."""

    value: Any
    type: str

    def as_json(self) -> tuple[str, str]:
        """Text and type: exact, and the same mark again from `from_json`."""
        return to_text(self.value), self.type

    @classmethod
    def from_json(cls, pair: Sequence[str]) -> Mark:
        text, type_ = pair
        return cls(from_text(text, type_), type_)


@dataclass(frozen=True)
class Limits:
    """What a read is limited to; no predicate means everything."""

    predicate: exp.Expr | None
    lows: Mapping[str, Any]
    columns: tuple[Column, ...]
    follows: frozenset[str] = frozenset()  # the columns that are read on from the last value


@dataclass(frozen=True)
class _Entry:
    """One watermark: its column, its lower bound, and how it is joined to the entries before it."""

    column: Column
    low: Value | None
    operation: str = "and"
    group: int | str | None = None
    follows: bool = True  # is its bound made of the last value?


def limits(
    read: ReadConfig, schema: Schema, marks: Mapping[str, Mark], now: datetime, where: str
) -> Limits:
    """The lower bounds of a read, over the source's columns; `now` is the run's one instant."""
    seen = {name.casefold(): mark for name, mark in marks.items()}
    if read.incremental is None:
        entries = [_listed(w, schema, seen, where) for w in read.watermark]
    elif read.incremental.column is None:  # files, by the time they were written
        entries = []
    else:
        column = _column(read.incremental.column, schema, where)
        rolling = read.incremental.mode == "rolling_window"
        low = (
            _window(read.incremental, column, now, where)
            if rolling
            else _stateful(read.incremental, column, seen, where)
        )
        entries = [_Entry(column, low)]
    lows = {e.column.name: e.low for e in entries if e.low is not None}
    follows = frozenset(e.column.name for e in entries if e.follows)
    return Limits(_predicate(entries), lows, tuple(e.column for e in entries), follows)


def advanced(old: Mark | None, highest: Any, type_: str) -> Mark | None:
    """The mark after a read: the highest value, unless the one before was higher."""
    if highest is None:
        return old
    new = converted(highest, type_)
    if old is not None:
        _same_kind(old, type_, "the mark")
        before = converted(old.value, type_)
        new = max(before, new)
    return Mark(new, type_)


def in_the_future(value: Any, type_: str, now: datetime, *, recorded: bool = False) -> Value | None:
    """The latest value that is not in the future, where this one is later; numbers have no future.

    A watermark that is `recorded` may be a day later: the clocks of two machines differ.
    """
    if value is None:
        return None
    now += timedelta(days=1) if recorded else timedelta()
    kind = family(type_)
    limit: Any = None
    if kind == "text":
        limit = latest(value, now)
    elif kind in _TIMES:
        limit = converted(now + (WITH_ZONE if kind == "timestamp" else WITHOUT_ZONE), type_)
    return limit if limit is not None and converted(value, type_) > limit else None


def decided_by(read: ReadConfig, columns: Sequence[str]) -> bool:
    """Is every row read whose marks in these columns lie at or above their bounds, whatever its other marks are?"""
    there = {name.casefold() for name in columns}
    if read.incremental is not None:
        return (read.incremental.column or "").casefold() in there
    groups: dict[int | str | None, bool] = {}
    for entry in read.watermark:
        one = entry.column_name.casefold() in there
        before = groups.setdefault(entry.operation_group, one)
        groups[entry.operation_group] = before or one if entry.operation == "or" else before and one
    return all(groups.values())


# --- the predicate -----------------------------------------------------------------------------------------


def _predicate(entries: Sequence[_Entry]) -> exp.Expr | None:
    """Within a group each entry is joined to those before it; groups are joined by AND. None is TRUE."""
    groups: dict[int | str | None, exp.Expr | None] = {}
    for entry in entries:
        one = _at_least(entry.column, entry.low)
        if entry.group not in groups:
            groups[entry.group] = one
        elif entry.operation == "or":
            before = groups[entry.group]
            both = before is not None and one is not None
            groups[entry.group] = exp.paren(exp.or_(before, one), copy=False) if both else None
        else:
            groups[entry.group] = _both(groups[entry.group], one)
    result: exp.Expr | None = None
    for group in groups.values():
        result = _both(result, group)
    return result


def _both(left: exp.Expr | None, right: exp.Expr | None) -> exp.Expr | None:
    if left is None or right is None:
        return right if left is None else left
    return exp.and_(left, right)


def _at_least(column: Column, low: Value | None) -> exp.Expr | None:
    if low is None:
        return None
    # a decimal is written with its type: DuckDB would read many digits as a double
    value = cast(lit(to_text(low)), column.type) if isinstance(low, Decimal) else lit(low)
    above: exp.Expr = exp.GTE(this=col(column.name), expression=value)
    if isinstance(low, str) and is_number(
        low
    ):  # '10' stands before '9': it is read, and found to be wider
        wider = exp.GT(this=exp.Length(this=col(column.name)), expression=lit(len(low)))
        above = exp.Or(this=above, expression=wider)
    return exp.Paren(
        this=exp.Or(this=above, expression=exp.Is(this=col(column.name), expression=exp.null()))
    )


# --- the lower bounds --------------------------------------------------------------------------------------


def _column(name: str, schema: Schema, where: str) -> Column:
    column = schema.get(name)
    if column is None:
        raise UnknownColumn(name, schema.names, where=where)
    if family(column.type) not in ORDERED:
        raise ReadError(
            f"{where}: column `{column.name}` has type {column.type}, which cannot be a watermark",
            hint="choose a column of whole numbers, decimals, dates, timestamps or text",
        )
    return column


def _mark(column: Column, marks: Mapping[str, Mark], where: str) -> Value | None:
    """The last value in the column's type of now."""
    mark = marks.get(column.fold)
    if mark is None:
        return None
    _same_kind(mark, column.type, f"{where}: column `{column.name}`")
    try:
        return converted(mark.value, column.type)
    except ValueError as error:
        raise _changed(mark, column.type, f"{where}: column `{column.name}`") from error


def _same_kind(mark: Mark, type_: str, where: str) -> None:
    """Refuse a mark of another kind; digits and times of a text are read as what they say."""
    before, after = family(mark.type), family(type_)
    if before not in (after, "text") and (before, after) != ("integer", "decimal"):
        raise _changed(mark, type_, where)


def _changed(mark: Mark, type_: str, where: str) -> ReadError:
    return ReadError(
        f"{where} is of type {type_} now, but its last mark {to_text(mark.value)!r} is of type {mark.type}",
        hint="give the column its old type back with a query:, or reset the node's mark and read everything once",
    )


def _stateful(
    config: IncrementalConfig, column: Column, marks: Mapping[str, Mark], where: str
) -> Value | None:
    """The last value less the lag; before there is one, the initial value or nothing."""
    last = _mark(column, marks, where)
    lower = _lag(
        config, column, where
    )  # a lag that does not suit the column is told on the first run already
    if last is None:
        return (
            None if config.initial_value is None else _initial(config.initial_value, column, where)
        )
    try:
        return lower(last)
    except (OverflowError, ValueError):  # there is nothing below
        return lowest(column.type)


def _lag(config: IncrementalConfig, column: Column, where: str) -> Callable[[Any], Value]:
    """What takes the lag from a value; zero is no lag, whatever the column."""
    lag, kind = config.lag, family(column.type)
    if not lag:
        return lambda last: last
    if kind in ("integer", "decimal") and not isinstance(lag, timedelta) and math.isfinite(lag):
        exact = Fraction(str(lag))
        return lambda last: rescaled(Fraction(last) - exact, column.type)
    if kind == "date" and isinstance(lag, timedelta):
        days = timedelta(days=-(-lag // timedelta(days=1)))  # rounded up
        return lambda last: last - days
    if kind in _TIMES and isinstance(lag, timedelta):
        return lambda last: last - lag
    raise ReadError(
        f"{where}: watermark_lag: {config.watermark_lag} cannot be taken from column `{column.name}` "
        f"of type {column.type}",
        hint="a text has no lag: leave it out, or read the column with another type"
        if kind == "text"
        else "write a duration like 2h or 7d"
        if kind in _TIMES
        else "give a plain number",
    )


def _initial(value: object, column: Column, where: str) -> Value:
    """The initial value, read by the column's type."""
    kind = family(column.type)
    try:
        match value:
            case str():
                return from_text(value, column.type)
            case int() | float() if kind in ("integer", "decimal"):
                return from_text(str(value), column.type)
            case datetime() if kind == "timestamp" or (
                kind == "timestamp_ntz" and value.tzinfo is None
            ):
                return converted(value, column.type)
            case datetime():
                pass
            case date() if kind in _TIMES:
                return converted(value, column.type)
        found = to_text(value) if isinstance(value, date) else repr(value)
        raise ValueError(f"{found} is not {like(column.type)}")
    except (ValueError, OverflowError) as error:
        raise ReadError(
            f"{where}: initial_value of column `{column.name}` ({column.type}): {error}",
            hint="put it in quotes" if kind == "text" else f"write {like(column.type)}",
        ) from error


def _window(config: IncrementalConfig, column: Column, now: datetime, where: str) -> Value:
    """Now less the lookback; for a date column the day of it."""
    if family(column.type) not in _TIMES:
        raise ReadError(
            f"{where}: a rolling window needs a date or a timestamp, but column `{column.name}` has type {column.type}",
            hint="use mode: stateful, or another column",
        )
    back = duration(config.lookback or "")
    assert back is not None, "checked when the project was loaded"
    try:
        return converted(now.astimezone(UTC) - back, column.type)
    except OverflowError:
        return lowest(column.type)


def _listed(
    config: WatermarkConfig, schema: Schema, marks: Mapping[str, Mark], where: str
) -> _Entry:
    column = _column(config.column_name, schema, where)
    last = _mark(column, marks, where)
    place = f"{where}: watermark of column `{column.name}` ({column.type})"
    low = None
    if last is not None or not mentions_last_value(config.expression):
        try:
            low = bound(config.expression, last, column.type)
        except SqlError as error:
            raise ReadError(f"{place}: {error.message}", hint=error.hint) from error
    if last is not None and low is not None:
        _refuse_risen(config.expression, low, last, place)
    return _Entry(
        column,
        low,
        config.operation,
        config.operation_group,
        follows=mentions_last_value(config.expression),
    )


def _refuse_risen(expression: str, low: Value, last: Value, place: str) -> None:
    """One that is meant to go down may rise in this column: '900' stands above '1000', and a cast may round up."""
    if mentions_last_value(expression) and low > last and not raises_bound(expression):  # type: ignore[operator]
        raise ReadError(
            f"{place}: `{expression}` gives {to_text(low)!r}, which is above the last value {to_text(last)!r}",
            hint="rows between the two would never be read: let the source give the column the type of the expression",
        )
