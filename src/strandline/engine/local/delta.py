"""Committing change sets with deltalake: one commit, with the batch's token in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from strandline.errors import Fenced, TableError, taken
from strandline.failpoints import point
from strandline.lake.delta import log as delta_log
from strandline.sql.expr import rows_of
from strandline.strategy.changes import ACTION, TOUCHING, ChangeSet, Removals
from strandline.types import Table, Token

if TYPE_CHECKING:
    from strandline.engine.local.duck import DuckWorkspace


def apply(
    workspace: DuckWorkspace,
    table: Table,
    changes: ChangeSet,
    token: Token,
    record: Mapping[str, Any],
) -> int:
    """Write the additions and take out what they replace, in one commit; returns the table's new version."""
    delta = delta_log.open_on(table, changes, token, record)
    if delta is not None and (feature := delta_log.unwritable(delta)):
        raise TableError(
            f"{table.label} uses {feature}, which the local engine cannot write; nothing was written",
            hint="run this node with engine: spark, or write another table",
        )
    if delta is not None and (delta.transaction_version(token.app_id) or 0) >= token.txn:
        raise Fenced(taken(token.node, token.batch, _holder(delta, token)))
    properties = CommitProperties(
        custom_metadata={"userMetadata": delta_log.commit_text(token, dict(record))},
        app_transactions=[Transaction(token.app_id, token.txn)],
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


def _holder(delta: DeltaTable, token: Token) -> str | None:
    commit = delta_log.newest_commit(delta, token.app_id)
    return commit.run_id if commit else None


def _write(
    workspace: DuckWorkspace,
    table: Table,
    delta: DeltaTable | None,
    changes: ChangeSet,
    properties: CommitProperties,
) -> None:
    new = delta is None
    write_deltalake(
        table.location if delta is None else delta,
        _marked(workspace.arrow(rows_of(changes.additions, changes.columns)), changes, delta),
        mode="error"
        if new
        else "overwrite"
        if changes.removals is Removals.EVERYTHING
        else "append",
        schema_mode=_schema_mode(changes) if changes.evolves and not new else None,
        partition_by=list(changes.partition_by) or None,
        configuration={delta_log.FEED: "true"} if new else None,
        commit_properties=properties,
    )


def _schema_mode(changes: ChangeSet) -> Literal["merge", "overwrite"]:
    """How the columns of these rows become the table's, in the commit of the rows."""
    return "overwrite" if changes.removals is Removals.EVERYTHING else "merge"


def _marked(
    rows: pa.RecordBatchReader, changes: ChangeSet, delta: DeltaTable | None
) -> pa.RecordBatchReader:
    """The rows with their system and metadata columns marked as such, for the columns that the table gets."""
    marks = delta_log.field_marks(changes, delta)
    fields = [f.with_metadata(marks[f.name]) if f.name in marks else f for f in rows.schema]
    schema = pa.schema(fields)
    return pa.RecordBatchReader.from_batches(
        schema, watched(pa.RecordBatch.from_arrays(b.columns, schema=schema) for b in rows)
    )


def watched(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows; once the last one was asked for, a test may stop the runner."""
    yield from rows
    point("commit.rows")


def _merge(
    workspace: DuckWorkspace, delta: DeltaTable, changes: ChangeSet, properties: CommitProperties
) -> None:
    # in brackets: deltalake reads x IS NOT DISTINCT FROM y AND z as x IS NOT DISTINCT FROM (y AND z)
    on = " AND ".join(f'(s."{_q(k)}" IS NOT DISTINCT FROM t."{_q(k)}")' for k in changes.keys)
    if changes.drops:  # others of the same key may come: those replace nothing
        on = f"(s.\"{ACTION}\" <> 'insert') AND {on}"
    values = _assignments(changes.columns.names)
    merge = delta.merge(
        _marked(workspace.arrow(rows_of(changes.additions)), changes, delta),
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
