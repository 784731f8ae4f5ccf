"""Trying again: at once what is likely to pass, and later what the last run did not bring to a good end.

Whether an error is worth another attempt is a matter of its class (`StrandlineError.retryable`), never of its text.
A checkpoint notes which nodes a run was to work on and how each ended, so that `retry` knows what is left, also after
the run was killed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from strandline.control.fence import counting
from strandline.control.ledger import RECORDED, RunRow
from strandline.errors import StrandlineError, UsageError
from strandline.failpoints import point
from strandline.journal import log
from strandline.plan.graph import Graph
from strandline.refusal import refused
from strandline.result import NodeResult
from strandline.switches import enabled

_T = TypeVar("_T")
_KEPT = 20
_NAMES = "[0-9]" * 8 + "-*.json"
_DONE = (*RECORDED, "fenced")  # a fenced node was done by the runner that fenced it


@dataclass(frozen=True)
class Retry:
    """How often something is tried, and how long to wait in between: twice as long each time."""

    attempts: int = 3
    wait: float = 0.5
    longest: float = 30.0
    sleep: Callable[[float], None] = time.sleep

    def __call__(self, name: str, work: Callable[[], _T]) -> _T:
        """Do the work; again, as long as what goes wrong is worth it."""
        attempt = 1
        while True:
            try:
                return work()
            except StrandlineError as e:
                if not e.retryable or attempt >= self.attempts:
                    raise
                pause = min(self.longest, self.wait * 2 ** (attempt - 1))
                log.warning(
                    "%s: attempt %d of %d: %s; again in %.1f s",
                    name,
                    attempt,
                    self.attempts,
                    e,
                    pause,
                )
            self.sleep(pause)
            attempt += 1


@dataclass
class Checkpoint:
    """How far a run has come, in a small file that is replaced whole after each node."""

    folder: Path
    run_id: str
    nodes: Sequence[str]
    ended: dict[str, str] = field(default_factory=dict)
    number: int = 1
    owner: str = ""  # the process that works on it
    plan: bool = False  # it applies a plan
    over: bool = False  # its process has ended it

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While the run is at work; afterwards nobody is, however it ended."""
        self.begin()
        try:
            yield
        finally:
            self.over = True
            self._note()

    def begin(self) -> None:
        """Note what the run is going to do; old notes go."""
        earlier = sorted(self.folder.glob(_NAMES))
        if not enabled("CHECKPOINTS"):
            for old in earlier:  # they would speak for this run
                old.unlink(missing_ok=True)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in earlier[: -_KEPT + 1]:
            old.unlink(missing_ok=True)
        # Two runs may begin within one second, and clocks go back: the order is counted.
        self.number = int(earlier[-1].name.split("-")[0]) + 1 if earlier else 1
        self._write()

    def done(self, result: NodeResult) -> None:
        """Note how a node ended."""
        point("checkpoint.before", result.name)
        self.ended[result.name] = result.status
        self._note()
        point("checkpoint.after", result.name)

    def _note(self) -> None:
        """Write how far the run has come; if that cannot be written, the run goes on: the records tell as well."""
        if not enabled("CHECKPOINTS"):
            return
        try:
            self._write()
        except (StrandlineError, OSError) as e:
            log.warning("%s", e)

    def open(self, history: Sequence[RunRow]) -> set[str]:
        """The nodes that failed here, were skipped, or were never reached.

        A run that died may have recorded a batch without noting it here.
        """
        done = {n for n, status in self.ended.items() if status in _DONE}
        return set(self.nodes) - done - self._recorded(history)

    def _recorded(self, history: Sequence[RunRow]) -> set[str]:
        """The nodes whose newest batch of this run is in the history, which is written last, and was not taken back."""
        counts = counting(history)
        mine = [
            r for r in history if r.run_id == self.run_id and (r.recorded or r.status == "failed")
        ]
        newest = {r.node: r for r in sorted(mine, key=lambda r: (r.batch, r.recorded))}
        return {r.node for r in newest.values() if r.recorded and r.ending in counts}

    def _write(self) -> None:
        facts = {
            "run_id": self.run_id,
            "nodes": list(self.nodes),
            "ended": self.ended,
            "number": self.number,
            "owner": self.owner,
            "plan": self.plan,
            "over": self.over,
        }
        partial = self.folder / f".{self.run_id}.part"
        try:
            partial.write_text(json.dumps(facts), encoding="utf-8")
            partial.replace(self.folder / f"{self.number:08d}-{self.run_id}.json")
        except OSError as e:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            then = (
                "how far the run has come cannot be noted; the next run finds out what was written"
            )
            raise refused(f"the checkpoint {partial}", e, then) or e from e


@dataclass(frozen=True)
class Left:
    """The nodes that a run did not bring to a good end and that no later run has worked on."""

    run: Checkpoint
    nodes: Sequence[str]

    @property
    def hint(self) -> str:
        """The command that runs them."""
        names = ", ".join(f"{n}+" for n in self.nodes)
        return f'strandline run --select "{names}"'


def folder_of(control: Path, project: str) -> Path:
    """Where the checkpoints of a project are: several may keep their records in one place."""
    mark = hashlib.sha256(project.encode()).hexdigest()[
        :8
    ]  # where case does not count, names would meet
    return control / "_checkpoints" / f"{project[:64]}-{mark}"


def kept(folder: Path) -> list[Checkpoint]:
    """The checkpoints of a project, the newest first."""
    found = []
    for file in sorted(folder.glob(_NAMES), reverse=True):
        try:
            facts = {**json.loads(file.read_text(encoding="utf-8")), "folder": folder}
            found.append(TypeAdapter(Checkpoint).validate_python(facts))
        except FileNotFoundError:  # a run that begins removes the oldest
            continue
        except (ValueError, TypeError) as e:
            raise UsageError(f"the checkpoint {file} cannot be read", hint="move it away") from e
    return found


def left(runs: Sequence[Checkpoint], history: Sequence[RunRow], graph: Graph) -> list[Left]:
    """What each run left, the newest run first; the newest run that was to run a node says how it ended."""
    found, seen = [], set[str]()
    for run in runs:
        nodes = _with_its_group(run, run.open(history), history, graph) - seen
        found.append(Left(run, [n for n in graph.order if n in nodes]))
        seen |= set(run.nodes)
    return found


def _with_its_group(
    run: Checkpoint, nodes: set[str], history: Sequence[RunRow], graph: Graph
) -> set[str]:
    """The nodes, with the targets that were taken back because another target of the same node failed."""
    back = {r.node for r in history if r.recorded and r.coverage.undoes == run.run_id}
    groups = [set(names) for names in graph.groups.values() if nodes & set(names)]
    return nodes.union(*(names & back for names in groups))


def downstream(nodes: Sequence[str], graph: Graph) -> list[str]:
    """The nodes and what depends on them, in the order of the graph."""
    found = set(nodes).union(*(graph.reach(n, up=False) for n in nodes))
    return [n for n in graph.order if n in found]
