"""Folders for staged rows. Each tells by its name who works in it, so that what a dead process left is swept at once.

No lock: a folder of a process that is gone is rubbish, whoever finds it. Of processes on other machines nothing is
known but the time: theirs are swept after a day.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strandline.failpoints import point
from strandline.switches import enabled

_MARK = ".of."
_SCRATCH = "strandline-work-"
_STALE = 24 * 3600.0


@contextmanager
def staging(root: Path, name: str) -> Iterator[Path]:
    """A folder of this process, which is not made yet; what is in it afterwards goes."""
    folder = root / f"{name}-{uuid.uuid4().hex[:12]}{_MARK}{owner()}"
    try:
        yield folder
    finally:
        point("sweep.before", name)
        if enabled("STAGING_CLEANUP"):
            shutil.rmtree(folder, ignore_errors=True)
        point("sweep.after", name)


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """A folder of this process among the temporary ones of its machine."""
    with staging(Path(tempfile.gettempdir()), f"{_SCRATCH}{name}") as folder:
        folder.mkdir(parents=True)
        yield folder


def sweep_scratch() -> list[str]:
    """Remove what dead processes left among the temporary folders of this machine, whatever they were doing."""
    return sweep(Path(tempfile.gettempdir()), _SCRATCH)


def sweep(root: Path, prefix: str = "") -> list[str]:
    """Remove what dead processes have staged; returns what was found."""
    if not enabled("STAGING_CLEANUP") or not root.is_dir():
        return []
    found = [folder for folder in root.glob(f"{prefix}*") if _dead(folder)]
    for folder in found:
        shutil.rmtree(folder, ignore_errors=True)
    return [folder.name for folder in found]


def _dead(folder: Path) -> bool:
    """Is it known that nobody works there any more? What cannot be looked at is left: a sweep fails no run."""
    _, mark, name = folder.name.rpartition(_MARK)
    try:
        there = alive(name) if mark else None
        stale = time.time() - folder.stat().st_mtime > _STALE if there is None else not there
        return stale and folder.is_dir()
    except OSError:
        return False


def owner() -> str:
    """The name of this process, which no other ever has."""
    return _owner(os.getpid())


def alive(name: str) -> bool | None:
    """Is the process of this name still there? None: it is one of another machine, or hidden from this user."""
    place, _, process = name.rpartition("~")
    pid, _, _ = process.partition("+")
    if place != _place() or not pid.isdecimal():
        return None
    try:
        return name == _owner(int(pid))
    except PermissionError:
        return None


def _owner(pid: int) -> str:
    """A process on this machine, told from a later one with the same number by the time it began."""
    return f"{_place()}~{pid}+{_began(pid)}"


def _place() -> str:
    return "".join(c if c.isalnum() else "-" for c in socket.gethostname())


def _began(pid: int) -> str:
    """When a process began, as its system counts; `dead` when it has ended, `0` where nobody tells."""
    # Read at once, without asking first whether it is there: it may end in between, and while it is read.
    try:
        text = (
            Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2]
        )  # a name before it may be in any encoding
    except (FileNotFoundError, ProcessLookupError):
        return "dead" if Path("/proc/self/stat").exists() else _signalled(pid)
    fields = text.decode().split()
    return "dead" if fields[0] in "ZX" else fields[19]


def _signalled(pid: int) -> str:
    """The same on a system without `/proc`."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "dead"
    except PermissionError:
        pass  # it is somebody else's, and there
    return "0"
