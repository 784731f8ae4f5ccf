"""Functions under the names that their writer gave them: the parser knows one name for several of them."""

from __future__ import annotations

import re

from sqlglot import exp

_WRITTEN = "written"


def remember(tree: exp.Expr, sql: str) -> exp.Expr:
    """The tree, each function of it with its name as it stands in the SQL."""
    for node in tree.find_all(exp.Func):
        if "start" in node.meta:
            node.meta[_WRITTEN] = sql[node.meta["start"] : node.meta["end"] + 1]
    return tree


def written_name(node: exp.Expr) -> str | None:
    """The name of a function as it stands in the SQL, where that is known."""
    name: str | None = node.meta.get(_WRITTEN)
    return name


def spoken(node: exp.Expr) -> str:
    """A part of a query as its writer knows it: `the function date_format()`, or its text."""
    text = node.sql(dialect="spark").strip()
    if isinstance(node, exp.Func):
        name = node.meta.get(_WRITTEN) or next(iter(re.findall(r"^(\w+)\(", text.lower())), None)
        if name:
            return f"the function {name}()"
    return f"`{text}`"
