"""Facts that come before their members: the members get a row in their dimension first, as a batch of its own node."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from strandline.batch.compare import Outcome, compared_rows
from strandline.batch.prepare import Ready
from strandline.batch.star import Early, facts_of, with_facts, with_keys
from strandline.config.writes import instant
from strandline.control.ledger import Batch
from strandline.engine.base import Engine
from strandline.errors import CommitConflict, Fenced
from strandline.failpoints import point
from strandline.gold.dimension import KEY_TYPES, skeletons
from strandline.journal import log
from strandline.plan.job import Job
from strandline.sql.expr import col, lit, named, select, table
from strandline.strategy.changes import ChangeSet, Removals, measures
from strandline.strategy.evolution import AddColumn
from strandline.types import Column, Counts, TableState
from strandline.words import plural

if TYPE_CHECKING:
    from strandline.run.runner import Runner

_ONE_AT_A_TIME = threading.Lock()
"""Two facts of one run may lack the same members."""


def looked_up(
    runner: Runner, job: Job, engine: Engine, outcome: Outcome, state: TableState | None
) -> Outcome:
    """The batch of a fact with its foreign keys, after the members that dimensions lack got their rows there."""
    facts, told = facts_of(job, engine, outcome), []
    if facts.early:
        with _ONE_AT_A_TIME:
            facts = facts_of(job, engine, outcome)  # another node may have added them meanwhile
            for early in facts.early:
                _add(runner, job, engine, early)
                told.append(f"added {plural(early.number, 'skeleton')} to `{early.dimension}`")
                log.info("%s: %s", job.node.name, told[-1])
            facts = facts_of(job, engine, outcome)
    done = with_facts(job, engine, outcome, state, facts)
    return replace(done, warnings=(*done.warnings, *told))


def _add(runner: Runner, fact: Job, engine: Engine, early: Early) -> None:
    """A batch of the dimension's node: a row for each key that it lacks."""
    began = time.monotonic()
    job = Job(fact.project, fact.sibling(early.dimension), fact.clock)
    point("skeletons.before", job.node.name)
    try:
        records, state, _ = runner.settle(job, began, engine)
        this = runner.after(job, records, runner.landed(job, state))
        job = runner.remembering(job, this, state)
        assert state is not None, "its rows were looked at"
        ready = _ready(job, engine, this, state, early)
        with runner.announced(job, this, began):
            runner.lander(job, engine, this, state).land(ready, began)
    except Fenced as e:
        raise CommitConflict(
            f"{fact.node.name}: another runner worked on `{early.dimension}`: {e.message}",
            hint="run again",
        ) from e
    point("skeletons.after", job.node.name)


def _ready(job: Job, engine: Engine, this: Batch, state: TableState, early: Early) -> Ready:
    """The rows of new skeletons, and the records of the dimension as they were but for them."""
    own, memory = job.own_columns, this.memory()
    new = {r: Column(n, KEY_TYPES[r]) for r, n in own.items() if r not in state.roles}
    roles = {**state.roles, **{role: c.name for role, c in new.items()}}
    kept = {n.casefold() for n in own.values()}
    columns = state.schema.without(*kept)
    end = job.node.write.open_end
    at = job.at
    plain = {role: name for role, name in roles.items() if name.casefold() not in kept}
    tree = skeletons(early.keys, columns, plain, at, instant(end) if end is not None else None)
    staged = engine.stage(tree, measures(), None)
    counts = Counts(inserted=early.number)
    names = tuple(c.name for k in job.node.write.keys if (c := columns.get(k)))
    locator = (*names, *([roles["valid_from"]] if "valid_from" in roles else []))
    changes = ChangeSet(
        staged.relation, columns, Removals.REPLACED, locator, state.partition_by, plain, counts
    )
    changes, given = with_keys(job, engine, changes, compared_rows(job, engine, state))
    coverage = replace(
        memory,
        undoes=None,
        before=job.past.before,
        keys_given=max(given, memory.keys_given),
        at=at,
    )
    return Ready(
        _flagged(engine, changes, own, new),
        coverage,
        lambda: early.number,
        {},
        warnings=(f"{plural(early.number, 'skeleton')} for facts that came before their members",),
    )


def _flagged(
    engine: Engine, changes: ChangeSet, own: Mapping[str, str], new: Mapping[str, Column]
) -> ChangeSet:
    """The rows, each marked as one that only facts know of."""
    flag = own["skeleton"]
    evolves = tuple(AddColumn(c, role) for role, c in new.items())
    values = [
        named(lit(True), flag) if c.name == flag else col(c.name) for c in changes.additions.schema
    ]
    rows = engine.query(select(*values).from_(table(changes.additions.name)))
    return replace(changes, additions=rows, evolves=evolves)
