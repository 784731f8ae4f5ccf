"""One commit to an Iceberg table: one snapshot, made of our own manifests, on exactly the version that was looked at.

PyIceberg's own writers make two or three snapshots of one change, and try again by themselves when they lose. Here a
commit is one list of updates with its requirements, and a lost one is an error. See docs/iceberg.md.
"""

from __future__ import annotations

import itertools
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog as IceCatalog
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.io.pyarrow import pyarrow_to_schema, write_file
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table as IceTable
from pyiceberg.table import TableProperties, WriteTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCreate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
    update_table_metadata,
)
from pyiceberg.typedef import Record

from strandline.errors import CommitConflict, TableError
from strandline.lake.iceberg.catalogs import told
from strandline.lake.iceberg.partitions import partitioned
from strandline.types import Table

PATH_ID, POS_ID = 2147483546, 2147483545
"""The numbers that the format gives to the two columns of a file of position deletes."""
MANY = 100
_LARGE = 8 * 1024 * 1024
"""So many manifests, none larger than this, become one."""
_TOGETHER = 256 * 1024 * 1024  # bytes of rows that are written at once


@dataclass(frozen=True)
class Placed:
    """Where a data file is filed: the partition spec that it was written with, and its partition."""

    spec_id: int
    partition: Record


class _DeleteManifestWriter(ManifestWriterV2):
    """A manifest of files of deletes, which PyIceberg has no writer for."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class Draft:
    """A commit in the making: what it has written goes when it is lost, and only then.

    `changes` are the updates that come before its snapshot: a new table, new columns.
    """

    def __init__(
        self,
        table: Table,
        base: IceTable,
        changes: Sequence[TableUpdate] = (),
        *,
        new: bool = False,
    ) -> None:
        self.table, self.base, self.changes, self.new = table, base, list(changes), new
        self.uuid = uuid.uuid4()
        self.added: list[DataFile] = []
        self.deletes: list[DataFile] = []
        self._files, self._manifests = itertools.count(), itertools.count()
        self._written: list[str] = []

    @cached_property
    def metadata(self) -> TableMetadata:
        """The table's metadata as it will be when the snapshot is made."""
        if self.new or not self.changes:
            return self.base.metadata
        return update_table_metadata(self.base.metadata, tuple(self.changes))

    @cached_property
    def snapshot_id(self) -> int:
        return self.metadata.new_snapshot_id()

    def write(self, rows: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
        """Write rows into new data files, so many at a time that they are bounded in memory."""
        for part in _parts(rows, schema):
            for file in write_file(self.base.io, self.metadata, self._tasks(part)):
                file.spec_id = self.metadata.default_spec_id
                self.added.append(file)
                self._written.append(file.file_path)

    def _tasks(self, part: pa.Table) -> Iterator[WriteTask]:
        """The files to be written, partition by partition."""
        whole = self.metadata.spec().is_unpartitioned()
        for place, rows in [(None, part)] if whole else partitioned(part, self.metadata):
            schema = pyarrow_to_schema(
                rows.schema, name_mapping=self.metadata.schema().name_mapping, format_version=2
            )
            yield WriteTask(
                write_uuid=self.uuid,
                task_id=next(self._files),
                schema=schema,
                record_batches=rows.to_batches(),
                partition_key=cast(Any, place),  # its record and its path are asked for
            )

    def delete(self, paths: pa.Array, positions: pa.Array, where: Placed) -> None:
        """Delete rows of files of one partition, by their positions; both are in order."""
        name = f"{next(self._files):05d}-{self.uuid}-deletes.parquet"
        path = self.base.location_provider().new_data_location(name)
        self._written.append(path)
        columns = (("file_path", pa.string(), PATH_ID), ("pos", pa.int64(), POS_ID))
        schema = pa.schema(
            pa.field(n, t, nullable=False, metadata={"PARQUET:field_id": str(i)})
            for n, t, i in columns
        )
        found = pa.table([paths.cast(pa.string()), positions.cast(pa.int64())], schema=schema)
        output = self.base.io.new_output(path)
        with output.create(overwrite=True) as stream:
            pq.write_table(found, stream, compression="zstd")
        bounds = (found.column(0)[0].as_py(), found.column(0)[-1].as_py())
        file = DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=where.partition,
            record_count=found.num_rows,
            file_size_in_bytes=len(self.base.io.new_input(path)),
            lower_bounds={PATH_ID: bounds[0].encode()},
            upper_bounds={PATH_ID: bounds[1].encode()},
        )
        file.spec_id = where.spec_id
        self.deletes.append(file)

    def commit(
        self,
        catalog: IceCatalog,
        note: Mapping[str, str],
        properties: Mapping[str, str],
        *,
        everything: bool = False,
    ) -> int:
        """Commit what was written, and only on the version that it was made for; returns the new version."""
        self._snapshot(note, everything=everything)
        updates = [*self.changes, *self._updates, SetPropertiesUpdate(updates=dict(properties))]
        land(
            self.table,
            self.base,
            catalog,
            updates,
            new=self.new,
            landed=self._landed,
            lost=self.drop,
        )
        return self.snapshot_id

    def _landed(self, found: IceTable | None) -> bool:
        return found is not None and found.metadata.snapshot_by_id(self.snapshot_id) is not None

    def drop(self) -> None:
        """Remove what was written for a commit that is not made."""
        for path in self._written:
            with suppress(OSError):
                self.base.io.delete(path)

    # --- the snapshot --------------------------------------------------------------------------------------

    def _snapshot(self, note: Mapping[str, str], *, everything: bool) -> None:
        head = self.base.metadata.current_snapshot()
        gone = list(self._live(head)) if everything and head else []
        manifests = [*self._added_manifests(), *self._gone_manifests(gone)]
        if head and not everything:
            manifests += self._kept_manifests(head)
        path = self._metadata_path(f"snap-{self.snapshot_id}-0-{self.uuid}.avro")
        number = self.metadata.next_sequence_number()
        parent = head.snapshot_id if head else None
        with write_manifest_list(
            format_version=2,
            output_file=self.base.io.new_output(path),
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=parent,
            sequence_number=number,
            avro_compression=self._codec,
        ) as writer:
            writer.add_manifests(manifests)
        snapshot = Snapshot(
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=parent,
            manifest_list=path,
            sequence_number=number,
            summary=self._summary(note, gone, head),
            schema_id=self.metadata.current_schema_id,
        )
        self._updates: tuple[TableUpdate, ...] = (
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(
                ref_name=MAIN_BRANCH,
                type=SnapshotRefType.BRANCH,
                snapshot_id=self.snapshot_id,
                max_ref_age_ms=None,
                max_snapshot_age_ms=None,
                min_snapshots_to_keep=None,
            ),
        )

    def _kept_manifests(self, head: Snapshot) -> Iterator[ManifestFile]:
        """The manifests of before. Many small ones become one: a reader opens each of them."""
        groups: dict[tuple[int, bool], list[ManifestFile]] = defaultdict(list)
        for manifest in head.manifests(self.base.io):
            deletes = manifest.content is ManifestContent.DELETES
            if manifest.manifest_length < _LARGE:
                groups[manifest.partition_spec_id, deletes].append(manifest)
            else:
                yield manifest
        for (spec_id, deletes), small in groups.items():
            entries = [e for m in small for e in self._existing(m)] if len(small) >= MANY else []
            if entries:
                yield self._manifest(spec_id, entries, deletes=deletes)
            else:
                yield from small

    def _existing(self, manifest: ManifestFile) -> Iterator[ManifestEntry]:
        """The files of a manifest as they are listed again; those that are gone are not."""
        for entry in manifest.fetch_manifest_entry(self.base.io):
            yield ManifestEntry.from_args(
                status=ManifestEntryStatus.EXISTING,
                snapshot_id=entry.snapshot_id,
                sequence_number=entry.sequence_number,
                file_sequence_number=entry.file_sequence_number,
                data_file=entry.data_file,
            )

    def _live(self, head: Snapshot) -> Iterator[ManifestEntry]:
        for manifest in head.manifests(self.base.io):
            yield from manifest.fetch_manifest_entry(self.base.io)

    def _added_manifests(self) -> Iterator[ManifestFile]:
        """One manifest of the new data files, and one of deletes per partition spec."""
        groups: dict[tuple[int, bool], list[DataFile]] = defaultdict(list)
        for file in (*self.added, *self.deletes):
            groups[file.spec_id, file.content is not DataFileContent.DATA].append(file)
        for (spec_id, deletes), files in groups.items():
            entries = [
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=self.snapshot_id, data_file=file
                )
                for file in files
            ]
            yield self._manifest(spec_id, entries, deletes=deletes)

    def _gone_manifests(self, gone: Sequence[ManifestEntry]) -> Iterator[ManifestFile]:
        """What says that the files of before are no longer part of the table."""
        groups: dict[tuple[int, bool], list[ManifestEntry]] = defaultdict(list)
        for entry in gone:
            deletes = entry.data_file.content is not DataFileContent.DATA
            groups[entry.data_file.spec_id, deletes].append(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.DELETED,
                    snapshot_id=self.snapshot_id,
                    sequence_number=entry.sequence_number,
                    file_sequence_number=entry.file_sequence_number,
                    data_file=entry.data_file,
                )
            )
        for (spec_id, deletes), entries in groups.items():
            yield self._manifest(spec_id, entries, deletes=deletes)

    def _manifest(
        self, spec_id: int, entries: Sequence[ManifestEntry], *, deletes: bool
    ) -> ManifestFile:
        kind = _DeleteManifestWriter if deletes else ManifestWriterV2
        path = self._metadata_path(f"{self.uuid}-m{next(self._manifests)}.avro")
        spec: PartitionSpec = self.metadata.specs()[spec_id]
        output = self.base.io.new_output(path)
        with kind(spec, self.metadata.schema(), output, self.snapshot_id, self._codec) as writer:
            for entry in entries:
                writer.add_entry(entry)
        return writer.to_manifest_file()

    def _metadata_path(self, name: str) -> str:
        path = self.base.location_provider().new_metadata_location(name)
        self._written.append(path)
        return path

    @property
    def _codec(self) -> Any:
        key, default = (
            TableProperties.WRITE_AVRO_COMPRESSION,
            TableProperties.WRITE_AVRO_COMPRESSION_DEFAULT,
        )
        return self.metadata.properties.get(key, default)

    def _summary(
        self, note: Mapping[str, str], gone: Sequence[ManifestEntry], head: Snapshot | None
    ) -> Summary:
        counted, schema, specs = (
            SnapshotSummaryCollector(),
            self.metadata.schema(),
            self.metadata.specs(),
        )
        for file in (*self.added, *self.deletes):
            counted.add_file(file, schema, specs[file.spec_id])
        for entry in gone:
            counted.remove_file(entry.data_file, schema, specs[entry.data_file.spec_id])
        kind = Operation.OVERWRITE if self.deletes or gone else Operation.APPEND
        return update_snapshot_summaries(
            summary=Summary(operation=kind, **counted.build(), **note),
            previous_summary=head.summary if head else None,
        )


def land(
    table: Table,
    base: IceTable,
    catalog: IceCatalog,
    updates: Sequence[TableUpdate],
    *,
    new: bool = False,
    also: Sequence[TableRequirement] = (),
    landed: Callable[[IceTable | None], bool] = lambda _: False,
    lost: Callable[[], None] = lambda: None,
) -> None:
    """Make one commit on the table exactly as it was looked at; an error when it is another by now.

    What was written for it is removed when the catalog says that it lost. When the answer is lost, the table itself
    is asked; where that does not know either, everything stays.
    """
    try:
        with told(table):
            needed = (*_requirements(base.metadata, new=new), *also)
            catalog.commit_table(base, needed, tuple(updates))
    except (CommitFailedException, TableAlreadyExistsError) as e:
        lost()
        raise CommitConflict(
            f"{table.label}: another writer committed at the same moment", hint="run again"
        ) from e
    except TableError:
        from strandline.lake.iceberg.catalogs import opened

        with suppress(TableError):
            if landed(opened(table)):
                return
        raise


def _requirements(metadata: TableMetadata, *, new: bool) -> tuple[TableRequirement, ...]:
    if new:
        return (AssertCreate(),)
    head = metadata.current_snapshot()
    return (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=head.snapshot_id if head else None),
        AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
    )


def _parts(rows: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    kept: list[pa.RecordBatch] = []
    for batch in rows:
        kept.append(batch)
        if sum(b.nbytes for b in kept) > _TOGETHER:
            yield pa.Table.from_batches(kept, schema=schema)
            kept = []
    if any(batch.num_rows for batch in kept):
        yield pa.Table.from_batches(kept, schema=schema)
