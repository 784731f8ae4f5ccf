"""On Spark: strandline against a script by hand and a plain MERGE, in one session."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from bench import by_hand
from bench.data import COLUMNS
from bench.measure import Contestant, Gauge, put_back
from bench.ours import Ours
from strandline.engine.base import Platform
from strandline.testing.projects import make_project


def contestants(
    work: Path, data: Path, kind: str, platform: Platform, spark: SparkSession, *, feed: bool
) -> list[Contestant]:
    """`load`, `upsert`, `again`, `nothing`; with or without a change feed in the tables of strandline and by hand."""
    to_lake = partial(by_hand.plain_load, spark)
    ours = Ours(work / "ours", data, platform, to_lake, feed=feed)
    found = [
        Contestant(
            "strandline",
            lambda: ours.reset(kind),
            ours.run,
            lambda: fingerprint(spark, ours.table),
            ours.folder,
        )
    ]
    for name, load, merge in (
        ("by hand", partial(by_hand.hand_load, feed=feed), by_hand.hand_merge),
        ("plain MERGE", by_hand.plain_load, by_hand.plain_merge),
    ):
        found.append(_script(name, work / name.replace(" ", "-"), data, kind, load, merge, spark))
    return found


def _script(
    name: str,
    place: Path,
    data: Path,
    kind: str,
    load: Callable[[SparkSession, Path, Path], None],
    merge: Callable[[SparkSession, Path, Path], None],
    spark: SparkSession,
) -> Contestant:
    loaded = place.with_name(place.name + "-loaded")

    def reset() -> None:
        shutil.rmtree(place, ignore_errors=True)
        if kind == "load":
            return
        if not loaded.exists():
            load(spark, data / "full", loaded)
        put_back(loaded, place)
        if kind in ("again", "nothing"):
            merge(spark, data / "batch", place)

    def work() -> None:
        load(spark, data / "full", place) if kind == "load" else merge(spark, data / "batch", place)

    return Contestant(name, reset, work, lambda: fingerprint(spark, place), place)


def fingerprint(spark: SparkSession, place: Path) -> tuple[object, ...]:
    """Count and an order-free sum over all rows."""
    rows = spark.read.format("delta").load(str(place)).select(*COLUMNS)
    total = f.sum(f.xxhash64(*COLUMNS).cast("decimal(38,0)"))
    return tuple(rows.agg(f.count("*"), total).first() or ())


def quiet_nodes(
    work: Path, platform: Platform, gauge: Gauge, count: int = 20
) -> tuple[list[float], int]:
    """`count` small nodes that read a lake table in which nothing is new: the seconds of each, and all their jobs."""
    shutil.rmtree(work, ignore_errors=True)
    (work / "landing").mkdir(parents=True)
    (work / "landing" / "a.csv").write_text("id,v\n" + "".join(f"{i},{i}\n" for i in range(100)))
    first = {
        "name": "source",
        "read": {"connection": "files", "path": "a.csv"},
        "write": {"connection": "lake", "table": "source", "mode": "overwrite"},
    }
    nodes = [
        {
            "name": f"n{i}",
            "read": {"connection": "lake", "table": "source"},
            "write": {"connection": "lake", "table": f"n{i}", "mode": "upsert", "keys": ["id"]},
        }
        for i in range(count)
    ]
    project = make_project(work, [first, *nodes])
    project.run(platform=platform, check=True)
    before = gauge.jobs()
    again = project.run([n["name"] for n in nodes], platform=platform, check=True)
    assert {n.status for n in again.nodes} == {"unchanged"}
    return [n.seconds for n in again.nodes], gauge.jobs() - before
