"""For jobs written by hand: which columns a table has after new rows, and what it gets. None is ever dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import getLogger
from pathlib import Path

from sqlglot.errors import SqlglotError

from strandline.errors import TableError, UsageError
from strandline.lake import describe, format_of
from strandline.sql.expr import data_type
from strandline.strategy.evolution import AddColumn
from strandline.strategy.fit import Policy, Stored, fit
from strandline.types import Column, Schema, Table

_log = getLogger("strandline")


def new_columns(target: Sequence[str], source: Sequence[str]) -> list[str]:
    """The columns that only the source has, in its order; case does not matter."""
    there = {name.casefold() for name in target}
    return [name for name in source if name.casefold() not in there]


def removed_columns(target: Sequence[str], source: Sequence[str]) -> list[str]:
    """The columns that only the target has, in its order."""
    return new_columns(source, target)


def final_columns(target: Sequence[str], source: Sequence[str]) -> list[str]:
    """The target's columns after rows of the source: those it had, then the new ones."""
    return [*target, *new_columns(target, source)]


def select_columns(target: Sequence[str], source: Sequence[str]) -> list[str]:
    """What to select from the source, one expression for each final column: NULL for what it lacks."""
    there = {name.casefold() for name in source}
    found = []
    for name in final_columns(target, source):
        quoted = '"' + name.replace('"', '""') + '"'
        found.append(quoted if name.casefold() in there else f"NULL AS {quoted}")
    return found


def evolve(
    table: object,
    add_columns: Sequence[Mapping[str, str]],
    drop_columns: Sequence[str] | None = None,
) -> bool:
    """Add columns (`{"name": …, "type": …}`) to a table, optional ones at the end; True when there were any to add.

    The table is a path, a name in the catalog of the Spark session, or an object with `.identifier`. A type that the
    table has not becomes text, with a warning. A request to drop columns is an error.
    """
    if drop_columns:
        raise UsageError(
            f"Column drops not supported: {', '.join(drop_columns)}",
            hint="columns that the source no longer has stay, and are NULL in new rows",
        )
    place = _place(table)
    state = describe(place)
    if state is None:
        raise TableError(f"{place.label}: there is no table", hint="write its first rows")
    wanted = Schema(tuple(Column(c["name"], _type(c)) for c in add_columns))
    limits = format_of(place).limits
    shape = fit(wanted, Stored(state.schema, required=state.required), place.label, Policy(limits))
    for told in shape.warnings:
        _log.warning("%s", told)
    if other := [c.told for c in shape.changes if not isinstance(c, AddColumn)]:
        raise TableError(
            f"{place.label}: the table has these columns in other types: {'; '.join(other)}",
            hint="evolve adds columns; write rows of the wider type with a node, which widens them",
        )
    new = [c.column for c in shape.changes if isinstance(c, AddColumn)]
    if new:
        format_of(place).add_columns(place, new)
    return bool(new)


def _type(column: Mapping[str, str]) -> str:
    """A type in Spark's words; one that cannot be read is text."""
    try:
        text = data_type(column["type"]).sql(dialect="spark").lower()
    except SqlglotError:
        name, type_ = column["name"], column["type"]
        _log.warning("column `%s` is %s, which is no type: kept as text", name, type_)
        return "string"
    return str(text).replace(", ", ",").replace(": ", ":")


def _place(table: object) -> Table:
    name = str(getattr(table, "identifier", table))
    if "/" in name and "://" not in name:
        return Table(name, str(Path(name).absolute()))
    from strandline.engine.spark.frames import Frames

    return Frames.of_session().place(table)
