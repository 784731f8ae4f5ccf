"""Which Arrow types a lake table can hold; files and frames that bring others are refused by the column's name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.engine.base import FileSource
from strandline.engine.sources.files import refuse_own
from strandline.errors import ReadError, TransformError
from strandline.types import Column, Schema

_PLAIN = (
    pa.types.is_boolean, pa.types.is_integer, pa.types.is_float32, pa.types.is_float64, pa.types.is_date32,
    pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary,
    pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary, pa.types.is_null,
)  # fmt: skip
_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
)
_DIGITS = 38


def held(type_: pa.DataType) -> pa.DataType | None:
    """The type under which a table keeps values of this one; None when it has none."""
    if isinstance(type_, pa.BaseExtensionType):
        return type_.storage_type if isinstance(type_, pa.JsonType) else None
    if pa.types.is_dictionary(type_):
        return held(type_.value_type)
    if pa.types.is_timestamp(type_):
        return pa.timestamp("us", tz=type_.tz)
    if pa.types.is_date64(type_):
        return pa.date32()
    if pa.types.is_decimal(type_):
        return pa.decimal128(type_.precision, type_.scale) if type_.precision <= _DIGITS else None
    if pa.types.is_nested(type_):
        return _nested(type_)
    return type_ if any(is_one(type_) for is_one in _PLAIN) else None


def _nested(type_: pa.DataType) -> pa.DataType | None:
    if pa.types.is_map(type_):
        key, value = held(type_.key_type), held(type_.item_type)
        return pa.map_(key, value) if key is not None and value is not None else None
    if any(is_one(type_) for is_one in _LISTS):
        inner = held(type_.value_type)
        return pa.list_(inner) if inner is not None else None
    if not pa.types.is_struct(type_):
        return None
    fields = [(f.name, held(f.type)) for f in type_]
    return None if any(inner is None for _, inner in fields) else pa.struct(fields)


def untyped_parquet(source: FileSource, paths: Sequence[Path]) -> set[str]:
    """The columns that have no type in any of these Parquet files, which then hold NULLs only.

    A file with a column that no table can hold as it is, is refused here: engines would read it, each in its own way.
    """
    untyped, typed = set[str](), set[str]()
    for path in paths:
        for field in _fields(path):
            (untyped if pa.types.is_null(field.type) else typed).add(field.name)
            if (wrong := _wrong(field.type)) is not None:
                reason, instead = wrong
                raise ReadError(
                    f"`{path.name}`: column `{field.name}` is {reason}",
                    hint=f"cast it to {instead}",
                )
    refuse_own(untyped | typed, source)
    return untyped - typed


def _fields(path: Path) -> pa.Schema | tuple[()]:
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowInvalid, OSError):  # the engine that reads the file says what is wrong with it
        return ()
    Schema(
        tuple(Column(f.name, "") for f in schema)
    )  # two names that differ only in case are refused
    return schema


def _wrong(type_: pa.DataType) -> tuple[str, str] | None:
    """What is wrong with a type of a Parquet file, and what to cast it to; looks into nested types too."""
    if pa.types.is_timestamp(type_):
        told = "a timestamp in nanoseconds, and tables keep microseconds"
        instead = (
            "microseconds where the file is written: coerce_timestamps='us' in pandas and pyarrow"
        )
        return (told, instead) if type_.unit == "ns" else None
    if pa.types.is_decimal(type_) and type_.precision > _DIGITS:
        told = (
            f"decimal({type_.precision},{type_.scale}), and a decimal has at most {_DIGITS} digits"
        )
        return told, f"decimal({_DIGITS},{min(type_.scale, _DIGITS)}) where the file is written"
    if pa.types.is_struct(type_):
        Schema(tuple(Column(f.name, "") for f in type_))
    for inner in (type_.field(i).type for i in range(type_.num_fields)):
        if (wrong := _wrong(inner)) is not None:
            return wrong
    return (
        None
        if held(type_) is not None
        else (f"{type_}, which no table can hold", "text where the file is written")
    )


def settled(table: pa.Table) -> pa.Table:
    """The rows of a frame in types that a table can hold; a value that would change is an error with its column."""
    columns = []
    for field, values in zip(table.schema, table.columns, strict=True):
        kept = held(field.type)
        if kept is None:
            raise TransformError(
                f"the python step returned column `{field.name}` as {field.type}, which no table can hold",
                hint="change its type in the function, for example to text",
            )
        try:
            columns.append(values if kept == field.type else values.cast(kept))
        except pa.ArrowInvalid as e:
            raise TransformError(
                f"the python step returned column `{field.name}` as {field.type}, and a table keeps {kept}: "
                f"{str(e).splitlines()[0]}",
                hint="round the values in the function: frame[column].dt.floor('us')",
            ) from e
    return pa.Table.from_arrays(columns, names=table.column_names)
