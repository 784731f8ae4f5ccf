"""The same on Spark: processes that die at a point, on a JVM that lives on; and a JVM that is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.crash.test_fault_points import INSIDE, MODES, ONE, THREE, TWO, project
from tests.crashing import ROOT, agrees, at, picture
from tests.effort import SOAK

from strandline import failpoints
from strandline.project import load
from strandline.run.retry import Retry
from strandline.types import Clock

pytestmark = pytest.mark.spark
QUICK = ("running.after", "stage.after", "commit.before", "commit.after", "log.after")
ELSEWHERE = (
    "recover.before",
    "recover.after",
    "commit.rows",
)  # Spark's rows do not pass through this process
POINTS = [p for p in INSIDE if "#" not in p and p not in ELSEWHERE]
DURING = [
    f"commit.before+{n / 5}" for n in range(1, 16)
]  # at a time of the commit, or after it: 0.2 to 3 seconds
KILLED = (
    [p for p in POINTS if p != "commit.before"] + DURING
    if SOAK
    else ["stage.after", "commit.after", "log.after"]
)
IN_PROCESS = ("full append", "events")  # how they end is not a matter of the engine
ON_SPARK = [m for m in MODES if m not in IN_PROCESS]


def cases(quick: tuple[str, ...]) -> Iterator[Any]:
    """Every point in one mode, the modes in turn; the quick ones in `make test`, every mode in `make soak`."""
    for i, point in enumerate(POINTS):
        turn = quick.index(point) if point in quick else i
        for j, mode in enumerate(ON_SPARK):
            if SOAK or j == turn % len(ON_SPARK):
                yield pytest.param(point, mode, marks=[] if point in quick else pytest.mark.long)


def lands(folder: Path, text: str) -> None:
    (folder / "landing").mkdir(exist_ok=True)
    (folder / "landing" / "rows.csv").write_text(text)


def run(folder: Path, platform: Any, hour: int) -> list[str]:
    result = load(folder).run(
        platform=platform, threads=1, clock=Clock(at(hour)), retry=Retry(attempts=1)
    )
    return [n.status for n in result.nodes]


@pytest.fixture(scope="module")
def gateway(spark_platform: Any) -> dict[str, str]:
    """How another process finds the JVM of this one."""
    found = spark_platform.session.sparkContext._gateway.gateway_parameters
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return {
        **os.environ,
        "PYTHONPATH": paths,
        "PYSPARK_GATEWAY_PORT": str(found.port),
        "PYSPARK_GATEWAY_SECRET": found.auth_token,
    }


@pytest.fixture(scope="module")
def prepared(
    spark_platform: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, Any, Any]]:
    """Per mode a project after its first run, and what it looks like after one and two more."""
    found = {}
    for mode in ON_SPARK:
        folder = tmp_path_factory.mktemp(mode)
        start, whole = folder / "start", folder / "whole"
        start.mkdir()
        project(start, mode, soft=False)
        lands(start, ONE)
        assert run(start, spark_platform, 1) == ["success"]
        shutil.copytree(start, whole)
        project(whole, mode, soft=True)
        pictures = []
        for hour, text in ((2, TWO), (3, THREE)):
            lands(whole, text)
            run(whole, spark_platform, hour)
            pictures.append(picture(whole))
        found[mode] = (start, *pictures)
    return found


def begins(folder: Path, start: Path, mode: str) -> None:
    shutil.copytree(start, folder)
    project(folder, mode, soft=True)
    lands(folder, TWO)


def dies(
    folder: Path, start: Path, mode: str, point: str, environment: dict[str, str], *alone: str
) -> Any:
    begins(folder, start, mode)
    command = [sys.executable, "-m", "tests.spark_client", str(folder), "2", point, *alone]
    return subprocess.run(
        command, env=environment, cwd=ROOT, check=False, capture_output=True, text=True, timeout=300
    )


def makes_good(folder: Path, platform: Any, expected: tuple[Any, Any]) -> None:
    assert run(folder, platform, 2)[0] in ("success", "unchanged")
    agrees(folder)
    assert picture(folder) == expected[0]
    lands(folder, THREE)
    run(folder, platform, 3)
    assert picture(folder) == expected[1]
    agrees(folder)


@pytest.mark.parametrize(("point", "mode"), list(cases(QUICK)))
def test_nothing_twice_and_nothing_lost(
    tmp_path: Path,
    spark_platform: Any,
    prepared: Any,
    gateway: dict[str, str],
    mode: str,
    point: str,
) -> None:
    start, *expected = prepared[mode]
    died = dies(tmp_path / "p", start, mode, point, gateway)
    assert died.returncode == -signal.SIGKILL, died.stderr
    makes_good(tmp_path / "p", spark_platform, tuple(expected))


@pytest.mark.parametrize(("point", "mode"), list(cases(("commit.after",))))
def test_a_fault_of_ours(
    tmp_path: Path, spark_platform: Any, prepared: Any, mode: str, point: str
) -> None:
    start, *expected = prepared[mode]
    begins(tmp_path / "p", start, mode)
    with (
        failpoints.armed(f"{point}:raise"),
        suppress(failpoints.InjectedFault),
    ):  # it may be outside of any node
        assert run(tmp_path / "p", spark_platform, 2)[0] in (
            "failed",
            "success",
        )  # or after everything was recorded
    makes_good(tmp_path / "p", spark_platform, tuple(expected))


@pytest.mark.parametrize(
    "point", ["commit.before", *(pytest.param(p, marks=pytest.mark.long) for p in KILLED)]
)
def test_the_jvm_is_killed(
    tmp_path: Path, spark_platform: Any, prepared: Any, gateway: Any, point: str
) -> None:
    start, *expected = prepared["append"]
    own = {k: v for k, v in gateway.items() if not k.startswith("PYSPARK_GATEWAY")}
    died = dies(tmp_path / "p", start, "append", point, own, "alone")
    assert died.stdout in ("failed", "success"), died.stderr  # after the commit nobody needs it
    makes_good(tmp_path / "p", spark_platform, tuple(expected))
