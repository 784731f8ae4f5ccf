"""Finding a Java that Spark can use."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from strandline.errors import EngineError

_OLDEST = 17


def ensure_java() -> None:
    """Set JAVA_HOME to a Java of at least 17, unless it is one already."""
    for java in _candidates():
        if _version(java) >= _OLDEST:
            os.environ["JAVA_HOME"] = str(java.resolve().parent.parent)
            return
    raise EngineError(
        f"Spark needs Java {_OLDEST} or newer, and none was found",
        hint="Debian: apt-get install openjdk-17-jre-headless; or set JAVA_HOME; or run with --engine local",
    )


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if found := shutil.which("java"):
        yield Path(found)
    yield from sorted(Path("/usr/lib/jvm").glob("*/bin/java"))


def _version(java: Path) -> int:
    if not java.exists():
        return 0
    release = java.resolve().parent.parent / "release"  # saves starting a JVM only to ask
    text = release.read_text() if release.exists() else _ask(java)
    found = re.search(r'(?:JAVA_VERSION="|version ")(?:1\.)?(\d+)', text)
    return int(found[1]) if found else 0


def _ask(java: Path) -> str:
    return subprocess.run(  # noqa: S603
        [str(java), "-version"], capture_output=True, text=True, check=False
    ).stderr
