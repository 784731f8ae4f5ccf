"""Spark's result types for SQL that another engine runs: DuckDB has its own ideas about sums, averages and decimals.

Every expression of a user's SQL gets the type that Spark gives it, from the columns up; where DuckDB would give
another type or another value, the expression is rewritten. What cannot be typed and needs to be is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from sqlglot import exp
from sqlglot.optimizer.scope import Scope, traverse_scope

from strandline.errors import TransformError
from strandline.sql.expr import call, cast, lit
from strandline.sql.function_table import FUNCTIONS
from strandline.sql.functions import Call, Unsuited, answered, around
from strandline.sql.numbers import bounded_decimal, common_type, digits, divided, rounded_float
from strandline.sql.portable import checked_cast, family
from strandline.sql.spoken import written_name
from strandline.types import Relation, Schema

_BOOLEAN = (exp.Predicate, exp.Connector, exp.Not, exp.Boolean)
_TEXT = (exp.Concat, exp.DPipe, exp.Trim, exp.Substring, exp.Left, exp.Right)
_INT = (
    exp.Year, exp.Month, exp.Day, exp.DayOfMonth, exp.Quarter, exp.Hour, exp.Minute, exp.Extract, exp.DateDiff,
    exp.RowNumber, exp.Rank, exp.DenseRank,
)  # fmt: skip
_DATE = (exp.TsOrDsToDate, exp.TsOrDsAdd, exp.DateAdd, exp.DateSub, exp.DateTrunc, exp.LastDay)
_SAME = (
    exp.Paren,
    exp.Neg,
    exp.Abs,
    exp.Min,
    exp.Max,
    exp.Nullif,
    exp.Lag,
    exp.Lead,
    exp.FirstValue,
    exp.LastValue,
)
_CALENDAR = ("YEAR", "MONTH", "WEEK", "DAY", "QUARTER")

Types = dict[str, str]  # by folded name


def spark_types(
    tree: exp.Query, sources: Iterable[Relation], where: str, now: datetime | None = None
) -> exp.Query:
    """The query with Spark's types; tables go by the relations' names, and the clock shows `now`."""
    schemas = {r.name: _types(r.schema) for r in sources}
    outputs: dict[int, Types] = {}
    for scope in traverse_scope(tree):
        typist = _Typist(_visible(scope, schemas, outputs), outputs, where, now)
        outputs[id(scope.expression)] = typist.query(scope.expression)
    return tree


def spark_expression(
    tree: exp.Expr, schemas: Mapping[str, Schema], where: str, now: datetime | None = None
) -> exp.Expr:
    """An expression over the columns of some named schemas, with Spark's types."""
    holder = exp.Paren(this=tree)  # so that the tree itself can be replaced
    _Typist({name: _types(schema) for name, schema in schemas.items()}, {}, where, now).visit(tree)
    rewritten: exp.Expr = holder.this
    return rewritten


def _types(schema: Schema) -> Types:
    return {c.fold: c.type for c in schema}


def _visible(
    scope: Scope | None, schemas: Mapping[str, Types], outputs: Mapping[int, Types]
) -> dict[str, Types]:
    """The columns of every source that the scope or one around it can name."""
    if scope is None:
        return {}
    found = _visible(scope.parent, schemas, outputs) if scope.is_correlated_subquery else {}
    for name, source in scope.sources.items():
        inner = (
            outputs.get(id(source.expression))
            if isinstance(source, Scope)
            else schemas.get(source.name)
        )
        found[name.casefold()] = inner or {}
    return found


class _Typist:
    """Gives the expressions of one scope their types, innermost first."""

    def __init__(
        self,
        sources: dict[str, Types],
        outputs: Mapping[int, Types],
        where: str,
        now: datetime | None,
    ) -> None:
        self.sources, self.outputs, self.where, self.now = sources, outputs, where, now
        self.aliases: Types = {}

    # --- queries -------------------------------------------------------------------------------------------

    def query(self, tree: exp.Expr) -> Types:
        """Rewrite a query's own expressions; returns its columns."""
        if isinstance(tree, exp.SetOperation):
            left, right = (
                self.outputs.get(id(side.unnest()), {}) for side in (tree.left, tree.right)
            )
            return {
                n: common_type([t, u]) or ""
                for (n, t), u in zip(left.items(), right.values(), strict=False)
            }
        if not isinstance(tree, exp.Select):
            return {}
        for projection in list(tree.expressions):
            self.aliases.update(self._columns(projection))
        for key, part in tree.args.items():
            if key not in ("expressions", "with_"):
                for child in part if isinstance(part, list) else [part]:
                    if isinstance(child, exp.Expr) and not isinstance(child, exp.From):
                        self._children(child)
        return self.aliases

    def _columns(self, projection: exp.Expr) -> Iterator[tuple[str, str]]:
        if projection.is_star:
            gone = {
                e.name.casefold()
                for s in projection.find_all(exp.Star)
                for e in s.args.get("except_") or []
            }
            table = projection.args.get("table") if isinstance(projection, exp.Column) else None
            for name, types in self.sources.items():
                if table is None or table.name.casefold() == name:
                    yield from ((n, t) for n, t in types.items() if n not in gone)
            return
        name = projection.alias_or_name.casefold()
        yield name, self.visit(projection) or ""

    # --- expressions ---------------------------------------------------------------------------------------

    def visit(self, node: exp.Expr) -> str | None:
        """The Spark type of an expression, which may be rewritten in its place; None when it is not known."""
        match node:
            case exp.Query():
                return next(iter(self.outputs.get(id(node.unnest()), {}).values()), None)
            case exp.Window() | exp.Filter():
                core: exp.Expr = node
                while isinstance(
                    core, exp.Window | exp.Filter | exp.IgnoreNulls | exp.RespectNulls
                ):
                    self._children(core, but=core.this)
                    core = core.this
                self._children(core)
                return self._typed(core, node)
        self._children(node)
        return self._typed(node, node)

    def _children(self, node: exp.Expr, but: exp.Expr | None = None) -> None:
        for child in list(node.iter_expressions()):
            if child is not but:
                child.meta["spark"] = self.visit(child)

    def _of(self, node: exp.Expr | None) -> str | None:
        """The type of a child that has been visited and perhaps replaced."""
        return node.meta.get("spark") if node is not None else None

    def put(self, old: exp.Expr, new: exp.Expr, type_: str) -> str:
        new.meta["spark"] = type_
        old.replace(new)
        return type_

    def _typed(self, core: exp.Expr, outer: exp.Expr) -> str | None:
        """The type of one node whose children are typed; `outer` is the node with its window, if it has one."""
        rule = next((rule for kinds, rule in _RULES if isinstance(core, kinds)), None)
        return rule(self, core, outer) if rule else None

    def called(
        self, core: exp.Expr, outer: exp.Expr, name: str, args: list[exp.Expr]
    ) -> str | None:
        """A call that is known by its name."""
        function = FUNCTIONS.get(name)
        if function is None:
            return None
        distinct = len(args) == 1 and isinstance(args[0], exp.Distinct)
        values = args[0].expressions if distinct else args
        made = Call(
            name=name,
            args=values,
            types=[self._of(v) or "" for v in values],
            over=lambda tree: around(outer, core, tree, distinct=distinct),
            now=self.now,
        )
        try:
            typed = answered(function, made)
        except Unsuited as e:
            shown = f"{self.where}: the function {written_name(core) or name}() is not available here: {e.reason}"
            raise TransformError(shown, hint=e.hint or "run this project with engine: spark") from e
        return self.put(outer, typed.tree, typed.type)

    def chosen(self, node: exp.Expr) -> str | None:
        return common_type(self._of(v) for v in _branches(node))

    def first(self, node: exp.Expr) -> str | None:
        return self._of(node.expressions[0] if isinstance(node, exp.Distinct) else node.this)

    def instant(self, node: exp.Expr) -> str:
        return self.put(node, _with(node, this=cast(node.this.copy(), "timestamp")), "timestamp")

    def dated(self, node: exp.Expr) -> str:
        """A date; text becomes one by our grammar, and what is none is an error."""
        inner = self._of(node.this)
        if family(inner or "") != "text":
            return self.put(node, cast(node.copy(), "date"), "date")
        day = checked_cast(node.this.copy(), "string", "date", "to_date")
        return self.put(
            node,
            day if isinstance(node, exp.TsOrDsToDate) else cast(_with(node, this=day), "date"),
            "date",
        )

    def whole(self, core: exp.Expr, outer: exp.Expr) -> str:
        if isinstance(core, exp.Extract) and core.name.upper() not in (
            *_CALENDAR,
            "HOUR",
            "MINUTE",
        ):
            raise self._refusal(core)
        return self.put(outer, cast(outer.copy(), "int"), "int")

    def _refusal(self, node: exp.Expr) -> TransformError:
        return TransformError(
            f"{self.where}: in process, `{node.sql(dialect='spark')}` would not get the type that Spark gives it",
            hint="cast its parts to the types you mean, or run this project with engine: spark",
        )

    def column(self, node: exp.Column) -> str | None:
        name, table = node.name.casefold(), node.table.casefold()
        tables = [self.sources.get(table, {})] if table else [*self.sources.values(), self.aliases]
        return next((t[name] for t in tables if t.get(name)), None)

    def literal(self, node: exp.Literal) -> str:
        text = node.name
        if node.is_string:
            return "string"
        if "e" in text.lower():
            return "double"
        if "." in text:
            whole, _, part = text.partition(".")
            scale = len(part)
            type_ = f"decimal({max(len((whole + part).lstrip('0')), scale, 1)},{scale})"
            return self.put(node, cast(node.copy(), type_), type_)
        return (
            "int"
            if abs(int(text)) < 2**31
            else "bigint"
            if abs(int(text)) < 2**63
            else f"decimal({len(text)},0)"
        )

    def converted(self, node: exp.Cast | exp.TryCast) -> str:
        target = node.to.sql(dialect="spark").lower().replace(", ", ",")
        target = {"decimal": "decimal(10,0)"}.get(target, target)
        source = self._of(node.this)
        safe = isinstance(node, exp.TryCast)
        if source is None or (family(source) == "float" and family(target) == "text"):
            raise self._refusal(node)
        if source == target or (isinstance(node.this, exp.Literal) and family(source) != "text"):
            return target
        if family(target) == "text" and family(source) == "timestamp":
            return self.put(node, cast(cast(node.this.copy(), "timestamp_ntz"), "string"), target)
        if family(target) == "text" and family(source) == "timestamp_ntz":
            return target
        return self.put(
            node, checked_cast(node.this.copy(), source, target, "cast", safe=safe), target
        )

    # --- numbers -------------------------------------------------------------------------------------------

    def _digits(self, node: exp.Expr) -> tuple[int, int] | None:
        """Precision and scale of an operand as Spark sees it: a literal has as many digits as it shows."""
        type_ = self._of(node) or ""
        bare = node.unnest()
        if isinstance(bare, exp.Literal) and family(type_) == "integer":
            return len(bare.name), 0
        return digits(type_)

    def arithmetic(self, node: exp.Binary) -> str:
        left, right = self._of(node.left), self._of(node.right)
        kinds = {family(t) if t else None for t in (left, right)}
        if left == "date":
            return self._moved(node)
        if family(left or "") in ("timestamp", "timestamp_ntz") and isinstance(
            node.right, exp.Interval
        ):
            return str(left)
        if not kinds <= {"integer", "decimal", "float", "void"}:
            raise self._refusal(node)
        if "float" in kinds:
            return "double"
        if "decimal" in kinds:
            return self._decimal(node)
        if isinstance(node, exp.Div):
            return "double"
        type_ = "bigint" if isinstance(node, exp.IntDiv) else common_type([left, right]) or "int"
        return self.put(node, cast(_with(node, this=cast(node.left.copy(), type_)), type_), type_)

    def _moved(self, node: exp.Binary) -> str:
        """A date and an interval of whole days stay a date."""
        interval = node.right
        unit = (
            str(interval.args.get("unit") or "").upper().rstrip("S")
            if isinstance(interval, exp.Interval)
            else ""
        )
        if unit not in _CALENDAR and family(self._of(node.right) or "") != "integer":
            raise self._refusal(node)
        return self.put(node, cast(node.copy(), "date"), "date")

    def _decimal(self, node: exp.Binary) -> str:
        one, two = self._digits(node.left), self._digits(node.right)
        if one is None or two is None or isinstance(node, exp.IntDiv):
            raise self._refusal(node)
        (p1, s1), (p2, s2) = one, two
        left, right = node.left.copy(), node.right.copy()
        match node:
            case exp.Mul():
                type_ = bounded_decimal(p1 + p2 + 1, s1 + s2)
                left, right = cast(left, f"decimal(38,{s1})"), cast(right, f"decimal(38,{s2})")
            case exp.Div():
                scale = max(6, s1 + p2 + 1)
                type_ = bounded_decimal(p1 - s1 + s2 + scale, scale)
                return self.put(
                    node,
                    divided(
                        cast(left, f"decimal({p1},{s1})"), cast(right, f"decimal({p2},{s2})"), type_
                    ),
                    type_,
                )
            case exp.Mod():
                type_ = bounded_decimal(min(p1 - s1, p2 - s2) + max(s1, s2), max(s1, s2))
            case _:
                type_ = bounded_decimal(max(p1 - s1, p2 - s2) + max(s1, s2) + 1, max(s1, s2))
                wide = f"decimal(38,{max(s1, s2)})"
                left, right = cast(left, wide), cast(right, wide)
        return self.put(node, cast(type(node)(this=left, expression=right), type_), type_)

    def aggregate(self, core: exp.Expr, outer: exp.Expr) -> str:
        if isinstance(core, exp.Count | exp.CountIf):  # DuckDB counts NULL where all are NULL
            counted = exp.Coalesce(this=outer.copy(), expressions=[lit(0)])
            return self.put(outer, cast(counted, "bigint"), "bigint")
        inner = self._of(core.this)
        kind, average = family(inner or ""), isinstance(core, exp.Avg)
        if kind not in ("integer", "decimal", "float"):
            raise self._refusal(core)
        if kind == "decimal":
            p, s = digits(inner or "") or (38, 18)
            if not average:
                type_ = f"decimal({min(38, p + 10)},{s})"
                return self.put(outer, cast(outer.copy(), type_), type_)
            type_ = f"decimal({min(38, p + 4)},{min(38, s + 4)})"
            total, count = (_swapped(outer, core, kind_) for kind_ in (exp.Sum, exp.Count))
            quotient = divided(
                cast(total, f"decimal(38,{s})"),
                cast(exp.Nullif(this=count, expression=lit(0)), "decimal(20,0)"),
                type_,
            )
            return self.put(outer, quotient, type_)
        if kind == "integer" and not average:
            return self.put(outer, cast(outer.copy(), "bigint"), "bigint")
        if kind == "integer":
            value = core.this.expressions[0] if isinstance(core.this, exp.Distinct) else core.this
            value.replace(cast(value.copy(), "double"))
        return "double"

    def rounded(self, node: exp.Ceil | exp.Floor | exp.Round) -> str:
        inner = self._of(node.this) or ""
        places = node.args.get("decimals")
        fixed = (
            int(places.name) if isinstance(places, exp.Literal) else 0 if places is None else None
        )
        if (
            family(inner) not in ("integer", "decimal", "float")
            or fixed is None
            or (fixed and not isinstance(node, exp.Round))
        ):
            raise self._refusal(node)
        if isinstance(node, exp.Round) and family(inner) == "float":
            return self.put(node, rounded_float(node.this, inner, fixed), inner)
        if family(inner) == "float":
            return self.put(node, call("strandline_long", node.copy()), "bigint")
        if family(inner) != "decimal":
            type_ = inner if isinstance(node, exp.Round) else "bigint"
        else:
            p, s = digits(inner) or (38, 18)
            type_ = bounded_decimal(p - s + 1 + min(s, fixed), min(s, fixed))
        return self.put(node, cast(node.copy(), type_), type_)


def _locate(node: exp.StrPosition) -> list[exp.Expr]:
    place = node.args.get("position")
    return [node.args["substr"], node.this, *([place] if place is not None else [])]


_Rule = Callable[[_Typist, Any, exp.Expr], str | None]
_RULES: list[tuple[tuple[type[exp.Expr], ...], _Rule]] = [
    (
        (exp.Anonymous, exp.AnonymousAggFunc),
        lambda t, n, outer: t.called(n, outer, n.name.lower(), n.expressions),
    ),
    ((exp.RegexpLike,), lambda t, n, outer: t.called(n, outer, "rlike", [n.this, n.expression])),
    ((exp.StrPosition,), lambda t, n, outer: t.called(n, outer, "locate", _locate(n))),
    (
        (exp.CurrentDate, exp.CurrentTimestamp),
        lambda t, n, outer: t.called(n, outer, n.sql_name().lower(), []),
    ),
    ((exp.Column,), lambda t, node, _: t.column(node)),
    ((exp.Literal,), lambda t, node, _: t.literal(node)),
    ((exp.Null,), lambda _, __, ___: "void"),
    ((exp.Cast, exp.TryCast), lambda t, node, _: t.converted(node)),
    (
        (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.IntDiv),
        lambda t, node, _: t.arithmetic(node),
    ),
    ((exp.Sum, exp.Avg, exp.CountIf, exp.Count), lambda t, node, outer: t.aggregate(node, outer)),
    ((exp.Ceil, exp.Floor, exp.Round), lambda t, node, _: t.rounded(node)),
    ((exp.Coalesce, exp.Greatest, exp.Least, exp.If, exp.Case), lambda t, node, _: t.chosen(node)),
    ((exp.TimestampTrunc,), lambda t, node, _: t.instant(node)),
    (_INT, lambda t, node, outer: t.whole(node, outer)),
    (_DATE, lambda t, node, _: t.dated(node)),
    ((*_SAME, exp.Alias, exp.Distinct), lambda t, node, _: t.first(node)),
    (_BOOLEAN, lambda _, __, ___: "boolean"),
    (_TEXT, lambda _, __, ___: "string"),
]


# --- trees -------------------------------------------------------------------------------------------------


def _branches(node: exp.Expr) -> list[exp.Expr]:
    match node:
        case exp.If():
            return [v for v in (node.args.get("true"), node.args.get("false")) if v is not None]
        case exp.Case():
            last = node.args.get("default")
            return [i.args["true"] for i in node.args["ifs"]] + ([last] if last is not None else [])
    return [node.this, *node.expressions]


def _with(node: exp.Expr, **args: exp.Expr) -> exp.Expr:
    copy = node.copy()
    for key, value in args.items():
        copy.set(key, value)
    return copy


def _swapped(outer: exp.Expr, core: exp.Expr, kind: type[exp.Expr]) -> exp.Expr:
    """The aggregate with its window and filter, but another function."""
    if outer is core:
        return kind(this=core.this.copy())
    copy = outer.copy()
    inner = next(n for n in copy.find_all(type(core)))
    inner.replace(kind(this=core.this.copy()))
    return copy
