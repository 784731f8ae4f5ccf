"""Rows in quarantine: how `<table>__quarantine` keeps them, which of them count, and what a batch changes there.

A row enters under the run that put it aside (`_run_id`) and leaves under the run that took it out (`_left_run_id`).
Both count once the batch of that run has come to its end. So the commit here may come before the commit of the batch:
a run that dies in between has put nothing aside and taken nothing out, and what it wrote is removed later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from strandline.errors import TableError
from strandline.sql.expr import (
    OUTER,
    all_of,
    any_of,
    case,
    cast,
    col,
    concat,
    eq,
    is_null,
    lit,
    named,
    negate,
    one_of,
    over,
    rows_of,
    same,
    select,
    table,
)
from strandline.sql.portable import family
from strandline.strategy.changes import ACTION, METADATA, ChangeSet, Removals
from strandline.strategy.evolution import AddColumn
from strandline.strategy.widening import VOID
from strandline.types import Column, Counts, Relation, Schema

ID, REASONS, NODE, STEP = "_quarantine_id", "_reasons", "_node", "_step"
RUN, BATCH, AT, LEFT, TYPES = (
    "_run_id",
    "_batch_id",
    "_quarantined_at",
    "_left_run_id",
    "_types",
)
OURS = Schema.of(
    (ID, "string"),
    (REASONS, "string"),
    (NODE, "string"),
    (STEP, "int"),
    (RUN, "string"),
    (BATCH, "string"),
    (AT, "timestamp"),
    (LEFT, "string"),
    (TYPES, "string"),
)
"""The columns of ours, beside those of the rows."""
_COPY, _NUMBER = "_strandline_copy", "_strandline_number"
_UNFIT = re.compile(r"[ ,;{}()\n\t=]+")  # what a Delta table cannot have in the name of a column


@dataclass(frozen=True)
class Kept:
    """A column of the rows as the table keeps it: under its own name, or another one where that is taken."""

    column: Column  # as the step saw it
    stored: Column


class Layout:
    """Where the columns of the rows go; a name that holds another type already gets the type behind it."""

    def __init__(self, stored: Schema | None) -> None:
        self.columns = {c.fold: c for c in stored.without(*OURS.names)} if stored else {}

    def place(self, schema: Schema, label: str) -> list[Kept]:
        """The places of a row's columns; a column of which no value is known needs none."""
        if taken := next((c for c in schema if c.name in OURS and c.name != REASONS), None):
            raise TableError(
                f"{label}: the rows bring a column `{taken.name}`, which the quarantine keeps for itself",
                hint="rename it with a rename step before the checks",
            )
        return [Kept(c, self._place(c)) for c in schema if c.name != REASONS and c.type != VOID]

    def _place(self, column: Column) -> Column:
        plain = _UNFIT.sub("_", column.name)
        for name in (plain, f"{plain}__{re.sub(r'[^a-z0-9]+', '_', column.type).strip('_')}"):
            have = self.columns.setdefault(name.casefold(), Column(name, column.type))
            if have.type == column.type:
                return have
        raise AssertionError("a name with its type holds that type")

    @property
    def schema(self) -> Schema:
        """All columns of rows that there are by now."""
        return Schema(tuple(self.columns.values()))


def types_text(kept: Sequence[Kept]) -> str:
    """What a released row is built from again: the name and the type of each column, and where it is kept."""
    return json.dumps({k.column.name: [k.column.type, k.stored.name] for k in kept})


def placed(
    rows: Relation, kept: Sequence[Kept], columns: Schema, node: str, step: int
) -> exp.Select:
    """Rows that were put aside, in the columns of the table; what is known of the run comes with its commit."""
    by_name = {k.stored.name: k for k in kept}
    values = [
        named(
            cast(col(by_name[c.name].column.name) if c.name in by_name else exp.null(), c.type),
            c.name,
        )
        for c in columns
    ]
    ours = {
        REASONS: col(REASONS),
        NODE: lit(node),
        STEP: cast(lit(step), "int"),
        TYPES: lit(types_text(kept)),
    }
    values += [named(cast(ours.get(c.name, exp.null()), c.type), c.name) for c in OURS]
    return select(*values).from_(table(rows.name))


# --- which rows count --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """What is known of the runs that a table of quarantined rows names."""

    void: tuple[
        tuple[str, str], ...
    ] = ()  # node and run of rows whose batch has not come to its end
    left: tuple[str, ...] = ()  # the runs whose taking out counts

    @classmethod
    def of(
        cls, seen: Iterable[tuple[str, str, str | None]], ended: Iterable[tuple[str, str]]
    ) -> Standing:
        """From (node, run, run that took out) as they stand in the table, and (node, run) of ended batches."""
        seen, known = list(seen), set(ended)
        runs = {run for _, run in known}
        void = sorted({(node, run) for node, run, _ in seen} - known)
        return cls(tuple(void), tuple(sorted({r for *_, r in seen if r in runs})))

    def counts(self) -> exp.Expr:
        """Is a row in quarantine?"""
        return all_of(negate(over_) for over_ in (*self._void(), *self._left()))

    def gone(self) -> exp.Expr:
        """Can a row be removed?"""
        return any_of([*self._void(), *self._left()])

    @property
    def any(self) -> bool:
        return bool(self.void or self.left)

    def _void(self) -> list[exp.Expr]:
        return [
            exp.Paren(this=all_of([eq(col(NODE), lit(node)), eq(col(RUN), lit(run))]))
            for node, run in self.void
        ]

    def _left(self) -> list[exp.Expr]:
        if not self.left:
            return []
        return [all_of([negate(is_null(col(LEFT))), one_of(col(LEFT), self.left)])]


NOTHING_THERE = Standing()
"""Of a table without rows."""


# --- what a batch changes ----------------------------------------------------------------------------------


def _compared(columns: Schema) -> list[str]:
    return [c.name for c in columns if c.fold not in METADATA and family(c.type) != "map"]


def _numbered(rows: Relation, columns: Schema) -> exp.Select:
    """The rows, each with its number among those that are equal to it."""
    names = [STEP, *_compared(columns)]
    copy = over(exp.RowNumber(), names, [exp.Ordered(this=col(STEP), nulls_first=True)])
    return select(*map(col, rows.schema.names), named(copy, _COPY)).from_(table(rows.name))


def without_equal(rows: Relation, others: Relation, columns: Schema) -> exp.Select:
    """The rows that have no equal one among others, as multisets and without their metadata."""
    mine, theirs = _numbered(rows, columns), _numbered(others, columns)
    names = [STEP, *_compared(columns), _COPY]
    match = all_of(same(col(n, OUTER), col(n, "t")) for n in names)
    there = select(lit(1)).from_(theirs.subquery("t")).where(match)
    found = select(*(col(n, OUTER) for n in rows.schema.names)).from_(mine.subquery(OUTER))
    return found.where(exp.Not(this=exp.Exists(this=there)))


def with_key_among(
    rows: Relation, keys: Mapping[str, Column], others: Relation, node_keys: Sequence[Column]
) -> exp.Select:
    """The rows whose key is one of the keys of others; as texts where the types differ."""
    on = []
    for key in node_keys:
        mine: exp.Expr = col(keys[key.name].name, OUTER)
        theirs: exp.Expr = col(key.name, "t")
        if family(keys[key.name].type) != family(key.type):
            mine, theirs = cast(mine, "string"), cast(theirs, "string")
        on.append(eq(mine, theirs))
    there = select(lit(1)).from_(table(others.name, "t")).where(all_of(on))
    found = select(*(col(n, OUTER) for n in rows.schema.names)).from_(table(rows.name, OUTER))
    return found.where(exp.Exists(this=there))


def entering(rows: exp.Query, columns: Schema) -> exp.Select:
    """Rows that enter, each with a number of its own."""
    number = exp.Window(
        this=exp.RowNumber(), order=exp.Order(expressions=[exp.Ordered(this=col(STEP))])
    )
    values = [col(c.name) for c in (*columns, *OURS)]
    return select(
        *values, named(cast(number, "bigint"), _NUMBER), named(lit("insert"), ACTION)
    ).from_(rows.subquery("e"))


def leaving(rows: exp.Query, columns: Schema) -> exp.Select:
    """Rows that leave."""
    values = [col(c.name) for c in (*columns, *OURS)]
    none = named(cast(exp.null(), "bigint"), _NUMBER)
    return select(*values, none, named(lit("update"), ACTION)).from_(rows.subquery("l"))


def stamped(changes: ChangeSet, node: str, run_id: str, batch_id: str, at: exp.Expr) -> exp.Select:
    """The change set with what is known of the run: under which a row enters, or leaves."""
    enters = eq(col(ACTION), lit("insert"))
    id_ = concat(lit(f"{run_id}/{node}/"), cast(col(_NUMBER), "string"))
    first = {AT: exp.Coalesce(this=col(AT), expressions=[at])}
    new = {ID: id_, RUN: lit(run_id), BATCH: lit(batch_id), **first}
    values = []
    for c in changes.columns:
        value: exp.Expr = col(c.name)
        if c.name in new:
            value = case((enters.copy(), new[c.name]), default=value)
        elif c.name == LEFT:
            value = case((enters.copy(), cast(exp.null(), "string")), default=lit(run_id))
        values.append(named(value, c.name))
    return select(*values, col(ACTION)).from_(table(changes.additions.name))


def removing(rows: Relation, columns: Schema, which: exp.Expr) -> exp.Select:
    """The rows that are removed for good."""
    values = [col(c.name) for c in (*columns, *OURS)]
    return select(*values, named(lit("delete"), ACTION)).from_(table(rows.name)).where(which)


def change_set(
    additions: Relation, columns: Schema, counts: Counts, known: Schema | None = None
) -> ChangeSet:
    """What a batch, or a removal, changes in the table; `known` are the columns that it has."""
    new = tuple(AddColumn(c) for c in columns if known is not None and c.name not in known)
    whole = columns.plus(*OURS)
    return ChangeSet(
        additions, whole, Removals.REPLACED, (ID,), (), {}, counts, hard=True, evolves=new
    )


# --- rows as they were -------------------------------------------------------------------------------------


def released(rows: Relation, step: int, types: str) -> exp.Select:
    """Rows of one step and one shape, as that step saw them, each with the name under which it is kept."""
    values = [
        named(cast(col(stored), type_), name) for name, (type_, stored) in json.loads(types).items()
    ]
    which = all_of([eq(col(STEP), lit(step)), eq(col(TYPES), lit(types))])
    return select(*values).from_(table(rows.name)).where(which)


def kept_schema(state: Schema) -> Schema:
    """The columns of the rows in a table of quarantined rows."""
    return state.without(*OURS.names)


def in_columns(rows: Relation, columns: Schema) -> exp.Select:
    """Stored rows in the columns that the table has after a batch: those it did not have are NULL."""
    values = [
        named(cast(col(c.name) if c.name in rows.schema else exp.null(), c.type), c.name)
        for c in (*columns, *OURS)
    ]
    return (
        rows_of(rows)
        if len(values) == len(rows.schema)
        else select(*values).from_(table(rows.name))
    )


def taken_out(then: Relation, now: Relation, run_id: str) -> exp.Select:
    """The rows that a run had taken out, and that are no longer there; not those that it had put aside itself."""
    there = select(lit(1)).from_(table(now.name, "n")).where(eq(col(ID, "n"), col(ID, OUTER)))
    mine = [eq(col(LEFT, OUTER), lit(run_id)), negate(eq(col(RUN, OUTER), lit(run_id)))]
    rows = select(*(col(n, OUTER) for n in then.schema.names)).from_(table(then.name, OUTER))
    return rows.where(all_of([*mine, exp.Not(this=exp.Exists(this=there))]))
