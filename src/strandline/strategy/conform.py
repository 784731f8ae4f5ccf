"""Rows in the types that a table has after a schema change. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from sqlglot import exp

from strandline.sql.expr import case, cast, col, ident, is_null, lit, named, select, table
from strandline.sql.hash import row_hash
from strandline.sql.nested import NESTED, outer, parts
from strandline.sql.portable import by_name
from strandline.strategy.changes import METADATA
from strandline.strategy.widening import VOID
from strandline.types import Column, Relation, Schema


def conformed(rows: Relation, columns: Schema, *, drop: Sequence[str] = ()) -> exp.Select | None:
    """The rows with these types wherever they have these columns; None when they have them already."""
    ignored = {name.casefold() for name in drop}
    values: list[exp.Expr] = []
    moved = bool(ignored)
    for c in rows.schema:
        wanted = columns.get(c.name)
        if c.fold in ignored:
            continue
        if wanted is None or wanted.type == c.type:
            values.append(col(c.name))
            continue
        values.append(named(reshaped(col(c.name), c.type, wanted.type), c.name))
        moved = True
    return select(*values).from_(table(rows.name)) if moved else None


def with_hash(rows: Relation, name: str, columns: Schema) -> exp.Select:
    """The rows with their hash made anew of these columns."""
    told = [c for c in columns if c.fold not in METADATA]
    values = [
        named(row_hash(told), name) if c.fold == name.casefold() else col(c.name)
        for c in rows.schema
    ]
    return select(*values).from_(table(rows.name))


def reshaped(tree: exp.Expr, source: str, target: str) -> exp.Expr:
    """A value in a wider type: fields of structs by their names, those that it lacks are NULL."""
    if source == target:
        return tree
    if not _structured(target) or source == VOID:
        return cast(tree, target)
    return by_name(cast(tree, target), _rebuilt(tree, source, target, _letters()))


def _structured(type_: str) -> bool:
    return outer(type_) in NESTED and (
        outer(type_) == "struct" or any(_structured(inner) for _, inner in parts(type_))
    )


def _letters() -> Iterator[str]:
    return (f"_strandline_e{n}" for n in itertools.count())


def _rebuilt(tree: exp.Expr, source: str, target: str, letters: Iterator[str]) -> exp.Expr:
    """The value made anew, part by part: Spark's own cast of a struct goes by position."""
    if source == target or not _structured(target):
        return tree if source == target else cast(tree, target)
    have = {name.casefold(): (name, type_) for name, type_ in parts(source)}
    match outer(target):
        case "struct":
            made = _struct(tree, have, target, letters)
            return case((is_null(tree.copy()), cast(exp.null(), target)), default=made)
        case "array":
            (_, inner), (_, mine) = parts(target)[0], have["element"]
            letter = next(letters)
            body = _rebuilt(_var(letter), mine, inner, letters)
            return _anonymous("TRANSFORM", tree, _lambda(body, letter))
    (_, key), (_, value) = parts(target)
    found = tree
    if have["value"][1] != value:
        k, v = next(letters), next(letters)
        body = _rebuilt(_var(v), have["value"][1], value, letters)
        found = _anonymous("TRANSFORM_VALUES", found, _lambda(body, k, v))
    if have["key"][1] != key:
        k, v = next(letters), next(letters)
        body = _rebuilt(_var(k), have["key"][1], key, letters)
        found = _anonymous("TRANSFORM_KEYS", found, _lambda(body, k, v))
    return found


def _struct(
    tree: exp.Expr, have: dict[str, tuple[str, str]], target: str, letters: Iterator[str]
) -> exp.Expr:
    values: list[exp.Expr] = []
    for name, type_ in parts(target):
        mine = have.get(name.casefold())
        value: exp.Expr = cast(exp.null(), type_)
        if mine is not None:
            field = exp.Dot(this=tree.copy(), expression=ident(mine[0]))
            value = _rebuilt(field, mine[1], type_, letters)
        values += [lit(name), value]
    return _anonymous("NAMED_STRUCT", *values)


def _anonymous(function: str, *args: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=function, expressions=list(args))


def _var(letter: str) -> exp.Expr:
    return exp.to_identifier(letter)


def _lambda(body: exp.Expr, *letters: str) -> exp.Expr:
    return exp.Lambda(this=body, expressions=[exp.to_identifier(n) for n in letters])


def typed(schema: Schema, columns: Schema) -> Schema:
    """A schema with the types of other columns, where it has them."""
    return Schema(
        tuple(
            Column(c.name, found.type if (found := columns.get(c.name)) else c.type) for c in schema
        )
    )
