"""Dimensions and facts: whatever comes in whatever order, keys and the rows that facts belong to are the oracle's."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from tests.lab import MemoryStore, configured, for_all, stored

from strandline.engine.base import Platform
from strandline.plan.job import Job
from strandline.result import NodeResult
from strandline.run.runner import Runner
from strandline.testing.frames import assert_same, write_parquet
from strandline.testing.oracle import Frame, Row, key_of
from strandline.testing.projects import make_project
from strandline.testing.star import Dimension, Foreign, early, given_keys, pointed
from strandline.types import Clock

MEMBERS = [("k", "int"), ("s", "string"), ("a", "string"), ("at", "timestamp")]
FACTS = [("f", "int"), ("k", "int"), ("s", "string"), ("happened", "timestamp"), ("v", "int")]
START = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass
class Star:
    """A dimension and a fact, run one after the other, hour by hour."""

    folder: Path
    platform: Platform
    write: Mapping[str, Any]
    foreign: Mapping[str, Any]
    detect: bool
    store: MemoryStore = field(default_factory=MemoryStore)
    clock: Clock = field(default_factory=lambda: Clock(START))
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        compare = {
            "operation": "detect_deletes",
            "params": {"mode": "snapshot_diff", "keys": ["k", "s"], "max_delete_percent": None,
                       "on_empty_source": "apply"},
        }  # fmt: skip
        dimension = {
            "name": "dim",
            "read": {"connection": "files", "path": "members.parquet"},
            "write": {"connection": "lake", "table": "dim", "keys": ["k", "s"], **self.write},
        }
        if self.detect:
            dimension["transform"] = {"steps": [compare]}
        fact = {
            "name": "fact",
            "read": {"connection": "files", "path": "facts.parquet"},
            "foreign_keys": [
                {"column": "sk", "dimension": "dim", "lookup": {"k": "k", "s": "s"}, **self.foreign}
            ],
            "write": {"connection": "lake", "table": "fact", "mode": "upsert", "keys": ["f"]},
        }
        self.config = configured(self.platform, make_project(self.folder, [dimension, fact]))
        self.made: set[str] = set()

    def put(self, name: str, columns: list[tuple[str, str]], rows: list[Row]) -> None:
        write_parquet(self.folder / "landing" / f"{name}.parquet", Frame(columns, rows))

    def run(self, name: str) -> NodeResult:
        self.clock = Clock(self.clock.now + timedelta(minutes=30))
        node = next(n for n in self.config.config.nodes if n.name == name)
        self.made.add(name)
        with self.platform.workspace(name) as engine:
            job = Job(self.config, node, self.clock)
            return Runner(self.store, f"run{next(self.numbers)}").run(job, engine)

    def table(self, name: str) -> list[Row]:
        return stored(self.platform, self.folder, name).rows if name in self.made else []


@contextmanager
def star(platform: Platform, *how: Any) -> Iterator[Star]:
    folder = Path(tempfile.mkdtemp(prefix="strandline-star-"))
    try:
        yield Star(folder, platform, *how)
    finally:
        shutil.rmtree(folder)


@dataclass(frozen=True)
class Life:
    """How a star is configured, and what its sources hold at each run."""

    write: dict[str, Any]
    foreign: dict[str, Any]
    detect: bool
    runs: list[tuple[list[Row], list[Row]]]

    @property
    def dimension(self) -> Dimension:
        return Dimension(
            ["k", "s"],
            ["i", "s"],
            self.write["surrogate_key"]["strategy"],
            self.write["mode"] == "scd2",
            durable=self.write.get("durable_key"),
        )


def at(hours: int) -> datetime:
    return START + timedelta(hours=hours, minutes=15)


@st.composite
def lives(draw: DrawFn) -> Life:
    mode = draw(st.sampled_from(["upsert", "scd2", "events", "events"]))
    strategy = draw(st.sampled_from(["hash", "sequence"]))
    write: dict[str, Any] = {
        "mode": "upsert" if mode == "upsert" else "scd2",
        "surrogate_key": {"column": "sk", "strategy": strategy},
    }
    if mode != "upsert" and draw(st.booleans()):
        write["durable_key"] = "dk"
    if mode == "events":
        write["effective_at"] = "at"
    if draw(st.booleans()):
        write["default_members"] = True
    foreign: dict[str, Any] = {"repoint": draw(st.booleans())}
    if mode != "upsert" and draw(st.booleans()):
        foreign["event_time"] = "happened"
    if mode != "events" and draw(st.booleans()):
        foreign["on_missing"] = "skeleton"
    member = st.fixed_dictionaries(
        {
            "k": st.sampled_from([0, 0, 0, 1, None]),
            "s": st.sampled_from(["x", "x", "x", None]),
            "a": st.sampled_from(["a", "a", "b", None]),
            "at": st.integers(0, 5).map(at),
        }
    )
    fact = st.fixed_dictionaries(
        {
            "f": st.integers(0, 5),
            "k": st.sampled_from([0, 0, 0, 1, None]),
            "s": st.sampled_from(["x", "x", "x", None]),
            "happened": st.one_of(st.none(), st.integers(-1, 6).map(at)),
            "v": st.sampled_from([None, 1, 2]),
        }
    )
    by = (lambda r: (r["k"], r["s"], r["at"])) if mode == "events" else (lambda r: (r["k"], r["s"]))
    members = st.lists(member, max_size=5, unique_by=by)
    facts = st.lists(fact, min_size=2, max_size=5, unique_by=lambda r: r["f"])
    runs = draw(st.lists(st.tuples(members, facts), min_size=2, max_size=4))
    detect = mode != "events" and draw(st.booleans())
    return Life(write, foreign, detect, runs)


@pytest.mark.long_on_spark
def test_keys_stay_and_facts_find_their_rows(engine_name: str, platform: Platform) -> None:
    @for_all(engine_name, lives())
    def _(life: Life) -> None:
        with star(platform, life.write, life.foreign, life.detect) as there:
            live(there, life)


def live(there: Star, life: Life) -> None:
    of, last = life.dimension, 0
    time = life.foreign.get("event_time")
    foreign = Foreign("sk", ["k", "s"], time, life.foreign["repoint"])
    known: dict[int, Row] = {}
    for members, facts in life.runs:
        there.put("members", MEMBERS, members)
        there.put("facts", FACTS, facts)
        before = there.table("dim")
        there.run("dim")
        last = same_keys(before, there.table("dim"), of, last)
        before = there.table("dim")
        there.run("fact")
        after = there.table("dim")
        last = same_keys(before, after, of, last)
        changed = [f for f in facts if different(known.get(f["f"]), f)]
        check_skeletons(before, after, changed, foreign, life, of)
        source = {f["f"]: f for f in facts}
        expected = {}
        for number in {*known, *source}:
            row = source.get(number) or {n: known[number][n] for n, _ in FACTS}
            key = pointed(known.get(number), row, foreign, after, of)
            expected[number] = {**row, "sk": key}
        columns = [*FACTS, ("sk", "bigint")]
        found = [{n: r[n] for n, _ in columns} for r in there.table("fact")]
        assert_same(Frame(columns, found), Frame(columns, list(expected.values())))
        known = expected
        assert there.run("dim").version is None, "a quiet run of the dimension"
        assert there.run("fact").version is None, "a quiet run of the fact"


def different(old: Row | None, new: Row) -> bool:
    return old is None or any(old[n] != v for n, v in new.items())


def same_keys(before: list[Row], after: list[Row], of: Dimension, last: int) -> int:
    """Every row has the key that the oracle gives it; returns the highest number of a sequence."""
    found = [r for r in after if r["sk"] >= 0]
    assert len({r["sk"] for r in after}) == len(after), "no key twice"
    expected = [dict(r) for r in found]
    last = given_keys([r for r in before if r["sk"] >= 0], expected, of, last)
    assert [r["sk"] for r in found] == [r["sk"] for r in expected]
    if of.durable:
        assert [r["dk"] for r in found] == [r["dk"] for r in expected]
    return last


def check_skeletons(
    before: list[Row],
    after: list[Row],
    facts: list[Row],
    foreign: Foreign,
    life: Life,
    of: Dimension,
) -> None:
    """The fact's run adds a row for each member that only facts know, and touches no other."""
    had = {r["sk"] for r in before}
    new = [r for r in after if r["sk"] not in had]
    kept = [{n: v for n, v in r.items() if n in before[0]} for r in after if r["sk"] in had]
    assert Counter(map(str, kept)) == Counter(map(str, before))
    if life.foreign.get("on_missing") != "skeleton":
        assert not new
        return
    wanted = early(facts, foreign, before, of)
    assert Counter(key_of(r, ["k", "s"]) for r in new) == Counter(wanted)
    for row in new:
        assert row["_is_skeleton"] is True
        assert row["a"] is None
        assert row["at"] is None
