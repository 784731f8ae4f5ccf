"""Following changes step by step ends where computing everything once would: for generated tables, changes and SQL."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import strategies as st
from tests.lab import MemoryStore, for_all

from strandline.engine.base import Platform
from strandline.lake.delta.log import SYSTEM
from strandline.plan.job import Job
from strandline.result import NodeResult
from strandline.run.runner import Runner
from strandline.testing.feeds import COLUMNS, KEYS, QUERIES, Query, Writing, written
from strandline.testing.frames import arrow, read_table
from strandline.testing.oracle import Frame
from strandline.testing.projects import make_project
from strandline.types import Clock

FEED = {"delta.enableChangeDataFeed": "true"}
EXAMPLES = {"pandas": 2, "spark": 1}  # per query; `make soak` follows many more
ON_SPARK = (QUERIES[5], QUERIES[9])
FLAG = "_is_deleted"
GONE = 2  # the number by which a row announces its delete


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
    first = st.tuples(
        *(st.lists(_row(t), max_size=4, unique_by=lambda r: r[0]).map(tuple) for t in query.tables)
    )
    loaded = first.map(
        lambda all_: [
            Change(t, "overwrite", rows) for t, rows in zip(query.tables, all_, strict=True)
        ]
    )
    later = st.lists(st.lists(_changes(query.tables), max_size=3), min_size=2, max_size=most)
    return st.tuples(loaded, later).map(lambda both: [both[0], *both[1]])


@dataclass(frozen=True)
class How:
    """How the node writes, and whether its sources flag what they delete."""

    mode: str
    hard: bool = False
    sequence: bool = False
    announces: bool = False
    flags: bool = False

    def write(self, query: Query) -> dict[str, Any]:
        found: dict[str, Any] = {"mode": self.mode, "keys": query.keys}
        found |= {"delete_strategy": "hard"} if self.hard else {}
        found |= {"sequence_by": query.number} if self.sequence else {}
        return found | ({"delete_when": f"{query.number} = {GONE}"} if self.announces else {})

    def meaning(self, query: Query) -> Writing:
        by = query.number if self.sequence else None
        return Writing(
            query.keys, by, (lambda row: row[query.number] == GONE) if self.announces else None
        )


def hows() -> st.SearchStrategy[How]:
    """A sequence needs rows that stay, and versions by batch time have none."""
    modes = [("upsert", False, True), ("upsert", False, False), ("upsert", True, False)]
    modes += [("scd2", False, False), ("scd2", True, False)]
    return st.tuples(st.sampled_from(modes), st.booleans(), st.booleans()).map(
        lambda c: How(*c[0], *c[1:])
    )


class World:
    """Three lake tables that others change, and one node that follows them."""

    def __init__(self, folder: Path, platform: Platform, query: Query, how: How) -> None:
        self.folder, self.platform, self.query, self.how = folder, platform, query, how
        self.tables: dict[str, dict[int, dict[str, Any]]] = {t: {} for t in query.tables}
        self.flagged: dict[str, dict[int, dict[str, Any]]] = {t: {} for t in query.tables}
        self.target: dict[Any, Any] = {}
        for name in query.tables:
            write_deltalake(self.place(name), self._arrow(name, {}), configuration=FEED)
        self.project = make_project(folder, [node(query, how)])
        self.store, self.numbers = MemoryStore(folder / "notes"), itertools.count(1)
        self.clock = Clock(datetime(2024, 10, 27, 0, 30, tzinfo=UTC))

    def place(self, name: str) -> str:
        return str(self.folder / "lake" / name)

    def change(self, change: Change) -> None:
        names = [n for n, _ in COLUMNS[change.table]]
        key, there, flagged = (
            KEYS[change.table],
            self.tables[change.table],
            self.flagged[change.table],
        )
        come = {row[0]: dict(zip(names, row, strict=True)) for row in change.rows}
        delta = DeltaTable(self.place(change.table))
        match change.verb:
            case "put":
                merge = delta.merge(self._arrow(change.table, come), f"s.{key} = t.{key}", "s", "t")
                merge.when_matched_update_all().when_not_matched_insert_all().execute()
                there.update(come)
            case "delete":
                self._delete(delta, f"{key} = {change.key}")
                self._flag(change.table, [change.key])
            case "rekey" if change.key in there and change.key + 10 not in {*there, *flagged}:
                delta.update(updates={key: f"{key} + 10"}, predicate=f"{key} = {change.key}")
                there[change.key + 10] = {**there.pop(change.key), key: change.key + 10}
            case "clear":
                self._delete(delta, None)
                self._flag(change.table, list(there))
            case "overwrite":
                self._flag(change.table, list(there))
                there.update(come)
                self._replace(change.table, {**flagged, **come})
            case "rewrite":
                self._replace(change.table, {**there, **flagged})
            case "compact":
                delta.optimize.compact()
        for back in there:
            flagged.pop(back, None)

    def _delete(self, delta: DeltaTable, where: str | None) -> None:
        if self.how.flags:
            delta.update(updates={FLAG: "true"}, predicate=where)
        else:
            delta.delete(where)

    def _flag(self, name: str, keys: list[int]) -> None:
        went = {k: self.tables[name].pop(k) for k in keys if k in self.tables[name]}
        if self.how.flags:
            self.flagged[name] |= {k: {**row, FLAG: True} for k, row in went.items()}

    def _replace(self, name: str, rows: dict[int, dict[str, Any]]) -> None:
        write_deltalake(self.place(name), self._arrow(name, rows), mode="overwrite")

    def _arrow(self, name: str, rows: dict[int, dict[str, Any]]) -> pa.Table:
        plain = arrow(Frame(COLUMNS[name], list(rows.values())))
        if not self.how.flags:
            return plain
        flag = pa.field(FLAG, pa.bool_(), metadata={SYSTEM: "deleted"})
        return plain.append_column(
            flag, pa.array([row.get(FLAG, False) for row in rows.values()], pa.bool_())
        )

    def run(self) -> NodeResult:
        self.clock = Clock(self.clock.now + timedelta(hours=1))
        job = Job(self.project.config, self.project.config.config.nodes[0], self.clock)
        with self.platform.workspace("n") as engine:
            return Runner(self.store, f"run{next(self.numbers)}").run(job, engine)

    def check(self) -> None:
        """The living rows are those that the SQL gives over the tables as they are, written as the node writes."""
        tables = {name: list(rows.values()) for name, rows in self.tables.items()}
        self.target = written(self.target, self.query.rows(tables), self.how.meaning(self.query))
        wanted = [
            {n: v for n, v in row.items() if n != FLAG}
            for row in self.target.values()
            if not row[FLAG]
        ]
        found = read_table(self.folder / "lake" / "t").rows
        current = [
            r for r in found if r.get("_is_current", True) and not r.get("_is_deleted", False)
        ]
        names = [n for n in (current[0] if current else ()) if not n.startswith("_")]
        assert counted([{n: r[n] for n in names} for r in current]) == counted(wanted)


def counted(rows: list[dict[str, Any]]) -> Counter[tuple[tuple[str, Any], ...]]:
    return Counter(tuple(sorted(row.items())) for row in rows)


def node(query: Query, how: How) -> dict[str, Any]:
    limits = {
        "mode": "feed",
        "keys": query.keys,
        "max_delete_percent": None,
        "on_empty_source": "apply",
    }
    return {
        "name": "n",
        "sources": [
            {
                "connection": "lake",
                "table": t,
                "alias": t,
                "cdc_strategy": "cdf",
                "primary_keys": [KEYS[t]],
            }
            for t in query.tables
        ],
        "transform": {"steps": [{"operation": "detect_deletes", "params": limits}]},
        "transformation_sql": query.sql(),
        "write": {"connection": "lake", "table": "t", **how.write(query)},
    }


@contextmanager
def world(platform: Platform, query: Query, how: How) -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="strandline-feeds-"))
    try:
        yield World(folder, platform, query, how)
    finally:
        shutil.rmtree(folder)


def follow(engine_name: str, platform: Platform, query: Query) -> None:
    """Many pasts; none of them needs everything computed again."""
    cases = st.tuples(pasts(query, 4 if engine_name == "pandas" else 2), hows())
    ways = Counter[str]()

    @for_all(engine_name, cases, counts=EXAMPLES)
    def _(case: tuple[list[list[Change]], How]) -> None:
        past, how = case
        with world(platform, query, how) as at:
            for changes in past:
                for change in changes:
                    at.change(change)
                at.run()
                at.check()
            ways.update(row.coverage.followed for row in at.store.logged)

    assert ways["recompute"] == 0


@pytest.mark.parametrize("query", QUERIES, ids=Query.sql)
def test_following_changes_ends_where_computing_everything_would(
    pandas_platform: Platform, query: Query
) -> None:
    follow("pandas", pandas_platform, query)


@pytest.mark.spark
@pytest.mark.parametrize("query", ON_SPARK, ids=Query.sql)
def test_and_so_it_does_on_spark(spark_platform: Platform, query: Query) -> None:
    follow("spark", spark_platform, query)
