"""Java's patterns of dates and times (`yyyy-MM-dd`) as trees: written, and read, in UTC and in English.

A pattern has to be a literal. A letter that is not in the tables below is refused by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from sqlglot import exp

from strandline.sql.expr import call, case, cast, concat, is_null, lit
from strandline.sql.functions import Unsuited

_Part = Callable[[exp.Expr], exp.Expr]


def pieces(pattern: str) -> Iterator[tuple[str, str]]:
    """A pattern in pieces: a letter repeated, or `'` and the text that stands for itself."""
    at = 0
    while at < len(pattern):
        if pattern[at] == "'":
            found = re.compile(r"'((?:[^']|'')*)'").match(pattern, at)
            if not found:
                raise Unsuited(f"the pattern `{pattern}` has a quote without an end")
            yield "'", found[1].replace("''", "'") or "'"
            at = found.end()
        elif pattern[at].isascii() and pattern[at].isalpha():
            run = re.compile(rf"{pattern[at]}+").match(pattern, at)
            assert run is not None
            yield run[0][0], run[0]
            at = run.end()
        else:
            if pattern[at] in "[]{}#":
                raise Unsuited(f"`{pattern[at]}` in the pattern `{pattern}` has no equal here")
            yield "'", pattern[at]
            at += 1


def _unknown(run: str, pattern: str) -> Unsuited:
    return Unsuited(
        f"`{run}` in the pattern `{pattern}` is not available on the local engine",
        "see docs/sql.md",
    )


# --- writing -----------------------------------------------------------------------------------------------


def _part(name: str) -> _Part:
    return lambda moment: call("DATE_PART", lit(name), moment.copy())


def _digits(value: _Part, width: int) -> _Part:
    """At least so many digits."""
    if width == 1:
        return lambda moment: cast(value(moment), "string")
    return lambda moment: call("strandline_digits_of", value(moment), lit(width))


def _strftime(sign: str) -> _Part:
    return lambda moment: call("STRFTIME", moment.copy(), lit(sign))


def _twelve(moment: exp.Expr) -> exp.Expr:
    """The hour of a clock of twelve hours."""
    return call("strandline_twelve", _part("hour")(moment))


def _fraction(count: int) -> _Part:
    return lambda moment: call(
        "LEFT",
        call("RPAD", call("STRFTIME", moment.copy(), lit("%f")), lit(9), lit("0")),
        lit(count),
    )


_WRITTEN: dict[str, _Part] = {
    "y": _digits(_part("year"), 1), "yyy": _digits(_part("year"), 3), "yyyy": _digits(_part("year"), 4),
    "yy": lambda moment: call("RIGHT", _digits(_part("year"), 4)(moment), lit(2)),
    "M": _digits(_part("month"), 1), "MM": _digits(_part("month"), 2), "MMM": _strftime("%b"), "MMMM": _strftime("%B"),
    "L": _digits(_part("month"), 1), "LL": _digits(_part("month"), 2), "LLL": _strftime("%b"), "LLLL": _strftime("%B"),
    "d": _digits(_part("day"), 1), "dd": _digits(_part("day"), 2),
    "D": _digits(_part("doy"), 1), "DDD": _digits(_part("doy"), 3),
    "Q": _digits(_part("quarter"), 1), "QQ": _digits(_part("quarter"), 2),
    "q": _digits(_part("quarter"), 1), "qq": _digits(_part("quarter"), 2),
    **{run: _strftime("%a") for run in ("E", "EE", "EEE")}, "EEEE": _strftime("%A"),
    "H": _digits(_part("hour"), 1), "HH": _digits(_part("hour"), 2),
    "h": _digits(_twelve, 1), "hh": _digits(_twelve, 2), "a": _strftime("%p"),
    "m": _digits(_part("minute"), 1), "mm": _digits(_part("minute"), 2),
    "s": _digits(_part("second"), 1), "ss": _digits(_part("second"), 2),
    **{"S" * n: _fraction(n) for n in range(1, 10)},
}  # fmt: skip


def formatted(moment: exp.Expr, pattern: str) -> exp.Expr:
    """The text of a moment without a zone."""
    parts: list[exp.Expr] = []
    for kind, run in pieces(pattern):
        if kind == "'":
            parts.append(lit(run))
        elif run in _WRITTEN:
            parts.append(cast(_WRITTEN[run](moment), "string"))
        else:
            raise _unknown(run, pattern)
    missing = (is_null(moment.copy()), cast(exp.null(), "string"))
    return case(missing, default=concat(*parts) if parts else lit(""))


# --- reading -----------------------------------------------------------------------------------------------

_MONTH_NAMES = (
    r"(?i:(january|february|march|april|may|june|july|august|september|october|november|december))"
)
_READ = {  # what the text has to look like, and which field of a timestamp it is
    "yyyy": (r"([0-9]{4})", "year"), "y": (r"([0-9]{4})", "year"),
    "MM": (r"([0-9]{2})", "month"), "M": (r"([0-9]{1,2})", "month"),
    "MMM": (r"(?i:(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec))", "name"),
    "MMMM": (_MONTH_NAMES, "name"),
    "dd": (r"([0-9]{2})", "day"), "d": (r"([0-9]{1,2})", "day"),
    "HH": (r"([01][0-9]|2[0-3])", "hour"), "H": (r"(2[0-3]|[01]?[0-9])", "hour"),
    "mm": (r"([0-5][0-9])", "minute"), "m": (r"([0-5]?[0-9])", "minute"),
    "ss": (r"([0-5][0-9])", "second"), "s": (r"([0-5]?[0-9])", "second"),
    **{"S" * n: (rf"([0-9]{{1,{n}}})", "fraction") for n in range(1, 7)},
}  # fmt: skip
_USUAL = {
    "year": "1970",
    "month": "01",
    "day": "01",
    "hour": "00",
    "minute": "00",
    "second": "00",
    "fraction": "0",
}
_DIGIT_RUNS = {run for run, (_, field) in _READ.items() if field != "name"}


def parsed(text: exp.Expr, pattern: str) -> exp.Expr:
    """The timestamp without a zone that a text means; NULL where the text is not like the pattern."""
    look, fields, before = "", list[str](), ""
    for kind, run in pieces(pattern):
        if kind == "'":
            look += re.escape(run)
        elif run in _READ:
            if before in _DIGIT_RUNS and run in _DIGIT_RUNS and 1 in (len(before), len(run)):
                raise Unsuited(
                    f"`{before}{run}` in the pattern `{pattern}` can be read in two ways"
                )
            look += _READ[run][0]
            fields.append(_READ[run][1])
        else:
            raise _unknown(run, pattern)
        before = run if kind != "'" else ""
    if len(set(fields)) != len(fields) or {"name", "month"} <= set(fields):
        raise Unsuited(f"the pattern `{pattern}` has a field twice")
    return _moment(text, rf"^{look}\z", fields)


def _moment(text: exp.Expr, look: str, fields: list[str]) -> exp.Expr:
    found = {
        field: call("REGEXP_EXTRACT", text.copy(), lit(look), lit(n))
        for n, field in enumerate(fields, start=1)
    }
    value = {field: found.get(field, lit(usual)) for field, usual in _USUAL.items()}
    if "name" in found:
        value["month"] = call("strandline_month", found["name"])
    iso = [value["year"], lit("-"), _two(value["month"]), lit("-"), _two(value["day"]), lit(" ")]
    iso += [_two(value["hour"]), lit(":"), _two(value["minute"]), lit(":"), _two(value["second"])]
    iso += [lit("."), value["fraction"]]
    known = exp.TryCast(
        this=concat(*iso), to=exp.DataType.build("timestamp_ntz", dialect="spark"), safe=True
    )
    like = exp.RegexpLike(this=text.copy(), expression=lit(look))
    return case((like, known), default=exp.null())


def _two(value: exp.Expr) -> exp.Expr:
    return value if isinstance(value, exp.Literal) else call("LPAD", value, lit(2), lit("0"))
