"""The shop of the demo: a SQLite database with made-up rows, the same each time, and one day of changes to them."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

CUSTOMERS, PRODUCTS, ORDERS = 20_000, 500, 60_000
UPDATED, INSERTED, DELETED, REPRICED = 200, 50, 20, 300

_TABLES = """
CREATE TABLE customers (
  customer_id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT, country TEXT NOT NULL, newsletter BOOLEAN NOT NULL,
  credit_limit DECIMAL(12,2), born DATE, updated_at TIMESTAMP NOT NULL
);
CREATE TABLE products (
  product_id INTEGER PRIMARY KEY, name TEXT NOT NULL, category TEXT NOT NULL, price DECIMAL(12,2) NOT NULL,
  launched DATE NOT NULL, discontinued BOOLEAN NOT NULL
);
CREATE TABLE orders (
  order_id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, product_id INTEGER NOT NULL, quantity INTEGER NOT NULL,
  amount DECIMAL(12,2) NOT NULL, status TEXT NOT NULL, ordered_at TIMESTAMP NOT NULL
);
"""
_GIVEN = (
    "Ada",
    "Bo",
    "Chiara",
    "Dario",
    "Emma",
    "Finn",
    "Gita",
    "Hugo",
    "Ines",
    "Jonas",
    "Kaya",
    "Luca",
    "Mira",
    "Noor",
)
_FAMILY = (
    "Ahlberg",
    "Brandt",
    "Costa",
    "Dubois",
    "Egger",
    "Fontana",
    "Gruber",
    "Hansen",
    "Ivanov",
    "Keller",
    "Lind",
)
_COUNTRIES = ("AT", "CH", "DE", "DK", "ES", "FR", "IT", "NL", "PL", "SE")
_THINGS = {
    "kitchen": ("kettle", "pan", "bowl", "knife"),
    "garden": ("rake", "hose", "bench", "lantern"),
    "office": ("lamp", "chair", "notebook", "shelf"),
    "outdoor": ("tent", "rope", "stove", "backpack"),
    "play": ("puzzle", "kite", "ball", "blocks"),
}
_LOOKS = ("blue", "oak", "small", "light", "folding", "round", "grey", "steel", "tall", "soft")
_FIRST_DAY = datetime(2025, 1, 1)  # noqa: DTZ001 – the shop's own clock, without a zone, as its columns are
_DAYS = 180
_CHANGED_AT = "2025-07-01 08:00:00"


@dataclass(frozen=True)
class SourceChanges:
    """What was done to the shop between the two runs: the rows it touched, as the database counted them."""

    customers_updated: int
    customers_inserted: int
    customers_deleted: int
    orders_updated: int
    updated_ids: tuple[int, ...]
    deleted_ids: tuple[int, ...]
    order_customers: tuple[int, ...]


def create(file: Path) -> dict[str, int]:
    """Make the shop; returns how many rows each table has."""
    dice = random.Random(20_250_701)  # noqa: S311 – the same shop each time, not a secret
    with closing(sqlite3.connect(file)) as shop:
        shop.executescript(_TABLES)
        products = list(_products(dice))
        prices = {p[0]: p[3] for p in products}
        _insert(shop, "customers", (_customer(dice, n) for n in range(1, CUSTOMERS + 1)))
        _insert(shop, "products", products)
        _insert(shop, "orders", _orders(dice, prices))
        shop.commit()
        return {
            t: _number(shop, f"SELECT COUNT(*) FROM {t}")  # noqa: S608
            for t in ("customers", "products", "orders")
        }


def change(file: Path) -> SourceChanges:
    """A day passes: customers move, join and leave, orders are corrected."""
    dice = random.Random(20_250_702)  # noqa: S311
    with closing(sqlite3.connect(file)) as shop:
        before = shop.total_changes
        picked = dice.sample(range(1, CUSTOMERS + 1), UPDATED + DELETED)
        updated, deleted = sorted(picked[:UPDATED]), sorted(picked[UPDATED:])
        moved = [
            (_other_country(dice, shop, n), dice.randrange(5, 90) * 100, _CHANGED_AT, n)
            for n in updated
        ]
        shop.executemany(
            "UPDATE customers SET country = ?, credit_limit = ?, updated_at = ? WHERE customer_id = ?",
            moved,
        )
        updates = shop.total_changes
        new = (_customer(dice, n) for n in range(CUSTOMERS + 1, CUSTOMERS + INSERTED + 1))
        _insert(shop, "customers", new)
        inserts = shop.total_changes
        shop.executemany("DELETE FROM customers WHERE customer_id = ?", [(n,) for n in deleted])
        deletes = shop.total_changes
        orders = sorted(dice.sample(range(1, ORDERS + 1), REPRICED))
        shop.executemany(
            "UPDATE orders SET amount = ROUND(amount * (quantity + 1.0) / quantity, 2), quantity = quantity + 1 "
            "WHERE order_id = ?",
            [(n,) for n in orders],
        )
        shop.commit()
        buyers = [
            _number(shop, "SELECT customer_id FROM orders WHERE order_id = ?", n) for n in orders
        ]
        return SourceChanges(
            updates - before, inserts - updates, deletes - inserts, shop.total_changes - deletes,
            tuple(updated), tuple(deleted), tuple(buyers),
        )  # fmt: skip


@contextmanager
def accident(file: Path) -> Iterator[int]:
    """A load that stopped half-way: every second customer is missing until it is over; says how many."""
    whole = file.with_suffix(".whole")
    shutil.copyfile(file, whole)
    try:
        with closing(sqlite3.connect(file)) as shop:
            shop.execute("DELETE FROM customers WHERE customer_id % 2 = 0")
            lost = shop.total_changes
            shop.commit()
        yield lost
    finally:
        whole.replace(file)


def _customer(dice: random.Random, number: int) -> tuple[Any, ...]:
    given, family = dice.choice(_GIVEN), dice.choice(_FAMILY)
    email = f"{given}.{family}.{number}@example.com".lower() if dice.random() < 0.95 else None
    limit = f"{dice.randrange(5, 90) * 100}.00" if dice.random() < 0.8 else None
    born = (date(1950, 1, 1) + timedelta(days=dice.randrange(20_000))).isoformat()
    return (
        number,
        f"{given} {family}",
        email,
        dice.choice(_COUNTRIES),
        dice.random() < 0.4,
        limit,
        born,
        _moment(dice),
    )


def _products(dice: random.Random) -> Iterator[tuple[Any, ...]]:
    for number in range(1, PRODUCTS + 1):
        category = dice.choice(tuple(_THINGS))
        name = f"{dice.choice(_LOOKS)} {dice.choice(_THINGS[category])}"
        launched = (date(2020, 1, 1) + timedelta(days=dice.randrange(1_800))).isoformat()
        yield (
            number,
            name,
            category,
            f"{dice.randrange(300, 30_000) / 100:.2f}",
            launched,
            dice.random() < 0.1,
        )


def _orders(dice: random.Random, prices: dict[int, str]) -> Iterator[tuple[Any, ...]]:
    for number in range(1, ORDERS + 1):
        product, quantity = dice.randrange(1, PRODUCTS + 1), dice.choice((1, 1, 1, 2, 2, 3, 5))
        amount = f"{float(prices[product]) * quantity:.2f}"
        status = dice.choice(("paid", "shipped", "shipped", "returned"))
        yield (
            number,
            dice.randrange(1, CUSTOMERS + 1),
            product,
            quantity,
            amount,
            status,
            _moment(dice),
        )


def _moment(dice: random.Random) -> str:
    return str(_FIRST_DAY + timedelta(seconds=dice.randrange(_DAYS * 86_400)))


def _other_country(dice: random.Random, shop: sqlite3.Connection, customer: int) -> str:
    (now,) = shop.execute(
        "SELECT country FROM customers WHERE customer_id = ?", (customer,)
    ).fetchone()
    return dice.choice([c for c in _COUNTRIES if c != now])


def _insert(shop: sqlite3.Connection, table: str, rows: Any) -> None:
    width = len(shop.execute(f"PRAGMA table_info({table})").fetchall())
    shop.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * width)})", rows)  # noqa: S608 – our own names


def _number(shop: sqlite3.Connection, query: str, *values: int) -> int:
    return int(shop.execute(query, values).fetchone()[0])
