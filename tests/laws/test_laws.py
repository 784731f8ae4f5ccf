"""The six laws of tables, for every engine with every format: what holds of all of them carries most of the matrix.

1. The rows of a version are the same to every engine.
2. The rows after a commit are what the change set says, in plain Python.
3. Of two commits on one version one lands.
4. A record comes back as it was written.
5. The parent of a version is the table before.
6. The feed between two versions is the difference of their rows.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from threading import Barrier
from typing import Any

import pytest
from hypothesis import given, settings
from tests import effort
from tests.laws.cells import CELLS, Cell, cells
from tests.laws.histories import History, Step, histories

from strandline.batch.columns import rewritten, writes_anew
from strandline.engine.base import Engine, FeedSource, FileSource, LakeSource, Platform
from strandline.errors import CommitConflict, Fenced
from strandline.lake import commit_of, format_of
from strandline.sql.expr import rows_of
from strandline.strategy.changes import (
    ChangeSet,
    Proposal,
    Removals,
    key_ranges,
    measures,
    range_measures,
)
from strandline.strategy.evolution import AddColumn, Fill
from strandline.testing.change_sets import VERB
from strandline.testing.frames import assert_same, spelled, write_parquet
from strandline.testing.oracle import Columns, Frame, Row
from strandline.types import Column, Counts, Relation, Schema, TableState, Token

COUNTED = {"insert": "inserted", "delete": "deleted", "close": "deleted", "revive": "reopened"}
SIGNS = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}


@dataclass(frozen=True)
class Landed:
    """A step that was committed: its version, and what was written with it."""

    step: Step
    version: int
    token: Token
    record: dict[str, Any]


class World:
    """One table that lives through a history, and the engines that look at it."""

    def __init__(
        self,
        cell: Cell,
        history: History,
        folder: Path,
        platform: Platform,
        engines: list[Engine],
    ) -> None:
        self.table, self.history, self.folder = cell.table(folder), history, folder
        self.platform, self.engines = platform, engines
        self.format = format_of(self.table)
        self.dice = Random(history.number)
        self.numbers = itertools.count(1)
        self.landed: list[Landed] = []
        self.read: dict[tuple[int, int], Frame] = {}

    def live(self) -> None:
        """All steps; where several engines share the table each commit is made by any of them."""
        for step in self.history.steps:
            self.commit(self.dice.choice(self.engines), step)

    def commit(self, engine: Engine, step: Step) -> None:
        state = self.format.describe(self.table)
        token, record = self.token(), self.record(step)
        version = engine.apply(self.table, self.evolving(engine, step, state), token, record)
        self.landed.append(Landed(step, version, token, record))

    def token(self) -> Token:
        number = next(self.numbers)
        return Token("laws", "ñ", number, f"run{number}")

    def record(self, step: Step) -> dict[str, Any]:
        """What is noted with a commit: text of any kind, nothing, numbers, lists and what is inside."""
        words = ["é\n\"'\\", "日本", "", None, 2**53, -1.5, True, [], {"ü": [1, {"": None}]}]
        return {"coverage": {"step": len(self.landed), "words": self.dice.sample(words, 4)}}

    def evolving(self, engine: Engine, step: Step, state: TableState | None) -> ChangeSet:
        """A change set with the columns that the table gets in its commit, as a batch makes it."""
        changes = self.changes(engine, step, state)
        if state is None or not (step.added or step.system):
            return changes
        system = {role: Column(*c) for role, c in step.system.items()}
        evolves = [AddColumn(Column(*c)) for c in step.added]
        evolves += [AddColumn(c, role) for role, c in system.items()]
        filled = [Fill(c.name) for role, c in system.items() if role == "deleted"]
        changes = replace(changes, evolves=(*evolves, *filled))
        if writes_anew(engine, self.table, changes):
            return rewritten(engine, self.table, state, changes)
        return changes

    def changes(self, engine: Engine, step: Step, state: TableState | None) -> ChangeSet:
        """A step as the change set of an engine, staged as a batch stages it."""
        change, schema = step.change, Schema.of(*step.change.columns)
        proposal = Proposal(
            rows_of(self._given(engine, [*change.columns, (VERB, "string")], change.rows)),
            schema,
            Removals(change.removals),
            tuple(change.keys) if change.removals == "replaced" else (),
            tuple(change.partition_by),
            change.roles,
            change.hard,
            change.drops,
        )
        staged = engine.stage(proposal.rows, {**measures(), **range_measures(proposal)}, None)
        did = Counter(COUNTED.get(row[VERB], "updated") for row in change.rows)
        return ChangeSet(
            staged.relation, schema, proposal.removals, proposal.keys, proposal.partition_by,
            proposal.roles, Counts(**did), key_ranges(staged.measures), change.hard, change.drops,
            base=state.version if state else None,
        )  # fmt: skip

    def _given(self, engine: Engine, columns: Columns, rows: list[Row]) -> Relation:
        name = f"{next(self.numbers)}.parquet"
        write_parquet(self.folder / "given" / name, Frame(columns, rows))
        return engine.scan(FileSource(self.folder / "given", name, "parquet")).relation

    def rows(self, engine: Engine, version: int) -> Frame:
        """The rows of a version, which an engine reads once: a version never changes."""
        at = self.engines.index(engine), version
        if at not in self.read:
            self.read[at] = self._scanned(engine, version)
        return self.read[at]

    def _scanned(self, engine: Engine, version: int) -> Frame:
        relation = engine.scan(LakeSource(self.table, version)).relation
        names = relation.schema.names
        found = [dict(zip(names, row, strict=True)) for row in engine.fetch(rows_of(relation))]
        return Frame([(c.name, c.type) for c in relation.schema], found)

    def anew(self, version: int) -> Frame:
        """The rows of a version to an engine that has not written it."""
        with self.platform.workspace("another") as engine:
            return self._scanned(engine, version)

    def feed(self, engine: Engine, after: Landed, upto: Landed) -> Counter[tuple[str, ...]]:
        """What came and went between two commits, as numbers of rows."""
        columns = Schema.of(*upto.step.change.columns)
        source = FeedSource(self.table, after.version, upto.version, columns)
        relation = engine.scan(source).relation
        net = Counter[tuple[str, ...]]()
        at = [relation.schema.names.index(n) for n in columns.names]
        how = relation.schema.names.index("_change_type")
        for row in engine.fetch(rows_of(relation)):
            net[tuple(spelled(row[i]) for i in at)] += SIGNS[row[how]]
        return Counter({row: n for row, n in net.items() if n})


def counted(rows: list[Row], names: list[str]) -> Counter[tuple[str, ...]]:
    return Counter(tuple(spelled(row.get(n)) for n in names) for row in rows)


# --- the laws ----------------------------------------------------------------------------------------------


def a_version_has_the_same_rows_for_all_engines(at: World) -> None:
    for landed in at.landed:
        first, *others = (at.rows(engine, landed.version) for engine in at.engines)
        for other in others or [at.anew(landed.version)]:
            assert_same(other, first)


def a_commit_does_what_its_change_set_says(at: World) -> None:
    for landed in at.landed:
        found = at.rows(at.dice.choice(at.engines), landed.version)
        wanted = Frame(landed.step.change.columns, landed.step.after)
        assert sorted(found.columns) == sorted(wanted.columns)
        assert_same(Frame(wanted.columns, found.rows), wanted)


def of_two_commits_on_one_version_one_lands(at: World) -> None:
    state, last = at.format.describe(at.table), at.landed[-1]
    assert state is not None
    step, rival = at.history.rival, at.dice.choice(at.engines)
    base = next(c.parent for c in at.format.history(at.table) if c.version == last.version)
    assert base is not None
    late = at.changes(rival, step, at.format.at(at.table, base))
    with pytest.raises((CommitConflict, Fenced)):
        rival.apply(at.table, late, at.token(), at.record(step))
    after = at.format.describe(at.table)
    assert after is not None
    assert after.version == state.version
    found = at.anew(after.version)
    assert_same(
        Frame(last.step.change.columns, found.rows),
        Frame(last.step.change.columns, last.step.after),
    )


def a_record_comes_back_as_written(at: World) -> None:
    for landed in at.landed:
        commit = commit_of(at.table, landed.token)
        assert commit is not None
        assert commit.version == landed.version
        assert (commit.run_id, commit.number) == (landed.token.run_id, landed.token.txn)
        assert {n: commit.record[n] for n in landed.record} == landed.record


def the_parent_is_the_table_before(at: World) -> None:
    parents = {c.version: c.parent for c in at.format.history(at.table)}
    made = parents[at.landed[0].version]
    if made is not None:  # a catalog may know a table before it has rows
        assert not at.rows(at.engines[0], made).rows
    for landed in at.landed[1:]:
        parent, step = parents[landed.version], landed.step
        assert parent is not None
        state = at.format.at(at.table, parent)
        assert state is not None
        assert state.version == parent
        columns = [(c.name, c.type) for c in state.schema]
        new = {name for name, _ in [*step.added, *step.system.values()]}
        assert sorted(columns) == sorted(c for c in step.change.columns if c[0] not in new)
        found = at.rows(at.dice.choice(at.engines), parent)
        names = [name for name, _ in columns]
        before = [{n: row[n] for n in names} for row in step.before]
        assert_same(Frame(columns, found.rows), Frame(columns, before))


def the_feed_is_the_difference_of_two_versions(at: World) -> None:
    pairs = {*itertools.pairwise(range(len(at.landed))), (0, len(at.landed) - 1)}
    some = at.dice.sample(sorted(pairs), min(2, len(pairs)))
    for (i, j), engine in itertools.product(some, at.engines):
        a, b = at.landed[i], at.landed[j]
        spark = engine.dialect == "spark"
        if gap := at.format.gap(at.table, a.version, b.version, vectors=spark):
            assert len(at.engines) > 1, gap
            assert not spark, gap
            assert "deletion vectors" in gap
            continue
        names = b.step.change.names
        wanted = counted(b.step.after, names)
        wanted.subtract(counted(a.step.after, names))
        assert at.feed(engine, a, b) == Counter({row: n for row, n in wanted.items() if n})


LAWS: dict[str, Callable[[World], None]] = {
    "same rows for all engines": a_version_has_the_same_rows_for_all_engines,
    "apply is after": a_commit_does_what_its_change_set_says,
    "one of two lands": of_two_commits_on_one_version_one_lands,
    "records come back": a_record_comes_back_as_written,
    "the parent is before": the_parent_is_the_table_before,
    "the feed is the difference": the_feed_is_the_difference_of_two_versions,
}


@contextmanager
def world(cell: Cell, history: History, platforms: list[Platform]) -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="strandline-laws-"))
    with ExitStack() as stack:
        engines = [stack.enter_context(p.workspace("laws")) for p in platforms]
        try:
            yield World(cell, history, folder, platforms[0], engines)
        finally:
            shutil.rmtree(folder)


def check(cell: Cell, laws: list[str], platforms: list[Platform], most: int) -> None:
    @settings(max_examples=most)
    @given(histories(cell.types))
    def hold(history: History) -> None:
        with world(cell, history, platforms) as at:
            at.live()
            for law in laws:
                try:
                    LAWS[law](at)
                except BaseException as e:
                    e.add_note(f"law: {law}")
                    raise

    hold()


def platforms_of(cell: Cell, request: pytest.FixtureRequest) -> list[Platform]:
    return [request.getfixturevalue(f"{e}_platform") for e in (cell.writer, *cell.readers)]


@pytest.mark.parametrize(("cell", "laws"), cells(list(LAWS)))
def test_it_holds_of_every_history(
    cell: Cell, laws: list[str], request: pytest.FixtureRequest
) -> None:
    check(cell, laws, platforms_of(cell, request), cell.quick)


@pytest.mark.long
@pytest.mark.parametrize(("cell", "laws"), cells(list(LAWS)))
def test_and_of_many(cell: Cell, laws: list[str], request: pytest.FixtureRequest) -> None:
    check(cell, laws, platforms_of(cell, request), round(cell.long * max(1, effort.EXAMPLES)))


@pytest.mark.parametrize("name", [n for n, c in CELLS.items() if c.writer != "spark"])
def test_of_two_at_the_same_instant_one_lands(name: str, request: pytest.FixtureRequest) -> None:
    cell = CELLS[name]
    platforms = platforms_of(cell, request)

    @settings(max_examples=5)
    @given(histories(cell.types))
    def hold(history: History) -> None:
        with world(cell, history, platforms) as at, ThreadPoolExecutor(2) as threads:
            at.live()
            step = Step(replace(history.rival.change, removals="everything"))
            gate = Barrier(2)
            tries = [threads.submit(rush, at, step, at.token(), gate) for _ in range(2)]
            landed = [v for v in (t.result() for t in tries) if v is not None]
            state = at.format.describe(at.table)
            assert state is not None
            assert landed == [state.version]

    hold()


def rush(at: World, step: Step, token: Token, gate: Barrier) -> int | None:
    """Commit at the same instant as another; None when the other came first."""
    with at.platform.workspace(token.run_id) as engine:
        changes = at.changes(engine, step, at.format.describe(at.table))
        gate.wait()
        try:
            return engine.apply(at.table, changes, token, {})
        except (CommitConflict, Fenced):
            return None
