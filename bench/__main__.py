"""`python -m bench`: every workload, every contestant, in one run; a Markdown table, or JSON."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import data as made
from bench.measure import Contestant, markdown, peak_memory, race, summary

KINDS = {
    "load": "initial load",
    "upsert": "upsert: 1 % changed among 5 % re-read, 0.1 % new",
    "again": "the same batch again: nothing changed",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["spark", "pandas"])
    parser.add_argument("--workload", choices=[*KINDS, "quiet"], nargs="+")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as folder:
        report = _all(Path(folder), args)
    if args.json:
        print(json.dumps(report, indent=2))


def _all(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    report: dict[str, Any] = {"workloads": []}
    for rows in args.rows:
        made.make(folder / f"data-{rows}", rows)
    if args.only != "spark":
        from bench import in_process

        for rows in args.rows:
            for kind in _kinds(args):
                racers = in_process.contestants(folder / f"local-{rows}", folder / f"data-{rows}", kind)
                _one(report, args, f"in process, {rows:,} rows, {KINDS[kind]}", racers, lambda: 0)
    if args.only != "pandas":
        _spark(folder, args, report)
    report["peak_mb"] = {**report.get("peak_mb", {}), "python": peak_memory()}
    _say(args, f"peak memory: {report['peak_mb']} MB")
    return report


def _spark(folder: Path, args: argparse.Namespace, report: dict[str, Any]) -> None:
    from bench import on_spark
    from strandline.engine.spark.session import SparkPlatform
    from strandline.testing.projects import make_project

    (folder / "spark").mkdir()
    platform = SparkPlatform.start(make_project(folder / "spark", [], engine="spark").config)
    spark = platform.session
    status = spark.sparkContext._jsc.sc().statusStore()  # noqa: SLF001 – the only way to count jobs without a UI

    def jobs() -> int:
        return int(status.jobsList(None).size())

    try:
        for rows in args.rows:
            for kind in _kinds(args):
                data = folder / f"data-{rows}"
                racers = on_spark.contestants(folder / f"spark-{rows}", data, kind, platform, spark)
                _one(report, args, f"Spark, {rows:,} rows, {KINDS[kind]}", racers, jobs)
        if not args.workload or "quiet" in args.workload:
            before = jobs()
            seconds, count = on_spark.quiet_nodes(folder / "quiet", platform)
            report["quiet_nodes"] = {"count": count, "median_s": statistics.median(seconds), "max_s": max(seconds)}
            report["quiet_nodes"]["jobs"] = jobs() - before
            _say(args, f"20 quiet nodes: {statistics.median(seconds):.3f} s each (slowest {max(seconds):.3f} s)\n")
        pid = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # noqa: SLF001
        report["peak_mb"] = {"jvm": peak_memory(pid)}
    finally:
        platform.close()


def _one(report: dict[str, Any], args: argparse.Namespace, title: str, racers: list[Contestant], jobs: Any) -> None:
    print(f"… {title}", file=sys.stderr)
    race(racers, args.rounds, jobs)
    rows = summary(racers)
    report["workloads"].append({"title": title, "contestants": rows})
    _say(args, markdown(title, rows))


def _kinds(args: argparse.Namespace) -> list[str]:
    return [k for k in KINDS if not args.workload or k in args.workload]


def _say(args: argparse.Namespace, text: str) -> None:
    if not args.json:
        print(text, flush=True)


if __name__ == "__main__":
    main()
