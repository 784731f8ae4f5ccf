"""Users' SQL over named rows: aliases become the engine's names; what is not there is an error that says so."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from sqlglot import exp

from strandline.config.queries import unknown_qualifiers
from strandline.errors import TransformError, UnknownColumn, did_you_mean
from strandline.sql.expr import ident
from strandline.sql.tested import refuse_untested
from strandline.sql.typing import spark_types
from strandline.types import Relation

if TYPE_CHECKING:
    from strandline.engine.base import Engine


def run_sql(tree: exp.Expr, sources: Mapping[str, Relation], where: str) -> exp.Query:
    """The query with each alias replaced by the relation it stands for."""
    if not isinstance(tree, exp.Query):
        raise TransformError(f"{where}: expected one SELECT, found: {tree.key.upper()}")
    by_fold = {alias.casefold(): rows for alias, rows in sources.items()}
    tree = tree.copy()
    ctes = {cte.alias.casefold() for cte in tree.find_all(exp.CTE)}
    for node in list(tree.find_all(exp.Table)):
        name = node.name.casefold()
        if name in ctes and not node.args.get("db"):
            continue
        if name not in by_fold or node.args.get("db"):
            raise TransformError(
                f"{where}: `{node.sql(dialect='spark')}` is not among the sources: {', '.join(sources)}",
                hint=did_you_mean(node.name, sources) or "add it under sources: with that alias",
            )
        if not node.alias:
            node.set("alias", exp.TableAlias(this=ident(node.name)))
        node.set("this", ident(by_fold[name].name))
    _check_columns(tree, by_fold, where)
    for mistake in unknown_qualifiers(
        tree, sources, (n for rows in sources.values() for n in rows.schema.names)
    ):
        raise TransformError(f"{where}: {mistake.message}", hint=mistake.hint)
    return tree


def run_query(
    engine: Engine,
    tree: exp.Expr,
    sources: Mapping[str, Relation],
    where: str,
    now: datetime | None = None,
) -> Relation:
    """The rows of a user's query over named rows, with Spark's types on either engine; `now` is the run's instant."""
    if engine.dialect != "spark":
        refuse_untested(tree, where)
    query = run_sql(tree, sources, where)
    try:
        return engine.query(
            query if engine.dialect == "spark" else spark_types(query, sources.values(), where, now)
        )
    except (
        UnknownColumn
    ) as e:  # an engine names a few columns that are near: here are all of the sources'
        raise UnknownColumn(
            e.column, {alias: r.schema.names for alias, r in sources.items()}, where=where
        ) from e


def _check_columns(tree: exp.Query, sources: Mapping[str, Relation], where: str) -> None:
    """Columns qualified by an alias of a source must exist in it."""
    names: dict[str, list[Relation]] = {}
    by_name = {r.name: r for r in sources.values()}
    for node in tree.find_all(exp.Table):
        if node.name in by_name:
            names.setdefault(node.alias_or_name.casefold(), []).append(by_name[node.name])
    for column in tree.find_all(exp.Column):
        known = names.get(column.table.casefold(), [])
        if (
            len(known) == 1
            and not isinstance(column.this, exp.Star)
            and column.name not in known[0].schema
        ):
            raise UnknownColumn(
                column.name, known[0].schema.names, where=f"{where}, {column.table}"
            )


def mentioned(tree: exp.Expr | None) -> set[str]:
    """The names of all columns a query spells out."""
    return {c.name.casefold() for c in tree.find_all(exp.Column)} if tree is not None else set()
