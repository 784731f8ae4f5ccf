"""Somebody else writes into our table between our look and our commit: what was compared is void, and is done again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from strandline import failpoints
from strandline.lake.delta import log as delta_log
from strandline.project import StrandlineProject
from strandline.run.retry import Retry
from strandline.testing.frames import read_table
from strandline.testing.projects import make_project

LONG = partial(pytest.param, marks=pytest.mark.long_on_spark)
LAKE = {"connection": "lake"}
SCHEMA = {"id": "bigint", "v": "string", "at": "timestamp_ntz"}


def project(folder: Path, **write: Any) -> StrandlineProject:
    read = {"connection": "files", "path": "rows.csv", "schema": SCHEMA}
    return make_project(
        folder,
        [{"name": "a", "read": read, "write": {**LAKE, "table": "a", "keys": ["id"], **write}}],
    )


def land(folder: Path, *rows: tuple[int, str]) -> None:
    text = "".join(f"{i},{v},2024-01-0{1 + v.isupper()}T00:00:00\n" for i, v in rows)
    (folder / "landing" / "rows.csv").write_text("id,v,at\n" + text)


def content(folder: Path) -> list[tuple[int, str]]:
    rows = read_table(folder / "lake" / "a").rows
    return sorted((r["id"], r["v"]) for r in rows if r.get("_is_current", True))


def deletes(table: Path) -> None:
    DeltaTable(str(table)).delete("id = 1")


def inserts(table: Path) -> None:
    there = pa.schema(DeltaTable(str(table)).schema().to_arrow())
    row = {"id": 4, "v": "theirs", "_batch_id": 1}
    mine = {f.name: pa.array([row.get(f.name)], f.type) for f in there}
    write_deltalake(str(table), pa.table(mine), mode="append")


def optimizes(table: Path) -> None:
    DeltaTable(str(table)).optimize.compact()


@contextmanager
def meanwhile(folder: Path, act: Callable[[Path], None]) -> Iterator[list[str]]:
    """Somebody acts once, right before the batch is committed to the table."""
    seen: list[str] = []

    def watch(name: str, node: str | None) -> None:
        seen.append(name)
        if name == "commit.before" and seen.count(name) == 1:
            act(folder / "lake" / "a")

    with failpoints.armed(watch):
        yield seen


@pytest.mark.parametrize(
    ("act", "commits"),
    [(deletes, 2), (inserts, 2), (optimizes, 1)],
    ids=["deletes", "inserts", "optimizes"],
)
@pytest.mark.parametrize("come", ["changed", LONG("new"), LONG("both")])
def test_rows_that_moved_between_the_look_and_the_commit(
    tmp_path: Path, platform: Any, act: Callable[[Path], None], commits: int, come: str
) -> None:
    loaded = project(tmp_path, mode="upsert")
    land(tmp_path, (1, "a"), (2, "b"))
    loaded.run(platform=platform, check=True)
    rows = {1: "a" if come == "new" else "A", 2: "b", **({} if come == "changed" else {4: "d"})}
    land(tmp_path, *rows.items())
    with meanwhile(tmp_path, act) as seen:
        result = loaded.run(platform=platform, retry=Retry(wait=0), check=True)
    assert result.exit_code == 0
    assert seen.count("commit.before") == commits
    theirs = {4: "theirs"} if act is inserts and come == "changed" else {}
    assert content(tmp_path) == sorted({**rows, **theirs}.items())


@pytest.mark.parametrize(
    "effective", [LONG({}), {"effective_at": "at"}], ids=["by batch", "by business time"]
)
@pytest.mark.long_on_spark
def test_a_history_that_somebody_shortens(
    tmp_path: Path, platform: Any, effective: dict[str, str]
) -> None:
    loaded = project(tmp_path, mode="scd2", **effective)
    land(tmp_path, (1, "a"), (2, "b"))
    loaded.run(platform=platform, check=True)
    land(tmp_path, (1, "A"), (2, "b"), (4, "d"))
    with meanwhile(tmp_path, deletes) as seen:
        loaded.run(platform=platform, retry=Retry(wait=0), check=True)
    assert "commit.before" in seen
    assert content(tmp_path) == [(1, "A"), (2, "b"), (4, "d")]


@pytest.mark.spark
def test_what_the_table_format_lets_through_in_the_moment_of_the_commit_is_told(
    tmp_path: Path, spark_platform: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta lets an append land beside a MERGE that began after our check and before it."""
    loaded = project(tmp_path, mode="upsert")
    land(tmp_path, (1, "a"), (2, "b"))
    loaded.run(platform=spark_platform, check=True)
    land(tmp_path, (1, "A"), (2, "b"))
    check = delta_log.open_on

    def checks_then_inserts(*asked: Any) -> Any:
        found = check(*asked)
        inserts(tmp_path / "lake" / "a")
        return found

    monkeypatch.setattr(delta_log, "open_on", checks_then_inserts)
    result = loaded.run(platform=spark_platform, check=True)
    assert [w.split(",")[0] for w in result.nodes[0].warnings] == [
        "version 1 (WRITE) came meanwhile"
    ]
    assert content(tmp_path) == [(1, "A"), (2, "b"), (4, "theirs")]


def test_nothing_of_ours_or_of_upkeep_is_a_stranger(tmp_path: Path, pandas_platform: Any) -> None:
    """A column that the batch itself adds, and a table that somebody compacts, make no warning."""
    loaded = project(tmp_path, mode="upsert")
    land(tmp_path, (1, "a"), (2, "b"))
    loaded.run(platform=pandas_platform, check=True)
    (tmp_path / "landing" / "rows.csv").write_text("id,v,at,more\n1,A,2024-01-01T00:00:00,x\n")
    with meanwhile(tmp_path, optimizes):
        result = loaded.run(platform=pandas_platform, check=True)
    assert result.nodes[0].warnings == []
    assert content(tmp_path) == [(1, "A"), (2, "b")]
