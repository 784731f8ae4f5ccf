"""Spark's types of numbers: precision and scale of results, and the types that hold several others."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sqlglot import exp

from strandline.sql.expr import call, case, cast, eq, lit
from strandline.sql.portable import family, fault

WIDTH = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}


def digits(type_: str) -> tuple[int, int] | None:
    """Precision and scale of a whole number's or a decimal's type."""
    found = re.fullmatch(r"decimal\((\d+),(\d+)\)", type_)
    return (
        (int(found[1]), int(found[2])) if found else (WIDTH[type_], 0) if type_ in WIDTH else None
    )


def divided(left: exp.Expr, right: exp.Expr, type_: str) -> exp.Expr:
    """The quotient to the last digit of the type, halves away from zero; both are decimals of known scale."""
    scale = (digits(type_) or (38, 0))[1]
    up = scale - _scale(left) + _scale(right)
    above, below = call("unscaled", left), call("unscaled", right)
    quotient = call(
        "strandline_divide", above, below, lit(str(10 ** max(up, 0))), lit(str(10 ** max(-up, 0)))
    )
    unit = (
        cast(lit("0." + "0" * (scale - 1) + "1"), f"decimal({scale},{scale})") if scale else lit(1)
    )
    zero = (eq(right.copy(), lit(0)), cast(fault("division"), type_))
    value = exp.Mul(this=cast(quotient, "decimal(38,0)"), expression=unit)
    return case(zero, default=cast(value, type_))


def rounded_float(value: exp.Expr, type_: str, places: int) -> exp.Expr:
    """Rounded as the digits say that one sees: 1.005 to two places is 1.01."""
    small = exp.LT(this=exp.Abs(this=value.copy()), expression=exp.Literal.number("1e17"))
    return case(
        (small, cast(cast(call("float_digits", value.copy()), f"decimal(38,{places})"), type_)),
        default=value.copy(),
    )


def _scale(tree: exp.Expr) -> int:
    return int(tree.args["to"].expressions[1].name)


def bounded_decimal(precision: int, scale: int) -> str:
    """Spark's rule for results of more than 38 digits: keep the whole part, and at least six places."""
    if precision > 38:
        precision, scale = 38, max(38 - (precision - scale), min(scale, 6))
    return f"decimal({precision},{scale})"


def common_type(types: Iterable[str | None]) -> str | None:
    """The type that holds all of them, as CASE and COALESCE choose it."""
    given = [t for t in types if t != "void"]
    if not given or None in given or "" in given:
        return None if given else "void"
    known = [t for t in given if t]
    if len(set(known)) == 1:
        return known[0]
    kinds = {family(t) for t in known}
    if kinds == {"integer"}:
        return max(known, key=lambda t: WIDTH[t])
    if kinds <= {"integer", "float", "decimal"}:
        if "float" in kinds:
            return "double"
        pairs = [digits(t) or (38, 18) for t in known]
        scale = max(s for _, s in pairs)
        return f"decimal({min(38, max(p - s for p, s in pairs) + scale)},{scale})"
    return None
