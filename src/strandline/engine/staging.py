"""Folders for staged rows. Each tells by its name who works in it, so that what a dead process left is swept at once.

No lock: a folder of a process that is gone is rubbish, whoever finds it. Of processes on other machines nothing is
known but the time: theirs are swept after a day.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strandline.faults import point
from strandline.switches import enabled

_MARK = ".of."
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


def sweep(root: Path, prefix: str = "") -> list[str]:
    """Remove what dead processes have staged; returns what was found."""
    if not enabled("STAGING_CLEANUP") or not root.is_dir():
        return []
    found = [folder for folder in root.glob(f"{prefix}*") if folder.is_dir() and _dead(folder)]
    for folder in found:
        shutil.rmtree(folder, ignore_errors=True)
    return [folder.name for folder in found]


def _dead(folder: Path) -> bool:
    _, mark, name = folder.name.rpartition(_MARK)
    there = alive(name) if mark else None
    if there is not None:
        return not there
    try:
        return time.time() - folder.stat().st_mtime > _STALE
    except FileNotFoundError:
        return False


def owner() -> str:
    """The name of this process, which no other ever has."""
    return _owner(os.getpid())


def alive(name: str) -> bool | None:
    """Is the process of this name still there? None: it is one of another machine."""
    place, _, process = name.rpartition("~")
    pid, _, _ = process.partition("+")
    return name == _owner(int(pid)) if place == _place() and pid.isdigit() else None


def _owner(pid: int) -> str:
    """A process on this machine, told from a later one with the same number by the time it began."""
    return f"{_place()}~{pid}+{_began(pid)}"


def _place() -> str:
    return "".join(c if c.isalnum() else "-" for c in socket.gethostname())


def _began(pid: int) -> str:
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        fields = stat.read_text().rpartition(")")[2].split()
        return "dead" if fields[0] in "ZX" else fields[19]
    if Path("/proc/self/stat").exists():
        return "dead"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "dead"
    except PermissionError:
        pass
    return "0"
