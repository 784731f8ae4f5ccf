"""What a star adds to a change set before it is committed: surrogate keys, default members, keys into dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from strandline.batch.checks import checked_rewrite
from strandline.batch.columns import writes_anew
from strandline.batch.compare import (
    Outcome,
    Transformed,
    compared_rows,
    target_rows,
)
from strandline.config.star import ForeignKeyConfig
from strandline.config.writes import instant
from strandline.control.coverage import Pin
from strandline.engine.base import Engine, LakeSource
from strandline.errors import ReadError, TableError
from strandline.gold import bridge, dimension, fact, keys
from strandline.gold.fact import Lookup
from strandline.gold.keys import KeyRule
from strandline.lake import describe
from strandline.plan.inputs import table_of
from strandline.plan.job import Job
from strandline.sql.expr import (
    cast,
    col,
    lit,
    named,
    rows_of,
    select,
    table,
)
from strandline.strategy.changes import ACTION, ChangeSet, after, living, measures
from strandline.strategy.evolution import AddColumn
from strandline.types import Column, Counts, Relation, Table, TableState

ATTEMPTS = 20
"""How often a key is hashed again; with 63 bits the second time is rare enough."""


def dressed(job: Job, engine: Engine, outcome: Outcome, state: TableState | None) -> Outcome:
    """The batch of a dimension with its keys and default members; any other as it is."""
    own = job.own_columns
    _refuse_other_keys(job, state, own)
    if "surrogate_key" not in own:
        return outcome
    target = target_rows(job, engine, state)
    ordinary = compared_rows(job, engine, state)
    changes, given = with_keys(job, engine, outcome.changes, ordinary)
    changes = _with_members(job, engine, replace(outcome, changes=changes), target)
    have = state.roles if state else own
    new = {r: Column(n, dimension.KEY_TYPES[r]) for r, n in own.items() if r not in have}
    made = replace(outcome.made, system={**outcome.made.system, **new})
    return replace(outcome, changes=changes, made=made, keys_given=given)


def _refuse_other_keys(job: Job, state: TableState | None, own: Mapping[str, str]) -> None:
    """A table has the keys that it was made with: rows without one would be lost for facts."""
    for role in ("surrogate_key", "durable_key") if state is not None else ():
        have, wanted = state.roles.get(role) if state else None, own.get(role)
        if (have or "").casefold() == (wanted or "").casefold():
            continue
        label = job.target.label
        if have is None:
            told = f"{label} was made without {role}, so its rows have no `{wanted}`"
            hint = "write another table, which is built from the start"
        else:
            told = f"{label} keeps its {role} in column `{have}`"
            hint = f"set write.{role} back, or write another table"
        raise TableError(told, hint=hint)


# --- bridges -----------------------------------------------------------------------------------------------


def with_weights(job: Job, engine: Engine, made: Transformed) -> Transformed:
    """The rows of a bridge with their weights; those of any other node as they are."""
    config = job.node.bridge
    if config is None:
        return made
    return replace(made, rows=engine.query(bridge.weighted(made.rows, config, job.node.name)))


def check_weights(job: Job, engine: Engine, outcome: Outcome, state: TableState | None) -> None:
    """Refuse a batch after which the weights of some group would not sum to 1."""
    config, changes = job.node.bridge, outcome.changes
    if config is None or (changes.counts is not None and not changes.counts.any):
        return
    rows = after(changes, target_rows(job, engine, state))
    alive = select(*map(col, changes.columns.names)).from_(rows.subquery("a"))
    found = engine.fetch(bridge.uneven(alive.where(living(changes.roles)), config))
    if found:
        shown = [(group, total) for group, total in found]
        raise bridge.uneven_error(shown, config, job.node.name)


# --- surrogate keys ----------------------------------------------------------------------------------------


def key_rule(job: Job, changes: ChangeSet) -> KeyRule:
    """How the rows of a dimension get their keys."""
    write = job.node.write
    assert write.surrogate_key is not None
    names = tuple(c.name for k in write.keys if (c := changes.columns.get(k)))
    begins, ends = changes.roles.get("valid_from"), changes.roles.get("valid_to")
    span = (begins, ends) if begins and ends else None
    given = write.surrogate_key
    return KeyRule(given.column, given.strategy, names, write.durable_key, span)


def with_keys(
    job: Job, engine: Engine, changes: ChangeSet, target: Relation | None
) -> tuple[ChangeSet, int]:
    """The change set with surrogate keys, and the highest number that a sequence has given by then.

    `target` is the table without its default members: a row of the source whose key is NULL is none of them.
    """
    rule, own = key_rule(job, changes), job.own_columns
    last = _last_given(job, engine, rule, target)
    if changes.counts is not None and not changes.counts.any:
        rows = engine.query(_none(changes, own))
    else:
        rows, new = _given(job, engine, changes, target, last)
        last += new if rule.strategy == "sequence" else 0
    added = [Column(name, dimension.KEY_TYPES[role]) for role, name in own.items()]
    columns = changes.columns.plus(*added)
    if "skeleton" in own:
        values = [
            *map(col, columns.without(own["skeleton"]).names),
            named(exp.false(), own["skeleton"]),
        ]
        rows = engine.query(select(*values, col(ACTION)).from_(table(rows.name)))
    done = replace(
        changes,
        additions=rows,
        columns=columns,
        keys=(*changes.keys, rule.column),
        roles={**changes.roles, **own},
    )
    return done, last


def _none(changes: ChangeSet, own: Mapping[str, str]) -> exp.Select:
    """No rows, in the columns of rows with keys."""
    extra = [
        named(cast(exp.null(), dimension.KEY_TYPES[r]), n)
        for r, n in own.items()
        if r != "skeleton"
    ]
    values = [*map(col, changes.columns.names), *extra, col(ACTION)]
    return select(*values).from_(table(changes.additions.name)).where(exp.false())


def _given(
    job: Job, engine: Engine, changes: ChangeSet, target: Relation | None, last: int
) -> tuple[Relation, int]:
    """The rows with their keys, none of them twice; and how many are new."""
    rule = key_rule(job, changes)
    tree: exp.Query = keys.numbered(changes, target, rule, last)
    lost = 0
    for _ in range(ATTEMPTS):
        staged = engine.stage(keys.collided(tree, target, rule), keys.key_counts(), None)
        lost = int(staged.measures["lost"] or 0)
        if not lost:
            rows = keys.keyed_rows(staged.relation, changes.columns.names, rule)
            return engine.query(rows), int(staged.measures["new"] or 0)
        tree = keys.again(staged.relation)
    raise TableError(
        f"{job.target.label}: {lost} new surrogate keys are those of other rows, however they are "
        "hashed",
        hint="use surrogate_key: {strategy: sequence} in a new table",
    )


def _last_given(job: Job, engine: Engine, rule: KeyRule, target: Relation | None) -> int:
    """The highest number that a sequence has given: also to rows that are gone."""
    known = job.past.memory.keys_given
    if rule.strategy != "sequence" or target is None or rule.column not in target.schema:
        return known
    highest = select(exp.Max(this=col(rule.column))).from_(table(target.name))
    return max(known, int(engine.fetch(highest)[0][0] or 0))


# --- default members ---------------------------------------------------------------------------------------


def _with_members(job: Job, engine: Engine, outcome: Outcome, target: Relation | None) -> ChangeSet:
    """The change set with default members, where the table lacks them or has others."""
    changes, write = outcome.changes, job.node.write
    config, same = write.members, job.past.memory.digest == job.digest
    if config is None or (same and target is not None and not outcome.made.fit.changes):
        return changes
    end = instant(write.open_end) if write.open_end is not None else None
    rows = dimension.Members(
        config, changes.columns, changes.roles, changes.keys[:-1], job.at, end, job.target.label
    )
    staged = engine.stage(
        rows.differing(target), measures(), exp.NEQ(this=col(ACTION), expression=lit("unchanged"))
    )
    counts = Counts(inserted=staged.measures["inserted"], updated=staged.measures["updated"])
    return _together(engine, changes, staged.relation, counts)


def _together(engine: Engine, changes: ChangeSet, more: Relation, counts: Counts) -> ChangeSet:
    """The change set with more rows; the keys to replace may lie anywhere now."""
    if not counts.any:
        return changes
    names = [*changes.columns.names, ACTION]
    both = exp.union(
        select(*map(col, names)).from_(table(changes.additions.name)),
        select(*map(col, names)).from_(table(more.name)),
        distinct=False,
    )
    sum_ = (changes.counts or Counts()).plus_written(counts)
    return replace(changes, additions=engine.query(both), counts=sum_, ranges={})


# --- keys into dimensions ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Early:
    """Keys that facts name and a dimension lacks, each once."""

    dimension: str
    keys: Relation
    number: int


@dataclass(frozen=True)
class Facts:
    """The rows of a fact's change set beside the rows of the dimensions that they belong to."""

    lookups: tuple[Lookup, ...]
    pins: Mapping[str, Pin]
    found: Relation
    early: tuple[Early, ...]


def dimension_key(name: str) -> str:
    """What the records call the version of a dimension that facts were looked up in."""
    return f"dimension {name}"


def dimension_pins(job: Job) -> dict[str, Pin] | None:
    """The dimensions as they are now; None when one is not there."""
    found = {}
    for name in {key.dimension for key in job.node.foreign_keys}:
        state = describe(_place(job, name))
        if state is None:
            return None
        found[dimension_key(name)] = Pin(state.table_id, state.version)
    return found


def facts_of(job: Job, engine: Engine, outcome: Outcome) -> Facts:
    """Look the rows of a fact's change set up in its dimensions."""
    lookups, pins = [], {}
    for key in job.node.foreign_keys:
        lookup, pin = _lookup(job, engine, key)
        lookup.checked(outcome.changes.columns, job.node.name)
        lookups.append(lookup)
        if pin is not None:
            pins[dimension_key(key.dimension)] = pin
    staged = engine.stage(fact.resolved(outcome.changes.additions, lookups), _counted(), None)
    return Facts(tuple(lookups), pins, staged.relation, _early(engine, staged.relation, lookups))


def _counted() -> dict[str, exp.Expr]:
    return {"n": cast(exp.Count(this=exp.Star()), "bigint")}


def _early(engine: Engine, found: Relation, lookups: Sequence[Lookup]) -> tuple[Early, ...]:
    by_dimension: dict[str, list[Lookup]] = {}
    for lookup in lookups:
        if lookup.config.on_missing == "skeleton":
            by_dimension.setdefault(lookup.config.dimension, []).append(lookup)
    early = []
    for name, some in by_dimension.items():
        staged = engine.stage(fact.missing(found, some), _counted(), None)
        if staged.measures["n"]:
            early.append(Early(name, staged.relation, int(staged.measures["n"])))
    return tuple(early)


def _place(job: Job, name: str) -> Table:
    write = job.sibling(name).write
    return table_of(job.project, write.connection, write.table)


def _lookup(job: Job, engine: Engine, key: ForeignKeyConfig) -> tuple[Lookup, Pin | None]:
    """A dimension as it is now, or as the same plan would leave it."""
    place = _place(job, key.dimension)
    planned = job.planned.get(place.location)
    if planned is not None:
        roles, pin = planned.roles, None
        rows = engine.query(rows_of(planned.rows).where(dimension.ordinary(roles)))
    else:
        state = describe(place)
        if state is None:
            raise ReadError(
                f"{job.node.name}: there is no table {place.label} yet, which `{key.column}` leads into",
                hint=f"run node `{key.dimension}` first, or both: --select +{job.node.name}",
            )
        roles, pin = state.roles, Pin(state.table_id, state.version)
        source = LakeSource(place, state.version, where=dimension.ordinary(roles))
        rows = engine.scan(source).relation
    if "surrogate_key" not in roles:
        raise ReadError(
            f"{job.node.name}: {place.label} has no surrogate keys yet",
            hint=f"run node `{key.dimension}` first",
        )
    return Lookup(key, rows, roles), pin


def with_facts(
    job: Job, engine: Engine, outcome: Outcome, state: TableState | None, facts: Facts
) -> Outcome:
    """The batch of a fact with its foreign keys, and the stored facts that belong to other rows by now."""
    changes = outcome.changes
    names = [k.config.column for k in facts.lookups]
    columns = changes.columns.plus(*(k.column for k in facts.lookups))
    rows = engine.query(fact.fact_rows(facts.found, changes.columns.names, facts.lookups))
    changes = replace(changes, additions=rows, columns=columns)
    if state is not None and _dimensions_moved(job, state, facts):
        changes = _repointed(job, engine, changes, state, facts)
    outcome = replace(outcome, dimensions=facts.pins, early=sum(e.number for e in facts.early))
    new = [
        AddColumn(c) for c in columns if c.name in names and state and c.name not in state.schema
    ]
    if state is None or not new:
        return replace(outcome, changes=changes)
    changes = replace(changes, evolves=(*changes.evolves, *new))
    if writes_anew(engine, job.target, changes):
        changes = checked_rewrite(job, state, changes)
    made = outcome.made
    made = replace(made, fit=replace(made.fit, changes=(*made.fit.changes, *new)))
    return replace(outcome, changes=changes, made=made)


def _dimensions_moved(job: Job, state: TableState, facts: Facts) -> bool:
    """May a stored fact belong to another row than when it was written? Facts that only come in never do."""
    if not job.node.write.keyed:
        return False
    memory = job.past.memory
    same = {k: memory.sources.get(k) for k in facts.pins} == dict(facts.pins)
    missing = any(k.config.column not in state.schema for k in facts.lookups)
    return not same or missing or memory.digest != job.digest or bool(job.planned)


def _repointed(
    job: Job, engine: Engine, changes: ChangeSet, state: TableState, facts: Facts
) -> ChangeSet:
    target = target_rows(job, engine, state)
    assert target is not None
    rest = engine.query(fact.others(target, changes.additions, changes.keys))
    found = engine.query(fact.resolved(rest, facts.lookups))
    writes: dict[str, exp.Expr] = {}
    if seen := changes.roles.get("last_seen"):
        writes[seen.casefold()] = lit(job.at)
    tree = fact.repointed(found, facts.lookups, changes.columns, writes)
    staged = engine.stage(tree, measures(), None)
    return _together(engine, changes, staged.relation, Counts(updated=staged.measures["updated"]))
