"""Iceberg on Spark: what each engine writes the other reads, and Spark without strandline reads what both wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from tests.lab import Lab, MemoryStore

from strandline.engine.local.workspace import LocalPlatform
from strandline.errors import CommitConflict, StrandlineError
from strandline.lake import describe
from strandline.plan.inputs import table_of
from strandline.plan.job import Job
from strandline.run.runner import Runner
from strandline.testing.frames import read_table
from strandline.testing.oracle import Frame
from strandline.testing.projects import LAKE

pytestmark = pytest.mark.spark
COLUMNS = [("id", "bigint"), ("name", "string")]


@pytest.fixture(autouse=True)
def iceberg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LAKE, "iceberg")


def frame(*pairs: tuple[int | None, str | None]) -> Frame:
    return Frame(COLUMNS, [{"id": i, "name": n} for i, n in pairs])


class Both(Lab):
    """A lab whose batches are run by the one engine or the other."""

    def on(self, platform: Any, batch: Frame) -> Any:
        self.platform = platform
        return self.run(batch)

    @property
    def ice(self) -> Any:
        uri = f"sqlite:///{self.folder / 'lake' / 'ice.db'}"
        return load_catalog("lake", type="sql", uri=uri).load_table("lake.t")

    def rows(self) -> set[tuple[Any, ...]]:
        found = read_table(self.folder / "lake" / "t").rows
        return {(r["id"], r["name"]) for r in found if not r.get("_is_deleted")}

    def by_spark(self, spark: Any, catalog: str) -> set[tuple[Any, ...]]:
        """The rows as Spark reads them with a catalog that was configured by hand."""
        session = spark.session.newSession()
        start = f"spark.sql.catalog.{catalog}"
        session.conf.set(start, "org.apache.iceberg.spark.SparkCatalog")
        session.conf.set(f"{start}.type", "jdbc")
        session.conf.set(f"{start}.uri", f"jdbc:sqlite:{self.folder / 'lake' / 'ice.db'}")
        session.conf.set(f"{start}.warehouse", str(self.folder / "lake" / "ice"))
        session.conf.set(f"{start}.cache-enabled", "false")
        return {(r["id"], r["name"]) for r in session.table(f"{catalog}.lake.t").collect()}


def both(folder: Path, platform: Any, **write: Any) -> Both:
    return Both(folder, platform, {"mode": "upsert", "keys": ["id"], **write})


@pytest.mark.parametrize("parts", [[], ["name"]], ids=["whole", "partitioned"])
def test_the_engines_take_turns(tmp_path: Path, spark_platform: Any, parts: list[str]) -> None:
    """Spark reads every position delete of the local engine, and the other way round."""
    local, at = LocalPlatform(), both(tmp_path, spark_platform, partition_by=parts)
    at.on(local, frame(*((i, f"n{i % 3}") for i in range(12))))
    at.on(local, frame((0, "n1"), (4, "n9")))
    wanted = {(i, f"n{i % 3}") for i in range(12)} - {(0, "n0"), (4, "n1")} | {(0, "n1"), (4, "n9")}
    assert at.rows() == wanted == at.by_spark(spark_platform, "lake")
    result = at.on(spark_platform, frame((0, "n2"), (5, "n9"), (20, "n2"), (1, "n1")))
    assert (result.inserted, result.updated) == (1, 2)
    wanted = wanted - {(0, "n1"), (5, "n2")} | {(0, "n2"), (5, "n9"), (20, "n2")}
    assert at.rows() == wanted == at.by_spark(spark_platform, "lake")
    at.on(local, frame((20, "n0"), (21, None)))
    wanted = wanted - {(20, "n2")} | {(20, "n0"), (21, None)}
    assert at.rows() == wanted == at.by_spark(spark_platform, "lake")
    assert [r for r in at.ice.metadata.refs if r != "main"] == []
    assert len(at.ice.metadata.snapshots) == 4


def test_spark_makes_a_table_with_its_rows(tmp_path: Path, spark_platform: Any) -> None:
    at = both(tmp_path, spark_platform)
    at.on(spark_platform, frame((1, "a"), (2, "b")))
    (snapshot,) = at.ice.metadata.snapshots
    state = describe(table_of(at.project.config, "lake", "t"), "strandline/test/n")
    assert state is not None
    assert state.commit is not None
    assert (state.version, state.commit.number) == (snapshot.snapshot_id, 1)
    assert at.ice.catalog.list_tables("lake") == [("lake", "t")]
    at.on(spark_platform, Frame([*COLUMNS, ("more", "int")], [{"id": 3, "name": "c", "more": 1}]))
    assert [c.name for c in describe(table_of(at.project.config, "lake", "t")).schema][-1] == "more"
    assert at.rows() == {(1, "a"), (2, "b"), (3, "c")}


def test_a_commit_that_comes_while_spark_writes_is_refused(
    tmp_path: Path, spark_platform: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The branch goes, with what was written on it; the other writer's rows stay."""
    import pyarrow as pa

    from strandline.engine.spark import iceberg as writer

    at, real = both(tmp_path, spark_platform), writer.moved_to_main
    at.on(spark_platform, frame((1, "a")))

    def beside(*args: Any) -> Any:
        monkeypatch.setattr(writer, "moved_to_main", real)
        at.ice.append(pa.table({"id": [9], "name": ["x"]}))
        return real(*args)

    monkeypatch.setattr(writer, "moved_to_main", beside)
    with pytest.raises(CommitConflict):
        at.on(spark_platform, frame((1, "b")))
    assert at.rows() == {(1, "a"), (9, "x")}
    assert list(at.ice.metadata.refs) == ["main"]
    assert len(at.ice.metadata.snapshots) == 2
    at.again()
    assert at.rows() == {(1, "b"), (9, "x")}


def test_two_first_commits_on_spark_make_one_table(
    tmp_path: Path, spark_platform: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    at, real = both(tmp_path, spark_platform), SqlCatalog.rename_table

    def second(*args: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "rename_table", real)
        with LocalPlatform().workspace("other") as engine:
            job = Job(at.config, at.config.config.nodes[0], at.clock)
            Runner(MemoryStore(), "other").run(job, engine)
        return real(*args)

    monkeypatch.setattr(SqlCatalog, "rename_table", second)
    with pytest.raises(StrandlineError):
        at.on(spark_platform, frame((1, "a")))
    assert at.rows() == {(1, "a")}
    assert at.ice.catalog.list_tables("lake") == [("lake", "t")]


def test_a_branch_that_a_dead_runner_left_is_swept(tmp_path: Path, spark_platform: Any) -> None:
    from strandline.engine.staging import owner

    at = both(tmp_path, spark_platform)
    at.on(spark_platform, frame((1, "a")))
    dead = owner().rpartition("+")[0] + "+1"
    left = f"strandline-{dead.encode().hex()}-12345678"
    with at.ice.manage_snapshots() as manage:
        head = at.ice.metadata.current_snapshot().snapshot_id
        manage.create_branch(head, left).create_branch(head, "theirs").create_tag(head, "kept")
    at.on(spark_platform, frame((1, "b")))
    assert set(at.ice.metadata.refs) == {"main", "theirs", "kept"}
