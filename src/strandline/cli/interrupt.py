"""Ctrl-C: the command ends at once, and says what becomes of what it had begun. Imports nothing that takes time."""

from __future__ import annotations

import atexit
import json
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

DATA = {"fd": 1}
"""Where data goes now: an interrupted command must still end in valid JSON."""

TALK = {"fd": 2}
"""Where errors go now: a run may lead what libraries print to descriptor 2 into its log."""

_RUN = "the next run finds out what was written and goes on from there"
_NEXT = {
    "run": _RUN,
    "retry": _RUN,
    "approve": "deletes that were not applied are still held: strandline status names them; approve again",
    "reject": "deletes that were not rejected are still held: strandline status names them; reject again",
}
_PLAN = (
    "the next run finds out what was written; the rest of the plan was not applied: make a new one"
)
_UNDO = "an undo that was begun is finished by asking for it again, before anything else runs: strandline undo {0}"
_TAKES_A_VALUE = ("--project-dir", "--engine")


class Interrupt:
    """While a command is at work, Ctrl-C leaves its nodes as a kill would leave them, which every run survives."""

    def __init__(self, given: Sequence[str]) -> None:
        self.given = list(given)
        self.previous: Any = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self.previous = signal.signal(signal.SIGINT, self._stop)

    def __exit__(self, *_: object) -> None:
        if self.previous is not None:
            signal.signal(signal.SIGINT, self.previous)

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Straight to the terminal: the live display's thread may hold any lock at this moment.
        for fd in (1, TALK["fd"]):
            if os.isatty(fd) and os.environ.get("TERM") != "dumb":
                os.write(fd, b"\r\x1b[J\x1b[?25h")  # the cursor that the display hid
        hint = what_next(self.given)
        with suppress(OSError):
            os.write(TALK["fd"], f"interrupted{f'; {hint}' if hint else ''}\n".encode())
        if "--json" in self.given:
            facts = {
                "code": "interrupted",
                "message": "interrupted",
                "file": None,
                "line": None,
                "hint": hint,
            }
            with suppress(OSError):
                os.write(DATA["fd"], f"{json.dumps({'error': facts})}\n".encode())
        with suppress(Exception):
            atexit._run_exitfuncs()  # noqa: SLF001 – temporary folders go, a Spark that we started stops
        os._exit(130)


def what_next(given: Sequence[str]) -> str | None:
    """What becomes of what an interrupted command had begun; None when it had nothing to begin."""
    command, *rest = [*given, ""]
    if command == "undo":
        words = zip(given, rest, strict=True)
        run = next(
            (w for before, w in words if w and w[0] != "-" and before not in _TAKES_A_VALUE), "RUN"
        )
        return None if "--dry-run" in rest else _UNDO.format(run)
    if command == "run" and any(word.partition("=")[0] == "--plan" for word in rest):
        return _PLAN
    return _NEXT.get(command)
