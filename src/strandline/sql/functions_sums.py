"""Aggregates and window functions."""

from __future__ import annotations

from sqlglot import exp

from strandline.sql.expr import call, cast, lit
from strandline.sql.functions import Call, Function, Rule, Typed, Unsuited, fixed, function, of_type
from strandline.sql.portable import family

_BASIC = (
    "integer",
    "decimal",
    "float",
    "text",
    "boolean",
    "date",
    "timestamp",
    "timestamp_ntz",
    "binary",
)


def _aggregate(names: str, signature: str, duckdb: str) -> dict[str, Function]:
    """An aggregate that DuckDB has too: `double double -> double`."""
    left, _, result = signature.partition("->")
    kinds, type_ = left.split(), result.strip()

    def rule(made: Call) -> Typed:
        args = [made.fit(n, kind) for n, kind in enumerate(kinds)]
        return fixed(made.over(call(duckdb, *args)), type_)

    return function(names, str(len(kinds)), rule)


def _measure(names: str, duckdb: str, *, pairs: bool = False) -> dict[str, Function]:
    """A measure of doubles; as in Spark, its last digits depend on the order of the rows."""
    return _aggregate(names, "double double -> double" if pairs else "double -> double", duckdb)


def _bits(duckdb: str) -> Rule:
    def rule(made: Call) -> Typed:
        if family(made.types[0]) != "integer":
            raise Unsuited(
                f"it takes integers, and the argument is {of_type(made.types[0])}",
                "cast it to bigint",
            )
        return fixed(made.over(call(duckdb, made.args[0].copy())), made.types[0])

    return rule


def _by(duckdb: str) -> Rule:
    """The value beside the greatest or the smallest one."""

    def rule(made: Call) -> Typed:
        if family(made.types[1]) not in _BASIC or not made.types[0]:
            raise Unsuited(f"it orders by a value {of_type(made.types[1])}")
        return fixed(made.over(call(duckdb, *(arg.copy() for arg in made.args))), made.types[0])

    return rule


def _collected(*, once: bool) -> Rule:
    """A list of what is not NULL, in no particular order."""

    def rule(made: Call) -> Typed:
        inner = made.types[0]
        if not inner or inner == "void":
            raise Unsuited("the type of its argument is not known", "cast it")
        if once and (family(inner) not in _BASIC or family(inner) == "float"):
            raise Unsuited(
                f"which of several equal values stays is not defined {of_type(inner)}",
                "cast it to decimal",
            )
        many = call("strandline_there", made.over(call("LIST", made.args[0].copy())))
        return fixed(call("LIST_DISTINCT", many) if once else many, f"array<{inner}>")

    return rule


def _percentile(made: Call) -> Typed:
    """The value at a share of the way, between two neighbours in proportion."""
    if family(made.types[0]) not in ("integer", "decimal", "float"):
        raise Unsuited(f"it takes numbers, and the argument is {of_type(made.types[0])}")
    share = made.args[1].unnest() if len(made) == 2 else lit("0.5")
    share = share.this if isinstance(share, exp.Cast) else share
    if not isinstance(share, exp.Literal):
        raise Unsuited("its percentage is not a literal", "write a number from 0 to 1")
    if not 0 <= float(share.this) <= 1:
        raise Unsuited(f"{share.this} is not between 0 and 1")
    many = call("strandline_sorted", made.over(call("LIST", made.fit(0, "double"))))
    return fixed(
        call("strandline_percentile", many, cast(lit(str(share.this)), "double")), "double"
    )


def _regr_count(made: Call) -> Typed:
    return fixed(
        made.over(call("REGR_COUNT", made.fit(0, "double"), made.fit(1, "double"))), "bigint"
    )


SUMS = {
    **_aggregate("bool_and every", "boolean -> boolean", "BOOL_AND"),
    **_aggregate("any bool_or some", "boolean -> boolean", "BOOL_OR"),
    **_measure("std stddev stddev_samp", "STDDEV_SAMP"),
    **_measure("stddev_pop", "STDDEV_POP"),
    **_measure("var_samp variance", "VAR_SAMP"),
    **_measure("var_pop", "VAR_POP"),
    **_measure("covar_pop", "COVAR_POP", pairs=True),
    **_measure("covar_samp", "COVAR_SAMP", pairs=True),
    **_measure("corr", "CORR", pairs=True),
    **function("bit_and", "1", _bits("BIT_AND")),
    **function("bit_or", "1", _bits("BIT_OR")),
    **function("bit_xor", "1", _bits("BIT_XOR")),
    **function("max_by", "2", _by("ARG_MAX_NULL")),
    **function("min_by", "2", _by("ARG_MIN_NULL")),
    **function("array_agg collect_list", "1", _collected(once=False)),
    **function("collect_set", "1", _collected(once=True)),
    **function("percentile", "2", _percentile),
    **function("median", "1", _percentile),
    **function("regr_count", "2", _regr_count),
}


# --- windows -----------------------------------------------------------------------------------------------


def _window(duckdb: str, type_: str) -> Rule:
    return lambda made: fixed(made.over(call(duckdb, *(arg.copy() for arg in made.args))), type_)


def _nth_value(made: Call) -> Typed:
    if not made.types[0] or made.number(1, "number") < 1:
        raise Unsuited("the type of its argument is not known", "cast it")
    return fixed(
        made.over(call("NTH_VALUE", made.args[0].copy(), made.args[1].copy())), made.types[0]
    )


def _ntile(made: Call) -> Typed:
    if made.number(0, "number of parts") < 1:
        raise Unsuited("it makes at least one part")
    return fixed(made.over(call("NTILE", made.args[0].copy())), "int")


WINDOWS = {
    **function("ntile", "1", _ntile),
    **function("cume_dist", "0", _window("CUME_DIST", "double")),
    **function("percent_rank", "0", _window("PERCENT_RANK", "double")),
    **function("nth_value", "2", _nth_value),
}
