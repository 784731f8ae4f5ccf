"""The jars Spark needs beside its own: resolved once, then taken from a folder without asking the network.

`python -m strandline.engine.spark.jars` fetches them ahead of the first session.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from strandline.errors import EngineError
from strandline.journal import log

DELTA = "io.delta:delta-spark_4.1_2.13:4.4.0"
DRIVERS = ("org.postgresql:postgresql:42.7.14", "org.xerial:sqlite-jdbc:3.53.4.0")
PACKAGES = (DELTA, *DRIVERS)
ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
"""Only where a project has Iceberg tables."""
DOWNLOAD = "about 200 MB, once"
_LISTING = "classpath.txt"


def cache_folder() -> Path:
    """Where jars are kept: STRANDLINE_CACHE, else the user's cache folder."""
    home = os.environ.get("STRANDLINE_CACHE") or os.environ.get("XDG_CACHE_HOME")
    return Path(home) / "strandline" if home else Path.home() / ".cache" / "strandline"


def resolve(packages: Sequence[str] = PACKAGES) -> list[str]:
    """The jar files of some Maven packages and all they need, without those that PySpark ships."""
    if jars := cached(packages):
        return jars
    folder = _folder(packages)
    log.info("downloading the jars of %s to %s, %s", ", ".join(packages), folder, DOWNLOAD)
    _fetch(packages, folder)
    jars = [str(p) for p in _missing_from_spark(sorted((folder / "ivy" / "jars").glob("*.jar")))]
    if not jars:
        raise EngineError(
            "the jars that Spark needs could not be found after they were fetched",
            hint=f"remove {folder}",
        )
    (folder / _LISTING).write_text("\n".join(jars))
    return jars


def cached(packages: Sequence[str] = PACKAGES) -> list[str]:
    """The jar files of packages that were downloaded before; none when they were not, or one is gone."""
    listing = _folder(packages) / _LISTING
    jars = listing.read_text().split("\n") if listing.exists() else []
    return jars if all(Path(j).exists() for j in jars) else []


def _folder(packages: Sequence[str]) -> Path:
    digest = hashlib.sha256("\n".join(sorted(packages)).encode()).hexdigest()[:12]
    return cache_folder() / f"jars-{digest}"


def _fetch(packages: Sequence[str], folder: Path) -> None:
    """Let Spark's own resolver fetch them, so that its settings for mirrors apply."""
    import pyspark

    home = Path(pyspark.__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".py") as nothing:
        command = [
            str(home / "bin" / "spark-submit"), "--master", "local[1]", "--packages", ",".join(packages),
            "--conf", f"spark.jars.ivy={folder / 'ivy'}", nothing.name,
        ]  # fmt: skip
        env = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)  # noqa: S603
    if done.returncode != 0:
        lines = [
            line.strip()
            for line in done.stderr.splitlines()
            if re.search("(?i)error|not found|exception|unresolved", line)
        ]
        raise EngineError(
            f"the jars for Delta Lake could not be fetched: {lines[0] if lines else done.stderr.strip()[-300:]}",
            hint="a Maven repository must be reachable the first time; later runs need no network",
        )


def _missing_from_spark(jars: Sequence[Path]) -> list[Path]:
    import pyspark

    shipped = {_artifact(p.name) for p in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    # hadoop-client-api and -runtime are in Spark under their own names; Ivy's names start with the group
    return [p for p in jars if _artifact(p.name.split("_", 1)[1]) not in shipped]


def _artifact(name: str) -> str:
    return re.sub(r"-\d[\w.-]*\.jar$", "", name)


def main() -> None:
    """Fetch the default packages and say so."""
    try:
        jars = resolve()
    except EngineError as e:
        sys.exit(f"{e.message}\n  → {e.hint}")
    print(f"Spark jars ready ({len(jars)} files)")  # noqa: T201 – a program of its own


if __name__ == "__main__":
    main()
