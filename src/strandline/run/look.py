"""Rows for people to look at: of a table, of its quarantine, and those whose delete is held."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from strandline.batch.quarantine import there
from strandline.control.fence import counting
from strandline.control.ledger import ChangeRow
from strandline.engine.base import Engine, LakeSource
from strandline.errors import ReadError, UsageError, did_you_mean
from strandline.lake import commits, describe
from strandline.plan.inputs import table_of
from strandline.plan.job import Job
from strandline.sql.expr import col, one_of, rows_of, select, table
from strandline.strategy import quarantine as shelf
from strandline.strategy.changes import living
from strandline.strategy.question import key_hash_of
from strandline.transform.registry import EngineContext
from strandline.types import Column, Relation, Schema, Table, TableState

if TYPE_CHECKING:
    from strandline.control.store import DeltaStore

_CHUNK = 500  # keys asked for at a time


@dataclass(frozen=True)
class Rows:
    """Some rows, and where they are from."""

    table: str
    columns: Schema
    rows: list[dict[str, Any]]
    version: int | None = None
    more: bool = False  # are there others?
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The shape of `--json`."""
        columns = [{"name": c.name, "type": c.type} for c in self.columns]
        return {
            "table": self.table,
            "version": self.version,
            "columns": columns,
            "rows": self.rows,
            "more": self.more,
            **self.facts,
        }


@dataclass(frozen=True)
class Asked:
    """Which rows of a table a person wants to see."""

    where: str | None = None
    limit: int = 20
    deleted: bool = False
    at: str | None = None  # a run, or a part of its id


# --- a table -----------------------------------------------------------------------------------------------


def place_of(jobs: Sequence[Job], name: str) -> tuple[Table, Job | None]:
    """The table of a node, or one that is named with its connection."""
    for job in jobs:
        if name in (job.node.name, job.target.label):
            return job.target, job
    connection, dot, rest = name.partition(".")
    project = jobs[0].project if jobs else None
    if (
        project
        and dot
        and getattr(project.config.connections.get(connection), "type", "") == "lake"
    ):
        return table_of(project, connection, rest), None
    known = [n for job in jobs for n in (job.node.name, job.target.label)]
    raise UsageError(
        f"there is no node and no table `{name}`",
        hint=did_you_mean(name, known) or "name a node, or a table as CONNECTION.TABLE",
    )


def table_rows(
    jobs: Sequence[Job], engine: Engine, store: DeltaStore, name: str, asked: Asked
) -> Rows:
    """Rows of a table, ordered by the keys of its node: the living ones, or all of them."""
    place, job = place_of(jobs, name)
    state = describe(place)
    if state is None:
        raise ReadError(f"there is no table {place.label} yet", hint="strandline run makes it")
    version = state.version if asked.at is None else _version_at(place, store, asked.at)
    rows = engine.scan(LakeSource(place, version)).relation
    hidden = [n for role, n in state.roles.items() if role == "row_hash"]
    if not asked.deleted and (state.roles.keys() & {"deleted", "is_current"}):
        roles = {r: n for r, n in state.roles.items() if n in rows.schema}
        rows = engine.query(rows_of(rows).where(living(roles)))
    if asked.where:
        where = EngineContext(engine, rows, f"{place.label}: --where").expression(asked.where)
        rows = engine.query(rows_of(rows).where(where))
    tree = rows_of(rows, rows.schema.without(*hidden))
    keys = [c for k in (job.node.write.keys if job else ()) if (c := rows.schema.get(k))]
    if keys:
        tree = tree.order_by(*(exp.Ordered(this=col(c.name), nulls_first=True) for c in keys))
    found = _fetched(engine, tree.limit(asked.limit + 1), rows.schema.without(*hidden))
    more = len(found) > asked.limit
    return Rows(place.label, rows.schema.without(*hidden), found[: asked.limit], version, more)


def _fetched(engine: Engine, tree: exp.Query, schema: Schema) -> list[dict[str, Any]]:
    return [dict(zip(schema.names, row, strict=True)) for row in engine.fetch(tree)]


def run_named(store: DeltaStore, name: str) -> str:
    """The id of a run: given whole, by a part that only it has, or as `latest`; an error when there is none."""
    if found := known_run(store, name):
        return found
    raise UsageError(f"there is no run `{name}`", hint="`strandline history` lists them")


def known_run(store: DeltaStore, name: str) -> str | None:
    """The same, or None when there is no such run."""
    runs = list(dict.fromkeys(r.run_id for r in store.runs()))
    if name == "latest" and runs:
        return runs[0]
    found = [r for r in runs if name == r] or [r for r in runs if name in r]
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(found[:5])
        raise UsageError(f"`{name}` is a part of several runs: {shown}", hint="give more of the id")
    return None


def _version_at(place: Table, store: DeltaStore, name: str) -> int:
    """The version of a table at the end of a run."""
    run_id = run_named(store, name)
    mine = [r for r in store.runs() if r.run_id == run_id]
    own = [r for r in mine if r.target_table == place.label and r.coverage.target is not None]
    if own and own[0].coverage.target is not None:
        return own[0].coverage.target
    ended = max(r.completed_at for r in mine)
    versions = [c.version for c in commits(place) if c.at <= ended]
    if not versions:
        raise UsageError(f"{place.label}: there was no such table at the end of run {run_id}")
    return versions[-1]


# --- its quarantine ----------------------------------------------------------------------------------------


def quarantined_rows(job: Job, engine: Engine, store: DeltaStore) -> Rows | None:
    """The rows of a node that are in quarantine, the oldest first; None when it never had one."""
    ended = {(node, run) for run, node, _ in counting(store.all_runs())}
    job = replace(job, past=replace(job.past, ended=lambda: ended))
    have = there(job, engine)
    if have is None:
        return None
    rows = have.counting(engine, job)
    schema = rows.schema.without(shelf.LEFT, shelf.TYPES, shelf.NODE)
    tree = rows_of(rows, schema).order_by(
        exp.Ordered(this=col(shelf.AT)), exp.Ordered(this=col(shelf.ID))
    )
    return Rows(job.quarantine.label, schema, _fetched(engine, tree, schema), have.state.version)


# --- held deletes ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldRow:
    """A row whose delete waits for a person."""

    node: str
    table: str
    run_id: str
    key: Mapping[str, Any]
    evidence: str
    since: datetime
    row: Mapping[str, Any] | None  # None: the table does not have it any more

    def as_dict(self) -> dict[str, Any]:
        """The shape of `holds --json`."""
        return dict(vars(self))


def held_rows(
    job: Job, engine: Engine, held: Sequence[ChangeRow], changes: Sequence[ChangeRow]
) -> list[HeldRow]:
    """Every held key of a node with its row as it is now, why it is thought to be gone, and since when it is held."""
    rows = _by_hash(job, engine, held)
    since = _since(changes)
    return [
        HeldRow(
            job.node.name,
            h.target_table,
            h.run_id,
            json.loads(h.key),
            h.reason,
            since.get((h.target_table, h.key_hash), h.at),
            rows.get(h.key_hash),
        )
        for h in held
    ]


def _since(changes: Sequence[ChangeRow]) -> dict[tuple[str, str], datetime]:
    """When each open hold began: runs that judge again note it again."""
    found: dict[tuple[str, str], datetime] = {}
    for row in sorted(changes, key=lambda r: (r.batch, r.at)):
        key = row.target_table, row.key_hash
        if row.verb == "hold":
            found.setdefault(key, row.at)
        elif row.verb in ("reject", "missing", "seen", "delete"):
            found.pop(key, None)
    return found


def _by_hash(job: Job, engine: Engine, held: Sequence[ChangeRow]) -> dict[str, dict[str, Any]]:
    """The living rows of these keys, by the hash under which keys are noted."""
    state = describe(job.target)
    if state is None or not held:
        return {}
    keys = _keys(state, held[0])
    if keys is None:
        return {}
    rows = engine.scan(LakeSource(job.target, state.version)).relation
    shown = state.schema.without(*state.system)
    found: dict[str, dict[str, Any]] = {}
    for start in range(0, len(held), _CHUNK):
        wanted = [h.key_hash for h in held[start : start + _CHUNK]]
        for hash_, *values in engine.fetch(_of_keys(rows, shown, keys, state, wanted)):
            found[hash_] = dict(zip(shown.names, values, strict=True))
    return found


def _keys(state: TableState, held: ChangeRow) -> list[Column] | None:
    columns = [state.schema.get(name) for name in json.loads(held.key)]
    return [c for c in columns if c is not None] if None not in columns else None


def _of_keys(
    rows: Relation, shown: Schema, keys: Sequence[Column], state: TableState, wanted: Sequence[str]
) -> exp.Select:
    hash_ = key_hash_of(keys)
    values = [exp.Alias(this=hash_, alias=exp.to_identifier("_h", quoted=True))]
    tree = select(*values, *(col(n) for n in shown.names)).from_(table(rows.name))
    return tree.where(living(state.roles)).where(one_of(hash_.copy(), wanted))
