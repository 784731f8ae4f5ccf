"""Bounds of a limited read: what an expression of a watermark does to the last value."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

LAST_VALUE = "${last_value}"
_SHIFTS = (exp.TsOrDsAdd, exp.DateAdd, exp.TimestampAdd, exp.AddMonths)


def raises_bound(expression: str) -> bool:
    """Does it move the lower bound above the last value? Only when that is certain."""
    try:
        tree = parse_one(expression.replace(LAST_VALUE, "last_value"), dialect="spark")
    except SqlglotError:
        return False
    signs = set(_shifts(tree))
    return 1 in signs and -1 not in signs


def _shifts(tree: exp.Expr) -> Iterator[int]:
    for node in tree.find_all(exp.Add, exp.Sub, *_SHIFTS):
        base, amount = node.this, node.args.get("expression")
        if isinstance(node, exp.Add) and _holds_last(amount):
            base, amount = amount, base
        if _holds_last(base) and amount is not None:
            yield _sign(amount) * (-1 if isinstance(node, exp.Sub) else 1)


def _holds_last(tree: exp.Expr | None) -> bool:
    return tree is not None and any(n.name == "last_value" for n in tree.find_all(exp.Literal, exp.Column))


def _sign(amount: exp.Expr) -> int:
    """1, 0 or -1 of a constant; 0 when it is none."""
    if isinstance(amount, exp.Neg):
        return -_sign(amount.this)
    if isinstance(amount, exp.Mul):
        return _sign(amount.this) * _sign(amount.expression)
    if isinstance(amount, exp.Paren | exp.Interval):
        return _sign(amount.this)
    if isinstance(amount, exp.Literal):
        text = str(amount.this).strip()
        return 0 if not any(c in "123456789" for c in text) else -1 if text.startswith("-") else 1
    return 0
