"""A change feed in DuckDB, from the files that the table's log names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable
from sqlglot import exp

from strandline.engine.base import FeedSource
from strandline.engine.local.scans import file_list, typed
from strandline.lake.delta import feed as delta_feed
from strandline.lake.delta import log as delta_log
from strandline.lake.delta.feed import CHANGE, VERSION, ChangeFile
from strandline.sql.expr import cast, col, ident, lit, named, rows_of, table
from strandline.sql.portable import render
from strandline.types import Column, Schema

if TYPE_CHECKING:
    from strandline.engine.local.duck import DuckWorkspace


def feed(workspace: DuckWorkspace, source: FeedSource) -> str:
    """The changed rows, each with how and when."""
    delta = DeltaTable(source.table.location, version=source.version)
    whole = delta_log.schema_of(delta)
    every = whole.plus(Column(CHANGE, "string"), Column(VERSION, "bigint"))
    found = delta_feed.files(source.table, source.after, source.version)
    parts = list(delta.metadata().partition_columns)
    told = [f for f in found if f.change is None]
    bodies = [
        _rows(workspace, group, parts, every)
        for group in (told, [f for f in found if f.change])
        if group
    ]
    name = workspace.fresh("feed")
    body = " UNION ALL ".join(bodies) or render(typed(every, None, set()), workspace.dialect)
    workspace.run(f'CREATE TEMP VIEW "{name}" AS {body}')
    shown = rows_of(workspace.relation(name), source.columns.plus(*every.columns[-2:]))
    if source.where is not None:
        shown = shown.where(source.where)
    workspace.run(f'CREATE TEMP VIEW "{name}_some" AS {render(shown, workspace.dialect)}')
    return f"{name}_some"


def _rows(
    workspace: DuckWorkspace, files: list[ChangeFile], parts: list[str], columns: Schema
) -> str:
    """Some files, with what the log knows of them: the version, the partition, and how their rows changed.

    A file may come in one version and go in another, so that it is read once for each.
    """
    facts = {
        "file": [f.path for f in files],
        "version": pa.array([f.version for f in files], pa.int64()),
        "change": pa.array([f.change for f in files], pa.string()),
        **{
            f"p{i}": pa.array([f.partition.get(c) for f in files], pa.string())
            for i, c in enumerate(parts)
        },
    }
    mapping = workspace.fresh("parts")
    workspace.register(mapping, pa.table(facts))
    listed = file_list(sorted({f.path for f in files}))
    rows = (
        f"SELECT * FROM read_parquet({listed}, union_by_name = true, filename = '_strandline_file')"
    )
    known = [named(col("version", "m"), VERSION)]
    known += [named(col("change", "m"), CHANGE)] if files[0].change else []
    known += [named(_value(f"p{i}", columns.get(c)), c) for i, c in enumerate(parts)]
    more = ", ".join(render(k, workspace.dialect) for k in known)
    hidden = ", ".join(ident(p).sql(dialect="duckdb") for p in _stored(workspace, rows, parts))
    inner = f"f.* EXCLUDE ({hidden})" if hidden else "f.*"
    raw = workspace.fresh("raw")
    workspace.run(
        f'CREATE TEMP VIEW "{raw}" AS SELECT {inner}, {more} '
        f"FROM ({rows}) f JOIN {render(table(mapping), workspace.dialect)} m ON f._strandline_file = m.file"
    )
    have = {c.fold for c in workspace.relation(raw).schema}
    return render(typed(columns, raw, have), workspace.dialect)


def _stored(workspace: DuckWorkspace, rows: str, parts: list[str]) -> list[str]:
    """Partition columns that the files hold too; the log's values count."""
    there = {str(r[0]).casefold() for r in workspace.run(f"DESCRIBE {rows}").fetchall()}
    return [p for p in parts if p.casefold() in there]


def _value(name: str, column: Column | None) -> exp.Expr:
    """A partition's value, which the log keeps as text; the empty text is NULL."""
    text = exp.Nullif(this=col(name, "m"), expression=lit(""))
    return cast(text, column.type) if column else text
