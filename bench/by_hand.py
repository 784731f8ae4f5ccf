"""What a competent engineer writes without strandline, meant to win: PySpark by hand, and a plain MERGE."""

from __future__ import annotations

from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.data import COLUMNS

HASH = "row_hash"


def plain_load(spark: SparkSession, source: Path, target: Path) -> None:
    """The rows as they are."""
    spark.read.parquet(str(source)).write.format("delta").mode("overwrite").save(str(target))


def plain_merge(spark: SparkSession, source: Path, target: Path) -> None:
    """MERGE … UPDATE SET * INSERT *, as the documentation shows it."""
    rows = spark.read.parquet(str(source))
    merge = DeltaTable.forPath(spark, str(target)).alias("t").merge(rows.alias("s"), "t.id = s.id")
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def hand_load(spark: SparkSession, source: Path, target: Path, *, feed: bool) -> None:
    """A first load with a hash column and deletion vectors, and a check that keys are unique."""
    rows = hashed(spark.read.parquet(str(source)))
    if rows.groupBy("id").count().where("count > 1").limit(1).count():
        raise ValueError("duplicate keys")
    writer = rows.write.format("delta").option("delta.enableDeletionVectors", "true")
    writer = writer.option("delta.enableChangeDataFeed", str(feed).lower())
    writer.mode("overwrite").save(str(target))


def hand_merge(spark: SparkSession, source: Path, target: Path) -> None:
    """Only changed rows reach the MERGE, found by the stored hash; nothing changed, nothing merged."""
    rows = hashed(spark.read.parquet(str(source)))
    if rows.groupBy("id").count().where("count > 1").limit(1).count():
        raise ValueError("duplicate keys")
    old = spark.read.format("delta").load(str(target)).select("id", f.col(HASH).alias("old"))
    changed = (
        rows.join(old, "id", "left").where(f"old IS NULL OR old <> {HASH}").drop("old").persist()
    )
    low, high, count = changed.agg(f.min("id"), f.max("id"), f.count("*")).first()
    if count:
        on = f"t.id = s.id AND t.id BETWEEN {low} AND {high}"
        merge = DeltaTable.forPath(spark, str(target)).alias("t").merge(changed.alias("s"), on)
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    changed.unpersist()


def hashed(rows: DataFrame) -> DataFrame:
    """The rows with a hash over all their columns."""
    return rows.withColumn(HASH, f.xxhash64(*COLUMNS))
