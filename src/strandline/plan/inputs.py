"""What a node reads, resolved: names become places, secrets become logins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from strandline.config import resolve
from strandline.config.connections import FilesConnection, LakeConnection, SqlConnection
from strandline.config.deletes import DeleteDetectionConfig
from strandline.config.identity import source_identity
from strandline.config.load import Project
from strandline.config.model import NodeConfig
from strandline.config.naming import of_node
from strandline.config.positions import Loc
from strandline.config.reads import ReadConfig, SourceConfig
from strandline.engine.base import FileSource, LakeSource, Source, SqlEndpoint, SqlSource
from strandline.errors import ReadError
from strandline.lake import describe
from strandline.plan.pushdown import columns_needed, predicates
from strandline.plan.views import check_view, hidden, seen
from strandline.types import Table, TableState

SOURCE_FILE = "_source_file"


@dataclass(frozen=True)
class Input:
    """One source of a node: how its SQL calls it, what it is."""

    alias: str
    read: ReadConfig
    label: str
    loc: Loc = ("read",)  # its key in the node
    key: str = ""  # the identity of what it reads: the records know its position by it


def inputs(node: NodeConfig) -> list[Input]:
    """The sources of a node in order."""
    found = []
    for loc, read in node.reads():
        alias = read.alias if isinstance(read, SourceConfig) else "source"
        found.append(
            Input(alias, read, f"{read.connection}.{read.table or read.path or 'query'}", loc)
        )
    return found


def identified(project: Project, node: NodeConfig) -> list[Input]:
    """The sources of a node, each with its identity."""
    return [replace(i, key=source_identity(project, i.read)) for i in inputs(node)]


def table_of(project: Project, connection: str, name: str) -> Table:
    """The lake table of that name."""
    return Table(f"{connection}.{name}", resolve.locate(project, connection, name))


def is_lake(project: Project, read: ReadConfig) -> bool:
    return isinstance(project.config.connections[read.connection], LakeConnection)


def source_of(
    project: Project, node: NodeConfig, input_: Input
) -> tuple[Source, TableState | None]:
    """The source to scan; a lake table is pinned to the version it has now."""
    read = input_.read
    connection = project.config.connections[read.connection]
    match connection:
        case LakeConnection():
            return _lake(project, node, input_)
        case FilesConnection():
            return _files(project, node, input_, connection), None
        case SqlConnection():
            return _sql(project, node, read, connection), None


def _lake(project: Project, node: NodeConfig, input_: Input) -> tuple[Source, TableState]:
    read = input_.read
    table = table_of(project, read.connection, read.table or "")
    state = describe(table)
    if state is None:
        writer = next((n.name for n in project.config.nodes if _writes(project, n, table)), None)
        raise ReadError(
            f"there is no table {table.label} yet",
            hint=f"run node `{writer}` first, or both: --select +{node.name}"
            if writer
            else "check connection and table",
        )
    state = seen(read, state, table.label)
    check_view(node, input_.alias, state.roles, table.label)
    return LakeSource(table, state.version, hidden(node, input_.alias, state.roles)), state


def _writes(project: Project, node: NodeConfig, table: Table) -> bool:
    return table_of(project, node.write.connection, node.write.table) == table


def _files(
    project: Project, node: NodeConfig, input_: Input, connection: FilesConnection
) -> Source:
    read = input_.read
    options = read.options
    return FileSource(
        root=Path(resolve.base(connection, project.root)),
        pattern=read.path or "",
        format=str(read.file_format),
        schema=read.schema_,
        delimiter=options.delimiter if options else ",",
        header=options.header if options else True,
        null_value=options.null_value if options else None,
        multiline=options.multiline if options else True,
        encoding=options.encoding if options else "utf-8",
        file_column=file_column(node, input_),
    )


def file_column(node: NodeConfig, input_: Input) -> str | None:
    """The column in which rows of files say their file: steps may name it, and `deduplicate` breaks ties by it."""
    chooses = any(
        step.operation == "deduplicate" for step in (node.transform.steps if node.transform else ())
    )
    named = of_node(node, input_.alias).place(SOURCE_FILE) is not None
    return SOURCE_FILE if chooses or named or node.write.metadata().source_file else None


def file_is_written(node: NodeConfig, input_: Input) -> bool:
    """Does the file of each row go on after the steps: as metadata, or because the SQL or the write names it?"""
    return (
        node.write.metadata().source_file
        or of_node(node, input_.alias).place(SOURCE_FILE, steps=False) is not None
    )


def _endpoint(project: Project, name: str, connection: SqlConnection) -> SqlEndpoint:
    key = f"connections.{name}"
    return SqlEndpoint(
        name,
        resolve.sqlalchemy_url(connection, project.root, key=key),
        lambda: resolve.jdbc(connection, project.root, key=key),
    )


def live_source(project: Project, config: DeleteDetectionConfig) -> SqlSource:
    """The live source of a comparison: its keys and nothing else."""
    name = config.source_connection or ""
    connection = project.config.connections[name]
    if not isinstance(connection, SqlConnection):
        raise ReadError(
            f"sql_compare: `{name}` is not a database", hint="name a connection with type: sql"
        )
    table = None if config.source_query else config.source_table
    columns = tuple(k.casefold() for k in config.keys)
    endpoint = _endpoint(project, name, connection)
    # a query may be dear: it is not asked a second time whether runs of keys would pay
    return SqlSource(
        endpoint, table=table, query=config.source_query, columns=columns, runs=table is not None
    )


def _sql(project: Project, node: NodeConfig, read: ReadConfig, connection: SqlConnection) -> Source:
    alone = len(node.reads()) == 1
    return SqlSource(
        _endpoint(project, read.connection, connection),
        table=read.table,
        query=read.query,
        partition_column=read.partition_column,
        num_partitions=read.num_partitions,
        columns=_columns(node) if alone else None,
        where=tuple(predicates(node)) if alone else (),
    )


def _columns(node: NodeConfig) -> tuple[str, ...] | None:
    """The columns that the node's SQL and its watermarks ask for; None for all."""
    wanted = columns_needed(node)
    read = node.reads()[0][1]
    if wanted is None:
        return None
    marks = [w.column_name for w in read.watermark] + [
        read.incremental.column or "" if read.incremental else ""
    ]
    return tuple(sorted({*wanted, *(m.casefold() for m in marks if m)}))
