"""Spark's words for types in Iceberg, both ways; and what an Iceberg table cannot hold, by name."""

from __future__ import annotations

import re
from itertools import count

from pyiceberg import types as ice
from pyiceberg.schema import Schema as IceSchema

from strandline.errors import TableError
from strandline.sql.nested import outer, parts
from strandline.types import Column, Schema

_FROM_SPARK: dict[str, ice.PrimitiveType] = {
    "bigint": ice.LongType(), "int": ice.IntegerType(), "smallint": ice.IntegerType(),
    "tinyint": ice.IntegerType(), "float": ice.FloatType(), "double": ice.DoubleType(),
    "string": ice.StringType(), "boolean": ice.BooleanType(), "date": ice.DateType(),
    "binary": ice.BinaryType(), "timestamp": ice.TimestamptzType(), "timestamp_ntz": ice.TimestampType(),
}  # fmt: skip
_TO_SPARK = {
    "long": "bigint", "timestamptz": "timestamp", "timestamp": "timestamp_ntz", "uuid": "string",
}  # fmt: skip


def to_iceberg(column: Column, ids: count[int] | None = None) -> ice.IcebergType:
    """The Iceberg type of a column; its nested fields are numbered, an error names what has no type there."""
    ids = ids or count(1)
    found = _iceberg(column.type, ids)
    if found is None:
        raise TableError(
            f"column `{column.name}` has type {column.type}, which an Iceberg table cannot hold",
            hint="cast it with a cast step, for example to string",
        )
    return found


def _iceberg(type_: str, ids: count[int]) -> ice.IcebergType | None:
    inner = [(name, next(ids), _iceberg(part, ids)) for name, part in parts(type_)]
    if any(part is None for _, _, part in inner):
        return None
    match outer(type_):
        case "array":
            return ice.ListType(inner[0][1], inner[0][2], element_required=False)
        case "map":
            (_, key_id, key), (_, value_id, value) = inner
            return ice.MapType(key_id, key, value_id, value, value_required=False)
        case "struct":
            fields = (ice.NestedField(number, name, part) for name, number, part in inner)
            return ice.StructType(*fields)
    if decimal := re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", type_):
        return ice.DecimalType(int(decimal[1]), int(decimal[2]))
    return _FROM_SPARK.get(type_)


def to_spark(type_: ice.IcebergType) -> str:
    """An Iceberg type in Spark's words; one that Spark lacks keeps its name, and no engine reads it."""
    match type_:
        case ice.ListType():
            return f"array<{to_spark(type_.element_type)}>"
        case ice.MapType():
            return f"map<{to_spark(type_.key_type)},{to_spark(type_.value_type)}>"
        case ice.StructType():
            fields = ",".join(f"{f.name}:{to_spark(f.field_type)}" for f in type_.fields)
            return f"struct<{fields}>"
        case ice.DecimalType():
            return f"decimal({type_.precision},{type_.scale})"
        case ice.FixedType():
            return "binary"
    return _TO_SPARK.get(str(type_), str(type_))


def columns_of_schema(schema: IceSchema) -> Schema:
    """The columns of an Iceberg schema, in Spark's words."""
    return Schema(tuple(Column(f.name, to_spark(f.field_type)) for f in schema.fields))


def schema_for(columns: Schema) -> IceSchema:
    """The schema of a new table: every column optional."""
    ids = count(1)
    fields = []
    for column in columns:
        number = next(ids)
        fields.append(ice.NestedField(number, column.name, to_iceberg(column, ids)))
    return IceSchema(*fields)
