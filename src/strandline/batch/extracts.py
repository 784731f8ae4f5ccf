"""Several full extracts in one read: which of them is the newest, by the names of files or by a column of the rows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any

from sqlglot import exp

from strandline.config.deletes import DeleteDetectionMode
from strandline.engine.base import Engine
from strandline.errors import ReadError
from strandline.plan.inputs import SOURCE_FILE, Input
from strandline.plan.job import Job
from strandline.plan.policy import STEP
from strandline.plan.watermark import Mark
from strandline.sql.expr import cast, col, eq, lit, named, select, table
from strandline.sql.portable import family
from strandline.sql.values import ORDERED
from strandline.transform import registry
from strandline.transform.registry import EngineContext
from strandline.types import Column, Relation

_ROW_BY_ROW = {
    "filter",
    "rename",
    "cast",
    "derive",
    "select",
    "drop",
    "hash_columns",
    "generate_surrogate_key",
}
_NUMBER = re.compile(r"(\d{4}-\d{2}-\d{2}|\d+)")


@dataclass(frozen=True)
class Newest:
    """The newest extract: its name in the records, which rows are of it, and why they are not taken if they are not.

    The rows are told after so many of the node's steps, since a step may make the column that tells them.
    """

    snapshot: Any
    where: exp.Expr | None = None
    after: int = 0
    outdated: str | None = None


def by_file(job: Job, input_: Input) -> bool:
    """Does a full read of files tell its extracts by their names?"""
    config = job.detection
    if (
        config is None
        or config.mode is not DeleteDetectionMode.SNAPSHOT_DIFF
        or input_.read.path is None
    ):
        return False
    return (config.snapshot_column or "").casefold() == SOURCE_FILE and not input_.read.limited


def newest_file(job: Job, names: Iterable[str]) -> tuple[str | None, Newest]:
    """The file that is the newest extract, by its name; one without a row is an extract too."""
    found = sorted(names)
    _refuse_names(job, found)
    return (found[-1] if found else None), _judged(
        job, Column(SOURCE_FILE, "string"), found[-1] if found else None
    )


def newest_value(job: Job, engine: Engine, rows: Relation, name: str) -> Newest:
    """The newest extract by a column that the rows have, or that a step makes."""
    made, after = _made(job, engine, rows, name)
    column = made.schema.get(name)
    assert column is not None
    if family(column.type) not in ORDERED:
        raise ReadError(
            f"{job.node.name}: snapshot_column: `{column.name}` has type {column.type}, which cannot order extracts",
            hint="choose a column of whole numbers, decimals, dates, timestamps or text",
        )
    if column.fold == SOURCE_FILE:
        names = engine.fetch(select(col(column.name)).distinct().from_(table(made.name)))
        _refuse_names(job, sorted(n for (n,) in names if n is not None))
    highest = engine.fetch(
        select(named(exp.Max(this=col(column.name)), "m")).from_(table(made.name))
    )[0][0]
    return _judged(job, column, highest, after)


def _judged(job: Job, column: Column, highest: Any, after: int = 0) -> Newest:
    """An extract by its value: the newest, or none where a newer one was compared before."""
    last = job.past.memory.snapshot
    if highest is None:  # empty, and so no newer one: what was compared before stays the newest
        return Newest(last or (None, column.type))
    mark = Mark(highest, column.type)
    if last is not None and _older(mark, last):
        text = f"the newest snapshot {mark.as_json()[0]} is older than {last[0]}, which was compared before"
        return Newest(last, outdated=f"{text}; nothing is taken from it")
    return Newest(mark.as_json(), eq(col(column.name), cast(lit(highest), column.type)), after)


def _older(newest: Mark, last: Any) -> bool:
    """Snapshots are compared when both were told by a column of one type."""
    if not isinstance(last, tuple) or last[0] is None or last[1] != newest.type:
        return False
    return bool(newest.value < Mark.from_json(last).value)


def _made(job: Job, engine: Engine, rows: Relation, name: str) -> tuple[Relation, int]:
    """The rows with the column that tells extracts, after as few steps as it takes to make it."""
    context, chosen = EngineContext(engine, rows, now=job.clock.now), None
    if name in rows.schema:
        return rows, 0
    for index, step in enumerate(job.node.transform.steps if job.node.transform else []):
        if step.operation == STEP:
            break
        if step.operation not in _ROW_BY_ROW and chosen is None:
            chosen = registry.step_name(index, step.operation)
        context = registry.applied(context, step, job.node.name, index)
        if name in context.rows.schema:
            if chosen is None:
                return context.rows, index + 1
            raise ReadError(
                f"{job.node.name}: snapshot_column: {chosen} chooses among the rows of all extracts before "
                f"{registry.step_name(index, step.operation)} makes `{name}`",
                hint=f"make `{name}` first",
            )
    raise ReadError(
        f"{job.node.name}: snapshot_column: there is no column `{name}`: neither the source has it, nor does a step "
        "before detect_deletes make it",
        hint=f"the source has {', '.join(rows.schema.names)}",
    )


# --- names of files ----------------------------------------------------------------------------------------


def _refuse_names(job: Job, names: list[str]) -> None:
    """Names must say which extract is newer; the name of the one that was compared last is one of them."""
    last = job.past.memory.snapshot
    if isinstance(last, tuple) and last[0] is not None and last[1] == "string":
        names = [*names, str(last[0])]
    if clash := _clash(names):
        one, other = clash
        raise ReadError(
            f"{job.node.name}: snapshot_column: `{one}` and `{other}` cannot tell which is newer: names of extracts "
            "have one length and differ in one ISO date (2024-01-31) or zero-padded number (007) only",
            hint="rename the files; or derive a column with the day of each row, for extracts in parts too, "
            "and name that as snapshot_column",
        )


def _clash(names: list[str]) -> tuple[str, str] | None:
    """Two names that do not say which of them is newer; None when all do."""
    first, *others = [_NUMBER.split(name) for name in names] or [[]]
    differing: dict[int, str] = {}  # by which part of the name a file differs from the first
    for name, parts in zip(names[1:], others, strict=True):
        if [_kind(p) for p in parts] != [_kind(p) for p in first]:
            return names[0], name
        where = [i for i, part in enumerate(parts) if part != first[i]]
        if len(where) > 1 or any(i % 2 == 0 for i in where):  # between two numbers there is text
            return names[0], name
        differing |= {i: differing.get(i, name) for i in where}
    if len(differing) > 1:
        one, other, *_ = differing.values()
        return one, other
    dates = {
        i for i in range(1, len(first), 2) if all(_is_date(parts[i]) for parts in (first, *others))
    }
    for i, name in differing.items():
        if dates and i not in dates:  # the day stays: these are parts of one extract
            return names[0], name
    return None


def _kind(part: str) -> tuple[int, bool]:
    """The length of a part, and whether it is a date with dashes."""
    return len(part), _NUMBER.fullmatch(part) is not None and "-" in part


def _is_date(text: str) -> bool:
    if len(text) < len("20240131"):
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
