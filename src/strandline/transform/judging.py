"""What each check of a `validate` step asks of a row, as a condition that is true where the row fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any

from sqlglot import exp

from strandline.config.expectations import (
    AcceptedValuesCheck,
    Expectation,
    NotNullCheck,
    RangeCheck,
    RegexCheck,
    RelationshipCheck,
    SqlCheck,
    UniqueCheck,
    ValidateConfig,
)
from strandline.errors import TransformError, located
from strandline.sql.expr import (
    OUTER,
    all_of,
    any_of,
    case,
    cast,
    col,
    eq,
    is_null,
    lit,
    named,
    negate,
    select,
    table,
)
from strandline.sql.portable import family
from strandline.strategy.changes import is_true
from strandline.transform.registry import EngineContext
from strandline.types import Column, Relation

_NUMBERS = ("integer", "decimal", "float")


@dataclass(frozen=True)
class Part:
    """One judgement over rows: of a check of several columns, one for each."""

    index: int  # of the check in the step
    check: Expectation
    label: str
    fails: exp.Expr  # over a row, never NULL
    columns: tuple[str, ...] = ()

    @property
    def aside(self) -> bool:
        return self.check.severity == "quarantine"


def parts_of(
    context: EngineContext, params: ValidateConfig, joins: list[tuple[Relation, exp.Expr]]
) -> Iterator[Part]:
    """The judgements over rows, in their order."""
    for index, check in enumerate(params.expectations):
        if not check.ROWS:
            continue
        with located("transform", "steps", context.index, "params", "expectations", index):
            asked = asked_by(context, check)
            for names in check.judged:
                columns = [context.column(name) for name in names]
                fails = _fails(context, check, columns, asked, joins)
                if asked is not None and not isinstance(check, UniqueCheck):
                    fails = all_of([asked.copy(), exp.Paren(this=fails)])
                yield Part(
                    index, check, label_of(check, names), fails, tuple(c.name for c in columns)
                )


def label_of(check: Expectation, names: Sequence[str]) -> str:
    name = check.name or str(getattr(check, "check", ""))
    return f"{name}({', '.join(names)})" if names else name


def asked_by(context: EngineContext, check: Expectation) -> exp.Expr | None:
    """The condition of `where`; None when all rows are asked."""
    return is_true(exp.Paren(this=context.expression(check.where))) if check.where else None


def _fails(
    context: EngineContext,
    check: Expectation,
    columns: Sequence[Column],
    asked: exp.Expr | None,
    joins: list[tuple[Relation, exp.Expr]],
) -> exp.Expr:
    """Does a row fail? Never NULL."""
    match check:
        case SqlCheck():
            return negate(is_true(exp.Paren(this=context.expression(check.expression))))
        case UniqueCheck():
            return _doubled(columns, asked)
    (column,) = columns
    value = col(column.name, OUTER)
    if isinstance(check, NotNullCheck):
        return is_null(value)
    match check:
        case RelationshipCheck():
            wrong = _missing(context, check, column, joins)
        case AcceptedValuesCheck():
            known = [_literal(context, column, v) for v in check.values]
            wrong = negate(exp.In(this=value.copy(), expressions=known))
        case RangeCheck():
            wrong = _outside(context, check, column)
        case RegexCheck():
            wrong = negate(context.expression(_matching(context, column, check.pattern)))
        case _:
            raise TransformError(f"{context.where}: there is no check `{type(check).__name__}`")
    return all_of([negate(is_null(value)), exp.Paren(this=wrong)])


def _doubled(columns: Sequence[Column], asked: exp.Expr | None) -> exp.Expr:
    """Is there another row with the same values? A NULL equals nothing, and rows that are not asked do not count."""
    whole = [negate(is_null(col(c.name, OUTER))) for c in columns]
    counts = all_of([*whole, *([asked] if asked is not None else [])])
    one = case((counts, exp.Literal.number(1)), default=exp.Literal.number(0))
    rows = exp.Window(this=exp.Sum(this=one), partition_by=[col(c.name, OUTER) for c in columns])
    return all_of([counts.copy(), exp.GT(this=rows, expression=exp.Literal.number(1))])


def _missing(
    context: EngineContext,
    check: RelationshipCheck,
    column: Column,
    joins: list[tuple[Relation, exp.Expr]],
) -> exp.Expr:
    """Does the other table lack the value? Its values are joined, each once."""
    assert context.lake is not None, "a node has its lake"
    other = context.lake(check.connection, check.table)
    label, name = f"{check.connection}.{check.table}", check.field or check.column
    key = replace(context, rows=other, where=f"{context.where}, {label}").column(name)
    kinds = {"integer" if family(c.type) in _NUMBERS else family(c.type) for c in (column, key)}
    if len(kinds) > 1:
        raise TransformError(
            f"{context.where}: `{column.name}` is {column.type}, and `{name}` of {label} is {key.type}",
            hint="cast one of them before they are compared",
        )
    alias = f"_strandline_key_{len(joins)}"
    values = select(named(col(key.name), alias)).distinct().from_(table(other.name))
    known = context.engine.query(values.where(negate(is_null(col(key.name)))))
    joins.append((known, eq(col(column.name, OUTER), col(alias))))
    return is_null(col(alias))


def _outside(context: EngineContext, check: RangeCheck, column: Column) -> exp.Expr:
    value, parts = col(column.name, OUTER), list[exp.Expr]()
    if check.min is not None:
        parts.append(exp.LT(this=value.copy(), expression=_literal(context, column, check.min)))
    if check.max is not None:
        parts.append(exp.GT(this=value.copy(), expression=_literal(context, column, check.max)))
    if family(column.type) == "float":
        parts.append(eq(value.copy(), cast(lit("NaN"), column.type)))
    return any_of(parts)


def _matching(context: EngineContext, column: Column, pattern: str) -> str:
    """The expression as a user would write it: what a pattern means is told by `rlike`."""
    if family(column.type) != "text":
        raise TransformError(
            f"{context.where}: `{column.name}` is {column.type}, and a pattern is for texts",
            hint="use range or accepted_values, or check it before it is cast",
        )
    text = exp.RegexpLike(this=col(column.name), expression=exp.Literal.string(pattern))
    return text.sql(dialect="spark")


def _literal(context: EngineContext, column: Column, value: Any) -> exp.Expr:
    """A value of YAML as one of the column's kind; a number keeps all its digits."""
    kind, text = family(column.type), value.isoformat() if isinstance(value, date) else str(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "text":
        return lit(text.lower() if isinstance(value, bool) else text)
    if kind == "float" and number:
        return cast(lit(text), column.type)
    if kind in _NUMBERS and number:
        return exp.Literal.number(f"{value:f}" if "e" in text else text)
    if kind == "boolean" and isinstance(value, bool):
        return exp.Boolean(this=value)
    if kind in ("date", "timestamp", "timestamp_ntz") and (moment := _moment(kind, text)):
        return lit(moment)
    raise TransformError(
        f"{context.where}: `{column.name}` is {column.type}, and cannot be compared with {value!r}",
        hint="give a value of its type: a number, true or false, a text, or a date in quotes",
    )


def _moment(kind: str, text: str) -> date | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if kind == "date":
        return found.date()
    if kind == "timestamp_ntz":
        return found.replace(tzinfo=None)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
