"""One node on one engine: put a batch in, look at the table."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy
from tests import effort

from strandline.config.connections import LakeConnection
from strandline.config.load import Project
from strandline.control import store as control_store
from strandline.control.ledger import ChangeRow, ControlRow, Notebook, RunRow
from strandline.control.store import DeltaStore
from strandline.engine.base import Platform
from strandline.engine.memory import MemoryPlatform
from strandline.plan.job import Job
from strandline.project import StrandlineProject
from strandline.result import NodeResult
from strandline.run.runner import Runner
from strandline.testing.frames import read_table, write_parquet
from strandline.testing.memory_format import MEMORY
from strandline.testing.oracle import Frame
from strandline.testing.projects import make_project
from strandline.types import Clock, Commit, Schema, Table, TableState, Token

everywhere = pytest.mark.parametrize(
    "engine_name",
    ["memory", "pandas", pytest.param("spark", marks=pytest.mark.spark)],
    indirect=True,
)
"""In `make test` on the local engine too: for tests that commit in many ways."""
LOCALLY = 0.25  # of the examples in memory, `make test` tries so many on the local engine
EXAMPLES = {"memory": 25, "pandas": 25, "spark": 2}


def for_all(
    engine_name: str,
    cases: SearchStrategy[Any],
    share: float = 1.0,
    *,
    counts: Mapping[str, int] = EXAMPLES,
    least: int = 2,
) -> Callable[[Callable[[Any], None]], None]:
    """Check a property now: with many examples in memory and on the local engine, few on Spark.

    `make test` tries at least two: the first example that Hypothesis draws is mostly the simplest
    one there is. It asks what something means in memory, and needs fewer elsewhere.
    """

    def check(holds: Callable[[Any], None]) -> None:
        wanted = max(1, round(counts[engine_name] * share * max(1.0, effort.EXAMPLES)))
        part = min(1.0, effort.EXAMPLES)
        if part < 1 and engine_name == "pandas" and "memory" in counts:
            part *= LOCALLY
        examples = max(min(wanted, least), round(wanted * part))
        settings(max_examples=examples)(given(cases)(holds))()

    return check


class MemoryLake(LakeConnection):
    """A lake whose tables are in memory."""

    format: Literal["memory"] = "memory"


def configured(platform: Platform, project: StrandlineProject) -> Project:
    """The project, with its lake in memory where the platform is."""
    config = project.config.config
    if not isinstance(platform, MemoryPlatform):
        return project.config
    connections = {
        name: MemoryLake(type="lake", path=c.path) if isinstance(c, LakeConnection) else c
        for name, c in config.connections.items()
    }
    return replace(project.config, config=config.model_copy(update={"connections": connections}))


def stored(platform: Platform, folder: Path, name: str = "t") -> Frame:
    """A table of the lake in a folder as it is now, system columns included."""
    place = folder / "lake" / name
    if not isinstance(platform, MemoryPlatform):
        return read_table(place)
    state = MEMORY.describe(Table(name, str(place), "memory"))
    assert state is not None, f"there is no table {name}"
    rows = MEMORY.rows(Table(name, str(place), "memory"), state.version)
    return Frame([(c.name, c.type) for c in state.schema], rows.to_pylist())


def forget(folder: Path) -> None:
    """Remove what is in a folder, and the tables in memory that are called as if they were there."""
    shutil.rmtree(folder)
    for place in [p for p in MEMORY.tables if p.startswith(f"{folder}/")]:
        del MEMORY.tables[place]


class MemoryStore:
    """The ledger in memory: what these tests are about is the table."""

    def __init__(self, folder: Path | None = None, *, in_memory: bool = False) -> None:
        self.in_memory = in_memory  # are the notes that an engine asks for tables in memory, too?
        self.rows: dict[tuple[str, str], ControlRow] = {}
        self.logged: list[RunRow] = []
        self.noted: list[ChangeRow] = []
        self.folder = folder  # where an engine may look at the notes

    def control(self, node: str, target: str | None = None) -> list[ControlRow]:
        return [r for r in self.rows.values() if r.node == node or r.target_table == target]

    def writers(self, target: str) -> list[ControlRow]:
        return [r for r in self.rows.values() if r.target_table == target]

    def put(self, rows: Sequence[ControlRow]) -> bool:
        self.rows.update({(r.target_table, r.source_table): r for r in rows})
        return True

    def ended(self, app_id: str, after: int) -> RunRow | None:
        mine = (
            r for r in reversed(self.logged) if r.recorded and r.token.rpartition("/")[0] == app_id
        )
        return next((r for r in mine if r.batch > after), None)

    def log(self, row: RunRow) -> RunRow:
        self.logged.append(row)
        return row

    def log_changes(self, token: Token, rows: Sequence[ChangeRow]) -> None:
        self.noted += rows

    def notebook(self) -> Notebook | None:
        """Only now, when an engine asks, is anything written."""
        if self.folder is None or not self.noted:
            return None
        if self.in_memory:
            return Notebook(
                *(self._told(k, r) for k, r in ((ChangeRow, self.noted), (RunRow, self.logged)))
            )
        shutil.rmtree(self.folder, ignore_errors=True)
        store = DeltaStore(self.folder)
        store.log_changes(Token("lab", "n", 0, ""), self.noted)
        for row in self.logged:
            store.log(row)
        return store.notebook()

    def _told(self, kind: type, rows: Sequence[Any]) -> tuple[Table, int]:
        """Records as a table in memory."""
        found = control_store._arrow(kind, rows)
        place = Table(kind.__name__, f"{self.folder}/{kind.__name__}", "memory")
        head = MEMORY.describe(place)
        commit = Commit(0, parent=head.version if head else None)
        return place, MEMORY.commit(place, TableState(0, Schema(())), found, commit)

    def runs(self, limit: int | None = None) -> list[RunRow]:
        return self.logged[-(limit or 0) :]

    def all_runs(self) -> list[RunRow]:
        return self.runs()


class Lab:
    """A project of one node: a file in, table `t` out."""

    file = "batch.parquet"

    def __init__(
        self, folder: Path, platform: Platform, write: Mapping[str, Any], **node: Any
    ) -> None:
        self.folder, self.platform = folder, platform
        read = {"connection": "files", "path": self.file}
        write = {"connection": "lake", "table": "t", **write}
        self.project = make_project(folder, [{"name": "n", "read": read, "write": write, **node}])
        in_memory = isinstance(platform, MemoryPlatform)
        self.store, self._numbers = MemoryStore(in_memory=in_memory), itertools.count(1)
        self.clock = Clock(datetime(2024, 10, 27, 0, 30, 0, 1, tzinfo=UTC))

    @property
    def config(self) -> Project:
        return configured(self.platform, self.project)

    def run(self, batch: Frame) -> NodeResult:
        """One batch; raises what goes wrong."""
        write_parquet(self.folder / "landing" / self.file, batch)
        return self.again()

    def again(self) -> NodeResult:
        """The same batch once more, an hour later."""
        self.clock = Clock(self.clock.now + timedelta(hours=1))
        config = self.config
        job = Job(config, config.config.nodes[0], self.clock)
        with self.platform.workspace("n") as engine:
            return Runner(self.store, f"run{next(self._numbers)}").run(job, engine)

    def table(self, name: str = "t") -> Frame:
        return stored(self.platform, self.folder, name)

    def quarantine(self) -> Frame:
        """The rows that checks have put aside."""
        return self.table("t__quarantine")


@contextmanager
def lab(platform: Platform, write: Mapping[str, Any], **node: Any) -> Iterator[Lab]:
    """A lab in a folder of its own, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="strandline-lab-"))
    try:
        yield Lab(folder, platform, write, **node)
    finally:
        forget(folder)
