"""Missed rows: keys that the live source has, and neither the input of a node nor its table.

`sql_compare` asks the live source for its keys anyway. A row that was committed late, or came back with an old change
time, lies behind the watermark: no read brings it. A key that is missing once may just have been committed, so it
counts when the batch before missed it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from strandline.batch.compare import Outcome
from strandline.batch.missed_keys import short_hash
from strandline.batch.read import whole_table
from strandline.config.deletes import DeleteDetectionConfig
from strandline.config.key_columns import source_columns, up_to_detection
from strandline.control.coverage import MissedKeys
from strandline.engine.base import Engine
from strandline.journal import log
from strandline.plan.ingest import leaves_out, starts_late, steps_of, upstream
from strandline.plan.inputs import is_lake
from strandline.plan.job import Job
from strandline.sql.expr import (
    OUTER,
    all_of,
    cast,
    col,
    eq,
    is_null,
    lit,
    named,
    negate,
    select,
    table,
)
from strandline.sql.portable import checked_cast, family
from strandline.sql.values import ORDERED, to_text
from strandline.types import Column, Relation
from strandline.words import agree, plural

_KEY = "_strandline_key_"
_SAMPLE = 5


def with_missed(job: Job, engine: Engine, outcome: Outcome) -> Outcome:
    """The outcome with what it misses, and a warning for what the batch before missed too."""
    config, absence = job.detection, outcome.made.finding.absence if outcome.made.finding else None
    if config is None or absence is None or not absence.live or not _watched(job, config):
        return outcome
    if outcome.made.target is None or _all_present(outcome):
        return outcome
    found = _found(job, engine, outcome, config, absence.evidence.rows)
    if found is None or not found.number:
        return outcome
    again = found.again(job.past.memory.missed)
    told = [_told(job, config, again)] if again.number else []
    for text in told:
        log.warning("%s: %s", job.node.name, text)
    return replace(outcome, missed=found, warnings=(*outcome.warnings, *told))


def _watched(job: Job, config: DeleteDetectionConfig) -> bool:
    """Does a key that is nowhere mean that a row was missed? Not where rows are left out on purpose."""
    if config.missed_rows == "ignore" or len(job.inputs) != 1 or starts_late(job.project, job.node):
        return False
    return "missed_rows" in config.model_fields_set or not leaves_out(job.project, job.node, config)


def _all_present(outcome: Outcome) -> bool:
    """Were as many keys seen, of the input and the table, as the live source has?"""
    live = outcome.made.finding.live if outcome.made.finding else None
    return live is not None and outcome.measured.get("present") == live


def _found(
    job: Job, engine: Engine, outcome: Outcome, config: DeleteDetectionConfig, live: Relation
) -> MissedKeys | None:
    """The keys that this batch misses; None where keys cannot be told in the input."""
    input_ = _input(job, engine, outcome)
    names = source_columns(up_to_detection(steps_of(job.node)), config.keys)
    origins = [input_.schema.get(name) if name is not None else None for name in names]
    columns = tuple(c for k in config.keys if (c := live.schema.get(k)))
    if None in origins or not all(family(c.type) in ORDERED for c in columns):
        log.info(
            "%s: missed rows are not looked for: the keys are no columns of the input",
            job.node.name,
        )
        return None
    target = outcome.made.target
    assert target is not None
    stored = [c for k in config.keys if (c := target.schema.get(k))]
    sides = {target.name: stored, input_.name: [c for c in origins if c is not None]}
    return _counted(engine, _missing(live, columns, stored, sides), columns, config.max_missed_rows)


def _input(job: Job, engine: Engine, outcome: Outcome) -> Relation:
    """All that a node could read: of a lake table every row, however its own read is limited."""
    (input_,) = job.inputs
    if is_lake(job.project, input_.read) and input_.read.limited:
        return whole_table(job, engine, input_).relation
    return next(iter(outcome.slice.rows.values()))


def _missing(
    live: Relation,
    columns: Sequence[Column],
    stored: Sequence[Column],
    sides: Mapping[str, Sequence[Column]],
) -> exp.Select:
    """The live source's whole keys that no side has, compared in the types of the table."""
    typed = [
        named(checked_cast(col(mine.name), mine.type, key.type, key.name, exact=True), f"{_KEY}{i}")
        for i, (mine, key) in enumerate(zip(columns, stored, strict=True))
    ]
    names = [col(c.name) for c in columns]
    keys = select(*names, *typed).distinct().from_(table(live.name))
    keys = keys.where(all_of(negate(is_null(n.copy())) for n in names))
    tree = select(*(named(col(c.name, OUTER), c.name) for c in columns)).from_(keys.subquery(OUTER))
    for name, theirs in sides.items():
        have = select(lit(1)).from_(_keys_of(name, theirs, stored).subquery("t"))
        same = all_of(
            eq(col(f"{_KEY}{i}", OUTER), col(f"{_KEY}{i}", "t")) for i in range(len(stored))
        )
        tree = tree.where(exp.Not(this=exp.Exists(this=have.where(same))))
    return tree


def _keys_of(relation: str, theirs: Sequence[Column], stored: Sequence[Column]) -> exp.Select:
    """The keys of one side; a value that is no key of the table is no key."""
    values = [
        named(checked_cast(col(mine.name), mine.type, key.type, key.name, safe=True), f"{_KEY}{i}")
        for i, (mine, key) in enumerate(zip(theirs, stored, strict=True))
    ]
    return select(*values).from_(table(relation))


def _counted(
    engine: Engine, missing: exp.Select, columns: tuple[Column, ...], limit: int
) -> MissedKeys:
    """How many keys are missed, and which, unless there are too many."""
    staged = engine.stage(missing, {"n": cast(exp.Count(this=exp.Star()), "bigint")}, None)
    pairs = tuple((c.name, c.type) for c in columns)
    number = int(staged.measures["n"])
    if not 0 < number <= limit:
        return MissedKeys(number, pairs)
    names = [col(c.name) for c in columns]
    several = [named(short_hash(columns), "h")] if len(columns) > 1 else []
    tree = select(*names, *several).from_(table(staged.relation.name))
    rows = engine.fetch(tree.order_by(*(exp.Ordered(this=n.copy()) for n in names)))
    keys = tuple(tuple(map(to_text, row[: len(columns)])) for row in rows)
    return MissedKeys(number, pairs, keys, tuple(row[-1] for row in rows) if several else ())


# --- words -------------------------------------------------------------------------------------------------


def _told(job: Job, config: DeleteDetectionConfig, missed: MissedKeys) -> str:
    number = missed.number
    source = f"{config.source_connection}.{'query' if config.source_query else config.source_table}"
    text = (
        f"{plural(number, 'key')} {agree(number, 'is', 'are')} in the live source {source}, and neither in what the "
        f"node has read nor in {job.target.label}, in this run and in the one before"
    )
    if not missed.keys:
        return f"{text}; that is more than max_missed_rows: {config.max_missed_rows}, so they are only counted; {_FULL}"
    return f"{text}: {_shown(missed)}; {_advice(job, config)}"


_FULL = "compare what the node reads with source_table or source_query, and load what is missing once with a full read"


def _shown(missed: MissedKeys) -> str:
    """The first few keys."""
    names = [name for name, _ in missed.columns]
    if len(names) == 1:
        shown = f"{names[0]} = {', '.join(key[0] for key in missed.keys[:_SAMPLE])}"
    else:
        shown = ", ".join(f"({', '.join(key)})" for key in missed.keys[:_SAMPLE])
        shown = f"({', '.join(names)}) = {shown}"
    return shown + (", …" if missed.number > _SAMPLE else "")


def _advice(job: Job, config: DeleteDetectionConfig) -> str:
    """What a user can do about it."""
    if config.missed_rows != "read":
        return "read them with missed_rows: read, give the read a longer watermark_lag, or say missed_rows: ignore"
    ingesting = upstream(job.project, job.node)[-1].name
    if ingesting == job.node.name:
        return "they were asked for by key, and no row came out of the node's steps: leave them out of source_query"
    return f"node `{ingesting}` reads them in its next run; if it has run, one of its steps leaves them out"
