"""Iceberg tables in DuckDB: their Parquet files, without the rows that deletes take out of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.schema import Schema as IceSchema
from pyiceberg.table import Table as IceTable
from sqlglot import exp

from strandline.engine.base import FeedSource, LakeSource
from strandline.engine.local.scans import typed
from strandline.errors import TableError
from strandline.lake.iceberg import log
from strandline.lake.iceberg.catalogs import opened
from strandline.lake.iceberg.files import (
    LiveFile,
    deletion_vectors,
    is_vector,
    live,
    local_path,
    refuse_renamed,
)
from strandline.lake.iceberg.types import columns_of_schema, to_spark
from strandline.sql.expr import col, data_type, lit, select
from strandline.sql.expr import table as table_
from strandline.sql.net import CHANGE_TYPE, COMMIT_VERSION
from strandline.sql.portable import render
from strandline.types import Column, Schema, Table

if TYPE_CHECKING:
    from strandline.engine.local.workspace import LocalWorkspace

FILE, POS = "_strandline_file", "_strandline_pos"
"""Where a row is stored: the number of the file in a list, and the position there."""
_READ = {
    "bigint",
    "int",
    "float",
    "double",
    "string",
    "boolean",
    "date",
    "binary",
    "timestamp",
    "timestamp_ntz",
}


def open_there(table: Table) -> IceTable:
    """A table that was there when it was looked at."""
    found = opened(table)
    if found is None:
        raise TableError(f"{table.label}: the table is gone", hint="run again")
    return found


class FileReader:
    """Reads files of one table in the columns of one schema."""

    def __init__(
        self, workspace: LocalWorkspace, table: Table, found: IceTable, schema: IceSchema
    ) -> None:
        self.workspace, self.table, self.found, self.schema = workspace, table, found, schema
        self.columns = columns_of_schema(schema)
        refuse_renamed(found.metadata, schema, table)

    def rows(self, files: Sequence[LiveFile]) -> str:
        """The rows of files that are not deleted, as SQL."""
        whole = [f for f in files if not f.deletes]
        parts = [self._select(whole)] if whole else []
        if some := [f for f in files if f.deletes]:
            parts.append(f"{self._select(some)} WHERE NOT {_listed(self.deletes(some))}")
        return " UNION ALL ".join(parts) or self._none()

    def rows_listed(self, files: Sequence[LiveFile], positions: str) -> str:
        """The rows of files at these positions."""
        return f"{self._select(files)} WHERE {_listed(positions)}"

    def stored_rows(self, files: Sequence[LiveFile]) -> str:
        """All rows of files, deleted ones too, each with where it is stored."""
        if files:
            return self._select(files, f", f.file_index AS {FILE}, f.file_row_number AS {POS}")
        return self._none(Column(FILE, "bigint"), Column(POS, "bigint"))

    def deletes(self, files: Sequence[LiveFile]) -> str:
        """A view of what deletes take out of files: the number of the file in this list, and the position."""
        known = self.workspace.fresh("paths")
        numbers = pa.array(range(len(files)), pa.int64())
        self.workspace.register(known, pa.table({"uri": [f.uri for f in files], FILE: numbers}))
        stored = sorted(
            {
                local_path(d.file_path, self.table)
                for f in files
                for d in f.deletes
                if not is_vector(d)
            }
        )
        parts = []
        if stored:
            parts.append(f"SELECT file_path AS uri, pos FROM read_parquet({_array(stored)})")
        vectors = list(deletion_vectors(self.found, files))
        if vectors:
            name = self.workspace.fresh("vectors")
            uris = [uri for uri, positions in vectors for _ in range(len(positions))]
            every = pa.concat_arrays([p.cast(pa.int64()) for _, p in vectors])
            self.workspace.register(name, pa.table({"uri": uris, "pos": every}))
            parts.append(f'SELECT uri, pos FROM "{name}"')
        view = self.workspace.fresh("gone")
        none = "SELECT NULL::VARCHAR AS uri, NULL::BIGINT AS pos WHERE false"
        body = " UNION ALL ".join(parts) or none
        self.workspace.run(
            f'CREATE TEMP VIEW "{view}" AS SELECT p.{FILE}, d.pos AS {POS} '
            f'FROM ({body}) d JOIN "{known}" p ON d.uri = p.uri'
        )
        return view

    def _select(self, files: Sequence[LiveFile], more: str = "") -> str:
        paths = _array([local_path(f.uri, self.table) for f in files])
        values = ", ".join(col(c.name, "f").sql(dialect="duckdb") for c in self.columns)
        return f"SELECT {values}{more} FROM read_parquet({paths}, schema = {self._map()}) f"

    def _map(self) -> str:
        """What DuckDB needs to know of the columns: it finds them by the numbers of their fields."""
        entries = []
        for field in self.schema.fields:
            type_ = to_spark(field.field_type)
            if "<" not in type_ and not type_.startswith("decimal(") and type_ not in _READ:
                raise TableError(
                    f"{self.table.label}: column `{field.name}` has type {type_}, which no engine of strandline reads",
                    hint="leave the column out of the table, or give it another type",
                )
            name = lit(field.name).sql(dialect="duckdb")
            duck = lit(data_type(type_).sql(dialect="duckdb")).sql(dialect="duckdb")
            entries.append(f"{field.field_id}: {{name: {name}, type: {duck}, default_value: NULL}}")
        return "MAP {" + ", ".join(entries) + "}"

    def _none(self, *more: Column) -> str:
        return render(typed(self.columns.plus(*more), None, set()), "duckdb")


def _listed(positions: str) -> str:
    """Whether a row of `f` is among these positions."""
    same = f"d.{FILE} = f.file_index AND d.{POS} = f.file_row_number"
    return f'EXISTS (SELECT 1 FROM "{positions}" d WHERE {same})'


def _array(values: Iterable[str]) -> str:
    return exp.Array(expressions=[lit(v) for v in values]).sql(dialect="duckdb")


def iceberg_rows(workspace: LocalWorkspace, source: LakeSource) -> str:
    """An Iceberg table at one version."""
    found = open_there(source.table)
    schema = log.schema_at(found.metadata, source.version)
    reader = FileReader(workspace, source.table, found, schema)
    name = workspace.fresh("lake")
    body = reader.rows(live(found, source.table, source.version))
    workspace.run(f'CREATE TEMP VIEW "{name}" AS {body}')
    return shown(workspace, name, reader.columns.without(*source.hidden), source.where)


def shown(workspace: LocalWorkspace, name: str, columns: Schema, where: exp.Expr | None) -> str:
    """A view of some columns and rows of a view."""
    tree = select(*(col(c) for c in columns.names)).from_(table_(name))
    if where is not None:
        tree = tree.where(where)
    workspace.run(f'CREATE TEMP VIEW "{name}_some" AS {render(tree, workspace.dialect)}')
    return f"{name}_some"


def iceberg_feed(workspace: LocalWorkspace, source: FeedSource) -> str:
    """What differs between two versions: rows of files that came or went, and rows that deletes took or gave back."""
    found = open_there(source.table)
    schema = log.schema_at(found.metadata, source.version)
    reader = FileReader(workspace, source.table, found, schema)
    then = {f.uri: f for f in live(found, source.table, source.after)}
    now = {f.uri: f for f in live(found, source.table, source.version)}
    parts = [
        *_told(reader.rows, [f for u, f in now.items() if u not in then], "insert"),
        *_told(reader.rows, [f for u, f in then.items() if u not in now], "delete"),
        *_redeleted(workspace, reader, then, now),
    ]
    bodies = [
        f"SELECT *, '{verb}' AS {CHANGE_TYPE}, {source.version}::BIGINT AS {COMMIT_VERSION} FROM ({rows})"
        for rows, verb in parts
    ]
    every = reader.columns.plus(Column(CHANGE_TYPE, "string"), Column(COMMIT_VERSION, "bigint"))
    name = workspace.fresh("feed")
    body = " UNION ALL ".join(bodies) or render(typed(every, None, set()), workspace.dialect)
    workspace.run(f'CREATE TEMP VIEW "{name}" AS {body}')
    return shown(workspace, name, source.columns.plus(*every.columns[-2:]), source.where)


def _told(read: object, files: Sequence[LiveFile], verb: str) -> list[tuple[str, str]]:
    assert callable(read)
    return [(read(files), verb)] if files else []


def _redeleted(
    workspace: LocalWorkspace,
    reader: FileReader,
    then: dict[str, LiveFile],
    now: dict[str, LiveFile],
) -> list[tuple[str, str]]:
    """The rows of files that are in both versions, of which other rows are deleted."""
    both = [
        (then[u], f) for u, f in now.items() if u in then and then[u].deleted_by != f.deleted_by
    ]
    if not both:
        return []
    before, after = reader.deletes([b for b, _ in both]), reader.deletes([a for _, a in both])
    parts = []
    for came, there, verb in ((after, before, "delete"), (before, after, "insert")):
        name = workspace.fresh("turned")
        workspace.run(
            f'CREATE TEMP VIEW "{name}" AS SELECT * FROM "{came}" EXCEPT SELECT * FROM "{there}"'
        )
        parts.append((reader.rows_listed([a for _, a in both], name), verb))
    return parts
