"""Giving sources a name in DuckDB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlalchemy
from deltalake import DeltaTable
from sqlglot import exp

from strandline.engine.arrow_types import untyped_parquet
from strandline.engine.base import FileSource, LakeSource, SqlSource
from strandline.engine.sources import files as file_sources
from strandline.engine.sources import sql as sql_sources
from strandline.errors import ReadError
from strandline.lake.delta import log as delta_log
from strandline.lake.delta.rows import delta_stream
from strandline.lake.delta.types import to_arrow
from strandline.sql.expr import cast, col, data_type, ident, lit, named, select, table
from strandline.sql.portable import checked_cast, render
from strandline.types import Schema, Table

if TYPE_CHECKING:
    from strandline.engine.local.duck import DuckWorkspace

_BATCH = 50_000
_LONGEST_LINE = 64 * 1024 * 1024


def sql(workspace: DuckWorkspace, source: SqlSource) -> tuple[str, int]:
    """Stream a statement's rows into a table that may spill to disk; returns its name and the number of rows."""
    read = sql_sources.plan_read(source, partitioned=False)
    schema = pa.schema([(c.name, to_arrow(c.wire)) for c in read.columns])
    raw, name, rows = workspace.fresh("raw"), workspace.fresh("src"), 0
    values = [
        named(checked_cast(col(c.name), c.wire, c.type, c.name), c.name) for c in read.columns
    ]
    select_ = render(select(*values).from_(table(raw)), workspace.dialect)
    for number, batch in enumerate(_batches(source, read.statement, schema)):
        workspace.connection.register(raw, batch)
        workspace.run(
            f'INSERT INTO "{name}" {select_}'
            if number
            else f'CREATE TEMP TABLE "{name}" AS {select_}'
        )
        workspace.connection.unregister(raw)
        rows += batch.num_rows
    return name, rows


def _batches(source: SqlSource, statement: str, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows in bounded pieces; always at least one, so that an empty table has its columns."""
    with sql_sources.opened(source.endpoint) as connection:
        streamed = connection.execution_options(stream_results=True)
        some = False
        with streamed.exec_driver_sql(statement) as result:
            for partition in result.partitions(_BATCH):
                some = True
                yield _to_arrow(partition, schema)
        if not some:
            yield schema.empty_table()


def _to_arrow(rows: Sequence[sqlalchemy.Row[Any]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True))
    arrays = []
    for values, field in zip(columns, schema, strict=True):
        try:
            arrays.append(
                pa.array(
                    [bytes(v) if isinstance(v, memoryview) else v for v in values]
                    if pa.types.is_binary(field.type)
                    else values,
                    field.type,
                )
            )
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as e:
            raise ReadError(
                f"column `{field.name}`: a value does not fit {field.type}: {str(e).splitlines()[0]}"
            ) from e
    return pa.Table.from_arrays(arrays, schema=schema)


def lake(workspace: DuckWorkspace, source: LakeSource) -> str:
    """A Delta table at one version: DuckDB reads its files, where they are files that say all."""
    delta = DeltaTable(source.table.location, version=source.version)
    whole = delta_log.schema_of(delta)
    columns = whole if source.where is not None else whole.without(*source.hidden)
    name = workspace.fresh("lake")
    if _plain_files(delta):
        body = _delta_files(workspace, source.table, delta, columns)
    else:  # deletion vectors and mapped names: only deltalake's own query engine applies them
        workspace.connection.register(
            name + "_stream", pa.RecordBatchReader.from_stream(delta_stream(delta))
        )
        workspace.run(f'CREATE TEMP TABLE "{name}_rows" AS SELECT * FROM "{name}_stream"')
        body = render(typed(columns, f"{name}_rows", {c.fold for c in columns}), workspace.dialect)
    workspace.run(f'CREATE TEMP VIEW "{name}" AS {body}')
    if source.where is None:
        return name
    shown = (
        select(*(col(c) for c in whole.without(*source.hidden).names))
        .from_(table(name))
        .where(source.where)
    )
    workspace.run(f'CREATE TEMP VIEW "{name}_some" AS {render(shown, workspace.dialect)}')
    return f"{name}_some"


def _plain_files(delta: DeltaTable) -> bool:
    features = set(delta.protocol().reader_features or ())
    mapped = delta_log.has_mapped_names(delta)
    return (
        "deletionVectors" not in features
        and not mapped
        and "://" not in delta.table_uri.removeprefix("file://")
    )


def _delta_files(workspace: DuckWorkspace, place: Table, delta: DeltaTable, columns: Schema) -> str:
    """The live files of a table; partition values come from its log, and a file without a column has NULLs there."""
    live = pa.table(delta.get_add_actions(flatten=True))
    if live.num_rows == 0:
        return render(typed(columns, None, set()), workspace.dialect)
    paths = [str(delta_log.file_of(place, p)) for p in live.column("path").to_pylist()]
    parts = list(delta.metadata().partition_columns)
    values = {f"p{i}": live.column(f"partition.{c}") for i, c in enumerate(parts)}
    mapping = workspace.fresh("parts")
    workspace.register(mapping, pa.table({"file": paths, **values}))
    rows = f"SELECT * FROM read_parquet({file_list(paths)}, union_by_name = true, filename = '_strandline_file')"
    if parts:
        named_parts = ", ".join(
            f"p{i} AS {ident(c).sql(dialect='duckdb')}" for i, c in enumerate(parts)
        )
        rows = f'SELECT f.*, {named_parts} FROM ({rows}) f JOIN "{mapping}" m ON f._strandline_file = m.file'
    raw = workspace.fresh("raw")
    workspace.run(f'CREATE TEMP VIEW "{raw}" AS {rows}')
    have = {c.fold for c in workspace.relation(raw).schema}
    return render(typed(columns, raw, have), workspace.dialect)


def typed(columns: Schema, name: str | None, have: set[str]) -> exp.Select:
    """The table's columns in their types, NULL where the files have none."""
    values = [
        named(cast(col(c.name) if c.fold in have else exp.null(), c.type), c.name) for c in columns
    ]
    return select(*values).from_(table(name)) if name else select(*values).where(exp.false())


def files(workspace: DuckWorkspace, source: FileSource) -> str:
    """CSV, JSON or Parquet files as one view."""
    reader = {"csv": _csv, "json": _json, "parquet": _parquet}[source.format]
    name = workspace.fresh("files")
    if file_sources.quiet(source):
        rows = f"SELECT * FROM ({reader(workspace, file_sources.shape(source))}) WHERE FALSE"
    else:
        rows = reader(workspace, source)
    workspace.run(f'CREATE TEMP VIEW "{name}" AS {rows}')
    return name


def _csv(workspace: DuckWorkspace, source: FileSource) -> str:
    """Each group of files with one header is read by it; the groups are stacked by column name."""
    groups = file_sources.csv_groups(source)
    every = file_sources.union_columns(groups)
    types = {k.casefold(): v for k, v in (source.schema or {}).items()}
    parts = []
    for group in groups:
        options = {
            "delim": lit(source.delimiter),
            "header": lit(source.header),
            "quote": lit('"'),
            "escape": lit('"'),
            "nullstr": lit(""),
            "allow_quoted_nulls": lit(False),
            "auto_detect": lit(False),
            "strict_mode": lit(True),
            "max_line_size": lit(_LONGEST_LINE),
            "columns": _struct(dict.fromkeys(group.columns, "VARCHAR")),
        }
        if any(p.suffix.casefold() == ".gz" for p in group.files):
            options["buffer_size"] = lit(_LONGEST_LINE)  # DuckDB would take sixteen times as much
        here = {c.casefold() for c in group.columns}
        values = []
        for c in every:
            text: exp.Expr = col(c) if c.casefold() in here else cast(exp.null(), "string")
            if source.null_value is not None:
                text = exp.Nullif(this=text, expression=lit(source.null_value))
            values.append(
                named(checked_cast(text, "string", types.get(c.casefold(), "string"), c), c)
            )
        parts.append(_from(workspace, source, "read_csv", group.files, options, values))
    return " UNION ALL ".join(parts)


def _parquet(workspace: DuckWorkspace, source: FileSource) -> str:
    options, paths = {"union_by_name": lit(True)}, file_sources.find(source)
    untyped_parquet(source, paths)
    return _from(workspace, source, "read_parquet", paths, options, [exp.Star(**_except(source))])


def _json(workspace: DuckWorkspace, source: FileSource) -> str:
    """One object per line; without a schema the columns are found as Spark finds them."""
    paths = file_sources.find(source)
    types = dict(source.schema or {}) or _json_types(workspace, paths)
    Schema.of(*types.items())  # two names that differ only in case are refused
    file_sources.refuse_own(types, source)
    duck = {c: data_type(t).sql(dialect="duckdb") for c, t in types.items() if t != "void"}
    options = {
        "format": lit("newline_delimited"),
        "columns": _struct(duck or {"_strandline_none": "VARCHAR"}),
    }
    values: list[exp.Expr] = [col(c) if c in duck else named(exp.null(), c) for c in types]
    return _from(workspace, source, "read_json", paths, options, values)


def _json_types(workspace: DuckWorkspace, paths: Sequence[Path]) -> dict[str, str]:
    import json

    objects = f"read_json_objects({file_list(paths)}, format = 'newline_delimited')"
    row = workspace.run(f"SELECT json_group_structure(json) FROM {objects}").fetchall()[0]
    structure = json.loads(row[0]) if row[0] else {}
    if not isinstance(structure, dict):
        raise ReadError("the JSON files hold no objects", hint="expected one JSON object per line")
    return {
        name: "void" if kind == "NULL" else _json_type(kind)
        for name, kind in sorted(structure.items())
    }


def _json_type(kind: Any) -> str:
    if isinstance(kind, dict):
        return "struct<" + ",".join(f"{n}:{_json_type(k)}" for n, k in sorted(kind.items())) + ">"
    if isinstance(kind, list):
        return f"array<{_json_type(kind[0])}>"
    return {"BIGINT": "bigint", "UBIGINT": "bigint", "DOUBLE": "double", "BOOLEAN": "boolean"}.get(
        kind, "string"
    )


def _from(
    workspace: DuckWorkspace,
    source: FileSource,
    function: str,
    paths: Sequence[Path],
    options: dict[str, exp.Expr],
    values: Sequence[exp.Expr],
) -> str:
    """SELECT … FROM reader([files], option = …), with the file's path below its connection when asked."""
    if source.file_column:
        options = {**options, "filename": lit("_strandline_file")}
        start = len(str(source.root.resolve())) + 2
        relative = exp.Substring(this=col("_strandline_file"), start=exp.Literal.number(start))
        values = [*values, named(relative, source.file_column)]
    given = ", ".join(f"{k} = {render(v, workspace.dialect)}" for k, v in options.items())
    return (
        f"{render(select(*values), workspace.dialect)} FROM {function}({file_list(paths)}, {given})"
    )


def file_list(paths: Iterable[Path | str]) -> str:
    """The files as DuckDB takes them; a name such as `report[1].csv` is no pattern."""
    return exp.Array(expressions=[lit(escape(str(p))) for p in paths]).sql(dialect="duckdb")


def _except(source: FileSource) -> dict[str, Any]:
    return {"except_": [ident("_strandline_file")]} if source.file_column else {}


def _struct(types: dict[str, str]) -> exp.Expr:
    return exp.Struct(
        expressions=[exp.PropertyEQ(this=ident(n), expression=lit(t)) for n, t in types.items()]
    )
