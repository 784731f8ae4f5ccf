"""Whether rows may become a table, or part of the one that is there: its columns, its keys, its partitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from strandline.engine.base import Engine
from strandline.errors import TableError, TransformError, UnknownColumn, located
from strandline.lake import describe, format_of
from strandline.plan.inputs import Input, file_column, is_lake, table_of
from strandline.plan.job import Job
from strandline.sql.expr import (
    all_of,
    col,
    count_where,
    is_null,
    named,
    negate,
    one_of,
    select,
    table,
)
from strandline.sql.portable import parse
from strandline.strategy.changes import ACTION, DROP, METADATA, TOUCHING, ChangeSet
from strandline.strategy.evolution import Relax
from strandline.strategy.widening import VOID
from strandline.types import Column, Relation, TableState
from strandline.words import agree


def check_columns(
    job: Job, rows: Relation, state: TableState | None, roles: Mapping[str, str]
) -> None:
    """Every column that the configuration names is there, none takes a name of ours, and the table stays what it is."""
    write = job.node.write
    for key in ("keys", "partition_by", "track", "effective_at", "sequence_by"):
        found = getattr(write, key) or ()
        for name in (found,) if isinstance(found, str) else found:
            stays = (
                key == "track" and state is not None and name in state.schema
            )  # gone from the source only
            column = rows.schema.get(name)
            if column is None and not stays:
                with located("write", key):
                    raise UnknownColumn(
                        name, rows.schema.names, where=f"{job.node.name}: write.{key}"
                    )
            if column is not None and column.type == VOID and not (state and name in state.schema):
                with located("write", key):
                    raise _untyped(f"{job.node.name}: write.{key}", name)
    if all(c.type == VOID for c in rows.schema):
        raise TransformError(f"{job.node.name}: there are no columns to write")
    for name in roles.values():
        if name in rows.schema:
            raise TableError(
                f"{job.node.name}: the rows bring a column `{name}`, which strandline keeps for itself in this table",
                hint="rename it with a rename step, or give ours another name with system_columns:",
            )
    if state:
        _check_kept(job, state)
        _check_marked(job, rows, state)
    _check_partitions(job, rows, state)
    if state is None:  # later the table itself is asked
        _check_filter(job, [*rows.schema.names, *roles.values()])


def _untyped(where: str, name: str) -> TransformError:
    return TransformError(
        f"{where}: column `{name}` is NULL in every row and has no type",
        hint=f"give it one with a cast step: {{operation: cast, params: {{columns: {{{name}: string}}}}}}",
    )


def check_metadata(job: Job, rows: Relation, sources: Mapping[str, Relation]) -> None:
    """A column with the name of a metadata column is one in the lake table it comes from; any other is refused.

    It would be replaced by ours, or its changes would never be written.
    """
    for c in rows.schema:
        if c.fold not in METADATA:
            continue
        holders = [
            i for i in job.inputs if i.alias in sources and c.name in sources[i.alias].schema
        ]
        other = next((i for i in holders if c.fold not in _metadata_of(job, i)), None)
        if holders and other is None:
            continue
        place = f" (from {other.label})" if other else ""
        raise TableError(
            f"{job.node.name}: the rows bring a column `{c.name}` of their own{place}; strandline keeps that name for "
            "its metadata",
            hint=f"give it another name with a rename step or in the SQL, for example `{c.fold.removeprefix('_')}`",
        )


def _metadata_of(job: Job, input_: Input) -> Collection[str]:
    """The metadata columns of a source: those that are marked in its table, or the file's path."""
    if not is_lake(job.project, input_.read):
        path = file_column(job.node, input_) if input_.read.path is not None else None
        return [path] if path else []
    lake = table_of(job.project, input_.read.connection, input_.read.table or "")
    planned = job.planned.get(lake.location)
    if planned is not None:
        return METADATA
    state = describe(lake)
    return state.metadata if state else ()


def _check_marked(job: Job, rows: Relation, state: TableState) -> None:
    """A table that this node has not written may have columns of its own under the names of metadata."""
    for c in rows.schema:
        if (
            c.fold in METADATA
            and c.name in state.schema
            and c.fold not in state.metadata
            and not job.past.memory.known
        ):
            raise TableError(
                f"{job.target.label} has a column `{c.name}` of its own; strandline keeps that name for its metadata",
                hint="write another table, give the column another name, or leave ours out (add_metadata, a drop step)",
            )


def _check_kept(job: Job, state: TableState) -> None:
    """What a table is, it stays: a history or none, with one row or one current version of each of its keys."""
    write = job.node.write
    if write.mode == "scd2" and "valid_from" not in state.roles:
        raise TableError(
            f"{job.target.label} keeps no versions: it was not written with mode: scd2",
            hint="write another table, or set the mode back",
        )
    if write.mode != "scd2" and "valid_from" in state.roles:
        raise TableError(
            f"{job.target.label} keeps versions: it was written with mode: scd2",
            hint="set the mode back",
        )
    if not write.keyed and (
        kept := [name for role, name in state.roles.items() if role != "batch_id"]
    ):
        raise TableError(
            f"{job.target.label} keeps one row of each key, and {', '.join(f'`{n}`' for n in kept)} of it: "
            f"it was written with mode: upsert, and mode: {write.mode} would not keep that up",
            hint="set the mode back, or write another table",
        )
    if write.mode == "delete_insert" and "row_hash" in state.roles:
        raise TableError(
            f"{job.target.label} keeps one row of each key, with a hash: it was written with mode: upsert",
            hint="set the mode back, or write another table",
        )
    if write.mode != "delete_insert" and job.past.memory.mode == "delete_insert" and write.keyed:
        raise TableError(
            f"{job.target.label} was written with mode: delete_insert, so it may hold several rows of a key",
            hint="set the mode back, or write another table",
        )
    before = job.past.memory.keys or write.keys
    if write.keyed and {k.casefold() for k in before} != {k.casefold() for k in write.keys}:
        raise TableError(
            f"{job.target.label} was written with keys ({', '.join(before)}), and write.keys is "
            f"({', '.join(write.keys)}) now: of such a key it may hold several rows",
            hint="set write.keys back, or write another table, which is then built from the start",
        )


def check_required(
    job: Job, engine: Engine, state: TableState | None, changes: ChangeSet, lacks: Sequence[Column]
) -> None:
    """Every row to write has a value in the columns that the table declares NOT NULL; before anything is written.

    `lacks` are the columns of the table that the rows do not bring.
    """
    rows = changes.additions
    names = [
        n for n in (state.required if state else ()) if n in rows.schema and n not in changes.system
    ]
    if not names:
        return
    whole = negate(one_of(col(ACTION), (DROP, *TOUCHING)))
    counted = (
        select(*(named(count_where(is_null(col(n))), n) for n in names))
        .from_(table(rows.name))
        .where(whole)
    )
    for name, found in zip(names, engine.fetch(counted)[0], strict=True):
        if not found:
            continue
        told = f"{job.target.label}: column `{name}` is NOT NULL in the table"
        if name in (c.name for c in lacks):
            if job.node.write.relax_not_null:
                continue
            raise TableError(
                f"{told}, and the rows to write do not bring it; nothing was written",
                hint=f"bring the column back, add a derive step that gives `{name}` a value, or set "
                "write.relax_not_null: true, which lets it be NULL",
            )
        some = _some(job, engine, rows, all_of([whole, is_null(col(name))]))
        raise TableError(
            f"{told}, and {found:,} of the rows to write {agree(found, 'has', 'have')} NULL there{some}; "
            "nothing was written",
            hint=f"add a derive step that gives `{name}` a value (coalesce), or leave such rows out with a filter step",
        )


def checked_rewrite(job: Job, state: TableState, changes: ChangeSet) -> ChangeSet:
    """The change set of a table that is written anew: it forgets what is NOT NULL in it, if that may be so."""
    limits, evolves = format_of(job.target).limits, changes.evolves
    relaxed = {c.name for c in evolves if isinstance(c, Relax)}
    left = [name for name in state.required if name not in relaxed]
    if left and not job.node.write.relax_not_null:
        names = ", ".join(f"`{name}`" for name in left)
        why = next((c.told for c in evolves if type(c) not in limits.carried), evolves[0].told)
        raise TableError(
            f"{job.target.label}: this batch {why}, for which a {limits.title} table is written anew, and then {names} "
            f"would no longer be NOT NULL",
            hint="set write.relax_not_null: true if that may be so, or write another table",
        )
    return replace(changes, evolves=(*evolves, *(Relax(name) for name in left)))


def _some(job: Job, engine: Engine, rows: Relation, which: exp.Expr) -> str:
    """The keys of a few rows, where rows have keys."""
    keys = [c.name for k in job.node.write.keys if (c := rows.schema.get(k))]
    if not keys:
        return ""
    found = engine.fetch(select(*map(col, keys)).from_(table(rows.name)).where(which).limit(3))
    return ", for example " + "; ".join(
        ", ".join(f"{k}={v!r}" for k, v in zip(keys, f, strict=True)) for f in found
    )


def _check_filter(job: Job, known: Sequence[str]) -> None:
    sql, where = job.detection and job.detection.target_filter, f"{job.node.name}: target_filter"
    folded = {n.casefold() for n in known}
    for column in parse(sql, where).find_all(exp.Column) if sql else ():
        if column.name.casefold() not in folded:
            raise UnknownColumn(column.name, known, where=where)


def _check_partitions(job: Job, rows: Relation, state: TableState | None) -> None:
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
