"""What a commit to an Iceberg table needs before its rows: the table to commit to, new tables, new columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count, takewhile
from typing import Any

from pyiceberg.catalog import Catalog as IceCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema as IceSchema
from pyiceberg.table import Table as IceTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import SetPropertiesUpdate, TableUpdate, update_table_metadata
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IcebergType, PrimitiveType

from strandline.errors import CommitConflict, Fenced, TableError, taken
from strandline.lake.iceberg import log
from strandline.lake.iceberg.catalogs import catalog_for_writing, opened, told
from strandline.lake.iceberg.commit import Draft, land
from strandline.lake.iceberg.types import columns_of_schema, schema_for, to_iceberg
from strandline.strategy.changes import ChangeSet, Removals
from strandline.strategy.evolution import AddColumn, AddField, Relax, Widen
from strandline.types import Column, Commit, Schema, Table, Token

_NEW = {
    "format-version": "2",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.parquet.compression-codec": "zstd",
}
"""The properties of a new table: rows that change are deleted by position, so that files are not written anew."""


def drafted(table: Table, changes: ChangeSet, token: Token, record: Mapping[str, Any]) -> Draft:
    """A commit of a change set; an error when the table is not as it was when it was looked at."""
    found = opened(table)
    _refuse_moved(table, found, changes, token, record)
    if found is None:
        return _new(table, changes)
    refuse_version(table, found)
    if log.committed_number(found.metadata, token.app_id) >= token.txn:
        last = log.newest_commit(found.metadata, token.app_id)
        raise Fenced(taken(token.node, token.batch, last.run_id if last else None))
    return Draft(table, found, evolved(found, changes))


def _refuse_moved(
    table: Table,
    found: IceTable | None,
    changes: ChangeSet,
    token: Token,
    record: Mapping[str, Any],
) -> None:
    """Refuse a table that is not at the change set's base, or that makes void what was found by looking at it."""
    base, seen = changes.base, changes.seen
    if base is not None and (found is None or log.head_of(found.metadata) != base):
        raise CommitConflict(f"{table.label}: it is no longer at version {base}", hint="run again")
    if seen is None:
        return
    if found is None:
        other: str | None = "the table is gone"
    elif (
        "deleted" in log.roles_of(found.metadata, found.schema()) and "deleted" not in changes.roles
    ):
        other = "it has a delete flag now, which these rows lack"
    else:
        other = _void(found, seen, changes, token, record)
    if other:
        text = f"{table.label}: it was looked at in version {seen}, and {other}"
        raise CommitConflict(text, hint="run again")


def _void(
    found: IceTable, seen: int, changes: ChangeSet, token: Token, record: Mapping[str, Any]
) -> str | None:
    """What came since a version and makes void what was found by looking at it.

    What was compared with the table is void when another writer has touched a row since; an append is when its rows
    were brought by a node of another name.
    """
    line = list(log.ancestors(found.metadata))
    since = list(takewhile(lambda s: s.snapshot_id != seen, line))
    if len(since) == len(line) and seen != log.EMPTY:
        return f"is at version {log.head_of(found.metadata)} now, which does not follow it"
    for commit in map(log.commit_of_snapshot, since):
        if commit.moves_rows and (
            changes.removals is not Removals.NOTHING or same_rows(commit, token, record)
        ):
            return f"version {commit.version} ({commit.operation}) came meanwhile"
    return None


def same_rows(theirs: Commit, token: Token, record: Mapping[str, Any]) -> bool:
    """Tell whether a commit is a batch of a node of another name that reads what ours reads."""
    if theirs.app_id in (None, token.app_id):
        return False
    mine, other = (r.get("coverage") or {} for r in (record, theirs.record))
    return bool(mine.get("origins")) and mine.get("origins") == other.get("origins")


def refuse_version(table: Table, found: IceTable) -> None:
    """Refuse to write what PyIceberg cannot: any format version but 2."""
    if (version := found.metadata.format_version) != 2:
        raise TableError(
            f"{table.label}: it has Iceberg format version {version}, and strandline writes version 2",
            hint="upgrade it: ALTER TABLE … SET TBLPROPERTIES ('format-version' = '2')"
            if version == 1
            else "let the node write a table of its own",
        )


def _new(table: Table, changes: ChangeSet) -> Draft:
    catalog = catalog_for_writing(table)
    return new_table(catalog, table, changes.columns, changes.partition_by, changes.roles)


def new_table(
    catalog: IceCatalog,
    table: Table,
    columns: Schema,
    partition_by: Sequence[str],
    roles: Mapping[str, str],
) -> Draft:
    """A commit that makes the table; nothing is there before it."""
    schema = schema_for(columns)
    with told(table):
        new = catalog.create_table_transaction(
            table.name, schema, partition_spec=_spec(schema, partition_by), properties=_NEW
        )
    staged: IceTable = new._table  # noqa: SLF001 – it is made together with its rows, by a commit of ours
    marks = log.marks(staged.schema(), roles, columns)
    updates = [*new._updates, SetPropertiesUpdate(updates=marks)]  # noqa: SLF001
    return Draft(table, staged, updates, new=True)


def _spec(schema: IceSchema, partition_by: Sequence[str]) -> PartitionSpec:
    """Partitions by the values of columns."""
    ids = count(PARTITION_FIELD_ID_START)
    fields = []
    for name in partition_by:
        field = schema.find_field(name, case_sensitive=False)
        fields.append(PartitionField(field.field_id, next(ids), IdentityTransform(), field.name))
    return PartitionSpec(*fields)


def evolved(found: IceTable, changes: ChangeSet) -> list[TableUpdate]:
    """The updates that change the table's columns, and say which of them strandline keeps; none for none."""
    if not changes.evolves:
        return []
    update = UpdateSchema(found.transaction(), case_sensitive=False)
    there = columns_of_schema(found.schema())
    for change in changes.evolves:
        match change:
            case AddColumn(column) if column.name not in there:  # else another runner has added it
                update.add_column((column.name,), to_iceberg(column))
            case AddField(path, type_):
                update.add_column(tuple(path.split(".")), to_iceberg(Column(path, type_)))
            case Widen(path, _, new):
                update.update_column(tuple(path.split(".")), _plain(to_iceberg(Column(path, new))))
            case Relax(name):
                update.make_column_optional((name,))
    updates, _ = update._commit()  # noqa: SLF001 – the updates alone: the commit is ours
    metadata = update_table_metadata(found.metadata, updates) if updates else found.metadata
    return [*updates, SetPropertiesUpdate(updates=_marks(metadata, changes))]


def add_columns(table: Table, columns: Sequence[Column]) -> None:
    """Add optional columns at the end, in a commit without rows."""
    found = opened(table)
    if found is None:
        raise TableError(f"{table.label}: there is no table", hint="write its first rows")
    try:
        with found.update_schema(case_sensitive=False) as update:
            for column in columns:
                update.add_column((column.name,), to_iceberg(column))
    except CommitFailedException as e:
        text = f"{table.label}: somebody else committed at the same moment"
        raise CommitConflict(text, hint="run again") from e


def _plain(type_: IcebergType) -> PrimitiveType:
    assert isinstance(type_, PrimitiveType), "only plain types become wider"
    return type_


def _marks(metadata: TableMetadata, changes: ChangeSet) -> dict[str, str]:
    """The properties that say which columns strandline keeps: those there were, and those of these changes."""
    schema = metadata.schema()
    roles = {**log.roles_of(metadata, schema), **changes.roles}
    known = log.metadata_columns(metadata, schema, roles)
    new = {c.column.fold for c in changes.evolves if isinstance(c, AddColumn)}
    kept = (c for c in columns_of_schema(schema) if c.fold in known or c.fold in new)
    return log.marks(schema, roles, Schema(tuple(kept)))


def commit_columns(draft: Draft) -> None:
    """Commit a draft that only changes the table's columns and properties."""
    land(draft.table, draft.base, draft.base.catalog, draft.changes)
