"""Branches on which Spark writes: a commit there is moved to main by one commit that is conditional, or dropped.

Spark's own commits try again on whatever main is by then. On a branch of its own a batch cannot meet another writer,
and main moves on exactly the snapshot that was looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table as IceTable
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)

from strandline.errors import StrandlineError
from strandline.lake.iceberg import log
from strandline.lake.iceberg.catalogs import opened
from strandline.lake.iceberg.commit import land
from strandline.types import Table


@contextmanager
def branched(table: Table, found: IceTable, name: str, left: Sequence[str]) -> Iterator[None]:
    """A branch as of the table's newest snapshot, dropped when it fails; so are those left behind."""
    dead = [RemoveSnapshotRefUpdate(ref_name=ref) for ref in left]
    updates: list[TableUpdate] = [*dead, _reference(name, log.head_of(found.metadata))]
    land(table, found, found.catalog, updates)
    try:
        yield
    except BaseException:
        with suppress(StrandlineError):  # it is swept later
            drop_branch(table, name)
        raise


def moved_to_main(
    table: Table, found: IceTable, name: str, properties: Mapping[str, str]
) -> int | None:
    """Move main to what was committed on a branch, and drop the branch; None when nothing was committed there.

    `found` is the table as it was when the branch was made: main must still be there.
    """
    now = opened(table)
    ref = now.metadata.refs.get(name) if now else None
    if ref is None or ref.snapshot_id == log.head_of(found.metadata):
        return None
    version = ref.snapshot_id
    updates: list[TableUpdate] = [
        _reference(MAIN_BRANCH, version),
        RemoveSnapshotRefUpdate(ref_name=name),
        SetPropertiesUpdate(updates=dict(properties)),
    ]
    land(
        table,
        found,
        found.catalog,
        updates,
        also=(AssertRefSnapshotId(ref=name, snapshot_id=version),),
        landed=lambda t: t is not None and log.head_of(t.metadata) == version,
    )
    return version


def drop_branch(table: Table, name: str) -> None:
    """Drop a branch with what was committed on it, and the files that only it has."""
    now = opened(table)
    ref = now.metadata.refs.get(name) if now else None
    if now is None or ref is None:
        return
    head = now.metadata.snapshot_by_id(ref.snapshot_id)
    alone = head is not None and head.snapshot_id not in {
        s.snapshot_id for s in log.ancestors(now.metadata)
    }
    updates = [RemoveSnapshotRefUpdate(ref_name=name)]
    if not alone or head is None:
        land(table, now, now.catalog, updates)
        return
    paths = _written_for(now, head)
    gone = RemoveSnapshotsUpdate(snapshot_ids=[head.snapshot_id])
    land(table, now, now.catalog, [*updates, gone])
    for path in paths:
        with suppress(OSError):
            now.io.delete(path)


def drop_unnamed(table: Table) -> None:
    """Drop a table that did not get its name, with its files; the folder may be that of the table which got it."""
    now = opened(table)
    if now is None:
        return
    paths = [path for s in now.metadata.snapshots for path in _written_for(now, s)]
    now.catalog.drop_table(table.name)
    for path in [*paths, now.metadata_location]:
        with suppress(OSError):
            now.io.delete(path)


def _written_for(now: IceTable, snapshot: Snapshot) -> list[str]:
    """The files that were written for a snapshot."""
    paths = [snapshot.manifest_list]
    for manifest in snapshot.manifests(now.io):
        if manifest.added_snapshot_id == snapshot.snapshot_id:
            paths.append(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(now.io, discard_deleted=False)
            added = (e for e in entries if e.status is ManifestEntryStatus.ADDED)
            paths += [e.data_file.file_path for e in added]
    return paths


def _reference(name: str, version: int) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate(
        ref_name=name,
        type=SnapshotRefType.BRANCH,
        snapshot_id=version,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )
