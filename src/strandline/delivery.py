"""What a hand-written job gets of a Delta table: its rows, or what changed after a version, each with `_change_type`.

Rows that came and are still there are inserts, or updates when their key was there before; a key is deleted when none
of its rows is left. Where the feed cannot be read completely, the two snapshots are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from logging import WARNING

from sqlglot import exp

from strandline.engine import delta_feed, delta_log
from strandline.engine.base import Engine, FeedSource, LakeSource
from strandline.journal import log
from strandline.sql import net
from strandline.sql.dedupe import newest_per_key
from strandline.sql.expr import case, cast, col, eq, lit, named, negate, ordered, rows_of, same_keys, select, table
from strandline.strategy.changes import living
from strandline.types import Relation, Schema, Table, TableState

CHANGE = delta_feed.CHANGE


def snapshot(engine: Engine, lake: Table, state: TableState) -> Relation:
    """The living rows of a table at the version it was described at, without what strandline keeps for itself."""
    return engine.scan(LakeSource(lake, state.version, state.system, _living(state))).relation


def _living(state: TableState) -> exp.Expr | None:
    flagged = "deleted" in state.roles and "is_current" not in state.roles
    return living(state.roles) if flagged else None


def columns_of(state: TableState) -> Schema:
    return state.schema.without(*state.system)


def whole(engine: Engine, lake: Table, state: TableState, keys: Sequence[str]) -> Relation:
    """Every row as an insert; with keys one row of each, the highest of all columns."""
    rows = snapshot(engine, lake, state)
    one = engine.query(newest_per_key(rows, keys, [])) if keys else rows
    return engine.query(_told(one, columns_of(state), lit("insert")))


def nothing(engine: Engine, state: TableState) -> Relation:
    """No change."""
    values = [named(cast(exp.null(), c.type), c.name) for c in columns_of(state)]
    return engine.query(select(*values, named(cast(exp.null(), "string"), CHANGE)).where(exp.false()))


def since(engine: Engine, lake: Table, state: TableState, after: int, keys: Sequence[str]) -> Relation | None:
    """What changed after a version; None when nobody can tell any more."""
    if after == state.version or not delta_feed.changed(lake, after, state.version):
        return nothing(engine, state)
    signed = _signed(engine, lake, state, after)
    if signed is None:
        return None
    columns = columns_of(state)
    moved = engine.query(net.net(signed, columns))
    if keys:
        return engine.query(_by_key(engine, moved, snapshot(engine, lake, state), columns, keys))
    verb = case((eq(col(net.SIGN), lit(1)), lit("insert")), default=lit("delete"))
    return engine.query(_told(moved, columns, verb))


def _signed(engine: Engine, lake: Table, state: TableState, after: int) -> exp.Query | None:
    """The rows that moved: by the feed, else by the snapshots before and after."""
    columns = columns_of(state)
    gap = delta_feed.gap(lake, after, state.version, vectors=engine.dialect == "spark")
    if gap is None:
        feed = FeedSource(lake, after, state.version, columns, _living(state))
        return net.of_feed(engine.scan(feed).relation, columns)
    then = None
    if after >= 0:
        if not delta_feed.readable(lake, after):
            return None
        before = delta_log.describe_at(lake, after)
        if before.table_id != state.table_id:
            return None
        then = snapshot(engine, lake, before)
    log.log(WARNING, "%s: its change feed cannot be read: %s; its snapshots are compared instead", lake.label, gap)
    return net.of_snapshots(then, snapshot(engine, lake, state), columns)


def _told(rows: Relation, columns: Schema, verb: exp.Expr) -> exp.Select:
    return select(*(col(c.name) for c in columns), named(verb, CHANGE)).from_(table(rows.name))


def _by_key(engine: Engine, moved: Relation, now: Relation, columns: Schema, keys: Sequence[str]) -> exp.Query:
    """One row per key: the newest that came, else what is left of the key, else its delete."""
    spelled = [c.name if (c := columns.get(k)) else k for k in keys]
    sides = {sign: engine.query(rows_of(moved).where(eq(col(net.SIGN), lit(sign)))) for sign in (1, -1)}
    newest = [ordered(col(net.WHEN), desc=True)]
    came, went = (engine.query(newest_per_key(sides[s], spelled, newest)) for s in (1, -1))
    lost = engine.query(rows_of(went).where(negate(_in(came, went, spelled))))
    left = engine.query(rows_of(now).where(_in(lost, now, spelled)))
    one = engine.query(newest_per_key(left, spelled, []))
    known = case((_in(went, came, spelled), lit("update")), default=lit("insert"))
    parts = [
        _told(came, columns, known),
        _told(one, columns, lit("update")),
        _told(lost, columns, lit("delete")).where(negate(_in(now, lost, spelled))),
    ]
    return exp.union(*parts, distinct=False)


def _in(there: Relation, rows: Relation, keys: Sequence[str]) -> exp.Expr:
    """Has another relation a row of the same key?"""
    match = select(lit(1)).from_(table(there.name, "x")).where(same_keys(keys, "x", rows.name))
    return exp.Exists(this=match)
