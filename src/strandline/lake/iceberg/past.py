"""An Iceberg table's past: the snapshots that led to the one of now, and single rows as they were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from itertools import pairwise
from typing import Any

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, IsNull
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table as IceTable
from pyiceberg.table.snapshots import Snapshot

from strandline.errors import TableError
from strandline.lake.base import Key
from strandline.lake.iceberg import log
from strandline.lake.iceberg.catalogs import opened, told
from strandline.lake.iceberg.types import to_spark
from strandline.sql.portable import family
from strandline.sql.values import ORDERED, converted
from strandline.types import Commit, Table

_EQUAL: Any = (
    EqualTo  # their own types are those of Pydantic, which knows nothing of their constructors
)
_IS_NULL: Any = IsNull


def history(table: Table) -> Iterator[Commit]:
    """Every commit that led to the table of now, as far as its snapshots are not expired; the newest first."""
    found = opened(table)
    if found is None:
        return
    in_place = found.properties.get("write.merge.mode") == "merge-on-read"
    line: list[Snapshot | None] = [*log.ancestors(found.metadata), None]
    for snapshot, parent in pairwise(line):
        assert snapshot is not None
        commit = log.commit_of_snapshot(snapshot)
        if in_place and not commit.record and parent and _overwrites(snapshot, parent):
            commit = replace(commit, replaces=True)
        yield commit


def _overwrites(snapshot: Snapshot, parent: Snapshot) -> bool:
    """Tell whether a commit of another writer put other files in the place of all that there were.

    An UPDATE or a MERGE of a table that merges on read leaves them, and adds files of deletes.
    """
    if snapshot.summary is None or parent.summary is None:
        return False
    told_, before = snapshot.summary, parent.summary
    gone = told_["deleted-data-files"] or "0"
    return (
        told_.operation.value == "overwrite"
        and gone == before["total-data-files"] != "0"
        and not told_["added-delete-files"]
        and bool(told_["added-data-files"])
    )


def since(table: Table, version: int) -> list[Commit] | None:
    """The commits after a version, the newest first; None when that version did not lead to the table of now."""
    found = opened(table)
    if found is None:
        return None
    line = list(history(table))
    after: list[Commit] = []
    for commit in line:
        if commit.version == version:
            return after
        after.append(commit)
    if version == log.EMPTY and (not line or line[-1].parent is None):
        return after
    cut = bool(line) and line[-1].parent is not None
    if cut and found.metadata.snapshot_by_id(version) is None:
        return after  # expired, as its children are: as far as anybody can tell, nothing was rolled back
    return None


def preceding(table: Table, version: int) -> int:
    """The parent of a snapshot; the empty table before the first one."""
    found = opened(table)
    snapshot = found.metadata.snapshot_by_id(version) if found else None
    if snapshot is None:
        raise TableError(
            f"{table.label}: it has no version {version}",
            hint="a version of an Iceberg table is the id of a snapshot: SELECT * FROM table.snapshots",
        )
    return snapshot.parent_snapshot_id or log.EMPTY


def moved(table: Table, after: int, upto: int) -> bool:
    """May rows have come or gone after one version up to another? Yes, when the metadata no longer says."""
    found = opened(table)
    if found is None:
        return True
    for snapshot in log.ancestors(found.metadata, upto):
        if snapshot.snapshot_id == after:
            return False
        if log.commit_of_snapshot(snapshot).moves_rows:
            return True
    return after != upto


def unreadable(table: Table, version: int) -> str | None:
    """Why a version cannot be read any more; None when all is there."""
    found = opened(table)
    if found is None:
        return "the table is gone"
    if version == log.EMPTY:
        return None
    snapshot = found.metadata.snapshot_by_id(version)
    if snapshot is None:
        return f"version {version} is expired"
    missing = f"files of version {version} are gone"
    with told(table):
        try:
            paths = [d.file_path for d in live_files(found, snapshot)]
        except FileNotFoundError:
            return missing
        gone = [path for path in paths if not found.io.new_input(path).exists()]
    return f"{len(gone)} of the {len(paths)} {missing}" if gone else None


def live_files(found: IceTable, snapshot: Snapshot) -> Iterator[DataFile]:
    """The files that hold a snapshot's rows, and those of its deletes."""
    for manifest in snapshot.manifests(found.io):
        for entry in manifest.fetch_manifest_entry(found.io):
            yield entry.data_file


def deletes_by_value(table: Table, *versions: int) -> str | None:
    """Which of some versions has equality deletes: what they delete is not known by positions."""
    found = opened(table)
    for version in versions:
        snapshot = found.metadata.snapshot_by_id(version) if found else None
        summary = snapshot.summary if snapshot else None
        if summary is not None and summary["total-equality-deletes"] not in (None, "0"):
            return f"version {version} has equality deletes"
    return None


def refuse_equality_deletes(found: IceTable, snapshot: Snapshot, table: Table) -> None:
    """Refuse a snapshot whose rows are deleted by their values: only Spark reads it."""
    told_ = snapshot.summary["total-equality-deletes"] if snapshot.summary else None
    if told_ in (None, "0"):
        return
    if any(d.content is DataFileContent.EQUALITY_DELETES for d in live_files(found, snapshot)):
        raise TableError(
            f"{table.label}: version {snapshot.snapshot_id} has equality deletes, which the local engine cannot read",
            hint="run it on engine: spark, or let the writer of the table compact it (rewrite_data_files)",
        )


def rows_at(table: Table, version: int, key: Key) -> list[dict[str, Any]] | None:
    """The rows of a key at a version; None when they can no longer be read."""
    found = opened(table)
    if found is None or (version != log.EMPTY and found.metadata.snapshot_by_id(version) is None):
        return None
    if version == log.EMPTY:
        return []
    where = _condition(found, version, key)
    if where is None:
        return []
    refuse_equality_deletes(found, found.metadata.snapshot_by_id(version), table)  # type: ignore[arg-type]
    try:
        with told(table):
            rows = found.scan(where, snapshot_id=version).to_arrow()
    except FileNotFoundError:
        return None
    return list(rows.to_pylist())


def _condition(found: IceTable, version: int, key: Key) -> BooleanExpression | None:
    """The key as a filter; None when a column is not there, or cannot hold the value."""
    schema = log.schema_at(found.metadata, version)
    where: BooleanExpression = AlwaysTrue()
    for name, value in key.items():
        try:
            field = schema.find_field(name, case_sensitive=False)
        except ValueError:
            return None
        if value is None:
            where = And(where, _IS_NULL(field.name))
            continue
        literal = _literal(value, to_spark(field.field_type))
        if literal is None:
            return None
        where = And(where, _EQUAL(field.name, literal))
    return where


def _literal(value: Any, type_: str) -> Any:
    """A value as PyIceberg takes it; None when the column was narrower then, and cannot hold it."""
    if family(type_) in ORDERED and not isinstance(value, bool | float | bytes):
        here = converted(value, type_)
        if here != value:
            return None
        value = here
    return value.isoformat() if isinstance(value, date) else value
