"""Reading on from watermarks: from where, up to which new ones, and what is wrong with the values that were read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlglot import exp

from strandline.batch.missed_keys import Extra
from strandline.engine.base import Engine
from strandline.errors import ReadError
from strandline.journal import log
from strandline.plan.inputs import Input
from strandline.plan.job import Job
from strandline.plan.text_order import ordered_as_text, signature, signature_of
from strandline.plan.watermark import Limits, Mark, advanced, in_the_future, limits
from strandline.sql.expr import case, cast, col, eq, lit, select, table
from strandline.sql.portable import family
from strandline.sql.values import to_text
from strandline.types import Column, Relation, Schema


@dataclass(frozen=True)
class Progress:
    """How far a read came: the new watermarks, the highest values, and what there is to say of them."""

    marks: Mapping[str, Mark] = field(default_factory=dict)
    highs: Mapping[str, Any] = field(default_factory=dict)
    future: Mapping[str, str] = field(default_factory=dict)
    said: tuple[str, ...] = ()


def marks_of(job: Job) -> dict[str, Mark]:
    """The watermarks of the last batch, without those that older versions recorded far in the future."""
    now = job.clock.now
    found = job.past.marks()
    return {
        n: m for n, m in found.items() if not in_the_future(m.value, m.type, now, recorded=True)
    }


def limits_of(job: Job, input_: Input, schema: Schema) -> Limits:
    """What a read is limited to by the watermarks of the last batch."""
    return limits(input_.read, schema, marks_of(job), job.clock.now, _where(job, input_))


def wanted_rows(limited: Limits, extra: Extra | None, schema: Schema) -> exp.Expr | None:
    """The rows from the marks on, and those that are wanted wherever their marks lie; None for all rows."""
    wanted = extra.condition(schema) if extra else None
    if limited.predicate is None or wanted is None:
        return limited.predicate
    return exp.Paren(this=exp.Or(this=exp.Paren(this=limited.predicate.copy()), expression=wanted))


def hints_of(job: Job, input_: Input, schema: Schema, extra: Extra) -> list[exp.Expr]:
    """The same, for a database that may apply it."""
    found = wanted_rows(limits_of(job, input_, schema), extra, schema)
    return [found] if found is not None else []


def measures_of(limited: Limits) -> dict[str, exp.Expr]:
    """What is measured of the rows while they are read."""
    found: dict[str, exp.Expr] = {}
    for i, column in enumerate(limited.columns):
        found[f"high {i}"] = exp.Max(this=_counting(column, limited))
        if family(column.type) == "text":
            found[f"first {i}"] = exp.Min(this=signature_of(col(column.name)))
            found[f"last {i}"] = exp.Max(this=signature_of(col(column.name)))
    return found


def _counting(column: Column, limited: Limits) -> exp.Expr:
    """The value of a mark, where the row was read because of its marks."""
    if limited.predicate is None:
        return col(column.name)
    return case((limited.predicate.copy(), col(column.name)), default=cast(exp.null(), column.type))


def progress(
    job: Job,
    engine: Engine,
    input_: Input,
    limited: Limits,
    rows: Relation,
    measured: Mapping[str, Any],
) -> Progress:
    """The new watermarks: the highest values that do not lie in the future, and never lower than the old ones."""
    old = {n.casefold(): m for n, m in marks_of(job).items()}
    marks, highs, future, said = dict[str, Mark](), dict[str, Any](), dict[str, str](), list[str]()
    for i, column in enumerate(limited.columns):
        before, high = old.get(column.fold), measured[f"high {i}"]
        if family(column.type) == "text" and high is not None and column.name in limited.follows:
            found = (measured[f"first {i}"], measured[f"last {i}"])
            _check_order(engine, column, rows, before, found, _where(job, input_))
        highs[column.name], reached = high, high
        if limit := in_the_future(high, column.type, job.clock.now):
            reached = _highest(engine, column, rows, limit)
            future[column.name] = to_text(high)
        mark = advanced(before, reached, column.type)
        if mark is not None:
            marks[column.name] = mark
        if column.name in future:
            said += _told_once(
                job, f"a value of column `{column.name}`", column.name, future[column.name], mark
            )
    return Progress(marks, highs, future, tuple(said))


def progress_of_files(job: Job, input_: Input, name: str, times: Sequence[datetime]) -> Progress:
    """The newest time at which a file was written is the new watermark, unless it lies in the future."""
    late = [t for t in times if in_the_future(t, "timestamp", job.clock.now)]
    reached = max((t for t in times if t not in late), default=None)
    mark = advanced(marks_of(job).get(name), reached, "timestamp")
    marks = {name: mark} if mark else {}
    if not late:
        return Progress(marks)
    last = to_text(max(late))
    said = _told_once(job, f"the time of writing of a file of {input_.label}", name, last, mark)
    return Progress(marks, future={name: last}, said=tuple(said))


def window_of(
    window: Mapping[str, tuple[Any, Any]], schema: Schema
) -> dict[str, tuple[str | None, str | None]]:
    """What a read was limited to, as text for the records."""
    types = {c.name: c.type for c in schema}
    return {n: (_text(low, types[n]), _text(high, types[n])) for n, (low, high) in window.items()}


def _text(value: Any, type_: str) -> str | None:
    return None if value is None else Mark(value, type_).as_json()[0]


def _told_once(job: Job, what: str, name: str, value: str, mark: Mark | None) -> list[str]:
    """The warning of a value in the future; none where the last batch had the same highest value."""
    if job.past.memory.future.get(name) == value:
        return []
    kept = (
        f"stays at {to_text(mark.value)}, the highest value before it" if mark else "is not moved"
    )
    told = (
        f"{what} is {value}, which lies in the future: the watermark {kept}, and rows above it are read "
        "again by each run; correct the value in the source"
    )
    log.warning("%s: %s", job.node.name, told)
    return [told]


def _where(job: Job, input_: Input) -> str:
    return f"{job.node.name}, {input_.label}"


def _highest(engine: Engine, column: Column, rows: Relation, limit: Any) -> Any:
    """The highest value that is not above a limit."""
    at_most = exp.LTE(this=col(column.name), expression=cast(lit(limit), column.type))
    return _one(engine, exp.Max(this=col(column.name)), rows, at_most)


def _one(engine: Engine, value: exp.Expr, rows: Relation, where: exp.Expr) -> Any:
    return engine.fetch(select(value).from_(table(rows.name)).where(where))[0][0]


# --- the order of texts ------------------------------------------------------------------------------------------


def _check_order(
    engine: Engine,
    column: Column,
    rows: Relation,
    old: Mark | None,
    found: tuple[str, str],
    where: str,
) -> None:
    """An error when the order of the texts that were read, and of the last watermark, is not that of what they say."""
    first, last = found
    before = signature(old.value) if old is not None and family(old.type) == "text" else first
    if first == last == before and ordered_as_text(first):
        return
    low = _example(engine, column, rows, first)
    high = _example(engine, column, rows, last, exp.Max)
    if before != first and old is not None:
        low, high = old.value, high if last != before else low
    values = f"{low!r} and {high!r}" if low != high else repr(low)
    raise ReadError(
        f"{where}: column `{column.name}` is ordered as text, and holds {values}: the order of texts is that of what "
        "they say only for digits of one width, and for ISO dates or times of one shape and zone",
        hint=f"read it as what it is: with `schema: {{{column.name}: bigint}}` (or date, timestamp) from files, with a "
        f"`query` that has CAST({column.name} AS …) from a database; a `cast` step keeps it a text in the table",
    )


def _example(
    engine: Engine,
    column: Column,
    rows: Relation,
    found: str,
    pick: type[exp.Min | exp.Max] = exp.Min,
) -> Any:
    return _one(
        engine, pick(this=col(column.name)), rows, eq(signature_of(col(column.name)), lit(found))
    )
