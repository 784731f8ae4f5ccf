"""`python -m bench`: every workload, every contestant, in one run; a Markdown table, or JSON."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import data as made
from bench.measure import Contestant, Gauge, markdown, race, summary
from bench.ours import Ours

KINDS = {
    "load": "initial load",
    "upsert": "upsert: 1 % changed among 5 % re-read, 0.1 % new",
    "again": "the same batch again: nothing changed",
    "nothing": "nothing new: the source is the lake table of last time",
}
DELETES = ("snapshot_diff", "sql_compare", "watermark_window")
HISTORY = ("feed", "scd2")
ALONE = (
    "quiet",
    "versions",
    "bronze",
    "recovery",
)  # nobody to race against: these have a limit to keep


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--shape", choices=list(made.SHAPES), nargs="+", default=["wide"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["spark", "local"])
    parser.add_argument("--workload", choices=[*KINDS, *DELETES, *HISTORY, *ALONE], nargs="+")
    parser.add_argument(
        "--no-feed",
        action="store_true",
        help="tables without a change feed, as the plain MERGE has",
    )
    parser.add_argument("--bronze-rows", type=int, default=10_000_000)
    parser.add_argument("--data", type=Path, help="keep what was made here, for the next time")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as folder:
        report = _all(Path(folder), args)
    if args.json:
        print(json.dumps(report, indent=2))


def _all(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    report: dict[str, Any] = {"workloads": []}
    data = args.data or folder / "data"
    if _wanted(args, *KINDS, *DELETES, *HISTORY, "recovery") or not args.workload:
        for rows, shape in _sizes(args):
            made.make(data / f"{shape}-{rows}", rows, shape)
    if args.only != "spark":
        _in_process(folder, data, args, report)
    alone = ("quiet", "versions", "recovery")
    if args.only != "local" and (
        not args.workload or _wanted(args, *KINDS, *DELETES, *HISTORY, *alone)
    ):
        _spark(folder, data, args, report)
    if not args.workload or _wanted(args, "bronze"):
        from bench import bronze

        report["bronze"] = bronze.measure(data, args.bronze_rows, args.only)
        _say(args, bronze.markdown(report["bronze"], args.bronze_rows))
    return report


def _in_process(folder: Path, data: Path, args: argparse.Namespace, report: dict[str, Any]) -> None:
    from bench import in_process

    gauge = Gauge(lambda: 0, {"python": os.getpid()})
    for rows, shape in _sizes(args):
        for kind in _kinds(args):
            racers = in_process.contestants(
                folder / f"local-{shape}-{rows}", data / f"{shape}-{rows}", kind
            )
            _one(report, args, f"in process, {rows:,} {shape} rows, {KINDS[kind]}", racers, gauge)
        if not args.workload or "recovery" in args.workload:
            from strandline.engine.local.workspace import LocalPlatform

            place = folder / f"recovery-local-{shape}-{rows}" / "ours"
            ours = Ours(place, data / f"{shape}-{rows}", LocalPlatform(), in_process.load)
            _recovery(report, args, f"in process, {rows:,} {shape} rows, recovery", ours)


def _spark(folder: Path, data: Path, args: argparse.Namespace, report: dict[str, Any]) -> None:
    from bench import on_spark
    from strandline.engine.spark.session import SparkPlatform
    from strandline.testing.projects import make_project

    (folder / "spark").mkdir()
    platform = SparkPlatform.start(make_project(folder / "spark", [], engine="spark").config)
    spark = platform.session
    status = spark.sparkContext._jsc.sc().statusStore()  # noqa: SLF001 – the only way to count jobs without a UI
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # noqa: SLF001

    def jobs_so_far() -> int:  # the list forgets old ones; the newest comes first
        known = status.jobsList(None)
        return int(known.head().jobId()) + 1 if known.nonEmpty() else 0

    gauge = Gauge(jobs_so_far, {"JVM": jvm, "python": os.getpid()})
    try:
        for rows, shape in _sizes(args):
            for kind in _kinds(args):
                place = folder / f"spark-{shape}-{rows}"
                source, feed = data / f"{shape}-{rows}", not args.no_feed
                racers = on_spark.contestants(place, source, kind, platform, spark, feed=feed)
                title = f"Spark, {rows:,} {shape} rows, {KINDS[kind]}{'' if feed else ', no feed'}"
                _one(report, args, title, racers, gauge)
            _more(folder, data / f"{shape}-{rows}", args, report, platform, gauge)
            if not args.workload or "recovery" in args.workload:
                place = folder / f"recovery-spark-{shape}-{rows}" / "ours"
                ours = Ours(place, data / f"{shape}-{rows}", platform, lambda *_: None)
                _recovery(report, args, f"Spark, {rows:,} {shape} rows, recovery", ours)
        if not args.workload or "quiet" in args.workload:
            seconds, jobs = on_spark.quiet_nodes(folder / "quiet", platform, gauge)
            report["quiet_nodes"] = {
                "count": len(seconds),
                "median_s": statistics.median(seconds),
                "max_s": max(seconds),
                "jobs": jobs,
            }
            _say(
                args,
                f"{len(seconds)} quiet nodes: {statistics.median(seconds):.3f} s each "
                f"(slowest {max(seconds):.3f} s), {jobs} Spark jobs in all\n",
            )
        if not args.workload or "versions" in args.workload:
            _many_versions(folder, args, report, platform)
    finally:
        platform.close()


def _many_versions(
    folder: Path, args: argparse.Namespace, report: dict[str, Any], platform: Any
) -> None:
    from bench import history

    found = history.many_versions(folder, platform, rounds=args.rounds)
    report["versions"] = found
    told = ", ".join(
        f"{n} version{'s' if n > 1 else ''} a key: {s:.2f} s" for n, s in found.items()
    )
    _say(args, f"the same change of 200 keys in a dimension of 20,000 keys: {told}\n")


def _more(
    folder: Path,
    data: Path,
    args: argparse.Namespace,
    report: dict[str, Any],
    platform: Any,
    gauge: Gauge,
) -> None:
    """The workloads with data of their own: deletes that nobody announced, feeds and histories."""
    from bench import deletes, history

    for module in (deletes, history):
        for kind in (k for k in module.KINDS if not args.workload or k in args.workload):
            module.make(data)
            racers = module.contestants(
                folder / f"{kind}-{data.name}", data, kind, platform, platform.session
            )
            shape, rows = data.name.split("-")
            _one(
                report,
                args,
                f"Spark, {int(rows):,} {shape} rows, {module.KINDS[kind]}",
                racers,
                gauge,
            )


def _recovery(report: dict[str, Any], args: argparse.Namespace, title: str, ours: Ours) -> None:
    from bench import recovery

    print(f"… {title}", file=sys.stderr)
    found = recovery.measure(ours, args.rounds)
    report.setdefault("recovery", []).append({"title": title, **found})
    _say(args, recovery.markdown(title, found))


def _one(
    report: dict[str, Any],
    args: argparse.Namespace,
    title: str,
    racers: list[Contestant],
    gauge: Gauge,
) -> None:
    print(f"… {title}", file=sys.stderr)
    race(racers, args.rounds, gauge)
    rows = summary(racers)
    report["workloads"].append({"title": title, "contestants": rows})
    _say(args, markdown(title, rows))


def _sizes(args: argparse.Namespace) -> list[tuple[int, str]]:
    return [(rows, shape) for rows in args.rows for shape in args.shape]


def _kinds(args: argparse.Namespace) -> list[str]:
    return [k for k in KINDS if not args.workload or k in args.workload]


def _wanted(args: argparse.Namespace, *names: str) -> bool:
    return bool(set(args.workload or ()) & set(names))


def _say(args: argparse.Namespace, text: str) -> None:
    if not args.json:
        print(text, flush=True)


if __name__ == "__main__":
    main()
