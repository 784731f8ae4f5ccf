"""How the rows to write and the table that is there fit together. Columns are added, never dropped."""

from __future__ import annotations

import re
from dataclasses import dataclass

from strandline.errors import TableError
from strandline.sql.nested import NESTED, outer, parts
from strandline.sql.portable import family
from strandline.types import Column, Schema

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
VOID = "void"  # the type of a column of which no value is known
_STORED = {
    *_INTEGERS, "float", "double", "decimal", "string", "boolean", "binary", "date", "timestamp", "timestamp_ntz",
}  # fmt: skip
_FORBIDDEN = set(" ,;{}()\n\t=")
_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}


@dataclass(frozen=True)
class Fit:
    """The table's columns after this batch: those it had, then the new ones."""

    columns: Schema
    added: tuple[Column, ...] = ()
    kept: tuple[Column, ...] = ()


def fit(rows: Schema, target: Schema | None, system: tuple[str, ...], label: str) -> Fit:
    """Final = target ∪ new; a column whose type the table cannot hold is an error before anything is written."""
    carried = rows
    rows = Schema(
        tuple(c for c in rows if c.type != VOID)
    )  # added with its first value, which says its type
    _refuse_names(rows, label)
    _refuse_types(rows, label)
    if target is None:
        return Fit(rows)
    ours = target.without(*system)
    added = tuple(c for c in rows if c.name not in target)
    kept = tuple(c for c in ours if c.name not in carried)
    for have in ours:
        come = rows.get(have.name)
        if come and not holds(have.type, come.type):
            raise TableError(
                f"{label}: column `{have.name}` is {have.type} in the table, but the rows bring {come.type}",
                hint=f"add a cast step: {{operation: cast, params: {{columns: {{{come.name}: {have.type}}}}}}}",
            )
    return Fit(ours.plus(*added), added, kept)


def _refuse_names(rows: Schema, label: str) -> None:
    """Delta tables without column mapping, which the in-process engine cannot write, know some names not at all."""
    for c in rows:
        if bad := _FORBIDDEN & set(c.name):
            shown = ", ".join(repr(b) for b in sorted(bad))
            raise TableError(
                f"{label}: a Delta table cannot have a column called `{c.name}`: its name holds {shown}",
                hint=f"add a rename step: {{operation: rename, params: {{columns: {{'{c.name}': {_plain(c.name)}}}}}}}",
            )


def _refuse_types(rows: Schema, label: str) -> None:
    """Every type is one that each engine reads back as it was written."""
    for c in rows:
        if not _storable(c.type):
            instead = "timestamp_ntz" if outer(c.type) == "timestamp_ns" else "string"
            raise TableError(
                f"{label}: column `{c.name}` is {c.type}, which a table cannot hold",
                hint=f"add a cast step: {{operation: cast, params: {{columns: {{{c.name}: {instead}}}}}}}",
            )


def _storable(type_: str) -> bool:
    kind = outer(type_)
    return all(_storable(part) for _, part in parts(type_)) if kind in NESTED else kind in _STORED


def _plain(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_") or "column"


def holds(wide: str, narrow: str) -> bool:
    """Can every value of type `narrow` be stored as `wide` without loss?"""
    if wide == narrow:
        return True
    w, n = family(wide), family(narrow)
    if w == n == "integer":
        return _INTEGERS.index(wide) >= _INTEGERS.index(narrow)
    if w == n == "float":
        return wide == "double"
    if w == "decimal" and n in ("decimal", "integer"):
        (wp, ws), (np, ns) = (
            _decimal(wide),
            _decimal(narrow) if n == "decimal" else (_DIGITS[narrow], 0),
        )
        return ws >= ns and wp - ws >= np - ns
    return (w, n) == ("timestamp_ntz", "date") or n == VOID


def _decimal(type_: str) -> tuple[int, int]:
    found = re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", type_)
    return (int(found[1]), int(found[2])) if found else (10, 0)
