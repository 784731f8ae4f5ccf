"""What a read sees of a lake table: which of its rows, and which of its columns are strandline's own.

A table with a delete flag is read as its living rows, a table with versions as the current version of each key that is
not deleted. `include_deleted` and `versions: all` read more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from strandline.config.deletes import SystemColumnsConfig
from strandline.config.model import NodeConfig
from strandline.config.naming import of_node
from strandline.config.reads import ReadConfig
from strandline.config.view_advice import ALL_KEYS, SAY, VALIDITY
from strandline.errors import ReadError, UnknownColumn
from strandline.gold.dimension import real
from strandline.sql.dedupe import newest_per_key
from strandline.sql.expr import all_of, any_of, col, ordered, rows_of
from strandline.strategy.changes import is_true, living
from strandline.types import Relation, Schema, TableState

_FLAGS = ("deleted", "is_current")
_KEYS = ("surrogate_key", "durable_key")  # a dimension is joined by them: readers see them


def seen(read: ReadConfig, state: TableState, label: str) -> TableState:
    """A table with the system columns that the read says it has, where the table itself does not say."""
    if read.system_columns is None:
        return state
    return replace(state, roles=told_roles(read.system_columns, state.schema, state.roles, label))


def told_roles(
    told: SystemColumnsConfig, schema: Schema, stored: Mapping[str, str], label: str
) -> Mapping[str, str]:
    """The system columns of a table by their role: its own, else those that are told."""
    names = told.names()
    for role, name in stored.items():
        if names.get(role, name).casefold() != name.casefold():
            raise ReadError(
                f"{label}: system_columns: the table itself says that `{name}` is its column for `{role}`, "
                f"not `{names[role]}`",
                hint="remove system_columns: strandline knows the system columns of tables that it has written",
            )
    if stored:
        return stored
    for role in told.model_fields_set - {"preset", "prefix"}:
        if names[role] not in schema:
            raise UnknownColumn(names[role], schema.names, where=f"{label}: system_columns, {role}")
    found = {role: c.name for role, name in names.items() if (c := schema.get(name))}
    if not any(role in found for role in _FLAGS):
        wanted = " nor ".join(f"`{names[role]}`" for role in _FLAGS)
        raise ReadError(
            f"{label}: system_columns: there is neither {wanted}, so no row could be left out",
            hint="name the columns: system_columns: {deleted: …} or {is_current: …, valid_from: …, valid_to: …}",
        )
    for role in _FLAGS:
        column = schema.get(found[role]) if role in found else None
        if column and column.type != "boolean":
            raise ReadError(
                f"{label}: system_columns: `{column.name}` has type {column.type}, and a flag is a boolean",
                hint="leave system_columns out, and choose the rows with a filter step or SQL",
            )
    return found


def hidden(node: NodeConfig, alias: str, roles: Mapping[str, str]) -> tuple[str, ...]:
    """The system columns that a node does not see: all but those it names, and the flag of deleted rows it asks for."""
    naming = of_node(node, alias)
    asked = {"deleted"} if naming.read.with_deleted else set()
    asked |= {"skeleton"} if naming.read.include_members else set()
    shown = {*asked, *_KEYS}
    return tuple(
        name for role, name in roles.items() if role not in shown and naming.place(name) is None
    )


def check_view(node: NodeConfig, alias: str, roles: Mapping[str, str], label: str) -> None:
    """Refuse what validation could not know: how a table is written that no node of the project writes."""
    naming = of_node(node, alias)
    read, start = naming.read, roles.get("valid_from")
    if "is_current" not in roles:
        return
    if read.versions is None:
        for role in VALIDITY:
            if role in roles and naming.place(roles[role]):
                raise ReadError(
                    f"{node.name}: `{roles[role]}` tells when a version of {label} is valid, and the read does not say "
                    "which versions it wants",
                    hint=SAY,
                )
    keys = {k.casefold() for k in read.feed.primary_keys} if read.feed else set()
    if read.versions == "all" and read.feed and start and start.casefold() not in keys:
        raise ReadError(
            f"{node.name}, {label}: {ALL_KEYS.format(start)}", hint="add it to primary_keys"
        )


def chosen(read: ReadConfig, roles: Mapping[str, str]) -> exp.Expr | None:
    """Which stored rows are read, as far as each row says it itself; None: all of them."""
    members = members_left_out(read, roles)
    parts: list[exp.Expr] = [] if members is None else [exp.Paren(this=members)]
    if not read.with_deleted and any(role in roles for role in _FLAGS):
        parts.append(living(roles))
    return all_of(parts) if parts else None


def members_left_out(read: ReadConfig, roles: Mapping[str, str]) -> exp.Expr | None:
    """The rows of a dimension that its source has brought; None where all rows are read."""
    return None if read.include_members else real(roles)


def by_last(read: ReadConfig, roles: Mapping[str, str]) -> bool:
    """Is the last version of each key read, deleted or not? No row tells that of itself."""
    return "is_current" in roles and read.include_deleted and read.versions != "all"


def last_versions(
    rows: Relation,
    roles: Mapping[str, str],
    keys: Sequence[str],
    unseen: Sequence[str],
    members: exp.Expr | None = None,
) -> exp.Select:
    """Of each key the current version, or the last one if it is deleted."""
    last = newest_per_key(rows, keys, [ordered(col(roles["valid_from"]), desc=True)])
    there = any_of([is_true(col(roles[role])) for role in _FLAGS if role in roles])
    wanted = all_of([exp.Paren(this=there), *([members] if members is not None else [])])
    return rows_of(rows, rows.schema.without(*unseen)).from_(last.subquery("v")).where(wanted)
