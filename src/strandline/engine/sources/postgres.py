"""PostgreSQL's columns: exotic types travel as text, and values that no table can hold fail with their column's name.

Drivers garble such values, each in its own way, or fail without a name. So the statement itself looks at them, and
raises an error that says which column and which value.
"""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy
from sqlglot import exp

from strandline.engine.sources.wire import DIGITS, WireColumn
from strandline.errors import CastError
from strandline.sql.expr import case, cast, col, concat, is_null, lit, select

_TYPES = {
    16: "boolean", 17: "binary", 20: "bigint", 21: "smallint", 23: "int", 25: "string", 26: "bigint", 700: "float",
    701: "double", 1042: "string", 1043: "string", 1082: "date", 1114: "timestamp_ntz", 1184: "timestamp",
}  # fmt: skip
_NUMERIC, _OID, _PADDED = 1700, 26, 1042
# infinity, years before Christ and after 9999 lie outside; so does NaN, which PostgreSQL sorts above all numbers
_RANGES = {
    "date": ("date", "0001-01-01", "9999-12-31"),
    "timestamp_ntz": ("timestamp", "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"),
    "timestamp": ("timestamptz", "0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00"),
}
_WIDEST = f"{'9' * 20}.{'9' * 18}"  # of decimal(38,18)
_MARK = "strandline|"  # plain ASCII: the database may have another encoding than UTF-8


def columns(connection: sqlalchemy.Connection, origin: exp.Expr) -> list[WireColumn]:
    """The columns of a table or query, by the driver's description of an empty result."""
    probe = select(exp.Star()).from_(origin).where(exp.false()).sql(dialect="postgres")
    with connection.exec_driver_sql(probe) as result:
        description: Any = (
            result.cursor.description
        )  # psycopg's columns know their type and its precision
    return [_column(d.name, d.type_code, d.precision, d.scale) for d in description]


def _column(name: str, oid: int, precision: int | None, scale: int | None) -> WireColumn:
    value = col(name, "q")
    if oid == _NUMERIC:
        return _numeric(name, precision, scale)
    type_ = _TYPES.get(oid, "string")
    if type_ in _RANGES:
        return WireColumn(name, type_, type_, _guarded(value, type_, *_RANGES[type_]), value)
    if oid not in _TYPES or oid in (_OID, _PADDED):  # uuid, json, arrays, enums, …: their text
        return WireColumn(name, type_, type_, _as(value, "bigint" if oid == _OID else "text"))
    return WireColumn(name, type_, type_, value)


def _numeric(name: str, precision: int | None, scale: int | None) -> WireColumn:
    value = col(name, "q")
    if precision is None:
        type_ = "decimal(38,18)"
        kept = _guarded(value, type_, "numeric", f"-{_WIDEST}", _WIDEST)
        return WireColumn(name, type_, type_, cast(kept, type_))
    type_ = f"decimal({precision},{scale or 0})"
    if precision > DIGITS:  # refused by whoever reads it
        return WireColumn(name, type_, type_, value)
    most = "9" * precision
    return WireColumn(
        name, type_, type_, _guarded(value, type_, "numeric", f"-{most}", most), value
    )


def _guarded(value: exp.Expr, type_: str, declared: str, low: str, high: str) -> exp.Expr:
    """The value, if it lies in a range; else an error of the database that names the column, the value and the type."""
    inside = exp.Between(
        this=value.copy(), low=_as(lit(low), declared), high=_as(lit(high), declared)
    )
    told = concat(lit(f"{_MARK}{value.name}|"), _as(value, "text"), lit(f"|{type_}|"))
    return case((exp.or_(is_null(value.copy()), inside), value.copy()), default=_as(told, declared))


def _as(value: exp.Expr, type_: str) -> exp.Cast:
    return exp.Cast(this=value.copy(), to=exp.DataType.build(type_, dialect="postgres"))


def refused_value(message: str) -> CastError | None:
    """The value that a statement of ours has refused, if this is its error."""
    found = re.search(
        rf"{re.escape(_MARK)}([^\n]*?)\|([^|\n]*)\|([a-z_]+(?:\(\d+,\d+\))?)\|", message
    )
    if found is None:
        return None
    column, value, type_ = found.groups()
    hint = f"read it with a query: SELECT …, NULLIF({column}, '{value}') AS {column}, or CAST({column} AS text), FROM …"
    return CastError(column, value, type_, hint=hint)
