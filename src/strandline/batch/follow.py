"""Changes through a node: which of its rows may be other ones now, which are gone, and when everything is done anew.

A node that follows changes goes one of five ways. `first`: everything, once. `quiet`: nothing moved. `rows`: the rows
that came pass the steps and the SQL as if they were all there is, and what went is looked for among the keys they leave
behind. `keys`: changes name the keys that may be affected, and these are computed from the sources as they are.
`recompute`: everything, and what the table has beyond it is gone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from sqlglot import exp

from strandline.batch import compare, read
from strandline.batch.compare import Transformed
from strandline.batch.presence import with_presence
from strandline.batch.read import Followed, Slice, count, lake_of
from strandline.batch.rejected import only_of_keys, with_rejected_keys
from strandline.batch.sources import QUIET, Moved, Sources
from strandline.config.deletes import DeleteDetectionMode
from strandline.control.coverage import Coverage
from strandline.engine.base import Engine
from strandline.errors import UnknownColumn
from strandline.journal import log
from strandline.plan.inputs import Input
from strandline.plan.job import Job
from strandline.sql import incremental, net
from strandline.sql.dedupe import newest_per_key
from strandline.sql.expr import col, lit, named, rows_of, same_keys, select, table
from strandline.sql.incremental import NotIncremental
from strandline.sql.portable import parse
from strandline.transform.lineage import clockwork, through_steps
from strandline.types import Changes, Relation, Schema, Snapshot, TableState

How = Literal["first", "rows", "keys", "recompute", "quiet"]


@dataclass(frozen=True)
class _Way:
    """How a batch is done, and why not in a quicker way."""

    how: How
    why: str | None = None
    query: incremental.Followed | None = None
    among: tuple[str, ...] = ()  # the key within which the steps choose rows


@dataclass(frozen=True, kw_only=True)
class FollowedSlice(Slice):
    """A slice of changes, with what is needed to see them through."""

    sources: Sources
    way: _Way
    moved: Mapping[str, Moved] = field(default_factory=dict)


def read_or_follow(job: Job, engine: Engine, state: TableState | None) -> Slice:
    """The slice of a node: by its changes where it follows them, else as any other."""
    if not job.follows:
        return read.read_sources(job, engine)
    sources = Sources(job, engine, fresh=state is None or job.past.memory.recipe is None)
    moved: dict[str, Moved] = {}
    way = _way(job, sources, moved)
    if way.how == "recompute" and any(i.read.feed for i in job.inputs):
        older = ", also what was there before from_version" if _partial(job) else ""
        sources.say(f"everything is computed again{older}: {way.why}")
    log.info("%s: follows its sources by %s%s", job.node.name, way.how, _counts(moved))
    rows = _rows(job, sources, way, moved)
    return FollowedSlice(
        rows=rows,
        scans=[*sources.scans, *(sources.snapshots if way.how in ("first", "recompute") else ())],
        versions=sources.versions(),
        coverage=_coverage(job, sources, way),
        evidence=_evidence(way, next(iter(rows.values()))),
        followed=Followed(way.how, _told(job, sources), tuple(sources.said)),
        sources=sources,
        way=way,
        moved=moved,
    )


def _evidence(way: _Way, rows: Relation) -> Snapshot | Changes:
    """All that there is, where everything is computed again; else what changed."""
    return Snapshot(rows) if way.how == "recompute" else Changes(rows)


def recipe(job: Job) -> str:
    """What decides which rows of the same sources come and go: once it is another one, everything is computed again."""
    node, write = job.node, job.node.write
    steps = [
        (s.operation, s.params)
        for s in (node.transform.steps if node.transform else [])
        if not s.brings_limits
    ]
    reads = [(i.alias, i.label, _seen_rows(i), _choice(i), i.read.triggers) for i in job.inputs]
    goes = (
        write.delete_when,
        write.delete_strategy == "ignore",
        write.sequence_by,
        write.update_condition,
    )
    text = json.dumps([steps, reads, node.transformation_sql, write.keys, goes], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _seen_rows(input_: Input) -> list[object]:
    """Which rows of a lake table count."""
    told = input_.read.system_columns
    found: list[object] = [
        input_.read.with_deleted,
        input_.read.versions == "all",
        told.names() if told else None,
    ]
    return [*found, "members"] if input_.read.include_members else found


def _choice(input_: Input) -> list[str] | None:
    """By which columns a feed chooses among rows of one key; None where no feed is followed."""
    return list(input_.read.feed.deduplication_columns) if input_.read.feed else None


def _partial(job: Job) -> bool:
    """Did its first run leave out what was there before some version?"""
    return any(i.read.feed and i.read.feed.from_version is not None for i in job.inputs)


def _coverage(job: Job, sources: Sources, way: _Way) -> Coverage:
    """A keyed table that follows everything is whole after every batch."""
    whole = way.how == "first" or (job.node.write.keyed and not _partial(job))
    return Coverage(
        kind="full" if whole else "increment",
        digest=job.digest,
        recipe=recipe(job),
        sources=sources.pins(),
        followed=way.how,
    )


def _counts(moved: Mapping[str, Moved]) -> str:
    known = [f"{alias} +{m.came} −{m.went}" for alias, m in moved.items() if m.unknown is None]
    return f" ({', '.join(known)})" if known else ""


def _told(job: Job, sources: Sources) -> str:
    """From which version to which, in words."""
    parts = []
    for input_ in job.inputs:
        state, at = sources.states[input_.alias], sources.position(input_)
        if input_.read.feed and state is not None:
            since = (
                f"after version {at[1]} up to {state.version}"
                if at
                else f"at version {state.version}"
            )
            parts.append(f"{input_.label} {since}")
    return ", ".join(parts)


# --- choosing a way ----------------------------------------------------------------------------------------


def _way(job: Job, sources: Sources, moved: dict[str, Moved]) -> _Way:
    """The quickest way that is right."""
    fed = [i for i in job.inputs if i.read.feed]
    _check_columns(job, sources, fed)
    if sources.fresh and (not fed or any(sources.position(i) is None for i in fed)):
        until_now = job.node.write.keyed and job.past.memory.whole
        return (
            _Way("recompute", "until now its sources were read in full")
            if until_now
            else _Way("first")
        )
    if why := _doubt(job, sources):
        return _Way("recompute", why)
    if not any(sources.stirred(i) for i in fed):
        return _Way("quiet")
    try:
        way = _incremental(job, sources) if job.node.write.keyed else _Way("rows")
    except NotIncremental as reason:
        kind = "SQL" if job.node.transformation_sql else "steps"
        return _Way("recompute", f"its {kind} cannot be followed change by change: {reason}")
    used = {p.alias for p in way.query.parts} if way.query else {i.alias for i in fed}
    moved.update(
        {
            i.alias: sources.moved(i) if i.alias in used and sources.stirred(i) else QUIET
            for i in fed
        }
    )
    why = next((m.unknown for m in moved.values() if m.unknown), None) or _past(
        job, sources, way, moved
    )
    if why is not None:
        return _Way("recompute", why)
    return _Way("quiet") if all(m.quiet for m in moved.values()) else way


def _check_columns(job: Job, sources: Sources, fed: Sequence[Input]) -> None:
    for input_ in fed:
        for key in ("primary_keys", "deduplication_columns"):
            for name in getattr(input_.read.feed, key):
                if name not in (columns := sources.columns(input_)):
                    raise UnknownColumn(
                        name, columns.names, where=f"{job.node.name}, {input_.label}: {key}"
                    )


def _doubt(job: Job, sources: Sources) -> str | None:
    """Why changes alone do not tell what has changed."""
    keyed = job.node.write.keyed
    if keyed and not sources.fresh and job.past.memory.recipe != recipe(job):
        return "the node's sources, steps, SQL, keys or rules of writing are other ones than before"
    if keyed and clockwork(job.node):
        return "the clock decides which rows it gives"
    full = [] if sources.fresh else [i for i in job.inputs if not i.read.feed and i.read.triggers]
    return next((why for i in full if (why := sources.changed(i))), None)


def _past(job: Job, sources: Sources, way: _Way, moved: Mapping[str, Moved]) -> str | None:
    """Which source cannot be seen as it was, where something that went must be joined with it."""
    if way.how != "keys":
        return None
    for input_ in job.inputs:
        others = [a for a, m in moved.items() if m.went and a != input_.alias]
        if others and _then(sources, input_, moved) is None:
            return f"{input_.label} as it was at the last run can no longer be read"
    return None


def _incremental(job: Job, sources: Sources) -> _Way:
    """By rows where one source passes its keys on, else by keys."""
    lookups = [i.alias for i in job.inputs if not i.read.triggers]
    schemas = {i.alias: sources.columns(i) for i in job.inputs}
    only = job.inputs[0] if len(job.inputs) == 1 else None
    passing = through_steps(job.node, schemas[only.alias]) if only else None
    query = None
    if job.node.transformation_sql is not None:
        shaped = (
            {only.alias: compare.shaped(job, sources.engine, sources.none(only)).schema}
            if only
            else schemas
        )
        query = incremental.follow(
            parse(job.node.transformation_sql, ""), job.node.write.keys, shaped, lookups
        )
    if only is None or passing is None:
        return _Way("keys", query=query)
    keys = _origins(job, passing.columns, query)
    primary = _primary(only, keys)
    apart = (
        job.node.write.mode != "delete_insert"
        and bool(primary)
        and all(set(primary) <= by for by in passing.deduplicated)
    )
    chosen = bool(passing.deduplicated or (only.read.feed and only.read.feed.deduplication_columns))
    if apart and set(primary) <= set(keys) and (query is None or query.row_by_row):
        return _Way(
            "rows", query=query, among=_spelled(primary, schemas[only.alias]) if chosen else ()
        )
    if chosen:
        raise NotIncremental(
            "rows are deduplicated by other columns than the keys that they are written by"
        )
    return _Way("keys", query=query)


def _origins(job: Job, passing: Mapping[str, str], query: incremental.Followed | None) -> list[str]:
    """The source's columns that the write keys are, where they are passed on unchanged."""
    found = []
    for key in job.node.write.keys:
        name = incremental.plain(query.keys[key]) if query else key
        if name is not None and name.casefold() in passing:
            found.append(passing[name.casefold()])
    return found


def _primary(input_: Input, origins: Sequence[str]) -> list[str]:
    given = input_.read.feed.primary_keys if input_.read.feed else []
    return [k.casefold() for k in given] or list(origins)


def _spelled(names: Sequence[str], schema: Schema) -> tuple[str, ...]:
    return tuple(c.name for n in names if (c := schema.get(n)))


def _then(sources: Sources, input_: Input, moved: Mapping[str, Moved]) -> Relation | None:
    """A source as it was: what did not move is as it is, and a lookup always counts as it is."""
    still = input_.alias not in moved or moved[input_.alias].quiet
    return sources.now(input_) if still else sources.then(input_)


# --- the rows that are new ---------------------------------------------------------------------------------


def _rows(job: Job, sources: Sources, way: _Way, moved: Mapping[str, Moved]) -> dict[str, Relation]:
    """What the steps and the SQL are given, by alias."""
    found = {}
    for input_ in job.inputs:
        if way.how == "quiet":
            found[input_.alias] = sources.none(input_)
        elif way.how == "rows" and input_.read.feed:
            found[input_.alias] = _came(sources, input_, moved[input_.alias], way)
        elif way.how in ("first", "recompute"):
            found[input_.alias] = _once(sources, input_, sources.now(input_))
        else:
            found[input_.alias] = sources.now(input_)
    return found


def _came(sources: Sources, input_: Input, moved: Moved, way: _Way) -> Relation:
    """The rows that came; where the steps choose among the rows of a key, all that its keys have."""
    engine, columns = sources.engine, sources.columns(input_)
    feed = input_.read.feed
    came = sources.side(input_, moved, 1)
    once = list(feed.deduplication_columns) if feed else []
    if once and moved.rows is not None:
        keys = [c.name for k in once if (c := columns.get(k))]
        came = engine.query(net.newest(engine.query(_signed(moved.rows, 1)), columns, keys))
    if not way.among or moved.rows is None or _unique(sources.job, input_, way.among):
        return came
    now = sources.now(input_)
    there = engine.query(rows_of(now).where(_among(moved.rows, now, way.among)))
    if count(engine, there) == moved.came:  # what came is there, and so there is nothing else
        return came
    every: exp.Query = rows_of(there)
    if once:  # the newest commit is known of what came, so that wins over what was there
        others = engine.query(rows_of(there).where(exp.Not(this=_among(came, there, once))))
        every = exp.union(rows_of(came), rows_of(_once(sources, input_, others)), distinct=False)
    return engine.stage(every, {"n": exp.Count(this=exp.Star())}, None).relation


def _signed(moved: Relation, sign: int) -> exp.Select:
    return rows_of(moved).where(exp.EQ(this=col(net.SIGN), expression=lit(sign)))


def _among(some: Relation, of: Relation, keys: Sequence[str]) -> exp.Expr:
    """Is there a row with the same keys? The rows asked for go by the name of their relation."""
    inner = select(lit(1)).from_(table(some.name, "w"))
    return exp.Exists(this=inner.where(same_keys([*keys], "w", of.name)))


def _once(sources: Sources, input_: Input, rows: Relation) -> Relation:
    """Without commits to tell: the highest of all columns per key."""
    feed = input_.read.feed
    if not feed or not feed.deduplication_columns:
        return rows
    keys = [c.name for k in feed.deduplication_columns if (c := rows.schema.get(k))]
    return sources.engine.query(newest_per_key(rows, keys, []))


def _unique(job: Job, input_: Input, primary: Sequence[str]) -> bool:
    """Does a node of this project see to it that a key has one row?"""
    writer = job.writer(lake_of(job, input_))
    several = writer is not None and writer.write.mode == "delete_insert"
    if writer is None or several or not writer.write.keyed or input_.read.versions == "all":
        return False
    return {k.casefold() for k in writer.write.keys} <= {k.casefold() for k in primary}


# --- through steps and SQL ---------------------------------------------------------------------------------


def transform(job: Job, engine: Engine, slice_: Slice, state: TableState | None) -> Transformed:
    """The rows to write, the keys of those that are gone, and of deleted ones that are back."""
    return with_presence(job, engine, slice_, _transformed(job, engine, slice_), state)


def _transformed(job: Job, engine: Engine, slice_: Slice) -> Transformed:
    if not isinstance(slice_, FollowedSlice) or slice_.way.how in ("first", "recompute", "quiet"):
        return compare.transform(job, engine, slice_, checking=True)
    if slice_.way.how == "keys":
        return _by_keys(job, engine, slice_)
    made = compare.transform(job, engine, slice_, checking=True)
    (input_,) = [i for i in job.inputs if i.read.feed]
    moved = slice_.moved[input_.alias]
    if not moved.went or not _applies(job):
        return made
    went = replace(
        slice_, rows={**slice_.rows, input_.alias: slice_.sources.side(input_, moved, -1)}
    )
    old = compare.transform(job, engine, went).rows
    return replace(made, gone=_left(job, engine, old, made))


def _applies(job: Job) -> bool:
    """Are deletes that the feed tells to be applied? With a live source to compare with, that knows better."""
    return job.detection is not None and job.detection.mode is DeleteDetectionMode.FEED


def _by_keys(job: Job, engine: Engine, slice_: FollowedSlice) -> Transformed:
    """All keys that may be affected, their rows as the sources are now, and those without one."""
    affected = _affected(job, engine, slice_)
    made = compare.transform(job, engine, slice_, checking=True)
    keys = [c.name for k in job.node.write.keys if (c := made.rows.schema.get(k))]
    rows = engine.query(rows_of(made.rows).where(_among(affected, made.rows, keys)))
    aside = only_of_keys(job, engine, made.rejected, affected, keys)
    made = replace(made, rows=rows, rejected=aside)
    return replace(made, gone=_left(job, engine, affected, made) if _applies(job) else None)


def _left(job: Job, engine: Engine, old: Relation, made: Transformed) -> Relation:
    """The keys that were there and have no row any more; one that was put aside has a row."""
    keys = job.node.write.keys
    there = with_rejected_keys(job, engine, made.rows, made.rejected, keys, None)
    if there is None:
        return engine.query(rows_of(_gone(job, engine, old, made.rows)).where(exp.false()))
    return _gone(job, engine, old, there)


def _affected(job: Job, engine: Engine, slice_: FollowedSlice) -> Relation:
    """The write keys of every row of the result that a moved row takes part in, on its own side."""
    sources, query = slice_.sources, slice_.way.query
    parts: list[exp.Query] = []
    for input_ in job.inputs:
        moved = slice_.moved.get(input_.alias)
        if moved is None:
            continue
        for sign, many in ((1, moved.came), (-1, moved.went)):
            if many:
                others = {i.alias: r for i in job.inputs if (r := _at(slice_, i, sign, input_))}
                others[input_.alias] = sources.side(input_, moved, sign)
                parts.append(rows_of(_keys(job, engine, others, query, input_.alias)))
    union = exp.union(*parts, distinct=True) if len(parts) > 1 else parts[0]
    return engine.stage(union, {"n": exp.Count(this=exp.Star())}, None).relation


def _at(slice_: FollowedSlice, input_: Input, sign: int, moving: Input) -> Relation | None:
    if input_.alias == moving.alias:
        return None
    return slice_.sources.now(input_) if sign > 0 else _then(slice_.sources, input_, slice_.moved)


def _keys(
    job: Job,
    engine: Engine,
    rows: Mapping[str, Relation],
    query: incremental.Followed | None,
    alias: str,
) -> Relation:
    """The write keys that the rows of one source take part in, over the others as they are given."""
    if len(rows) == 1:
        rows = {alias: compare.shaped(job, engine, rows[alias])}
    if query is not None:
        return compare.run_tree(job, engine, query.keys_of(alias), rows)
    only = rows[alias]
    columns = [col(c.name) for k in job.node.write.keys if (c := only.schema.get(k))]
    return engine.query(select(*columns).distinct().from_(table(only.name)))


def _gone(job: Job, engine: Engine, old: Relation, new: Relation) -> Relation:
    """The keys that were there and have no row any more."""
    keys = [
        (c.name, d.name)
        for k in job.node.write.keys
        if (c := new.schema.get(k)) and (d := old.schema.get(k))
    ]
    left = select(*(named(col(d, "o"), c) for c, d in keys)).distinct().from_(table(old.name, "o"))
    there = select(lit(1)).from_(table(new.name, "n"))
    there = there.where(
        exp.and_(*(exp.NullSafeEQ(this=col(c, "n"), expression=col(d, "o")) for c, d in keys))
    )
    return engine.query(left.where(exp.Not(this=exp.Exists(this=there))))
