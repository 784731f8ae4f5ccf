"""What a batch puts aside: the rows that enter `<table>__quarantine`, and those that leave it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from sqlglot import exp

from strandline.batch.compare import Landing, Quarantine, Transformed
from strandline.batch.read import Slice
from strandline.batch.rejected import keys_at
from strandline.config.expectations import validations
from strandline.config.model import NodeConfig
from strandline.engine.base import Engine, LakeSource
from strandline.journal import log
from strandline.lake import describe, format_of
from strandline.plan.job import Job
from strandline.sql.expr import cast, col, eq, lit, negate, one_of, rows_of, select, table
from strandline.strategy import quarantine as shelf
from strandline.strategy.changes import ACTION
from strandline.strategy.quarantine import Layout, Standing
from strandline.transform.registry import Rejected
from strandline.types import Counts, Relation, Schema, Snapshot, TableState


@dataclass(frozen=True)
class There:
    """The quarantine of a table as a batch finds it."""

    state: TableState
    rows: Relation  # all of them
    standing: Standing
    steps: tuple[int, ...]

    def counting(self, engine: Engine, job: Job) -> Relation:
        """The rows of this node that are in quarantine."""
        others = job.beside
        mine = negate(one_of(col(shelf.NODE), others)) if others else exp.true()
        return engine.query(rows_of(self.rows).where(exp.and_(self.standing.counts(), mine)))


def sets_aside(node: NodeConfig) -> bool:
    """Can a step of the node put rows aside?"""
    steps = node.transform.steps if node.transform else []
    return any(config.quarantines for _, config in validations(steps))


def there(job: Job, engine: Engine) -> There | None:
    """The quarantine of a node's table; None when there is none."""
    state = describe(job.quarantine, job.app_id)
    if state is None:
        return None
    rows = engine.scan(LakeSource(job.quarantine, state.version)).relation
    names = (shelf.NODE, shelf.RUN, shelf.LEFT, shelf.STEP)
    seen = engine.fetch(select(*map(col, names)).distinct().from_(table(rows.name)))
    standing = Standing.of([s[:3] for s in seen], job.past.ended())
    return There(state, rows, standing, tuple(sorted({s[3] for s in seen})))


def put_aside(
    job: Job, engine: Engine, slice_: Slice, made: Transformed, chosen: exp.Expr | None = None
) -> Quarantine | None:
    """What a batch does to the quarantine; None when it has nothing to do with one.

    `chosen` tells which of the rows there are put through the node again: they leave, unless they fail again.
    """
    if not sets_aside(job.node) and not made.rejected and chosen is None:
        return None
    have = there(job, engine)
    if have is None and not any(r.any for r in made.rejected):
        return Quarantine(0, None)
    layout = Layout(have.state.schema if have else None)
    come = _come(job, engine, made.rejected, layout)
    columns = layout.schema
    stored = None
    if have is not None:
        stored = engine.query(shelf.in_columns(have.counting(engine, job), columns))
    number = _count(engine, come) if come else 0
    parts = []
    if come is not None and number:
        new = rows_of(come)
        if stored is not None and not _each_by_itself(job, slice_):
            new = shelf.without_equal(come, stored, columns)
        parts.append(shelf.entering(new, columns))
    if have is not None and stored is not None:
        goes = _going(job, engine, have, stored, come, made.rows, columns, chosen)
        parts += [shelf.leaving(goes, columns)] if goes is not None else []
    standing = have.standing if have else shelf.NOTHING_THERE
    if not parts:
        return Quarantine(number, None, standing, have.state if have else None)
    return Quarantine(
        number, _landing(job, engine, have, parts, columns), standing, have.state if have else None
    )


def _landing(
    job: Job, engine: Engine, have: There | None, parts: Sequence[exp.Query], columns: Schema
) -> Landing | None:
    """The rows that enter and leave, evaluated once; None when there are none."""
    tree = reduce(lambda one, other: exp.union(one, other, distinct=False), parts)
    verbs = {"come": "insert", "go": "update"}
    counted = {
        name: cast(
            exp.Sum(
                this=exp.Case(
                    ifs=[exp.If(this=eq(col(ACTION), lit(verb)), true=lit(1))], default=lit(0)
                )
            ),
            "bigint",
        )
        for name, verb in verbs.items()
    }
    staged = engine.stage(tree, counted, None)
    come, go = (int(staged.measures[n] or 0) for n in verbs)
    if not come and not go:
        return None
    known = have.state.schema if have else None
    counts = Counts(inserted=come, updated=go)
    changes = shelf.change_set(staged.relation, columns, counts, known)
    return Landing(job.quarantine, have.state if have else None, changes)


def _come(
    job: Job, engine: Engine, rejected: Sequence[Rejected], layout: Layout
) -> Relation | None:
    """The rows that checks have put aside, in the columns of the table, evaluated once."""
    some = [r for r in rejected if r.any]
    if not some:
        return None
    places = [(r, layout.place(r.rows.schema, job.quarantine.label)) for r in some]
    trees: list[exp.Query] = [
        shelf.placed(r.rows, kept, layout.schema, job.node.name, r.step) for r, kept in places
    ]
    tree = reduce(lambda one, other: exp.union(one, other, distinct=False), trees)
    return engine.stage(tree, {"n": exp.Count(this=exp.Star())}, None).relation


def _each_by_itself(job: Job, slice_: Slice) -> bool:
    """Does every read bring rows of its own? An append of full reads keeps each of them, and so its quarantine."""
    return job.node.write.mode == "append" and isinstance(slice_.evidence, Snapshot)


def _going(
    job: Job,
    engine: Engine,
    have: There,
    stored: Relation,
    come: Relation | None,
    rows: Relation,
    columns: Schema,
    chosen: exp.Expr | None,
) -> exp.Query | None:
    """The rows that leave: those of keys that came anew, or that were chosen; not those that came as they are."""
    found: list[exp.Query] = []
    if chosen is not None:
        found = [rows_of(stored).where(chosen)]
    elif job.node.write.mode == "overwrite":
        found = [rows_of(stored)]
    elif job.node.write.keyed and job.node.write.effective_at is None:
        found = _superseded(job, engine, have, stored, come, rows)
    if not found:
        return None
    goes = engine.query(reduce(lambda one, other: exp.union(one, other, distinct=True), found))
    return shelf.without_equal(goes, come, columns) if come is not None else rows_of(goes)


def _superseded(
    job: Job, engine: Engine, have: There, stored: Relation, come: Relation | None, rows: Relation
) -> list[exp.Query]:
    """The rows of each step whose key came again: with a row that passed, or with another that did not."""
    found: list[exp.Query] = []
    keys = [c for k in job.node.write.keys if (c := rows.schema.get(k))]
    for step in have.steps:
        places = keys_at(job.node, step, stored.schema, [k.name for k in keys])
        if places is None or not keys:
            continue
        mine = engine.query(rows_of(stored).where(eq(col(shelf.STEP), lit(step))))
        by_name = dict(zip((k.name for k in keys), places, strict=True))
        found.append(shelf.with_key_among(mine, by_name, rows, keys))
        if come is not None:
            other = engine.query(rows_of(come).where(eq(col(shelf.STEP), lit(step))))
            same_names = {c.name: c for c in places}
            found.append(shelf.with_key_among(mine, same_names, other, places))
    return found


def _count(engine: Engine, rows: Relation) -> int:
    ((n,),) = engine.fetch(select(exp.Count(this=exp.Star())).from_(table(rows.name)))
    return int(n or 0)


# --- taking a run back -------------------------------------------------------------------------------------


def put_back(
    job: Job, engine: Engine, node: str, run_id: str, versions: Sequence[int]
) -> Quarantine | None:
    """What the undo of a run does: what it had put aside goes, and what it had taken out comes again.

    What it had put aside counts no more once the undo has ended, and is then removed. `versions` are those that the
    run made, where the rows that it took out can still be seen.
    """
    state = describe(job.quarantine) if versions else None
    if state is None:
        return None
    standing, columns = Standing(((node, run_id),)), shelf.kept_schema(state.schema)
    now = engine.scan(LakeSource(job.quarantine, state.version)).relation
    parts: list[exp.Query] = []
    for version in versions:
        if format_of(job.quarantine).at(job.quarantine, version) is None:
            log.warning(
                "%s: what run %s took out of %s can no longer be read",
                job.node.name,
                run_id,
                job.quarantine.label,
            )
            continue
        then = engine.scan(LakeSource(job.quarantine, version)).relation
        gone = engine.query(shelf.taken_out(then, now, run_id))
        parts.append(shelf.entering(shelf.in_columns(gone, columns), columns))
    have = There(state, now, standing, ())
    landing = _landing(job, engine, have, parts, columns) if parts else None
    return Quarantine(0, landing, standing, state)
