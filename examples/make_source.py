"""Make the database that an example reads: `python make_source.py 01-snapshot-diff [--day 2]`.

On day 2 one row is gone, one has changed and one is new.
"""

from __future__ import annotations

import argparse
import sqlite3
from pathlib import Path

TABLES = {
    "Customers": ("customer_id INTEGER PRIMARY KEY, name TEXT, email TEXT, updated_at TIMESTAMP", [
        (1, "Ada", "ada@example.com", "2024-06-01 08:00:00"),
        (2, "Ben", "ben@example.com", "2024-06-01 09:00:00"),
        (3, "Cleo", "cleo@example.com", "2024-06-01 10:00:00"),
        (4, "Dora", "dora@example.com", "2024-06-01 11:00:00"),
        (5, "Emil", "emil@example.com", "2024-06-01 12:00:00"),
    ], (6, "Fay", "fay@example.com", "2024-06-02 09:00:00"), "email = 'new@example.com'"),
    "Products": ("product_id INTEGER PRIMARY KEY, name TEXT, price REAL, updated_at TIMESTAMP", [
        (1, "Lamp", 30.0, "2024-06-01 08:00:00"),
        (2, "Desk", 250.0, "2024-06-01 09:00:00"),
        (3, "Chair", 90.0, "2024-06-01 10:00:00"),
        (4, "Shelf", 120.0, "2024-06-01 11:00:00"),
        (5, "Stool", 45.0, "2024-06-01 12:00:00"),
    ], (6, "Bench", 180.0, "2024-06-02 09:00:00"), "price = 199.0"),
    "Orders": ("order_id INTEGER PRIMARY KEY, customer_id INTEGER, amount REAL, updated_at TIMESTAMP", [
        (1, 1, 30.0, "2024-06-01 08:00:00"),
        (2, 2, 250.0, "2024-06-01 09:00:00"),
        (3, 1, 90.0, "2024-06-01 10:00:00"),
        (4, 3, 120.0, "2024-06-01 11:00:00"),
        (5, 5, 45.0, "2024-06-01 12:00:00"),
    ], (6, 4, 75.0, "2024-06-02 09:00:00"), "amount = 260.0"),
}  # fmt: skip
"""Columns, the rows of day 1, the new row of day 2, and what changes in row 2."""


def make(folder: Path, day: int) -> None:
    """Write `source.db` into the folder as it is on that day."""
    connection = sqlite3.connect(folder / "source.db")
    try:
        for table, (columns, rows, new, change) in TABLES.items():
            key, marks = columns.split()[0], ", ".join("?" * len(new))
            connection.execute(f"DROP TABLE IF EXISTS {table}")
            connection.execute(f"CREATE TABLE {table} ({columns})")
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
            if day > 1:
                connection.execute(f"DELETE FROM {table} WHERE {key} = 4")
                connection.execute(
                    f"UPDATE {table} SET {change}, updated_at = '2024-06-02 08:00:00' WHERE {key} = 2"
                )
                connection.execute(f"INSERT INTO {table} VALUES ({marks})", new)
        connection.commit()
    finally:
        connection.close()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Make the database that an example reads.")
    parser.add_argument("folder", type=Path, help="the folder of the example")
    parser.add_argument("--day", type=int, choices=(1, 2), default=1)
    chosen = parser.parse_args()
    make(chosen.folder, chosen.day)
    print(f"{chosen.folder / 'source.db'} as on day {chosen.day}")


if __name__ == "__main__":
    main()
