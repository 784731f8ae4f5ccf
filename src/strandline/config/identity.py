"""What makes two reads the same source, whatever the connection, the user or the driver are called."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from strandline.config import resolve, urls
from strandline.config.connections import SqlConnection

if TYPE_CHECKING:
    from strandline.config.load import Project
    from strandline.config.reads import ReadConfig

_PORTS = {"postgres": 5432, "mysql": 3306, "tsql": 1433, "oracle": 1521}


def source_identity(project: Project, read: ReadConfig) -> str:
    """The identity of one read: place, table, path or query, watermark columns, load_id; nothing secret."""
    connection = project.config.connections[read.connection]
    if connection.identity:
        place: list[str | int | None] = ["pinned", connection.identity, read.table or read.path]
    elif isinstance(connection, SqlConnection):
        place = [*_database(project, read.connection, connection), read.table]
    else:
        place = ["files", resolve.locate(project, read.connection, read.table or read.path or "")]
    columns = [w.column_name.casefold() for w in read.watermark]
    if read.incremental and read.incremental.column:
        columns.append(read.incremental.column.casefold())
    load_id = read.feed.load_id if read.feed else None
    query = " ".join(read.query.split()).rstrip("; ") if read.query else None
    return digest([place, query, sorted(columns), load_id])


def of_all(identities: Iterable[str]) -> str:
    """The identity of several reads together."""
    found = sorted(identities)
    return found[0] if len(found) == 1 else digest(found)


def digest(told: object) -> str:
    """A short text that tells one value from another."""
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def _database(project: Project, name: str, connection: SqlConnection) -> list[str | int | None]:
    found = resolve.database_of(connection, project.root, key=f"connections.{name}")
    kind = urls.DIALECTS.get(found.kind, found.kind)
    host = found.host.casefold() if found.host else None
    return [kind, host, found.port or _PORTS.get(kind) if host else None, found.name]
