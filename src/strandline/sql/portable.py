"""The only place that knows that two SQL dialects exist.

Trees are written in Spark's meaning (ANSI mode, UTC). `render` turns one into the text of an engine; what
DuckDB would read differently is written differently here, and what it cannot do is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.generators.duckdb import DuckDBGenerator
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser

from strandline.errors import TransformError
from strandline.sql.expr import call, case, cast, concat, data_type, eq, is_null, lit, negate, same
from strandline.sql.names import AGGREGATE_NAMES, CALLED_NAMES
from strandline.sql.spoken import remember

_BY_NAME = "strandline_by_name"
_FAULT, _FIELD, _END = "strandline!", "␟", "␞"


def _called(name: str) -> Callable[[list[exp.Expr]], exp.Expr]:
    kind = exp.AnonymousAggFunc if name in AGGREGATE_NAMES else exp.Anonymous
    return lambda args: kind(this=name, expressions=args)


# calls that stay calls: Spark reads them as they were written, and `sql/functions.py` knows them by name
_CALLS = {name.upper(): _called(name) for name in CALLED_NAMES | AGGREGATE_NAMES}
_ALSO = {"MEAN": exp.Avg.from_arg_list}


class AnsiSpark(Spark):
    """Spark SQL as Spark 4 runs it: ANSI mode, so a CAST fails instead of giving NULL."""

    SAFE_DIVISION = False

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'"]  # since Spark 4, 'it''s' is it's

    class Parser(SparkParser):
        STRICT_CAST = True
        FUNCTIONS: ClassVar[dict[str, Any]] = {**SparkParser.FUNCTIONS, **_CALLS, **_ALSO}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: parser
            for name, parser in SparkParser.FUNCTION_PARSERS.items()
            if name not in _CALLS
        }
        NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: parser
            for name, parser in SparkParser.NO_PAREN_FUNCTION_PARSERS.items()
            if name not in _CALLS
        }

    class Generator(SparkGenerator):
        def anonymous_sql(self, expression: exp.Anonymous) -> str:
            if expression.name == _BY_NAME:
                return self.sql(expression.expressions[1])
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
            if expression.name == _BY_NAME:
                return self.sql(expression.expressions[0])
            return _own_function(self, expression, _DUCK_OWN) or super().anonymous_sql(expression)

        def trim_sql(self, expression: exp.Trim) -> str:
            if (
                not expression.expression
            ):  # Spark trims blanks only; DuckDB every space that Unicode knows
                expression.set("expression", lit(" "))
            return super().trim_sql(expression)

        def upper_sql(self, expression: exp.Upper) -> str:
            return (
                f"UPPER(REPLACE({self.sql(expression, 'this')}, 'ß', 'SS'))"  # DuckDB would write ẞ
            )

        def left_sql(self, expression: exp.Left) -> str:
            return self._part("LEFT", expression)

        def right_sql(self, expression: exp.Right) -> str:
            return self._part("RIGHT", expression)

        def _part(self, name: str, node: exp.Expr) -> str:
            """DuckDB would count a negative length from the other side."""
            return f"{name}({self.sql(node, 'this')}, GREATEST({self.sql(node, 'expression')}, 0))"

        def like_sql(self, expression: exp.Like) -> str:
            return self._escaped(expression, super().like_sql(expression))

        def ilike_sql(self, expression: exp.ILike) -> str:
            return self._escaped(expression, super().ilike_sql(expression))

        def _escaped(self, node: exp.Expr, sql: str) -> str:
            """In Spark a backslash escapes % and _ unless something else is said."""
            return sql if isinstance(node.parent, exp.Escape) else f"{sql} ESCAPE '\\'"

        def timestamptrunc_sql(self, expression: exp.TimestampTrunc) -> str:
            return f"DATE_TRUNC({self.sql(lit(expression.args['unit'].name))}, {self.sql(expression, 'this')})"

        def datetrunc_sql(self, expression: exp.DateTrunc) -> str:
            unit = _UNITS.get(expression.args["unit"].name.upper())
            if unit is None:
                raise TransformError(
                    f"trunc(): `{expression.args['unit'].name}` is not a part of a date"
                )
            return (
                f"CAST(DATE_TRUNC('{unit}', CAST({self.sql(expression, 'this')} AS DATE)) AS DATE)"
            )

        def substring_sql(self, expression: exp.Substring) -> str:
            start = expression.args.get("start")
            if start is not None:  # Spark reads position 0 as 1
                expression.set(
                    "start", case((eq(start.copy(), lit(0)), lit(1)), default=start.copy())
                )
            length = expression.args.get("length")
            if length is not None and not isinstance(
                length, exp.Literal
            ):  # DuckDB would go backwards
                below = exp.LT(this=length.copy(), expression=lit(0))
                expression.set("length", case((below, lit(0)), default=length.copy()))
            return super().substring_sql(expression)


_UNITS = {  # of trunc(date, unit)
    **dict.fromkeys(("YEAR", "YYYY", "YY"), "year"),
    **dict.fromkeys(("MONTH", "MON", "MM"), "month"),
    "QUARTER": "quarter",
    "WEEK": "week",
}

# functions of ours that each engine spells in its own way; {} is the argument
_SPARK_OWN = {
    "raise_error": "RAISE_ERROR({})",
    "sha256_hex": "SHA2({}, 256)",
    "hash60": "CAST(CONV(SUBSTRING(SHA2({}, 256), 1, 15), 16, 10) AS BIGINT)",
    "hex63": "(CAST(CONV(SUBSTRING({0}, 1, 15), 16, 10) AS BIGINT) * 8 "
    "+ CAST(CONV(SUBSTRING({0}, 16, 1), 16, 10) AS BIGINT) DIV 2)",
    "epoch_micros": "UNIX_MICROS(CAST({} AS TIMESTAMP))",
    "byte_count": "OCTET_LENGTH({})",
    "joined": "CONCAT_WS('', {})",  # what is NULL is left out
    "to_hex": "HEX({})",
    "utf8_bytes": "CAST({} AS BINARY)",
    "utf8_text": "CAST({} AS STRING)",
    "is_utf8": "IS_VALID_UTF8(CAST({} AS STRING))",
    "comparable": "TO_JSON(STRUCT({}), MAP('ignoreNullFields', 'false'))",
    "whole": "{}",
    "float_digits": "{}",
    "leading_zero": "{}",
}
_DUCK_OWN = {
    "raise_error": "ERROR({})",
    "sha256_hex": "SHA256({})",
    "hash60": "CAST('0x' || SUBSTRING(SHA256({}), 1, 15) AS BIGINT)",
    "hex63": "(CAST('0x' || SUBSTRING({0}, 1, 15) AS BIGINT) * 8 "
    "+ CAST('0x' || SUBSTRING({0}, 16, 1) AS BIGINT) // 2)",
    "epoch_micros": "EPOCH_US({})",
    "byte_count": "STRLEN({})",
    "joined": "CONCAT_WS('', {})",
    "to_hex": "HEX({})",
    "utf8_bytes": "ENCODE({})",
    "utf8_text": "DECODE({})",
    "is_utf8": "(TRY(DECODE({})) IS NOT NULL)",
    "comparable": "CAST(TO_JSON({}) AS VARCHAR)",
    "unscaled": "CAST(REPLACE(CAST({} AS VARCHAR), '.', '') AS HUGEINT)",
    "whole": "TRUNC({})",  # a cast to an integer would round
    "float_digits": "STRANDLINE_DIGITS(CAST({} AS VARCHAR))",  # a cast to a decimal would multiply
    "leading_zero": r"REGEXP_REPLACE({}, '^(-?)[.]', '\10.')",  # DuckDB writes a decimal(2,2) as .50
}
# what DuckDB cannot say in one expression: the digits of a double, written out, from text such as 1.5e-07;
# and a quotient of whole numbers, shifted by powers of ten, rounded half up
DUCK_MACROS = (
    """CREATE TEMP MACRO strandline_mantissa(t) AS REGEXP_REPLACE(SPLIT_PART(t, 'e', 1), '[^0-9]', '', 'g')""",
    """CREATE TEMP MACRO strandline_digits(t) AS CASE WHEN NOT CONTAINS(t, 'e') THEN t ELSE
    IF(t[1] = '-', '-', '') || IF(CONTAINS(t, 'e-'),
      '0.' || REPEAT('0', CAST(SPLIT_PART(t, 'e-', 2) AS INT) - 1) || strandline_mantissa(t),
      RPAD(strandline_mantissa(t), CAST(SPLIT_PART(t, 'e', 2) AS INT) + 1, '0')) END""",
    """CREATE TEMP MACRO strandline_divide(x, y, up, down) AS IF((x < 0) = (y < 0), 1, -1) * (
    ABS(x * CAST(up AS HUGEINT)) // ABS(y * CAST(down AS HUGEINT))
    + IF(ABS(x * CAST(up AS HUGEINT)) % ABS(y * CAST(down AS HUGEINT)) * 2 >= ABS(y * CAST(down AS HUGEINT)), 1, 0))""",
)


def _own_function(generator: Any, node: exp.Anonymous, table: dict[str, str]) -> str | None:
    template = table.get(node.name.lower())
    return template.format(generator.expressions(node, flat=True)) if template else None


DIALECTS: dict[str, Any] = {"spark": AnsiSpark, "duckdb": SparkOnDuck}


def parse(sql: str, what: str) -> exp.Expr:
    """Parse a user's SQL expression or query; `what` says where it stands."""
    try:
        return remember(sqlglot.parse_one(sql, read=AnsiSpark), sql)
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


def by_name(cast_: exp.Expr, rebuilt: exp.Expr) -> exp.Expr:
    """A cast of nested values, field by name. DuckDB's cast does so; Spark's goes by position, so it gets `rebuilt`."""
    return exp.Anonymous(this=_BY_NAME, expressions=[cast_, rebuilt])


# --- faults: errors raised by our own SQL, in the same words on both engines -------------------------------


def fault(kind: str, *details: exp.Expr) -> exp.Expr:
    """An expression that raises when it is evaluated; `details` travel in the message."""
    parts: list[exp.Expr] = [lit(f"{_FAULT}{kind}")]
    for detail in details:
        parts += [lit(_FIELD), exp.Coalesce(this=cast(detail, "string"), expressions=[lit("NULL")])]
    return exp.Anonymous(this="raise_error", expressions=[concat(*parts, lit(_END))])


def find_fault(message: str) -> tuple[str, list[str]] | None:
    """The kind and the details of a fault inside an engine's error text."""
    found = re.search(
        f"{re.escape(_FAULT)}(\\w+)((?:{_FIELD}[^{_END}]*)*){_END}", message, re.DOTALL
    )
    return (found[1], found[2].split(_FIELD)[1:]) if found else None


# --- types and casts: one grammar for text, whatever an engine would accept by itself ----------------------

_FAMILIES = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "integer"),
    **dict.fromkeys(("float", "double"), "float"),
    "string": "text",
}
_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_MINUTES = r"[ T]([01][0-9]|2[0-3]):[0-5][0-9]"
_SECONDS = r":[0-5][0-9](\.[0-9]{1,6})?"
_ZONE = r"(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])"
_DIGITS = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)"
_KEPT = {("integer", "integer"), ("integer", "decimal")}  # what fits is kept in full
_GRAMMAR = {
    "integer": r"[+-]?[0-9]{1,19}",
    "decimal": _DIGITS,  # no exponent: DuckDB loses digits there
    "float": rf"(?i)({_DIGITS}(e[+-]?[0-9]{{1,3}})?|nan|[+-]?inf(inity)?)",
    "boolean": r"(?i)(true|false|t|f|yes|no|y|n|1|0)",
    "date": _DAY,
    "timestamp": f"{_DAY}({_MINUTES}({_SECONDS}{_ZONE}?)?)?",
    "timestamp_ntz": f"{_DAY}({_MINUTES}({_SECONDS})?)?",
}


def family(type_: str) -> str:
    """What kind of value a type holds: integer, decimal, float, text, boolean, date, timestamp, binary."""
    base = re.split(r"[(<]", type_, maxsplit=1)[0].strip().lower()
    return _FAMILIES.get(base, base)


def well_formed(text: str, kind: str) -> bool:
    """Does a text stand in the grammar of its kind? Any text does where there is none."""
    return kind not in _GRAMMAR or re.fullmatch(_GRAMMAR[kind], text) is not None


def checked_cast(
    tree: exp.Expr,
    source: str,
    target: str,
    column: str,
    *,
    safe: bool = False,
    exact: bool = False,
) -> exp.Expr:
    """A cast that fails with the column and the value in its message, alike on both engines; `safe`: NULL instead.

    Nobody cuts or rounds with `exact`: what the type cannot hold as it is fails too.
    """
    if source == target:
        return tree
    if family(target) == "text" and family(source) != "binary":
        return _to_text(tree, source)
    shown = call("to_hex", tree) if family(source) == "binary" else _to_text(tree, source)
    wrong = exp.null() if safe else fault("cast", lit(column), shown, lit(target))
    value = _value(tree, family(source), family(target))
    return case(
        (exp.Is(this=tree, expression=exp.null()), cast(exp.null(), target)),
        (_fails(value, tree, source, target, exact=exact), cast(wrong, target)),
        default=cast(value, target),
    )


def _fails(value: exp.Expr, tree: exp.Expr, source: str, target: str, *, exact: bool) -> exp.Expr:
    kinds = family(source), family(target)
    if kinds[0] == "binary":
        return negate(call("is_utf8", tree))
    there = exp.TryCast(this=value, to=data_type(target), safe=True)
    fails: exp.Expr = is_null(there)
    if kinds[0] == "text" and kinds[1] in _GRAMMAR:
        fails = exp.or_(negate(_like(value, rf"^({_GRAMMAR[kinds[1]]})\z")), fails)
        return (
            exp.or_(fails, _like(value, _surplus(target)))
            if exact and kinds[1] == "decimal"
            else fails
        )
    if exact and kinds not in _KEPT:
        back = _value(there, kinds[1], kinds[0])
        return negate(same(exp.TryCast(this=back, to=data_type(source), safe=True), tree.copy()))
    return fails


def _like(text: exp.Expr, pattern: str) -> exp.Expr:
    return exp.RegexpLike(this=text.copy(), expression=lit(pattern))


def _surplus(type_: str) -> str:
    """More digits behind the point than a decimal has, that are not all zeros."""
    scale = re.search(r",\s*(\d+)", type_)
    return rf"\.[0-9]{{{scale[1] if scale else 0}}}[0-9]*[1-9]"


def _value(tree: exp.Expr, source: str, target: str) -> exp.Expr:
    """What to cast so that both engines mean the same by it."""
    match source, target:
        case "text", "binary":
            return call("utf8_bytes", tree)
        case "binary", "text":
            return call("utf8_text", tree)
        case "text", _:
            return exp.Trim(this=tree)
        case "decimal", "integer":
            return call("whole", tree)
        case "float", "integer":  # Spark makes 2^63 one less, so that it fits a bigint
            return exp.Nullif(
                this=call("whole", tree), expression=cast(lit("9223372036854775808"), "double")
            )
        case "float", "decimal":
            return call("float_digits", cast(tree, "double"))
    return tree


def _to_text(tree: exp.Expr, source: str) -> exp.Expr:
    """Text of a value, spelled out where engines spell differently."""
    match family(source):
        case "text":
            return tree
        case "timestamp" | "timestamp_ntz":
            return timestamp_text(tree)
        case "decimal":
            return decimal_text(tree)
    return cast(tree, "string")


def decimal_text(tree: exp.Expr) -> exp.Expr:
    """`0.50`, with a digit in front of the point."""
    return call("leading_zero", cast(tree, "string"))


def timestamp_text(tree: exp.Expr) -> exp.Expr:
    """Text like 2024-01-31 12:00:00.000000, in UTC for instants."""
    return exp.TimeToStr(this=tree, format=lit("%Y-%m-%d %H:%M:%S.%f"))
