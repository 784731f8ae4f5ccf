"""Calls of Spark's functions in a user's SQL, and how the local engine answers them: a tree for DuckDB and a type.

Each family of functions has a module of its own; a rule takes a `Call` and gives a `Typed`. Most are one line, made by
`plain`: what the arguments have to be, the type of the answer, and the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlglot import exp

from strandline.sql.expr import call, cast
from strandline.sql.portable import checked_cast, decimal_text, family


class Unsuited(Exception):
    """Why a call cannot be answered as Spark would; `hint` says what to write instead."""

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.hint = reason, hint


@dataclass(frozen=True)
class Typed:
    """A tree for DuckDB, and the type that Spark gives it."""

    tree: exp.Expr
    type: str


@dataclass(frozen=True)
class Call:
    """One call in a user's SQL: its arguments have been rewritten for DuckDB, their types are Spark's."""

    name: str
    args: Sequence[exp.Expr]
    types: Sequence[str]
    over: Callable[[exp.Expr], exp.Expr]  # puts an aggregate into the call's own filter and window
    now: datetime | None = None  # the one instant of the run

    def __len__(self) -> int:
        return len(self.args)

    def fit(self, index: int, kind: str) -> exp.Expr:
        """An argument as a value of that kind."""
        return fitted(self.args[index].copy(), self.types[index], kind)

    def written(self, index: int, what: str) -> str:
        """The text of an argument that has to be a literal."""
        bare = self.args[index].unnest()
        if not (isinstance(bare, exp.Literal) and bare.is_string) and not isinstance(
            bare, exp.RawString
        ):
            raise Unsuited(f"its {what} is not a literal", f"write the {what} as a text in quotes")
        return str(bare.this)

    def number(self, index: int, what: str) -> int:
        """The value of an argument that has to be a whole number, written out."""
        bare, sign = self.args[index].unnest(), 1
        if isinstance(bare, exp.Neg):
            bare, sign = bare.this.unnest(), -1
        if not isinstance(bare, exp.Literal) or bare.is_string or not bare.this.isdigit():
            raise Unsuited(f"its {what} is not a literal", f"write the {what} as a whole number")
        return sign * int(bare.this)


Rule = Callable[[Call], Typed]


@dataclass(frozen=True)
class Function:
    """What the local engine knows of one of Spark's functions."""

    least: int
    most: int | None
    rule: Rule


Functions = Mapping[str, Function]


def function(names: str, counts: str, rule: Rule) -> dict[str, Function]:
    """A function under all its names; `counts` is how many arguments it takes: `2`, `1-3` or `1-`."""
    least, dash, most = counts.partition("-")
    top = int(most) if most else None if dash else int(least)
    return {name: Function(int(least), top, rule) for name in names.split()}


def answered(known: Function, made: Call) -> Typed:
    """The answer to a call; `Unsuited` also where it has too few or too many arguments."""
    count = len(made)
    if count < known.least or (known.most is not None and count > known.most):
        most = "or more" if known.most is None else f"to {known.most}"
        takes = str(known.least) if known.most == known.least else f"{known.least} {most}"
        raise Unsuited(f"it takes {takes} arguments, found {count}")
    return known.rule(made)


def plain(names: str, signature: str, build: Callable[..., exp.Expr]) -> dict[str, Function]:
    """A function whose arguments have fixed kinds: `text int? -> string`; a last `text*` may repeat."""
    left, _, result = signature.partition("->")
    kinds, type_ = left.split(), result.strip()
    least = sum(1 for kind in kinds if kind[-1] not in "?*")
    counts = f"{least}-" if kinds and kinds[-1][-1] == "*" else f"{least}-{len(kinds)}"

    def rule(made: Call) -> Typed:
        wanted = [kinds[min(n, len(kinds) - 1)].rstrip("?*") for n in range(len(made))]
        return Typed(
            cast(build(*(made.fit(n, kind) for n, kind in enumerate(wanted))), type_), type_
        )

    return function(names, counts if kinds else "0", rule)


def native(name: str) -> Callable[..., exp.Expr]:
    """A function that DuckDB has, under its name there."""
    return lambda *args: call(name, *args)


# --- arguments ---------------------------------------------------------------------------------------------

_KINDS = {  # what stands for what without a cast, as Spark would cast it
    "double": ("integer", "decimal", "float"),
    "int": ("integer",),
    "bigint": ("integer",),
    "text": ("text", "integer", "decimal", "date", "boolean", "timestamp", "timestamp_ntz"),
    "boolean": ("boolean",),
    "binary": ("binary", "text"),
    "date": ("date", "timestamp", "timestamp_ntz", "text"),
    "timestamp": ("date", "timestamp", "timestamp_ntz", "text"),
}
_TYPES = {"text": "string"}
_CALLED = {
    "text": "text",
    "int": "an int",
    "double": "a number",
    "bigint": "a whole number",
    "boolean": "a boolean",
}


def fitted(tree: exp.Expr, type_: str, kind: str) -> exp.Expr:
    """A value as an argument of that kind, as Spark casts it by itself; `Unsuited` where it would not, or differs."""
    target, given = _TYPES.get(kind, kind), family(type_)
    if kind == "any":
        return tree
    if given == "void":
        return cast(exp.null(), target)
    if given not in _KINDS[kind] or (kind == "int" and type_ == "bigint"):
        wanted = _CALLED.get(kind, f"a {kind}")
        raise Unsuited(
            f"it takes {wanted}, and `{shown(tree)}` is {of_type(type_)}", f"cast it to {target}"
        )
    return tree if type_ == target else converted_argument(tree, type_, kind)


def converted_argument(tree: exp.Expr, type_: str, kind: str) -> exp.Expr:
    """A cast that Spark makes by itself."""
    given = family(type_)
    match kind, given:
        case "text", "timestamp" | "timestamp_ntz":
            return cast(cast(tree, "timestamp_ntz"), "string")
        case "text", "decimal":
            return decimal_text(tree)
        case "binary", "text":
            return call("utf8_bytes", tree)
        case (("date" | "timestamp"), "text"):
            return checked_cast(tree, "string", kind, "argument")
    return cast(tree, _TYPES.get(kind, kind))


def shown(tree: exp.Expr) -> str:
    """An argument in the user's words, as far as it has not been rewritten."""
    return tree.sql(dialect="spark")


def of_type(type_: str) -> str:
    return f"of type {type_}" if type_ else "of a type that is not known here"


def fixed(value: exp.Expr, type_: str) -> Typed:
    return Typed(cast(value, type_), type_)


def around(outer: exp.Expr, core: exp.Expr, tree: exp.Expr, *, distinct: bool) -> exp.Expr:
    """Another aggregate in the place of `core`, with its DISTINCT, filter and window."""
    if distinct:
        tree.set("expressions", [exp.Distinct(expressions=tree.expressions)])
    if outer is core:
        return tree
    copy = outer.copy()
    inner = copy
    while isinstance(inner, exp.Window | exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        inner = inner.this
    inner.replace(tree)
    return copy
