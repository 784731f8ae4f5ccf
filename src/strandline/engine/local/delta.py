"""Committing change sets with deltalake: one commit, with the batch's token in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake

from strandline.errors import CommitConflict
from strandline.failpoints import point
from strandline.lake.delta import log as delta_log
from strandline.lake.delta.types import to_delta
from strandline.sql.expr import rows_of
from strandline.strategy.changes import ACTION, METADATA, TOUCHING, ChangeSet, Removals
from strandline.types import Column, Table, Token

if TYPE_CHECKING:
    from strandline.engine.local.workspace import LocalWorkspace


def apply(
    workspace: LocalWorkspace,
    table: Table,
    changes: ChangeSet,
    token: Token,
    record: Mapping[str, Any],
) -> int:
    """Write the additions and take out what they replace, in one commit; returns the table's new version."""
    delta = delta_log.open_on(table, changes)
    if delta is not None and (delta.transaction_version(token.app_id) or 0) >= token.number:
        raise CommitConflict(f"{table.label}: number {token.number} is taken", hint="run again")
    properties = CommitProperties(
        custom_metadata={"userMetadata": delta_log.commit_text(token, dict(record))},
        app_transactions=[Transaction(token.app_id, token.number)],
        max_commit_retries=0,  # lands on the version opened or not at all; else a second first commit would land too
    )
    with delta_log.conflicts_told(table):
        if delta is None:
            with delta_log.creating(table, new=True):
                _write(workspace, table, delta, changes, properties)
        elif changes.inserts_only or changes.removals is Removals.EVERYTHING:
            _write(workspace, table, delta, changes, properties)
        else:
            _merge(workspace, delta, changes, properties)
    return DeltaTable(table.location).version()


def _write(
    workspace: LocalWorkspace,
    table: Table,
    delta: DeltaTable | None,
    changes: ChangeSet,
    properties: CommitProperties,
) -> None:
    new = delta is None
    write_deltalake(
        table.location if delta is None else delta,
        _marked(workspace.arrow(rows_of(changes.additions, changes.columns)), changes),
        mode="error"
        if new
        else "overwrite"
        if changes.removals is Removals.EVERYTHING
        else "append",
        partition_by=list(changes.partition_by) or None,
        configuration={delta_log.FEED: "true"} if new else None,
        commit_properties=properties,
    )


def _marked(rows: pa.RecordBatchReader, changes: ChangeSet) -> pa.RecordBatchReader:
    """The rows with their system and metadata columns marked as such, for the schema of a new table."""
    marks = delta_log.field_marks(changes)
    fields = [f.with_metadata(marks[f.name]) if f.name in marks else f for f in rows.schema]
    schema = pa.schema(fields)
    return pa.RecordBatchReader.from_batches(
        schema, _watched(pa.RecordBatch.from_arrays(b.columns, schema=schema) for b in rows)
    )


def _watched(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from rows
    point("commit.rows")


def _merge(
    workspace: LocalWorkspace, delta: DeltaTable, changes: ChangeSet, properties: CommitProperties
) -> None:
    # in brackets: deltalake reads x IS NOT DISTINCT FROM y AND z as x IS NOT DISTINCT FROM (y AND z)
    on = " AND ".join(f'(s."{_q(k)}" IS NOT DISTINCT FROM t."{_q(k)}")' for k in changes.keys)
    values = _assignments(changes.columns.names)
    rows = workspace.arrow(rows_of(changes.additions))
    merge = delta.merge(
        pa.RecordBatchReader.from_batches(rows.schema, _watched(rows)),
        predicate=on,
        source_alias="s",
        target_alias="t",
        commit_properties=properties,
    )
    if changes.removing:
        merge = merge.when_matched_delete(predicate=_says(changes.removing))
    if changes.touched:
        merge = merge.when_matched_update(_assignments(changes.touched), predicate=_says(TOUCHING))
    merge.when_matched_update(values).when_not_matched_insert(values).execute()


def _says(verbs: Sequence[str]) -> str:
    return f's."{ACTION}" IN ({", ".join(repr(v) for v in verbs)})'


def _assignments(columns: Sequence[str]) -> dict[str, str]:
    return {f'"{_q(n)}"': f's."{_q(n)}"' for n in columns}


def _q(name: str) -> str:
    return name.replace('"', '""')


def add_columns(table: Table, add: Sequence[Column], system: Mapping[str, Column]) -> None:
    """New columns at the end, all of them optional; a new delete flag is false in all rows there are."""
    ours = CommitProperties(custom_metadata={"userMetadata": delta_log.ALTERED})
    delta = DeltaTable(table.location)
    there = delta_log.schema_of(
        delta
    )  # another runner may have added some of them since they were asked for
    metadata = [c for c in add if c.fold in METADATA]
    plain = [c for c in add if c.fold not in METADATA and c.name not in there]
    if plain:
        fields = [Field(c.name, to_delta(c.type), nullable=True) for c in plain]
        with delta_log.conflicts_told(table):
            delta.alter.add_columns(fields, commit_properties=ours)
    if metadata:
        delta_log.add_metadata_columns(table, metadata)
    point("alter.system")
    if system:
        delta_log.add_system_columns(table, system)
    point("alter.fill")
    if "deleted" in system:
        flag = f'"{_q(system["deleted"].name)}"'
        delta = DeltaTable(table.location)
        with delta_log.conflicts_told(table):
            delta.update(
                updates={flag: "false"}, predicate=f"{flag} IS NULL", commit_properties=ours
            )
        delta_log.filled(table, system["deleted"].name)
