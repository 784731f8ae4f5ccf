"""Weights of a bridge: missing ones are shared equally, and those of each group sum to 1."""

from __future__ import annotations

from sqlglot import exp

from strandline.config.star import BridgeConfig
from strandline.errors import TransformError, UnknownColumn
from strandline.sql.expr import any_of, case, cast, col, is_null, lit, named, over, select
from strandline.sql.expr import table as rows_named
from strandline.types import Relation

_GIVEN, _REST, _BARE = (f"_strandline_weight_{n}" for n in ("given", "rest", "bare"))
TOLERANCE = "0.000000001"


def weighted(rows: Relation, config: BridgeConfig, label: str) -> exp.Select:
    """The rows with a weight in each: the given one, or an equal share of what the others of its group leave."""
    for name in (config.group, config.member):
        if name not in rows.schema:
            raise UnknownColumn(name, rows.schema.names, where=f"{label}: bridge")
    weight = rows.schema.get(config.weight)
    names = [n for n in rows.schema.names if weight is None or n != weight.name]
    given = cast(col(weight.name) if weight else exp.null(), "double")
    group = [str(c.name) for c in [rows.schema.get(config.group)] if c]
    told = select(*map(col, names), named(given, _GIVEN)).from_(rows_named(rows.name))
    bare = case((is_null(col(_GIVEN)), lit(1)), default=lit(0))
    taken = exp.Coalesce(this=col(_GIVEN), expressions=[cast(lit(0), "double")])
    facts = [
        named(over(exp.Sum(this=bare), group), _BARE),
        named(
            exp.Sub(this=cast(lit(1), "double"), expression=over(exp.Sum(this=taken), group)), _REST
        ),
    ]
    summed = select(*map(col, [*names, _GIVEN]), *facts).from_(told.subquery("t"))
    share = exp.Div(this=col(_REST), expression=cast(col(_BARE), "double"), typed=False, safe=False)
    shared = exp.Round(this=share, decimals=lit(12))
    value = case((is_null(col(_GIVEN)), shared), default=col(_GIVEN))
    name = weight.name if weight else config.weight
    return select(*map(col, names), named(cast(value, "double"), name)).from_(summed.subquery("s"))


def uneven(rows: exp.Query, config: BridgeConfig) -> exp.Select:
    """Groups whose weights do not sum to 1, or are not shares, with their sums."""
    total = exp.Sum(this=col(config.weight))
    off = exp.Abs(this=exp.Sub(this=total.copy(), expression=cast(lit(1), "double")))
    below = exp.LT(this=exp.Min(this=col(config.weight)), expression=cast(lit(0), "double"))
    wrong = any_of(
        [exp.GT(this=off, expression=cast(exp.Literal.number(TOLERANCE), "double")), below]
    )
    shown = [named(cast(col(config.group), "string"), "g"), named(total, "s")]
    found = select(*shown).from_(rows.subquery("r")).group_by(col(config.group))
    return found.having(wrong).limit(5)


def uneven_error(
    found: list[tuple[str | None, float]], config: BridgeConfig, label: str
) -> TransformError:
    """The error for groups whose weights do not sum to 1."""
    shown = "; ".join(f"{config.group}={group}: {total:.6g}" for group, total in found)
    return TransformError(
        f"{label}: the weights of a group must sum to 1, and these do not: {shown}; nothing was written",
        hint=f"correct `{config.weight}` at the source, leave it NULL to share equally, or find rows that are gone "
        "with a detect_deletes step",
    )
