"""Which type holds the values of two types, and how a table's type becomes it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from strandline.sql.nested import NESTED, outer, parts
from strandline.sql.portable import family
from strandline.strategy.evolution import AddField, SchemaChange, Widen

INTEGER, FLOAT = "integer", "float"
PRECISION, SCALE = "precision", "scale"
TO_DECIMAL, TO_TIMESTAMP = "integer to decimal", "date to timestamp"
VOID = "void"  # the type of a column of which no value is known
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
_MOST = 38  # digits of a decimal


@dataclass(frozen=True)
class Unfit(Exception):
    """Two types that no type of the table can hold: where they are, and what they are."""

    path: str
    stored: str
    come: str


def meeting(stored: str, come: str, widenings: frozenset[str], path: str) -> str:
    """The type of a stored column after rows of another type came; raises `Unfit` where there is none."""
    if come in (VOID, stored):
        return stored
    kind = outer(stored)
    if kind in NESTED and kind == outer(come):
        return _meeting_inside(stored, come, widenings, path)
    found, how = _plain(stored, come)
    if found is None or (found != stored and how not in widenings):
        raise Unfit(path, stored, come)
    return found


def _meeting_inside(stored: str, come: str, widenings: frozenset[str], path: str) -> str:
    kind, have, brought = outer(stored), parts(stored), parts(come)
    by_fold = {name.casefold(): type_ for name, type_ in brought}
    found = []
    for name, type_ in have:
        theirs = by_fold.pop(name.casefold(), None)
        met = type_ if theirs is None else meeting(type_, theirs, widenings, f"{path}.{name}")
        if kind == "map" and name == "key" and _fields(met) != _fields(type_):
            raise Unfit(path, stored, come)
        found.append((name, met))
    found += [(name, type_) for name, type_ in brought if name.casefold() in by_fold]
    return nested_type(kind, found)


def nested_type(kind: str, inner: list[tuple[str, str]]) -> str:
    """A nested type of its parts, in Spark's words."""
    if kind == "struct":
        return f"struct<{','.join(f'{name}:{type_}' for name, type_ in inner)}>"
    return f"{kind}<{','.join(type_ for _, type_ in inner)}>"


def _fields(type_: str) -> int:
    inner = parts(type_)
    return len(inner) + sum(_fields(t) for _, t in inner)


def _plain(stored: str, come: str) -> tuple[str | None, str]:
    """The type that holds both, and how the stored one becomes it."""
    mine, theirs = family(stored), family(come)
    if mine == theirs == "integer":
        return max(stored, come, key=_INTEGERS.index), INTEGER
    if mine == theirs == "float":
        return "double", FLOAT
    if {mine, theirs} <= {"decimal", "integer"}:
        return _decimal(stored, come)
    if mine == "date" and theirs in ("timestamp", "timestamp_ntz"):
        return come, TO_TIMESTAMP
    if theirs == "date" and mine in ("timestamp", "timestamp_ntz"):
        return stored, TO_TIMESTAMP
    return None, ""


def _decimal(stored: str, come: str) -> tuple[str | None, str]:
    (precision, scale), (theirs, behind) = _digits(stored), _digits(come)
    wide = max(scale, behind)
    digits = max(precision - scale, theirs - behind) + wide
    if digits > _MOST:
        return None, ""
    how = PRECISION if wide == scale else SCALE
    return f"decimal({digits},{wide})", TO_DECIMAL if family(stored) == "integer" else how


def _digits(type_: str) -> tuple[int, int]:
    found = re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", type_)
    return (int(found[1]), int(found[2])) if found else (_DIGITS.get(type_, 10), 0)


def differences(old: str, new: str, path: str) -> Iterator[SchemaChange]:
    """What becomes of a type, part by part: fields that are added, and types that become wider."""
    if old == new:
        return
    kind = outer(new)
    if kind not in NESTED:
        yield Widen(path, old, new)
        return
    have = {name.casefold(): type_ for name, type_ in parts(old)}
    for name, type_ in parts(new):
        inner = f"{path}.{name}"
        stored = have.get(name.casefold())
        if stored is None:
            yield AddField(inner, type_)
        else:
            yield from differences(stored, type_, inner)
