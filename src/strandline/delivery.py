"""What a hand-written job gets of a Delta table: its rows, or what changed after a version, each with `_change_type`.

Rows that came and are still there are inserts, or updates when their key was there before; a key is deleted when none
of its rows is left. Where the feed cannot be read completely, the two snapshots are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from logging import WARNING
from typing import Any

from sqlglot import exp

from strandline.config.deletes import SystemColumnsConfig
from strandline.engine import delta_feed, delta_log
from strandline.engine.base import Engine, FeedSource, LakeSource
from strandline.errors import UsageError
from strandline.journal import log
from strandline.plan.views import last_versions, told_roles
from strandline.sql import net
from strandline.sql.dedupe import newest_per_key
from strandline.sql.expr import case, cast, col, eq, lit, named, negate, ordered, rows_of, same_keys, select, table
from strandline.strategy.changes import living
from strandline.types import Relation, Schema, Table, TableState

CHANGE = delta_feed.CHANGE


def snapshot(engine: Engine, lake: Table, state: TableState) -> Relation:
    """The living rows of a table at the version it was described at, without what strandline keeps for itself."""
    if isinstance(state, LastVersions):
        rows = engine.scan(LakeSource(lake, state.version)).relation
        return engine.query(last_versions(rows, state.flags, state.keys, state.system))
    return engine.scan(LakeSource(lake, state.version, state.system, _living(state))).relation


def _living(state: TableState) -> exp.Expr | None:
    return living(state.roles) if "deleted" in state.roles or "is_current" in state.roles else None


@dataclass(frozen=True)
class Wanted:
    """Which rows of a table a job wants, in the words of a node's read."""

    versions: str | None = None
    include_deleted: bool = False
    system_columns: Mapping[str, Any] | None = None

    def of(self, state: TableState, lake: Table, keys: Sequence[str]) -> TableState:
        """The table as the job sees it: columns that it asks for are no longer strandline's own."""
        if self.versions not in (None, "all", "current"):
            raise UsageError(f"versions={self.versions!r} is not known", hint='use versions="all" or "current"')
        if self.system_columns is not None:
            told = SystemColumnsConfig.model_validate(dict(self.system_columns))
            state = replace(state, roles=told_roles(told, state.schema, state.roles, lake.label))
        if self.versions == "all":
            shown = ("deleted", "is_current", "valid_from", "valid_to")
            return replace(state, roles={r: n for r, n in state.roles.items() if r not in shown})
        if not self.include_deleted:
            return state
        roles = {r: n for r, n in state.roles.items() if r != "deleted"}
        if "is_current" not in state.roles:
            return replace(state, roles=roles)
        if not keys:
            raise UsageError(
                f"{lake.label} keeps versions: include_deleted needs the keys to find the last version of each",
                hint='give deduplication columns, or versions="all"',
            )
        return LastVersions(**{**vars(state), "roles": roles}, keys=tuple(keys), flags=state.roles)


@dataclass(frozen=True, kw_only=True)
class LastVersions(TableState):
    """A table with versions of which the last one of each key is wanted, deleted or not."""

    keys: tuple[str, ...]
    flags: Mapping[str, str]


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
    last = isinstance(state, LastVersions)
    gap = None if last else delta_feed.gap(lake, after, state.version, vectors=engine.dialect == "spark")
    if gap is None and not last:
        feed = FeedSource(lake, after, state.version, columns, _living(state))
        return net.of_feed(engine.scan(feed).relation, columns)
    then = None
    if after >= 0:
        if not delta_feed.readable(lake, after):
            return None
        before = delta_log.describe_at(lake, after)
        if before.table_id != state.table_id:
            return None
        roles = {role: name for role, name in state.roles.items() if name in before.schema}
        then = snapshot(engine, lake, replace(state, version=before.version, schema=before.schema, roles=roles))
    if gap is not None:
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
