"""Deletes that nobody announced, in whole projects: windows, snapshots, the live source, and what is said of them."""

from __future__ import annotations

import logging
import os
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from deltalake import DeltaTable
from tests.shop import Shop

from strandline.errors import (
    CastError,
    ConfigError,
    DeleteThresholdExceeded,
    DuplicateKeys,
    EmptySource,
    ReadError,
    TransformError,
    UnknownColumn,
)

ORDERS = [("OrderID", "bigint"), ("CustomerID", "bigint"), ("LastModified", "date")]
MARK = [{"column_name": "LastModified", "operation": "and", "expression": "'${last_value}'"}]
MODES = ["upsert", "scd2"]
FIRST_RUN = (
    "inferDeletesFromMissing is enabled but no previous watermark values available. "
    "No deletes will be inferred. This is expected on first run."
)
ACTIVE = (
    "inferDeletesFromMissing is active. Records in the watermark window that are missing from the source "
    "will be marked as deleted."
)
NULLS = "Records with NULL values in watermark columns will NOT be considered for deletion."


def june(day, month=6):
    return date(2024, month, day)


class AnySource(Shop):
    """Files and a database, and any nodes over them."""

    def run(self, select=None):
        """The result of the last node, or all by name when there are several."""
        found = self.by_name(select)
        return found if len(found) > 1 else next(iter(found.values()))

    def flags(self, name, key="id", flag="_is_deleted"):
        return {row[key]: row[flag] for row in self.stored(name)}

    def compact(self, name):
        """What OPTIMIZE does: other files, another version, the same rows."""
        before = DeltaTable(self.place(name)).version()
        DeltaTable(self.place(name)).optimize.compact()
        assert DeltaTable(self.place(name)).version() > before


@pytest.fixture
def shop(tmp_path, platform):
    return AnySource(tmp_path, platform)


@pytest.fixture
def quick(tmp_path, pandas_platform):
    """For what is said rather than done: it is said before any engine."""
    return AnySource(tmp_path, pandas_platform)


@pytest.fixture
def lines(caplog):
    """What the log says, each line with its level."""
    caplog.set_level(logging.INFO, logger="strandline")
    return lambda: [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "strandline"]


def orders(mode="upsert", *, read=None, step=None, name="orders", **write):
    """Seed 001's node: a watermark list and `delete_missing`."""
    node = {
        "name": name,
        "read": {
            "connection": "files",
            "path": f"{name}.parquet",
            "watermark": MARK,
            **(read or {}),
        },
        "settings": {"delete_missing": True},
        "write": {"connection": "lake", "table": name, "mode": mode, "keys": ["OrderID"], **write},
    }
    if step is not None:
        params = {"mode": "watermark_window", "keys": ["OrderID"], **step}
        node["transform"] = {"steps": [{"operation": "detect_deletes", "params": params}]}
    return node


def numbers(node):
    return (node.inserted, node.updated, node.deleted, node.reopened, node.held)


# --- seed 001's three runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "on_the_bound", [True, pytest.param(False, marks=pytest.mark.long_on_spark)]
)
def test_three_runs_with_dates(shop, mode, on_the_bound):
    """Order 4 is missed in run 3 if its mark is the bound of that run's window, and else lies below it."""
    fourth, third = (june(15), june(12)) if on_the_bound else (june(10), june(15))
    shop.declare(orders(mode))
    shop.put("orders", ORDERS, (1, 10, june(1)), (2, 10, june(20, 5)), (3, 11, june(25, 5)))
    first = shop.run()
    assert numbers(first) == (3, 0, 0, 0, 0)
    assert first.warnings == [FIRST_RUN]

    shop.put("orders", ORDERS, (2, 10, june(10)), (3, 11, third), (4, 12, fourth))
    before = datetime.now(UTC)
    second = shop.run()
    assert (numbers(second), second.warnings) == ((1, 2, 1, 0, 0), [])  # one of three
    gone = last(shop, 1)
    assert (gone["CustomerID"], gone["LastModified"]) == (10, june(1))  # as it was
    assert gone["_is_deleted"] is True
    assert before <= gone["_last_seen"] <= datetime.now(UTC)
    if mode == "scd2":
        assert (gone["_is_current"], gone["_valid_to"]) == (False, gone["_last_seen"])

    shop.put("orders", ORDERS, (2, 10, june(18)), (3, 11, june(20)))
    third_run = shop.run()
    assert numbers(third_run) == ((0, 2, 1, 0, 0) if on_the_bound else (0, 2, 0, 0, 0))
    assert {n: last(shop, n)["_is_deleted"] for n in (1, 2, 3, 4)} == {
        1: True,
        2: False,
        3: False,
        4: on_the_bound,
    }
    assert last(shop, 1) == gone  # deleted once, not again
    if mode == "scd2":
        versions = [r for r in shop.table("orders").rows if r["OrderID"] == 3]
        assert sorted((r["LastModified"], r["_is_current"], r["_is_deleted"]) for r in versions) == [
            (june(25, 5), False, False), (third, False, False), (june(20), True, False),
        ]  # fmt: skip
        assert len(shop.table("orders").rows) == 8


def last(shop, order):
    """The newest row of an order."""
    rows = [r for r in shop.table("orders").rows if r["OrderID"] == order]
    return max(rows, key=lambda r: r.get("_valid_from") or r["_last_seen"])


@pytest.mark.lakes
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.long_on_spark
def test_what_comes_back_is_revived(shop, mode):
    shop.declare(orders(mode))
    shop.put("orders", ORDERS, (1, 10, june(1)), (2, 10, june(1)))
    shop.run()
    shop.put("orders", ORDERS, (2, 10, june(2)))
    assert shop.run().deleted == 1
    shop.put("orders", ORDERS, (1, 10, june(2)), (2, 10, june(2)))
    assert numbers(shop.run()) == (0, 0, 0, 1, 0)
    back = last(shop, 1)
    assert (back["_is_deleted"], back["LastModified"]) == (False, june(2))
    if mode == "scd2":
        history = sorted(
            (r for r in shop.table("orders").rows if r["OrderID"] == 1),
            key=lambda r: r["_valid_from"],
        )
        assert [(r["_is_current"], r["_is_deleted"]) for r in history] == [
            (False, True),
            (True, False),
        ]
        assert history[0]["_valid_to"] < history[1]["_valid_from"]  # it was gone in between


# --- seed 001's edge cases ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_rows_without_a_mark_are_never_missed(quick, mode):
    quick.declare(orders(mode))
    quick.put("orders", ORDERS, (1, 10, june(1)), (2, 10, None), (3, 11, june(1)))
    quick.run()
    quick.put("orders", ORDERS, (3, 11, june(3)))
    assert numbers(quick.run()) == (0, 1, 1, 0, 0)
    assert {n: last(quick, n)["_is_deleted"] for n in (1, 2, 3)} == {1: True, 2: False, 3: False}


def test_a_watermark_column_that_the_table_lacks_is_skipped(quick, lines):
    """With no other column there is nothing to tell the window by, and nothing is inferred."""
    node = orders()
    node["transform"] = {"steps": [{"operation": "drop", "params": {"columns": ["LastModified"]}}]}
    quick.declare(node)
    quick.put("orders", ORDERS, (1, 10, june(1)), (2, 10, june(1)))
    quick.run()
    quick.put("orders", ORDERS, (2, 11, june(2)))
    text = "Watermark column 'LastModified' not found in target schema; skipping it for delete detection."
    second = quick.run()
    assert numbers(second) == (0, 1, 0, 0, 0)
    assert second.warnings == [text]
    assert ("WARNING", f"orders: {text}") in lines()
    assert not any(ACTIVE in line or NULLS in line for _, line in lines())
    assert quick.flags("orders", "OrderID") == {1: False, 2: False}


@pytest.mark.parametrize(("operation", "deleted"), [("or", 1), ("and", 0)])
def test_one_of_two_watermark_columns_is_not_in_the_table(quick, operation, deleted):
    """Joined by OR the other one tells what was read. Joined by AND it does not: order 4 is there and was not read."""
    columns = [*ORDERS, ("Batch", "int")]
    node = orders(read={"watermark": [*MARK, {"column_name": "Batch", "operation": operation}]})
    node["transform"] = {"steps": [{"operation": "drop", "params": {"columns": ["Batch"]}}]}
    quick.declare(node)
    there = [(3, 10, june(1, 5), 1), (4, 10, june(1), 0)]
    quick.put("orders", columns, (1, 10, june(1), 1), (2, 10, june(1), 1), *there)
    quick.run()
    quick.put("orders", columns, (2, 10, june(2), 2), *there)
    result = quick.run()
    assert result.deleted == deleted
    skipped = (
        "Watermark column 'Batch' not found in target schema; skipping it for delete detection."
    )
    assert result.warnings[0] == skipped
    assert len(result.warnings) == (1 if deleted else 2)
    assert quick.flags("orders", "OrderID") == {1: bool(deleted), 2: False, 3: False, 4: False}


TIMED = [("OrderID", "bigint"), ("at", "timestamp")]


def test_a_mark_that_is_kept_with_another_type_tells_no_window(quick):
    """Of order 2 only the day is kept: nobody can tell that it lies below the hour from which was read."""
    node = orders(read={"watermark": [{"column_name": "at"}]})
    node["transform"] = {"steps": [{"operation": "cast", "params": {"columns": {"at": "date"}}}]}
    quick.declare(node)
    early, late = datetime(2024, 6, 1, 8, tzinfo=UTC), datetime(2024, 6, 1, 12, tzinfo=UTC)
    quick.put("orders", TIMED, (1, late), (2, early), (3, late))
    quick.run()
    quick.put("orders", TIMED, (2, early), (3, late + timedelta(hours=1)))
    result = quick.run()
    assert result.deleted == 0
    types = "is of type date in the table and timestamp at the source"
    assert result.warnings == [f"Watermark column 'at' {types}; skipping it for delete detection."]


@pytest.mark.parametrize(
    ("type_", "values", "gap"), [("bigint", (1, 9), "7d"), ("string", ("01", "09"), 7)]
)
def test_a_gap_must_suit_its_column(quick, type_, values, gap):
    columns = [("OrderID", "bigint"), ("m", type_)]
    quick.declare(orders(read={"watermark": [{"column_name": "m"}]}, step={"max_window_gap": gap}))
    quick.put("orders", columns, (1, values[0]))
    quick.run()
    quick.put("orders", columns, (2, values[1]))
    with pytest.raises(
        ReadError, match=f"max_window_gap: {gap} cannot be compared with column `m` of type {type_}"
    ):
        quick.run()


@pytest.mark.lakes
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.long_on_spark
def test_partitions_narrow_the_candidates_and_a_row_may_move(shop, mode):
    columns = [*ORDERS, ("Region", "string")]
    shop.declare(orders(mode, partition_by=["Region"]))
    shop.put(
        "orders", columns,
        (1, 10, june(1), "EMEA"), (2, 10, june(1), "EMEA"), (3, 10, june(1), "APAC"), (4, 10, june(1), None),
    )  # fmt: skip
    shop.run()
    # 1 moves from EMEA to LATAM, 2 is gone but nothing of EMEA came, 3 is gone and 5 is of its region
    shop.put("orders", columns, (1, 10, june(2), "LATAM"), (5, 10, june(2), "APAC"))
    assert numbers(shop.run()) == (1, 1, 1, 0, 0)
    newest = {n: last(shop, n) for n in range(1, 6)}
    assert {n: r["_is_deleted"] for n, r in newest.items()} == {
        1: False,
        2: False,
        3: True,
        4: False,
        5: False,
    }
    assert newest[1]["Region"] == "LATAM"
    living = [
        r for r in shop.table("orders").rows if r["OrderID"] == 1 and r.get("_is_current", True)
    ]
    assert len(living) == 1  # it moved and was not doubled


def test_a_null_partition_is_a_partition(quick):
    columns = [*ORDERS, ("Region", "string")]
    quick.declare(orders(partition_by=["Region"]))
    quick.put("orders", columns, (1, 10, june(1), "EMEA"), (2, 10, june(1), None))
    quick.run()
    quick.put("orders", columns, (3, 10, june(2), None))
    assert quick.run().deleted == 1
    assert quick.flags("orders", "OrderID") == {1: False, 2: True, 3: False}


@pytest.mark.parametrize("mode", MODES)
def test_deleted_rows_are_not_touched_again(quick, mode):
    quick.declare(orders(mode))
    quick.put("orders", ORDERS, (1, 10, june(1)), (2, 10, june(1)))
    quick.run()
    quick.put("orders", ORDERS, (2, 10, june(1)), (3, 10, june(1)))
    assert quick.run().deleted == 1
    gone = last(quick, 1)
    again = quick.run()  # the same window, 1 is still missing
    assert (again.status, numbers(again), again.version) == ("unchanged", (0, 0, 0, 0, 0), None)
    quick.put("orders", ORDERS, (2, 10, june(1)), (3, 11, june(1)))
    assert numbers(quick.run()) == (0, 1, 0, 0, 0)
    assert last(quick, 1) == gone


@pytest.mark.parametrize(("gap", "deleted"), [("30d", 0), ("200d", 1), (30, 0), (None, 1)])
def test_a_long_pause_is_no_evidence(quick, gap, deleted):
    quick.declare(orders(step={"max_window_gap": gap} if gap else None))
    quick.put("orders", ORDERS, (1, 10, june(1, 1)), (2, 10, june(1, 1)))
    quick.run()
    quick.put("orders", ORDERS, (2, 10, june(1)))
    result = quick.run()
    assert numbers(result) == (0, 1, deleted, 0, 0)
    text = (
        "LastModified went from 2024-01-01 to 2024-06-01, "
        f"further than max_window_gap: {gap}; no deletes are inferred"
    )
    assert result.warnings == ([] if deleted else [text])
    # the pause is over: from here on absence counts again
    quick.put("orders", ORDERS, (3, 10, june(2)))
    assert quick.run().deleted == 1
    assert quick.flags("orders", "OrderID") == {1: bool(deleted), 2: True, 3: False}


def test_an_empty_read_infers_nothing(quick):
    quick.declare(orders())
    quick.put("orders", ORDERS, (1, 10, june(1)), (2, 10, june(1)))
    quick.run()
    quick.put("orders", ORDERS)
    quiet = quick.run()
    assert (quiet.status, quiet.rows_read, quiet.warnings) == ("unchanged", 0, [])
    assert quick.flags("orders", "OrderID") == {1: False, 2: False}


def test_a_slice_that_is_filtered_away_infers_nothing_in_its_partitions(quick):
    """The read found rows, the steps kept none of them: no partition is present."""
    columns = [*ORDERS, ("Region", "string")]
    node = orders(partition_by=["Region"])
    node["transform"] = {
        "steps": [{"operation": "filter", "params": {"condition": "CustomerID = 10"}}]
    }
    quick.declare(node)
    quick.put("orders", columns, (1, 10, june(1), "EMEA"), (2, 10, june(1), "APAC"))
    quick.run()
    quick.put("orders", columns, (3, 99, june(2), "EMEA"))
    assert numbers(quick.run()) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize(("where", "deleted"), [("settings", 0), ("step", 1)])
def test_what_a_filter_leaves_out_was_read_all_the_same(quick, where, deleted):
    """`delete_missing` looks at the whole slice; a step looks at the rows as they are where it stands."""
    node = orders(step={} if where == "step" else None)
    steps = node.setdefault("transform", {"steps": []})["steps"]
    steps.insert(0, {"operation": "filter", "params": {"condition": "CustomerID = 10"}})
    quick.declare(node)
    quick.put("orders", ORDERS, (1, 10, june(1)), (2, 10, june(1)), (3, 10, june(1)))
    quick.run()
    quick.put("orders", ORDERS, (1, 99, june(2)), (2, 10, june(1)), (3, 10, june(1)))
    assert numbers(quick.run()) == (0, 0, deleted, 0, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"read": {"connection": "files", "path": "orders.parquet"}}, "this read has none"),
        ({"write": {"connection": "lake", "table": "o", "mode": "append"}}, "cannot be applied"),
    ],
)
def test_x43_without_a_watermark_or_keys_it_is_refused(quick, change, message):
    with pytest.raises(ConfigError, match=message):
        quick.declare({**orders(), **change})


# --- the words of the log ----------------------------------------------------------------------------------


def test_the_words_of_seed_001(quick, lines):
    quick.declare(orders())
    quick.put("orders", ORDERS, (1, 10, june(1)))
    quick.run()
    assert ("WARNING", f"orders: {FIRST_RUN}") in lines()
    assert not any(ACTIVE in text for _, text in lines())
    quick.put("orders", ORDERS, (2, 10, june(15)))
    quick.run()
    said = lines()
    window = "Delete detection window for column 'LastModified': [2024-06-01 <= LastModified <= 2024-06-15]"
    for line in [
        ("INFO", f"orders: {window}"),
        ("INFO", f"orders: {ACTIVE}"),
        ("WARNING", f"orders: Note: {NULLS}"),
    ]:
        assert said.count(line) == 1


def compared(**params):
    """Five customers in the live source; the node asks for its keys."""
    step = {
        "mode": "sql_compare",
        "keys": ["id"],
        "source_connection": "erp",
        "source_table": "customers",
        **params,
    }
    return {
        "name": "customers",
        "read": {"connection": "erp", "table": "customers"},
        "transform": {"steps": [{"operation": "detect_deletes", "params": step}]},
        "write": {"connection": "lake", "table": "customers", "mode": "upsert", "keys": ["id"]},
    }


FIVE = ["CREATE TABLE customers (id INTEGER, name TEXT)"] + [
    f"INSERT INTO customers VALUES ({i}, 'n{i}')" for i in range(1, 6)
]


def three_of_five_are_gone(shop, **params):
    shop.declare(compared(**params))
    shop.sql(*FIVE)
    shop.run()
    shop.sql("DELETE FROM customers WHERE id < 4")
    return shop


def test_many_keys_come_as_runs(shop, lines):
    shop.declare(compared())
    numbers = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 11999)"
    shop.sql(FIVE[0], f"INSERT INTO customers {numbers} SELECT i, 'n' || i FROM n")
    assert shop.run().inserted == 12_000
    shop.sql("DELETE FROM customers WHERE id % 1000 = 7")
    result = shop.run()
    assert (result.deleted, result.updated, result.inserted) == (12, 0, 0)
    assert ("INFO", "customers: the live source has 11988 keys, in 13 runs") in lines()
    assert {k for k, gone in shop.flags("customers").items() if gone} == set(range(7, 12_000, 1000))


@pytest.mark.parametrize(
    ("key", "declared", "keys", "other"),
    [
        ("bigint", "REAL", (1, 2), "1.5"),
        ("decimal(10,1)", "DECIMAL(10,2)", (Decimal("1.2"), Decimal("3.0")), "1.25"),
        ("date", "TIMESTAMP", (june(1), june(2)), "2024-06-01 10:00:00.000000"),
    ],
)
def test_a_live_key_that_is_not_a_key_of_the_table_is_an_error_that_names_it(
    shop, key, declared, keys, other
):
    live = {"source_table": "live", "max_delete_percent": None}
    shop.declare({**compared(**live), "read": {"connection": "files", "path": "customers.parquet"}})
    shop.put("customers", [("id", key), ("name", "string")], *((k, "a") for k in keys))
    shop.sql(
        f"CREATE TABLE live (id {declared})", *(f"INSERT INTO live VALUES ('{k}')" for k in keys)
    )
    shop.run()
    shop.sql(f"UPDATE live SET id = '{other}' WHERE id = '{keys[0]}'")
    with pytest.raises(CastError, match="column `id`") as caught:
        shop.run()
    assert (caught.value.value, caught.value.type) == (other, key)
    assert shop.flags("customers") == dict.fromkeys(keys, False)
    shop.sql(
        f"DELETE FROM live WHERE id = '{other}'"
    )  # what is left is exact, in more digits or as a whole day
    shop.run()
    assert shop.flags("customers") == {keys[0]: True, keys[1]: False}


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ("name", "expected a condition, found column `name` of type string"),
        ("name = 1", ""),
        ("1 / (id - id) > 0", "division by zero"),
    ],
)
def test_a_target_filter_that_fails_is_named_with_its_node(quick, condition, told):
    with pytest.raises(TransformError, match=f"^customers: target_filter: .*{told}"):
        three_of_five_are_gone(quick, target_filter=condition).run()
    with pytest.raises(TransformError, match=r"^customers: target_filter: "):
        quick.project.run(platform=quick.platform, check=True)


def test_what_fails_beside_a_target_filter_is_not_its_fault(quick):
    node = compared(target_filter="name = 'n1'")
    node["transform"]["steps"].append(
        {"operation": "derive", "params": {"columns": {"x": "1 / (id - 3)"}}}
    )
    quick.declare(node)
    quick.sql(FIVE[0], "INSERT INTO customers VALUES (1, 'n1')")
    quick.run()
    quick.sql("INSERT INTO customers VALUES (3, 'n3')")
    with pytest.raises(TransformError, match=r"^division by zero"):
        quick.run()


def test_a_breach_that_warns(quick, lines):
    result = three_of_five_are_gone(quick).run()
    assert (result.deleted, len(result.warnings)) == (3, 1)
    assert result.warnings[0].startswith("Delete detection: 60.0% of rows flagged for deletion")
    said = [
        line
        for line in lines()
        if "Delete detection: 60.0% of rows flagged for deletion" in line[1]
    ]
    assert [level for level, _ in said] == ["WARNING"]


def test_a_breach_that_skips(quick, lines):
    result = three_of_five_are_gone(quick, on_threshold_breach="skip").run()
    assert (result.status, result.deleted, result.held) == ("unchanged", 0, 0)
    said = [
        line
        for line in lines()
        if "Delete threshold exceeded, skipping delete detection" in line[1]
    ]
    assert [level for level, _ in said] == ["INFO"]
    assert set(quick.flags("customers").values()) == {
        False
    }  # the column is there all the same


def test_a_breach_that_stops(quick):
    three_of_five_are_gone(quick, on_threshold_breach="error", max_delete_percent=33.3)
    quick.sql("INSERT INTO customers VALUES (6, 'n6')")
    with pytest.raises(DeleteThresholdExceeded, match=r"^60\.0% exceeds 33\.3%$") as caught:
        quick.run()
    assert (caught.value.percent, caught.value.found, caught.value.alive) == (60.0, 3, 5)
    assert quick.flags("customers") == dict.fromkeys(
        range(1, 6), False
    )  # nothing was written, not even the new row


@pytest.mark.parametrize(("limit", "stops"), [(None, False), (0, True), (60, False), (59.9, True)])
def test_x8_null_is_off_and_zero_tolerates_none(quick, limit, stops):
    three_of_five_are_gone(quick, on_threshold_breach="error", max_delete_percent=limit)
    if stops:
        with pytest.raises(DeleteThresholdExceeded, match=f"60.0% exceeds {float(limit)}%"):
            quick.run()
    else:
        assert quick.run().deleted == 3


def test_the_limits_of_a_step_beside_delete_missing(quick):
    quick.declare(orders(step={"max_delete_percent": 10, "on_threshold_breach": "error"}))
    quick.put("orders", ORDERS, (1, 10, june(1)), (2, 10, june(1)))
    quick.run()
    quick.put("orders", ORDERS, (2, 10, june(2)))
    with pytest.raises(DeleteThresholdExceeded, match=r"^50\.0% exceeds 10\.0%$"):
        quick.run()


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"max_delete_percent": 9}, r"^10\.0% exceeds 9\.0%$"),  # of the ten that are alive
        (
            {"max_delete_percent": 49, "target_filter": "OrderID > 8"},
            r"^50\.0% exceeds 49\.0%$",
        ),  # of two
    ],
)
def test_the_share_is_of_all_living_rows_and_not_of_those_in_the_window(quick, params, text):
    quick.declare(orders(step={"on_threshold_breach": "error", **params}))
    quick.put("orders", ORDERS, *((n, 10, june(n)) for n in range(1, 11)))
    quick.run()
    quick.put("orders", ORDERS, (11, 10, june(11)))  # only order 10 lies on the bound
    with pytest.raises(DeleteThresholdExceeded, match=text) as caught:
        quick.run()
    assert caught.value.found == 1


def test_a_filter_over_a_column_that_is_not_there_is_told_at_the_first_run(quick):
    quick.declare(orders(step={"target_filter": "Regoin = 'EMEA' AND NOT _is_deleted"}))
    quick.put("orders", ORDERS, (1, 10, june(1)))
    with pytest.raises(UnknownColumn, match="target_filter: there is no column `Regoin`"):
        quick.run()
    quick.declare(orders(step={"target_filter": "ORDERID > 8 AND NOT target._is_deleted"}))
    for _ in range(2):
        quick.run()


# --- names of system columns -------------------------------------------------------------------------------

NAMES = {
    ("dlf", "upsert"): ["dlf_SourceHash", "dlf_deleted", "dlf_lastSeen"],
    ("dlf", "scd2"): ["dlf_SourceHash", "dlf_ValidFrom", "dlf_ValidTo", "dlf_IsCurrent", "dlf_deleted", "dlf_lastSeen"],
    ("kimball", "upsert"): ["__row_hash", "__is_deleted", "__last_seen"],
    ("kimball", "scd2"): [
        "__row_hash", "__valid_from", "__valid_to", "__is_current", "__is_deleted", "__last_seen",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("preset", "mode"), NAMES)
@pytest.mark.long_on_spark
def test_presets_name_the_system_columns(shop, preset, mode):
    shop.declare(orders(mode, system_columns={"preset": preset}))
    shop.put("orders", ORDERS, (1, 10, june(1)), (2, 10, june(1)))
    shop.run()
    shop.put("orders", ORDERS, (2, 10, june(2)))
    assert numbers(shop.run()) == (0, 1, 1, 0, 0)
    table = shop.table("orders")
    assert table.names == [*(n for n, _ in ORDERS), *NAMES[preset, mode]]
    deleted, seen = NAMES[preset, mode][-2:]
    (gone,) = [r for r in table.rows if r["OrderID"] == 1]
    assert gone[deleted] is True
    if mode == "scd2":
        valid_to, current = NAMES[preset, mode][2:4]
        assert (gone[current], gone[valid_to]) == (False, gone[seen])
        assert sorted((r[current], r[deleted]) for r in table.rows if r["OrderID"] == 2) == [
            (False, False), (True, False),
        ]  # fmt: skip


def test_a_prefix_and_a_name_of_ones_own(quick):
    quick.declare(
        orders(
            system_columns={"preset": "dlf", "prefix": "x_", "last_seen": "seen"}, row_hash=False
        )
    )
    quick.put("orders", ORDERS, (1, 10, june(1)))
    quick.run()
    assert quick.table("orders").names == [*(n for n, _ in ORDERS), "x_deleted", "seen"]


# --- reading a table that has deleted rows -----------------------------------------------------------------


@pytest.mark.long_on_spark
def test_living_rows_downstream_and_all_when_asked(shop):
    def reader(name, **read):
        return {
            "name": name,
            "read": {"connection": "lake", "table": "customers", **read},
            "write": {"connection": "lake", "table": name, "mode": "overwrite"},
        }

    named = {
        "name": "named",
        "read": {"connection": "lake", "table": "customers", "include_deleted": True},
        "transformation_sql": "SELECT id, _is_deleted AS gone FROM source",
        "write": {"connection": "lake", "table": "named", "mode": "overwrite"},
    }
    shop.declare(compared(), reader("living"), reader("everything", include_deleted=True), named)
    shop.sql(*FIVE)
    shop.run()
    shop.sql("DELETE FROM customers WHERE id = 4")
    result = shop.run()
    assert (
        result["customers"].deleted,
        result["living"].rows_read,
        result["everything"].rows_read,
    ) == (1, 4, 5)
    assert sorted(r["id"] for r in shop.table("living").rows) == [1, 2, 3, 5]
    assert sorted(r["id"] for r in shop.table("everything").rows) == [1, 2, 3, 4, 5]
    assert shop.table("living").names == ["id", "name"]  # system columns stay where they are
    assert shop.flags("named", flag="gone") == {1: False, 2: False, 3: False, 4: True, 5: False}


# --- what becomes of deletes -------------------------------------------------------------------------------


@pytest.mark.long_on_spark
def test_x4_a_condition_holds_back_neither_a_delete_nor_a_return(shop):
    node = compared()
    hashed = {"columns": ["name"], "output_col": "_hash_diff"}
    node["transform"]["steps"].insert(0, {"operation": "generate_surrogate_key", "params": hashed})
    node["write"]["update_condition"] = "source._hash_diff != target._hash_diff"
    shop.declare(node)
    shop.sql(*FIVE)
    shop.run()
    shop.sql("DELETE FROM customers WHERE id = 4")
    assert numbers(shop.run()) == (0, 0, 1, 0, 0)
    assert shop.flags("customers")[4] is True
    shop.sql("INSERT INTO customers VALUES (4, 'n4')")
    assert numbers(shop.run()) == (0, 0, 0, 1, 0)
    assert shop.flags("customers")[4] is False


@pytest.mark.parametrize("mode", MODES)
def test_ignored_deletes_leave_the_table_alone(quick, mode):
    node = compared()
    node["write"] |= {"mode": mode, "delete_strategy": "ignore"}
    quick.declare(node)
    quick.sql(*FIVE)
    quick.run()
    quick.sql("DELETE FROM customers WHERE id < 6")
    ignored = quick.run()
    assert (ignored.status, numbers(ignored), ignored.warnings) == (
        "unchanged",
        (0, 0, 0, 0, 0),
        [],
    )
    assert len(quick.table("customers").rows) == 5
    assert ("_is_deleted" in quick.table("customers").names) is (mode == "scd2")


@pytest.mark.lakes
@pytest.mark.parametrize("strategy", ["hard", None])
@pytest.mark.long_on_spark
def test_a_hard_delete_takes_all_versions(shop, strategy):
    node = compared(**({} if strategy else {"soft_delete_col": None}))
    node["write"] |= {"mode": "scd2", **({"delete_strategy": strategy} if strategy else {})}
    shop.declare(node)
    shop.sql(*FIVE)
    shop.run()
    shop.sql("UPDATE customers SET name = 'new' WHERE id IN (3, 4)")
    assert shop.run().updated == 2
    shop.sql("DELETE FROM customers WHERE id = 4")
    assert numbers(shop.run()) == (0, 0, 1, 0, 0)
    assert sorted(r["id"] for r in shop.table("customers").rows) == [1, 2, 3, 3, 5]


@pytest.mark.lakes
@pytest.mark.long_on_spark
def test_a_flag_comes_to_a_table_that_was_there_before(shop):
    node = compared()
    shop.declare({**node, "transform": {"steps": []}})
    shop.sql(*FIVE)
    shop.run()
    assert "_is_deleted" not in shop.table("customers").names
    shop.declare(node)
    shop.run()  # nothing else has changed
    assert shop.flags("customers") == dict.fromkeys(range(1, 6), False)
    shop.sql("DELETE FROM customers WHERE id = 4")
    assert numbers(shop.run()) == (0, 0, 1, 0, 0)
    assert shop.flags("customers") == {1: False, 2: False, 3: False, 4: True, 5: False}


def test_a_flag_comes_together_with_the_first_delete(quick):
    node = compared()
    quick.declare({**node, "transform": {"steps": []}})
    quick.sql(*FIVE)
    quick.run()
    quick.declare(node)
    quick.sql("DELETE FROM customers WHERE id = 4")
    assert numbers(quick.run()) == (0, 0, 1, 0, 0)
    assert quick.flags("customers") == {1: False, 2: False, 3: False, 4: True, 5: False}


# --- how reads are limited ---------------------------------------------------------------------------------


@pytest.mark.long_on_spark
def test_a_rolling_window_reads_and_looks_back_from_now(shop):
    today = datetime.now(UTC).date()
    node = orders()
    node["read"] = {
        "connection": "files", "path": "orders.parquet",
        "incremental": {"mode": "rolling_window", "column": "LastModified", "lookback": "7d"},
    }  # fmt: skip
    shop.declare(node)
    old, young = today - timedelta(days=30), today - timedelta(days=2)
    shop.put("orders", ORDERS, (1, 10, old), (2, 10, young), (3, 10, young))
    first = shop.run()
    assert (first.rows_read, first.inserted) == (2, 2)  # order 1 is older than the window
    shop.put("orders", ORDERS, (1, 10, old), (3, 10, today), (4, 10, young))
    second = shop.run()
    assert (second.rows_read, numbers(second)) == (2, (1, 1, 1, 0, 0))
    assert shop.flags("orders", "OrderID") == {2: True, 3: False, 4: False}


SINCE = {
    "initial value": {
        "incremental": {"mode": "stateful", "column": "LastModified", "initial_value": "2000-01-01"}
    },
    "rolling window": {
        "incremental": {"mode": "rolling_window", "column": "LastModified", "lookback": "7d"}
    },
    "a bound of its own": {
        "watermark": [{"column_name": "LastModified", "expression": "'2000-01-01'"}]
    },
}


@pytest.mark.parametrize("since", SINCE)
def test_the_first_run_of_a_node_infers_nothing_of_what_the_table_held_before(quick, since):
    """A bound that the configuration gives is no mark: the rows of others in its window were never to be read."""
    today, yesterday = (datetime.now(UTC).date() - timedelta(days=n) for n in (0, 1))
    others = {
        "name": "others",
        "read": {"connection": "files", "path": "others.parquet"},
        "write": {"connection": "lake", "table": "orders", "mode": "upsert", "keys": ["OrderID"]},
    }
    quick.put("others", ORDERS, (1, 10, yesterday), (2, 10, yesterday))
    quick.declare(others).run()
    node = orders()
    node["read"] = {"connection": "files", "path": "orders.parquet", **SINCE[since]}
    quick.declare(node).put("orders", ORDERS, (3, 10, today), (4, 10, today))
    first = quick.run()
    assert (numbers(first), first.warnings) == ((2, 0, 0, 0, 0), [FIRST_RUN])
    quick.put("orders", ORDERS, (4, 10, today))
    assert FIRST_RUN not in quick.run().warnings
    assert (
        quick.flags("orders", "OrderID")[3] is True
    )  # from the second run on, a window is a window


TWO_MARKS = [("id", "bigint"), ("created", "date"), ("updated", "date"), ("part", "int")]


DAY_BEFORE = "date_sub('${last_value}', 1)"


@pytest.mark.long_on_spark
def test_groups_of_watermarks(shop):
    """(created or updated is new) and part is not below the last one."""
    watermark = [
        {"column_name": "created", "operation": "or", "operation_group": 1},
        {"column_name": "updated", "operation": "or", "operation_group": 1, "expression": DAY_BEFORE},
        {"column_name": "part", "operation": "and", "operation_group": 2},
    ]  # fmt: skip
    shop.declare(
        {
            "name": "rows",
            "read": {"connection": "files", "path": "rows.parquet", "watermark": watermark},
            "settings": {"delete_missing": True},
            "write": {"connection": "lake", "table": "rows", "mode": "upsert", "keys": ["id"]},
        }
    )
    shop.put(
        "rows",
        TWO_MARKS,
        (1, june(5), june(5), 1),
        (2, june(1), june(5), 1),
        (3, june(5), june(1), 1),
    )
    assert shop.run().rows_read == 3
    # 4 by its creation, 5 by its update a day below the mark; 6 by neither, 7 is of an older part
    shop.put(
        "rows", TWO_MARKS,
        (4, june(6), june(2), 1), (5, june(2), june(4), 1), (6, june(4), june(3), 1), (7, june(9), june(9), 0),
    )  # fmt: skip
    result = shop.run()
    assert (result.rows_read, result.inserted) == (2, 2)
    # only 1 would have been read by every one of its marks; highs are june 6, june 4 and 1
    assert shop.flags("rows") == {1: False, 2: False, 3: False, 4: False, 5: False}
    shop.put("rows", TWO_MARKS, (8, june(7), june(7), 2))
    assert shop.run().inserted == 1
    # window: created in [6, 7], updated in [4, 7], part in [1, 2]: nobody; 4 was updated before
    assert shop.flags("rows") == {1: False, 2: False, 3: False, 4: False, 5: False, 8: False}
    shop.put("rows", TWO_MARKS, (9, june(8), june(8), 2))
    assert shop.run().deleted == 1
    assert shop.flags("rows")[8] is True  # on the bound of all three


def test_x37_a_row_that_was_not_read_is_never_missed(quick):
    watermark = [
        {"column_name": "created", "operation": "or"},
        {"column_name": "updated", "operation": "or"},
    ]
    quick.declare(
        {
            "name": "rows",
            "read": {"connection": "files", "path": "rows.parquet", "watermark": watermark},
            "settings": {"delete_missing": True},
            "write": {"connection": "lake", "table": "rows", "mode": "upsert", "keys": ["id"]},
        }
    )
    there = [
        (1, june(1), june(5), 0),
        (2, june(5), june(1), 0),
        (3, june(2), june(2), 0),
        (4, june(5), june(5), 0),
    ]
    quick.put("rows", TWO_MARKS, *there)
    quick.run()
    quick.put("rows", TWO_MARKS, *there[:3], (5, june(6), june(6), 0))
    result = quick.run()
    assert (result.rows_read, result.deleted) == (3, 1)
    assert quick.flags("rows") == {1: False, 2: False, 3: False, 4: True, 5: False}


@pytest.mark.parametrize(
    "condition", ["region = 'east'", "region LIKE 'east%'"]
)  # one that a database is told
@pytest.mark.parametrize("mode", MODES)
def test_a_row_that_a_filter_drops_is_still_there(quick, mode, condition):
    quick.sql(
        "CREATE TABLE s (id INTEGER, region TEXT, u INTEGER)",
        "INSERT INTO s VALUES (1, 'east', 1), (2, 'east', 2), (3, 'east', 3)",
    )
    incremental = {"mode": "stateful", "column": "u", "watermark_lag": 10}
    quick.declare(
        {
            "name": "rows",
            "read": {"connection": "erp", "table": "s", "incremental": incremental},
            "transform": {"steps": [{"operation": "filter", "params": {"condition": condition}}]},
            "settings": {"delete_missing": True},
            "write": {"connection": "lake", "table": "rows", "mode": mode, "keys": ["id"]},
        }
    )
    quick.run()
    quick.sql(
        "UPDATE s SET region = 'west' WHERE id = 2",
        "DELETE FROM s WHERE id = 3",
        "INSERT INTO s VALUES (4,'east',4)",
    )
    result = quick.run()
    assert (result.rows_read, numbers(result)) == (3, (1, 0, 1, 0, 0))
    assert quick.flags("rows") == {1: False, 2: False, 3: True, 4: False}


def bronze(**write):
    return {
        "name": "bronze",
        "read": {
            "connection": "files", "path": "rows.parquet",
            "incremental": {"mode": "stateful", "column": "updated", "watermark_lag": "2d"},
        },
        "write": {"connection": "lake", "table": "bronze", "mode": "append", **write},
    }  # fmt: skip


EVENTS = [("id", "bigint"), ("state", "string"), ("updated", "date")]


@pytest.mark.parametrize("keys", [[], ["id"]])
@pytest.mark.long_on_spark
def test_an_incremental_append_and_a_row_that_went_back(shop, keys):
    """With keys only the newest row of a key is compared: a return to an older state is news."""
    shop.declare(bronze(**({"keys": keys} if keys else {})))
    shop.put("rows", EVENTS, (1, "a", june(5)), (2, "a", june(5)))
    assert shop.run().inserted == 2
    shop.put("rows", EVENTS, (1, "b", june(6)), (2, "a", june(5)))
    second = shop.run()
    assert (second.rows_read, second.inserted) == (2, 1)
    shop.put("rows", EVENTS, (1, "a", june(5)), (2, "a", june(5)))  # as it was
    assert shop.run().inserted == (1 if keys else 0)
    states = sorted((r["id"], r["state"]) for r in shop.table("bronze").rows)
    assert states == (
        [(1, "a"), (1, "a"), (1, "b"), (2, "a")] if keys else [(1, "a"), (1, "b"), (2, "a")]
    )
    assert shop.run().inserted == 0


MOVED = {
    "back within the lag": (1, "b", june(4)),
    "to nowhere": (1, "a", None),
    "not at all": (1, "b", june(5)),
}


@pytest.mark.parametrize("metadata", [True, False])
@pytest.mark.parametrize("moved", MOVED)
def test_an_unchanged_source_appends_nothing_wherever_its_marks_moved(quick, moved, metadata):
    quick.declare(bronze(keys=["id"], add_metadata=metadata))
    quick.put("rows", EVENTS, (1, "a", june(5)), (2, "a", june(5)))
    quick.run()
    quick.put("rows", EVENTS, MOVED[moved], (2, "a", june(5)))
    assert quick.run().inserted == 1
    again = (
        quick.run().inserted
    )  # where no column says which of two came last, the mark does, and may be wrong once
    assert again == (0 if metadata or moved == "not at all" else 1)
    assert [quick.run().inserted for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("metadata", [True, False])
def test_a_key_with_several_rows_at_the_source_is_appended_once(quick, metadata):
    quick.declare(bronze(keys=["id"], add_metadata=metadata))
    there = [(1, "a", june(4)), (1, "b", june(5)), (1, "b", june(5))]
    quick.put("rows", EVENTS, *there)
    assert [quick.run().inserted for _ in range(2)] == [3, 0]
    quick.put("rows", EVENTS, *there, (1, "c", june(6)))
    assert [quick.run().inserted for _ in range(3)] == [1, 0, 0]


@pytest.mark.long_on_spark
def test_an_append_by_keys_keeps_what_is_known_of_a_column_that_the_read_lacks(shop):
    """As an update does; of a new key, or one with several rows, nothing is known."""
    shop.declare(bronze(keys=["id"], add_metadata={"extracted_at": True}))
    shop.put(
        "rows", EVENTS, (1, "a", june(1)), (2, "b", june(5)), (3, "c", june(5)), (4, "d", june(5))
    )
    shop.run()
    shop.put(
        "rows", EVENTS, (1, "a", june(1)), (2, "z", june(6)), (3, "c", june(5)), (4, "d", june(5))
    )
    shop.run()
    lacking = [("id", "bigint"), ("updated", "date"), ("note", "string")]
    now = [
        (1, june(7), None),
        (2, june(6), "n"),
        (3, june(5), None),
        (4, june(6), "x"),
        (4, june(6), "y"),
    ]
    shop.put("rows", lacking, *now, (5, june(7), None))
    found = shop.run()
    assert (found.rows_read, found.inserted) == (6, 5)  # 3 is as it was
    rows = shop.table("bronze").rows
    last = max(r["_extracted_at"] for r in rows)
    came = {(r["id"], r["note"]): r["state"] for r in rows if r["_extracted_at"] == last}
    assert came == {(1, None): "a", (2, "n"): "z", (4, "x"): None, (4, "y"): None, (5, None): None}
    assert shop.run().inserted == 0
    shop.put(
        "rows", EVENTS, (1, "a", june(7)), (2, "z", june(6)), (3, "c", june(5)), (5, "e", june(7))
    )
    assert shop.run().inserted == 1  # of 5 there is news


NOTED = [*EVENTS, ("note", "string")]
LAST = {  # what a key's note was, run after run, with the day of its mark; and what is known of it then
    "two at one mark": ([("z", 5), ("a", 5)], None),
    "the highest mark": ([("z", 5), ("a", 6)], "a"),
    "one that came back": ([("z", 5), ("a", 6), ("z", 5)], "z"),
    "never two": ([("a", 5)], "a"),
}


@pytest.mark.long_on_spark
@pytest.mark.parametrize("told", LAST)
def test_without_a_clock_a_lacked_column_is_filled_by_the_rule_that_finds_the_newest_row(
    shop, told
):
    """Never with a value that may have been another one by then."""
    notes, known = LAST[told]
    shop.declare(bronze(keys=["id"]))
    for note, day in notes:
        shop.put("rows", NOTED, (1, "a", june(day), note))
        assert shop.run().inserted == 1
    shop.put("rows", EVENTS, (1, "q", june(6)))
    assert shop.run().inserted == 1
    assert [r["note"] for r in shop.table("bronze").rows if r["state"] == "q"] == [known]
    again = (
        shop.run().inserted
    )  # what came back has two copies, and is taken for the newest row once more
    assert again == (1 if told == "one that came back" else 0)
    assert shop.run().inserted == 0


def test_each_return_of_a_row_is_news_where_the_table_says_when(quick):
    quick.declare(bronze(keys=["id"], add_metadata=True))
    for state, day in (("a", 5), ("b", 6), ("a", 5), ("b", 6), ("b", 5), ("a", 5), ("b", 6)):
        quick.put("rows", EVENTS, (1, state, june(day)))
        assert [quick.run().inserted for _ in range(2)] == [1, 0]


def test_equal_rows_are_a_multiset(quick):
    quick.declare(bronze())
    quick.put("rows", EVENTS, (1, "a", june(5)))
    quick.run()
    quick.put("rows", EVENTS, (1, "a", june(5)), (1, "a", june(5)))
    assert quick.run().inserted == 1  # the second of two equal rows is new
    assert quick.run().inserted == 0


@pytest.mark.long_on_spark
def test_files_by_the_time_they_were_written(shop):
    node = bronze()
    node["read"] = {
        "connection": "files",
        "path": "in_*.parquet",
        "incremental": {"mode": "stateful"},
    }
    shop.declare(node)
    landing = shop.folder / "landing"

    def arrive(name, minute, *rows):
        shop.put(name, EVENTS, *rows)
        at = datetime(2024, 6, 1, 12, minute, tzinfo=UTC).timestamp()
        os.utime(landing / f"{name}.parquet", (at, at))

    arrive("in_1", 0, (1, "a", june(1)))
    assert shop.run().inserted == 1
    arrive("in_2", 5, (2, "a", june(1)))
    second = shop.run()
    assert (second.rows_read, second.inserted) == (
        1,
        1,
    )  # the bound is included; what was read of it is known by name
    quiet = shop.run()
    assert (quiet.status, quiet.inserted) == ("unchanged", 0)
    arrive("in_0", 3, (0, "late", june(1)))  # older than the mark: such files need a lag
    assert shop.run().inserted == 0
    arrive("in_3", 5, (3, "a", june(1)))  # written in the same instant as the mark
    assert shop.run().inserted == 1
    assert sorted(r["id"] for r in shop.table("bronze").rows) == [1, 2, 3]


# --- snapshots ---------------------------------------------------------------------------------------------

EXTRACTS = [("id", "bigint"), ("name", "string"), ("day", "date")]


def extracts(**write):
    params = {"mode": "snapshot_diff", "keys": ["id"], "snapshot_column": "day"}
    return {
        "name": "customers",
        "read": {"connection": "files", "path": "day_*.parquet"},
        "transform": {"steps": [{"operation": "detect_deletes", "params": params}]},
        "write": {
            "connection": "lake",
            "table": "customers",
            "mode": "upsert",
            "keys": ["id"],
            **write,
        },
    }


@pytest.mark.long_on_spark
def test_snapshots_by_a_column(shop):
    shop.declare(extracts())
    shop.put("day_1", EXTRACTS, (1, "a", june(1)), (2, "a", june(1)), (3, "a", june(1)))
    assert numbers(shop.run()) == (3, 0, 0, 0, 0)
    shop.put("day_3", EXTRACTS, (1, "b", june(3)), (2, "b", june(3)))
    assert numbers(shop.run()) == (0, 2, 1, 0, 0)
    # day 2 arrives late beside the others: day 3 is still the newest
    shop.put("day_2", EXTRACTS, (3, "a", june(2)), (4, "a", june(2)))
    late = shop.run()
    assert (late.status, numbers(late), late.warnings) == ("unchanged", (0, 0, 0, 0, 0), [])
    assert shop.flags("customers") == {1: False, 2: False, 3: True}
    shop.put("day_4", EXTRACTS, (1, "b", june(4)), (3, "a", june(4)))
    assert numbers(shop.run()) == (0, 1, 1, 1, 0)
    assert shop.flags("customers") == {1: False, 2: True, 3: False}


@pytest.mark.parametrize(
    ("type_", "value"), [("boolean", False), ("double", 1.5), ("binary", b"\xff")]
)
def test_a_column_that_orders_no_extracts_is_refused_at_once(quick, type_, value):
    quick.declare(extracts())
    quick.put("day_1", [("id", "bigint"), ("day", type_)], (1, value))
    told = f"customers: snapshot_column: `day` has type {type_}, which cannot order extracts"
    with pytest.raises(ReadError, match=told) as caught:
        quick.run()
    assert (
        caught.value.hint == "choose a column of whole numbers, decimals, dates, timestamps or text"
    )


def test_an_older_snapshot_alone_is_no_evidence(quick):
    """Somebody puts an old extract back: it neither deletes nor revives nor takes values back."""
    quick.declare(extracts())
    quick.put("day_n", EXTRACTS, (1, "a", june(1)), (2, "a", june(1)), (3, "a", june(1)))
    quick.run()
    quick.put("day_n", EXTRACTS, (1, "b", june(3)), (2, "b", june(3)))
    quick.run()
    before = quick.table("customers").rows
    quick.put("day_n", EXTRACTS, (1, "a", june(2)), (3, "a", june(2)))
    late = quick.run()
    text = "the newest snapshot 2024-06-02 is older than 2024-06-03, which was compared before"
    assert [w.startswith(text) for w in late.warnings] == [True]
    assert numbers(late) == (0, 0, 0, 0, 0)
    assert sorted(quick.table("customers").rows, key=str) == sorted(before, key=str)
    assert (
        quick.run().warnings == late.warnings
    )  # and the newest that was compared stays the newest
    quick.put("day_n", EXTRACTS, (1, "b", june(4)))
    assert numbers(quick.run()) == (0, 1, 1, 0, 0)
    assert quick.flags("customers") == {1: False, 2: True, 3: True}


TWICE = {
    "unchanged": [(1, "a"), (1, "a"), (2, "b")],
    "changed": [(1, "x"), (1, "a"), (2, "b")],
    "new": [(1, "a"), (2, "b"), (3, "c"), (3, "c"), (4, "d")],
    "no key": [(1, "a"), (2, "b"), (None, "c"), (None, "c")],
    "deleted": [(9, "z"), (9, "z"), (1, "a"), (2, "b")],
}


@pytest.mark.parametrize(
    "found", ["snapshot_diff", pytest.param("sql_compare", marks=pytest.mark.long_on_spark)]
)
def test_a_key_that_comes_twice_is_refused_whatever_it_is(shop, found):
    """Where the whole table is compared, nobody counts keys beforehand: they are told by what they meet."""
    live = (
        {"source_connection": "erp", "source_query": "SELECT id FROM live"}
        if found == "sql_compare"
        else {}
    )
    params = {"mode": found, "keys": ["id"], "max_delete_percent": None, **live}
    columns = [("id", "bigint"), ("state", "string")]
    shop.sql("CREATE TABLE live (id INTEGER)", "INSERT INTO live VALUES (1), (2), (9)")
    shop.declare(
        {
            "name": "rows",
            "read": {"connection": "files", "path": "rows.parquet"},
            "transform": {"steps": [{"operation": "detect_deletes", "params": params}]},
            "write": {"connection": "lake", "table": "rows", "mode": "upsert", "keys": ["id"]},
        }
    )
    shop.put("rows", columns, (1, "a"), (2, "b"), (9, "z"))
    shop.run()
    shop.sql("DELETE FROM live WHERE id = 9")
    shop.put("rows", columns, (1, "a"), (2, "b"))
    shop.run()
    before = shop.table("rows").rows
    for what, rows in TWICE.items():
        shop.put("rows", columns, *rows)
        with pytest.raises(DuplicateKeys, match="id") as refused:
            shop.run()
        assert refused.value.count == 1, what
    assert shop.table("rows").rows == before
    shop.put("rows", columns, (1, "a"), (2, "b"), (None, "c"), (4, "d"), (5, "e"))
    shop.sql("INSERT INTO live VALUES (4), (5)")
    assert shop.run().inserted == 3


@pytest.mark.long_on_spark
def test_an_older_row_of_a_key_that_is_back_revives_it_and_overwrites_nothing(shop):
    """A restored backup, or a replica that is behind; where rows announce their deletes, an older row is older."""
    steps = [{"operation": "detect_deletes", "params": {"mode": "snapshot_diff", "keys": ["id"]}}]
    write = {
        "connection": "lake",
        "table": "rows",
        "mode": "upsert",
        "keys": ["id"],
        "sequence_by": "updated",
    }
    node = {
        "name": "rows",
        "read": {"connection": "files", "path": "rows.parquet"},
        "transform": {"steps": steps},
        "write": write,
    }
    shop.declare(node)
    shop.put("rows", EVENTS, (1, "a", june(5)), (2, "b", june(5)), (3, "c", june(5)))
    shop.run()
    shop.put("rows", EVENTS, (2, "b", june(5)), (3, "c", june(5)))
    assert numbers(shop.run()) == (0, 0, 1, 0, 0)
    shop.put("rows", EVENTS, (1, "old", june(4)), (2, "old", june(4)), (3, "old", None))
    assert numbers(shop.run()) == (0, 0, 0, 1, 0)
    assert {r["id"]: r["state"] for r in shop.table("rows").rows} == {1: "a", 2: "b", 3: "c"}
    assert shop.run().status == "unchanged"
    shop.put("rows", EVENTS, (2, "b", june(5)), (3, "c", june(5)))
    shop.run()
    shop.declare({**node, "write": {**write, "delete_when": "state = 'gone'"}})
    shop.put("rows", EVENTS, (1, "old", june(4)), (2, "gone", june(6)), (3, "c", june(5)))
    assert numbers(shop.run()) == (0, 0, 1, 0, 0)
    assert shop.flags("rows") == {1: True, 2: True, 3: False}


def full_extracts(**params):
    step = {"mode": "snapshot_diff", "keys": ["id"], **params}
    dedupe = {
        "operation": "deduplicate",
        "params": {"keys": ["id"], "order_by": "_extracted_at DESC"},
    }
    return [
        {
            "name": "bronze",
            "read": {"connection": "erp", "table": "customers"},
            "write": {
                "connection": "lake",
                "table": "bronze",
                "mode": "append",
                "add_metadata": True,
            },
        },
        {
            "name": "silver",
            "read": {"connection": "lake", "table": "bronze"},
            "transform": {"steps": [dedupe, {"operation": "detect_deletes", "params": step}]},
            "write": {"connection": "lake", "table": "silver", "mode": "upsert", "keys": ["id"]},
        },
    ]


@pytest.mark.long_on_spark
def test_x5_compaction_is_no_extract(shop):
    shop.declare(*full_extracts())
    shop.sql(*FIVE)
    shop.run()
    shop.sql("DELETE FROM customers WHERE id = 4")
    assert shop.run("bronze").inserted == 4
    shop.compact("bronze")
    assert numbers(shop.run("silver")) == (0, 0, 1, 0, 0)
    expected = {1: False, 2: False, 3: False, 4: True, 5: False}
    assert shop.flags("silver") == expected
    shop.run("bronze")
    shop.compact("bronze")
    again = shop.run("silver")
    assert (again.status, numbers(again)) == ("unchanged", (0, 0, 0, 0, 0))
    assert shop.flags("silver") == expected


def test_compaction_does_not_count_as_missing_twice(quick):
    quick.declare(*full_extracts(confirm_runs=2))
    quick.sql(*FIVE)
    quick.run()
    quick.sql("DELETE FROM customers WHERE id = 4")
    assert numbers(quick.run()["silver"]) == (0, 0, 0, 0, 0)
    quick.compact("bronze")
    assert numbers(quick.run("silver")) == (0, 0, 0, 0, 0)  # the same extract in other files
    assert numbers(quick.run()["silver"]) == (0, 0, 1, 0, 0)


@pytest.mark.long_on_spark
def test_an_empty_extract_is_a_snapshot_and_is_held(shop):
    shop.declare(*full_extracts())
    shop.sql(*FIVE)
    shop.run()
    shop.sql("DELETE FROM customers")
    result = shop.run()
    assert (result["bronze"].rows_read, result["bronze"].inserted) == (0, 0)
    silver = result["silver"]
    assert (silver.status, numbers(silver), silver.version) == ("held", (0, 0, 0, 0, 5), None)
    assert ["came back empty" in w for w in silver.warnings] == [True]
    assert shop.flags("silver") == dict.fromkeys(range(1, 6), False)
    shop.sql("INSERT INTO customers VALUES (1, 'n1')")
    silver = shop.run()["silver"]
    assert (silver.status, numbers(silver)) == (
        "held",
        (0, 0, 0, 0, 4),
    )  # 1 was seen; the others wait for a person
    assert shop.flags("silver") == dict.fromkeys(range(1, 6), False)
    shop.sql(*(f"INSERT INTO customers VALUES ({i}, 'n{i}')" for i in range(2, 6)))
    silver = shop.run()["silver"]
    assert (silver.status, numbers(silver)) == ("unchanged", (0, 0, 0, 0, 0))


def test_an_empty_source_may_be_an_error_or_the_truth(quick):
    quick.declare(compared(on_empty_source="error"))
    quick.sql(*FIVE)
    quick.run()
    quick.sql("DELETE FROM customers")
    with pytest.raises(EmptySource, match="the source came back empty") as caught:
        quick.run()
    assert "on_empty_source" in str(caught.value.hint)
    assert "max_delete" not in str(caught.value.hint)
    quick.declare(
        compared(on_empty_source="apply", max_delete_percent=0, on_threshold_breach="error")
    )
    assert quick.run().deleted == 5
    assert set(quick.flags("customers").values()) == {True}


def test_steps_before_the_detection_apply_to_every_extract(quick):
    """A row that a filter leaves out is missing, like one that is gone."""
    nodes = full_extracts()
    nodes[1]["transform"]["steps"].insert(
        0, {"operation": "filter", "params": {"condition": "name <> 'closed'"}}
    )
    quick.declare(*nodes)
    quick.sql(*FIVE)
    quick.run()
    quick.sql("UPDATE customers SET name = 'closed' WHERE id = 4")
    assert numbers(quick.run()["silver"]) == (0, 0, 1, 0, 0)
    quick.sql("UPDATE customers SET name = 'n4' WHERE id = 4")
    assert numbers(quick.run()["silver"]) == (0, 0, 0, 1, 0)


# --- what a window forgets, and what it remembers ----------------------------------------------------------


@pytest.mark.parametrize(("lag", "deleted"), [(0, 0), (7, 1)])
def test_missing_twice_in_a_window_needs_a_lag(quick, lag, deleted):
    expression = f"date_sub('${{last_value}}', {lag})"
    watermark = [{"column_name": "LastModified", "expression": expression}]
    quick.declare(orders(read={"watermark": watermark}, step={"confirm_runs": 2}))
    quick.put("orders", ORDERS, (1, 10, june(1)), (2, 10, june(1)), (3, 10, june(1)))
    quick.run()
    quick.put("orders", ORDERS, (2, 10, june(2)), (3, 10, june(2)))
    assert quick.run().deleted == 0
    quick.put("orders", ORDERS, (2, 10, june(3)), (3, 10, june(3)))
    assert quick.run().deleted == deleted


@pytest.mark.parametrize(("answer", "found_later"), [("skip", 0), ("hold", 0), ("error", 1)])
def test_deletes_in_a_window_that_moves_on(quick, answer, found_later):
    """Skipped ones are past; held ones are remembered; after an error the mark stays, and they are found again."""
    limits = {"max_delete_count": 0, "on_threshold_breach": answer}
    quick.declare(orders(step=limits))
    quick.put("orders", ORDERS, (1, 10, june(1)), (2, 10, june(1)), (3, 10, june(1)))
    quick.run()
    quick.put("orders", ORDERS, (2, 10, june(2)), (3, 10, june(2)))
    if answer == "error":
        with pytest.raises(DeleteThresholdExceeded, match="1 row exceeds 0"):
            quick.run()
    else:
        assert numbers(quick.run()) == (0, 2, 0, 0, int(answer == "hold"))
    quick.declare(orders(step=limits | {"max_delete_count": 5}))
    quick.put("orders", ORDERS, (2, 10, june(3)), (3, 10, june(3)))
    assert numbers(quick.run()) == (0, 2, found_later, 0, int(answer == "hold"))


# --- what is compared is what was read ---------------------------------------------------------------------

TENFOLD = {"operation": "derive", "params": {"columns": {"OrderID": "OrderID * 10"}}}
REWRITING = "SELECT OrderID * 10 AS OrderID, CustomerID, LastModified FROM {}"
SNAPSHOT = {"operation": "detect_deletes", "params": {"mode": "snapshot_diff", "keys": ["OrderID"]}}


@pytest.mark.parametrize(
    ("more", "by"),
    [
        ({"transform": {"steps": [TENFOLD]}}, "transform.steps[0] (derive)"),
        (
            {
                "transform": {
                    "steps": [{"operation": "sql", "params": {"query": REWRITING.format("source")}}]
                }
            },
            "transform.steps[0] (sql)",
        ),
        ({"transformation_sql": REWRITING.format("source")}, "transformation_sql"),
    ],
)
def test_keys_that_are_rewritten_after_they_were_read_are_refused(quick, more, by):
    """Compared with what the table has, every row would look deleted."""
    quick.declare({**orders(), **more}).put("orders", ORDERS, (1, 1, june(1)))
    with pytest.raises(TransformError, match="deletes are looked for by `OrderID`") as failed:
        quick.run()
    assert by in str(failed.value)


def test_a_step_for_deletes_stands_behind_what_rewrites_the_keys(quick):
    node = orders()
    del node["settings"], node["read"]["watermark"]
    quick.declare({**node, "transform": {"steps": [SNAPSHOT, TENFOLD]}}).put(
        "orders", ORDERS, (1, 1, june(1))
    )
    with pytest.raises(TransformError, match=r"transform\.steps\[1\] \(derive\)"):
        quick.run()
    quick.declare({**node, "transform": {"steps": [TENFOLD, SNAPSHOT]}})
    quick.run()
    quick.put("orders", ORDERS, (1, 1, june(1)), (2, 1, june(2)))
    quick.run()
    assert quick.flags("orders", "OrderID") == {10: False, 20: False}


def test_a_mark_that_is_rewritten_says_nothing_of_the_window(quick):
    later = {
        "operation": "derive",
        "params": {"columns": {"LastModified": "date_add(LastModified, 4)"}},
    }
    quick.declare({**orders(), "transform": {"steps": [later]}})
    quick.put("orders", ORDERS, (1, 1, june(1)), (2, 1, june(5)))
    quick.run()
    quick.put("orders", ORDERS, (1, 1, june(1)), (2, 1, june(5)), (3, 1, june(9)))
    result = quick.run()
    assert result.deleted == 0
    assert any("written anew by transform.steps[0] (derive)" in w for w in result.warnings)


def test_what_is_approved_is_looked_for_in_the_whole_source(quick):
    """A row that came back with an old mark lies in no window, and still is there."""
    limits = {"max_delete_percent": 10, "on_threshold_breach": "hold"}
    quick.declare(orders(step=limits))
    rows = [(1, 1, june(1)), (2, 1, june(5)), (3, 1, june(5)), (6, 1, june(5))]
    quick.put("orders", ORDERS, *rows)
    quick.run()
    quick.put("orders", ORDERS, rows[0], rows[2], (4, 1, june(9)))
    held = quick.project.run(platform=quick.platform)
    assert held.nodes[0].held == 2
    quick.put("orders", ORDERS, *rows[:3], (4, 1, june(9)), (5, 1, june(10)))
    quick.project.run(platform=quick.platform)
    quick.project.approve(held.run_id, platform=quick.platform)
    assert quick.flags("orders", "OrderID") == {
        1: False,
        2: False,
        3: False,
        4: False,
        5: False,
        6: True,
    }


def test_one_file_looked_at_twice_confirms_nothing(quick):
    node = orders()
    del node["settings"], node["read"]["watermark"]
    step = {**SNAPSHOT, "params": {**SNAPSHOT["params"], "confirm_runs": 2}}
    quick.declare({**node, "transform": {"steps": [step]}})
    quick.put("orders", ORDERS, *((n, 1, june(1)) for n in range(1, 5)))
    quick.run()
    quick.put("orders", ORDERS, *((n, 1, june(1)) for n in range(2, 5)))
    assert [quick.run().deleted for _ in range(3)] == [0, 0, 0]
    quick.put("orders", ORDERS, *((n, 1, june(1)) for n in range(2, 6)))
    assert quick.run().deleted == 1
