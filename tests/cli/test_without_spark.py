"""A plain `pip install` has no Spark and no pandas: whoever asks for them is told what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Call, add

from strandline.cli.runs import starting
from strandline.project import load

WITH_PYTHON = """
  - name: gold_python
    read: {connection: silver, table: orders}
    transform: {steps: [{operation: python, params: {function: steps.same, engine: pandas}}]}
    write: {connection: gold, table: python, mode: overwrite}
"""


@pytest.fixture
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("pyspark", "pandas"):
        monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed


@pytest.mark.usefixtures("_plain")
@pytest.mark.parametrize("command", ["plan", "run", "compile gold_revenue", "undo x"])
def test_spark_is_asked_for_and_not_installed(cli: Call, shop: Path, command: str) -> None:
    answer = cli(*command.split(), "--engine", "spark", "--project-dir", "shop", "--json")
    assert answer.code == 1
    assert answer.json["error"]["code"] == "engine"
    assert (
        answer.json["error"]["message"] == "Spark is not installed: there is no package `pyspark`"
    )
    assert answer.json["error"]["hint"].startswith("pip install 'strandline[spark]'")
    assert starting(load(shop, engine="spark")) is None  # nothing is said to start


@pytest.mark.usefixtures("_plain")
def test_a_python_step_without_pandas(cli: Call, shop: Path) -> None:
    (shop / "steps.py").write_text("def same(frame):\n    return frame\n")
    add(shop, WITH_PYTHON)
    answer = cli("run", "--project-dir", "shop", "--select", "+gold_python", "--json")
    error = next(n["error"] for n in answer.json["nodes"] if n["name"] == "gold_python")
    assert (error["message"], error["hint"]) == (
        "a python step needs pandas, which is not installed",
        "pip install 'strandline[pandas]'",
    )


def test_doctor_downloads_nothing(
    cli: Call, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLINE_CACHE", str(tmp_path / "cache"))
    answer = cli("doctor", "--engine", "spark", "--project-dir", "shop", "--json")
    (jars,) = (c for c in answer.json["checks"] if c["name"] == "Spark jars")
    where = tmp_path / "cache" / "strandline"
    assert jars["found"] == (
        f"not downloaded yet: the first run on Spark downloads them to {where} (about 200 MB, once)"
    )
    assert jars["ok"]
    assert not where.exists()
    told = starting(load(shop, engine="spark"))
    assert told == "downloading the jars that Spark needs (about 200 MB, once), starting Spark"
