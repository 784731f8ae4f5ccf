"""Merging the frames of hand-written jobs into Delta tables: only rows that change something, in one commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from sqlglot import exp

from strandline.engine.spark.workspace import SparkWorkspace
from strandline.errors import DuplicateKeys, EmptySource, TableError, UnknownColumn
from strandline.lake.delta import log as delta_log
from strandline.lake.delta.feed import CHANGE
from strandline.lake.delta.limits import DELTA_LIMITS
from strandline.sql.expr import (
    any_of,
    case,
    col,
    eq,
    ident,
    is_null,
    lit,
    named,
    negate,
    same,
    same_keys,
    select,
    table,
)
from strandline.sql.portable import render
from strandline.strategy.fit import Fit, Policy, Stored, fit
from strandline.strategy.widening import VOID
from strandline.types import Column, Relation, Schema, Table, TableState

_THERE = "_strandline_there"
_LIMITS = replace(DELTA_LIMITS, widenings=frozenset())  # a job's frame never rewrites its table


def merge(
    engine: SparkWorkspace, target: Table, frame: DataFrame, keys: Sequence[str], *, whole: bool
) -> int | None:
    """Make a table follow the rows of a frame; the new version, or None when nothing was committed.

    With `whole` the frame holds all rows, and those that it lacks are deleted.
    """
    state = _writable(target)
    live = engine.relation(frame.where(f.col(CHANGE) != "delete").drop(CHANGE))
    check_keys(engine, live, keys)
    if frame.isEmpty():
        if whole:
            raise _empty(target)
        return None
    shape = _fitted(target, live, state)
    changes = _changes(
        engine, target, _decided(engine, frame, live, keys), state, keys, whole=whole
    )
    if changes is not None:
        sql = render(_merged(target, changes, _spelled(state.schema, keys), state.schema), "spark")
        if shape.changes:
            sql = sql.replace("MERGE INTO", "MERGE WITH SCHEMA EVOLUTION INTO", 1)
        engine.session.sql(sql)
    written = delta_log.open_table(target)
    return written.version() if written and written.version() > state.version else None


def check_keys(engine: SparkWorkspace, rows: Relation, keys: Sequence[str]) -> None:
    """Refuse rows without their keys, and a key that occurs twice."""
    if not keys:
        raise TableError(
            "merge_dataframe needs key_columns", hint="name the columns that identify a row"
        )
    for key in keys:
        if key not in rows.schema:
            raise UnknownColumn(key, rows.schema.names, where="key_columns")
    counted = engine.session.table(rows.name).groupBy(*keys).count().where("count > 1")
    found = counted.limit(5).collect()
    if found:
        names = ", ".join(repr(k) for k in keys)
        raise DuplicateKeys(
            list(keys),
            counted.count(),
            [tuple(r)[:-1] for r in found],
            hint=f"keep one row of each key: deduplication_columns=[{names}] in strategy_options, "
            f"deduplicate_keys=[{names}] in load_cdf, or data_frame.dropDuplicates([{names}])",
        )


def _writable(target: Table) -> TableState:
    state = delta_log.describe(target)
    if state is None:
        raise TableError(
            f"{target.label} is not a Delta table",
            hint="give a Delta table, or a path that is not there",
        )
    if state.roles:
        raise TableError(
            f"{target.label} is written by a strandline node, which keeps its own books in it",
            hint="write another table, or let the node write this one",
        )
    return state


def _empty(target: Table) -> EmptySource:
    return EmptySource(
        f"{target.label}: the source came back empty, and all rows of the target would be deleted: nothing is written",
        percent=100.0,
        found=0,
        alive=0,
        hint="look at the source; if it is empty rightly, empty the target by hand",
    )


def _fitted(target: Table, live: Relation, state: TableState) -> Fit:
    """The columns that the table gets from a frame; those that it cannot hold are refused."""
    try:
        return fit(live.schema, Stored(state.schema), target.label, Policy(_LIMITS))
    except TableError as e:
        e.hint = "change the column in the frame before merge_dataframe: withColumn(…cast…) or withColumnRenamed"
        raise


def _decided(
    engine: SparkWorkspace, frame: DataFrame, live: Relation, keys: Sequence[str]
) -> DataFrame:
    """Living rows, and deletes of keys that no living row has."""
    gone = frame.where(f.col(CHANGE) == "delete").dropDuplicates(list(keys))
    there = engine.session.table(live.name).select(
        *(f.col(k).alias(f"_strandline_{k}") for k in keys)
    )
    on = [gone[k].eqNullSafe(there[f"_strandline_{k}"]) for k in keys]
    return frame.where(f.col(CHANGE) != "delete").unionByName(gone.join(there, on, "left_anti"))


def _changes(
    engine: SparkWorkspace,
    target: Table,
    decided: DataFrame,
    state: TableState,
    keys: Sequence[str],
    *,
    whole: bool,
) -> Relation | None:
    """The rows that change something in the table; None when there are none, as a MERGE of none commits a version."""
    rows = engine.relation(decided)
    known = tuple(c for c in rows.schema if c.type != VOID or c.name in state.schema)
    rows = replace(rows, schema=Schema(known))
    spelled = _spelled(state.schema, keys)
    tree: exp.Query = _differing(target, rows, spelled, state.schema)
    if whole:
        tree = exp.union(tree, _absent(target, rows, spelled), distinct=False)
    held = engine.session.sql(render(tree, "spark")).localCheckpoint()
    return None if held.isEmpty() else replace(engine.relation(held), schema=rows.schema)


def _differing(target: Table, rows: Relation, keys: Sequence[str], there: Schema) -> exp.Select:
    """New rows, rows that differ from the table's, and deletes of rows that it has."""
    stored = select(exp.Star(), named(exp.true(), _THERE)).from_(_lake(target)).subquery("t")
    gone = eq(col(CHANGE, "s"), lit("delete"))
    missing = is_null(col(_THERE, "t"))
    changes = case(
        (missing, negate(gone)), default=any_of([gone.copy(), _differ(rows, keys, there)])
    )
    picked = select(*(col(c.name, "s") for c in rows.schema)).from_(table(rows.name, "s"))
    return picked.join(stored, on=same_keys(keys, "s", "t"), join_type="left").where(changes)


def _absent(target: Table, rows: Relation, keys: Sequence[str]) -> exp.Select:
    """The table's rows of which there is none here, as deletes."""
    values = [lit("delete") if c.name == CHANGE else col(c.name, "t") for c in rows.schema]
    here = select(lit(1)).from_(table(rows.name, "s")).where(same_keys(keys, "s", "t"))
    picked = select(*(named(v, c.name) for v, c in zip(values, rows.schema, strict=True)))
    return picked.from_(exp.alias_(_lake(target), ident("t"), table=True)).where(
        negate(exp.Exists(this=here))
    )


def _differ(rows: Relation, keys: Sequence[str], there: Schema) -> exp.Expr:
    """A column that the table does not have yet is NULL in all of its rows."""
    folded = {k.casefold() for k in keys}
    changing = [c for c in rows.schema if c.name != CHANGE and c.fold not in folded]
    return any_of(
        negate(_same(c) if c.name in there else is_null(col(c.name, "s"))) for c in changing
    )


def _same(column: Column) -> exp.Expr:
    return same(col(column.name, "t"), col(column.name, "s"))


def _merged(target: Table, rows: Relation, keys: Sequence[str], there: Schema) -> exp.Merge:
    """Deletes, real changes and new rows, as the table is when the MERGE reads it."""
    columns = [c.name for c in rows.schema if c.name != CHANGE]
    gone = eq(col(CHANGE, "s"), lit("delete"))
    update = exp.Update(expressions=[exp.EQ(this=col(c), expression=col(c, "s")) for c in columns])
    insert = exp.Insert(
        this=exp.Tuple(expressions=[exp.Column(this=ident(c)) for c in columns]),
        expression=exp.Tuple(expressions=[col(c, "s") for c in columns]),
    )
    whens = [
        exp.When(matched=True, condition=gone, then=exp.Var(this="DELETE")),
        exp.When(matched=True, condition=_differ(rows, keys, there), then=update),
        exp.When(matched=False, condition=negate(gone.copy()), then=insert),
    ]
    return exp.Merge(
        this=exp.alias_(_lake(target), ident("t"), table=True),
        using=table(rows.name, "s"),
        on=same_keys(keys, "s", "t"),
        whens=exp.Whens(expressions=whens),
    )


def _lake(target: Table) -> exp.Table:
    return exp.Table(this=ident(target.location), db=ident("delta"))


def _spelled(schema: Schema, keys: Sequence[str]) -> list[str]:
    return [c.name if (c := schema.get(k)) else k for k in keys]
