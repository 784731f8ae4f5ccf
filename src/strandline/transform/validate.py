"""The step `validate`: which rows pass its checks, which are put aside and why, and when the batch is refused.

The rows are evaluated once, each with one flag per check; counts come from the same pass. So a row that is put aside
can never be written too, whatever happens to the source meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlglot import exp

from strandline.config.expectations import (
    Expectation,
    FailingRowsCheck,
    FreshnessCheck,
    RowCountCheck,
    ValidateConfig,
)
from strandline.config.increments import duration
from strandline.errors import ExpectationFailed, TransformError, located
from strandline.journal import log
from strandline.sql.expr import (
    OUTER,
    all_of,
    any_of,
    case,
    cast,
    col,
    concat,
    count_where,
    lit,
    named,
    negate,
    rows_of,
    select,
    table,
)
from strandline.sql.portable import family
from strandline.transform.judging import Part, asked_by, label_of, parts_of
from strandline.transform.registry import EngineContext, Rejected, transform
from strandline.transform.sql import run_query
from strandline.types import Column, Relation
from strandline.words import agree, plural

REASONS = "_reasons"
"""The column that says why a row was put aside: the checks that it fails, separated by `; `."""
_FLAG = "_strandline_fails_"
_SAMPLES, _SHOWN, _WIDTH = 3, 6, 60
_NUMBERS = ("integer", "decimal", "float")


@dataclass(frozen=True)
class Failure:
    """A check that failed, in words."""

    check: Expectation
    told: str


@transform("validate", category="rows", param_model=ValidateConfig)
def validate(context: EngineContext, params: ValidateConfig) -> EngineContext:
    if not context.checking:
        return context
    joins: list[tuple[Relation, exp.Expr]] = []
    parts = list(parts_of(context, params, joins))
    measures = {_flag(n): count_where(col(_flag(n))) for n in range(len(parts))}
    whole = {} if context.partial else _whole_measures(context, params)
    staged = context.engine.stage(
        _flagged(context.rows, parts, joins),
        {"n": cast(exp.Count(this=exp.Star()), "bigint"), **measures, **whole},
        None,
    )
    counts = [int(staged.measures[_flag(n)] or 0) for n in range(len(parts))]
    rows, found = staged.relation, list[Failure]()
    for number, (part, n) in enumerate(zip(parts, counts, strict=True)):
        if n and not part.aside:
            found.append(Failure(part.check, _told(context, rows, part, number, n)))
    if not context.partial:
        found += _failures(context, params, rows, staged.measures)
    if refused := [f.told for f in found if f.check.severity == "fail"]:
        raise ExpectationFailed(context.where, refused)
    said = tuple(f"{context.where}: {f.told}" for f in found)
    for line in said:
        log.warning("%s", line)
    return _divided(replace(context, said=(*context.said, *said)), rows, parts, counts)


def _divided(
    context: EngineContext, rows: Relation, parts: Sequence[Part], counts: Sequence[int]
) -> EngineContext:
    """The rows that go on, and beside them those that are put aside."""
    columns = [col(c.name) for c in context.rows.schema]
    aside = [n for n, part in enumerate(parts) if part.aside]
    flags = [col(_flag(n)) for n in aside]
    on = select(*columns).from_(table(rows.name))
    if not flags:
        return context.with_rows(on)
    bad = select(*(c.copy() for c in columns), named(_reasons(parts, aside), REASONS))
    bad = bad.from_(table(rows.name)).where(any_of(f.copy() for f in flags))
    rejected = Rejected(context.index, context.engine.query(bad), any(counts[n] for n in aside))
    there = context.with_rows(on.where(negate(any_of(flags))))
    return replace(there, rejected=(*context.rejected, rejected))


def _reasons(parts: Sequence[Part], aside: Sequence[int]) -> exp.Expr:
    """`not_null(email); range(amount)`: each reason with its separator, the first separator cut off."""
    told = [case((col(_flag(n)), lit(f"; {parts[n].label}")), default=lit("")) for n in aside]
    return exp.Substring(this=exp.Paren(this=concat(*told)), start=lit(3))


def _flag(number: int) -> str:
    return f"{_FLAG}{number}"


def _flagged(
    rows: Relation, parts: Sequence[Part], joins: Sequence[tuple[Relation, exp.Expr]]
) -> exp.Select:
    """The rows, each with its flags."""
    columns = [named(col(c.name, OUTER), c.name) for c in rows.schema]
    flags = [named(part.fails, _flag(n)) for n, part in enumerate(parts)]
    tree = select(*columns, *flags).from_(table(rows.name, OUTER))
    for other, on in joins:
        tree = tree.join(table(other.name), on=on, join_type="left")
    return tree


# --- what is asked of the rows as a whole ------------------------------------------------------------------


def _whole_measures(context: EngineContext, params: ValidateConfig) -> dict[str, exp.Expr]:
    """What is measured beside the flags, by the place of its check."""
    found: dict[str, exp.Expr] = {}
    for index, check in enumerate(params.expectations):
        with located("transform", "steps", context.index, "params", "expectations", index):
            asked = asked_by(context, check) or exp.true()
            if isinstance(check, RowCountCheck):
                found[f"w{index}"] = count_where(asked)
            elif isinstance(check, FreshnessCheck):
                column = context.column(check.column)
                found[f"w{index}"] = count_where(
                    all_of(
                        [
                            asked,
                            exp.GTE(
                                this=col(column.name), expression=_oldest(context, check, column)
                            ),
                        ]
                    )
                )
                newest = exp.Max(this=case((asked.copy(), col(column.name)), default=exp.null()))
                found[f"t{index}"] = cast(newest, "string")
    return found


def _oldest(context: EngineContext, check: FreshnessCheck, column: Column) -> exp.Expr:
    """The instant at which a row is too old; a date is as old as its day."""
    age, kind = duration(check.max_age), family(column.type)
    assert age is not None, "the model has checked it"
    limit = (context.now or datetime.now(UTC)) - age
    if kind == "timestamp":
        return lit(limit)
    if kind == "timestamp_ntz":
        return lit(limit.astimezone(UTC).replace(tzinfo=None))
    if kind == "date":
        return lit(limit.astimezone(UTC).date())
    raise TransformError(
        f"{context.where}: freshness: `{column.name}` is {column.type}, and not a date or a time",
        hint="cast it before",
    )


def _failures(
    context: EngineContext, params: ValidateConfig, rows: Relation, measured: dict[str, Any]
) -> Iterator[Failure]:
    """The checks of the rows as a whole that failed; nothing is known of rows that were not evaluated."""
    for index, check in enumerate(params.expectations):
        n, label = measured.get(f"w{index}"), label_of(check, [])
        match check:
            case RowCountCheck() if n is not None:
                if (check.min is not None and n < check.min) or (
                    check.max is not None and n > check.max
                ):
                    yield Failure(
                        check, f"{label}: {plural(int(n), 'row')}, expected {_bounds(check)}"
                    )
            case FreshnessCheck() if n == 0:
                newest = measured.get(f"t{index}")
                told = f"the newest is {newest}" if newest else "there is none"
                yield Failure(
                    check, f"{label}: no `{check.column}` within the last {check.max_age}; {told}"
                )
            case FailingRowsCheck():
                with located("transform", "steps", context.index, "params", "expectations", index):
                    yield from _queried(context, check, rows, label)


def _bounds(check: RowCountCheck) -> str:
    parts = [f"at least {check.min:,}"] if check.min is not None else []
    parts += [f"at most {check.max:,}"] if check.max is not None else []
    return " and ".join(parts)


def _queried(
    context: EngineContext, check: FailingRowsCheck, rows: Relation, label: str
) -> Iterator[Failure]:
    engine = context.engine
    source = engine.query(rows_of(rows, context.rows.schema))
    if check.where:
        asked = asked_by(context, check)
        assert asked is not None
        source = engine.query(rows_of(source).where(asked))
    tree, where = context.parse(check.query), f"{context.where}: {label}"
    wrong = run_query(engine, tree, {"source": source}, where, context.now)
    ((n,),) = engine.fetch(select(exp.Count(this=exp.Star())).from_(table(wrong.name)))
    if n:
        shown = _shown(engine.fetch(rows_of(wrong).limit(_SAMPLES)), wrong.schema.names)
        yield Failure(check, f"{label}: the query finds {plural(int(n), 'row')}: {shown}")


# --- in words ----------------------------------------------------------------------------------------------


def _told(context: EngineContext, rows: Relation, part: Part, number: int, n: int) -> str:
    """`12 rows fail range(amount): id=1, amount=-3; …`: the judged columns first, then others that tell the row."""
    others = [c.name for c in context.rows.schema if c.name not in part.columns]
    names = [*part.columns, *others][:_SHOWN]
    found = select(*map(col, names)).from_(table(rows.name)).where(col(_flag(number)))
    shown = _shown(context.engine.fetch(found.limit(_SAMPLES)), names)
    return f"{plural(n, 'row')} {agree(n, 'fails', 'fail')} {part.label}: {shown}"


def _shown(rows: Sequence[Sequence[Any]], names: Sequence[str]) -> str:
    def text(value: Any) -> str:
        told = "NULL" if value is None else str(value)
        return told if len(told) <= _WIDTH else f"{told[: _WIDTH - 1]}…"

    return "; ".join(
        ", ".join(f"{name}={text(value)}" for name, value in zip(names, row, strict=True))
        for row in rows
    )
