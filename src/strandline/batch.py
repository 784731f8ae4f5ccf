"""One batch of one node, from its sources to an evaluated change set: read, transform, reconcile.

Nothing here writes to a table. `run` and `plan` both come through here; they differ in what follows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from strandline.config.load import Project
from strandline.config.model import NodeConfig
from strandline.engine.base import Engine, Scan
from strandline.errors import DuplicateKeys, ReadError, TransformError, UnknownColumn
from strandline.plan.reading import SOURCE_FILE, Input, inputs, is_lake, source_of, table_of
from strandline.schema.diff import Fit, fit
from strandline.sql.expr import named, rows_of, select, table
from strandline.sql.portable import deterministic, family, parse, refuse_untested
from strandline.sql.typing import spark_expression, spark_types
from strandline.strategy import append as appending
from strandline.strategy import upsert as upserting
from strandline.strategy.changes import (
    ChangeSet,
    Counts,
    Proposal,
    Removals,
    evaluated,
    key_ranges,
    measures,
    range_measures,
)
from strandline.transform import registry
from strandline.transform.metadata import metadata_columns, with_metadata
from strandline.transform.registry import EngineContext
from strandline.transform.sql import run_sql
from strandline.types import Clock, Relation, Schema, Snapshot, Table, TableState


@dataclass(frozen=True)
class Slice:
    """What was read: rows by alias, what they cover, and how many there were once something counted them."""

    rows: Mapping[str, Relation]
    scans: Sequence[Scan]
    versions: Mapping[str, int]
    coverage: Mapping[str, Any]

    @property
    def rows_read(self) -> int | None:
        counts = [s.rows_read() for s in self.scans]
        return None if any(c is None for c in counts) else sum(c or 0 for c in counts)


@dataclass(frozen=True)
class Outcome:
    """An evaluated batch, ready to be judged and applied."""

    slice: Slice
    rows: Relation
    fit: Fit
    changes: ChangeSet
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """A node with all it needs to be worked on."""

    project: Project
    node: NodeConfig
    clock: Clock
    planned: Mapping[str, Relation] = field(default_factory=dict)  # a plan's tables as they would be

    @property
    def target(self) -> Table:
        return table_of(self.project, self.node.write.connection, self.node.write.table)

    @property
    def inputs(self) -> list[Input]:
        return inputs(self.node)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.node.model_dump_json().encode()).hexdigest()[:16]


# --- read --------------------------------------------------------------------------------------------------


def pinned(job: Job, engine: Engine) -> dict[str, tuple[str, int]] | None:
    """The id and version of every source, when all of them are lake tables; else None."""
    found = {}
    for input_ in job.inputs:
        if not is_lake(job.project, input_.read):
            return None
        state = engine.describe(table_of(job.project, input_.read.connection, input_.read.table or ""))
        if state is None:
            return None
        found[input_.label] = (state.table_id, state.version)
    return found


def repeatable(node: NodeConfig) -> bool:
    """Does the same input always give the same rows? Not with a function of one's own, or a clock in the SQL."""
    sql = [node.transformation_sql or ""]
    for step in node.transform.steps if node.transform else []:
        if step.operation == "python":
            return False
        sql += [
            v for p in step.params.values() for v in (p.values() if isinstance(p, dict) else [p]) if isinstance(v, str)
        ]
    return all(deterministic(text) for text in sql)


def read(job: Job, engine: Engine) -> Slice:
    """Scan every source; lake tables at the version they have now."""
    rows: dict[str, Relation] = {}
    scans: list[Scan] = []
    versions: dict[str, int] = {}
    sources: dict[str, Any] = {}
    for input_ in job.inputs:
        planned = _planned(job, input_)
        if planned is not None:
            rows[input_.alias] = planned
            scans.append(Scan(planned, lambda p=planned: _count(engine, p)))  # type: ignore[misc]
            continue
        source, state = source_of(job.project, job.node, input_, engine.describe)
        scan = engine.scan(source)
        rows[input_.alias] = scan.relation
        scans.append(scan)
        if state is not None:
            versions[input_.label] = state.version
            sources[input_.label] = [state.table_id, state.version]
    return Slice(rows, scans, versions, {"kind": "full", "digest": job.digest, "sources": sources})


def _planned(job: Job, input_: Input) -> Relation | None:
    if not is_lake(job.project, input_.read):
        return None
    return job.planned.get(table_of(job.project, input_.read.connection, input_.read.table or "").location)


def _count(engine: Engine, rows: Relation) -> int:
    return int(engine.fetch(select(named(exp.Count(this=exp.Star()), "n")).from_(table(rows.name)))[0][0])


# --- transform ---------------------------------------------------------------------------------------------


def transform(job: Job, engine: Engine, slice_: Slice) -> Relation:
    """The registered steps, then the SQL, then the metadata columns."""
    node, sources = job.node, dict(slice_.rows)
    files = node.write.metadata().source_file and any(i.read.path is not None for i in job.inputs)
    if node.transform and node.transform.steps:
        alias, first = next(iter(sources.items()))
        context = EngineContext(engine, first, node.name, (SOURCE_FILE,) if files else ())
        sources = {alias: _steps(node, context).rows}
    if node.transformation_sql is not None:
        where = f"{node.name}: transformation_sql"
        tree = parse(node.transformation_sql, where)
        if engine.dialect != "spark":
            refuse_untested(tree, where)
        query = run_sql(tree, sources, where)
        rows = engine.query(query if engine.dialect == "spark" else spark_types(query, sources.values(), where))
    else:
        rows = next(iter(sources.values()))
    added = with_metadata(rows, metadata_columns(node, job.inputs, job.clock), file=files)
    return rows if added is None else engine.query(added)


def _steps(node: NodeConfig, context: EngineContext) -> EngineContext:
    from dataclasses import replace

    for index, config in enumerate(node.transform.steps if node.transform else []):
        step = registry.get(config.operation)
        if step is None:
            raise TransformError(f"{node.name}: there is no step `{config.operation}`")
        where = f"{node.name}, step {index + 1} ({config.operation})"
        context = step.run(replace(context, where=where), step.param_model(**config.params))
    return context


# --- reconcile ---------------------------------------------------------------------------------------------


def reconcile(
    job: Job, engine: Engine, rows: Relation, state: TableState | None
) -> tuple[Fit, Proposal, Relation | None]:
    """What the slice means for the target, as a proposal; the target as it is now comes along."""
    _check_columns(job, rows, state)
    write = job.node.write
    have = state.schema if state else None
    shape = fit(rows.schema, have, state.system if state else (), job.target.label)
    target = target_rows(job, engine, state)
    parts = state.partition_by if state else tuple(_spelled(rows, write.partition_by))
    rows = engine.query(appending.partitionable(rows, parts)) if _texts(rows, parts) else rows
    match write.mode:
        case "append":
            return shape, appending.append(rows, shape, parts, first=target is None), target
        case "overwrite":
            return shape, appending.overwrite(Snapshot(rows), shape, parts, first=target is None), target
    condition = _condition(job, engine, shape.columns)
    keys = tuple(_spelled(rows, write.keys))
    hashed = write.row_hash if state is None else bool(state.system)
    proposal = upserting.upsert(
        rows, target, shape, keys, condition=condition, hashed=hashed, unique=_unique(job.node), partition_by=parts
    )
    return shape, proposal, target


def _condition(job: Job, engine: Engine, columns: Schema) -> exp.Expr | None:
    sql, where = job.node.write.update_condition, f"{job.node.name}: update_condition"
    if sql is None:
        return None
    tree = parse(sql, where)
    if engine.dialect == "spark":
        return tree
    refuse_untested(tree, where)
    return spark_expression(tree, {"source": columns, "target": columns}, where)


def _texts(rows: Relation, parts: Sequence[str]) -> bool:
    return any((c := rows.schema.get(p)) and family(c.type) == "text" for p in parts)


def _check_columns(job: Job, rows: Relation, state: TableState | None) -> None:
    for key in ("keys", "partition_by"):
        for name in getattr(job.node.write, key):
            if name not in rows.schema:
                raise UnknownColumn(name, rows.schema.names, where=f"{job.node.name}: write.{key}")
    if not rows.schema.columns:
        raise TransformError(f"{job.node.name}: there are no columns to write")
    wanted = [p.casefold() for p in job.node.write.partition_by]
    if state is None and {c.fold for c in rows.schema} <= set(wanted):
        raise TransformError(
            f"{job.node.name}: write.partition_by names every column, and a table needs one besides",
            hint="partition by fewer columns",
        )
    if state and wanted and wanted != [p.casefold() for p in state.partition_by]:
        raise TransformError(
            f"{job.target.label} is partitioned by ({', '.join(state.partition_by)}), "
            f"not by ({', '.join(job.node.write.partition_by)})",
            hint="a table keeps its partitioning: write another table, or set partition_by back",
        )


def target_rows(job: Job, engine: Engine, state: TableState | None) -> Relation | None:
    """The target as it is now."""
    from strandline.engine.base import LakeSource

    if state is None:
        return None
    return engine.scan(LakeSource(job.target, state.version)).relation


def _spelled(rows: Relation, names: Sequence[str]) -> list[str]:
    """Names as the rows spell them."""
    return [c.name if (c := rows.schema.get(n)) else n for n in names]


def _unique(node: NodeConfig) -> bool:
    """Has the last step left one row per key? Then nobody needs to count them."""
    steps = node.transform.steps if node.transform else []
    if not steps or node.transformation_sql is not None or steps[-1].operation != "deduplicate":
        return False
    return {str(k).casefold() for k in steps[-1].params["keys"]} <= {k.casefold() for k in node.write.keys}


def evaluate(engine: Engine, rows: Relation, proposal: Proposal, target: Relation | None) -> ChangeSet:
    """Evaluate a proposal once; a lazy one is left to the commit."""
    try:
        if proposal.lazy:
            # the filter makes the commit look at every verb: a column that nobody reads raises nothing
            named_rows = engine.query(rows_of(engine.query(proposal.rows)).where(proposal.keep))
            return evaluated(proposal, named_rows, None)
        ranges = range_measures(proposal)
        staged = engine.stage(proposal.rows, {**measures(), **ranges}, proposal.keep)
        counts = Counts(**{name: staged.measures[name] for name in measures()})
        if proposal.removals is Removals.EVERYTHING and target is not None:
            come, go = engine.fetch(appending.difference(staged.relation, target, proposal.columns))[0]
            counts = Counts(inserted=int(come), deleted=int(go), unchanged=counts.inserted - int(come))
        return evaluated(proposal, staged.relation, counts, key_ranges(staged.measures))
    except DuplicateKeys:
        raise duplicate_keys(engine, rows, proposal.keys) from None


def duplicate_keys(engine: Engine, rows: Relation, keys: Sequence[str]) -> DuplicateKeys | ReadError:
    """The error for keys that occur twice, with the first few of them."""
    found = engine.fetch(upserting.duplicates(rows, _spelled(rows, keys), 5))
    if not found:
        return ReadError("keys occurred more than once, and then no more: the source changed while it was read")
    return DuplicateKeys(keys, int(found[0][-1]), [f[:-1] for f in found])
