"""Which SQL can follow its sources change by change, and how.

Projections, filters, inner and left equi-joins and GROUP BY: a row of the result is made of at most one row of each
source (a group: of several such). So a row of the result can only change when a row it is made of came or went, or,
at a left join, when a partner came or went. With one source replaced by its rows that went, over the others as they
were, and by its rows that came, over the others as they are, the query's keys name every row that may have changed.
They may name too many: what is computed again and found unchanged costs a comparison, nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from strandline.sql.expr import all_of, ident, named, select
from strandline.sql.tested import deterministic
from strandline.types import Schema

_CLAUSES = {"expressions", "from_", "joins", "where", "group", "having", "distinct", "kind", "hint"}


class NotIncremental(Exception):
    """Why a query cannot be followed change by change."""


@dataclass(frozen=True)
class _Part:
    """One source of the query: its name in the SQL, its alias in the configuration, how it is joined."""

    name: str
    alias: str
    join: exp.Join | None
    optional: bool


@dataclass(frozen=True)
class Followed:
    """A query that can be followed."""

    tree: exp.Select
    parts: Sequence[_Part]
    keys: Mapping[str, exp.Expr]  # the expression of each write key
    where: Sequence[exp.Expr]  # the conditions that hold whatever optional partners say
    row_by_row: bool  # is each row of the result made of one row of each source?

    def keys_of(self, alias: str) -> exp.Select:
        """The write keys of all rows that the rows of one source take part in."""
        tree = select(*(named(e.copy(), k) for k, e in self.keys.items())).distinct()
        tree.set("from_", self.tree.args["from_"].copy())
        for part in self.parts[1:]:
            assert part.join is not None
            join = part.join.copy()
            join.set("side", None if part.alias == alias or not part.optional else "LEFT")
            join.set("kind", None)
            tree.append("joins", join)
        return tree.where(all_of(c.copy() for c in self.where)) if self.where else tree


def restless(tree: exp.Expr) -> bool:
    """Does the clock decide which rows there are? Then they change while all sources stay the same."""
    inner = tree.copy()
    for query in [inner, *inner.find_all(exp.Select)]:
        if isinstance(query, exp.Select):
            query.set("expressions", [exp.Star()])
    return not deterministic(inner.sql(dialect="spark"))


def follow(
    tree: exp.Expr, keys: Sequence[str], schemas: Mapping[str, Schema], lookups: Sequence[str] = ()
) -> Followed:
    """The query, if it can be followed; raises `NotIncremental` with the reason otherwise.

    `schemas` holds the columns of each source by its alias; `lookups` are those whose changes count for nothing.
    """
    if not isinstance(tree, exp.Select):
        raise NotIncremental(f"it is a {tree.key.upper()}")
    _refuse_clauses(tree)
    parts = list(_parts(tree, schemas, {a.casefold() for a in lookups}))
    names = _Names(parts, schemas, _using(parts))
    _refuse_joins(parts, names, {a.casefold() for a in lookups})
    optional = {p.name for p in parts if p.optional}
    found = {key: _key(tree, key, names) for key in keys}
    for key, expression in found.items():
        if names.of(expression) & optional:
            raise NotIncremental(f"the write key `{key}` comes from the optional side of a join")
        if not deterministic(expression.sql(dialect="spark")):
            raise NotIncremental(f"the write key `{key}` is another one each time it is asked for")
    where = tree.args.get("where")
    kept = [c for c in _conjuncts(where.this if where else None) if not names.of(c) & optional]
    return Followed(
        tree, parts, found, kept, tree.args.get("group") is None and not _aggregates(tree)
    )


def _refuse_clauses(tree: exp.Select) -> None:
    other = [key for key, value in tree.args.items() if value and key not in _CLAUSES]
    if other:
        raise NotIncremental(f"it has {other[0].rstrip('_').upper()}")
    if any(q is not tree for q in tree.find_all(exp.Query)):
        raise NotIncremental("it holds a query in a query")
    if tree.find(exp.Window):
        raise NotIncremental("it has a window function")
    if tree.find(exp.Lateral, exp.Explode, exp.Unnest, exp.Inline, exp.Posexplode):
        raise NotIncremental("it makes several rows of one")
    group = tree.args.get("group")
    if group and any(group.args.get(k) for k in ("rollup", "cube", "grouping_sets", "all")):
        raise NotIncremental("it groups in more than one way")
    if not group and _aggregates(tree):
        raise NotIncremental("it sums up everything into one row")
    if restless(tree):
        raise NotIncremental("the clock decides which rows it gives")


def _aggregates(tree: exp.Select) -> bool:
    return any(e.find(exp.AggFunc) for e in tree.expressions) or bool(tree.args.get("having"))


def _parts(tree: exp.Select, schemas: Mapping[str, Schema], lookups: set[str]) -> Iterator[_Part]:
    known = {alias.casefold(): alias for alias in schemas}
    seen: set[str] = set()
    from_ = tree.args.get("from_")
    for join in [None, *(tree.args.get("joins") or [])]:
        place = join.this if join is not None else from_.this if from_ else None
        if (
            not isinstance(place, exp.Table)
            or place.args.get("joins")
            or place.name.casefold() not in known
        ):
            raise NotIncremental("it reads something else than its sources, side by side")
        alias = known[place.name.casefold()]
        if alias in seen:
            raise NotIncremental(f"it reads `{alias}` twice")
        seen.add(alias)
        optional = join is not None and (join.side.upper() == "LEFT" or alias.casefold() in lookups)
        yield _Part(place.alias_or_name.casefold(), alias, join, optional)


def _refuse_joins(parts: Sequence[_Part], names: _Names, lookups: set[str]) -> None:
    if parts[0].alias.casefold() in lookups:
        raise NotIncremental(f"it starts from the lookup `{parts[0].alias}`")
    optional = {p.name for p in parts if p.optional}
    asked = {p.name for p in parts if p.alias.casefold() in lookups}
    for index, part in enumerate(parts[1:], start=1):
        join = part.join
        assert join is not None
        if (
            join.side.upper() not in ("", "LEFT")
            or join.kind.upper() not in ("", "INNER", "OUTER")
            or join.method
        ):
            raise NotIncremental(
                f"it joins `{part.alias}` by {join.method or join.side or ''} {join.kind}".strip()
            )
        on = join.args.get("on")
        if not join.args.get("using") and not _equal(on, part.name, names):
            raise NotIncremental(f"`{part.alias}` is joined without an equality")
        others = (
            names.of(on) if on is not None else names.having(_using([part]), parts[:index])
        ) - {part.name}
        if others & asked or (not part.optional and others & optional):
            raise NotIncremental(f"`{part.alias}` is joined to the optional side of another join")


def _equal(on: exp.Expr | None, name: str, names: _Names) -> bool:
    """Is there a condition by which this source equals others?"""
    for condition in _conjuncts(on):
        bare = condition.unnest()
        if isinstance(bare, exp.EQ | exp.NullSafeEQ):
            left, right = names.of(bare.left), names.of(bare.right)
            if (left == {name} and right and name not in right) or (
                right == {name} and left and name not in left
            ):
                return True
    return False


def _conjuncts(tree: exp.Expr | None) -> list[exp.Expr]:
    """Conditions that all must hold."""
    if tree is None:
        return []
    bare = tree.unnest()
    return list(bare.flatten()) if isinstance(bare, exp.And) else [bare]


def _using(parts: Sequence[_Part]) -> set[str]:
    return {
        u.name.casefold()
        for p in parts
        if p.join is not None
        for u in p.join.args.get("using") or []
    }


class _Names:
    """Which source a column belongs to."""

    def __init__(
        self, parts: Sequence[_Part], schemas: Mapping[str, Schema], using: set[str]
    ) -> None:
        self.schemas = {p.name: schemas[p.alias] for p in parts}
        self.using = using

    def of(self, tree: exp.Expr) -> set[str]:
        """The sources that an expression looks at."""
        return {self.owner(c) for c in tree.find_all(exp.Column)}

    def having(self, columns: set[str], parts: Sequence[_Part]) -> set[str]:
        """Those of some sources that have one of these columns."""
        return {p.name for p in parts if any(c in self.schemas[p.name] for c in columns)}

    def owner(self, column: exp.Column) -> str:
        if column.table:
            if column.table.casefold() in self.schemas:
                return column.table.casefold()
            raise NotIncremental(f"`{column.sql(dialect='spark')}` is none of its sources' columns")
        there = [name for name, schema in self.schemas.items() if column.name in schema]
        if len(there) == 1 or (there and column.name.casefold() in self.using):
            return there[0]
        raise NotIncremental(f"nobody can tell whose column `{column.name}` is")


def _key(tree: exp.Select, key: str, names: _Names) -> exp.Expr:
    """The expression that the query selects under a name."""
    for projection in tree.expressions:
        if projection.is_star:
            continue
        if projection.alias_or_name.casefold() == key.casefold():
            found: exp.Expr = projection.unalias()
            if found.find(exp.AggFunc):
                raise NotIncremental(f"the write key `{key}` is summed up")
            return found
    for projection in tree.expressions:
        if projection.is_star and not [
            s for s in projection.find_all(exp.Star) if s.args.get("except_")
        ]:
            table = projection.table.casefold() if isinstance(projection, exp.Column) else ""
            owners = [
                n for n, schema in names.schemas.items() if key in schema and table in ("", n)
            ]
            if len(owners) == 1 and (column := names.schemas[owners[0]].get(key)):
                return exp.Column(this=ident(column.name), table=exp.to_identifier(owners[0]))
    raise NotIncremental(f"nobody can tell where the write key `{key}` comes from")


def plain(expression: exp.Expr) -> str | None:
    """The column that an expression is, unchanged; None for anything else."""
    bare = expression.unnest()
    return bare.name if isinstance(bare, exp.Column) else None
