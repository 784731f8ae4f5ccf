"""Runs on Iceberg die too: at every point around a commit, in every write mode; the next run makes good."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.crash.test_fault_points import INSIDE, KEY, MODES, Case
from tests.crashing import Runs

from strandline.testing.projects import LAKE

AROUND = [
    *KEY,
    "commit.rows",
    "readback.after",
    "commit.before#2",
    "commit.after#2",
]


def cases() -> Iterator[Any]:
    """The points around a commit, the modes in turn; all others in `make long`."""
    modes = list(MODES)
    soon = {
        ("events" if "#" in point else modes[i % len(modes)], point, ("kill", "raise")[i % 2])
        for i, point in enumerate(AROUND)
    }
    every = {(m, p, a) for m in modes for p in INSIDE for a in ("kill", "raise")}
    for case in sorted(every | soon):
        yield pytest.param(*case, id="-".join(case), marks=[] if case in soon else pytest.mark.long)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Case]]:
    with Runs() as runs, pytest.MonkeyPatch.context() as patch:
        patch.setenv(LAKE, "iceberg")
        yield cache(lambda mode: Case(tmp_path_factory.mktemp(mode), runs, mode))


@pytest.mark.parametrize(("mode", "point", "action"), list(cases()))
def test_nothing_twice_and_nothing_lost_on_iceberg(
    prepared: Callable[[str], Case], tmp_path: Path, mode: str, point: str, action: str
) -> None:
    first = "log.before:kill" if point.startswith("recover.") else None
    prepared(mode).dies(tmp_path / "p", *([first] if first else []), f"{point}:{action}")
