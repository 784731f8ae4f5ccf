"""The log of a run: how long each step of each node took, in a file per run (and live with `--debug`)."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from strandline import native
from strandline.words import redact

log = logging.getLogger("strandline")
log.addHandler(logging.NullHandler())  # what nobody listens to is not printed
_KEPT = 100
_timed = threading.local()  # a node is worked on by one thread


def timings() -> dict[str, float]:
    """The seconds that each step of this thread's node has taken, and from here on none."""
    found: dict[str, float] = getattr(_timed, "steps", {})
    _timed.steps = {}
    return found


@contextmanager
def step(node: str, name: str) -> Iterator[None]:
    """Time one step of one node; a step that fails says so too."""
    began = time.monotonic()
    outcome = "failed"
    try:
        yield
        outcome = "done"
    finally:
        took = time.monotonic() - began
        if not hasattr(_timed, "steps"):
            _timed.steps = {}
        _timed.steps[name] = round(_timed.steps.get(name, 0.0) + took, 4)
        log.info("%-28s %-10s %s in %.3f s", node, name, outcome, took)


class _Redacting(logging.Formatter):
    """Whatever a driver put into its error, secrets do not reach a log."""

    def __init__(self, secrets: Sequence[str]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self.secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record), self.secrets)


@contextmanager
def run_log(root: Path, run_id: str, secrets: Sequence[str], *, live: bool) -> Iterator[None]:
    """Keep the log of one run in `.strandline/logs`; the newest hundred stay."""
    folder = root / ".strandline" / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(folder.glob("*.log"))[: -_KEPT + 1]:
        old.unlink(missing_ok=True)
    file = logging.FileHandler(folder / f"{run_id}.log", encoding="utf-8")
    handlers: list[logging.Handler] = [file, *([logging.StreamHandler()] if live else [])]
    before = log.level
    log.setLevel(logging.INFO)
    for handler in handlers:
        handler.setFormatter(_Redacting(secrets))
        log.addHandler(handler)
    try:
        with native.printed_to(file.stream or sys.stderr):
            yield
    finally:
        log.setLevel(before)
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()
