"""Runs that die: a process that has everything imported and forks one child per run, so that each may be killed.

    with Runs() as runs:
        runs.run(folder, clock=1, fault="commit.after:kill")  # → Died("kill")

The parent never opens a table or a database: what deltalake and DuckDB start inside a process does not survive a fork.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest

ROOT = Path(__file__).parents[1]
START = datetime(2024, 5, 1, tzinfo=UTC)
EVENTS = "__events"  # how the table of a history's events is called after it
PINNED = {
    "connections": {
        "files": {"type": "files", "path": "landing", "identity": "files"},
        "lake": {"type": "lake", "path": "lake", "identity": "lake"},
    }
}
"""For projects that are copied: their sources are the same ones, wherever their folder is."""


@dataclass(frozen=True)
class Ended:
    """How a run ended: by itself, with what it printed as JSON; or by a signal."""

    signal: int | None
    result: Any = None

    @property
    def killed(self) -> bool:
        return self.signal in (signal.SIGKILL, signal.SIGALRM)

    def statuses(self) -> list[str]:
        return [n["status"] for n in self.result["nodes"]]


class Runs:
    """Starts runs and waits for them."""

    def __enter__(self) -> Self:
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": paths}
        command = [sys.executable, "-m", "tests.crashing"]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()

    def ask(self, *orders: dict[str, Any]) -> list[Ended]:
        """Carry out orders, each in a process of its own, all at once."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(orders) + "\n")
        self.process.stdin.flush()
        return [Ended(**answer) for answer in json.loads(self.process.stdout.readline())]

    def run(self, folder: Path, clock: int, fault: str | None = None, **how: Any) -> Ended:
        return self.ask({"folder": str(folder), "clock": clock, "fault": fault, **how})[0]

    def ran(self, folder: Path, rows: str, clock: int, status: str) -> Ended:
        """A run of a file that has landed, which ends in every node like this."""
        (folder / "landing").mkdir(exist_ok=True)
        (folder / "landing" / "rows.csv").write_text(rows)
        ended = self.run(folder, clock)
        assert set(ended.statuses()) == {status}, ended
        return ended


def at(clock: int) -> datetime:
    """The instant of a run: an hour for each number."""
    return START + timedelta(hours=clock)


def step(folder: str, clock: int = 0, fault: str | None = None, do: str = "run", **how: Any) -> Any:
    from contextlib import nullcontext

    from strandline import failpoints
    from strandline.project import load
    from strandline.run.retry import Retry
    from strandline.types import Clock

    if machine := how.pop("machine", None):  # nothing else of this process is of another one
        socket.gethostname = lambda: str(machine)
    if do == "command":
        return _command(folder)
    project = load(folder)
    if alarm := how.pop("alarm", None):  # what nobody has asked for ends a process, wherever it is
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, alarm)
    if do in ("run", "approve", "retry"):  # the others have their own instant, and no choice
        how |= {"threads": 1, "clock": Clock(at(clock)), "retry": Retry(attempts=1)}
    with failpoints.armed(fault) if fault else nullcontext():
        result = getattr(project, do)(**how)
    return (
        result.as_dict() if result else {"status": "success", "nodes": []}
    )  # nothing was left to retry


def _command(folder: str) -> Any:
    """`strandline run` as the command line has it: what it said, and its exit code."""
    from strandline.cli.main import main

    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the same in words
        with pytest.raises(SystemExit) as ended:
            main(["run", "--json", "--quiet", "--project-dir", folder])
        sys.stdout.flush()
        said.seek(0)
        return {**json.loads(said.read()), "exit_code": ended.value.code}


@dataclass(frozen=True)
class _Child:
    """A process that carries out an order, and tells how it ended."""

    pid: int
    told: int

    def ended(self) -> dict[str, Any]:
        with os.fdopen(self.told) as told:
            text = told.read()
        _, status = os.waitpid(self.pid, 0)
        killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        return {
            "result": None,
            "imported": [],
            **(json.loads(text) if text else {}),
            "signal": killed,
        }


def _started(order: dict[str, Any], gate: int, opens: int) -> _Child:
    """Fork; the child waits until nobody holds the other end of the gate any more."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid != 0:
        os.close(writer)
        return _Child(pid, reader)
    os.close(opens)
    os.read(gate, 1)
    before = set(sys.modules)
    try:
        result = step(**order)
    except BaseException as e:  # noqa: BLE001 – told to the test, which asserts
        result = {"raised": f"{type(e).__name__}: {e}", "nodes": []}
    with os.fdopen(writer, "w") as out:
        json.dump(
            {"result": result, "imported": sorted(set(sys.modules) - before)}, out, default=str
        )
    os._exit(0)


def _serve() -> None:
    # everything is imported here, once
    import deltalake  # noqa: F401
    import duckdb  # noqa: F401

    import strandline.batch.deletes
    import strandline.cli.main
    import strandline.control.store
    import strandline.engine.local.workspace
    import strandline.project
    import strandline.run.planfile
    import strandline.run.undo  # noqa: F401

    for line in sys.stdin:
        gate, opens = os.pipe()
        children = [_started(order, gate, opens) for order in json.loads(line)]
        os.close(opens)
        os.close(gate)
        answers = [child.ended() for child in children]
        # what a run imports on its way, the next child has from the start
        for module in {m for a in answers for m in a.pop("imported")}:
            with suppress(ImportError):
                importlib.import_module(module)
        sys.stdout.write(json.dumps(answers) + "\n")
        sys.stdout.flush()


# --- what a project looks like, so that two can be compared --------------------------------------------------


def picture(folder: Path, tables: tuple[str, ...] = ("t",)) -> dict[str, Any]:
    """Every table, row for row with its system columns, and the records, without what differs from run to run."""
    from strandline.control.holds import open_holds
    from strandline.project import load
    from strandline.testing.frames import read_table, spelled

    store = load(folder).store
    found: dict[str, Any] = {}
    for name in tables:
        frame = read_table(folder / "lake" / name)
        # a quiet batch may come in between: which rows came together counts, not under which number
        batches = sorted({r["_batch_id"] for r in frame.rows}) if "_batch_id" in frame.names else []
        numbered = [
            r | {"_batch_id": batches.index(r["_batch_id"])} if batches else r for r in frame.rows
        ]
        rows = Counter(tuple(spelled(r[n]) for n in frame.names) for r in numbered)
        found[name] = (frame.columns, sorted(rows.items()))
    for row in store.all_control():
        facts = row.coverage.as_dict()
        own = {
            "run",
            "batch",
            "before",
            "committed",
            "target",
            "sources",
            "at",
            "window",
            "snapshot",
        }
        found[f"record of {row.node}"] = (
            row.batch_status,
            {k: v for k, v in facts.items() if k not in own},
        )
    changes = store.changes()
    found["changes"] = sorted((c.node, c.verb, c.key) for c in changes)
    found["holds"] = {n: sorted(h.key for h in rows) for n, rows in open_holds(changes).items()}
    return found


def agrees(folder: Path, tables: tuple[str, ...] = ("t",)) -> None:
    """Each batch that committed is in the history once, and nothing else is; nobody is left at work."""
    from strandline.lake import commits
    from strandline.project import load
    from strandline.types import Table

    def made(name: str) -> list[tuple[str, int, str]]:
        past = [c.record for c in commits(Table(name, str(folder / "lake" / name))) if c.ours]
        return [(c["node"], c["batch"], c["run_id"]) for c in past]

    store = load(folder).store
    ended = [r for r in store.runs() if r.recorded]
    told = [(r.node, r.batch, r.run_id) for r in ended if r.version is not None]
    assert sorted(m for name in tables if not name.endswith(EVENTS) for m in made(name)) == sorted(
        told
    )
    for name in tables:
        if name.endswith(
            EVENTS
        ):  # a commit of a batch that has another in its table, or changed nothing there
            events = made(name)
            assert len(events) == len(set(events))
            assert set(events) <= {(r.node, r.batch, r.run_id) for r in ended}
    assert all(r.batch_status == "SUCCESS" for r in store.all_control())


if __name__ == "__main__":
    _serve()
