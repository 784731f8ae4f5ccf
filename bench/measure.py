"""Timing in alternation, with memory, jobs and bytes."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_WARM_UP = 2  # rounds that do not count: a JVM compiles what it runs often


@dataclass
class Contestant:
    """Somebody who does the work: `reset` puts its tables back, `work` is timed, `result` must equal the others'."""

    name: str
    reset: Callable[[], None]
    work: Callable[[], None]
    result: Callable[[], Any]
    folder: Path
    seconds: list[float] = field(default_factory=list)
    jobs: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    peaks: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Gauge:
    """What is watched while somebody works: how many Spark jobs have run, and the memory of these processes."""

    jobs: Callable[[], int]
    processes: Mapping[str, int]

    def reset(self) -> None:
        for pid in self.processes.values():
            Path(f"/proc/{pid}/clear_refs").write_text(
                "5"
            )  # the peak starts again at what is resident now

    def peaks(self) -> dict[str, float]:
        return {name: peak_memory(pid) for name, pid in self.processes.items()}


def race(contestants: list[Contestant], rounds: int, gauge: Gauge) -> None:
    """Every round lets each contestant go once, another one first each time; unequal results end the race."""
    for number in range(_WARM_UP + rounds):
        turn = contestants[number % len(contestants) :] + contestants[: number % len(contestants)]
        results = {}
        for c in turn:
            c.reset()
            gauge.reset()
            before, size, began = gauge.jobs(), _size(c.folder), time.perf_counter()
            c.work()
            seconds = time.perf_counter() - began
            if number >= _WARM_UP:
                c.seconds.append(seconds)
                c.jobs.append(gauge.jobs() - before)
                c.peaks.append(gauge.peaks())
                c.written.append(max(0, _size(c.folder) - size))
            results[c.name] = c.result()
        if len({repr(r) for r in results.values()}) != 1:
            raise SystemExit(f"the results differ, so no time counts: {results}")


def put_back(kept: Path, place: Path) -> None:
    """A fresh copy of a table or project; data files are linked, since nobody ever changes one."""

    def copy(source: str, target: str) -> str:
        if source.endswith(".parquet") and "_delta_log" not in source:
            os.link(source, target)
            return target
        return str(shutil.copy2(source, target))

    shutil.copytree(kept, place, copy_function=copy)


def _size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) if folder.exists() else 0


def summary(contestants: list[Contestant]) -> list[dict[str, Any]]:
    """Medians and spread of each, and the ratio of the first to each other: round by round, so that noise cancels."""
    first = contestants[0]
    rows = []
    for c in contestants:
        ratios = [a / b for a, b in zip(first.seconds, c.seconds, strict=True)]
        rows.append(
            {
                "name": c.name,
                "median_s": round(statistics.median(c.seconds), 3),
                "min_s": round(min(c.seconds), 3),
                "max_s": round(max(c.seconds), 3),
                "ratio": round(statistics.median(ratios), 2),
                "ratio_min": round(min(ratios), 2),
                "ratio_max": round(max(ratios), 2),
                "jobs": statistics.median_low(c.jobs),
                "mb_written": round(statistics.median(c.written) / 2**20, 1),
                "peak_mb": {name: max(p[name] for p in c.peaks) for name in c.peaks[0]},
            }
        )
    return rows


def markdown(title: str, rows: list[Mapping[str, Any]]) -> str:
    lines = [
        f"**{title}**",
        "",
        "| | seconds (min–max) | strandline ÷ this (min–max) | Spark jobs | MB written | peak MB |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        ratio = (
            "1" if r is rows[0] else f"{r['ratio']:.2f} ({r['ratio_min']:.2f}–{r['ratio_max']:.2f})"
        )
        span = f"{r['median_s']:.2f} ({r['min_s']:.2f}–{r['max_s']:.2f})"
        peaks = ", ".join(f"{name} {mb:.0f}" for name, mb in r["peak_mb"].items())
        lines.append(
            f"| {r['name']} | {span} | {ratio} | {r['jobs']} | {r['mb_written']} | {peaks} |"
        )
    return "\n".join(lines) + "\n"


def peak_memory(pid: int | None = None) -> float:
    """The most memory a process ever had resident, in MB."""
    status = Path(f"/proc/{pid or os.getpid()}/status").read_text()
    kb = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return round(int(kb.split()[1]) / 1024, 0)
