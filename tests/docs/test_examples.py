"""The examples as they stand: two days each, and after them exactly what their README says."""

from __future__ import annotations

import importlib.util
import shutil
import sqlite3
from pathlib import Path

import pytest

import strandline
from strandline.errors import DeleteThresholdExceeded
from strandline.testing.frames import read_table

EXAMPLES = Path(__file__).parents[2] / "examples"
DAY_1 = {1: False, 2: False, 3: False, 4: False, 5: False}
DAY_2 = {1: False, 2: False, 3: False, 4: True, 5: False, 6: False}


@pytest.fixture(scope="module")
def make_source():
    spec = importlib.util.spec_from_file_location("make_source", EXAMPLES / "make_source.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make


class Example:
    """A copy of an example's folder, and its Silver table."""

    def __init__(self, name, folder, platform, make):
        self.folder = Path(shutil.copytree(EXAMPLES / name, folder / name))
        self.platform, self.make = platform, make

    def day(self, day, *, also=(), **how):
        self.make(self.folder, day)
        with sqlite3.connect(self.folder / "source.db") as source:
            for statement in also:
                source.execute(statement)
        source.close()
        return {
            n.name: n for n in strandline.load(self.folder).run(platform=self.platform, **how).nodes
        }

    def rows(self, table="silver/*"):
        (location,) = (self.folder / "lake").glob(table)
        return read_table(location)

    def flags(self):
        rows = self.rows()
        return {row[rows.names[0]]: row["_is_deleted"] for row in rows.rows}


@pytest.fixture
def example(tmp_path, platform, make_source):
    return lambda name: Example(name, tmp_path, platform, make_source)


def told(node):
    return (
        node.status,
        node.rows_read,
        node.inserted,
        node.updated,
        node.deleted,
        node.held,
        node.warnings,
    )


def test_all_are_here():
    assert [p.name for p in sorted(EXAMPLES.iterdir()) if p.is_dir() and (p / "strandline.yaml").is_file()] == [
        "01-snapshot-diff", "02-sql-compare", "03-no-detection", "04-hard-delete", "05-threshold", "06-first-run",
        "07-star",
    ]  # fmt: skip


def test_01_customer_4_is_flagged(example):
    shop = example("01-snapshot-diff")
    first = shop.day(1)
    assert told(first["bronze_customers"]) == ("success", 5, 5, 0, 0, 0, [])
    assert told(first["silver_customers"]) == ("success", 5, 5, 0, 0, 0, [])
    assert shop.flags() == DAY_1
    second = shop.day(2)
    assert told(second["bronze_customers"]) == ("success", 5, 5, 0, 0, 0, [])
    assert told(second["silver_customers"]) == ("success", 5, 1, 1, 1, 0, [])
    assert shop.flags() == DAY_2
    silver = {r["customer_id"]: r for r in shop.rows().rows}
    assert silver[4]["email"] == "dora@example.com"  # as it was last seen
    assert silver[2]["email"] == "new@example.com"
    assert len(shop.rows("bronze/customers").rows) == 10
    again = shop.day(2)  # the same extract once more: nothing to do
    assert told(again["silver_customers"])[2:6] == (0, 0, 0, 0)
    assert shop.flags() == DAY_2


@pytest.mark.long_on_spark
def test_02_product_4_is_flagged_and_bronze_has_no_copies(example):
    shop = example("02-sql-compare")
    first = shop.day(1)
    assert told(first["bronze_products"]) == ("success", 5, 5, 0, 0, 0, [])
    assert told(first["silver_products"]) == ("success", 5, 5, 0, 0, 0, [])
    second = shop.day(2)
    # from two hours below the mark: 3 and 5 come again, 2 has changed, 6 is new
    assert told(second["bronze_products"]) == ("success", 4, 2, 0, 0, 0, [])
    assert told(second["silver_products"]) == ("success", 7, 1, 1, 1, 0, [])
    assert shop.flags() == DAY_2
    prices = {r["product_id"]: r["price"] for r in shop.rows().rows}
    assert prices == {1: 30.0, 2: 199.0, 3: 90.0, 4: 120.0, 5: 45.0, 6: 180.0}
    assert sorted(r["product_id"] for r in shop.rows("bronze/products").rows) == [
        1,
        2,
        2,
        3,
        4,
        5,
        6,
    ]


@pytest.mark.long_on_spark
def test_03_order_4_stays(example):
    shop = example("03-no-detection")
    assert told(shop.day(1)["silver_orders"]) == ("success", 5, 5, 0, 0, 0, [])
    assert told(shop.day(2)["silver_orders"]) == ("success", 10, 1, 1, 0, 0, [])
    silver = shop.rows()
    assert {r["order_id"]: r["amount"] for r in silver.rows} == {
        1: 30.0,
        2: 260.0,
        3: 90.0,
        4: 120.0,
        5: 45.0,
        6: 75.0,
    }
    assert "_is_deleted" not in silver.names
    assert "_last_seen" not in silver.names


@pytest.mark.long_on_spark
def test_04_customer_4_is_no_longer_there(example):
    shop = example("04-hard-delete")
    assert told(shop.day(1)["silver_customers"]) == ("success", 5, 5, 0, 0, 0, [])
    assert told(shop.day(2)["silver_customers"]) == ("success", 10, 1, 1, 1, 0, [])
    silver = shop.rows()
    assert sorted(r["customer_id"] for r in silver.rows) == [1, 2, 3, 5, 6]
    assert "_is_deleted" not in silver.names
    # Bronze still has customer 4 of day 1: it does not come back
    assert told(shop.day(2)["silver_customers"])[2:5] == (0, 0, 0)
    assert sorted(r["customer_id"] for r in shop.rows().rows) == [1, 2, 3, 5, 6]


@pytest.mark.long_on_spark
def test_05_a_fifth_is_not_more_than_20_percent(example):
    shop = example("05-threshold")
    assert told(shop.day(1)["silver_customers"]) == ("success", 5, 5, 0, 0, 0, [])
    assert told(shop.day(2)["silver_customers"]) == ("success", 10, 1, 1, 1, 0, [])
    assert shop.flags() == DAY_2


@pytest.mark.long_on_spark
def test_05_another_one_stops_it(example):
    shop = example("05-threshold")
    shop.day(1)
    more = ["DELETE FROM Customers WHERE customer_id = 1"]
    stopped = shop.day(2, also=more)["silver_customers"]
    assert stopped.status == "failed"
    assert stopped.error["message"].startswith("40.0% exceeds 20.0%")
    assert {r["customer_id"]: r["email"] for r in shop.rows().rows}[
        2
    ] == "ben@example.com"  # nothing was written
    assert shop.flags() == DAY_1
    with pytest.raises(DeleteThresholdExceeded, match=r"^40\.0% exceeds 20\.0%"):
        shop.day(2, also=more, check=True)
    assert shop.flags() == DAY_1


@pytest.mark.long_on_spark
def test_06_the_second_extract_has_one_to_compare_with(example):
    shop = example("06-first-run")
    assert told(shop.day(1)["silver_products"]) == ("success", 5, 5, 0, 0, 0, [])
    assert shop.flags() == DAY_1
    assert told(shop.day(2)["silver_products"]) == ("success", 5, 1, 1, 1, 0, [])
    assert shop.flags() == DAY_2


@pytest.mark.long_on_spark
def test_06_a_first_run_may_be_an_error(example):
    """It writes nothing and names the way out; `first` loads the table once."""
    shop = example("06-first-run")
    file = shop.folder / "strandline.yaml"
    file.write_text(file.read_text().replace("on_first_run: skip", "on_first_run: error"))
    refused = shop.day(1)["silver_products"]
    assert refused.status == "failed"
    assert "there is no earlier snapshot to compare with" in refused.error["message"]
    assert refused.error["hint"].endswith("strandline run --first --select silver_products")
    assert not (shop.folder / "lake" / "silver").exists()
    assert told(shop.day(1, first=True)["silver_products"]) == ("success", 5, 5, 0, 0, 0, [])
    assert told(shop.day(2)["silver_products"]) == ("success", 5, 1, 1, 1, 0, [])
    assert shop.flags() == DAY_2


@pytest.mark.long_on_spark
def test_07_orders_carry_the_key_of_their_customer(example):
    shop = example("07-star")
    first = shop.day(1)
    assert told(first["dim_customer"]) == ("success", 5, 7, 0, 0, 0, [])
    assert told(first["dim_date"]) == ("success", 366, 366, 0, 0, 0, [])
    assert told(first["fact_orders"]) == ("success", 5, 5, 0, 0, 0, [])
    second = shop.day(2)
    assert told(second["dim_customer"]) == ("success", 5, 1, 1, 1, 0, [])
    assert second["dim_date"].version is None
    assert told(second["fact_orders"]) == ("success", 5, 1, 1, 0, 0, [])
    customers = shop.rows("gold/dim_customer").rows
    keys = {r["customer_sk"]: (r["customer_id"], r["customer_dk"]) for r in customers}
    assert keys == {
        -2: (None, -2), -1: (None, -1), 1: (1, 1), 2: (2, 2), 3: (3, 3), 4: (4, 4), 5: (5, 5), 6: (2, 2), 7: (6, 7),
    }  # fmt: skip
    orders = {r["order_id"]: r["customer_sk"] for r in shop.rows("gold/fact_orders").rows}
    assert orders == {1: 1, 2: 6, 3: 1, 4: 3, 5: 5, 6: 4}
