"""The metadata columns of a Bronze write: when and where each row came from."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from strandline.config.connections import SqlConnection
from strandline.config.model import NodeConfig
from strandline.config.queries import tables_read
from strandline.config.reads import ReadConfig
from strandline.config.urls import dialect_of
from strandline.plan.inputs import SOURCE_FILE, Input, file_is_written
from strandline.plan.job import Job
from strandline.sql.expr import cast, col, lit, named, rows_of, select, table
from strandline.types import Relation


def metadata_columns(job: Job) -> list[tuple[str, exp.Expr]]:
    """The columns to add, where applicable; `_source_file` comes with the rows."""
    wanted, inputs = job.node.write.metadata(), job.inputs
    only = inputs[0] if len(inputs) == 1 else None
    found: list[tuple[str, exp.Expr]] = []
    if wanted.extracted_at:
        found.append(("_extracted_at", lit(job.clock.now)))
    if wanted.source_connection and only:
        found.append(("_source_connection", lit(only.read.connection)))
    if wanted.source_table and only and only.read.path is None:
        found.append(("_source_table", lit(only.read.table or _query_name(job, only.read))))
    return found


def _query_name(job: Job, read: ReadConfig) -> str:
    """A query goes by its node, and by the tables that it reads."""
    connection = job.project.config.connections[read.connection]
    url = connection.url if isinstance(connection, SqlConnection) else ""
    tables = tables_read(read.query or "", dialect_of(url))
    return f"{job.node.name} ({', '.join(tables)})" if tables else job.node.name


def with_metadata(
    rows: Relation, columns: Sequence[tuple[str, exp.Expr]], *, file: bool
) -> exp.Select | None:
    """The rows with their metadata at the end; None when there is none to add."""
    names = {n.casefold() for n, _ in columns}
    late = [SOURCE_FILE] if file else []
    kept = [c.name for c in rows.schema if c.fold not in names and c.name not in late]
    lost = file and SOURCE_FILE not in rows.schema
    tail = (
        [named(cast(exp.null(), "string") if lost else col(SOURCE_FILE), SOURCE_FILE)]
        if file
        else []
    )
    if not columns and not tail:
        return None
    return select(*map(col, kept), *(named(tree, name) for name, tree in columns), *tail).from_(
        table(rows.name)
    )


def without_file(node: NodeConfig, input_: Input, rows: Relation) -> exp.Select | None:
    """The rows without the name of their file, where only steps have asked for it; None when there is none to drop."""
    if input_.read.path is None or SOURCE_FILE not in rows.schema or file_is_written(node, input_):
        return None
    return rows_of(rows, rows.schema.without(SOURCE_FILE))
