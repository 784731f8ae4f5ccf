"""Functions of lists (Spark's arrays) and of structs."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from strandline.sql.expr import call, case, cast, eq, lit
from strandline.sql.functions import Call, Function, Rule, Typed, Unsuited, fixed, function, of_type
from strandline.sql.nested import outer, parts
from strandline.sql.numbers import common_type
from strandline.sql.portable import family, fault

_ORDERED = ("integer", "decimal", "text", "boolean", "date", "timestamp", "timestamp_ntz", "float")


def _element(type_: str) -> str:
    """The type of a list's elements."""
    if outer(type_) != "array":
        raise Unsuited(f"it takes an array, and the argument is {of_type(type_)}")
    return parts(type_)[0][1]


def _ordered_element(type_: str) -> str:
    inner = _element(type_)
    if family(inner) not in _ORDERED:
        raise Unsuited(f"it takes an array of plain values, and the argument is {of_type(type_)}")
    return inner


def _exact_element(type_: str) -> str:
    """The same, where equal values are told apart: of 0.0 and -0.0 Spark keeps one or the other."""
    inner = _ordered_element(type_)
    if family(inner) == "float":
        raise Unsuited("it compares doubles", "cast them to decimal")
    return inner


def _value(made: Call, index: int, inner: str) -> exp.Expr:
    """An argument as an element of a list."""
    type_ = made.types[index]
    if type_ != "void" and common_type([type_, inner]) != inner:
        raise Unsuited(
            f"it takes a value of type {inner}, found one {of_type(type_)}", f"cast it to {inner}"
        )
    return cast(made.args[index].copy(), inner)


def _array(made: Call) -> Typed:
    inner = common_type(made.types) if made.types else None
    if not inner or inner == "void":
        raise Unsuited("no type is known that holds its arguments", "cast them to one type")
    return fixed(
        call("LIST_VALUE", *(cast(arg.copy(), inner) for arg in made.args)), f"array<{inner}>"
    )


def _over(names: str, result: str, build: Callable[[exp.Expr], exp.Expr]) -> dict[str, Function]:
    """A function of one list; a result of `=` is the list's type, of `.` that of its elements."""

    def rule(made: Call) -> Typed:
        inner = _ordered_element(made.types[0])
        type_ = {"=": made.types[0], ".": inner}.get(result, result)
        return fixed(build(made.args[0].copy()), type_)

    return function(names, "1", rule)


def _with_value(names: str, result: str, duckdb: str) -> dict[str, Function]:
    """A function of a list and a value of its elements' type."""

    def rule(made: Call) -> Typed:
        inner = _ordered_element(made.types[0])
        type_ = made.types[0] if result == "=" else result
        return fixed(call(duckdb, made.args[0].copy(), _value(made, 1, inner)), type_)

    return function(names, "2", rule)


def _pair(names: str, result: str, duckdb: str) -> dict[str, Function]:
    """A function of two lists of one type."""

    def rule(made: Call) -> Typed:
        _exact_element(made.types[0])
        if made.types[0] != made.types[1]:
            raise Unsuited(
                f"it takes two arrays of one type, found {made.types[0]} and {made.types[1]}"
            )
        type_ = made.types[0] if result == "=" else result
        return fixed(call(duckdb, made.args[0].copy(), made.args[1].copy()), type_)

    return function(names, "2", rule)


def _size(made: Call) -> Typed:
    _element(made.types[0])
    return fixed(call("LEN", made.args[0].copy()), "int")


def _element_at(*, safe: bool) -> Rule:
    def rule(made: Call) -> Typed:
        type_ = made.types[0]
        inner, many, place = _element(type_), made.args[0].copy(), made.fit(1, "int")
        found = call("LIST_EXTRACT", many, place)
        zero = (eq(place.copy(), lit(0)), cast(fault("element_at"), inner))
        if safe:
            return fixed(case(zero, default=found), inner)
        outside = exp.GT(this=exp.Abs(this=place.copy()), expression=call("LEN", many.copy()))
        return fixed(case(zero, (outside, cast(fault("element_at"), inner)), default=found), inner)

    return rule


def _get(made: Call) -> Typed:
    inner, place = _element(made.types[0]), made.fit(1, "int")
    inside = exp.GTE(this=place.copy(), expression=lit(0))
    found = call("LIST_EXTRACT", made.args[0].copy(), exp.Add(this=place, expression=lit(1)))
    return fixed(case((inside, found), default=exp.null()), inner)


def _sort_array(made: Call) -> Typed:
    _ordered_element(made.types[0])
    up = True
    if len(made) == 2:
        last = made.args[1].unnest()
        if not isinstance(last, exp.Boolean):
            raise Unsuited("its direction is not a literal", "write true or false")
        up = bool(last.this)
    order = [lit("ASC"), lit("NULLS FIRST")] if up else [lit("DESC"), lit("NULLS LAST")]
    return fixed(call("LIST_SORT", made.args[0].copy(), *order), made.types[0])


def _array_join(made: Call) -> Typed:
    if made.types[0] != "array<string>":
        raise Unsuited(f"it takes an array of text, and the argument is {of_type(made.types[0])}")
    many, mark = made.args[0].copy(), made.fit(1, "text")
    if len(made) == 2:
        return fixed(call("strandline_list_text", many, mark), "string")
    return fixed(call("strandline_list_text_with", many, mark, made.fit(2, "text")), "string")


def _slice(made: Call) -> Typed:
    """So many elements from a place on; from the end where it is negative."""
    _element(made.types[0])
    start, length = made.number(1, "start"), made.number(2, "length")
    if not start or length < 0:
        raise Unsuited("a slice starts at 1 or before the end, and has no negative length")
    return fixed(
        call("strandline_slice", made.args[0].copy(), lit(start), lit(length)), made.types[0]
    )


def _array_repeat(made: Call) -> Typed:
    inner = made.types[0]
    if not inner or inner == "void":
        raise Unsuited("the type of its argument is not known", "cast it")
    return fixed(
        call("strandline_list_repeat", made.args[0].copy(), made.fit(1, "int")), f"array<{inner}>"
    )


def _flatten(made: Call) -> Typed:
    inner = _element(made.types[0])
    _element(inner)
    return fixed(call("strandline_flat", made.args[0].copy()), inner)


def _sequence(made: Call) -> Typed:
    """Whole numbers from one to another, both included, upwards or downwards."""
    if set(made.types) - {"int", "bigint"}:
        raise Unsuited(f"it takes whole numbers, found {' and '.join(made.types)}")
    inner = common_type(made.types) or "int"
    first, last = (cast(made.args[n].copy(), inner) for n in (0, 1))
    return fixed(call("strandline_sequence", first, last), f"array<{inner}>")


def _named_struct(made: Call) -> Typed:
    if len(made) % 2:
        raise Unsuited("it takes names and values in turn")
    names = [made.written(n, "name") for n in range(0, len(made), 2)]
    return _struct_of(names, made, range(1, len(made), 2))


def _struct_of(names: list[str], made: Call, places: range) -> Typed:
    types = [made.types[n] for n in places]
    if any(not t or t == "void" for t in types):
        raise Unsuited("the type of one of its values is not known", "cast it")
    if len({name.casefold() for name in names}) != len(names):
        raise Unsuited("two of its names are alike")
    fields = [
        exp.PropertyEQ(
            this=exp.to_identifier(name, quoted=True), expression=cast(made.args[n].copy(), type_)
        )
        for name, n, type_ in zip(names, places, types, strict=True)
    ]
    shown = ",".join(f"{name}:{type_}" for name, type_ in zip(names, types, strict=True))
    return Typed(exp.Struct(expressions=fields), f"struct<{shown}>")


def _distinct(made: Call) -> Typed:
    _exact_element(made.types[0])
    return fixed(call("strandline_distinct", made.args[0].copy()), made.types[0])


LISTS = {
    **function("array", "1-", _array),
    **function("size cardinality", "1", _size),
    **_over("array_size", "int", lambda many: call("LEN", many)),
    **_with_value("array_contains", "boolean", "strandline_contains"),
    **_with_value("array_position", "bigint", "strandline_position"),
    **_with_value("array_remove", "=", "strandline_removed"),
    **_with_value("array_append", "=", "strandline_appended"),
    **_with_value("array_prepend", "=", "strandline_prepended"),
    **function("element_at", "2", _element_at(safe=False)),
    **function("try_element_at", "2", _element_at(safe=True)),
    **function("get", "2", _get),
    **function("sort_array", "1-2", _sort_array),
    **_over("array_sort", "=", lambda many: call("LIST_SORT", many, lit("ASC"), lit("NULLS LAST"))),
    **function("array_distinct", "1", _distinct),
    **_over("array_compact", "=", lambda many: call("strandline_compact", many)),
    **_over("array_max", ".", lambda many: call("LIST_MAX", many)),
    **_over("array_min", ".", lambda many: call("LIST_MIN", many)),
    **_pair("array_union", "=", "strandline_union"),
    **_pair("array_except", "=", "strandline_except"),
    **_pair("array_intersect", "=", "strandline_intersect"),
    **_pair("arrays_overlap", "boolean", "strandline_overlap"),
    **function("array_join", "2-3", _array_join),
    **function("array_repeat", "2", _array_repeat),
    **function("flatten", "1", _flatten),
    **function("slice", "3", _slice),
    **function("sequence", "2", _sequence),
    **function("named_struct", "2-", _named_struct),
}
