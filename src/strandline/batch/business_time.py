"""A batch of a history in business time: new events, what was found out, and what the folded chains change.

The table is a function of the set of its events. So a batch commits its events first, under its token: from then on it
has landed. The chains of their keys are folded and compared with the table, and the difference is the second commit. A
run that died in between left events that nobody folded: `unfolded` finds them, and the next run folds them first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from strandline.batch import compare, deletes
from strandline.batch.checks import check_columns
from strandline.batch.compare import Landing, Outcome, Reconciled, Transformed
from strandline.batch.deletes import Finding
from strandline.batch.read import Slice
from strandline.config.deletes import DeleteDetectionConfig
from strandline.config.writes import instant
from strandline.control.coverage import NOTHING
from strandline.engine.base import Engine, LakeSource, Staged
from strandline.errors import TableError, TransformError
from strandline.lake import describe
from strandline.plan.job import Job
from strandline.sql.expr import (
    OUTER,
    all_of,
    any_of,
    cast,
    col,
    count_where,
    eq,
    is_null,
    lit,
    named,
    negate,
    rows_of,
    same,
    select,
    table,
)
from strandline.strategy import decisions, events, fold
from strandline.strategy.announced import ANNOUNCED, announcing
from strandline.strategy.changes import (
    ACTION,
    ChangeSet,
    Proposal,
    Removals,
    evaluated,
    key_ranges,
    range_measures,
)
from strandline.strategy.events import BATCH, INSTANT, TIMES, Course
from strandline.strategy.fit import Fit, fit
from strandline.strategy.keyed import decide
from strandline.strategy.question import GONE, IN, NOTE, SEEN, STREAK, WAS, Keeping, Question
from strandline.strategy.verdict import Verdict
from strandline.types import APP, Counts, Increment, Relation, Schema, Table, TableState
from strandline.words import agree, plural


@dataclass(frozen=True)
class Book:
    """The events that are there, before a batch adds to them."""

    table: Table
    state: TableState | None
    rows: Relation | None

    @property
    def columns(self) -> Schema | None:
        return self.state.schema.without(*self.state.system) if self.state else None


def book_of(job: Job, engine: Engine, state: TableState | None) -> Book:
    """The events of a node; an error when its table was not made from them."""
    place = job.events
    assert place is not None
    written = describe(place, APP)
    if written is None:
        if state is not None:
            raise TableError(
                f"{job.target.label} was written without effective_at: what happened when is not known of its versions",
                hint="write another table, or remove effective_at",
            )
        return Book(place, None, None)
    mine = state.commit.number if state and state.commit else 0
    if mine > (written.commit.number if written.commit else 0):
        raise TableError(
            f"{job.target.label} was also written without effective_at, so {place.label} lacks some of its events",
            hint="write another table, or remove effective_at",
        )
    return Book(place, written, engine.scan(LakeSource(place, written.version)).relation)


def course_of(job: Job, columns: Schema) -> Course:
    """What the configuration says of a history whose events have these columns."""
    write = job.node.write

    def spelled(name: str) -> str:
        found = columns.get(name)
        return found.name if found else name

    quiet = (write.effective_at, write.sequence_by)
    tracked = (
        [spelled(n) for n in write.track]
        if write.track
        else fold.tracked(columns.columns, write.keys, quiet)
    )
    return Course(
        tuple(map(spelled, job.keys)),
        columns,
        spelled(write.effective_at or ""),
        job.at,
        job.number,
        tuple(tracked),
        spelled(write.sequence_by) if write.sequence_by else None,
        compare.is_hard(job),
        instant(write.open_end) if write.open_end is not None else None,
    )


# --- a batch -----------------------------------------------------------------------------------------------


def prepare(
    job: Job, engine: Engine, slice_: Slice, made: Transformed, state: TableState | None
) -> Outcome:
    """Reconcile, evaluate and judge: the new events, and the change set that their chains make."""
    book = book_of(job, engine, state)
    come, course, shape = _come(job, engine, book, made.rows, state)
    found = deletes.find(job, engine, slice_, made.rows, made, state)
    judged = _Judged(_question(job, engine, course, state))
    if looked := found or _present(made):
        staged = engine.stage(events.fresh(come, None, course), _measures(), None)
        _refuse_null(job, engine, staged, course)
        judged, come = _look(job, engine, book, staged.relation, course, judged, looked)
    new = engine.stage(events.fresh(come, book.rows, course), _measures(), None)
    _refuse_null(job, engine, new, course)
    landing = _landing(book, shape, new, course)
    outcome = folded(
        job, engine, _touched(engine, book, new.relation, course, state), course, state
    )
    told = _told(engine, outcome, judged, course)
    counts = replace(outcome.changes.counts or Counts(), held=judged.held)
    made_ = replace(outcome.made, question=judged.question, finding=found)
    return replace(
        outcome,
        slice=slice_,
        rows=made.rows,
        made=made_,
        changes=replace(outcome.changes, counts=counts),
        verdict=judged.verdict if found else None,
        decided=told,
        measured={
            **judged.measured,
            "deleted": max(counts.deleted, judged.measured["deleted"]),
            "reopened": counts.reopened,
        },
        warnings=judged.warnings,
        events=landing if landing.commits else None,
    )


def _come(
    job: Job, engine: Engine, book: Book, rows: Relation, state: TableState | None
) -> tuple[exp.Query, Course, Fit]:
    """The rows of the slice as events, and how the table of events takes them."""
    roles = compare.system_roles(job, state)
    check_columns(job, rows, state, roles)
    if taken := next((n for n in events.ROLES.values() if n in rows.schema), None):
        raise TableError(
            f"{job.node.name}: the rows bring a column `{taken}`, which {book.table.label} keeps for itself",
            hint="rename it with a rename step",
        )
    when = rows.schema.get(job.node.write.effective_at or "")
    if when is None or when.type not in TIMES:
        kind = when.type if when else "missing"
        raise TransformError(
            f"{job.node.name}: write.effective_at: column `{job.node.write.effective_at}` is {kind}, not a time",
            hint="cast it: {operation: cast, params: {columns: {"
            + (when.name if when else "")
            + ": timestamp}}}",
        )
    _, rows = compare.partitioned(job, engine, rows, state)
    system = book.state.system if book.state else ()
    shape = fit(rows.schema, book.state.schema if book.state else None, system, book.table.label)
    course = course_of(job, shape.columns)
    gone = compare.announcing(job, engine, rows)
    ignored = job.node.write.delete_strategy == "ignore"
    come: exp.Query = events.slice_events(rows, course, gone, ignore=ignored)
    if shape.kept and book.rows is not None:
        come = events.filled(come, book.rows, course, [c.name for c in shape.kept])
    return come, course, shape


def _measures() -> dict[str, exp.Expr]:
    return {
        "n": cast(exp.Count(this=exp.Star()), "bigint"),
        "nulls": count_where(is_null(col(INSTANT))),
    }


def _refuse_null(job: Job, engine: Engine, staged: Staged, course: Course) -> None:
    if not staged.measures["nulls"]:
        return
    lost = (
        select(*map(col, course.keys))
        .from_(table(staged.relation.name))
        .where(is_null(col(INSTANT)))
        .limit(5)
    )
    shown = "; ".join(
        ", ".join(f"{k}={v}" for k, v in zip(course.keys, row, strict=True))
        for row in engine.fetch(lost)
    )
    n = staged.measures["nulls"]
    raise TransformError(
        f"{job.node.name}: {plural(n, 'row')} {agree(n, 'has', 'have')} no `{course.effective_at}`, so it is not known "
        f"since when {agree(n, 'it is', 'they are')} true: {shown}",
        hint="give them one with a derive step, or leave them out with a filter step",
    )


def _landing(book: Book, shape: Fit, new: Staged, course: Course) -> Landing:
    columns = course.columns.plus(*events.SYSTEM)
    counts = Counts(inserted=int(new.measures["n"] or 0))
    changes = ChangeSet(new.relation, columns, Removals.NOTHING, (), (), dict(events.ROLES), counts)
    return Landing(book.table, book.state, changes, shape.added)


# --- what is found out besides -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Judged:
    """What evidence of presence and absence says, and the verdict on it."""

    question: Question
    decided: Relation | None = None
    verdict: Verdict | None = None
    measured: Mapping[str, Any] = field(
        default_factory=lambda: dict.fromkeys(decisions.decision_measures(), 0)
    )
    warnings: tuple[str, ...] = ()

    @property
    def held(self) -> int:
        new = self.verdict.found if self.verdict and self.verdict.kind == "hold" else 0
        return int(self.measured["open"]) + new


def _present(made: Transformed) -> Finding | None:
    """What a node that looks for no deletes knows of keys that were deleted."""
    if made.presence is None:
        return None
    return Finding(DeleteDetectionConfig(), made.presence, lambda _: False, made.warnings)


def _question(job: Job, engine: Engine, course: Course, state: TableState | None) -> Question:
    """Keys only: what their values are is for the events to say."""
    keys = Schema(tuple(c for k in course.keys if (c := course.columns.get(k))))
    roles = {r: n for r, n in compare.system_roles(job, state).items() if r != "row_hash"}
    stored = {r: n for r, n in state.roles.items() if r != "row_hash"} if state else {}
    target = compare.target_rows(job, engine, state)
    keeping = Keeping(course.keys, roles, course.at, hard=course.hard)
    none = Relation("", keys)
    return Question(
        none, target, Fit(keys), keeping, unique=True, stored=stored, gone=GONE, woven=True
    )


def _look(
    job: Job,
    engine: Engine,
    book: Book,
    come: Relation,
    course: Course,
    judged: _Judged,
    found: Finding,
) -> tuple[_Judged, exp.Query]:
    """Decide with one row per key of the slice; what that says becomes events beside those of the slice."""
    rows = engine.query(events.newest(come, course))
    question = replace(judged.question, rows=rows, absence=found.absence)
    if (
        found.gone is not None
    ):  # a feed decides about the keys that it says are gone; deletes of its rows are events
        there = engine.query(rows_of(rows, question.fit.columns).where(negate(col(GONE))))
        question = replace(
            question, rows=engine.query(announcing(there, found.gone)), gone=ANNOUNCED, woven=False
        )
    known = any_of([col(IN), all_of([col(SEEN), col(WAS)])])
    keep = any_of([decisions.keep(), exp.Coalesce(this=known, expressions=[exp.false()])])
    staged = engine.stage(decide(question), decisions.decision_measures(), keep)
    verdict, warnings = compare.judged(job, found, staged.measures)
    judged = _Judged(
        question, staged.relation, verdict, staged.measures, (*found.warnings, *warnings)
    )
    said = engine.query(
        events.words(staged.relation, course, applied=verdict is None or verdict.applied)
    )
    names = [*course.columns.names, INSTANT, events.KIND]
    mine = select(*map(col, names)).from_(table(come.name))
    if verdict and verdict.kind == "refuse":
        return judged, mine.where(exp.false())
    more = events.found(said, come, book.rows, course)
    return judged, exp.union(mine, more, distinct=False)


def _told(engine: Engine, outcome: Outcome, judged: _Judged, course: Course) -> Relation:
    """What is recorded of single keys: what was decided about them, and what became of their chains."""
    keys = [col(k) for k in course.keys]
    verb, none = named(col(fold.KEY_VERB), ACTION), named(cast(exp.null(), "string"), NOTE)
    chains = select(
        *keys, named(eq(col(fold.KEY_VERB), lit("delete")), GONE), verb, none, named(lit(0), STREAK)
    )
    chains = chains.from_(table(outcome.changes.additions.name, OUTER)).where(
        negate(is_null(col(fold.KEY_VERB, OUTER)))
    )
    if judged.decided is None:
        return engine.query(chains)
    goes = eq(col(ACTION, "d"), lit("delete"))
    noted = [named(exp.false(), GONE), *(named(col(n, "d"), n) for n in (ACTION, NOTE, STREAK))]
    spoken = select(*(named(col(k, "d"), k) for k in course.keys), *noted).from_(
        table(judged.decided.name, "d")
    )
    spoken = spoken.where(any_of([goes, negate(is_null(col(NOTE, "d")))]))
    twice = select(lit(1)).from_(table(judged.decided.name, "d"))
    twice = twice.where(
        all_of([*(same(col(k, "d"), col(k, OUTER)) for k in course.keys), goes.copy()])
    )
    announced = any_of(
        [negate(eq(col(fold.KEY_VERB, OUTER), lit("delete"))), exp.Not(this=exp.Exists(this=twice))]
    )
    return engine.query(exp.union(chains.where(announced), spoken, distinct=False))


# --- folding -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Touched:
    """The keys whose chains are folded, and all their events."""

    keys: Relation
    events: exp.Query


def _touched(
    engine: Engine, book: Book, new: Relation, course: Course, state: TableState | None
) -> Touched:
    """The keys of new events; also of those that a dead run left unfolded, and all of them when there is no table."""
    names = [*course.columns.names, INSTANT, events.KIND]
    mine = select(*map(col, names)).from_(table(new.name))
    if book.rows is None:
        return Touched(new, mine)
    keys = new
    shown = state.commit.number if state and state.commit else 0
    if state is None or (book.state and book.state.commit and book.state.commit.number > shown):
        old = select(*map(col, course.keys)).from_(table(book.rows.name))
        if state is not None:
            old = old.where(exp.GT(this=col(BATCH), expression=lit(shown)))
        both = exp.union(select(*map(col, course.keys)).from_(table(new.name)), old, distinct=False)
        keys = engine.query(both)
    stored = events.of_keys(book.rows, keys, course, events.values_of(book.rows, course))
    return Touched(keys, exp.union(stored, mine, distinct=False))


def folded(
    job: Job, engine: Engine, touched: Touched, course: Course, state: TableState | None
) -> Outcome:
    """The change set that the chains of some keys make of a table."""
    target = compare.target_rows(job, engine, state)
    roles = compare.system_roles(job, state)
    shape = fit(
        course.columns,
        state.schema if state else None,
        state.system if state else (),
        job.target.label,
    )
    tree = fold.changes(
        fold.versions(touched.events, course), touched.keys, target, shape, course, roles
    )
    keeping = Keeping(course.keys, roles, course.at, hard=course.hard)
    locator = (*course.keys, roles["valid_from"])
    parts = (
        state.partition_by
        if state
        else tuple(c.name for p in job.node.write.partition_by if (c := course.columns.get(p)))
    )
    columns = shape.columns.plus(*keeping.columns)
    proposal = Proposal(tree, columns, Removals.REPLACED, locator, parts, roles, drops=True)
    staged = engine.stage(tree, {**fold.key_measures(), **range_measures(proposal)}, proposal.keep)
    counts = Counts(**{n: int(staged.measures[n] or 0) for n in fold.key_measures()})
    types = {role: c.type for role, c in zip(roles, keeping.columns, strict=True)}
    made = Reconciled(shape, proposal, target, compare.new_system(roles, state, types))
    changes = evaluated(proposal, staged.relation, counts, key_ranges(staged.measures))
    return Outcome(Slice({}, [], {}, NOTHING, Increment(touched.keys)), touched.keys, made, changes)


def unfolded(job: Job, engine: Engine, number: int, state: TableState | None) -> Outcome:
    """What the events of a batch change that landed while its runner died before it folded them."""
    book = book_of(job, engine, state)
    assert book.rows is not None
    assert book.columns is not None
    course = course_of(job, book.columns)
    mine = select(*map(col, course.keys)).from_(table(book.rows.name))
    keys = engine.query(mine if state is None else mine.where(eq(col(BATCH), lit(number))))
    stored = events.of_keys(book.rows, keys, course, events.values_of(book.rows, course))
    return folded(job, engine, Touched(keys, stored), course, state)


def compiled(job: Job, engine: Engine, made: Transformed, state: TableState | None) -> exp.Query:
    """The query that finds what the events of a slice change."""
    book = book_of(job, engine, state)
    come, course, _ = _come(job, engine, book, made.rows, state)
    new = engine.query(events.fresh(come, book.rows, course))
    return folded(
        job, engine, _touched(engine, book, new, course, state), course, state
    ).made.proposal.rows
