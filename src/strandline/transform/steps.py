"""The built-in steps: each turns rows into rows by building one query."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from sqlglot import exp

from strandline.config.base import EngineName
from strandline.config.deletes import DeleteDetectionConfig, DeleteDetectionMode
from strandline.errors import TransformError
from strandline.sql.dedupe import newest_per_key
from strandline.sql.expr import col, named, ordered, rows_of, select, table
from strandline.sql.hash import key_hash, value_hash
from strandline.sql.portable import checked_cast
from strandline.transform.registry import Detection, EngineContext, transform
from strandline.transform.sql import run_query


class Params(BaseModel):
    """What a step takes; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DeduplicateParams(Params):
    """One row per key. `order_by` says which row wins; ties go to the newest file by its name (`_source_file`), then to
    the highest values of all columns.
    """

    keys: list[str] = Field(min_length=1)
    order_by: str | list[str] | None = None


@transform("deduplicate", category="rows", param_model=DeduplicateParams)
def deduplicate(context: EngineContext, params: DeduplicateParams) -> EngineContext:
    keys = [context.column(k).name for k in params.keys]
    terms = (
        params.order_by
        if isinstance(params.order_by, list)
        else [params.order_by]
        if params.order_by
        else []
    )
    order = [o for term in terms for o in _order(context, term)]
    return context.with_rows(newest_per_key(context.rows, keys, order))


def _order(context: EngineContext, term: str) -> list[exp.Ordered]:
    """`a DESC, b` with NULLs where Spark puts them: first when ascending, last when descending."""
    tree = context.parse(f"SELECT 1 ORDER BY {term}")
    order = tree.args.get("order")
    if order is None:
        raise TransformError(f"{context.where}: order_by: expected columns, found {term!r}")
    explicit = "nulls" in term.lower()
    return [
        ordered(
            context.expression(o.this.sql(dialect="spark")),
            desc=bool(o.args.get("desc")),
            nulls_first=bool(o.args.get("nulls_first")) if explicit else None,
        )
        for o in order.expressions
    ]


class FilterParams(Params):
    """Keep the rows for which a SQL condition is true."""

    condition: str


@transform("filter", category="rows", param_model=FilterParams)
def filter_(context: EngineContext, params: FilterParams) -> EngineContext:
    return context.with_rows(rows_of(context.rows).where(context.expression(params.condition)))


class ColumnsParams(Params):
    """A list of columns."""

    columns: list[str] = Field(min_length=1)


@transform("select", category="columns", param_model=ColumnsParams)
def select_(context: EngineContext, params: ColumnsParams) -> EngineContext:
    chosen = [context.column(c).name for c in params.columns]
    chosen += [c for c in context.carried if c in context.rows.schema and c not in chosen]
    return context.with_rows(select(*map(col, chosen)).from_(table(context.rows.name)))


@transform("drop", category="columns", param_model=ColumnsParams)
def drop(context: EngineContext, params: ColumnsParams) -> EngineContext:
    gone = [context.column(c).name for c in params.columns]
    return context.with_rows(rows_of(context.rows, context.rows.schema.without(*gone)))


class MappingParams(Params):
    """Columns, each with a name, a type or an expression."""

    columns: dict[str, str] = Field(min_length=1)


@transform("rename", category="columns", param_model=MappingParams)
def rename(context: EngineContext, params: MappingParams) -> EngineContext:
    new = {context.column(old).fold: name for old, name in params.columns.items()}
    return context.with_rows(
        select(*(named(col(c.name), new.get(c.fold, c.name)) for c in context.rows.schema)).from_(
            table(context.rows.name)
        )
    )


@transform("cast", category="columns", param_model=MappingParams)
def cast(context: EngineContext, params: MappingParams) -> EngineContext:
    return context.with_rows(cast_columns(context, params.columns))


def cast_columns(context: EngineContext, types: dict[str, str]) -> exp.Select:
    """The rows with some columns cast; a value that does not fit is an error that names it."""
    wanted = {context.column(c).fold: normal_type(t, context.where) for c, t in types.items()}
    return select(
        *(
            named(checked_cast(col(c.name), c.type, wanted.get(c.fold, c.type), c.name), c.name)
            for c in context.rows.schema
        )
    ).from_(table(context.rows.name))


def normal_type(type_: str, where: str) -> str:
    """A type as strandline writes it: `integer` is `int`, `decimal` is `decimal(10,0)`."""
    try:
        built = exp.DataType.build(type_, dialect="spark")
    except ValueError:
        raise TransformError(
            f"{where}: `{type_}` is not a type",
            hint="for example: bigint, decimal(12,2), string, date, timestamp",
        ) from None
    text = built.sql(dialect="spark").lower().replace(", ", ",").replace(": ", ":")
    return {"decimal": "decimal(10,0)", "integer": "int", "long": "bigint"}.get(text, text)


@transform("derive", category="columns", param_model=MappingParams)
def derive(context: EngineContext, params: MappingParams) -> EngineContext:
    new = {name.casefold(): context.expression(sql) for name, sql in params.columns.items()}
    kept = [
        named(new.pop(c.fold), c.name) if c.fold in new else col(c.name)
        for c in context.rows.schema
    ]
    spelled = {name.casefold(): name for name in params.columns}
    added = [named(tree, spelled[fold]) for fold, tree in new.items()]
    return context.with_rows(select(*kept, *added).from_(table(context.rows.name)))


class SqlParams(Params):
    """A Spark SQL query over the rows so far, which it calls `source`."""

    query: str


@transform("sql", category="rows", param_model=SqlParams)
def sql(context: EngineContext, params: SqlParams) -> EngineContext:
    rows = run_query(
        context.engine,
        context.parse(params.query),
        {"source": context.rows},
        context.where,
        context.now,
    )
    return replace(context, rows=rows)


class SurrogateKeyParams(Params):
    """SHA-256 over several columns into a new one: 64 hex digits, the same on every engine and run."""

    columns: list[str] = Field(min_length=1)
    output_col: str = "_hash_key"


@transform("generate_surrogate_key", category="keys", param_model=SurrogateKeyParams)
def generate_surrogate_key(context: EngineContext, params: SurrogateKeyParams) -> EngineContext:
    tree = key_hash([context.column(c) for c in params.columns], where=context.where)
    kept = context.rows.schema.without(params.output_col)
    return context.with_rows(
        select(*map(col, kept.names), named(tree, params.output_col)).from_(
            table(context.rows.name)
        )
    )


@transform("hash_columns", category="columns", param_model=ColumnsParams)
def hash_columns(context: EngineContext, params: ColumnsParams) -> EngineContext:
    chosen = {context.column(c).fold for c in params.columns}
    values = [
        named(value_hash(c, where=context.where), c.name) if c.fold in chosen else col(c.name)
        for c in context.rows.schema
    ]
    return context.with_rows(select(*values).from_(table(context.rows.name)))


@transform("detect_deletes", category="transformer", param_model=DeleteDetectionConfig)
def detect_deletes(context: EngineContext, params: DeleteDetectionConfig) -> EngineContext:
    if params.mode is DeleteDetectionMode.NONE:
        return context
    return replace(context, detection=Detection(params, context.rows))


class PythonParams(Params):
    """A function of yours, by its dotted path: a frame in, a frame out, for the engine it is written for."""

    function: str = Field(pattern=r"^[A-Za-z_][\w.]*[.:][A-Za-z_]\w*$")
    engine: EngineName
    params: dict[str, Any] = Field(default_factory=dict)


@transform("python", category="code", param_model=PythonParams)
def python(context: EngineContext, params: PythonParams) -> EngineContext:
    module_name, _, name = params.function.replace(":", ".").rpartition(".")
    if (params.engine == "spark") != (context.engine.dialect == "spark"):
        raise TransformError(
            f"{context.where}: {params.function} is written for engine: {params.engine}, but this run uses another",
            hint="run with that engine, or declare a function for this one",
        )
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as e:
        raise TransformError(
            f"{context.where}: cannot import {params.function}: {e}",
            hint="the folder of strandline.yaml is on the import path",
        ) from e
    rows = context.engine.call(lambda frame: function(frame, **params.params), context.rows)
    return replace(context, rows=rows)
