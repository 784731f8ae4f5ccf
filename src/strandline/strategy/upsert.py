"""upsert (SCD1): one row per key; what is unchanged is dropped, what changed replaces the stored row."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from strandline.errors import UnknownColumn
from strandline.schema.diff import Fit
from strandline.sql.expr import all_of, case, cast, col, eq, lit, named, negate, over, same, same_keys, select, table
from strandline.sql.hash import hashable, row_hash
from strandline.sql.portable import fault
from strandline.strategy.changes import ACTION, METADATA, ROW_HASH, Proposal, Removals
from strandline.types import Column, Relation, Schema

_COPIES, _FOUND, _OLD = "_strandline_copies", "_strandline_found", "_strandline_old_"


def upsert(
    rows: Relation,
    target: Relation | None,
    fit: Fit,
    keys: tuple[str, ...],
    *,
    condition: exp.Expr | None = None,
    hashed: bool = True,
    unique: bool = False,
    partition_by: tuple[str, ...] = (),
) -> Proposal:
    """Compare the slice with the target by key and say of each row: insert, update or unchanged."""
    merged = _merged(rows, target, fit, keys, unique=unique)
    system = (ROW_HASH,) if hashed else ()
    columns = [col(c.name) for c in fit.columns]
    inner = [*columns, named(row_hash(_compared(fit.columns)), ROW_HASH)] if hashed else columns
    extra = [col(_FOUND), *(col(_OLD + c.name) for c in (target.schema if target else Schema(())))]
    hashed_rows = select(*inner, *extra, col(_COPIES)).from_(merged.subquery("m"))
    action = _action(target, fit, rows, keys, condition, hashed=hashed)
    outer = select(*columns, *(col(s) for s in system), named(action, ACTION)).from_(hashed_rows.subquery("h"))
    written = fit.columns.plus(*(Column(s, "bigint") for s in system))
    stored_keys = tuple(c.name for k in keys if (c := fit.columns.get(k)))  # as the table spells them
    return Proposal(outer, written, Removals.REPLACED, stored_keys, partition_by, system, lazy=target is None)


def duplicates(rows: Relation, keys: Sequence[str], limit: int) -> exp.Select:
    """How many keys occur more than once, and the first few of them."""
    columns = [col(k) for k in keys]
    groups = select(*columns).from_(table(rows.name)).group_by(*columns)
    groups = groups.having(exp.GT(this=exp.Count(this=exp.Star()), expression=lit(1)))
    total = named(exp.Window(this=exp.Count(this=exp.Star())), "n")
    order = [exp.Ordered(this=c.copy(), nulls_first=True) for c in columns]
    return select(*(c.copy() for c in columns), total).from_(groups.subquery("g")).order_by(*order).limit(limit)


def _merged(rows: Relation, target: Relation | None, fit: Fit, keys: Sequence[str], *, unique: bool) -> exp.Select:
    """The row as it would be stored: the slice's values, and the stored ones where the slice has no such column."""
    values = [
        named(
            cast(col(come.name, "s"), c.type)
            if (come := rows.schema.get(c.name))
            else col(c.name, "t")
            if target and c.name in target.schema
            else cast(exp.null(), c.type),
            c.name,
        )
        for c in fit.columns
    ]
    copies = lit(1) if unique else over(exp.Count(this=exp.Star()), keys)
    source = select(*(col(n) for n in rows.schema.names), named(copies, _COPIES)).from_(table(rows.name))
    found = col(_FOUND, "t") if target else exp.false()
    old = [named(col(c.name, "t"), _OLD + c.name) for c in (target.schema if target else ())]
    tree = select(*values, named(found, _FOUND), *old, col(_COPIES, "s")).from_(source.subquery("s"))
    if target is None:
        return tree
    stored = select(*(col(n) for n in target.schema.names), named(exp.true(), _FOUND)).from_(table(target.name))
    # the slice's keys take the target's types before they are compared
    on = all_of(
        same(cast(col(k, "s"), c.type), col(c.name, "t")) if (c := target.schema.get(k)) else same_keys([k], "s", "t")
        for k in keys
    )
    return tree.join(stored.subquery("t"), on=on, join_type="left")


def _action(
    target: Relation | None,
    fit: Fit,
    rows: Relation,
    keys: Sequence[str],
    condition: exp.Expr | None,
    *,
    hashed: bool,
) -> exp.Expr:
    duplicate = (exp.GT(this=col(_COPIES), expression=lit(1)), cast(fault("duplicates"), "string"))
    if target is None:
        return case(duplicate, default=lit("insert"))
    missing = (exp.Is(this=col(_FOUND), expression=exp.null()), lit("insert"))
    carried = {c.fold for c in rows.schema} - {k.casefold() for k in keys}
    changing = [c for c in _compared(fit.columns) if c.fold in carried]
    branches: list[tuple[exp.Expr, exp.Expr]] = [duplicate, missing]
    if hashed and ROW_HASH in target.schema:
        # the hash stands for all columns that it can hold, so that only those need to be read from the target
        changing = [c for c in changing if not hashable(c)]
        equal = [eq(col(ROW_HASH), col(_OLD + ROW_HASH)), *_unchanged(changing, target)]
    else:
        equal = _unchanged(changing, target)
    branches.append((all_of(equal), lit("unchanged")))
    if condition is not None:
        refused = negate(exp.Coalesce(this=_bind(condition, fit.columns, target), expressions=[exp.false()]))
        branches.append((refused, lit("unchanged")))
    return case(*branches, default=lit("update"))


def _unchanged(columns: Sequence[Column], target: Relation) -> list[exp.Expr]:
    """NULL-safe equality with the stored value; a column the table does not have yet is stored as NULL."""
    return [
        same(col(c.name), col(_OLD + c.name))
        if c.name in target.schema
        else exp.Is(this=col(c.name), expression=exp.null())
        for c in columns
    ]


def _compared(columns: Schema) -> list[Column]:
    return [c for c in columns if c.fold not in METADATA]


def _bind(condition: exp.Expr, columns: Schema, target: Relation) -> exp.Expr:
    """Point `source.x` and `target.x` of an update_condition to the columns of the merged row."""

    def bind(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column):
            return node
        ours = node.table.casefold() != "target"
        found = columns.get(node.name) or (None if ours else target.schema.get(node.name))
        if found is None:
            raise UnknownColumn(node.name, columns.names, where=f"update_condition, {'source' if ours else 'target'}")
        if ours:
            return col(found.name)
        # a column that this batch brings was NULL until now
        return col(_OLD + found.name) if found.name in target.schema else cast(exp.null(), found.type)

    return exp.Paren(this=condition.copy().transform(bind))
