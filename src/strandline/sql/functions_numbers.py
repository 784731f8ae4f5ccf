"""Functions of numbers and of logic."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from strandline.sql.expr import call, case, cast, eq, is_null, lit, negate, same
from strandline.sql.functions import (
    Call,
    Rule,
    Typed,
    Unsuited,
    fixed,
    function,
    native,
    of_type,
    plain,
)
from strandline.sql.numbers import bounded_decimal, common_type, digits
from strandline.sql.portable import family, fault

_ZERO = cast(lit(0), "double")
_NAN = cast(lit("NaN"), "double")


def _above(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    return exp.GT(this=left.copy(), expression=right.copy())


def _below(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    return exp.LT(this=left.copy(), expression=right.copy())


# --- logic -------------------------------------------------------------------------------------------------


def _isnan(made: Call) -> Typed:
    if family(made.types[0]) not in ("float", "void"):
        raise Unsuited(
            f"it takes a float or a double, and the argument is {of_type(made.types[0])}"
        )
    value = made.fit(0, "double")
    return fixed(exp.Coalesce(this=call("ISNAN", value), expressions=[exp.false()]), "boolean")


def _nvl2(made: Call) -> Typed:
    type_ = _one_type(made, 1, 2)
    return fixed(
        case((is_null(made.args[0].copy()), made.args[2].copy()), default=made.args[1].copy()),
        type_,
    )


def _one_type(made: Call, *places: int) -> str:
    """The type that holds some arguments, as CASE chooses it."""
    type_ = common_type(made.types[n] for n in places)
    if not type_ or type_ == "void":
        given = " and ".join(made.types[n] or "?" for n in places)
        raise Unsuited(f"no type is known for both {given}", "cast its arguments to one type")
    return type_


def _equal_null(made: Call) -> Typed:
    kinds = {family(t) for t in made.types} - {"void"}
    if len(kinds) > 1 and not kinds <= {"integer", "decimal", "float"}:
        raise Unsuited(f"it compares {' with '.join(made.types)}", "cast its arguments to one type")
    return fixed(same(made.args[0].copy(), made.args[1].copy()), "boolean")


LOGIC = {
    **function("isnull", "1", lambda made: fixed(is_null(made.args[0].copy()), "boolean")),
    **function(
        "isnotnull", "1", lambda made: fixed(negate(is_null(made.args[0].copy())), "boolean")
    ),
    **function("isnan", "1", _isnan),
    **function("nvl2", "3", _nvl2),
    **function("equal_null", "2", _equal_null),
    **plain(
        "nanvl",
        "double double -> double",
        lambda a, b: case((call("ISNAN", a), b), default=a.copy()),
    ),
}


# --- numbers -----------------------------------------------------------------------------------------------


def _sqrt(x: exp.Expr) -> exp.Expr:
    return case((_below(x, _ZERO), _NAN.copy()), default=call("SQRT", x))


def _sign(x: exp.Expr) -> exp.Expr:
    """Zeros and NaN stay what they are."""
    return case(
        (call("ISNAN", x), x.copy()),
        (_above(x, _ZERO), lit(1)),
        (_below(x, _ZERO), lit(-1)),
        default=x.copy(),
    )


def _java(name: str, *args: exp.Expr) -> exp.Expr:
    """A function of `sql/fdlibm.py`; from Python, NaN comes back as NULL."""
    known = exp.Coalesce(this=call(name, *args), expressions=[_NAN.copy()])
    missing = [(is_null(arg.copy()), exp.null()) for arg in args]
    return case(*missing, default=known)


def _by_java(name: str) -> Callable[..., exp.Expr]:
    return lambda *args: _java(name, *args)


def _logarithm(name: str, x: exp.Expr, least: exp.Expr = _ZERO) -> exp.Expr:
    """NULL where there is none."""
    return case((_above(x, least), _java(name, x)), default=exp.null())


def _log2(x: exp.Expr) -> exp.Expr:
    return call(
        "strandline_quotient",
        _logarithm("strandline_log", x),
        call("strandline_log", cast(lit(2), "double")),
    )


def _log(made: Call) -> Typed:
    if len(made) == 1:
        return fixed(_logarithm("strandline_log", made.fit(0, "double")), "double")
    base, x = (_logarithm("strandline_log", made.fit(n, "double")) for n in (0, 1))
    return fixed(call("strandline_quotient", x, base), "double")


def _same_type(made: Call, *, kinds: tuple[str, ...] = ("integer", "decimal", "float")) -> str:
    type_ = made.types[0]
    if family(type_) not in kinds:
        raise Unsuited(
            f"it takes {' or '.join(kinds)}, and the argument is {of_type(type_)}", "cast it"
        )
    return type_


def _negative(made: Call) -> Typed:
    type_ = _same_type(made)
    return fixed(exp.Neg(this=exp.Paren(this=made.args[0].copy())), type_)


def _positive(made: Call) -> Typed:
    return fixed(made.args[0].copy(), _same_type(made))


def _pmod(made: Call) -> Typed:
    """The remainder with the sign of the divisor."""
    kinds = {family(t) for t in made.types}
    if not kinds <= {"integer", "float"}:
        raise Unsuited(
            f"it takes integers or doubles, found {' and '.join(made.types)}", "cast its arguments"
        )
    type_ = common_type(made.types) or "double"
    a, b = (cast(arg.copy(), type_) for arg in made.args)
    rest = call("strandline_pmod" if family(type_) == "integer" else "strandline_pmod_double", a, b)
    zero = exp.And(this=eq(b.copy(), lit(0)), expression=negate(is_null(a.copy())))
    return fixed(case((zero, cast(fault("division"), type_)), default=rest), type_)


def _factorial(made: Call) -> Typed:
    n = made.fit(0, "int")
    inside = exp.Between(this=n.copy(), low=lit(0), high=lit(20))
    return fixed(case((inside, call("FACTORIAL", n)), default=exp.null()), "bigint")


def _hex(made: Call) -> Typed:
    if family(made.types[0]) == "integer":
        return fixed(call("HEX", made.fit(0, "bigint")), "string")
    if family(made.types[0]) not in ("text", "binary", "void"):
        raise Unsuited(
            f"the argument is {of_type(made.types[0])}", "cast it to bigint, string or binary"
        )
    return fixed(call("HEX", made.fit(0, "binary")), "string")


def _shift(macro: str) -> Rule:
    def rule(made: Call) -> Typed:
        type_ = made.types[0]
        if type_ not in ("int", "bigint"):
            raise Unsuited(
                f"it shifts an int or a bigint, and the argument is {of_type(type_)}", "cast it"
            )
        bits = lit(32 if type_ == "int" else 64)
        return fixed(
            call(macro, cast(made.args[0].copy(), "bigint"), made.fit(1, "int"), bits), type_
        )

    return rule


def _bit_count(made: Call) -> Typed:
    if made.types[0] == "boolean":
        return fixed(made.args[0].copy(), "int")
    return fixed(call("BIT_COUNT", made.fit(0, "bigint")), "int")


def _bit_get(made: Call) -> Typed:
    """The bit at a place, counted from the right; the place has to be inside of the type."""
    width = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}.get(made.types[0])
    if width is None:
        raise Unsuited(f"it takes an integer, and the argument is {of_type(made.types[0])}")
    place = made.number(1, "place of a bit")
    if not 0 <= place < width:
        raise Unsuited(f"there is no bit {place} in {made.types[0]}")
    value = made.fit(0, "bigint")
    return fixed(
        exp.BitwiseAnd(
            this=call("strandline_shiftright", value, lit(place), lit(64)), expression=lit(1)
        ),
        "tinyint",
    )


def _bround(made: Call) -> Typed:
    """Rounded half to even."""
    type_ = _same_type(made, kinds=("decimal",))
    places = made.number(1, "number of places") if len(made) == 2 else 0
    p, s = digits(type_) or (38, 18)
    if places < 0:
        raise Unsuited("it rounds to places before the point")
    result = bounded_decimal(p - s + 1 + min(s, places), min(s, places))
    if places >= s:
        return fixed(made.args[0].copy(), result)
    whole = call(
        "strandline_half_even", call("unscaled", made.args[0].copy()), lit(10 ** (s - places))
    )
    unit = (
        cast(lit("0." + "0" * (places - 1) + "1"), f"decimal({places},{places})")
        if places
        else lit(1)
    )
    return fixed(exp.Mul(this=cast(whole, "decimal(38,0)"), expression=unit), result)


def _tried(kind: type[exp.Binary]) -> Rule:
    """Arithmetic of integers that gives NULL where it would fail."""

    def rule(made: Call) -> Typed:
        kinds = {family(t) for t in made.types}
        whole = set(made.types) <= {"int", "bigint"}
        if not whole and kinds != {"float"}:
            raise Unsuited(
                f"it takes two integers or two doubles, found {' and '.join(made.types)}",
                "cast them",
            )
        type_ = common_type(made.types) or "double"
        if kind is exp.Mod:
            a, b = (cast(arg.copy(), type_) for arg in made.args)
            return fixed(call("strandline_rest", a, exp.Nullif(this=b, expression=lit(0))), type_)
        if kinds == {"float"}:
            return fixed(kind(this=made.fit(0, "double"), expression=made.fit(1, "double")), type_)
        left, right = (call("strandline_wide", cast(arg.copy(), "bigint")) for arg in made.args)
        bits = lit(63 if type_ == "bigint" else 31)
        return fixed(call("strandline_inside", kind(this=left, expression=right), bits), type_)

    return rule


def _try_divide(made: Call) -> Typed:
    if not {family(t) for t in made.types} <= {"integer", "float"}:
        raise Unsuited(
            f"it takes integers or doubles, found {' and '.join(made.types)}", "cast them to double"
        )
    a, b = made.fit(0, "double"), made.fit(1, "double")
    return fixed(call("strandline_quotient", a, exp.Nullif(this=b, expression=lit(0))), "double")


def _width_bucket(v: exp.Expr, low: exp.Expr, high: exp.Expr, count: exp.Expr) -> exp.Expr:
    return call("strandline_bucket", v, low, high, count)


NUMBERS = {
    **plain("sqrt", "double -> double", _sqrt),
    **plain("cbrt", "double -> double", _by_java("strandline_cbrt")),
    **plain("exp", "double -> double", _by_java("strandline_exp")),
    **plain("ln", "double -> double", lambda x: _logarithm("strandline_log", x)),
    **plain("log10", "double -> double", lambda x: _logarithm("strandline_log10", x)),
    **plain("log2", "double -> double", _log2),
    **function("log", "1-2", _log),
    **plain("pow power", "double double -> double", _by_java("strandline_pow")),
    **plain("degrees", "double -> double", native("DEGREES")),
    **plain("radians", "double -> double", native("RADIANS")),
    **plain("pi", "-> double", native("PI")),
    **plain("e", "-> double", lambda: cast(lit("2.718281828459045"), "double")),
    **plain("rint", "double -> double", _by_java("strandline_rint")),
    **plain("sign signum", "double -> double", _sign),
    **function("negative", "1", _negative),
    **function("positive", "1", _positive),
    **function("pmod", "2", _pmod),
    **function("try_add", "2", _tried(exp.Add)),
    **function("try_subtract", "2", _tried(exp.Sub)),
    **function("try_multiply", "2", _tried(exp.Mul)),
    **function("try_mod", "2", _tried(exp.Mod)),
    **function("try_divide", "2", _try_divide),
    **function("factorial", "1", _factorial),
    **function("bround", "1-2", _bround),
    **function("hex", "1", _hex),
    **plain("bin", "bigint -> string", native("BIN")),
    **function("bit_count", "1", _bit_count),
    **function("bit_get getbit", "2", _bit_get),
    **function("shiftleft", "2", _shift("strandline_shiftleft")),
    **function("shiftright", "2", _shift("strandline_shiftright")),
    **function("shiftrightunsigned", "2", _shift("strandline_unsigned")),
    **plain("width_bucket", "double double double bigint -> bigint", _width_bucket),
}
