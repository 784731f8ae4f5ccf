"""A Delta table's past: its commits, and single rows as they were at a version. Read without a Spark job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from strandline.engine import delta_log
from strandline.errors import TableError
from strandline.sql.portable import family
from strandline.types import Schema, Table

_CASTS = {"integer": "BIGINT", "decimal": "DECIMAL(38,10)", "float": "DOUBLE"}


@dataclass(frozen=True)
class Commit:
    """One commit: who made it, if it was one of ours."""

    version: int
    at: datetime
    operation: str
    record: dict[str, Any]


def commits(table: Table) -> list[Commit]:
    """Every commit the log still knows, the oldest first."""
    delta = delta_log.open_table(table)
    if delta is None:
        return []
    found = [
        Commit(
            int(entry["version"]),
            datetime.fromtimestamp(int(entry.get("timestamp", 0)) / 1000, UTC),
            str(entry.get("operation", "")),
            delta_log.record_of(entry) or {},
        )
        for entry in delta.history()
    ]
    return sorted(found, key=lambda c: c.version)


def since(table: Table, version: int) -> list[str]:
    """Whose commits came after a version, in words."""
    found = [c for c in commits(table) if c.version > version]
    return [f"version {c.version}, by {_author(c)}" for c in found]


def _author(commit: Commit) -> str:
    run = commit.record.get("run_id")
    return f"run {run}" if run else f"somebody else ({commit.operation})"


def unreadable(table: Table, version: int) -> str | None:
    """Why a version cannot be read any more: its log or its files are gone; None when all is there."""
    try:
        delta = DeltaTable(table.location, version=version)
    except (DeltaError, OSError):
        return f"version {version} is no longer in its log"
    files = [] if "://" in table.location else delta_log.files_of(table, delta)
    gone = [file for file in files if not file.exists()]
    return f"{len(gone)} of the {len(files)} files of version {version} were vacuumed" if gone else None


def rows_at(table: Table, version: int, key: dict[str, str | None]) -> list[dict[str, Any]] | None:
    """The rows of a key at a version; None when their files are no longer there."""
    try:
        delta = DeltaTable(table.location, version=version)
        where = condition(delta_log.schema_of(delta), key)
        stream = QueryBuilder().register("t", delta).execute(f"SELECT * FROM t WHERE {where}")
        return list(pa.RecordBatchReader.from_stream(stream).read_all().to_pylist())
    except (DeltaError, OSError):
        return None
    except Exception as e:
        if (
            "not found" in str(e).lower() or "no such file" in str(e).lower()
        ):  # DataFusion's errors are plain Exceptions
            return None
        raise TableError(f"{table.label}: version {version} cannot be read: {e}") from e


def condition(schema: Schema, key: dict[str, str | None]) -> str:
    """The key as a condition; every value is a literal of its column's kind."""
    parts = []
    for name, text in key.items():
        column = schema.get(name)
        if column is None:
            return "false"
        quoted = '"' + column.name.replace('"', '""') + '"'
        if text is None:
            parts.append(f"{quoted} IS NULL")
            continue
        value = "'" + text.replace("'", "''") + "'"
        if cast := _CASTS.get(family(column.type)):
            parts.append(f"{quoted} = TRY_CAST({value} AS {cast})")
        elif family(column.type) == "text":
            parts.append(f"{quoted} = {value}")
        else:
            parts.append(f"CAST({quoted} AS VARCHAR) = {value}")
    return " AND ".join(parts)
