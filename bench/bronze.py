"""A large CSV file and a large database table into Bronze: how much memory does each engine need?

Every load runs in a process of its own (`python -m bench.bronze ENGINE SOURCE MODE DATA`), so that its peak is its own.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb

from bench.measure import peak_memory
from strandline.testing.projects import make_project

LIMITS = {"local": 2048, "spark": 4096}  # MB, of all processes together
MODES = ("append", "overwrite")


def make(folder: Path, rows: int) -> None:
    """The same rows as a CSV file and as a SQLite table."""
    if (folder / "made").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.db").unlink(missing_ok=True)
    values = "i AS id, 'customer ' || i AS name, 'c' || (i * 7919) || '@example.org' AS email, i % 1000 AS quantity"
    with duckdb.connect() as con:
        con.execute("SET enable_progress_bar = false")
        day = "DATE '2020-01-01' + (i % 1000)::INTEGER AS day"
        con.execute(
            f"COPY (SELECT {values}, {day} FROM range({rows}) t(i)) TO '{folder}/rows.csv' (HEADER)"
        )
    db = sqlite3.connect(folder / "rows.db")
    db.execute("PRAGMA journal_mode = OFF")
    db.execute("CREATE TABLE rows (id INTEGER, name TEXT, email TEXT, quantity INTEGER, day DATE)")
    day = "date('2020-01-01', '+' || (i % 1000) || ' days') AS day"
    count = f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {rows})"
    db.execute(f"INSERT INTO rows {count} SELECT {values}, {day} FROM n")
    db.commit()
    db.close()
    (folder / "made").touch()


def measure(data: Path, rows: int, only: str | None) -> list[dict[str, Any]]:
    """Seconds and peak memory of each load; a load that fails ends the benchmark."""
    folder = data / f"bronze-{rows}"
    make(folder, rows)
    found = []
    for engine in [only] if only else list(LIMITS):
        for source in ("csv", "sql"):
            for mode in MODES:
                print(f"… {engine}, {source}, {mode}", file=sys.stderr)
                command = [sys.executable, "-m", "bench.bronze", engine, source, mode, str(folder)]
                done = subprocess.run(command, capture_output=True, check=False, text=True)
                if done.returncode:
                    raise SystemExit(done.stderr)
                found.append(
                    {"engine": engine, "source": source, "mode": mode, **json.loads(done.stdout)}
                )
    return found


def markdown(found: list[dict[str, Any]], rows: int) -> str:
    lines = [
        f"**{rows:,} rows into Bronze**",
        "",
        "| engine | source | mode | seconds | peak MB | allowed MB |",
        "|---|---|---|---|---|---|",
    ]
    for r in found:
        total = sum(r["peak_mb"].values())
        parts = ", ".join(f"{name} {mb:.0f}" for name, mb in r["peak_mb"].items())
        lines.append(
            f"| {r['engine']} | {r['source']} | {r['mode']} | {r['seconds']:.0f} | {total:.0f} ({parts}) "
            f"| {LIMITS[r['engine']]} |"
        )
    return "\n".join(lines) + "\n"


def _load(engine: str, source: str, mode: str, data: Path) -> dict[str, Any]:
    """One load in this process, and its peaks."""
    from strandline.engine import connect

    read = {"connection": "data", "path": "rows.csv", "format": "csv"}
    if source == "sql":
        read = {"connection": "db", "table": "rows"}
    node = {
        "name": "n",
        "read": read,
        "write": {"connection": "lake", "table": "rows", "mode": mode},
    }
    connections = {
        "data": {"type": "files", "path": str(data)},
        "db": {"type": "sql", "url": f"sqlite:///{data / 'rows.db'}"},
    }
    with tempfile.TemporaryDirectory(prefix="strandline-bronze-", dir=data) as folder:
        project = make_project(Path(folder), [node], engine=engine, connections=connections)
        platform = connect(engine, project.config)
        try:
            began = time.monotonic()
            project.run(platform=platform, check=True)
            if mode == "overwrite":  # over a table of the same rows, which it compares with
                project.run(platform=platform, check=True)
            seconds = time.monotonic() - began
            peaks = {"python": peak_memory()}
            if engine == "spark":
                jvm = platform.session.sparkContext._jvm  # type: ignore[attr-defined]  # noqa: SLF001
                peaks["JVM"] = peak_memory(int(jvm.java.lang.ProcessHandle.current().pid()))
        finally:
            platform.close()
    return {"seconds": seconds, "peak_mb": peaks}


if __name__ == "__main__":
    print(json.dumps(_load(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))))
