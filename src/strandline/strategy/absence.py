"""How absence is known: by a snapshot, by the live source's keys, inside a window, or because a change says so.

Never by an increment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from strandline.errors import UnknownColumn
from strandline.sql.expr import all_of, any_of, cast, col, eq, is_null, lit, named, select, table
from strandline.sql.portable import checked_cast
from strandline.types import Arrivals, Changes, Column, LiveKeys, Relation, Schema, Snapshot, Window

Telling = Snapshot | Window | LiveKeys | Changes | Arrivals
"""The evidence that tells of absence: never an increment."""


@dataclass(frozen=True)
class Absence:
    """Evidence, and what limits it."""

    evidence: Telling
    seen: Relation | None  # the keys that are known to be there; None: those of the slice itself
    scope: exp.Expr | None = None  # over the stored row: which rows are in question
    among: exp.Expr | None = None  # over the stored row: which rows the deletes are a share of
    notes: Relation | None = None  # what earlier runs noted: key_hash, state, streak
    confirm: int = 1
    fresh: bool = True  # is this evidence newer than the last run's?
    result: bool = False  # the rows are the whole result of a query: one with a NULL in its key is an answer too

    @property
    def live(self) -> bool:
        return isinstance(self.evidence, LiveKeys)

    @property
    def announced(self) -> bool:
        """Do the slice's rows say all that is known? Then the rest of the table is not looked at."""
        return isinstance(self.evidence, Changes | Arrivals)

    @property
    def arrivals(self) -> bool:
        """Does nothing look for deletes, so that only what has come since the last batch shows presence?"""
        return isinstance(self.evidence, Arrivals)


def seen_keys(absence: Absence, keys: Sequence[Column]) -> exp.Select:
    """The keys that are there, each once, in the table's types; one that does not fit is an error that names it.

    A live source's keys must fit as they are: 1.5 is not the key 1. Rows of the slice were cast by the node itself.
    """
    rows = absence.seen
    assert rows is not None
    values = []
    for key in keys:
        found = rows.schema.get(key.name)
        if found is None:
            raise UnknownColumn(key.name, rows.schema.names, where="detect_deletes, keys")
        typed_key = checked_cast(
            col(found.name), found.type, key.type, key.name, exact=absence.live
        )
        values.append(named(typed_key, key.name))
    typed = select(*values).from_(table(rows.name))
    names = [col(k.name) for k in keys]
    there = select(*names, named(exp.true(), "_strandline_there")).from_(typed.subquery("k"))
    return there.where(all_of(exp.Not(this=is_null(n.copy())) for n in names)).group_by(
        *(n.copy() for n in names)
    )


def window_scope(bounds: Mapping[str, tuple[Any, Any]], target: Schema) -> exp.Expr | None:
    """Both bounds included, on every watermark column that the table has; None when it has none of them."""
    parts = []
    for name, (low, high) in bounds.items():
        column = target.get(name)
        if column is not None:
            parts.append(
                exp.Between(
                    this=col(column.name),
                    low=cast(lit(low), column.type),
                    high=cast(lit(high), column.type),
                )
            )
    return all_of(parts) if parts else None


def partition_scope(columns: Sequence[Column], present: Sequence[Sequence[Any]]) -> exp.Expr:
    """Only rows of partitions that the slice holds are in question."""
    return any_of(
        all_of(
            is_null(col(c.name)) if value is None else eq(col(c.name), cast(lit(value), c.type))
            for c, value in zip(columns, values, strict=True)
        )
        for values in present
    )
