"""A star whose run dies: the next run makes the same tables, with the same keys, as one that nothing has stopped."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.crashing import Runs

from strandline.testing.frames import assert_same, read_table
from strandline.testing.oracle import Frame
from strandline.testing.projects import make_project

MEMBERS = {1: "id,name\n1,a\n2,b\n", 2: "id,name\n1,A\n2,b\n3,c\n"}
FACTS = {1: "f,id,v\n1,1,1\n2,8,1\n", 2: "f,id,v\n1,1,1\n2,8,2\n3,3,1\n4,9,1\n5,7,1\n6,,1\n"}
POINTS = (
    *(f"{p}@dim" for p in ("judged", "commit.before", "commit.after", "log.after", "put.before")),
    # the second batch of the dimension: its skeletons
    "skeletons.before", "running.after@dim#2", "commit.before@dim#2", "commit.after@dim#2", "log.before@dim#2",
    "log.after@dim#2", "put.before@dim#2", "skeletons.after",
    *(f"{p}@fact" for p in ("judged", "notes.before", "commit.before", "commit.after", "log.after", "put.before")),
)  # fmt: skip
QUICK = {"commit.after@dim", "commit.after@dim#2", "log.before@dim#2", "skeletons.after"}


def project(folder: Path, strategy: str, mode: str) -> None:
    read = {"connection": "files", "schema": {"id": "bigint"}}
    write: dict[str, Any] = {"connection": "lake", "table": "dim", "mode": mode, "keys": ["id"]}
    write |= {"surrogate_key": {"column": "sk", "strategy": strategy}, "default_members": True}
    key = {"column": "sk", "dimension": "dim", "lookup": {"id": "id"}, "on_missing": "skeleton"}
    fact = {"connection": "lake", "table": "fact", "mode": "upsert", "keys": ["f"]}
    nodes: list[dict[str, Any]] = [
        {"name": "dim", "read": {**read, "path": "members.csv"}, "write": write},
        {
            "name": "fact",
            "read": {**read, "path": "facts.csv"},
            "foreign_keys": [{**key, "repoint": True}],
            "write": fact,
        },
    ]
    make_project(folder, nodes)


def land(folder: Path, number: int) -> None:
    (folder / "landing" / "members.csv").write_text(MEMBERS[number])
    (folder / "landing" / "facts.csv").write_text(FACTS[number])


def shown(folder: Path, table: str) -> Frame:
    """A table; instants to the second, as each batch that a runner finishes is a microsecond later."""
    frame = read_table(folder / "lake" / table)
    rows = [
        {n: v.replace(microsecond=0) if isinstance(v, datetime) else v for n, v in row.items()}
        for row in frame.rows
    ]
    return Frame(frame.columns, rows)


@pytest.fixture(scope="module")
def runs() -> Any:
    with Runs() as started:
        yield started


@pytest.mark.parametrize(
    "fault", [p if p in QUICK else pytest.param(p, marks=pytest.mark.long) for p in POINTS]
)
@pytest.mark.parametrize("how", ["kill", "raise"])
def test_a_run_that_dies_gives_the_same_star(
    tmp_path: Path, runs: Runs, fault: str, how: str
) -> None:
    strategy, mode = ("sequence", "scd2") if POINTS.index(fault) % 2 else ("sequence", "upsert")
    whole, dead = tmp_path / "whole", tmp_path / "dead"
    project(whole, strategy, mode)
    land(whole, 1)
    assert set(runs.run(whole, 1).statuses()) == {"success"}
    land(whole, 2)
    shutil.copytree(whole, dead)
    assert set(runs.run(whole, 2).statuses()) == {"success"}
    died = runs.run(dead, 2, f"{fault}:{how}")
    assert died.killed if how == "kill" else "failed" in died.statuses(), died
    again = runs.run(dead, 2)
    assert set(again.statuses()) <= {"success", "unchanged"}, again
    for table in ("dim", "fact"):
        assert_same(shown(dead, table), shown(whole, table))
    keys = sorted(r["sk"] for r in read_table(dead / "lake" / "dim").rows if r["sk"] > 0)
    assert keys == list(range(1, len(keys) + 1)), "no gap, and no key twice"
    assert set(runs.run(dead, 3).statuses()) == {"unchanged"}
