"""Finding deletes on Spark: strandline against scripts by hand that find, judge and apply the same."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.by_hand import HASH, hashed
from bench.data import COLUMNS, count
from bench.measure import Contestant, put_back
from strandline.engine.base import Platform
from strandline.project import StrandlineProject
from strandline.testing.projects import make_project

KINDS = {
    "snapshot_diff": "snapshot_diff: 0.5 % of the rows are gone from a full extract",
    "sql_compare": "sql_compare: 0.5 % of the keys are gone from the live source",
    "watermark_window": "watermark_window: 0.5 % are gone from a window of 1 %",
}
FLAG, SEEN = "_is_deleted", "_last_seen"
_STEP = 1_000_003  # microseconds between two rows of bench.data


def make(folder: Path) -> None:
    """From `full`: `rest`, in which 0.5 % are missing, `few` unchanged rows, and a database with the keys of `rest`."""
    if (folder / "live.db").exists():
        return
    con, rows = duckdb.connect(), count(folder)
    con.execute("SET TimeZone = 'UTC'")
    # the newest row stays, so that the mark does not move
    last = con.sql(f"SELECT max(updated_at)::VARCHAR FROM '{folder}/full/*.parquet'").fetchall()[0][
        0
    ]
    gone = f"id % 199 = 0 AND updated_at < TIMESTAMPTZ '{last}'"
    for name, where in (
        ("rest", f"NOT ({gone})"),
        ("few", f"NOT ({gone}) AND id % {rows // 1000 + 1} = 1"),
    ):
        (folder / name).mkdir(exist_ok=True)
        for file in sorted((folder / "full").glob("*.parquet")):
            con.execute(
                f"COPY (SELECT * FROM '{file}' WHERE {where}) TO '{folder / name / file.name}'"
            )
    with sqlite3.connect(folder / "making.db") as live:
        live.execute("CREATE TABLE live (id BIGINT PRIMARY KEY)")
        keys = con.sql(f"SELECT id FROM '{folder}/rest/*.parquet'").fetchall()
        live.executemany("INSERT INTO live VALUES (?)", keys)
    (folder / "making.db").replace(folder / "live.db")


def contestants(
    work: Path, data: Path, kind: str, platform: Platform, spark: SparkSession
) -> list[Contestant]:
    """Ours and a script by hand."""
    rows = count(data)
    ours = _Ours(work / "ours", data, rows, kind, platform)
    place, loaded = work / "by-hand", work / "by-hand-loaded"
    low = _low(rows)

    def reset() -> None:
        shutil.rmtree(place, ignore_errors=True)
        if not loaded.exists():
            _load(spark, data / "full", loaded)
        put_back(loaded, place)

    scripts: dict[str, Callable[[], None]] = {
        "snapshot_diff": lambda: _by_snapshot(spark, data / "rest", place),
        "sql_compare": lambda: _by_source(spark, data, place),
        "watermark_window": lambda: _by_window(spark, data / "rest", place, low),
    }
    return [
        Contestant(
            "strandline", ours.reset, ours.run, lambda: _fingerprint(spark, ours.table), ours.folder
        ),
        Contestant("by hand", reset, scripts[kind], lambda: _fingerprint(spark, place), place),
    ]


def _low(rows: int) -> str:
    """Where the window of the newest 1 % begins."""
    start = duckdb.sql("SELECT TIMESTAMP '2024-01-01 00:00:00'").fetchall()[0][0]
    return str(start + timedelta(microseconds=_STEP * (rows - 1)) - _lag(rows))


def _lag(rows: int) -> timedelta:
    return timedelta(seconds=rows // 100)


class _Ours:
    """A node that looks for deletes, loaded once and put back before each round."""

    def __init__(self, folder: Path, data: Path, rows: int, kind: str, platform: Platform) -> None:
        self.folder, self.data, self.kind, self.platform = folder, data, kind, platform
        self.lag = f"{int(_lag(rows).total_seconds())}s"
        self.table = folder / "lake" / "t"
        self.loaded = folder.with_name(f"{folder.name}-{kind}-loaded")

    def reset(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        if not self.loaded.exists():
            self._show("full")
            self.project = self._project(loading=True)
            self.run()
            put_back(self.folder, self.loaded)
            shutil.rmtree(self.folder)
        put_back(self.loaded, self.folder)
        shutil.rmtree(self.folder / "landing" / "current")
        self._show("few" if self.kind == "sql_compare" else "rest")
        self.project = self._project()

    def run(self) -> None:
        self.project.run(platform=self.platform, check=True)

    def _show(self, name: str) -> None:
        (self.folder / "landing").mkdir(parents=True, exist_ok=True)
        put_back(self.data / name, self.folder / "landing" / "current")

    def _project(self, *, loading: bool = False) -> StrandlineProject:
        read: dict[str, Any] = {"connection": "files", "path": "current/*.parquet"}
        params: dict[str, Any] = {"mode": self.kind, "keys": ["id"]}
        if self.kind == "watermark_window":
            read["incremental"] = {
                "mode": "stateful",
                "column": "updated_at",
                "watermark_lag": self.lag,
            }
        if self.kind == "sql_compare":
            params |= {"source_connection": "live", "source_table": "live"}
        node: dict[str, Any] = {
            "name": "t",
            "read": read,
            "transform": {"steps": [{"operation": "detect_deletes", "params": params}]},
            "write": {"connection": "lake", "table": "t", "mode": "upsert", "keys": ["id"]},
        }
        if (
            loading and self.kind == "sql_compare"
        ):  # the live source lacks the keys already: they must come alive first
            del node["transform"]
            node["write"] = {**node["write"], "delete_strategy": "soft"}
        live = {"type": "sql", "url": f"sqlite:///{self.data / 'live.db'}"}
        return make_project(self.folder, [node], connections={"live": live})


# --- by hand, meant to win -----------------------------------------------------------------------------------


def _load(spark: SparkSession, source: Path, target: Path) -> None:
    rows = hashed(spark.read.parquet(str(source)))
    rows = rows.withColumn(FLAG, f.lit(False)).withColumn(SEEN, f.current_timestamp())
    made = rows.write.format("delta").option("delta.enableDeletionVectors", "true")
    made.option("delta.enableChangeDataFeed", "true").mode("overwrite").save(str(target))


def _unique(rows: DataFrame) -> None:
    if rows.groupBy("id").count().where("count > 1").limit(1).count():
        raise ValueError("duplicate keys")


def _by_snapshot(spark: SparkSession, source: Path, target: Path) -> None:
    rows = hashed(spark.read.parquet(str(source)))
    _unique(rows)
    old = _living(spark, target)
    both = rows.withColumn("come", f.lit(True)).join(old, "id", "full")
    changed = both.where(
        f"(come AND (old IS NULL OR old <> {HASH})) OR (come IS NULL AND NOT dead)"
    )
    _merge(spark, changed.withColumn(FLAG, f.expr("come IS NULL")), target)


def _by_source(spark: SparkSession, data: Path, target: Path) -> None:
    rows = hashed(spark.read.parquet(str(data / "few")))
    _unique(rows)
    live = (
        spark.read.format("jdbc")
        .option("url", f"jdbc:sqlite:{data / 'live.db'}")
        .option("fetchsize", "10000")
    )
    keys = (
        live.option("query", "SELECT id FROM live")
        .option("driver", "org.sqlite.JDBC")
        .load()
        .persist()
    )
    if not keys.take(1):
        raise ValueError("the source is empty")
    old = _living(spark, target)
    gone = (
        old.where("NOT dead")
        .join(keys, "id", "left_anti")
        .select("id")
        .withColumn(FLAG, f.lit(True))
    )
    new = (
        rows.join(old, "id", "left")
        .where(f"old IS NULL OR old <> {HASH}")
        .withColumn(FLAG, f.lit(False))
    )
    _merge(spark, new.unionByName(gone, allowMissingColumns=True), target)
    keys.unpersist()


def _by_window(spark: SparkSession, source: Path, target: Path, low: str) -> None:
    rows = hashed(
        spark.read.parquet(str(source)).where(f"updated_at >= timestamp'{low}Z'")
    ).persist()
    _unique(rows)
    high = rows.agg(f.max("updated_at")).first()[0]
    old = _living(spark, target, "updated_at AS seen_at")
    inside = old.where(
        f"NOT dead AND seen_at >= timestamp'{low}Z' AND seen_at <= timestamp'{high}'"
    )
    gone = inside.join(rows, "id", "left_anti").select("id").withColumn(FLAG, f.lit(True))
    new = (
        rows.join(old, "id", "left")
        .where(f"old IS NULL OR old <> {HASH}")
        .withColumn(FLAG, f.lit(False))
    )
    _merge(spark, new.unionByName(gone, allowMissingColumns=True), target)
    rows.unpersist()


def _living(spark: SparkSession, target: Path, *more: str) -> DataFrame:
    table = spark.read.format("delta").load(str(target))
    return table.selectExpr("id", f"{HASH} AS old", f"{FLAG} AS dead", *more)


def _merge(spark: SparkSession, changed: DataFrame, target: Path) -> None:
    """Judge, then one MERGE of what changed and what is gone."""
    now = f.lit(
        datetime.now(UTC)
    )  # one literal: with a clock in it, nobody finds what was persisted
    changed = changed.select(*COLUMNS, HASH, FLAG).withColumn(SEEN, now).persist()
    low, high, count, gone = changed.agg(
        f.min("id"), f.max("id"), f.count("*"), f.sum(f.col(FLAG).cast("int"))
    ).first()  # type: ignore[misc]
    table = DeltaTable.forPath(spark, str(target))
    alive = spark.read.format("delta").load(str(target)).where(f"NOT {FLAG}").count() if gone else 0
    if gone and gone / alive > 0.5:
        raise ValueError("too many deletes")
    if count:
        merge = table.alias("t").merge(
            changed.alias("s"), f"t.id = s.id AND t.id BETWEEN {low} AND {high}"
        )
        merge = merge.whenMatchedUpdate(f"s.{FLAG}", {FLAG: f.lit(True), SEEN: f.col(f"s.{SEEN}")})
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    changed.unpersist()


def _fingerprint(spark: SparkSession, place: Path) -> tuple[object, ...]:
    """Count, deletes, and an order-free sum over all rows with their flag."""
    rows = spark.read.format("delta").load(str(place)).select(*COLUMNS, FLAG)
    total = f.sum(f.xxhash64(*COLUMNS, FLAG).cast("decimal(38,0)"))
    return tuple(rows.agg(f.count("*"), f.sum(f.col(FLAG).cast("int")), total).first() or ())
