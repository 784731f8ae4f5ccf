"""The data of the benchmark: made by DuckDB from row numbers, so that every contestant has the same."""

from __future__ import annotations

from pathlib import Path

import duckdb

COLUMNS = ("id", "name", "email", "country", "amount", "quantity", "active", "born", "updated_at")
# how many digests of 44 characters the two text columns hold: wide rows have about 500 bytes that do not compress
SHAPES = {"wide": (5, 5), "narrow": (0, 1)}
FILES = 20


def make(folder: Path, rows: int, shape: str) -> None:
    """`full`: all rows. `batch`: 5 % of them read again, 1 % changed, and 0.1 % new. Keys are scattered."""
    if (folder / "made").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    _copy(con, folder / "full", f"SELECT {_row('i', '0', shape)} FROM range({rows}) t(i)", rows)
    changed, reread, new = rows // 100, rows // 20, rows // 1000
    step = rows // reread
    salt = f"CASE WHEN i < {changed} THEN 1 ELSE 0 END"
    parts = [
        f"SELECT {_row(f'i * {step}', salt, shape)} FROM range({reread}) t(i)",
        f"SELECT {_row(f'{rows} + i', '0', shape)} FROM range({new}) t(i)",
    ]
    _copy(con, folder / "batch", " UNION ALL ".join(parts), reread + new)
    con.close()
    (folder / "made").touch()


def count(folder: Path) -> int:
    """How many rows were made."""
    return int(duckdb.sql(f"SELECT count(*) FROM '{folder}/full/*.parquet'").fetchall()[0][0])


def _row(i: str, salt: str, shape: str) -> str:
    """One row from its number; a salt of 1 is a changed row. The key is spread so that neighbours lie far apart."""
    key = f"((({i})::HUGEINT * 2654435761) % 4294967291)::BIGINT"
    names, mails = SHAPES[shape]
    return f"""{key} AS id, 'name ' || ({i}) || ' ' || ({salt}) || ' ' || {_noise(i, "n", names)} AS name,
        {_noise(i, "m", mails)} || '@example.org' AS email,
        ['DE','FR','IT','ES','PL'][1 + ({i}) % 5] AS country,
        ((({i}) % 100000) / 7 + ({salt}))::DECIMAL(12,2) AS amount, (({i}) % 1000)::INTEGER AS quantity,
        ({i}) % 2 = 0 AS active, DATE '1950-01-01' + (({i}) % 20000)::INTEGER AS born,
        TIMESTAMPTZ '2024-01-01 00:00:00+00' + to_microseconds((({i}) * 1000003 + ({salt}))::BIGINT) AS updated_at"""


def _noise(i: str, seed: str, digests: int) -> str:
    parts = [f"to_base64(unhex(sha256('{seed}{n}' || ({i}))))" for n in range(digests)]
    return " || ".join(["''", *parts])


def _copy(con: duckdb.DuckDBPyConnection, folder: Path, query: str, rows: int) -> None:
    """Files of about equal size, none of them tiny; the rows of a batch lie in all files of the table."""
    folder.mkdir(exist_ok=True)
    files = max(1, min(FILES, rows // 10_000))
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE made AS SELECT *, id % {files} AS file FROM ({query})"
    )
    for n in range(files):
        con.execute(
            f"COPY (SELECT * EXCLUDE file FROM made WHERE file = {n}) TO '{folder}/part-{n:03}.parquet'"
        )
