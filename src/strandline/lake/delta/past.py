"""A Delta table's past: its commits, and single rows as they were at a version. Read without a Spark job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import chain, takewhile
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from strandline.errors import TableError
from strandline.lake.base import Key
from strandline.lake.delta import log
from strandline.sql.portable import family
from strandline.sql.values import ORDERED, Value, converted, to_text
from strandline.types import RESTORED_UNKNOWN, Commit, Schema, Table


def history(table: Table) -> Iterator[Commit]:
    """Every commit the log still knows, the newest first."""
    delta = log.open_table(table)
    if delta is not None:
        yield from (_commit(table, entry) for entry in log.entries(delta))


def since(table: Table, version: int) -> list[Commit] | None:
    """The commits after a version, the newest first; None when the table is at an older one."""
    line = history(table)
    newest = next(line, None)
    if newest is None or newest.version < version:
        return None
    return list(takewhile(lambda c: c.version > version, chain([newest], line)))


def _commit(table: Table, entry: dict[str, Any]) -> Commit:
    operation, parameters = str(entry.get("operation", "")), entry.get("operationParameters") or {}
    version, record = int(entry["version"]), log.record_of(entry) or {}
    return Commit(
        version,
        record,
        parent=version - 1 if version else None,
        at=datetime.fromtimestamp(int(entry.get("timestamp", 0)) / 1000, UTC),
        operation=operation,
        restores=_restored(table, version, parameters) if operation == "RESTORE" else None,
        replaces=_replaces(operation, parameters) and not record.get("rewrites"),
        moves_rows=not operation.startswith(log.HARMLESS),
        metrics=entry.get("operationMetrics") or {},
    )


def _restored(table: Table, version: int, parameters: Mapping[str, Any]) -> int:
    """The version that a RESTORE put back: the one it names, else the newest one with the same files.

    A RESTORE to a time names the time as a clock of an unknown zone showed it.
    """
    if (named := parameters.get("version")) is not None:
        return int(named)
    try:
        files = _files_at(table, version)
        return next(
            (v for v in range(version - 1, -1, -1) if _files_at(table, v) == files),
            RESTORED_UNKNOWN,
        )
    except (DeltaError, OSError):  # the log no longer reaches back to it
        return RESTORED_UNKNOWN


def _files_at(table: Table, version: int) -> set[str]:
    return set(DeltaTable(table.location, version=version).file_uris())


def _replaces(operation: str, parameters: Mapping[str, Any]) -> bool:
    """Does a commit put other rows in the place of all that there are?"""
    if "REPLACE TABLE" in operation:
        return True
    part = (
        parameters.get("predicate")
        or str(parameters.get("isDynamicPartitionOverwrite", "")).lower() == "true"
    )
    return operation == "WRITE" and parameters.get("mode") == "Overwrite" and not part


def unreadable(table: Table, version: int) -> str | None:
    """Why a version cannot be read any more: its log or its files are gone; None when all is there."""
    try:
        delta = DeltaTable(table.location, version=version)
    except (DeltaError, OSError):
        return f"version {version} is no longer in its log"
    files = [] if "://" in table.location else log.files_of(table, delta)
    gone = [file for file in files if not file.exists()]
    if gone:
        return f"{len(gone)} of the {len(files)} files of version {version} are gone, vacuumed or removed"
    return _without_vectors(delta, version)


def _without_vectors(delta: DeltaTable, version: int) -> str | None:
    """Tell that the files of deletion vectors are gone, if they are."""
    if "deletionVectors" not in (delta.protocol().reader_features or ()):
        return None
    try:
        delta.deletion_vectors()
    except (DeltaError, OSError):
        return f"deletion vectors of version {version} are gone, vacuumed or removed"
    return None


def rows_at(table: Table, version: int, key: Key) -> list[dict[str, Any]] | None:
    """The rows of a key at a version; None when their files are no longer there."""
    try:
        delta = DeltaTable(table.location, version=version)
        where = condition(log.schema_of(delta), key)
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


def condition(schema: Schema, key: Key) -> str:
    """The key as a condition; every value is a literal of the type that its column has here."""
    parts = []
    for name, value in key.items():
        column = schema.get(name)
        if column is None:
            return "false"
        quoted = '"' + column.name.replace('"', '""') + '"'
        parts.append(f"{quoted} IS NULL" if value is None else _equals(quoted, column.type, value))
    return " AND ".join(parts)


def _equals(quoted: str, type_: str, value: Value | float | bytes) -> str:
    """DataFusion reads a decimal by way of a double and a time in nanoseconds: neither would be exact."""
    kind = family(type_)
    if isinstance(value, bytes):
        return f"{quoted} = X'{value.hex()}'" if kind == "binary" else "false"
    if isinstance(value, bool | float):
        return f"{quoted} = CAST('{value}' AS {'BOOLEAN' if kind == 'boolean' else 'DOUBLE'})"
    if kind in ORDERED:
        here = converted(value, type_)
        if here != value:  # the column was narrower then
            return "false"
        value = here
    if isinstance(value, datetime):
        epoch = datetime(1970, 1, 1, tzinfo=value.tzinfo)
        return f"CAST({quoted} AS BIGINT) = {(value - epoch) // timedelta(microseconds=1)}"
    literal = "'" + to_text(value).replace("'", "''") + "'"
    return f"{quoted} = {literal}" if kind == "text" else f"CAST({quoted} AS VARCHAR) = {literal}"
