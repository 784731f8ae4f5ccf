"""Which files hold the rows of an Iceberg table at a version, and which of their rows are deleted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.io.pyarrow import _read_deletes
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema as IceSchema
from pyiceberg.table import Table as IceTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import ListType, MapType, NestedField, StructType

from strandline.errors import TableError
from strandline.lake.iceberg import log
from strandline.lake.iceberg.past import refuse_equality_deletes
from strandline.types import Table


@dataclass(frozen=True)
class LiveFile:
    """A data file, with the files that say which of its rows are deleted."""

    data: DataFile
    deletes: tuple[DataFile, ...]

    @property
    def uri(self) -> str:
        """The path as the manifest has it: a delete must repeat it to the letter."""
        return self.data.file_path

    @property
    def deleted_by(self) -> frozenset[str]:
        return frozenset(_name_of(d) for d in self.deletes)


def _name_of(delete: DataFile) -> str:
    """What tells one set of deletes from another: one Puffin file holds several deletion vectors."""
    return f"{delete.file_path}#{delete.record_count}" if is_vector(delete) else delete.file_path


def is_vector(delete: DataFile) -> bool:
    """Tell a deletion vector (format v3) from a file of position deletes."""
    return delete.file_format is FileFormat.PUFFIN


def live(found: IceTable, table: Table, version: int) -> list[LiveFile]:
    """The files of a version, by their paths."""
    if version == log.EMPTY:
        return []
    snapshot = found.metadata.snapshot_by_id(version)
    if snapshot is None:
        raise TableError(
            f"{table.label}: version {version} is expired", hint="run again: it is read anew"
        )
    refuse_equality_deletes(found, snapshot, table)
    tasks = found.scan(snapshot_id=version).plan_files()
    files = [
        LiveFile(t.file, tuple(sorted(t.delete_files, key=lambda d: d.file_path))) for t in tasks
    ]
    return sorted(files, key=lambda f: f.uri)


def local_path(uri: str, table: Table) -> str:
    """The file of a path on this machine."""
    path = uri.removeprefix("file://") if uri.startswith("file://") else uri.removeprefix("file:")
    if "://" in path:
        raise TableError(
            f"{table.label}: its files are at {path.split('://', 1)[0]}://, which the local engine cannot read",
            hint="run it on engine: spark",
        )
    return path


def deletion_vectors(found: IceTable, files: Sequence[LiveFile]) -> Iterator[tuple[str, pa.Array]]:
    """The rows that deletion vectors take out of files: the path of each file with positions."""
    read: dict[str, Mapping[str, pa.ChunkedArray]] = {}
    for file in files:
        for delete in filter(is_vector, file.deletes):
            if delete.file_path not in read:
                read[delete.file_path] = _read_deletes(found.io, delete)
            if (positions := read[delete.file_path].get(file.uri)) is not None:
                yield file.uri, positions.combine_chunks()


def refuse_renamed(metadata: TableMetadata, schema: IceSchema, table: Table) -> None:
    """Refuse fields inside of structs that had another name once: files are read by the numbers of columns only."""
    former: dict[int, set[str]] = {}
    for older in metadata.schemas:
        for id_, name in _inside(older.fields):
            former.setdefault(id_, set()).add(name)
    for id_, name in _inside(schema.fields):
        plain = name.isascii() and name.replace("_", "a").isalnum() and not name[:1].isdigit()
        if former.get(id_, {name}) != {name} or not plain:
            raise TableError(
                f"{table.label}: the field `{name}` of a struct has been renamed, or its name is not plain; "
                "the local engine cannot read it",
                hint="run it on engine: spark",
            )


def _inside(fields: Sequence[NestedField]) -> Iterator[tuple[int, str]]:
    """The fields of structs, at any depth below the columns."""
    for field in fields:
        type_ = field.field_type
        inner: Sequence[NestedField] = ()
        if isinstance(type_, StructType):
            inner = type_.fields
            yield from ((f.field_id, f.name) for f in inner)
        elif isinstance(type_, ListType):
            inner = (type_.element_field,)
        elif isinstance(type_, MapType):
            inner = (type_.key_field, type_.value_field)
        yield from _inside(inner)
