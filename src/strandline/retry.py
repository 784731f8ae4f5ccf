"""Trying again: at once what is likely to pass, and later what a run left undone.

Whether an error is worth another attempt is a matter of its class (`StrandlineError.retryable`), never of its text.
A checkpoint notes which nodes a run was to work on and how each ended, so that `retry` knows what is left, also after
the run was killed. What a later run has done, or the records know to be done, is not done again, whatever a checkpoint
says. Of nodes that no checkpoint speaks of any more, the records tell.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from strandline.control import ledger
from strandline.control.fence import counting
from strandline.control.ledger import RECORDED, ControlRow, RunRow
from strandline.errors import StrandlineError
from strandline.faults import point
from strandline.journal import log
from strandline.plan.graph import Graph
from strandline.refusal import refused
from strandline.result import NodeResult
from strandline.switches import enabled

_T = TypeVar("_T")
_KEPT = 20
_NAMES = "[0-9]" * 8 + "-*.json"


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
                log.warning("%s: attempt %d of %d: %s; again in %.1f s", name, attempt, self.attempts, e, pause)
            self.sleep(pause)
            attempt += 1


@dataclass
class Checkpoint:
    """How far a run has come, in a small file that is replaced whole after each node."""

    folder: Path
    run_id: str
    nodes: Sequence[str]
    approved: Mapping[str, str] = field(default_factory=dict)  # by node, the run whose held deletes it applies
    known: Mapping[str, int] = field(default_factory=dict)  # by node, the newest finished batch when the run began
    ended: dict[str, str] = field(default_factory=dict)
    number: int = 1
    owner: str = ""  # the process that works on it
    plan: bool = False  # it applies a plan
    over: bool = False  # nobody works on it any more

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

    @property
    def open(self) -> set[str]:
        """What did not come to a good end here: failed, fenced, skipped, or never begun."""
        return {n for n in self.nodes if self.ended.get(n) not in RECORDED}

    def undone(self, history: Sequence[RunRow], control: Sequence[ControlRow]) -> set[str]:
        """What did not come to a good end here, and nobody has done since according to the records."""
        # a run of somebody else has not applied what this one was to approve
        known = {n: known for n, known in self.known.items() if n not in self.approved}
        return {n for n in self.open if not _done(n, self.run_id, known.get(n), history, control)}

    def _write(self) -> None:
        facts = {
            "run_id": self.run_id,
            "nodes": list(self.nodes),
            "approved": dict(self.approved),
            "ended": self.ended,
            "known": dict(self.known),
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
            then = "how far the run has come cannot be noted; the next run finds out what was written"
            raise refused(f"the checkpoint {partial}", e, then) or e from e


@dataclass(frozen=True)
class Left:
    """What runs have left undone; the newest run that left a node says how it is to be done, if a checkpoint tells."""

    nodes: Sequence[str]
    by: Mapping[str, Checkpoint] = field(default_factory=dict)
    last: Checkpoint | None = None  # the newest run
    note: str | None = None

    @property
    def approved(self) -> dict[str, str]:
        """By node, the run whose held deletes were to be applied."""
        return {n: run.approved[n] for n, run in self.by.items() if n in run.approved}

    @property
    def of_a_plan(self) -> tuple[Checkpoint, list[str]] | None:
        """A run that applied a plan, and what it left."""
        run = next((run for n in self.nodes if (run := self.by.get(n)) and run.plan), None)
        return (run, [n for n in self.nodes if self.by.get(n) is run]) if run else None


def folder_of(control: Path, project: str) -> Path:
    """Where the checkpoints of a project are: several may keep their records in one place."""
    mark = hashlib.sha256(project.encode()).hexdigest()[:8]  # where case does not count, names would meet
    return control / "_checkpoints" / f"{project[:64]}-{mark}"


@dataclass(frozen=True)
class Kept:
    """The checkpoints that are still there, the newest first; and what is to be said of those that cannot be read."""

    runs: Sequence[Checkpoint]
    note: str | None = None


def kept(folder: Path) -> Kept:
    """The checkpoints of a project."""
    found, unreadable = [], []
    for file in sorted(folder.glob(_NAMES), reverse=True):
        try:
            found.append(_checked(Checkpoint(folder, **json.loads(file.read_text(encoding="utf-8")))))
        except FileNotFoundError:  # a run that begins lets the oldest go
            continue
        except (ValueError, TypeError):
            unreadable.append(file.name)
    note = f"checkpoint {', '.join(unreadable)} cannot be read: the records tell what is left" if unreadable else None
    return Kept(found, note)


def _checked(run: Checkpoint) -> Checkpoint:
    """The checkpoint, if its facts are of the kinds that are written; else a TypeError."""
    kinds = {"run_id": str, "nodes": list, "approved": dict, "ended": dict, "known": dict, "number": int, "owner": str}
    names = run.nodes, run.approved, run.ended, run.known
    if not all(isinstance(getattr(run, fact), kind) for fact, kind in kinds.items()):
        raise TypeError("a fact is of another kind")
    texts = [*itertools.chain(*names), *run.approved.values(), *run.ended.values()]
    if not all(isinstance(t, str) for t in texts) or not all(isinstance(n, int) for n in run.known.values()):
        raise TypeError("a name is not a text, or a number not a number")
    return run


def left(there: Kept, history: Sequence[RunRow], control: Sequence[ControlRow], graph: Graph) -> Left:
    """What runs have left and nobody has done since, in the order of the graph."""
    runs, by = there.runs, _left_by(there.runs, history, control, graph)
    spoken_of = {n for run in runs for n in run.nodes} if there.note is None else set()
    recorded = (left_by_records(history, control) - spoken_of) & set(graph.order)
    found = {*by, *recorded, *(n for r in recorded for n in graph.reach(r, up=False))}
    return Left([n for n in graph.order if n in found], by, runs[0] if runs else None, there.note)


def _left_by(
    runs: Sequence[Checkpoint], history: Sequence[RunRow], control: Sequence[ControlRow], graph: Graph
) -> dict[str, Checkpoint]:
    """What these runs, the newest first, have left, and the newest that left it.

    What has waited in vain for something that is still to be done is to be done after it, even if it was run meanwhile.
    """
    taken_back = {(r.takes_back, r.node) for r in history if r.recorded and r.takes_back}
    found: dict[str, Checkpoint] = {}
    done: set[str] = set()
    for run in runs:
        undone = (run.undone(history, control) - done) & set(graph.order)
        waiting = run.open & {after for n in undone for after in graph.reach(n, up=False)}
        found = {**dict.fromkeys((*undone, *waiting), run), **found}
        done |= {n for n in set(run.nodes) - run.open if (run.run_id, n) not in taken_back}
    return found


def left_by_records(history: Sequence[RunRow], control: Sequence[ControlRow]) -> set[str]:
    """What failed when it was last tried, and what anybody has begun and not ended."""
    rows = [r for r in history if (r.recorded or r.status == "failed") and not r.coverage.undoes]
    # by their numbers, not by clocks; what failed and ended under one number is looked at below
    tried = {r.node: r for r in sorted(rows, key=lambda r: (r.batch, r.status == "failed"))}
    failed = {n: r.run_id for n, r in tried.items() if r.status == "failed"}
    begun = {r.node for r in control if r.batch_status == "RUNNING" and ledger.number(r) > _finished(r.node, control)}
    return {n for n, run_id in failed.items() if not _done(n, run_id, None, history, control)} | begun


def _done(node: str, run_id: str, known: int | None, history: Sequence[RunRow], control: Sequence[ControlRow]) -> bool:
    """Has the run brought a node to its end, or another one since it failed there, or since it began?

    Numbers tell what came later, since clocks differ and are set: the run has failed at a number that nobody had ended
    before, and `known` was the newest finished one when it began. What is in the history only is left, so that the
    next run finishes its record.
    """
    rows, finished, alive = [r for r in history if r.node == node], _finished(node, control), counting(history)
    failed = max((r.batch for r in rows if r.run_id == run_id and r.status == "failed"), default=0)
    mine = [r for r in rows if r.run_id == run_id and r.batch >= failed and (run_id, node, r.batch) in alive]
    first = failed or (known + 1 if known is not None else sys.maxsize)
    worked = [r for r in rows if r.recorded and not r.coverage.undoes and (r.version is not None or r.rows_read != 0)]
    others = [r for r in worked if r.batch >= first and (r.run_id, node, r.batch) in alive]
    return any(r.batch <= finished for r in (*mine, *others))


def known(nodes: Iterable[str], control: Sequence[ControlRow]) -> dict[str, int]:
    """By node, the newest batch whose record is complete."""
    return {n: _finished(n, control) for n in nodes}


def _finished(node: str, control: Sequence[ControlRow]) -> int:
    return ledger.finished([r for r in control if r.node == node])
