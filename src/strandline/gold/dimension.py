"""Rows of a dimension that no source brings: default members, and skeletons of members that facts know first."""

from __future__ import annotations

import decimal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from sqlglot import exp

from strandline.config.model import NodeConfig
from strandline.config.star import SKELETON, DefaultMembersConfig
from strandline.errors import TransformError, UnknownColumn
from strandline.sql.expr import (
    all_of,
    any_of,
    case,
    cast,
    col,
    eq,
    is_null,
    lit,
    named,
    negate,
    same,
    select,
    table,
)
from strandline.sql.portable import family
from strandline.strategy.changes import ACTION, METADATA, is_true
from strandline.types import Column, Relation, Schema

SINCE = datetime(1900, 1, 1, tzinfo=UTC)
"""When the only version of a default member begins: before anything that facts tell."""
KEY_TYPES = {"surrogate_key": "bigint", "durable_key": "bigint", "skeleton": "boolean"}


def own_columns(node: NodeConfig, nodes: Iterable[NodeConfig]) -> dict[str, str]:
    """The columns that a dimension keeps beside those of its strategy, by their role."""
    write, found = node.write, {}
    if write.surrogate_key is not None:
        found["surrogate_key"] = write.surrogate_key.column
    if write.durable_key is not None:
        found["durable_key"] = write.durable_key
    if any(
        key.dimension == node.name and key.on_missing == "skeleton"
        for other in nodes
        for key in other.foreign_keys
    ):
        found["skeleton"] = SKELETON
    return found


def ordinary(roles: Mapping[str, str]) -> exp.Expr | None:
    """The rows of a dimension that are not default members; None where it can have none."""
    key = roles.get("surrogate_key")
    if key is None:
        return None
    at_least = exp.GTE(this=col(key), expression=lit(0))
    return any_of([is_null(col(key)), at_least])


def real(roles: Mapping[str, str]) -> exp.Expr | None:
    """The rows of a dimension that its source has brought; None where it has no others."""
    found = ordinary(roles)
    if found is None or "skeleton" not in roles:
        return found
    return all_of([exp.Paren(this=found), negate(is_true(col(roles["skeleton"])))])


# --- default members ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Members:
    """The default members of a table, and what its system columns hold in them."""

    config: DefaultMembersConfig
    columns: Schema  # of the table, with the columns that the batch adds
    roles: Mapping[str, str]
    keys: Sequence[str]
    at: datetime
    open_end: datetime | None
    label: str

    def wanted(self) -> exp.Query:
        """The rows as they should be."""
        rows = [select(*self._values(*member)) for member in self.config.members()]
        return exp.union(*rows, distinct=False)

    def differing(self, stored: Relation | None) -> exp.Select:
        """The members that are not in the table as they should be, each with its verb."""
        key, names = self.roles["surrogate_key"], self.columns.names
        wanted = self.wanted().subquery("w")
        if stored is None:
            insert = named(lit("insert"), ACTION)
            return select(*(col(n, "w") for n in names), insert).from_(wanted)
        system = {n.casefold() for n in self.roles.values()}
        told = [c for c in self.columns if c.fold not in system and c.fold not in METADATA]
        differs = any_of(negate(same(col(c.name, "w"), _stored(c, stored))) for c in told)
        missing = is_null(col(key, "t"))
        verb = case((missing, lit("insert")), (differs, lit("update")), default=lit("unchanged"))
        rows = select(*(col(n, "w") for n in names), named(verb, ACTION)).from_(wanted)
        on = eq(col(key, "w"), col(key, "t"))
        return rows.join(table(stored.name, "t"), on=on, join_type="left")

    def _values(self, key: int, text: str, given: Mapping[str, Any]) -> list[exp.Alias]:
        self._check(given)
        by_fold = {name.casefold(): value for name, value in given.items()}
        system = {name.casefold(): role for role, name in self.roles.items()}
        located = {k.casefold() for k in self.keys}
        values = []
        for c in self.columns:
            if c.fold in system:
                tree = self._system(system[c.fold], key)
            elif c.fold in by_fold:
                tree = _literal(by_fold[c.fold])
            elif family(c.type) == "text" and c.fold not in located and c.fold not in METADATA:
                tree = lit(text)
            else:
                tree = exp.null()
            values.append(named(cast(tree, c.type), c.name))
        return values

    def _system(self, role: str, key: int) -> exp.Expr:
        match role:
            case "surrogate_key" | "durable_key":
                return lit(key)
            case "deleted" | "skeleton":
                return exp.false()
            case "is_current":
                return exp.true()
            case "valid_from":
                return lit(SINCE)
            case "valid_to":
                return lit(self.open_end)
            case "last_seen":
                return lit(self.at)
        return exp.null()

    def _check(self, given: Mapping[str, Any]) -> None:
        where = f"{self.label}: default_members"
        system = {n.casefold() for n in self.roles.values()}
        known = [n for n in self.columns.names if n.casefold() not in system]
        folded = {n.casefold() for n in known}
        for name, value in given.items():
            if name.casefold() not in folded:
                raise UnknownColumn(name, known, where=where)
            column = self.columns.get(name)
            if column is not None and not _fits(value, column):
                raise TransformError(
                    f"{where}: {value!r} is not a value of column `{name}`, which is {column.type}",
                    hint="give a value of that type",
                )


def _stored(column: Column, stored: Relation) -> exp.Expr:
    return col(column.name, "t") if column.name in stored.schema else exp.null()


def _literal(value: Any) -> exp.Expr:
    return lit(decimal.Decimal(str(value)) if isinstance(value, float) else value)


_KINDS: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "decimal": (int, float),
    "float": (int, float),
    "text": (str,),
    "boolean": (bool,),
    "date": (date,),
    "timestamp": (date,),
    "timestamp_ntz": (date,),
}


def _fits(value: Any, column: Column) -> bool:
    """Can a value of the YAML stand in a column?"""
    if value is None:
        return True
    kinds = _KINDS.get(family(column.type), ())
    if isinstance(value, bool):
        return bool in kinds
    if isinstance(value, datetime):
        return "timestamp" in column.type
    return isinstance(value, kinds)


# --- skeletons ---------------------------------------------------------------------------------------------


def skeletons(
    missing: Relation, columns: Schema, roles: Mapping[str, str], at: datetime, end: datetime | None
) -> exp.Select:
    """Rows for keys that only facts know: the keys, what strandline keeps of a row, and nothing else."""
    system = {name.casefold(): role for role, name in roles.items()}
    held = {
        "deleted": exp.false(),
        "is_current": exp.true(),
        "valid_from": lit(at),
        "valid_to": lit(end),
        "last_seen": lit(at),
    }
    values = []
    for c in columns:
        role = system.get(c.fold)
        if role is not None:
            tree = held.get(role, exp.null())
        else:
            come = missing.schema.get(c.name)
            tree = col(come.name) if come else exp.null()
        values.append(named(cast(tree, c.type), c.name))
    return select(*values, named(lit("insert"), ACTION)).from_(table(missing.name))
