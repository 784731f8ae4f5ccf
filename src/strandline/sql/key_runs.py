"""Whole-number keys as runs of consecutive numbers: a table with few gaps says in a few rows which keys it has.

One statement finds the runs, so they are one snapshot, and they are exact: between the ends of a run no key is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlglot import exp

from strandline.sql.expr import cast, col, is_null, lit, named, negate, select, table
from strandline.types import Relation

if TYPE_CHECKING:
    import sqlalchemy  # asked for by every command, and slow to import

LOW, HIGH = "_strandline_low", "_strandline_high"
_FEW = 10_000  # keys that are not worth a question of their own
_SPARED = 4  # runs pay when there are at most a quarter as many as keys
_PIECE = 65_536  # no run is longer: whoever unfolds it holds one in memory
_SAFE = 2**62
_WHOLE = ("tinyint", "smallint", "int", "bigint")


def pays(
    connection: sqlalchemy.Connection, origin: exp.Expr, name: str, type_: str, dialect: str
) -> bool:
    """Are there many keys and few gaps? Each run but the first follows a gap, so the gaps bound the runs."""
    if type_ not in _WHOLE or dialect not in ("sqlite", "postgres"):
        return False
    key = col(name, "q")
    odd: exp.Expr = exp.false()
    if dialect == "sqlite":  # whose columns hold anything
        odd = exp.NEQ(
            this=exp.Anonymous(this="typeof", expressions=[key.copy()]), expression=lit("integer")
        )
    tree = select(
        exp.Count(this=exp.Star()),
        exp.Min(this=key),
        exp.Max(this=key.copy()),
        exp.Sum(this=exp.Case(ifs=[exp.If(this=odd, true=lit(1))], default=lit(0))),
    )
    keys, low, high, others = _one(
        connection, tree.from_(origin).where(negate(is_null(key.copy()))), dialect
    )
    if keys < _FEW or others or max(abs(low), abs(high)) > _SAFE:
        return False
    return bool((high - low + 1 - keys + 1) * _SPARED <= keys)


def _one(connection: sqlalchemy.Connection, tree: exp.Select, dialect: str) -> tuple[Any, ...]:
    return tuple(connection.exec_driver_sql(tree.sql(dialect=dialect)).one())


def runs(origin: exp.Expr, name: str, dialect: str) -> exp.Select:
    """The first and last key of every run; duplicates of a key count once."""
    key = col(name, "q")
    # there are no NULLs among them: the database's own order of NULLs needs no word, and lets it use an index
    order = exp.Ordered(this=key.copy(), nulls_first=dialect == "sqlite")
    rank = exp.Window(this=exp.Anonymous(this="DENSE_RANK"), order=exp.Order(expressions=[order]))
    run = exp.Sub(this=key.copy(), expression=rank)
    piece = exp.Div(this=key.copy(), expression=lit(_PIECE), typed=True)
    numbered = select(named(key.copy(), "k"), named(run, "run"), named(piece, "piece"))
    numbered = numbered.from_(origin).where(negate(is_null(key.copy())))
    ends = [
        named(_carried(exp.Min(this=col("k")), dialect), LOW),
        named(_carried(exp.Max(this=col("k")), dialect), HIGH),
    ]
    return select(*ends).from_(numbered.subquery("r")).group_by(col("run"), col("piece"))


def _carried(value: exp.Expr, dialect: str) -> exp.Expr:
    """SQLite's values travel as text and are checked on arrival."""
    return exp.Cast(this=value, to=exp.DataType.build("text")) if dialect == "sqlite" else value


def folded(relation: Relation) -> bool:
    return LOW in relation.schema


def count() -> exp.Expr:
    """How many keys the runs hold."""
    size = exp.Add(this=exp.Sub(this=col(HIGH), expression=col(LOW)), expression=lit(1))
    whole = exp.Coalesce(this=exp.Sum(this=cast(size, "bigint")), expressions=[lit(0)])
    return cast(whole, "bigint")


def unfold(relation: Relation, name: str, type_: str) -> exp.Select:
    """Every key of every run."""
    series = exp.Explode(this=exp.GenerateSeries(start=col(LOW), end=col(HIGH)))
    keys = select(named(series, name)).from_(table(relation.name))
    return select(named(cast(col(name), type_), name)).from_(keys.subquery("u"))
