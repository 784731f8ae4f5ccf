"""What libraries print by themselves: one written in Rust tells its panics to descriptor 2, whatever Python does.

A program that speaks to its user by a descriptor of its own may lead the rest into the log of a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

_speaks = {"elsewhere": False}


@contextmanager
def speaking_elsewhere() -> Iterator[None]:
    """Inside, nobody who speaks to the user needs descriptor 2."""
    before, _speaks["elsewhere"] = _speaks["elsewhere"], True
    try:
        yield
    finally:
        _speaks["elsewhere"] = before


@contextmanager
def printed_to(log: IO[str]) -> Iterator[None]:
    """What native code prints goes to a log; programs that speak by descriptor 2 themselves are left alone."""
    if not _speaks["elsewhere"]:
        yield
        return
    kept = os.dup(2)
    try:
        os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
