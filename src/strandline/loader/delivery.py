"""What a hand-written job gets of a Delta table: its rows, or what changed after a version.

Each changed row has its `_change_type` and the `_commit_version` that changed it. Rows that came and are still there
are inserts, or updates when their key was there before; a key is deleted when none of its rows is left. Where the feed
cannot be read completely, the two snapshots are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from logging import WARNING
from typing import Any

from pydantic import ValidationError
from sqlglot import exp

from strandline.config.deletes import SystemColumnsConfig
from strandline.engine.base import Engine, FeedSource, LakeSource
from strandline.errors import UsageError, did_you_mean
from strandline.journal import log
from strandline.lake import format_of
from strandline.plan.views import last_versions, told_roles
from strandline.sql import net
from strandline.sql.dedupe import newest_per_key
from strandline.sql.expr import (
    case,
    cast,
    col,
    eq,
    is_null,
    lit,
    named,
    negate,
    ordered,
    rows_of,
    same_keys,
    select,
    table,
)
from strandline.strategy.changes import living
from strandline.types import Relation, Schema, Table, TableState

CHANGE, VERSION = "_change_type", "_commit_version"


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
            raise UsageError(
                f"versions={self.versions!r} is not known", hint='use versions="all" or "current"'
            )
        if self.system_columns is not None:
            told = _told_columns(self.system_columns)
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


def _told_columns(given: Mapping[str, Any]) -> SystemColumnsConfig:
    try:
        return SystemColumnsConfig.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        known = sorted(SystemColumnsConfig.model_fields)
        raise UsageError(
            f"system_columns: {key}: {first['msg']}",
            hint=did_you_mean(key, known) or f"its keys are {', '.join(known)}",
        ) from error


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
    return engine.query(_told(one, columns_of(state), lit("insert"), _at(state)))


def nothing(engine: Engine, state: TableState) -> Relation:
    """No change."""
    values = [named(cast(exp.null(), c.type), c.name) for c in columns_of(state)]
    told = [named(cast(exp.null(), "string"), CHANGE), named(cast(exp.null(), "bigint"), VERSION)]
    return engine.query(select(*values, *told).where(exp.false()))


def since(
    engine: Engine,
    lake: Table,
    state: TableState,
    after: int,
    keys: Sequence[str],
    table_id: str | None = None,
) -> Relation | None:
    """What changed after a version of the table with this id; None when neither feed nor snapshots can tell."""
    if table_id not in (None, state.table_id) and not _continued(lake, after, table_id):
        return None
    if after == state.version or not format_of(lake).moved(lake, after, state.version):
        return nothing(engine, state)
    signed = _signed(engine, lake, state, after, keys)
    if signed is None:
        return None
    columns = columns_of(state)
    moved = engine.query(net.net(signed, columns))
    if keys:
        return engine.query(_by_key(engine, moved, lake, state, keys))
    verb = case((eq(col(net.SIGN), lit(1)), lit("insert")), default=lit("delete"))
    return engine.query(_told(moved, columns, verb, _at(state, col(net.WHEN))))


def _signed(
    engine: Engine, lake: Table, state: TableState, after: int, keys: Sequence[str]
) -> exp.Query | None:
    """The rows that moved: by the feed, else by the snapshots before and after."""
    columns = columns_of(state)
    last = isinstance(state, LastVersions)
    gap = (
        None
        if last
        else format_of(lake).gap(lake, after, state.version, vectors=engine.dialect == "spark")
    )
    if gap is None and not last:
        feed = FeedSource(lake, after, state.version, columns, _living(state))
        return net.of_feed(engine.scan(feed).relation, columns)
    then = None
    if after >= 0:
        before = format_of(lake).at(lake, after)
        if before is None or not _comparable(before, state, keys):
            return None
        roles = {role: name for role, name in state.roles.items() if name in before.schema}
        then = snapshot(
            engine, lake, replace(state, version=before.version, schema=before.schema, roles=roles)
        )
    if gap is not None:
        log.log(
            WARNING,
            "%s: its change feed cannot be read: %s; its snapshots are compared instead",
            lake.label,
            gap,
        )
    return net.of_snapshots(then, snapshot(engine, lake, state), columns)


def _continued(lake: Table, version: int, table_id: str | None) -> bool:
    """Tell whether a version is still there and belongs to the table with this id.

    CREATE OR REPLACE gives a table another id and keeps its log. A table that was dropped and created again has
    another log, in which the same number is another version.
    """
    then = format_of(lake).at(lake, version)
    return then is not None and then.table_id == table_id


def _comparable(before: TableState, now: TableState, keys: Sequence[str]) -> bool:
    """Tell whether the rows of two versions can be compared: a REPLACE may leave out keys and change types."""
    if before.table_id == now.table_id:
        return True
    if any(key not in before.schema for key in keys):
        return False
    shared = [(c, before.schema.get(c.name)) for c in columns_of(now)]
    return all(then is None or then.type == c.type for c, then in shared)


def _at(state: TableState, when: exp.Expr | None = None) -> exp.Expr:
    """The version that changed a row; where snapshots were compared, the newest one."""
    newest = cast(lit(state.version), "bigint")
    return newest if when is None else exp.Coalesce(this=when, expressions=[newest])


def _told(rows: Relation, columns: Schema, verb: exp.Expr, version: exp.Expr) -> exp.Select:
    values = [col(c.name, rows.name) for c in columns]
    return select(*values, named(verb, CHANGE), named(version, VERSION)).from_(table(rows.name))


def _by_key(
    engine: Engine, moved: Relation, lake: Table, state: TableState, keys: Sequence[str]
) -> exp.Query:
    """One row per key: the newest that came, else what is left of the key, else its delete.

    Whether a key was there before is asked by a join: Spark cannot optimize a join over a union of rows that hold the
    answer of an EXISTS.
    """
    columns, now = columns_of(state), snapshot(engine, lake, state)
    spelled = [c.name if (c := columns.get(k)) else k for k in keys]
    sides = {
        sign: engine.query(rows_of(moved).where(eq(col(net.SIGN), lit(sign)))) for sign in (1, -1)
    }
    newest = [ordered(col(net.WHEN), desc=True)]
    came, went = (engine.query(newest_per_key(sides[s], spelled, newest)) for s in (1, -1))
    lost = engine.query(rows_of(went).where(negate(_in(came, went, spelled))))
    left = engine.query(_left(now, lost, spelled))
    one = engine.query(newest_per_key(left, spelled, []))
    known = case((is_null(col(net.SIGN, "w")), lit("insert")), default=lit("update"))
    parts = [
        _told(came, columns, known, _at(state, col(net.WHEN, came.name))).join(
            table(went.name, "w"), on=same_keys(spelled, "w", came.name), join_type="left"
        ),
        _told(one, columns, lit("update"), _at(state, col(net.WHEN))),
        _told(lost, columns, lit("delete"), _at(state, col(net.WHEN))).where(
            negate(_in(now, lost, spelled))
        ),
    ]
    return exp.union(*parts, distinct=False)


def _left(now: Relation, lost: Relation, keys: Sequence[str]) -> exp.Select:
    """The rows that are left of keys that lost a row, with the version that took it."""
    values = [col(name, now.name) for name in now.schema.names]
    rows = select(*values, col(net.WHEN, "w")).from_(table(now.name))
    return rows.join(table(lost.name, "w"), on=same_keys(keys, "w", now.name), join_type="inner")


def _in(there: Relation, rows: Relation, keys: Sequence[str]) -> exp.Expr:
    """Tell whether another relation has a row of the same key."""
    match = select(lit(1)).from_(table(there.name, "x")).where(same_keys(keys, "x", rows.name))
    return exp.Exists(this=match)
