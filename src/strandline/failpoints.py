"""Named points before and after every effect of a run, where a test may stop it: nothing happens there otherwise.

    STRANDLINE_TESTING=1 STRANDLINE_FAULT=commit.after@silver:kill strandline run

The actions are `kill` (as hard as a process can die), `raise` (a fault of ours) and `pause` (stopped until SIGCONT).
`@node` limits a fault to one node, `#2` to the second time that the point is passed. Without STRANDLINE_TESTING nothing
is read from the environment.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from strandline.errors import UsageError

POINTS = {
    "run.start": "a run has its number, and nothing has happened yet",
    "node.start": "a node is about to look at its records",
    "recover.before": "a batch was found that the records do not know",
    "recover.after": "its record is finished",
    "running.before": "before a batch is announced in etl_control",
    "running.after": "after it was announced",
    "read.after": "the sources are known and limited",
    "stage.before": "before rows are staged",
    "stage.after": "after rows were staged",
    "judged": "the change set is evaluated and judged",
    "notes.before": "before etl_changes is written",
    "notes.after": "after etl_changes was written",
    "quarantine.before": "before the rows that checks put aside are written",
    "quarantine.after": "after they were written",
    "quarantine.sweep": "the batch is recorded, and rows that have left are not removed yet",
    "commit.before": "before the data commit",
    "commit.rows": "the last row has left for the data commit",
    "commit.after": "after the data commit",
    "readback.after": "the table says that the commit is this run's",
    "log.before": "before the batch is added to etl_runs",
    "log.after": "after the batch was added to etl_runs",
    "put.before": "before etl_control gets the newest state",
    "put.after": "after etl_control got the newest state",
    "control.write": "a control table was read, and is about to be written",
    "sweep.before": "before staged files are removed",
    "sweep.after": "after staged files were removed",
    "checkpoint.before": "before a finished node is noted in the checkpoint",
    "checkpoint.after": "after a finished node was noted in the checkpoint",
    "skeletons.before": "a dimension lacks members that facts know, and nothing was written for them",
    "skeletons.after": "the dimension has a row for each of them, and the facts are still to come",
    "reject.before": "before held deletes are rejected",
    "undo.before": "nothing is in the way of an undo, and nothing has happened yet",
    "undo.after": "after the undo of one table",
    "run.end": "every node has ended",
}
_SPEC = re.compile(
    r"(?P<point>[a-z.]+)(@(?P<node>[^#:]+))?(#(?P<time>[1-9]\d*))?:(?P<action>kill|raise|pause)"
)

Hook = Callable[[str, str | None], None]


class InjectedFault(RuntimeError):
    """What `raise` raises: not one of our errors, as a fault of ours would not be."""


@dataclass
class _Fault:
    point: str
    node: str | None
    time: int
    action: str
    passed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, name: str, node: str | None) -> None:
        if name != self.point or (self.node is not None and node != self.node):
            return
        with self.lock:
            self.passed += 1
            due = self.passed == self.time
        if due:
            self._act(name)

    def _act(self, name: str) -> None:
        match self.action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "pause":
                os.kill(os.getpid(), signal.SIGSTOP)
            case _:
                raise InjectedFault(f"fault injected at {name}")


def parse(text: str) -> Hook:
    """The fault that STRANDLINE_FAULT asks for."""
    found = _SPEC.fullmatch(text)
    if found is None or found["point"] not in POINTS:
        expected = f"STRANDLINE_FAULT={text}: expected POINT[@NODE][#TIME]:kill|raise|pause"
        raise UsageError(expected, hint=f"the points are: {', '.join(POINTS)}")
    return _Fault(found["point"], found["node"], int(found["time"] or 1), found["action"])


def _from_environment() -> Hook | None:
    text = os.environ.get("STRANDLINE_FAULT")
    return parse(text) if text and os.environ.get("STRANDLINE_TESTING") == "1" else None


_hook: Hook | None = _from_environment()


def point(name: str, node: str | None = None) -> None:
    """A named point; costs a comparison unless a test waits there."""
    if _hook is not None:
        _hook(name, node)


@contextmanager
def armed(hook: Hook | str) -> Iterator[None]:
    """For tests: whatever passes a point inside comes to the hook first."""
    global _hook  # noqa: PLW0603 – one per process, as the environment's
    before, _hook = _hook, parse(hook) if isinstance(hook, str) else hook
    try:
        yield
    finally:
        _hook = before
