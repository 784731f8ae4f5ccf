"""Which partition each row of an Iceberg table belongs to.

PyIceberg's own way needs another package for its transforms, and loses the rows whose partition is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, _to_partition_representation
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

_CODE = "_strandline_partition"


@dataclass(frozen=True)
class FiledUnder:
    """A partition, as a data file and its path name it."""

    partition: Record
    path: str

    def to_path(self) -> str:
        return self.path


def partitioned(rows: pa.Table, metadata: TableMetadata) -> Iterator[tuple[FiledUnder, pa.Table]]:
    """The rows of each partition, under its value in every field of the table's spec."""
    spec, schema = metadata.spec(), metadata.schema()
    coded = [_coded(rows, field, schema) for field in spec.fields]
    codes = reduce(
        lambda whole, one: pc.add(pc.multiply(whole, len(one[1])), one[0]),
        coded,
        pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows),
    )
    order = pc.sort_indices(codes)
    inside, start = rows.take(order), 0
    for code, number in _runs(codes.take(order)):
        values: list[Any] = []
        for _, known in reversed(coded):
            code, at = divmod(code, len(known))  # noqa: PLW2901 – the digits of a number, the last one first
            values.append(known[at])
        record = Record(*reversed(values))
        yield (
            FiledUnder(record, spec.partition_to_path(record, schema)),
            inside.slice(start, number),
        )
        start += number


def _coded(rows: pa.Table, field: PartitionField, schema: Schema) -> tuple[pa.Array, list[Any]]:
    """For each row the number of its partition value; and the values by their numbers."""
    source = schema.find_field(field.source_id)
    whole, *inner = str(schema.find_column_name(field.source_id)).split(".")
    name = ".".join((whole, *inner))
    column = rows.column(name) if name in rows.column_names else None
    if column is None:
        column = pc.struct_field(rows.column(whole), inner)
    encoded = pa.chunked_array([column.combine_chunks()]).dictionary_encode("encode")
    encoded = encoded.combine_chunks()
    transform = field.transform.transform(source.field_type)
    values = [
        transform(_to_partition_representation(source.field_type, value))
        for value in encoded.dictionary.to_pylist()
    ]
    numbers: dict[
        str, int
    ] = {}  # by their texts: NaN is not equal to itself, and 1 is equal to true
    known: dict[int, Any] = {}
    places = []
    for value in values:
        number = numbers.setdefault(repr(value), len(numbers))
        known[number] = value
        places.append(number)
    return pc.take(pa.array(places, pa.int64()), encoded.indices), list(known.values())


def _runs(codes: pa.Array) -> list[tuple[int, int]]:
    """The numbers of an array in order, each with how often it stands there."""
    counted = [(c["values"], c["counts"]) for c in pc.value_counts(codes).to_pylist()]
    return sorted(counted)
