"""The meaning of schema evolution, in plain Python: which columns a table has after a batch, and its values in them.

Columns are ordered lists of names and types in Spark's words. What a table format lets become wider is a set of words:
`integer`, `float`, `precision` and `scale` of decimals, `integer to decimal`, `date to timestamp`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal
from typing import Any

Columns = list[tuple[str, str]]

DELTA = frozenset(
    {"integer", "float", "precision", "scale", "integer to decimal", "date to timestamp"}
)
ICEBERG = frozenset({"integer", "float", "precision"})
_INTEGERS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
_EXACT = Context(prec=200)


class Unfit(Exception):
    """A column whose type no type of the table can hold."""


@dataclass(frozen=True)
class Shape:
    """A type: its kind, and the types inside it by name."""

    kind: str
    inner: tuple[tuple[str, Shape], ...] = ()
    digits: tuple[int, int] = (0, 0)

    @property
    def text(self) -> str:
        """The type as Spark writes it."""
        parts = [
            f"{name}:{shape.text}" if self.kind == "struct" else shape.text
            for name, shape in self.inner
        ]
        if parts:
            return f"{self.kind}<{','.join(parts)}>"
        if self.kind == "decimal":
            return f"decimal({self.digits[0]},{self.digits[1]})"
        return self.kind


def shape_of(text: str) -> Shape:
    """A type read from its text."""
    kind, bracket, rest = text.partition("<")
    if bracket:
        parts = list(_split(rest[:-1]))
        if kind == "struct":
            fields = [part.partition(":") for part in parts]
            return Shape(kind, tuple((name, shape_of(inner)) for name, _, inner in fields))
        names = ("element",) if kind == "array" else ("key", "value")
        return Shape(kind, tuple(zip(names, map(shape_of, parts), strict=True)))
    kind, bracket, rest = text.partition("(")
    if bracket:
        precision, scale = rest[:-1].split(",")
        return Shape(kind, digits=(int(precision), int(scale)))
    return Shape(kind)


def _split(text: str) -> Iterator[str]:
    """Parts between commas that stand in no bracket."""
    depth, part = 0, ""
    for sign in text:
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and depth == 0:
            yield part
            part = ""
        else:
            part += sign
    yield part


def union(target: Columns | None, rows: Columns, widens: frozenset[str] = DELTA) -> Columns:
    """The columns of the table, in order and wide enough for the rows; then those that only the rows have."""
    if target is None:
        return list(rows)
    come = {name.casefold(): type_ for name, type_ in rows}
    have = {name.casefold() for name, _ in target}
    return [
        (name, wide(type_, come[name.casefold()], widens) if name.casefold() in come else type_)
        for name, type_ in target
    ] + [(name, type_) for name, type_ in rows if name.casefold() not in have]


def wide(stored: str, come: str, widens: frozenset[str] = DELTA) -> str:
    """The type of a column after rows of another type came; raises `Unfit` where there is none."""
    return _wide(shape_of(stored), shape_of(come), widens).text


def _wide(stored: Shape, come: Shape, widens: frozenset[str]) -> Shape:
    if stored.kind == come.kind and stored.inner:
        return _wide_inner(stored, come, widens)
    found, how = _plain(stored, come)
    if found is None or (found != stored and how not in widens):
        raise Unfit(f"{come.text} in {stored.text}")
    return found


def _wide_inner(stored: Shape, come: Shape, widens: frozenset[str]) -> Shape:
    """Fields are told apart by their names; those that only the rows have come last."""
    brought = {name.casefold(): shape for name, shape in come.inner}
    have = {name.casefold() for name, _ in stored.inner}
    fields = [
        (
            name,
            _wide(shape, brought[name.casefold()], widens) if name.casefold() in brought else shape,
        )
        for name, shape in stored.inner
    ]
    fields += [(name, shape) for name, shape in come.inner if name.casefold() not in have]
    found = replace(stored, inner=tuple(fields))
    if stored.kind == "map" and _fields(found.inner[0][1]) != _fields(stored.inner[0][1]):
        raise Unfit("a key of a map gets no new fields")
    return found


def _fields(shape: Shape) -> int:
    return len(shape.inner) + sum(_fields(inner) for _, inner in shape.inner)


def _plain(stored: Shape, come: Shape) -> tuple[Shape | None, str]:
    """The type that holds both, and how the stored one becomes it."""
    kinds = {stored.kind, come.kind}
    if stored == come:
        return stored, ""
    if kinds <= set(_INTEGERS):
        return max(stored, come, key=lambda s: _INTEGERS[s.kind]), "integer"
    if kinds == {"float", "double"}:
        return Shape("double"), "float"
    if kinds <= {"decimal", *_INTEGERS}:
        return _decimal(stored, come)
    if "date" in kinds and kinds & {"timestamp", "timestamp_ntz"}:
        return (come if stored.kind == "date" else stored), "date to timestamp"
    return None, ""


def _decimal(stored: Shape, come: Shape) -> tuple[Shape | None, str]:
    (p, s), (q, t) = (
        (x.digits if x.kind == "decimal" else (_INTEGERS[x.kind], 0)) for x in (stored, come)
    )
    scale = max(s, t)
    precision = max(p - s, q - t) + scale
    if precision > 38:
        return None, ""
    how = "precision" if scale == s else "scale"
    return Shape("decimal", digits=(precision, scale)), (
        how if stored.kind == "decimal" else "integer to decimal"
    )


def reshaped(value: Any, source: str, target: str) -> Any:
    """A value in a type that holds every value of its own type; fields that it lacks are NULL."""
    return _reshaped(value, shape_of(source), shape_of(target))


def _reshaped(value: Any, source: Shape, target: Shape) -> Any:
    if value is None or source == target:
        return value
    inner = dict(source.inner)
    match target.kind:
        case "struct":
            by_fold = {name.casefold(): name for name in inner}
            return {
                name: _reshaped(value[mine], inner[mine], shape)
                if (mine := by_fold.get(name.casefold()))
                else None
                for name, shape in target.inner
            }
        case "array":
            return [_reshaped(v, inner["element"], target.inner[0][1]) for v in value]
        case "map":
            (_, key), (_, shape) = target.inner
            return [
                (_reshaped(k, inner["key"], key), _reshaped(v, inner["value"], shape))
                for k, v in value
            ]
        case "decimal":
            return Decimal(value).quantize(Decimal(1).scaleb(-target.digits[1]), context=_EXACT)
        case "timestamp_ntz" | "timestamp":
            return _midnight(value, UTC if target.kind == "timestamp" else None)
    return value


def _midnight(value: date, zone: Any) -> datetime:
    return datetime.combine(value, time(), zone)
