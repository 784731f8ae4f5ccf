"""Spark's words for types in Arrow and in Delta."""

from __future__ import annotations

import re

import pyarrow as pa
from deltalake import Schema as DeltaSchema
from deltalake.schema import DataType as DeltaType

from strandline.sql.nested import outer, parts

_ARROW = {
    "bigint": pa.int64(), "int": pa.int32(), "smallint": pa.int16(), "tinyint": pa.int8(), "float": pa.float32(),
    "double": pa.float64(), "string": pa.string(), "boolean": pa.bool_(), "date": pa.date32(), "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"), "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip


def to_arrow(type_: str) -> pa.DataType:
    """The Arrow type of a type in Spark's words."""
    inner = [(name, to_arrow(part)) for name, part in parts(type_)]
    match outer(type_):
        case "array":
            return pa.list_(inner[0][1])
        case "map":
            return pa.map_(inner[0][1], inner[1][1])
        case "struct":
            return pa.struct(inner)
    if decimal := re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", type_):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    return _ARROW[type_]


def to_delta(type_: str) -> DeltaType:
    """The Delta type of a type in Spark's words."""
    field = DeltaSchema.from_arrow(pa.schema([("c", to_arrow(type_))])).fields[0]
    return field.type
