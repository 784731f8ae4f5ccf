"""Following a feed, and a history with late rows, on Spark: strandline against scripts by hand with the same result."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
from delta.tables import DeltaTable
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as f

from bench.by_hand import HASH, hashed
from bench.data import COLUMNS
from bench.measure import Contestant, put_back
from strandline.engine.base import Platform
from strandline.project import StrandlineProject
from strandline.testing.projects import make_project

KINDS = {
    "feed": "a feed with 1 % changed and 0.1 % deleted rows, read and merged",
    "scd2": "scd2 in business time: 1 % changed, a tenth of them late",
}
VERSIONS = (1, 10, 50)


def make(folder: Path) -> None:
    """From `full`: `versions`, 1 % of the rows changed a day later, or for every tenth of them a day earlier."""
    if (folder / "versions").exists():
        return
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    day = "CASE WHEN (id // 101) % 10 = 0 THEN -1 ELSE 1 END"
    rows = f"SELECT * REPLACE (name || ' new' AS name, updated_at + to_days({day}) AS updated_at)"
    made = folder / "making-versions"
    made.mkdir(exist_ok=True)
    con.execute(
        f"COPY ({rows} FROM '{folder}/full/*.parquet' WHERE id % 101 = 0) TO '{made}/part.parquet'"
    )
    made.rename(folder / "versions")


def contestants(
    work: Path, data: Path, kind: str, platform: Platform, spark: SparkSession
) -> list[Contestant]:
    """Ours and a script by hand."""
    ours, place = _Ours(work / "ours", data, kind, platform, spark), work / "by-hand"
    loaded = work / f"by-hand-{kind}-loaded"

    def reset() -> None:
        shutil.rmtree(place, ignore_errors=True)
        if not loaded.exists():
            _load(spark, data, loaded, kind)
        put_back(loaded, place)

    scripts: dict[str, Callable[[], None]] = {
        "feed": lambda: _follow(spark, place / "src", place / "t"),
        "scd2": lambda: _versions(spark, data / "versions", place / "t"),
    }
    result = _fingerprint if kind == "feed" else _intervals
    return [
        Contestant(
            "strandline", ours.reset, ours.run, lambda: result(spark, ours.table), ours.folder
        ),
        Contestant("by hand", reset, scripts[kind], lambda: result(spark, place / "t"), place),
    ]


class _Ours:
    """A node that follows a feed, or keeps a history; loaded once and put back before each round."""

    def __init__(
        self, folder: Path, data: Path, kind: str, platform: Platform, spark: SparkSession
    ) -> None:
        self.folder, self.data, self.kind, self.platform, self.spark = (
            folder,
            data,
            kind,
            platform,
            spark,
        )
        self.table = folder / "lake" / "t"
        self.loaded = folder.with_name(f"{folder.name}-{kind}-loaded")

    def reset(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        if not self.loaded.exists():
            self.folder.mkdir(parents=True)
            if self.kind == "feed":
                _source(self.spark, self.data, self.folder / "lake" / "src")
            self.project = self._project("full")
            self.run()
            if self.kind == "feed":
                _change(self.spark, self.folder / "lake" / "src")
            put_back(self.folder, self.loaded)
            shutil.rmtree(self.folder)
        put_back(self.loaded, self.folder)
        self.project = self._project("versions")

    def run(self) -> None:
        self.project.run(platform=self.platform, check=True)

    def _project(self, files: str) -> StrandlineProject:
        read: dict[str, Any] = {
            "connection": "lake",
            "table": "src",
            "incremental": {"mode": "cdf"},
        }
        write: dict[str, Any] = {
            "connection": "lake",
            "table": "t",
            "mode": "upsert",
            "keys": ["id"],
        }
        if self.kind == "scd2":
            read = {"connection": "data", "format": "parquet", "path": f"{files}/*.parquet"}
            write |= {"mode": "scd2", "effective_at": "updated_at"}
        node = {"name": "t", "read": read, "write": write}
        return make_project(
            self.folder, [node], connections={"data": {"type": "files", "path": str(self.data)}}
        )


def many_versions(
    work: Path, platform: Platform, keys: int = 20_000, rounds: int = 3
) -> dict[int, float]:
    """The same change of 1 % of the keys, in dimensions with few and with many versions of each: seconds."""
    found = {}
    for versions in VERSIONS:
        home = work / f"versions-{versions}"
        shutil.rmtree(home, ignore_errors=True)
        (home / "landing").mkdir(parents=True)
        _chains(home / "landing" / "rows.parquet", keys, versions)
        node = {
            "name": "t",
            "read": {"connection": "files", "path": "rows.parquet"},
            "write": {
                "connection": "lake",
                "table": "t",
                "mode": "scd2",
                "keys": ["id"],
                "effective_at": "at",
            },
        }
        project = make_project(home, [node])
        project.run(platform=platform, check=True)
        seconds = []
        for number in range(rounds + 1):
            _chains(home / "landing" / "rows.parquet", keys // 100, 1, after=versions + number)
            began = time.perf_counter()
            project.run(platform=platform, check=True)
            seconds.append(time.perf_counter() - began)
        found[versions] = round(statistics.median(seconds[1:]), 3)  # the first round warms up
    return found


def _chains(file: Path, keys: int, versions: int, after: int = 0) -> None:
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    at = f"TIMESTAMPTZ '2020-01-01 00:00:00+00' + to_days((v + {after})::INTEGER)"
    rows = f"SELECT k AS id, 'value ' || (v + {after}) AS v, {at} AS at FROM range({keys}) a(k), range({versions}) b(v)"
    con.execute(f"COPY ({rows}) TO '{file}'")


# --- by hand, meant to win -----------------------------------------------------------------------------------


def _load(spark: SparkSession, data: Path, place: Path, kind: str) -> None:
    if kind == "feed":
        _source(spark, data, place / "src")
        rows = (
            spark.read.format("delta")
            .load(str(place / "src"))
            .withColumn("_is_deleted", f.lit(False))
        )
        _vectors(rows).option("delta.enableChangeDataFeed", "true").save(str(place / "t"))
        _change(spark, place / "src")
        return
    rows = hashed(spark.read.parquet(str(data / "full")))
    rows = rows.selectExpr(
        "*", "updated_at AS valid_from", "CAST(NULL AS TIMESTAMP) AS valid_to", "true AS is_current"
    )
    _vectors(rows).save(str(place / "t"))


def _vectors(rows: Any) -> Any:
    return rows.write.format("delta").option("delta.enableDeletionVectors", "true")


def _source(spark: SparkSession, data: Path, place: Path) -> None:
    rows = spark.read.parquet(str(data / "full"))
    _vectors(rows).option("delta.enableChangeDataFeed", "true").save(str(place))


def _change(spark: SparkSession, place: Path) -> None:
    spark.sql(f"UPDATE delta.`{place}` SET name = concat(name, ' new') WHERE id % 101 = 1")
    spark.sql(f"DELETE FROM delta.`{place}` WHERE id % 1009 = 2")


def _follow(spark: SparkSession, source: Path, target: Path) -> None:
    """The newest change of every key since the first version, merged; what was deleted is flagged."""
    feed = (
        spark.read.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", 1)
        .load(str(source))
    )
    newest = Window.partitionBy("id").orderBy(f.desc("_commit_version"))
    feed = feed.where("_change_type <> 'update_preimage'").withColumn(
        "n", f.row_number().over(newest)
    )
    changed = (
        feed.where("n = 1")
        .select(*COLUMNS, (f.col("_change_type") == "delete").alias("gone"))
        .persist()
    )
    low, high, count = changed.agg(f.min("id"), f.max("id"), f.count("*")).first()  # type: ignore[misc]
    if count:
        on = f"t.id = s.id AND t.id BETWEEN {low} AND {high}"
        values = {c: f"s.{c}" for c in COLUMNS} | {"_is_deleted": "false"}
        merge = DeltaTable.forPath(spark, str(target)).alias("t").merge(changed.alias("s"), on)
        merge = merge.whenMatchedUpdate("s.gone", {"_is_deleted": "true"}).whenMatchedUpdate(
            set=values
        )
        merge.whenNotMatchedInsert("NOT s.gone", values).execute()
    changed.unpersist()


def _versions(spark: SparkSession, source: Path, target: Path) -> None:
    """The chains of the keys that come, from their versions and the new rows; merged where they differ."""
    come = (
        hashed(spark.read.parquet(str(source)))
        .withColumn("valid_from", f.col("updated_at"))
        .persist()
    )
    table = spark.read.format("delta").load(str(target))
    old = table.join(f.broadcast(come.select("id").distinct()), "id", "left_semi").persist()
    line = Window.partitionBy("id").orderBy("valid_from")
    rows = old.select(*COLUMNS, HASH, "valid_from").unionByName(come)
    told = f.xxhash64(*(c for c in COLUMNS if c != "updated_at"))
    rows = rows.withColumn("told", told).withColumn("before", f.lag("told").over(line))
    chain = rows.where("before IS NULL OR before <> told").drop("told", "before")
    chain = chain.withColumn("valid_to", f.lead("valid_from").over(line)).withColumn(
        "is_current", f.expr("valid_to IS NULL")
    )
    same = [chain[c].eqNullSafe(old[c]) for c in ("id", "valid_from", "valid_to")]
    changed = chain.join(old, same, "left_anti").persist()
    low, high, count = changed.agg(f.min("id"), f.max("id"), f.count("*")).first()  # type: ignore[misc]
    if count:
        on = f"t.id = s.id AND t.valid_from = s.valid_from AND t.id BETWEEN {low} AND {high}"
        merge = DeltaTable.forPath(spark, str(target)).alias("t").merge(changed.alias("s"), on)
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    for frame in (come, old, changed):
        frame.unpersist()


def _fingerprint(spark: SparkSession, place: Path) -> tuple[object, ...]:
    """Count and an order-free sum over the living rows."""
    rows = spark.read.format("delta").load(str(place))
    rows = rows.where("NOT _is_deleted") if "_is_deleted" in rows.columns else rows
    return tuple(
        rows.agg(f.count("*"), f.sum(f.xxhash64(*COLUMNS).cast("decimal(38,0)"))).first() or ()
    )


def _intervals(spark: SparkSession, place: Path) -> tuple[object, ...]:
    """Count and an order-free sum over all versions with their intervals."""
    rows = spark.read.format("delta").load(str(place))
    rows = rows.withColumnsRenamed(
        {"_valid_from": "valid_from", "_valid_to": "valid_to", "_is_current": "is_current"}
    )
    names = [*COLUMNS, "valid_from", "valid_to", "is_current"]
    return tuple(
        rows.agg(f.count("*"), f.sum(f.xxhash64(*names).cast("decimal(38,0)"))).first() or ()
    )
