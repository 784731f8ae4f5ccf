"""The command line, called in this process or as a program of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from strandline.cli.main import main

SRC = Path(__file__).parents[2] / "src"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(p for p in (os.environ.get("PYTHONPATH"), str(SRC)) if p),
}


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Answer]


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Call:
    """Call `strandline ARGS` in this process, standing in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*args: str) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(args)
        out, err = capsys.readouterr()
        return Answer(int(ended.value.code or 0), out, err)

    return call


@pytest.fixture
def program(tmp_path: Path) -> Call:
    """Call `python -m strandline ARGS` as a program; `shell` lets it stand in a pipe."""

    def call(*args: str, shell: str | None = None, **environment: str) -> Answer:
        command: Any = (
            f"{sys.executable} -m strandline {shell}"
            if shell
            else [sys.executable, "-m", "strandline", *args]
        )
        done = subprocess.run(
            command, shell=bool(shell), executable="/bin/bash" if shell else None, cwd=tmp_path, text=True, timeout=120,
            capture_output=True, check=False, env={**ENVIRONMENT, **environment},
        )  # fmt: skip
        return Answer(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def shop(cli: Call) -> Path:
    """What `init` writes, in the folder `shop`."""
    assert cli("init", "shop").code == 0
    return Path("shop").absolute()


def add(project: Path, text: str) -> None:
    """Add nodes to a project."""
    with (project / "strandline.yaml").open("a") as file:
        file.write(text)


FAILING = """
  - name: gold_wrong
    read: {connection: silver, table: orders}
    transform: {steps: [{operation: drop, params: {columns: [amout]}}]}
    write: {connection: gold, table: wrong, mode: overwrite}
  - name: gold_after
    read: {connection: gold, table: wrong}
    write: {connection: gold, table: after, mode: overwrite}
"""
