"""What an Iceberg table's metadata says: its columns, what strandline keeps in them, and who committed last."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from pyiceberg.schema import Schema as IceSchema
from pyiceberg.table import Table as IceTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform

from strandline.lake.iceberg.catalogs import opened
from strandline.lake.iceberg.types import columns_of_schema
from strandline.strategy.changes import METADATA
from strandline.types import Commit, Schema, Table, TableState, Token

NOTE = "strandline"
"""The key of our record in the summary of a snapshot."""
ROLES, MARKED = "strandline.roles", "strandline.metadata"
TXN = "strandline.txn."
"""What the property begins with that says which commit of a node was the last; it survives its snapshot."""
EMPTY = 0
"""The version of a table that has no snapshot yet."""
_COMPACTED = "replace"


def describe(table: Table, app_id: str | None = None) -> TableState | None:
    """The table's state, with the newest commit under `app_id`; None when nothing is there."""
    found = opened(table)
    if found is None:
        return None
    metadata = found.metadata
    commit = newest_commit(metadata, app_id) if app_id else None
    return _state(metadata, metadata.schema(), head_of(metadata), commit)


def describe_at(table: Table, version: int) -> TableState | None:
    """The table's state at a snapshot that it still knows."""
    found = opened(table)
    if found is None:
        return None
    return _state(found.metadata, schema_at(found.metadata, version), version, None)


def _state(
    metadata: TableMetadata, schema: IceSchema, version: int, commit: Commit | None
) -> TableState:
    columns, roles = columns_of_schema(schema), roles_of(metadata, schema)
    parts = [
        name
        for f in metadata.spec().fields
        if isinstance(f.transform, IdentityTransform)
        and (name := schema.find_column_name(f.source_id))
    ]
    return TableState(
        version,
        columns,
        tuple(parts),
        str(metadata.table_uuid),
        roles,
        commit,
        feed=True,
        required=tuple(f.name for f in schema.fields if f.required),
        metadata=metadata_columns(metadata, schema, roles),
    )


def head_of(metadata: TableMetadata) -> int:
    """The version that main is at."""
    snapshot = metadata.current_snapshot()
    return snapshot.snapshot_id if snapshot else EMPTY


def schema_at(metadata: TableMetadata, version: int) -> IceSchema:
    """The schema to read a version with: of the newest one that of today, which may have new columns."""
    snapshot = metadata.snapshot_by_id(version)
    if version == head_of(metadata) or snapshot is None or snapshot.schema_id is None:
        return metadata.schema()
    schemas = {s.schema_id: s for s in metadata.schemas}
    return schemas.get(snapshot.schema_id, metadata.schema())


def roles_of(metadata: TableMetadata, schema: IceSchema) -> dict[str, str]:
    """The system columns by their role, as far as a schema has them."""
    kept: dict[str, int] = json.loads(metadata.properties.get(ROLES, "{}"))
    return {role: name for role, id_ in kept.items() if (name := schema.find_column_name(id_))}


def metadata_columns(
    metadata: TableMetadata, schema: IceSchema, roles: Mapping[str, str]
) -> frozenset[str]:
    """The columns that say where rows came from; folded names."""
    marked: list[int] = json.loads(metadata.properties.get(MARKED, "[]"))
    found = {name.casefold() for id_ in marked if (name := schema.find_column_name(id_))}
    return frozenset({*found, roles.get("batch_id", "").casefold()} & {*METADATA})


def marks(schema: IceSchema, roles: Mapping[str, str], names: Schema) -> dict[str, str]:
    """The properties that say which columns of a table strandline keeps, by the numbers of their fields."""
    ids = {f.name.casefold(): f.field_id for f in schema.fields}
    system = {role: ids[name.casefold()] for role, name in roles.items() if name.casefold() in ids}
    marked = [ids[c.fold] for c in names if c.fold in METADATA and c.fold in ids]
    return {ROLES: json.dumps(system), MARKED: json.dumps(marked)}


def ancestors(metadata: TableMetadata, head: int | None = None) -> Iterator[Snapshot]:
    """The snapshots that led to a version, the newest first; what was rolled back is not among them."""
    at = metadata.snapshot_by_id(head_of(metadata) if head is None else head)
    while at is not None:
        yield at
        at = metadata.snapshot_by_id(at.parent_snapshot_id) if at.parent_snapshot_id else None


def record_of(snapshot: Snapshot) -> dict[str, Any]:
    """The record that a snapshot carries; empty when another writer made it."""
    text = snapshot.summary.additional_properties.get(NOTE) if snapshot.summary else None
    found = json.loads(text).get(NOTE) if text else None
    return found if isinstance(found, dict) else {}


def commit_of_snapshot(snapshot: Snapshot) -> Commit:
    """A snapshot as a commit."""
    summary, record = snapshot.summary, record_of(snapshot)
    told = dict(summary.additional_properties) if summary else {}
    operation = summary.operation.value if summary else ""
    emptied = operation == "delete" and told.get("total-records") == "0"
    return Commit(
        snapshot.snapshot_id,
        record,
        parent=snapshot.parent_snapshot_id,
        at=datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
        operation=operation,
        replaces=not record and emptied,
        moves_rows=not (record.get("empty") or operation == _COMPACTED),
        metrics={"numOutputRows": told.get("added-records", "0")},
    )


def newest_commit(metadata: TableMetadata, app_id: str) -> Commit | None:
    """The newest commit under an app id: of the snapshots that there are, else as the table's property keeps it."""
    kept = metadata.properties.get(TXN + app_id)
    if kept is None:
        return None
    last = json.loads(kept)
    for snapshot in ancestors(metadata):
        record = record_of(snapshot)
        if record.get("app_id") == app_id and record.get("number") == last["number"]:
            return commit_of_snapshot(snapshot)
    return Commit(head_of(metadata), last)


def token_properties(token: Token) -> dict[str, str]:
    """The property that keeps a token longer than its snapshot."""
    kept = {"batch": token.batch, "number": token.txn, "run_id": token.run_id}
    return {TXN + token.app_id: json.dumps(kept)}


def committed_number(metadata: TableMetadata, app_id: str) -> int:
    """The number of the newest commit under an app id; 0 before there is one."""
    return int(json.loads(metadata.properties.get(TXN + app_id, "{}")).get("number", 0))


def note_text(token: Token, record: Mapping[str, Any]) -> str:
    """What a snapshot carries: the token and the batch's record, as one line of JSON."""
    carried = {
        "app_id": token.app_id,
        "batch": token.batch,
        "number": token.txn,
        "run_id": token.run_id,
        **record,
    }
    return json.dumps({NOTE: carried}, separators=(",", ":"), default=str)


def identifier(found: IceTable) -> str:
    return ".".join(found.name())
