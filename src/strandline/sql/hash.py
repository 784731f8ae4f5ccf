"""Hashes that mean the same on every engine.

Each value becomes text by its type family, tagged and length-prefixed, so that NULL differs from '', and
('ab','c') from ('a','bc'). Floats have no such text: they are refused for users and compared beside the row hash.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from strandline.errors import TransformError
from strandline.sql.expr import call, case, cast, col, concat, lit
from strandline.sql.portable import decimal_text, family
from strandline.types import Column

_TAGS = {
    "integer": "i",
    "decimal": "d",
    "text": "s",
    "boolean": "b",
    "date": "D",
    "timestamp": "t",
    "timestamp_ntz": "n",
    "binary": "x",
    "void": "v",
}


def hashable(column: Column) -> bool:
    return family(column.type) in _TAGS


def key_hash(columns: Sequence[Column], *, where: str) -> exp.Expr:
    """SHA-256 over several columns, as 64 hex digits."""
    for c in columns:
        if not hashable(c):
            raise TransformError(
                f"{where}: column `{c.name}` is a {c.type}, which has no exact text to hash",
                hint="cast it to decimal(p,s) or string first",
            )
    return call(
        "sha256_hex", concat(*(case((_is_null(c), lit("N")), default=_tagged(c)) for c in columns))
    )


def value_hash(column: Column, *, where: str) -> exp.Expr:
    """SHA-256 of one value; NULL stays NULL."""
    return case((_is_null(column), exp.null()), default=key_hash([column], where=where))


def row_hash(columns: Sequence[Column]) -> exp.Expr:
    """60 bits over the non-NULL values, tagged with their columns' names: a column full of NULLs changes nothing."""
    parts = [part for c in columns if hashable(c) for part in _named_value(c)]
    return call("hash60", call("joined", lit(""), *parts))


def _named_value(column: Column) -> list[exp.Expr]:
    """A value after its column's name and kind; every part is NULL when the value is, and then left out.

    Only text can hold the sign that ends a value, so only text brings its length. It stands by itself: long values are
    copied once, into the whole, and their bytes are counted, not their characters.
    """
    kind = family(column.type)
    head = lit(f";{len(column.fold)}:{column.fold}{_TAGS[kind]}")
    if kind == "text":
        return [
            concat(head, cast(call("byte_count", col(column.name)), "string"), lit(":")),
            col(column.name),
        ]
    return [concat(head, _text(column))]


def _is_null(column: Column) -> exp.Expr:
    return exp.Is(this=col(column.name), expression=exp.null())


def _tagged(column: Column) -> exp.Expr:
    text = _text(column)
    length = cast(exp.Length(this=text.copy()), "string")
    return concat(lit(_TAGS[family(column.type)]), length, lit(":"), text)


def _text(column: Column) -> exp.Expr:
    value = col(column.name)
    match family(column.type):
        case "text":
            return value
        case "timestamp" | "timestamp_ntz":
            return cast(call("epoch_micros", value), "string")
        case "binary":
            return call("to_hex", value)
        case "decimal" if not column.type.replace(" ", "").endswith(",0)"):
            # 1.50 and 1.5 are one number: a wider scale must not look like a change
            return exp.Trim(
                this=_trim_zeros(decimal_text(value)), expression=lit("."), position="TRAILING"
            )
        case _:
            return cast(value, "string")


def _trim_zeros(text: exp.Expr) -> exp.Expr:
    return exp.Trim(this=text, expression=lit("0"), position="TRAILING")
