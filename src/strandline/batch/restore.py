"""A table as it was at an earlier version: the change set of a new commit that puts its rows back."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from strandline.engine.base import Engine, LakeSource
from strandline.lake import parent_of
from strandline.sql.expr import OUTER, cast, col, lit, named, rows_of, same_keys, select, table
from strandline.sql.portable import family
from strandline.strategy import append as appending
from strandline.strategy.changes import ChangeSet, Removals
from strandline.strategy.conform import reshaped, with_hash
from strandline.types import Counts, Relation, Table, TableState


def without(
    place: Table, engine: Engine, state: TableState, version: int, keys: Sequence[str] = ()
) -> ChangeSet:
    """The rows from before a version in place of all there are, in the columns that the table has by now.

    `keys` tell which row of then is which row of now: it is changed back, not taken away and brought again.
    """
    now = engine.scan(LakeSource(place, state.version)).relation
    before = parent_of(place, version)
    if before is None:
        rows = engine.query(rows_of(now).limit(0))
    else:
        then = engine.scan(LakeSource(place, before)).relation
        rows = _rehashed(engine, then, engine.query(_reshaped(then, state)), state)
    come, go = (int(n) for n in engine.fetch(appending.difference(rows, now, state.schema))[0])
    back = (
        _new(engine, rows, now, [*keys, *filter(None, [state.roles.get("valid_from")])])
        if keys and come
        else come
    )
    changed = min(come - back, go)
    return _changes(
        rows, state, Counts(inserted=come - changed, updated=changed, deleted=go - changed)
    )


def _rehashed(engine: Engine, then: Relation, rows: Relation, state: TableState) -> Relation:
    """The rows with the hash of their types of today, where these say something else than those of then."""
    name = state.roles.get("row_hash")
    wide = [
        c
        for c in then.schema
        if (now := state.schema.get(c.name)) and family(now.type) != family(c.type)
    ]
    if name is None or not wide:
        return rows
    return engine.query(with_hash(rows, name, state.schema.without(*state.system)))


def _new(engine: Engine, rows: Relation, now: Relation, keys: Sequence[str]) -> int:
    """How many rows have a key that the table has not now."""
    there = select(lit(1)).from_(table(now.name, "n")).where(same_keys(keys, "n", OUTER))
    new = (
        select(exp.Count(this=exp.Star()))
        .from_(table(rows.name, OUTER))
        .where(exp.Not(this=exp.Exists(this=there)))
    )
    return int(engine.fetch(new)[0][0])


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
        value = reshaped(col(old.name), old.type, c.type) if old else cast(missing, c.type)
        values.append(named(value, c.name))
    return select(*values).from_(table(then.name))


def _changes(rows: Relation, state: TableState, counts: Counts) -> ChangeSet:
    everything = Removals.EVERYTHING
    return ChangeSet(
        rows,
        state.schema,
        everything,
        (),
        state.partition_by,
        state.roles,
        counts,
        base=state.version,
    )
