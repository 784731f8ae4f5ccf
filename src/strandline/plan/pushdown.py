"""What a source need not send: columns nobody asks for, and rows a leading filter would drop anyway.

A pushed predicate is only ever a hint. The filter is evaluated again by the engine, so a predicate may be pushed
when the database keeps *at least* the rows that the engine would keep, and nobody looks at the rows before the filter.
"""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal

from sqlglot import exp

from strandline.config.model import NodeConfig, StepConfig
from strandline.errors import TransformError
from strandline.sql.expr import ident, lit
from strandline.sql.portable import family, parse, well_formed
from strandline.sql.values import Value, converted, from_text
from strandline.transform.sql import mentioned


def columns_needed(node: NodeConfig) -> tuple[str, ...] | None:
    """The columns a single-source node reads; None when it reads them all."""
    seen: set[str] = set()
    for step in node.transform.steps if node.transform else []:
        params = step.params
        match step.operation:
            case "filter":
                seen |= mentioned(_tree(params.get("condition")))
            case "select":
                return tuple(sorted(seen | {str(c).casefold() for c in params.get("columns", [])}))
            case _:
                return None
    tree = _tree(node.transformation_sql)
    if tree is None or _stars(tree):
        return None
    return tuple(sorted(seen | mentioned(tree)))


def predicates(node: NodeConfig) -> list[exp.Expr]:
    """The conditions of the leading filters, one by one; none where a row that they drop shows that it is there."""
    found: list[exp.Expr] = []
    steps = node.transform.steps if node.transform else []
    if node.settings.delete_missing and not any(_looks(s) for s in steps):
        return []  # deletes are looked for in the whole slice, as it was read
    for step in steps:
        if step.operation not in ("filter", "select", "drop"):
            break
        tree = _tree(step.params.get("condition")) if step.operation == "filter" else None
        if tree is not None:
            found += list(tree.flatten()) if isinstance(tree, exp.And) else [tree]
    return found


def _looks(step: StepConfig) -> bool:
    return step.operation == "detect_deletes" and step.params.get("mode") != "none"


def pushed(predicate: exp.Expr, types: dict[str, str], dialect: str) -> exp.Expr | None:
    """What of a predicate a database may apply: it keeps at least the rows for which Spark finds it true."""
    match predicate:
        case exp.Paren():
            inner = pushed(predicate.this, types, dialect)
            return exp.Paren(this=inner) if inner is not None else None
        case exp.And():  # without one side it keeps more, not less
            sides = [pushed(s, types, dialect) for s in (predicate.left, predicate.right)]
            kept = [s for s in sides if s is not None]
            return exp.and_(*kept) if kept else None
        case exp.Or():
            sides = [pushed(s, types, dialect) for s in (predicate.left, predicate.right)]
            return None if None in sides else exp.or_(*sides)
        case exp.GTE(this=exp.Column()):
            kind = family(types.get(predicate.this.name.casefold(), ""))
            return _lower_bound(predicate.this, predicate.expression, kind, dialect)
        case exp.GT(this=exp.Length(this=exp.Column())):
            column = predicate.this.this
            return _longer(
                column, predicate.expression, family(types.get(column.name.casefold(), "")), dialect
            )
    return predicate.copy() if _alike(predicate, types, dialect) else None


_KINDS = {
    exp.DType.DATE: "date",
    exp.DType.TIMESTAMPTZ: "timestamp",
    exp.DType.TIMESTAMPNTZ: "timestamp_ntz",
    exp.DType.DECIMAL: "decimal",
}


def _literal(tree: exp.Expr) -> tuple[str, str] | None:
    """The kind and the text of a literal that every database would read as we do."""
    sign = "-" if isinstance(tree, exp.Neg) else ""
    plain = tree.this if sign else tree
    if (
        isinstance(plain, exp.Cast)
        and isinstance(plain.this, exp.Literal)
        and plain.this.is_string
        and not sign
    ):
        kind = _KINDS.get(plain.to.this, "")
        return (kind, plain.this.this) if kind and well_formed(plain.this.this, kind) else None
    if not isinstance(plain, exp.Literal) or (plain.is_string and sign):
        return None
    if plain.is_string:
        return "text", plain.this
    # with an exponent it is a double, and Spark compares doubles
    return ("number", sign + plain.this) if well_formed(plain.this, "decimal") else None


def _lower_bound(column: exp.Column, value: exp.Expr, kind: str, dialect: str) -> exp.Expr | None:
    """`column >= value`, or less than that, as a database can say it."""
    literal = _literal(value)
    if literal is None or (
        literal[0] != kind and (literal[0] != "number" or kind not in ("integer", "decimal"))
    ):
        return None
    match kind, dialect:
        case (("integer" | "decimal"), _):
            number = Decimal(literal[1])
            return _at_least(
                column,
                lit(
                    _kept_as_double(number) if (kind, dialect) == ("decimal", "sqlite") else number
                ),
            )
        case "text", "postgres":
            return _at_least(exp.Collate(this=column.copy(), expression=ident("C")), value)
        case "text", "sqlite":
            return _at_least(
                exp.Collate(this=_text(column), expression=exp.Var(this="BINARY")), value
            )
        case (("date" | "timestamp" | "timestamp_ntz"), "sqlite"):
            return _sqlite_day(column, from_text(literal[1], kind), kind)
        case ("date", _) | (("timestamp" | "timestamp_ntz"), "postgres"):
            return _at_least(column, lit(from_text(literal[1], kind)))
    return None  # collations and time zones of other databases are not known


def _longer(column: exp.Column, length: exp.Expr, kind: str, dialect: str) -> exp.Expr | None:
    """`length(column) > length` of a text."""
    if kind != "text" or dialect not in ("postgres", "sqlite"):
        return None
    return exp.GT(this=exp.Length(this=_text(column)), expression=length.copy())


def _at_least(column: exp.Expr, value: exp.Expr) -> exp.Expr:
    return exp.GTE(this=column.copy(), expression=value.copy())


def _kept_as_double(number: Decimal) -> Decimal:
    """SQLite keeps a decimal as a double, of which 15 digits arrive here: the one kept may be a little smaller."""
    return number - abs(number).scaleb(-14)


def _sqlite_day(column: exp.Column, low: Value, kind: str) -> exp.Expr | None:
    """SQLite keeps times as text of any separator, precision and zone: only the day is compared, and one earlier."""
    day = converted(low, "date")
    assert isinstance(day, date)
    if kind != "date":
        if day == date.min:
            return None
        day -= timedelta(days=1)
    text = exp.Trim(this=_text(column))
    odd = exp.Glob(this=text.copy(), expression=lit("[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*"))
    # what is no day at all is kept, so that its error is told here
    return exp.Paren(this=exp.or_(_at_least(text, lit(day.isoformat())), exp.Not(this=odd)))


def _text(column: exp.Column) -> exp.Expr:
    return exp.Cast(this=column.copy(), to=exp.DataType.build("text"))


def _alike(predicate: exp.Expr, types: dict[str, str], dialect: str) -> bool:
    """Does a database find a comparison true wherever Spark does?"""
    match predicate:
        case exp.Is(this=exp.Column(), expression=exp.Null()):
            return predicate.this.name.casefold() in types
        case exp.Not(this=exp.Is(this=exp.Column(), expression=exp.Null())):
            return predicate.this.this.name.casefold() in types
        case exp.EQ() | exp.GT() | exp.GTE() | exp.LT() | exp.LTE():
            ranges = not isinstance(predicate, exp.EQ)
            return _comparable(predicate.left, predicate.right, types, dialect, ranges=ranges)
        case exp.In(this=exp.Column()) if not predicate.args.get("query"):
            return all(
                _comparable(predicate.this, v, types, dialect, ranges=False)
                for v in predicate.expressions
            )
    return False


def _comparable(
    left: exp.Expr, right: exp.Expr, types: dict[str, str], dialect: str, *, ranges: bool
) -> bool:
    """A column against a literal of its own kind; text only for equality, because collations order differently."""
    column, value = (left, right) if isinstance(left, exp.Column) else (right, left)
    if not isinstance(column, exp.Column):
        return False
    kind = family(types.get(column.name.casefold(), ""))
    if isinstance(value, exp.Neg):
        value = value.this
    if isinstance(value, exp.Literal):
        # SQLite compares doubles where the text of 15 digits arrives here
        exact = kind == "integer" or (kind == "decimal" and dialect != "sqlite")
        return (exact and not value.is_string) or (
            kind == "text" and value.is_string and not ranges
        )
    return (
        kind == "date"
        and isinstance(value, exp.Cast)
        and value.is_type("date")
        and isinstance(value.this, exp.Literal)
    )


def _tree(sql: object) -> exp.Expr | None:
    if not isinstance(sql, str):
        return None
    try:
        return parse(sql, "")
    except TransformError:  # reported where the SQL is used
        return None


def _stars(tree: exp.Expr) -> bool:
    return any(not s.find_ancestor(exp.Count) for s in tree.find_all(exp.Star))
