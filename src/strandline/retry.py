"""Trying again: at once what is likely to pass, and later what a run left undone.

Whether an error is worth another attempt is a matter of its class (`StrandlineError.retryable`), never of its text.
A checkpoint notes which nodes a run was to work on and how each ended, so that `retry` knows what is left, also after
the run was killed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from strandline.errors import StrandlineError
from strandline.faults import point
from strandline.journal import log
from strandline.result import NodeResult
from strandline.switches import enabled

_T = TypeVar("_T")
_KEPT = 20
_NAMES = "[0-9]" * 8 + "-*.json"
_DONE = ("success", "unchanged", "held")


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
    approved: str | None = None
    ended: dict[str, str] = field(default_factory=dict)
    number: int = 1

    def begin(self) -> None:
        """Note what the run is going to do; old notes go."""
        if not enabled("CHECKPOINTS"):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        earlier = sorted(self.folder.glob(_NAMES))
        for old in earlier[: -_KEPT + 1]:
            old.unlink(missing_ok=True)
        # Two runs may begin within one second, and clocks go back: the order is counted.
        self.number = int(earlier[-1].name.split("-")[0]) + 1 if earlier else 1
        self._write()

    def done(self, result: NodeResult) -> None:
        """Note how a node ended."""
        point("checkpoint.before", result.name)
        self.ended[result.name] = result.status
        if enabled("CHECKPOINTS"):
            self._write()
        point("checkpoint.after", result.name)

    @property
    def left(self) -> list[str]:
        """What did not come to a good end: failed, fenced, skipped, or never begun."""
        return [n for n in self.nodes if self.ended.get(n) not in _DONE]

    def _write(self) -> None:
        facts = {
            "run_id": self.run_id,
            "nodes": list(self.nodes),
            "approved": self.approved,
            "ended": self.ended,
            "number": self.number,
        }
        partial = self.folder / f".{self.run_id}.part"
        partial.write_text(json.dumps(facts), encoding="utf-8")
        partial.replace(self.folder / f"{self.number:08d}-{self.run_id}.json")


def newest(folder: Path) -> Checkpoint | None:
    """The checkpoint of the newest run."""
    for file in sorted(folder.glob(_NAMES), reverse=True):
        facts: Mapping[str, object] = json.loads(file.read_text(encoding="utf-8"))
        return Checkpoint(folder, **facts)  # type: ignore[arg-type]
    return None
