"""Functions of dates and times, in UTC."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC

from sqlglot import exp

from strandline.sql.expr import call, case, cast, is_null, lit
from strandline.sql.functions import Call, Rule, Typed, Unsuited, fixed, function, of_type, plain
from strandline.sql.patterns import formatted, parsed
from strandline.sql.portable import checked_cast, family, fault

_TIMES = ("timestamp", "timestamp_ntz")
_ISO = "yyyy-MM-dd HH:mm:ss"
_NAMED_DAYS = {
    day: number
    for number, names in enumerate(
        ("SUNDAY SUN SU", "MONDAY MON MO", "TUESDAY TUE TU", "WEDNESDAY WED WE", "THURSDAY THU TH", "FRIDAY FRI FR",
         "SATURDAY SAT SA")
    )
    for day in names.split()
}  # fmt: skip


def _clock(made: Call, index: int) -> exp.Expr:
    """What a clock in UTC shows, without a zone."""
    return cast(made.fit(index, "timestamp"), "timestamp_ntz")


def _part(name: str) -> Callable[[exp.Expr], exp.Expr]:
    return lambda day: call("DATE_PART", lit(name), day)


# --- the clock ---------------------------------------------------------------------------------------------


def _now(type_: str) -> Rule:
    def rule(made: Call) -> Typed:
        if made.now is None:
            raise Unsuited("there is no run whose time it could tell")
        moment = made.now.astimezone(UTC)
        match type_:
            case "date":
                return fixed(lit(moment.date()), type_)
            case "timestamp_ntz":
                return fixed(lit(moment.replace(tzinfo=None)), type_)
        return fixed(lit(moment), type_)

    return rule


# --- text --------------------------------------------------------------------------------------------------


def _date_format(made: Call) -> Typed:
    return fixed(formatted(_clock(made, 0), made.written(1, "pattern")), "string")


def _read(made: Call, index: int, pattern: str, *, safe: bool) -> exp.Expr:
    """The moment that a text means; what is not like the pattern is an error, or NULL."""
    text = made.fit(index, "text")
    moment = parsed(text, pattern)
    if safe:
        return moment
    wrong = cast(
        fault("cast", lit(made.name), text.copy(), lit(f"a time like {pattern}")), "timestamp_ntz"
    )
    missing = (is_null(text.copy()), cast(exp.null(), "timestamp_ntz"))
    return case(missing, default=exp.Coalesce(this=moment, expressions=[wrong]))


def _to(type_: str, *, safe: bool) -> Rule:
    def rule(made: Call) -> Typed:
        given = family(made.types[0])
        if given not in ("text", "void") or len(made) == 1:
            if given == "text" and safe:
                return fixed(
                    checked_cast(made.args[0].copy(), "string", type_, made.name, safe=True), type_
                )
            return fixed(made.fit(0, type_), type_)
        return fixed(_read(made, 0, made.written(1, "pattern"), safe=safe), type_)

    return rule


def _seconds(made: Call) -> Typed:
    """Seconds since 1970, without their fraction."""
    if not len(made):
        if made.now is None:
            raise Unsuited("there is no run whose time it could tell")
        return fixed(lit(int(made.now.timestamp())), "bigint")
    if family(made.types[0]) in ("text", "void"):
        moment = _read(made, 0, made.written(1, "pattern") if len(made) == 2 else _ISO, safe=False)
    else:
        moment = made.fit(0, "timestamp")
    return fixed(exp.IntDiv(this=call("EPOCH_US", moment), expression=lit(1000000)), "bigint")


def _from_seconds(made: Call) -> Typed:
    pattern = made.written(1, "pattern") if len(made) == 2 else _ISO
    moment = call("MAKE_TIMESTAMP", exp.Mul(this=made.fit(0, "bigint"), expression=lit(1000000)))
    return fixed(formatted(moment, pattern), "string")


# --- calendars ---------------------------------------------------------------------------------------------


def _next_day(made: Call) -> Typed:
    name = made.written(1, "day of the week")
    if name.upper() not in _NAMED_DAYS:
        raise Unsuited(f"`{name}` is no day of the week")
    return fixed(
        call("strandline_next_day", made.fit(0, "date"), lit(_NAMED_DAYS[name.upper()])), "date"
    )


def _make_date(year: exp.Expr, month: exp.Expr, day: exp.Expr) -> exp.Expr:
    """An error where there is no such day."""
    return call("MAKE_DATE", year, month, day)


def _months_between(made: Call) -> Typed:
    rounded = len(made) == 2
    if not rounded:
        last = made.args[2].unnest()
        if not isinstance(last, exp.Boolean):
            raise Unsuited("whether it rounds is not a literal", "write true or false")
        rounded = bool(last.this)
    months = call("strandline_months", _clock(made, 0), _clock(made, 1))
    if rounded:
        months = call("strandline_eighth", months)
    return fixed(months, "double")


def _per(unit: int) -> Rule:
    """Units since 1970 of a timestamp, rounded down."""

    def rule(made: Call) -> Typed:
        if family(made.types[0]) not in ("timestamp", "void"):
            raise Unsuited(
                f"it takes a timestamp, and the argument is {of_type(made.types[0])}",
                "cast it to timestamp",
            )
        return fixed(
            call("strandline_per", call("EPOCH_US", made.fit(0, "timestamp")), lit(unit)), "bigint"
        )

    return rule


def _since(unit: int) -> Callable[[exp.Expr], exp.Expr]:
    """The moment that many units after 1970; outside of all calendars it is an error."""
    return lambda count: call("strandline_since", count, lit(unit))


_PARTS = {
    **dict.fromkeys(("year", "y", "years", "yr", "yrs"), "year"),
    **dict.fromkeys(("quarter", "qtr"), "quarter"),
    **dict.fromkeys(("month", "mon", "mons", "months"), "month"),
    **dict.fromkeys(("week", "w", "weeks"), "week"),
    **dict.fromkeys(("day", "d", "days"), "day"),
    **dict.fromkeys(("doy",), "doy"),
    **dict.fromkeys(("hour", "h", "hours", "hr", "hrs"), "hour"),
    **dict.fromkeys(("minute", "m", "min", "mins", "minutes"), "minute"),
}


def _date_part(made: Call) -> Typed:
    name = made.written(0, "part").lower()
    if name not in _PARTS:
        raise Unsuited(f"the part `{name}` is not available on the local engine")
    return fixed(call("DATE_PART", lit(_PARTS[name]), _clock(made, 1)), "int")


def _add_months(day: exp.Expr, months: exp.Expr) -> exp.Expr:
    """The last day of the month where the month is too short."""
    return exp.Add(this=day, expression=call("TO_MONTHS", months))


TIME = {
    **function("current_date curdate", "0", _now("date")),
    **function("current_timestamp now", "0", _now("timestamp")),
    **function("localtimestamp", "0", _now("timestamp_ntz")),
    **plain("current_timezone", "-> string", lambda: lit("UTC")),
    **function("date_format", "2", _date_format),
    **function("to_date", "1-2", _to("date", safe=False)),
    **function("try_to_date", "1-2", _to("date", safe=True)),
    **function("to_timestamp", "1-2", _to("timestamp", safe=False)),
    **function("try_to_timestamp", "1-2", _to("timestamp", safe=True)),
    **function("unix_timestamp", "0-2", _seconds),
    **function("to_unix_timestamp", "1-2", _seconds),
    **function("from_unixtime", "1-2", _from_seconds),
    **plain("add_months", "date int -> date", _add_months),
    **function("months_between", "2-3", _months_between),
    **function("next_day", "2", _next_day),
    **plain("dayofweek", "date -> int", lambda day: call("strandline_dayofweek", day)),
    **plain("weekday", "date -> int", lambda day: call("strandline_weekday", day)),
    **plain("dayofyear", "date -> int", _part("doy")),
    **plain("weekofyear", "date -> int", _part("week")),
    **plain("second", "timestamp -> int", _part("second")),
    **plain("dayname", "date -> string", lambda day: call("STRFTIME", day, lit("%a"))),
    **plain("monthname", "date -> string", lambda day: call("STRFTIME", day, lit("%b"))),
    **function("date_part datepart", "2", _date_part),
    **plain("make_date", "int int int -> date", _make_date),
    **plain(
        "unix_date",
        "date -> int",
        lambda day: exp.Sub(this=day, expression=cast(lit("1970-01-01"), "date")),
    ),
    **plain(
        "date_from_unix_date",
        "int -> date",
        lambda n: exp.Add(this=cast(lit("1970-01-01"), "date"), expression=n),
    ),
    **function("unix_seconds", "1", _per(1000000)),
    **function("unix_millis", "1", _per(1000)),
    **function("unix_micros", "1", _per(1)),
    **plain("timestamp_seconds", "bigint -> timestamp", _since(1000000)),
    **plain("timestamp_millis", "bigint -> timestamp", _since(1000)),
    **plain("timestamp_micros", "bigint -> timestamp", _since(1)),
}
