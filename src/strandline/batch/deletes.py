"""Looking for deletes: which evidence of absence a node has, over which rows it speaks, and what was noted before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Any, Protocol

from sqlglot import exp

from strandline.batch.open_notes import open_notes
from strandline.batch.read import Slice, count, stored_rows
from strandline.batch.target_filter import target_filter
from strandline.config.deletes import DeleteDetectionConfig, DeleteDetectionMode
from strandline.config.increments import duration
from strandline.engine.base import Engine, LakeSource
from strandline.errors import ReadError, TransformError, UnknownColumn
from strandline.journal import log
from strandline.plan.inputs import live_source, source_of
from strandline.plan.job import Job
from strandline.plan.watermark import decided_by, in_the_future
from strandline.sql import key_runs
from strandline.sql.expr import (
    all_of,
    col,
    count_where,
    is_null,
    named,
    negate,
    rows_of,
    select,
    table,
)
from strandline.sql.hash import hashable
from strandline.sql.incremental import NotIncremental
from strandline.sql.portable import family
from strandline.strategy.absence import Absence, Telling, partition_scope, window_scope
from strandline.strategy.announced import held_keys, together
from strandline.strategy.changes import living
from strandline.transform.lineage import rewritten, through_steps
from strandline.transform.registry import Detection
from strandline.types import Changes, LiveKeys, Relation, Snapshot, TableState, Window

FIRST_RUN = (
    "inferDeletesFromMissing is enabled but no previous watermark values available. "
    "No deletes will be inferred. This is expected on first run."
)
NULL_MARKS = "Records with NULL values in watermark columns will NOT be considered for deletion."


Empty = Callable[[Mapping[str, Any]], bool]
"""Is the evidence empty as a whole, after what was measured while it was compared?"""


@dataclass(frozen=True)
class Finding:
    """Evidence of absence, what it warns of, and whether it is empty as a whole."""

    config: DeleteDetectionConfig
    absence: Absence
    empty: Empty
    warnings: tuple[str, ...] = ()
    gone: Relation | None = None  # keys of which the source itself says that they are gone
    living: Callable[[], int] | None = (
        None  # how many rows of the table are alive, where not all of them are looked at
    )
    live: int | None = None  # how many keys the live source has


@dataclass
class _Look:
    """What is known while the evidence is gathered."""

    job: Job
    engine: Engine
    config: DeleteDetectionConfig
    slice_: Slice
    rows: Relation  # as they are to be written
    at_step: Relation  # as they were where deletes are looked for
    state: TableState | None
    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        log.warning("%s: %s", self.job.node.name, text)
        self.warnings.append(text)


def find(
    job: Job, engine: Engine, slice_: Slice, rows: Relation, made: Made, state: TableState | None
) -> Finding | None:
    """The evidence that a node has; None when it does not look for deletes."""
    config, step = job.detection, made.detection
    if config is None:
        return None
    look = _Look(
        job, engine, config, slice_, rows, step.rows if step else _raw(slice_, rows, config), state
    )
    _refuse_other_keys(look)
    match config.mode:
        case DeleteDetectionMode.SNAPSHOT_DIFF:
            absence, empty = _snapshot(look)
        case DeleteDetectionMode.SQL_COMPARE:
            absence, number = _live(look)
            return Finding(
                config, absence, lambda _: number == 0, tuple(look.warnings), live=number
            )
        case DeleteDetectionMode.FEED:
            return _fed(look, made.gone)
        case _:
            absence, empty = _window(look)
    return Finding(config, absence, empty, tuple(look.warnings))


class Made(Protocol):
    """What a node's steps and SQL made, as far as deletes are concerned."""

    @property
    def detection(self) -> Detection | None: ...

    @property
    def gone(self) -> Relation | None: ...


def _raw(slice_: Slice, rows: Relation, config: DeleteDetectionConfig) -> Relation:
    """The whole slice as it was read, when it has the keys; else the rows to write."""
    first = next(iter(slice_.rows.values()))
    return first if all(k in first.schema for k in config.keys) else rows


def _refuse_other_keys(look: _Look) -> None:
    """Keys that are rewritten after the point where deletes are looked for would all look deleted."""
    node, keys = look.job.node, look.job.node.write.keys
    if look.config.mode is DeleteDetectionMode.FEED or look.at_step.name == look.rows.name:
        return
    found = rewritten(node, [k for k in keys if k in look.at_step.schema], _position(look.job))
    if found:
        name, by = found
        raise TransformError(
            f"{node.name}: deletes are looked for by `{name}` as it was read, but {by} writes another value there",
            hint=f"look for deletes after that: put a detect_deletes step behind it, or give `{name}` another name",
        )


def _position(job: Job) -> int:
    """The number of steps up to where deletes are looked for; 0 without a step for it."""
    steps = job.node.transform.steps if job.node.transform else []
    looking = (s.operation == "detect_deletes" and s.params.get("mode") != "none" for s in steps)
    return next((number for number, looks in enumerate(looking, start=1) if looks), 0)


def _absence(
    look: _Look, evidence: Telling, *, scope: exp.Expr | None, fresh: bool = True
) -> Absence:
    among = target_filter(look.job, look.engine, look.state)
    parts = [p for p in (scope, among) if p is not None]
    past = look.job.past
    noted = past.memory.notes and past.notebook is not None
    return Absence(
        evidence,
        seen=None if evidence.rows.name == look.rows.name else evidence.rows,
        scope=all_of(parts) if parts else None,
        among=among,
        notes=open_notes(look.engine, past.notebook, look.job) if noted and past.notebook else None,
        confirm=look.config.confirm_runs,
        fresh=fresh,
    )


# --- by snapshot -------------------------------------------------------------------------------------------


def _snapshot(look: _Look) -> tuple[Absence, Empty]:
    evidence, last = look.slice_.evidence, look.job.past.memory.snapshot
    if not isinstance(evidence, Snapshot):
        raise ReadError(
            f"{look.job.node.name}: snapshot_diff needs a full snapshot, but its source was read incrementally",
            hint="use mode: sql_compare, or mode: watermark_window, or read the source in full",
        )
    scope = None
    if last is None:
        if look.config.on_first_run == "error" and not look.job.past.first:
            name = look.job.node.name
            raise ReadError(
                f"{name}: snapshot_diff: there is no earlier snapshot to compare with (on_first_run: error); "
                "nothing was written",
                hint=f"load it once as the first snapshot: strandline run --first --select {name}",
            )
        log.info("%s: first snapshot, no deletes are looked for", look.job.node.name)
        scope = exp.false()
    elif look.slice_.outdated:
        look.warn(look.slice_.outdated)
        scope = exp.false()
    elif _quiet(look, last):
        log.info("%s: the read found no new rows, so there is no new snapshot", look.job.node.name)
        scope = exp.false()
    fresh = look.slice_.coverage.snapshot != last
    absence = _absence(look, evidence.over(look.at_step), scope=scope, fresh=fresh)
    return absence, lambda measured: _no_key(look, absence, measured)


def _quiet(look: _Look, last: Any) -> bool:
    """Did an incremental read find nothing new? Then it brought no snapshot, not an empty one."""
    limited = look.job.inputs[0].read.limited and look.slice_.coverage.snapshot == last
    return limited and count(look.engine, look.at_step) == 0


def _no_key(look: _Look, absence: Absence, measured: Mapping[str, Any]) -> bool:
    """Is there no row with a whole key? Rows that have lost their keys are as little evidence as no rows."""
    if absence.seen is None:
        return not measured["came"]
    rows = absence.evidence.rows
    names = [rows.schema.get(k) for k in look.config.keys]
    whole = [negate(is_null(col(c.name))) for c in names if c is not None]
    return count(look.engine, look.engine.query(rows_of(rows).where(all_of(whole)))) == 0


# --- by the live source ------------------------------------------------------------------------------------


def _live(look: _Look) -> tuple[Absence, int]:
    """The keys that the source has at this moment, read once; and their number."""
    config = look.config
    source = live_source(look.job.project, config)
    relation = look.engine.scan(source).relation
    if key_runs.folded(relation):
        return _live_runs(look, relation)
    missing = [k for k in config.keys if k not in relation.schema]
    if missing:
        raise UnknownColumn(
            missing[0],
            relation.schema.names,
            where=f"{look.job.node.name}: sql_compare, {source.label}",
        )
    keys = [named(col(c.name), c.name) for k in config.keys if (c := relation.schema.get(k))]
    whole = all_of(negate(is_null(col(k.alias))) for k in keys)
    counted = {"n": count_where(whole)}
    staged = look.engine.stage(select(*keys).from_(table(relation.name)), counted, None)
    log.info("%s: the live source has %s keys", look.job.node.name, staged.measures["n"])
    return _absence(look, LiveKeys(staged.relation), scope=None), int(staged.measures["n"])


def _live_runs(look: _Look, runs: Relation) -> tuple[Absence, int]:
    """The live source's keys, carried as runs of consecutive numbers."""
    staged = look.engine.stage(
        rows_of(runs), {"n": key_runs.count(), "runs": exp.Count(this=exp.Star())}, None
    )
    found = staged.measures
    log.info(
        "%s: the live source has %s keys, in %s runs", look.job.node.name, found["n"], found["runs"]
    )
    keys = look.engine.query(
        key_runs.unfold(staged.relation, look.config.keys[0], runs.schema.columns[0].type)
    )
    return _absence(look, LiveKeys(keys), scope=None), int(found["n"])


# --- by a feed ---------------------------------------------------------------------------------------------


def _fed(look: _Look, gone: Relation | None) -> Finding:
    """What a feed says is gone, and what is still held; or, where everything was computed again, what is not in it."""
    evidence, followed = look.slice_.evidence, look.slice_.followed
    keys = [c for k in look.job.keys if (c := look.rows.schema.get(k))]
    if not all(
        hashable(c) for c in keys
    ):  # a hold that cannot be noted would be a delete that is lost
        strict = (
            {"on_threshold_breach": "error"} if look.config.on_threshold_breach == "hold" else {}
        )
        strict |= {"on_empty_source": "error"} if look.config.on_empty_source == "hold" else {}
        look.config = look.config.model_copy(update=strict)
    if followed is not None and isinstance(evidence, Snapshot):
        absence = replace(_absence(look, evidence.over(look.rows), scope=None), result=True)
        return Finding(
            look.config, absence, lambda measured: not measured["came"], tuple(look.warnings)
        )
    absence = _absence(look, Changes(look.rows), scope=None)  # what is not among them is as it was
    target = (
        look.engine.scan(LakeSource(look.job.target, look.state.version)).relation
        if look.state
        else None
    )
    if absence.notes is not None and target is not None and look.state is not None:
        held = look.engine.query(
            held_keys(target, look.state.roles, absence.notes, look.rows, keys)
        )
        gone = held if gone is None else look.engine.query(together(gone, held))
    if followed is not None and followed.how == "first" and look.state is not None:
        log.info("%s: first read of a feed, no deletes are looked for", look.job.node.name)

    def alive() -> int:
        return (
            count(look.engine, look.engine.query(_in_question(look, target)))
            if target is not None
            else 0
        )

    return Finding(look.config, absence, lambda _: False, tuple(look.warnings), gone, alive)


def _in_question(look: _Look, target: Relation) -> exp.Select:
    parts = [
        living(look.state.roles) if look.state else exp.true(),
        target_filter(look.job, look.engine, look.state),
    ]
    return rows_of(target).where(all_of(p for p in parts if p is not None))


# --- by a window -------------------------------------------------------------------------------------------


def _window(look: _Look) -> tuple[Absence, Empty]:
    slice_ = look.slice_
    bounds = {n: b for n, b in slice_.window.items() if b[0] is not None and b[1] is not None}
    if not isinstance(slice_.evidence, Window):
        raise ReadError(
            f"{look.job.node.name}: watermark_window needs one source that is read from a watermark on",
            hint="give its read a watermark, or use mode: snapshot_diff or sql_compare",
        )
    evidence = slice_.evidence.over(_looked_again(look) if look.job.past.approved else look.at_step)
    scope = _window_scope(look, bounds)
    absence = _absence(look, evidence, scope=exp.false() if scope is None else scope)
    return absence, lambda _: False  # an empty window infers nothing


def _looked_again(look: _Look) -> Relation:
    """Before approved deletes are applied: the keys of the slice, and of all that the source has, whatever its mark.

    A row that came back with an old mark lies in no window.
    """
    job, input_ = look.job, look.job.inputs[0]
    source, state = source_of(job.project, job.node, input_)
    scan = stored_rows(job, look.engine, input_, state, None) if state else look.engine.scan(source)
    whole = scan.relation
    try:
        passing = through_steps(job.node, whole.schema).columns
    except NotIncremental:
        passing = {}
    origins = {k: whole.schema.get(passing.get(k.casefold(), "")) for k in job.node.write.keys}
    if None in origins.values():
        raise TransformError(
            f"{job.node.name}: nobody can look again for what is held: the keys are not columns of {input_.label}",
            hint="reject the deletes, or find them with mode: sql_compare, which asks the source for its keys",
        )
    mine = select(*(named(col(c.name), k) for k in origins if (c := look.at_step.schema.get(k))))
    all_ = select(*(named(col(c.name), k) for k, c in origins.items() if c))
    sides = mine.from_(table(look.at_step.name)), all_.from_(table(whole.name))
    return look.engine.query(exp.union(*sides, distinct=False))


def _window_scope(look: _Look, bounds: dict[str, tuple[Any, Any]]) -> exp.Expr | None:
    """Which stored rows the window speaks of; None when it says nothing."""
    node, slice_ = look.job.node.name, look.slice_
    if not _read_before(look):
        look.warn(FIRST_RUN)
        return None
    if look.state is None:
        log.info("%s: there is no table yet, so nothing can be missing from it", node)
        return None
    if len(bounds) < len(slice_.window):
        log.info("%s: the read found no rows, so its window says nothing", node)
        return None
    for name, (low, high) in bounds.items():
        log.info(
            "%s: Delete detection window for column '%s': [%s <= %s <= %s]",
            node,
            name,
            low,
            name,
            high,
        )
        if too_wide := _gap(look, name, high):
            look.warn(too_wide)
            return None
    told = {name: bound for name, bound in bounds.items() if _comparable(look, name, look.state)}
    if not told:
        log.info(
            "%s: no watermark column is left to tell the window by; no deletes are inferred", node
        )
        return None
    if not decided_by(look.job.inputs[0].read, list(told)):
        look.warn("what is left of the window is wider than what was read; no deletes are inferred")
        return None
    log.info(
        "%s: inferDeletesFromMissing is active. Records in the watermark window "
        "that are missing from the source will be marked as deleted.",
        node,
    )
    log.warning("%s: Note: %s", node, NULL_MARKS)
    scope = window_scope(told, look.state.schema)
    assert scope is not None, "the table has these columns"
    return all_of([scope, *_partitions(look)])


def _read_before(look: _Look) -> bool:
    """Did an earlier run leave a mark in every column? A bound that the configuration gives is none: nobody knows then
    whether what the table holds came from this source at all.
    """
    known, window = {name.casefold() for name in look.job.past.marks()}, look.slice_.window
    return bool(window) and all(
        low is not None and name.casefold() in known for name, (low, _) in window.items()
    )


def _comparable(look: _Look, name: str, state: TableState) -> bool:
    """Does the table keep a mark as it was read? One of another type lies elsewhere: a day is not its hours."""
    kept, read = state.schema.get(name), next(iter(look.slice_.rows.values())).schema.get(name)
    if kept is None:
        look.warn(
            f"Watermark column '{name}' not found in target schema; skipping it for delete detection."
        )
        return False
    if (found := rewritten(look.job.node, [name], 0)) is not None:
        look.warn(
            f"Watermark column '{name}' is written anew by {found[1]}; skipping it for delete detection."
        )
        return False
    if (
        read is None
        or kept.type == read.type
        or family(kept.type) == family(read.type) == "integer"
    ):
        return True
    types = f"is of type {kept.type} in the table and {read.type} at the source"
    look.warn(f"Watermark column '{name}' {types}; skipping it for delete detection.")
    return False


def _gap(look: _Look, name: str, high: Any) -> str | None:
    """A pause that was too long: what was changed and changed again meanwhile may look deleted."""
    limit, marks = (
        look.config.max_window_gap,
        {n.casefold(): m for n, m in look.job.past.marks().items()},
    )
    mark = marks.get(name.casefold())
    allowed = duration(limit) if isinstance(limit, str) else limit
    if allowed is None or mark is None:
        return None
    high = in_the_future(high, mark.type, look.job.clock.now) or high
    times = isinstance(high, date)
    if isinstance(high, str) or (isinstance(allowed, timedelta) and not times):
        column = f"column `{name}` of type {mark.type}"
        raise ReadError(
            f"{look.job.node.name}: max_window_gap: {limit} cannot be compared with {column}",
            hint="a text has no distance: leave it out"
            if isinstance(high, str)
            else "give a plain number",
        )
    if times and not isinstance(allowed, timedelta):
        allowed = timedelta(days=float(allowed))
    if high - mark.value <= allowed:
        return None
    return f"{name} went from {mark.value} to {high}, further than max_window_gap: {limit}; no deletes are inferred"


def _partitions(look: _Look) -> list[exp.Expr]:
    state = look.state
    columns = [
        c for p in (state.partition_by if state else ()) if state and (c := state.schema.get(p))
    ]
    columns = [c for c in columns if c.name in look.rows.schema]
    if not columns:
        return []
    names = [col(look.rows.schema.get(c.name).name) for c in columns]  # type: ignore[union-attr]
    present = look.engine.fetch(select(*names).distinct().from_(table(look.rows.name)))
    return [partition_scope(columns, present)]
