"""The data of the benchmark: made by Spark or DuckDB from row numbers, so that every contestant has the same."""

from __future__ import annotations

from pathlib import Path

import duckdb

COLUMNS = ("id", "name", "email", "country", "amount", "quantity", "active", "born", "updated_at")


def make(folder: Path, rows: int) -> None:
    """`full`: all rows. `batch`: 5 % of them read again, 1 % changed, and 0.1 % new. Keys are scattered."""
    folder.mkdir(parents=True, exist_ok=True)
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    _copy(con, folder / "full", f"SELECT {_row('i', '0')} FROM range({rows}) t(i)", rows)
    changed, reread, new = rows // 100, rows // 20, rows // 1000
    step = rows // reread
    parts = [
        f"SELECT {_row(f'i * {step}', f'CASE WHEN i < {changed} THEN 1 ELSE 0 END')} FROM range({reread}) t(i)",
        f"SELECT {_row(f'{rows} + i', '0')} FROM range({new}) t(i)",
    ]
    _copy(con, folder / "batch", " UNION ALL ".join(parts), reread + new)
    con.close()


def _row(i: str, salt: str) -> str:
    """One row from its number; a salt of 1 is a changed row. The key is spread so that neighbours lie far apart."""
    key = f"((({i})::HUGEINT * 2654435761) % 4294967291)::BIGINT"
    return f"""{key} AS id, 'name ' || ({i}) || ' ' || ({salt}) AS name,
        md5(({i})::VARCHAR) || md5((({i}) + 1)::VARCHAR) || '@example.org' AS email,
        ['DE','FR','IT','ES','PL'][1 + ({i}) % 5] AS country,
        ((({i}) % 100000) / 7 + ({salt}))::DECIMAL(12,2) AS amount, (({i}) % 1000)::INTEGER AS quantity,
        ({i}) % 2 = 0 AS active, DATE '1950-01-01' + (({i}) % 20000)::INTEGER AS born,
        TIMESTAMPTZ '2024-01-01 00:00:00+00' + to_microseconds((({i}) * 1000003 + ({salt}))::BIGINT) AS updated_at"""


def _copy(con: duckdb.DuckDBPyConnection, folder: Path, query: str, rows: int) -> None:
    folder.mkdir(exist_ok=True)
    files = max(1, min(20, rows // 50_000))
    con.execute(f"CREATE OR REPLACE TEMP TABLE made AS SELECT *, row_number() OVER () % {files} AS file FROM ({query})")
    for n in range(files):
        con.execute(f"COPY (SELECT * EXCLUDE file FROM made WHERE file = {n}) TO '{folder}/part-{n:03}.parquet'")
