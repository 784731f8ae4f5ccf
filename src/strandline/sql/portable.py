"""The only place that knows that two SQL dialects exist.

Trees are written in Spark's meaning (ANSI mode, UTC). `render` turns one into the text of an engine; what
DuckDB would read differently is written differently here, and what it cannot do is refused by name.
"""

from __future__ import annotations

import re
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.generators.duckdb import DuckDBGenerator
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser

from strandline.errors import TransformError
from strandline.sql.expr import case, cast, concat, data_type, lit

_FAULT, _FIELD, _END = "strandline!", "␟", "␞"


class AnsiSpark(Spark):
    """Spark SQL as Spark 4 runs it: ANSI mode, so a CAST fails instead of giving NULL."""

    SAFE_DIVISION = False

    class Parser(SparkParser):
        STRICT_CAST = True

    class Generator(SparkGenerator):
        def anonymous_sql(self, expression: exp.Anonymous) -> str:
            return _own_function(self, expression, _SPARK_OWN) or super().anonymous_sql(expression)


class SparkOnDuck(DuckDB):
    """DuckDB writing Spark's meaning."""

    class Generator(DuckDBGenerator):
        def div_sql(self, expression: exp.Div) -> str:
            return self._guarded("/", expression)

        def mod_sql(self, expression: exp.Mod) -> str:
            return self._guarded("%", expression)

        def _guarded(self, sign: str, node: exp.Binary) -> str:
            """Spark fails on a zero divisor; DuckDB gives infinity or NULL."""
            left, right = self.sql(node, "this"), self.sql(node, "expression")
            if isinstance(node.expression, exp.Literal) and node.expression.this.strip("0."):
                return f"{left} {sign} {right}"
            zero = self.sql(fault("division"))
            return f"(CASE WHEN {right} = 0 THEN {zero} ELSE {left} {sign} {right} END)"

        def anonymous_sql(self, expression: exp.Anonymous) -> str:
            return _own_function(self, expression, _DUCK_OWN) or super().anonymous_sql(expression)

        def substring_sql(self, expression: exp.Substring) -> str:
            start = expression.args.get("start")
            if isinstance(start, exp.Literal) and start.this == "0":  # Spark reads position 0 as 1
                expression.set("start", exp.Literal.number(1))
            return super().substring_sql(expression)


# functions of ours that each engine spells in its own way; {} is the argument
_SPARK_OWN = {
    "raise_error": "RAISE_ERROR({})",
    "sha256_hex": "SHA2({}, 256)",
    "hash60": "CAST(CONV(SUBSTRING(SHA2({}, 256), 1, 15), 16, 10) AS BIGINT)",
    "epoch_micros": "UNIX_MICROS(CAST({} AS TIMESTAMP))",
    "to_hex": "HEX({})",
}
_DUCK_OWN = {
    "raise_error": "ERROR({})",
    "sha256_hex": "SHA256({})",
    "hash60": "CAST('0x' || SUBSTRING(SHA256({}), 1, 15) AS BIGINT)",
    "epoch_micros": "EPOCH_US({})",
    "to_hex": "HEX({})",
}


def _own_function(generator: Any, node: exp.Anonymous, table: dict[str, str]) -> str | None:
    template = table.get(node.name.lower())
    return template.format(generator.expressions(node, flat=True)) if template else None


DIALECTS: dict[str, Any] = {"spark": AnsiSpark, "duckdb": SparkOnDuck}


def parse(sql: str, what: str) -> exp.Expr:
    """Parse a user's SQL expression or query; `what` says where it stands."""
    try:
        return sqlglot.parse_one(sql, read=AnsiSpark)
    except SqlglotError as e:
        first: dict[str, Any] = next(iter(getattr(e, "errors", [])), {})
        near = f" near `{first['highlight']}`" if first.get("highlight") else ""
        reason = str(first.get("description") or e).splitlines()[0].rstrip(".")
        raise TransformError(
            f"{what}: the SQL cannot be parsed{near}: {reason}", hint="it is read as Spark SQL"
        ) from None


def render(tree: exp.Expr, dialect: str) -> str:
    """The text of a tree for one engine: `spark` or `duckdb`."""
    text: str = tree.sql(dialect=DIALECTS[dialect])
    return text


# --- faults: errors raised by our own SQL, in the same words on both engines -------------------------------


def fault(kind: str, *details: exp.Expr) -> exp.Expr:
    """An expression that raises when it is evaluated; `details` travel in the message."""
    parts: list[exp.Expr] = [lit(f"{_FAULT}{kind}")]
    for detail in details:
        parts += [lit(_FIELD), exp.Coalesce(this=cast(detail, "string"), expressions=[lit("NULL")])]
    return exp.Anonymous(this="raise_error", expressions=[concat(*parts, lit(_END))])


def find_fault(message: str) -> tuple[str, list[str]] | None:
    """The kind and the details of a fault inside an engine's error text."""
    found = re.search(f"{re.escape(_FAULT)}(\\w+)((?:{_FIELD}[^{_END}]*)*){_END}", message, re.DOTALL)
    return (found[1], found[2].split(_FIELD)[1:]) if found else None


# --- types and casts: one grammar for text, whatever an engine would accept by itself ----------------------

_FAMILIES = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "integer"),
    **dict.fromkeys(("float", "double"), "float"),
    "string": "text",
}
_STAMP = r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?)?"
_NUMBER = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]{1,3})?"
_GRAMMAR = {
    "integer": r"[+-]?[0-9]{1,19}",
    "decimal": _NUMBER,
    "float": rf"({_NUMBER}|nan|[+-]?inf(inity)?)",
    "boolean": r"(true|false|t|f|yes|no|y|n|1|0)",
    "date": r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "timestamp": rf"{_STAMP}(z|[+-][0-9]{{2}}:[0-9]{{2}})?",
    "timestamp_ntz": _STAMP,
}


def family(type_: str) -> str:
    """What kind of value a type holds: integer, decimal, float, text, boolean, date, timestamp, binary."""
    base = re.split(r"[(<]", type_, maxsplit=1)[0].strip().lower()
    return _FAMILIES.get(base, base)


def checked_cast(tree: exp.Expr, source: str, target: str, column: str) -> exp.Expr:
    """A cast that fails with the column and the value in its message, alike on both engines."""
    if source == target:
        return tree
    from_text, to = family(source) == "text", family(target)
    if to == "text":
        return _to_text(tree, source)
    value: exp.Expr = exp.Trim(this=tree) if from_text else tree
    fails: exp.Expr = exp.Is(this=exp.TryCast(this=value, to=data_type(target), safe=True), expression=exp.null())
    if from_text and to in _GRAMMAR:
        # T and Z in upper case only differ in spelling; the grammar is written in lower case
        pattern = "^" + _GRAMMAR[to].replace("[ T]", "[ t]") + "$"
        fails = exp.or_(exp.Not(this=exp.RegexpLike(this=exp.Lower(this=value.copy()), expression=lit(pattern))), fails)
    return case(
        (exp.Is(this=tree, expression=exp.null()), cast(exp.null(), target)),
        (fails, cast(fault("cast", lit(column), _to_text(tree, source), lit(target)), target)),
        default=cast(value, target),
    )


def _to_text(tree: exp.Expr, source: str) -> exp.Expr:
    """Text of a value; timestamps are spelled out, because engines spell them differently."""
    if family(source) in ("timestamp", "timestamp_ntz"):
        return timestamp_text(tree)
    return tree if family(source) == "text" else cast(tree, "string")


def timestamp_text(tree: exp.Expr) -> exp.Expr:
    """Text like 2024-01-31 12:00:00.000000, in UTC for instants."""
    return exp.TimeToStr(this=tree, format=lit("%Y-%m-%d %H:%M:%S.%f"))


# --- what in process can do of Spark's functions -----------------------------------------------------------

_TESTED: set[type[exp.Expr]] = {
    exp.Abs, exp.And, exp.Avg, exp.Case, exp.Cast, exp.Ceil, exp.Coalesce, exp.Concat, exp.Count, exp.CountIf,
    exp.DateAdd, exp.DateDiff, exp.DateSub, exp.Day, exp.DenseRank, exp.Exists, exp.Extract, exp.FirstValue,
    exp.Floor, exp.Greatest, exp.If, exp.Lag, exp.LastValue, exp.Lead, exp.Least, exp.Length, exp.Lower, exp.Max,
    exp.Min, exp.Month, exp.Nullif, exp.Or, exp.Rank, exp.RegexpLike, exp.Round, exp.RowNumber, exp.SHA2,
    exp.Substring, exp.Sum, exp.Trim, exp.TryCast, exp.Upper, exp.Year, exp.Xor, exp.TsOrDsAdd, exp.TsOrDsDiff,
    exp.TsOrDsToDate, exp.Left, exp.Right, exp.Lpad if hasattr(exp, "Lpad") else exp.Pad, exp.Pad, exp.Replace,
    exp.DateTrunc, exp.TimestampTrunc,
}  # fmt: skip


def refuse_untested(tree: exp.Expr, what: str) -> None:
    """In process, a function outside the tested list is refused by name rather than guessed."""
    for node in tree.find_all(exp.Func):
        if type(node) not in _TESTED:
            name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
            raise TransformError(
                f"{what}: the function {name.lower()}() is not available on the in-process engine",
                hint="run this project with engine: spark, or write it with the functions listed in docs/sql.md",
            )


_CLOCKS = re.compile(
    r"(?i)\b(rand|randn|random|uuid|now|current_(date|timestamp|time)|getdate|localtimestamp|unix_timestamp|"
    r"monotonically_increasing_id|shuffle|input_file_name|spark_partition_id)\b"
)


def deterministic(sql: str) -> bool:
    """Does this SQL give the same answer whenever it is asked? Says no when in doubt."""
    return not _CLOCKS.search(sql)
