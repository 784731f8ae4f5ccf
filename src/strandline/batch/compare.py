"""One batch of one node, from its sources to an evaluated and judged change set: read, transform, reconcile, judge.

Nothing here writes to a table. `run` and `plan` both come through here; they differ in what follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING
from typing import Any

from sqlglot import exp

from strandline.batch import deletes
from strandline.batch.checks import check_columns, check_metadata
from strandline.batch.deletes import Finding
from strandline.batch.extracts import Newest
from strandline.batch.metadata import metadata_columns, with_metadata, without_file
from strandline.batch.read import Slice
from strandline.config.model import NodeConfig
from strandline.config.writes import instant
from strandline.control.coverage import MissedKeys
from strandline.engine.base import Engine, LakeSource, Staged
from strandline.errors import DuplicateKeys, ReadError, TableError, located
from strandline.journal import log
from strandline.plan.inputs import SOURCE_FILE
from strandline.plan.job import Job, feeds_snapshots
from strandline.sql.expr import col, lit, named, negate, one_of, rows_of, select, table
from strandline.sql.portable import family, parse
from strandline.sql.tested import refuse_untested
from strandline.sql.typing import spark_expression
from strandline.strategy import announced, decisions
from strandline.strategy import append as appending
from strandline.strategy.absence import Absence
from strandline.strategy.announced import ANNOUNCED
from strandline.strategy.append import Appending, Reread
from strandline.strategy.changes import (
    ACTION,
    ChangeSet,
    Proposal,
    Removals,
    evaluated,
    is_true,
    key_ranges,
    measures,
    range_measures,
)
from strandline.strategy.duplicates import duplicates
from strandline.strategy.fit import Fit, fit
from strandline.strategy.question import Keeping, Question
from strandline.strategy.verdict import Verdict, judge
from strandline.transform import registry
from strandline.transform.registry import Detection, EngineContext
from strandline.transform.sql import run_query
from strandline.types import Column, Counts, Relation, Schema, Snapshot, Table, TableState
from strandline.words import agree, plural


@dataclass(frozen=True)
class Transformed:
    """The rows to write, and the rows as they were where deletes are looked for."""

    rows: Relation
    detection: Detection | None = None
    gone: Relation | None = None  # the keys of rows that the source says are gone
    by_file: bool = False  # does each row say which file it is from?
    presence: Absence | None = None  # where nothing looks for deletes: the keys that are back
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reconciled:
    """What the slice means for the target: a proposal, and what it was made of."""

    fit: Fit
    proposal: Proposal
    target: Relation | None
    system: Mapping[str, Column] = field(
        default_factory=dict
    )  # system columns that the table does not have yet
    question: Question | None = None
    finding: Finding | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Landing:
    """The events that a history in business time commits before its table."""

    table: Table
    state: TableState | None
    changes: ChangeSet
    added: tuple[Column, ...] = ()

    @property
    def commits(self) -> bool:
        return self.state is None or self.changes.counts is None or self.changes.counts.any


@dataclass(frozen=True)
class Outcome:
    """An evaluated and judged batch, ready to be applied."""

    slice: Slice
    rows: Relation
    made: Reconciled
    changes: ChangeSet
    verdict: Verdict | None = None
    decided: Relation | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    events: Landing | None = None
    missed: MissedKeys | None = None  # the keys that the live source has, and no read brought


# --- transform ---------------------------------------------------------------------------------------------


def transform(job: Job, engine: Engine, slice_: Slice) -> Transformed:
    """The registered steps, then the SQL, then the metadata columns."""
    node, sources, found = job.node, dict(slice_.rows), None
    files = node.write.metadata().source_file and any(i.read.path is not None for i in job.inputs)
    if node.transform and node.transform.steps:
        alias, first = next(iter(sources.items()))
        carried = (SOURCE_FILE,) if files else ()
        context = _steps(
            node, EngineContext(engine, first, node.name, carried, now=job.clock.now), slice_.newest
        )
        unasked = without_file(node, job.inputs[0], context.rows)
        rows = context.rows if unasked is None else engine.query(unasked)
        sources, found = {**sources, alias: rows}, context.detection
    if node.transformation_sql is not None:
        rows = run_tree(
            job, engine, parse(node.transformation_sql, f"{node.name}: transformation_sql"), sources
        )
    else:
        rows = next(iter(sources.values()))
    check_metadata(job, rows, slice_.rows)
    added = with_metadata(rows, metadata_columns(job), file=files)
    by_file = files and SOURCE_FILE in rows.schema
    return Transformed(rows if added is None else engine.query(added), found, by_file=by_file)


def run_tree(job: Job, engine: Engine, tree: exp.Expr, sources: Mapping[str, Relation]) -> Relation:
    """A query of the user's over named rows, with Spark's types on either engine."""
    with located("transformation_sql"):
        return run_query(
            engine, tree, sources, f"{job.node.name}: transformation_sql", job.clock.now
        )


def shaped(job: Job, engine: Engine, rows: Relation) -> Relation:
    """The rows after the registered steps."""
    return _steps(job.node, EngineContext(engine, rows, job.node.name, now=job.clock.now)).rows


def _steps(node: NodeConfig, context: EngineContext, newest: Newest | None = None) -> EngineContext:
    """The rows after all steps; of several extracts only the newest goes on, once the rows say which they are of."""
    for index, config in enumerate(node.transform.steps if node.transform else []):
        context = registry.applied(context, config, node.name, index)
        if newest is not None and newest.after == index + 1 and newest.where is not None:
            context = context.with_rows(rows_of(context.rows).where(newest.where))
    return context


# --- reconcile ---------------------------------------------------------------------------------------------


def reconcile(
    job: Job, engine: Engine, slice_: Slice, made: Transformed, state: TableState | None
) -> Reconciled:
    """What the slice means for the target, as a proposal; the target as it is now comes along."""
    rows = made.rows
    roles = system_roles(job, state)
    check_columns(job, rows, state, roles)
    shape = fit(
        rows.schema,
        state.schema if state else None,
        state.system if state else (),
        job.target.label,
    )
    target = target_rows(job, engine, state)
    parts, rows = partitioned(job, engine, rows, state)
    if not job.node.write.keyed:
        reread, said = _reread(job, slice_, replace(made, rows=rows), target)
        proposal = _unkeyed(job, rows, shape, Appending(parts, target is None, None, reread), roles)
        system = new_system(proposal.roles, state, {"batch_id": "string"})
        return Reconciled(shape, proposal, target, system, warnings=said)
    finding = deletes.find(job, engine, slice_, rows, made, state)
    gone = finding.gone if finding else None
    told = _announced(job, engine, rows)
    question = Question(
        told if gone is None else engine.query(announced.announcing(told, gone)),
        target,
        shape,
        _keeping(job, rows, roles),
        finding.absence if finding else made.presence,
        _condition(job, engine, shape.columns),
        unique=_unique(job.node),
        stored=state.roles if state else {},
        gone=ANNOUNCED if gone is not None or job.node.write.announces else None,
        announces=job.node.write.announces,
        sequence=job.node.write.sequence_by,
    )
    proposal = decisions.proposal(question, parts)
    if (
        job.node.change_log == "all"
    ):  # every change is recorded, so every change must be known before the commit
        proposal = replace(proposal, lazy=False)
    types = {role: c.type for role, c in zip(roles, question.keeping.columns, strict=True)}
    system = new_system(roles, state, types)
    return Reconciled(shape, proposal, target, system, question, finding, made.warnings)


def partitioned(
    job: Job, engine: Engine, rows: Relation, state: TableState | None
) -> tuple[tuple[str, ...], Relation]:
    """How the table is partitioned, and the rows without what a partition cannot hold."""
    parts = state.partition_by if state else tuple(spelled(rows, job.node.write.partition_by))
    return parts, engine.query(appending.partitionable(rows, parts)) if _texts(
        rows, parts
    ) else rows


def announcing(job: Job, engine: Engine, rows: Relation) -> exp.Expr | None:
    """The condition by which a row announces a delete, over the rows to write."""
    sql = job.node.write.delete_when
    if sql is None:
        return None
    return EngineContext(
        engine, rows, f"{job.node.name}: write.delete_when", now=job.clock.now
    ).expression(sql)


def _announced(job: Job, engine: Engine, rows: Relation) -> Relation:
    """The rows with a column that says which of them announce a delete; without those where deletes are ignored."""
    gone = announcing(job, engine, rows)
    if gone is None:
        return rows
    if job.node.write.delete_strategy == "ignore":
        return engine.query(rows_of(rows).where(negate(is_true(gone))))
    values = [col(n) for n in rows.schema.names]
    return engine.query(select(*values, named(is_true(gone), ANNOUNCED)).from_(table(rows.name)))


def _keeping(job: Job, rows: Relation, roles: Mapping[str, str]) -> Keeping:
    write = job.node.write
    end = instant(write.open_end) if write.open_end is not None else None
    return Keeping(
        tuple(spelled(rows, job.keys)),
        roles,
        job.at,
        is_hard(job),
        tuple(spelled(rows, write.track or ())),
        end,
    )


def _unkeyed(
    job: Job, rows: Relation, shape: Fit, how: Appending, roles: Mapping[str, str]
) -> Proposal:
    how = replace(
        how, stamp=appending.Stamp(roles["batch_id"], job.batch_id) if "batch_id" in roles else None
    )
    if job.node.write.mode == "overwrite":
        return appending.overwrite(Snapshot(rows), shape, how)
    return appending.append(rows, shape, how)


def _reread(
    job: Job, slice_: Slice, made: Transformed, target: Relation | None
) -> tuple[Reread | None, tuple[str, ...]]:
    """The part of the table that an append brings again, if it may; and what is to be said of it."""
    again = slice_.followed is not None and slice_.followed.how == "recompute"
    limited = slice_.marked or slice_.arrived is not None or again
    if target is None or job.node.write.mode != "append" or not limited:
        return None, ()
    lows = {n: low for n, (low, _) in slice_.window.items() if low is not None}
    reread = Reread(target, lows, slice_.marked, tuple(spelled(made.rows, job.node.write.keys)))
    files = slice_.arrived
    if files is None:
        return reread, ()
    if made.by_file and SOURCE_FILE in target.schema:
        return replace(reread, apart=(SOURCE_FILE,)), ()
    if (
        not files.doubtful
    ):  # what no run has read cannot come again, and whatever the table has is of other files
        return None, ()
    if files.single:
        return reread, ()
    shown = ", ".join(f"`{name}`" for name in files.doubtful[:3]) + (
        ", …" if len(files.doubtful) > 3 else ""
    )
    told = (
        f"may have been read before, as it was: {shown}; rows that equal any row of {job.target.label} are taken for "
        "rows that came then; with write.add_metadata each row says its file, and only those of its file are compared"
    )
    log.warning("%s: %s", job.node.name, told)
    return reread, (told,)


def is_hard(job: Job) -> bool:
    """Are deletes really removed?"""
    if job.node.write.delete_strategy is not None:
        return job.node.write.delete_strategy == "hard"
    return job.detection is not None and job.detection.soft_delete_col is None


def system_roles(job: Job, state: TableState | None) -> dict[str, str]:
    """The system columns that the target has after this batch, by role."""
    write, config = job.node.write, job.detection
    if not write.keyed:
        known = (
            state is not None and "batch_id" in state.roles
        )  # somebody compares them, perhaps in another project
        told = write.mode == "append" and feeds_snapshots(job.project, job.node)
        return {"batch_id": "_batch_id"} if known or told else {}
    names = write.system_columns.names()
    if config and config.soft_delete_col and "soft_delete_col" in config.model_fields_set:
        names["deleted"] = config.soft_delete_col
    stored = state.roles if state else {}
    wanted = ["row_hash"] if (write.row_hash if state is None else "row_hash" in stored) else []
    if write.mode == "scd2":
        wanted += ["valid_from", "valid_to", "is_current", "deleted", "last_seen"]
    elif (
        ((config or write.announces) and not is_hard(job))
        or write.delete_strategy == "soft"
        or "deleted" in stored
    ):
        wanted += ["deleted", "last_seen"]
    for role in wanted:
        if (
            role in stored
            and stored[role].casefold() != names[role].casefold()
            and role != "row_hash"
        ):
            raise TableError(
                f"{job.target.label} keeps `{role}` in column `{stored[role]}`, not in `{names[role]}`",
                hint="a table keeps its system columns: set the name back, or write another table",
            )
    return {role: stored.get(role, names[role]) for role in wanted}


def new_system(
    roles: Mapping[str, str], state: TableState | None, types: Mapping[str, str]
) -> dict[str, Column]:
    have = state.roles if state else roles
    return {role: Column(name, types[role]) for role, name in roles.items() if role not in have}


def _condition(job: Job, engine: Engine, columns: Schema) -> exp.Expr | None:
    sql, where = job.node.write.update_condition, f"{job.node.name}: update_condition"
    if sql is None:
        return None
    tree = parse(sql, where)
    if engine.dialect == "spark":
        return tree
    refuse_untested(tree, where)
    return spark_expression(tree, {"source": columns, "target": columns}, where, job.clock.now)


def _texts(rows: Relation, parts: Sequence[str]) -> bool:
    return any((c := rows.schema.get(p)) and family(c.type) == "text" for p in parts)


def target_rows(job: Job, engine: Engine, state: TableState | None) -> Relation | None:
    """The target as it is now."""
    if state is None:
        return None
    return engine.scan(LakeSource(job.target, state.version)).relation


def spelled(rows: Relation, names: Sequence[str]) -> list[str]:
    """Names as the rows spell them."""
    return [c.name if (c := rows.schema.get(n)) else n for n in names]


def _unique(node: NodeConfig) -> bool:
    """Has a step left one row per key, and none after it changed that? Then nobody needs to count them."""
    steps = [
        s
        for s in (node.transform.steps if node.transform else [])
        if s.operation != "detect_deletes"
    ]
    if not steps or node.transformation_sql is not None or steps[-1].operation != "deduplicate":
        return False
    return {str(k).casefold() for k in steps[-1].params["keys"]} <= {
        k.casefold() for k in node.write.keys
    }


# --- evaluate and judge ------------------------------------------------------------------------------------


def evaluate(job: Job, engine: Engine, slice_: Slice, rows: Relation, made: Reconciled) -> Outcome:
    """Evaluate a proposal once and judge what it would delete; a lazy one is left to the commit."""
    try:
        if made.question is None:
            said = slice_.followed.warnings if slice_.followed else ()
            return Outcome(
                slice_,
                rows,
                made,
                _evaluate_unkeyed(engine, made),
                warnings=(*said, *made.warnings),
            )
        return _evaluate_keyed(job, engine, slice_, rows, made)
    except DuplicateKeys:
        raise duplicate_keys(engine, rows, job.node.write.keys) from None


def _lazy(engine: Engine, made: Reconciled) -> ChangeSet:
    """The change set of a first load; asked for its verbs only when it is committed."""
    assert made.question is not None
    decided = engine.query(made.proposal.rows)
    return evaluated(
        made.proposal, engine.query(decisions.additions(decided, made.question, applied=True)), None
    )


def _evaluate_unkeyed(engine: Engine, made: Reconciled) -> ChangeSet:
    proposal = made.proposal
    if proposal.lazy:
        # the filter makes the commit look at every verb: a column that nobody reads raises nothing
        return evaluated(
            proposal, engine.query(rows_of(engine.query(proposal.rows)).where(proposal.keep)), None
        )
    staged = engine.stage(proposal.rows, measures(), proposal.keep)
    counts = Counts(**staged.measures)
    if proposal.removals is Removals.EVERYTHING and made.target is not None:
        come, go = engine.fetch(
            appending.difference(staged.relation, made.target, proposal.columns)
        )[0]
        counts = Counts(inserted=int(come), deleted=int(go), unchanged=counts.inserted - int(come))
    return evaluated(proposal, staged.relation, counts)


def _evaluate_keyed(
    job: Job, engine: Engine, slice_: Slice, rows: Relation, made: Reconciled
) -> Outcome:
    q = made.question
    assert q is not None
    warnings = list(slice_.followed.warnings) if slice_.followed else []
    warnings += made.finding.warnings if made.finding else made.warnings
    if made.proposal.lazy:
        return Outcome(slice_, rows, made, _lazy(engine, made), warnings=tuple(warnings))
    wanted = {**decisions.decision_measures(), **range_measures(made.proposal)}
    staged = engine.stage(made.proposal.rows, wanted, decisions.keep())
    if q.paired and _twice(engine, q, staged):
        raise duplicate_keys(engine, rows, job.node.write.keys)
    verdict, told = judged(job, made.finding, staged.measures)
    applied, warnings = verdict is None or verdict.applied, [*warnings, *told]
    counts = decisions.counts_of(staged.measures, q.keeping, applied=applied)
    if verdict and verdict.kind == "hold":
        counts = replace(counts, held=counts.held + verdict.found)
    written = decisions.additions(staged.relation, q, applied=applied)
    if verdict and verdict.kind == "refuse":
        counts, written = Counts(), written.where(exp.false())
    additions = engine.query(written)
    if q.keeping.hard and q.keeping.history and counts.deleted:
        whole = rows_of(additions).where(exp.NEQ(this=col(ACTION), expression=lit("delete")))
        gone = decisions.all_versions(additions, q)
        additions = engine.query(exp.union(whole, gone, distinct=False))
    changes = evaluated(made.proposal, additions, counts, key_ranges(staged.measures))
    return Outcome(
        slice_, rows, made, changes, verdict, staged.relation, staged.measures, tuple(warnings)
    )


def _twice(engine: Engine, q: Question, staged: Staged) -> bool:
    """Did a key come more than once? Then a stored row was met more often than it is there, or a new one is twice."""
    assert q.target is not None
    stored = engine.fetch(select(exp.Count(this=exp.Star())).from_(table(q.target.name)))[0][0]
    if staged.measures["met"] > stored:
        return True
    if staged.measures["inserted"] + staged.measures["buried"] < 2:
        return False
    new = engine.query(rows_of(staged.relation).where(one_of(col(ACTION), ("insert", "bury"))))
    return bool(engine.fetch(duplicates(new, [c.name for c in q.keys], 1)))


def judged(
    job: Job, finding: Finding | None, measured: Mapping[str, Any]
) -> tuple[Verdict | None, list[str]]:
    """The verdict on the deletes that were decided on, and what there is to warn of."""
    verdict, warnings = _judge(job, finding, measured), []
    if verdict and verdict.warning:
        warnings.append(verdict.warning)
        log.log(
            INFO if verdict.kind == "skip" else WARNING, "%s: %s", job.node.name, verdict.warning
        )
    if measured["null_keys"]:
        n = measured["null_keys"]
        verbs = agree(n, "has a NULL in its key and is", "have a NULL in their key and are")
        warnings.append(f"{plural(n, 'row')} {verbs} never found deleted")
    return verdict, warnings


def _judge(job: Job, finding: Finding | None, measured: Mapping[str, Any]) -> Verdict | None:
    if finding is None:
        return None
    found = measured["deleted"] - measured["approved"]
    judged = found or finding.config.on_empty_source == "apply"
    if finding.living is not None:
        alive = finding.living() if found else 0
        left = alive - measured["deleted"] + measured["inserted"] + measured["reopened"]
        return judge(finding.config, found, alive, lambda: left <= 0, job.target.label)
    if (
        not judged and measured["buried"] and finding.empty(measured)
    ):  # it says as little of rows that only come now
        return Verdict("skip", 0, measured["alive"])
    return judge(
        finding.config, found, measured["alive"], lambda: finding.empty(measured), job.target.label
    )


def duplicate_keys(
    engine: Engine, rows: Relation, keys: Sequence[str]
) -> DuplicateKeys | ReadError:
    """The error for keys that occur twice, with the first few of them."""
    found = engine.fetch(duplicates(rows, spelled(rows, keys), 5))
    if not found:
        return ReadError(
            "keys occurred more than once, and then no more: the source changed while it was read"
        )
    return DuplicateKeys(spelled(rows, keys), int(found[0][-1]), [f[:-1] for f in found])
