"""What of Spark's SQL the local engine answers as Spark does: lists, of which each part is tested on both engines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sqlglot import exp

from strandline.errors import TransformError, did_you_mean
from strandline.sql.names import CALLED_NAMES, INSTEAD, KNOWN_NAMES
from strandline.sql.spoken import spoken, written_name

_TESTED: set[type[exp.Expr]] = {
    exp.Abs, exp.And, exp.Avg, exp.Case, exp.Cast, exp.Ceil, exp.Coalesce, exp.Concat, exp.Count, exp.CountIf,
    exp.DateAdd, exp.DateDiff, exp.DateSub, exp.Day, exp.DenseRank, exp.Exists, exp.Extract, exp.FirstValue,
    exp.Floor, exp.Greatest, exp.If, exp.Lag, exp.LastValue, exp.Lead, exp.Least, exp.Max,
    exp.Min, exp.Month, exp.Nullif, exp.Or, exp.Rank, exp.RegexpLike, exp.Round, exp.RowNumber,
    exp.Substring, exp.Sum, exp.Trim, exp.TryCast, exp.Year, exp.Xor, exp.TsOrDsAdd, exp.TsOrDsDiff,
    exp.TsOrDsToDate, exp.Left, exp.Right, exp.DateTrunc, exp.TimestampTrunc,
    exp.Hour, exp.Minute, exp.Quarter, exp.DayOfMonth, exp.LastDay, exp.StrPosition,
    exp.CurrentDate, exp.CurrentTimestamp,
}  # fmt: skip


# the same for what is no function: operators, clauses and types
_PLAIN: set[type[exp.Expr]] = {
    exp.Add, exp.Alias, exp.Between, exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.Boolean, exp.CTE, exp.Column,
    exp.Cube, exp.DPipe, exp.DataType, exp.DataTypeParam, exp.Distinct, exp.Div, exp.EQ, exp.Escape, exp.Except,
    exp.Filter, exp.From, exp.GT, exp.GTE, exp.Group, exp.GroupingSets, exp.Having, exp.ILike, exp.Identifier,
    exp.IgnoreNulls, exp.In, exp.IntDiv, exp.Intersect, exp.Interval, exp.Is, exp.Join, exp.LT, exp.LTE, exp.Like,
    exp.Limit, exp.Literal, exp.Mod, exp.Mul, exp.NEQ, exp.Neg, exp.Not, exp.Null, exp.NullSafeEQ, exp.NullSafeNEQ,
    exp.Offset, exp.Order, exp.Ordered, exp.Paren, exp.RawString, exp.RespectNulls, exp.Rollup, exp.Select, exp.Star,
    exp.Sub, exp.Subquery, exp.Table, exp.TableAlias, exp.Tuple, exp.Union, exp.Var, exp.Where, exp.Window,
    exp.WindowSpec, exp.With,
}  # fmt: skip
_TYPES = {
    "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "TEXT", "BOOLEAN", "DATE", "TIMESTAMP",
    "TIMESTAMPTZ", "TIMESTAMPNTZ", "BINARY",
}  # fmt: skip


def refuse_untested(tree: exp.Expr, what: str) -> None:
    """In process, whatever is outside the tested lists is refused by name rather than guessed."""
    for message, hint in untested(tree):
        raise TransformError(f"{what}: {message}", hint=hint)


def untested(tree: exp.Expr) -> Iterator[tuple[str, str]]:
    """What is outside the tested lists: what to say of it, and what to write instead."""
    for node in tree.walk():
        if not _tested(node):
            part = node.this if isinstance(node, exp.WithinGroup) else node
            yield f"{spoken(part)} is not available on the local engine", _instead(part)


def _instead(node: exp.Expr) -> str:
    """What to write for a part that is refused."""
    name = (written_name(node) or (node.name if isinstance(node, exp.Anonymous) else "")).lower()
    near = INSTEAD.get(name) or (did_you_mean(name, KNOWN_NAMES - {name}) if name else None)
    always = (
        "run this project with engine: spark, or write it with the functions listed in docs/sql.md"
    )
    return (
        f"{near} Or {always}"
        if near and near.endswith("?")
        else f"{near}; or {always}"
        if near
        else always
    )


def _tested(node: exp.Expr) -> bool:
    match node:
        case exp.Anonymous() | exp.AnonymousAggFunc():
            return node.name.lower() in CALLED_NAMES
        case exp.Func() if (written_name(node) or "if").lower() not in KNOWN_NAMES:
            return False  # a name of another database, or one that Spark reads otherwise
        case exp.Distinct():
            return not node.args.get("on")
        case exp.Interval():
            return isinstance(node.parent, exp.Add | exp.Sub | exp.WindowSpec)
        case exp.DataType():
            return getattr(node.this, "name", "") in _TYPES or isinstance(node.parent, exp.Interval)
    return type(node) in _TESTED or type(node) in _PLAIN


_CLOCKS = re.compile(
    r"(?i)\b(rand|randn|random|uuid|now|curdate|current_(date|timestamp|time)|getdate|localtimestamp|unix_timestamp|"
    r"monotonically_increasing_id|shuffle|input_file_name|spark_partition_id)\b"
)


def deterministic(sql: str) -> bool:
    """Does this SQL give the same answer whenever it is asked? Says no when in doubt."""
    return not _CLOCKS.search(sql)
