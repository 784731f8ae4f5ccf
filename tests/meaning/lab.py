"""One node on one engine: put a batch in, look at the table."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy
from tests import effort

from strandline.control import fence
from strandline.control.ledger import ChangeRow, ControlRow, Notebook, RunRow
from strandline.control.store import DeltaStore
from strandline.engine.base import Platform
from strandline.plan.job import Job
from strandline.result import NodeResult
from strandline.run.runner import Runner
from strandline.testing.frames import read_table, write_parquet
from strandline.testing.oracle import Frame
from strandline.testing.projects import make_project
from strandline.types import Clock, Token

EXAMPLES = {"pandas": 25, "spark": 2}


def for_all(
    engine_name: str,
    cases: SearchStrategy[Any],
    share: float = 1.0,
    *,
    counts: Mapping[str, int] = EXAMPLES,
    least: int = 2,
) -> Callable[[Callable[[Any], None]], None]:
    """Check a property now: with many examples in process, with few on Spark, where each costs seconds.

    `make test` tries at least two: the first example that Hypothesis draws is mostly the simplest one there is.
    """

    def check(holds: Callable[[Any], None]) -> None:
        wanted = max(1, round(counts[engine_name] * share * max(1.0, effort.EXAMPLES)))
        examples = max(min(wanted, least), round(wanted * min(1.0, effort.EXAMPLES)))
        settings(max_examples=examples)(given(cases)(holds))()

    return check


class MemoryStore:
    """The ledger in memory: what these tests are about is the table."""

    def __init__(self, folder: Path | None = None) -> None:
        self.rows: list[ControlRow] = []
        self.logged: list[RunRow] = []
        self.noted: list[ChangeRow] = []
        self.folder = folder  # where an engine may look at the notes

    def states(self) -> list[ControlRow]:
        return self.rows

    def put(self, rows: Sequence[ControlRow], seen: int) -> int | None:
        after = fence.merged(self.rows, rows, seen)
        if after is None:
            return None
        self.rows = after
        return max(r.revision for r in after if r.line == rows[0].line)

    def log(self, row: RunRow, revision: int = 0) -> None:
        self.logged.append(row)

    def told(self, line: tuple[str, str]) -> int:
        return max((r.revision for r in self.rows if r.line == line), default=0)

    def log_changes(self, token: Token, batch: int, rows: Sequence[ChangeRow]) -> None:
        self.noted += rows

    def changes(self, node: str | None = None) -> list[ChangeRow]:
        return self.noted

    def notebook(self) -> Notebook | None:
        """Only now, when an engine asks, is anything written."""
        if self.folder is None or not self.noted:
            return None
        shutil.rmtree(self.folder, ignore_errors=True)
        store = DeltaStore(self.folder)
        store.log_changes(Token("lab", "n", ""), 0, self.noted)
        for row in self.logged:
            store.log(row)
        return store.notebook()

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
        self.store, self._numbers = MemoryStore(), itertools.count(1)
        self.clock = Clock(datetime(2024, 10, 27, 0, 30, 0, 1, tzinfo=UTC))

    def run(self, batch: Frame) -> NodeResult:
        """One batch; raises what goes wrong."""
        write_parquet(self.folder / "landing" / self.file, batch)
        return self.again()

    def again(self) -> NodeResult:
        """The same batch once more, an hour later."""
        self.clock = Clock(self.clock.now + timedelta(hours=1))
        job = Job(self.project.config, self.project.config.config.nodes[0], self.clock)
        with self.platform.workspace("n") as engine:
            return Runner(self.store, f"run{next(self._numbers)}").run(job, engine)

    def table(self) -> Frame:
        return read_table(self.folder / "lake" / "t")


@contextmanager
def lab(platform: Platform, write: Mapping[str, Any], **node: Any) -> Iterator[Lab]:
    """A lab in a folder of its own, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="strandline-lab-"))
    try:
        yield Lab(folder, platform, write, **node)
    finally:
        shutil.rmtree(folder)
