"""A table as it was at an earlier version: the change set of a new commit that puts its rows back."""

from __future__ import annotations

from sqlglot import exp

from strandline.engine.base import Engine, LakeSource
from strandline.sql.expr import cast, col, named, rows_of, select, table
from strandline.strategy import append as appending
from strandline.strategy.changes import ChangeSet, Counts, Removals
from strandline.types import Relation, Table, TableState


def without(place: Table, engine: Engine, state: TableState, version: int) -> ChangeSet:
    """The rows from before a version in place of all there are, in the columns that the table has by now."""
    now = engine.scan(LakeSource(place, state.version)).relation
    if version == 0:
        rows = engine.query(rows_of(now).limit(0))
    else:
        then = engine.scan(LakeSource(place, version - 1)).relation
        rows = engine.query(_reshaped(then, state))
    come, go = engine.fetch(appending.difference(rows, now, state.schema))[0]
    return _changes(rows, state, Counts(inserted=int(come), deleted=int(go)))


def untouched(state: TableState, held: int) -> ChangeSet:
    """Nothing to put back: the batch had not touched the table."""
    return _changes(Relation("", state.schema), state, Counts(held=held))


def _reshaped(then: Relation, state: TableState) -> exp.Select:
    """Rows in the columns of today: what they had not is NULL, and a flag that they had not is false."""
    flag = state.roles.get("deleted", "").casefold()
    values = []
    for c in state.schema:
        old = then.schema.get(c.name)
        missing = exp.false() if c.fold == flag else exp.null()
        values.append(named(cast(col(old.name) if old else missing, c.type), c.name))
    return select(*values).from_(table(then.name))


def _changes(rows: Relation, state: TableState, counts: Counts) -> ChangeSet:
    everything = Removals.EVERYTHING
    return ChangeSet(rows, state.schema, everything, (), state.partition_by, state.roles, counts, base=state.version)
