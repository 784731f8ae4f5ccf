"""What becomes of a table's columns in a batch: which they are, its rows in them, and the table written anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from strandline.engine.base import Engine, LakeSource
from strandline.lake import format_of
from strandline.plan.job import Job
from strandline.sql.nested import NESTED, outer
from strandline.sql.portable import family
from strandline.strategy.changes import METADATA, ChangeSet, Removals, after
from strandline.strategy.conform import conformed, typed, with_hash
from strandline.strategy.evolution import AddColumn, Fill, SchemaChange, new_names, rewrites
from strandline.strategy.fit import Fit, Policy, Stored, fit
from strandline.strategy.widening import VOID
from strandline.types import Column, Relation, Schema, Table, TableState


def shape_of(job: Job, rows: Schema, place: Table, state: TableState | None) -> Fit:
    """The columns that a table has after rows of these columns came, as the node and the format allow."""
    foreign = tuple(job.foreign_columns.values())  # found by strandline, whatever the rows bring
    stored = Stored(state.schema, (*state.system, *foreign), state.required) if state else None
    write, limits = job.node.write, format_of(place).limits
    policy = Policy(limits, job.node.evolution, write.relax_not_null, METADATA)
    return fit(rows, stored, place.label, policy)


def as_fitted(engine: Engine, rows: Relation, shape: Fit) -> Relation:
    """The rows without columns that the table does not get, nested values in the shape that it gives them."""
    dropped = [c.name for c in rows.schema if c.type != VOID and c.name not in shape.columns]
    nested = Schema(tuple(c for c in shape.columns if outer(c.type) in NESTED or _texted(rows, c)))
    tree = conformed(rows, nested, drop=dropped)
    return rows if tree is None else engine.query(tree)


def _texted(rows: Relation, column: Column) -> bool:
    come = rows.schema.get(column.name)
    return come is not None and column.type == "string" and family(come.type) == outer(come.type)


def widened(engine: Engine, rows: Relation, columns: Schema, roles: Mapping[str, str]) -> Relation:
    """Stored rows in wider types, with the hash that such rows have."""
    tree = conformed(rows, columns)
    if tree is None:
        return rows
    found, name = engine.query(tree), roles.get("row_hash")
    others = [(c.type, found.schema.get(c.name)) for c in rows.schema]
    if name is None or all(now and family(old) == family(now.type) for old, now in others):
        return found
    return engine.query(with_hash(found, name, found.schema.without(*roles.values())))


def rewritten(engine: Engine, place: Table, state: TableState, changes: ChangeSet) -> ChangeSet:
    """The whole table as it will be, in its new columns: for formats that cannot change them without its rows."""
    new = [c.column for c in changes.evolves if isinstance(c, AddColumn)]
    columns = typed(state.schema, changes.columns).plus(*new)
    stored = engine.scan(LakeSource(place, state.version)).relation
    stored = widened(engine, stored, columns, state.roles)
    rows = engine.query(after(replace(changes, columns=columns), stored))
    return replace(
        changes,
        additions=rows,
        columns=columns,
        removals=Removals.EVERYTHING,
        partition_by=state.partition_by,
        roles={**state.roles, **changes.roles},
        seen=state.version if changes.base is None else None,
        rewrites=True,
    )


def writes_anew(engine: Engine, place: Table, changes: ChangeSet) -> bool:
    """Tell whether the whole table is written, so that its columns come in the commit of the rows."""
    adds_only = changes.inserts_only
    if rewrites(changes.evolves, format_of(place).limits, adds_only=adds_only):
        return True
    carried = adds_only and not changes.partition_by
    merges = place.format in engine.merges_columns
    return bool(new_names(changes.evolves)) and not (carried or merges)


def evolution(
    fit_: Fit, system: Mapping[str, Column], state: TableState | None
) -> tuple[SchemaChange, ...]:
    """What becomes of the columns of a table that is there: those of the rows, and those that strandline keeps."""
    if state is None:
        return ()
    kept = [AddColumn(c, role) for role, c in system.items()]
    filled = [Fill(c.name) for role, c in system.items() if role == "deleted"]
    return (*fit_.changes, *kept, *filled)
