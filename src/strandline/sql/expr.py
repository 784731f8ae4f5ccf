"""Small builders for sqlglot trees: identifiers always quoted, values always literals of the tree."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

from sqlglot import exp

from strandline.types import Relation, Schema

TRUE = exp.true()
OUTER = "_strandline_outer"
"""The rows around a correlated subquery: inside it Spark would take a short alias for a column of that name."""
Literal = bool | int | Decimal | str | date | datetime | None


def ident(name: str) -> exp.Identifier:
    return exp.to_identifier(name, quoted=True)


def col(name: str, table: str | None = None) -> exp.Column:
    """A quoted column, of `table` when given."""
    return exp.Column(this=ident(name), table=ident(table) if table else None)


def named(tree: exp.Expr, name: str) -> exp.Alias:
    return exp.Alias(this=tree, alias=ident(name))


def lit(value: Literal) -> exp.Expr:
    """A Python value as a typed literal; a datetime with a zone is an instant, one without is a timestamp_ntz."""
    match value:
        case None:
            return exp.null()
        case bool():
            return exp.Boolean(this=value)
        case int() | Decimal():
            return exp.Literal.number(f"{value:f}" if isinstance(value, Decimal) else str(value))
        case str():
            return exp.Literal.string(value)
        case datetime(tzinfo=None):
            return cast(exp.Literal.string(value.isoformat(" ", "microseconds")), "timestamp_ntz")
        case datetime():
            text = value.astimezone(UTC).isoformat(" ", "microseconds")
            return cast(exp.Literal.string(text), "timestamp")
        case date():
            return cast(exp.Literal.string(value.isoformat()), "date")


def cast(tree: exp.Expr, type_: str) -> exp.Cast:
    """A strict cast to a type in Spark's words."""
    return exp.Cast(this=tree, to=data_type(type_))


def data_type(type_: str) -> exp.DataType:
    return _built(type_).copy()


@functools.lru_cache(maxsize=1000)
def _built(type_: str) -> exp.DataType:
    """Parsing a type costs far more than copying one, and a node names hundreds."""
    return exp.DataType.build(type_, dialect="spark")


def all_of(conditions: Iterable[exp.Expr]) -> exp.Expr:
    parts = list(conditions)
    return exp.and_(*parts, copy=False) if parts else exp.true()


def any_of(conditions: Iterable[exp.Expr]) -> exp.Expr:
    parts = list(conditions)
    return exp.or_(*parts, copy=False) if parts else exp.false()


def same(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """NULL-safe equality."""
    return exp.NullSafeEQ(this=left, expression=right)


def same_keys(keys: Sequence[str], left: str, right: str) -> exp.Expr:
    return all_of(same(col(k, left), col(k, right)) for k in keys)


def eq(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    return exp.EQ(this=left, expression=right)


def one_of(tree: exp.Expr, values: Iterable[str]) -> exp.Expr:
    return exp.In(this=tree, expressions=[lit(v) for v in values])


def is_null(tree: exp.Expr) -> exp.Expr:
    return exp.Is(this=tree, expression=exp.null())


def negate(tree: exp.Expr) -> exp.Expr:
    return exp.Not(this=exp.Paren(this=tree))


def case(*branches: tuple[exp.Expr, exp.Expr], default: exp.Expr) -> exp.Case:
    return exp.Case(ifs=[exp.If(this=when, true=then) for when, then in branches], default=default)


def call(function: str, *args: exp.Expr) -> exp.Expr:
    """A function known by the same name to both engines."""
    return exp.Anonymous(this=function, expressions=list(args))


def concat(*parts: exp.Expr) -> exp.Expr:
    tree = parts[0]
    for part in parts[1:]:
        tree = exp.DPipe(this=tree, expression=part, safe=False)
    return tree


def table(name: str, alias: str | None = None) -> exp.Table:
    return exp.Table(this=ident(name), alias=exp.TableAlias(this=ident(alias)) if alias else None)


def select(*columns: exp.Expr) -> exp.Select:
    return exp.Select(expressions=list(columns))


def rows_of(relation: Relation, schema: Schema | None = None) -> exp.Select:
    """All columns of a relation, by name."""
    return select(*(col(n) for n in (schema or relation.schema).names)).from_(
        table(relation.name), copy=False
    )


def over(function: exp.Expr, keys: Sequence[str], order: Sequence[exp.Ordered] = ()) -> exp.Window:
    return exp.Window(
        this=function,
        partition_by=[col(k) for k in keys],
        order=exp.Order(expressions=list(order)) if order else None,
    )


def ordered(tree: exp.Expr, *, desc: bool = False, nulls_first: bool | None = None) -> exp.Ordered:
    """An ordering with NULLs placed explicitly: engines differ in their defaults."""
    return exp.Ordered(
        this=tree, desc=desc, nulls_first=(not desc) if nulls_first is None else nulls_first
    )


def count_where(condition: exp.Expr) -> exp.Expr:
    """How many rows fulfil a condition; 0 for none."""
    counted = exp.Sum(this=case((condition, exp.Literal.number(1)), default=exp.Literal.number(0)))
    return cast(exp.Coalesce(this=counted, expressions=[exp.Literal.number(0)]), "bigint")
