"""In process: strandline against deltalake's own merge."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from bench.data import COLUMNS
from bench.measure import Contestant
from bench.ours import Ours
from strandline.engine.delta_rows import delta_rows
from strandline.engine.local.workspace import LocalPlatform


def fingerprint(place: Path) -> tuple[object, ...]:
    """Count and an order-free sum over all rows."""
    rows = delta_rows(DeltaTable(place)).select(list(COLUMNS))  # noqa: F841 – DuckDB finds it by name
    columns = ", ".join(f"{c}::VARCHAR" for c in COLUMNS)
    return duckdb.sql(f"SELECT count(*), sum(hash(concat_ws('|', {columns}))::HUGEINT) FROM rows").fetchall()[0]


def contestants(work: Path, data: Path, kind: str) -> list[Contestant]:
    """`load`, `upsert`, `again`."""
    ours = Ours(work / "ours", data, LocalPlatform("4GB"))
    plain = work / "plain"

    def plain_reset() -> None:
        shutil.rmtree(plain, ignore_errors=True)
        if kind != "load":
            shutil.copytree(work / "plain-loaded", plain)
        if kind == "again":
            merge("batch")

    def load() -> None:
        write_deltalake(plain, pq.read_table(data / "full"))

    def merge(source: str) -> None:
        rows = pq.read_table(data / source)
        merging = DeltaTable(plain).merge(rows, "s.id = t.id", source_alias="s", target_alias="t")
        merging.when_matched_update_all().when_not_matched_insert_all().execute()

    if not (work / "plain-loaded").exists():
        shutil.rmtree(plain, ignore_errors=True)
        load()
        shutil.copytree(plain, work / "plain-loaded")
    timed = load if kind == "load" else lambda: merge("batch")
    return [
        Contestant("strandline", lambda: ours.reset(kind), ours.run, lambda: fingerprint(ours.table), ours.folder),
        Contestant("deltalake merge", plain_reset, timed, lambda: fingerprint(plain), plain),
    ]
