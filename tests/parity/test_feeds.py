"""Following changes step by step ends where computing everything once would: for generated tables, changes and SQL."""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import strategies as st
from tests.parity.lab import MemoryStore, for_all

from strandline.engine.base import Platform
from strandline.job import Job
from strandline.result import NodeResult
from strandline.run import Runner
from strandline.testing.feeds import COLUMNS, KEYS, QUERIES, Query
from strandline.testing.frames import arrow, read_table
from strandline.testing.oracle import Frame
from strandline.testing.projects import make_project
from strandline.types import Clock

FEED = {"delta.enableChangeDataFeed": "true"}
EXAMPLES = {"pandas": 2, "spark": 1}  # per query; `make soak` follows many more
ON_SPARK = (QUERIES[5], QUERIES[9])


@dataclass(frozen=True)
class Change:
    """One commit to one table."""

    table: str
    verb: str
    rows: tuple[tuple[Any, ...], ...] = ()
    key: int = 0


def _row(table: str) -> st.SearchStrategy[tuple[Any, ...]]:
    number = st.integers(1, 4)
    maybe = st.none() | number
    return {
        "o": st.tuples(number, maybe, st.sampled_from("pq"), st.none() | st.integers(0, 3)),
        "c": st.tuples(number, st.sampled_from("ab"), maybe),
        "r": st.tuples(number, st.sampled_from("xy")),
    }[table]


def _changes(tables: list[str]) -> st.SearchStrategy[Change]:
    def of(table: str) -> st.SearchStrategy[Change]:
        rows = st.lists(_row(table), max_size=4, unique_by=lambda r: r[0]).map(tuple)
        return st.one_of(
            st.builds(Change, st.just(table), st.just("put"), rows.filter(bool)),
            st.builds(Change, st.just(table), st.just("delete"), key=st.integers(1, 4)),
            st.builds(Change, st.just(table), st.just("rekey"), key=st.integers(1, 4)),
            st.builds(Change, st.just(table), st.just("overwrite"), rows),
            st.builds(Change, st.just(table), st.sampled_from(["clear", "rewrite", "compact"])),
        )

    return st.sampled_from(tables).flatmap(of)


def pasts(query: Query, most: int) -> st.SearchStrategy[list[list[Change]]]:
    """For each run what was committed since the one before."""
    first = st.tuples(*(st.lists(_row(t), max_size=4, unique_by=lambda r: r[0]).map(tuple) for t in query.tables))
    loaded = first.map(lambda all_: [Change(t, "overwrite", rows) for t, rows in zip(query.tables, all_, strict=True)])
    later = st.lists(st.lists(_changes(query.tables), max_size=3), min_size=2, max_size=most)
    return st.tuples(loaded, later).map(lambda both: [both[0], *both[1]])


class World:
    """Three lake tables that others change, and one node that follows them."""

    def __init__(self, folder: Path, platform: Platform, query: Query, mode: str, *, hard: bool) -> None:
        self.folder, self.platform, self.query = folder, platform, query
        self.tables: dict[str, dict[int, dict[str, Any]]] = {t: {} for t in query.tables}
        for name in query.tables:
            write_deltalake(self.place(name), arrow(Frame(COLUMNS[name], [])), configuration=FEED)
        self.project = make_project(folder, [node(query, mode, hard=hard)])
        self.store, self.numbers = MemoryStore(folder / "notes"), itertools.count(1)
        self.clock = Clock(datetime(2024, 10, 27, 0, 30, tzinfo=UTC))

    def place(self, name: str) -> str:
        return str(self.folder / "lake" / name)

    def change(self, change: Change) -> None:
        names = [n for n, _ in COLUMNS[change.table]]
        key, there = KEYS[change.table], self.tables[change.table]
        come = {row[0]: dict(zip(names, row, strict=True)) for row in change.rows}
        delta = DeltaTable(self.place(change.table))
        match change.verb:
            case "put":
                merge = delta.merge(self._arrow(change.table, come), f"s.{key} = t.{key}", "s", "t")
                merge.when_matched_update_all().when_not_matched_insert_all().execute()
                there.update(come)
            case "delete":
                delta.delete(f"{key} = {change.key}")
                there.pop(change.key, None)
            case "rekey" if change.key in there and change.key + 10 not in there:
                delta.update(updates={key: f"{key} + 10"}, predicate=f"{key} = {change.key}")
                there[change.key + 10] = {**there.pop(change.key), key: change.key + 10}
            case "clear":
                delta.delete()
                there.clear()
            case "overwrite":
                there.clear()
                there.update(come)
                self._replace(change.table)
            case "rewrite":
                self._replace(change.table)
            case "compact":
                delta.optimize.compact()

    def _replace(self, name: str) -> None:
        write_deltalake(self.place(name), self._arrow(name, self.tables[name]), mode="overwrite")

    def _arrow(self, name: str, rows: dict[int, dict[str, Any]]) -> Any:
        return arrow(Frame(COLUMNS[name], list(rows.values())))

    def run(self) -> NodeResult:
        self.clock = Clock(self.clock.now + timedelta(hours=1))
        job = Job(self.project.config, self.project.config.config.nodes[0], self.clock)
        with self.platform.workspace("n") as engine:
            return Runner(self.store, f"run{next(self.numbers)}").run(job, engine)

    def check(self) -> None:
        """The living rows are those that the SQL gives over the tables as they are."""
        tables = {name: list(rows.values()) for name, rows in self.tables.items()}
        wanted = self.query.rows(tables)
        found = read_table(self.folder / "lake" / "t").rows
        current = [r for r in found if r.get("_is_current", True) and not r.get("_is_deleted", False)]
        names = [n for n in (current[0] if current else ()) if not n.startswith("_")]
        assert counted([{n: r[n] for n in names} for r in current]) == counted(wanted)


def counted(rows: list[dict[str, Any]]) -> Counter[tuple[tuple[str, Any], ...]]:
    return Counter(tuple(sorted(row.items())) for row in rows)


def node(query: Query, mode: str, *, hard: bool) -> dict[str, Any]:
    limits = {"mode": "feed", "keys": query.keys, "max_delete_percent": None, "on_empty_source": "apply"}
    strategy = {"delete_strategy": "hard"} if hard else {}
    return {
        "name": "n",
        "sources": [
            {"connection": "lake", "table": t, "alias": t, "cdc_strategy": "cdf", "primary_keys": [KEYS[t]]}
            for t in query.tables
        ],
        "transform": {"steps": [{"operation": "detect_deletes", "params": limits}]},
        "transformation_sql": query.sql(),
        "write": {"connection": "lake", "table": "t", "mode": mode, "keys": query.keys, **strategy},
    }


@contextmanager
def world(platform: Platform, query: Query, mode: str, *, hard: bool) -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="strandline-feeds-"))
    try:
        yield World(folder, platform, query, mode, hard=hard)
    finally:
        shutil.rmtree(folder)


def follow(engine_name: str, platform: Platform, query: Query) -> None:
    """Many pasts; none of them needs everything computed again."""
    cases = st.tuples(
        pasts(query, 4 if engine_name == "pandas" else 2), st.sampled_from(["upsert", "scd2"]), st.booleans()
    )
    ways = Counter[str]()

    @for_all(engine_name, cases, counts=EXAMPLES)
    def _(case: tuple[list[list[Change]], str, bool]) -> None:
        past, mode, hard = case
        with world(platform, query, mode, hard=hard) as at:
            for changes in past:
                for change in changes:
                    at.change(change)
                at.run()
                at.check()
            ways.update(json.loads(row.coverage or "{}")["followed"] for row in at.store.logged)

    assert ways["recompute"] == 0


@pytest.mark.parametrize("query", QUERIES, ids=Query.sql)
def test_following_changes_ends_where_computing_everything_would(pandas_platform: Platform, query: Query) -> None:
    follow("pandas", pandas_platform, query)


@pytest.mark.spark
@pytest.mark.parametrize("query", ON_SPARK, ids=Query.sql)
def test_and_so_it_does_on_spark(spark_platform: Platform, query: Query) -> None:
    follow("spark", spark_platform, query)
