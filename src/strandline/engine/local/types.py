"""DuckDB's types in Spark's words."""

from __future__ import annotations

import re

from sqlglot import exp

_SIMPLE = {
    "BIGINT": "bigint", "INTEGER": "int", "INT": "int", "SMALLINT": "smallint", "TINYINT": "tinyint",
    "HUGEINT": "decimal(38,0)", "INT128": "decimal(38,0)", "UHUGEINT": "decimal(38,0)", "UBIGINT": "decimal(20,0)",
    "UINTEGER": "bigint", "USMALLINT": "int", "UTINYINT": "smallint", "FLOAT": "float", "DOUBLE": "double",
    "VARCHAR": "string", "TEXT": "string", "BOOLEAN": "boolean", "DATE": "date", "BLOB": "binary",
    "TIMESTAMP": "timestamp_ntz", "TIMESTAMP_NTZ": "timestamp_ntz", "TIMESTAMPNTZ": "timestamp_ntz",
    "TIMESTAMP WITH TIME ZONE": "timestamp", "TIMESTAMPTZ": "timestamp", '"NULL"': "void", "JSON": "string",
}  # fmt: skip


def from_duckdb(type_: str) -> str:
    """`DECIMAL(12,2)[]` → `array<decimal(12,2)>`; a type that Spark lacks keeps its name, and no table holds it."""
    return _simple(type_) or _nested(exp.DataType.build(type_, dialect="duckdb"))


def _simple(type_: str) -> str | None:
    if decimal := re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", type_):
        return f"decimal({decimal[1]},{decimal[2]})"
    return _SIMPLE.get(type_)


def _nested(node: exp.DataType) -> str:
    kinds = exp.DataType.Type
    if node.this in (kinds.ARRAY, kinds.LIST):
        return f"array<{_nested(node.expressions[0])}>"
    if node.this == kinds.MAP:
        return f"map<{_nested(node.expressions[0])},{_nested(node.expressions[1])}>"
    if node.this == kinds.STRUCT:
        return (
            "struct<"
            + ",".join(f"{f.name}:{_nested(f.args['kind'])}" for f in node.expressions)
            + ">"
        )
    name = node.sql(dialect="duckdb").replace(", ", ",")
    return _simple(name) or name.lower()
