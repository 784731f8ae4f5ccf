"""An engine in memory, for tests of meaning: DuckDB evaluates, a table format that keeps rows in memory commits."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol, cast

import duckdb
import pyarrow as pa
from sqlglot import exp

from strandline.engine.base import Engine, FeedSource, LakeSource, Scan, Source, SqlSource
from strandline.engine.local import scans
from strandline.engine.local.duck import DuckWorkspace
from strandline.engine.local.failures import translated
from strandline.errors import CommitConflict, Fenced, taken
from strandline.lake import format_of
from strandline.lake.base import TableFormat
from strandline.lake.delta.feed import CHANGE, VERSION
from strandline.sql import expr
from strandline.sql.portable import DUCK_MACROS
from strandline.strategy.changes import METADATA, ChangeSet, Removals, after
from strandline.strategy.conform import typed
from strandline.strategy.evolution import AddColumn, Relax
from strandline.types import Column, Commit, Relation, Schema, Table, TableState, Token


class RowStore(TableFormat, Protocol):
    """A table format that hands out its rows as they are, and takes them so."""

    def rows(self, table: Table, version: int) -> pa.Table:
        """All rows of a version."""

    def commit(self, table: Table, made: TableState, rows: pa.Table, note: Commit) -> int:
        """Put a version on exactly the version that `note` names as its parent; returns the new version."""


def store_of(table: Table) -> RowStore:
    return cast("RowStore", format_of(table))


class MemoryWorkspace(DuckWorkspace):
    """One node's DuckDB, over tables in memory."""

    merges_columns = frozenset({"memory"})

    def scan(self, source: Source) -> Scan:
        with translated(source.label):
            if isinstance(source, SqlSource):
                name, count = scans.sql(self, source)
                return Scan(self.relation(name), lambda: count)
            if isinstance(source, LakeSource):
                found = self._stored(source.table, source.version)
                shown = expr.rows_of(found, found.schema.without(*source.hidden))
                relation = self.query(shown.where(source.where) if source.where else shown)
            elif isinstance(source, FeedSource):
                relation = self.query(self._feed(source))
            else:
                relation = self.relation(scans.files(self, source))
            return Scan(relation, lambda: self.count(relation))

    def _stored(self, table: Table, version: int) -> Relation:
        name = self.fresh("stored")
        self.register(name, store_of(table).rows(table, version))
        return self.relation(name)

    def _feed(self, source: FeedSource) -> exp.Query:
        """What changed between two versions: the difference of their rows."""
        now = self._stored(source.table, source.version)
        before = self.query(expr.rows_of(now).limit(0))
        if source.after >= 0:
            before = self._stored(source.table, source.after)
        come, gone = (_typed(rows, now.schema) for rows in (now, before))
        when = expr.named(expr.cast(expr.lit(source.version), "bigint"), VERSION)
        told = [
            expr.select(exp.Star(), expr.named(expr.lit(how), CHANGE), when).from_(
                exp.except_(more, less, distinct=False).subquery("m")
            )
            for more, less, how in ((come, gone, "insert"), (gone, come, "delete"))
        ]
        shown = source.columns.plus(Column(CHANGE, "string"), Column(VERSION, "bigint"))
        rows = expr.rows_of(self.query(exp.union(*told, distinct=False)), shown)
        return rows.where(source.where) if source.where else rows

    def apply(
        self, table: Table, changes: ChangeSet, token: Token, record: Mapping[str, Any]
    ) -> int:
        store = store_of(table)
        state = store.describe(table, token.app_id)
        if state and state.commit and state.commit.number >= token.txn:
            raise Fenced(taken(token.node, token.batch, state.commit.run_id))
        head = state.version if state else None
        seen = None if changes.removals is Removals.NOTHING else changes.seen
        moved = seen is not None and (head is None or store.moved(table, seen, head))
        if moved or changes.base not in (None, head):
            raise CommitConflict(f"{table.label}: it is no longer at the version looked at")
        made = _evolved(state, changes) if state else _new(changes)
        with translated(table.label):
            old = self._stored(table, state.version) if state else None
            rows = self.arrow(_typed(self.query(after(changes, old)), made.schema)).read_all()
        stayed = self.count(old) if old and changes.removals is Removals.NOTHING else 0
        whose = {"app_id": token.app_id, "batch": token.batch, "number": token.txn}
        note = Commit(0, {**whose, "run_id": token.run_id, **record}, head, operation="WRITE")
        counted = {"num_added_rows": rows.num_rows - stayed}
        return store.commit(table, made, rows, replace(note, metrics=counted))


def _new(changes: ChangeSet) -> TableState:
    """The state of a table that a change set makes."""
    made = TableState(0, changes.columns, changes.partition_by, uuid.uuid4().hex, changes.roles)
    marked = frozenset(c.fold for c in changes.columns if c.fold in METADATA)
    return replace(made, feed=True, metadata=marked)


def _evolved(state: TableState, changes: ChangeSet) -> TableState:
    """The state of a table with the columns that a change set brings."""
    new = [c.column for c in changes.evolves if isinstance(c, AddColumn)]
    return replace(
        state,
        schema=typed(state.schema, changes.columns).plus(*new) if changes.evolves else state.schema,
        roles={**state.roles, **changes.roles},
        metadata=state.metadata | {c.fold for c in new if c.fold in METADATA},
        required=tuple(n for n in state.required if Relax(n) not in changes.evolves),
    )


def _typed(rows: Relation, schema: Schema) -> exp.Select:
    """Rows in these columns and types; what they have not is NULL."""
    return scans.typed(schema, rows.name, {c.fold for c in rows.schema})


class MemoryPlatform:
    """One DuckDB in memory, with a cursor per node."""

    def __init__(self) -> None:
        self.database = duckdb.connect(":memory:", config={"threads": 1})

    @contextmanager
    def workspace(self, name: str) -> Iterator[Engine]:  # noqa: ARG002
        with self.database.cursor() as connection:
            for setup in ("SET TimeZone = 'UTC'", *DUCK_MACROS):
                connection.execute(setup)
            yield MemoryWorkspace(connection)

    def close(self) -> None:
        self.database.close()
