"""The columns of a database read: how each is asked for, how it travels, and as what it arrives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from strandline.errors import ReadError
from strandline.types import Column, Schema

DIGITS = 38  # of the widest decimal


@dataclass(frozen=True)
class WireColumn:
    """A column as it travels (`wire`) and as it arrives (`type`)."""

    name: str
    type: str
    wire: str
    expression: exp.Expr
    filtered: exp.Expr | None = None  # what a filter compares, where that is another expression


def refuse_unheld(columns: Sequence[WireColumn], label: str) -> None:
    """Refuse columns whose names differ only in case, and decimals that are wider than a table can hold."""
    Schema(tuple(Column(c.name, c.type) for c in columns))
    for c in columns:
        wide = re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", c.type)
        if wide and int(wide[1]) > DIGITS:
            fits = f"decimal({DIGITS},{min(int(wide[2]), DIGITS)})"
            raise ReadError(
                f"{label}: column `{c.name}` is {c.type}, and a decimal has at most {DIGITS} digits",
                hint=f"read it with a query: SELECT …, CAST({c.name} AS {fits}) AS {c.name} FROM …",
            )
