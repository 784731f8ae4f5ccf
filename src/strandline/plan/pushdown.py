"""What a source need not send: columns nobody asks for, and rows a leading filter would drop anyway.

A pushed predicate is only ever a hint. The filter is evaluated again by the engine, so a predicate may be pushed
when the database keeps *at least* the rows that the engine would keep.
"""

from __future__ import annotations

from sqlglot import exp

from strandline.config.model import NodeConfig
from strandline.errors import TransformError
from strandline.sql.portable import family, parse
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
    """The conditions of the leading filters, one by one."""
    found: list[exp.Expr] = []
    for step in node.transform.steps if node.transform else []:
        if step.operation not in ("filter", "select", "drop"):
            break
        tree = _tree(step.params.get("condition")) if step.operation == "filter" else None
        if tree is not None:
            found += list(tree.flatten()) if isinstance(tree, exp.And) else [tree]
    return found


def pushable(predicate: exp.Expr, types: dict[str, str]) -> bool:
    """Does every database keep at least the rows for which Spark finds this true?"""
    match predicate:
        case exp.Paren():
            return pushable(predicate.this, types)
        case exp.And() | exp.Or():
            return pushable(predicate.left, types) and pushable(predicate.right, types)
        case exp.Is(this=exp.Column(), expression=exp.Null()):
            return True
        case exp.Not(this=exp.Is(this=exp.Column(), expression=exp.Null())):
            return True
        case exp.EQ() | exp.GT() | exp.GTE() | exp.LT() | exp.LTE():
            return _comparable(predicate.left, predicate.right, types, ranges=not isinstance(predicate, exp.EQ))
        case exp.In(this=exp.Column()) if not predicate.args.get("query"):
            return all(_comparable(predicate.this, v, types, ranges=False) for v in predicate.expressions)
    return False


def _comparable(left: exp.Expr, right: exp.Expr, types: dict[str, str], *, ranges: bool) -> bool:
    """A column against a literal of its own kind; text only for equality, because collations order differently."""
    column, value = (left, right) if isinstance(left, exp.Column) else (right, left)
    if not isinstance(column, exp.Column):
        return False
    kind = family(types.get(column.name.casefold(), ""))
    if isinstance(value, exp.Neg):
        value = value.this
    if isinstance(value, exp.Literal):
        numeric = kind in ("integer", "decimal") and not value.is_string
        return numeric or (kind == "text" and value.is_string and not ranges)
    return (
        kind == "date" and isinstance(value, exp.Cast) and value.is_type("date") and isinstance(value.this, exp.Literal)
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
