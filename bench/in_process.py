"""In process: strandline against deltalake's own merge."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from bench.data import COLUMNS
from bench.measure import Contestant, put_back
from bench.ours import Ours
from strandline.engine.local.workspace import LocalPlatform
from strandline.lake.delta.rows import delta_rows


def fingerprint(place: Path) -> tuple[object, ...]:
    """Count and an order-free sum over all rows."""
    rows = delta_rows(DeltaTable(place)).select(list(COLUMNS))  # noqa: F841 – DuckDB finds it by name
    columns = ", ".join(f"{c}::VARCHAR" for c in COLUMNS)
    return duckdb.sql(
        f"SELECT count(*), sum(hash(concat_ws('|', {columns}))::HUGEINT) FROM rows"
    ).fetchall()[0]


def load(source: Path, target: Path) -> None:
    write_deltalake(target, pq.read_table(source))


def contestants(work: Path, data: Path, kind: str) -> list[Contestant]:
    """`load`, `upsert`, `again`, `nothing`."""
    ours = Ours(work / "ours", data, LocalPlatform(), load)
    plain = work / "plain"

    def plain_reset() -> None:
        shutil.rmtree(plain, ignore_errors=True)
        if kind != "load":
            put_back(work / "plain-loaded", plain)
        if kind in ("again", "nothing"):
            merge("batch")

    def merge(source: str) -> None:
        rows = pq.read_table(data / source)
        merging = DeltaTable(plain).merge(rows, "s.id = t.id", source_alias="s", target_alias="t")
        merging.when_matched_update_all().when_not_matched_insert_all().execute()

    if not (work / "plain-loaded").exists():
        shutil.rmtree(plain, ignore_errors=True)
        load(data / "full", plain)
        put_back(plain, work / "plain-loaded")

    def timed() -> None:
        load(data / "full", plain) if kind == "load" else merge("batch")

    return [
        Contestant(
            "strandline",
            lambda: ours.reset(kind),
            ours.run,
            lambda: fingerprint(ours.table),
            ours.folder,
        ),
        Contestant("deltalake merge", plain_reset, timed, lambda: fingerprint(plain), plain),
    ]
