"""Rows that the watermark has passed over: keys that the live source has, and neither the input nor the table."""

from __future__ import annotations

import pytest

from strandline.errors import ConfigError
from strandline.testing.frames import read_table
from strandline.testing.projects import execute, make_project

TABLE = "CREATE TABLE orders (id INTEGER, line TEXT, amount INTEGER, changed DATE)"
MARKED = {"mode": "stateful", "column": "changed"}


def row(number, day, amount=1, line="a"):
    return f"INSERT INTO orders VALUES ({number}, '{line}', {amount}, '2024-06-{day:02}')"


def step(keys=("id",), **params):
    asked = {
        "mode": "sql_compare",
        "keys": list(keys),
        "source_connection": "erp",
        "source_table": "orders",
    }
    return {
        "operation": "detect_deletes",
        "params": {**asked, "max_delete_percent": None, **params},
    }


def direct(*steps, incremental=None, keys=("id",), mode="upsert", **params):
    """A node that reads the database itself and compares with it; deletes are hard."""
    return {
        "name": "orders",
        "read": {"connection": "erp", "table": "orders", "incremental": incremental or MARKED},
        "transform": {"steps": [*steps, step(keys, **{"soft_delete_col": None, **params})]},
        "write": {"connection": "lake", "table": "orders", "mode": mode, "keys": list(keys)},
    }


def bronze(**more):
    node = {
        "name": "bronze",
        "read": {"connection": "erp", "table": "orders", "incremental": MARKED},
        "write": {"connection": "lake", "table": "bronze", "mode": "append", "add_metadata": True},
    }
    return {**node, **more}


def silver(*steps, keys=("id",), **params):
    return {
        "name": "silver",
        "read": {"connection": "lake", "table": "bronze"},
        "transform": {
            "steps": [
                *steps,
                {
                    "operation": "deduplicate",
                    "params": {"keys": list(keys), "order_by": "_extracted_at DESC"},
                },
                step(keys, **params),
            ]
        },
        "write": {"connection": "lake", "table": "silver", "mode": "upsert", "keys": list(keys)},
    }


class Shop:
    """A database that changes from run to run, and the tables made of it."""

    def __init__(self, folder, platform):
        self.folder, self.platform = folder, platform

    def declare(self, *nodes):
        erp = {"type": "sql", "url": "sqlite:///erp.db"}
        self.project = make_project(self.folder, nodes, connections={"erp": erp})

    def sql(self, *statements):
        execute(self.folder / "erp.db", *statements)

    def run(self, select=None):
        """The results of one run by node."""
        return {
            n.name: n for n in self.project.run(select, platform=self.platform, check=True).nodes
        }

    def ids(self, table):
        return sorted(r["id"] for r in read_table(self.folder / "lake" / table).rows)

    def mark(self, node):
        (row,) = [
            r for r in [r for r in self.project.store.states() if r.node == node] if r.node == node
        ]
        return row.watermark_value


@pytest.fixture
def shop(tmp_path, platform):
    return Shop(tmp_path, platform)


@pytest.fixture
def quick(tmp_path, pandas_platform):
    return Shop(tmp_path, pandas_platform)


def gone_and_back(shop):
    """Order 1 is deleted, found so, and comes back with the change time that it had."""
    shop.sql(TABLE, row(1, 1), row(2, 5), row(3, 9))
    shop.run()
    shop.sql("DELETE FROM orders WHERE id = 1")
    assert shop.run()["orders"].deleted == 1
    shop.sql(row(1, 1))


MISSED = (
    "1 key is in the live source erp.orders, and neither in what the node has read nor in lake.orders, in this run and "
    "in the one before: id = 1"
)


def test_a_row_that_returns_with_its_old_watermark_is_warned_of(quick):
    quick.declare(direct())
    gone_and_back(quick)
    assert quick.run()["orders"].warnings == []  # a row may just have been committed
    for _ in range(2):
        (warning,) = quick.run()["orders"].warnings
        assert warning.startswith(MISSED)
        assert "missed_rows: read" in warning
    assert quick.ids("orders") == [2, 3]


@pytest.mark.parametrize("mode", ["upsert", pytest.param("scd2", marks=pytest.mark.long_on_spark)])
def test_a_row_that_returns_with_its_old_watermark_is_read(shop, mode):
    shop.declare(direct(missed_rows="read", mode=mode))
    gone_and_back(shop)
    shop.run()
    mark = shop.mark("orders")
    result = shop.run()["orders"]
    assert (result.inserted, result.updated, result.deleted, result.warnings) == (1, 0, 0, [])
    assert shop.ids("orders") == [1, 2, 3]
    assert shop.mark("orders") == mark == "2024-06-09"
    again = shop.run()["orders"]
    assert (again.status, again.rows_read) == ("unchanged", 1)  # nothing is wanted any more


@pytest.mark.long_on_spark
def test_a_row_that_was_committed_late_is_appended_once(shop):
    """Bronze takes it as an extra extract of its next batch; its watermark stays."""
    shop.declare(bronze(), silver(missed_rows="read"))
    shop.sql(TABLE, row(2, 5), row(3, 9))
    shop.run()
    shop.sql(row(1, 1))
    assert shop.run()["bronze"].inserted == 0
    mark = shop.mark("bronze")
    found = shop.run()
    assert (found["bronze"].inserted, found["silver"].inserted) == (1, 1)
    assert shop.mark("bronze") == mark == "2024-06-09"
    shop.run()
    assert shop.ids("bronze") == shop.ids("silver") == [1, 2, 3]


def test_bronze_appends_a_wanted_row_once_however_often_it_runs_alone(quick):
    quick.declare(bronze(), silver(missed_rows="read"))
    quick.sql(TABLE, row(2, 5), row(3, 9))
    quick.run()
    quick.sql(row(1, 1))
    quick.run()
    counts = [quick.run("bronze")["bronze"].inserted for _ in range(3)]
    assert counts == [1, 0, 0]
    assert quick.ids("bronze") == [1, 2, 3]


def test_an_undone_extract_is_wanted_again(quick):
    quick.declare(bronze(), silver(missed_rows="read"))
    quick.sql(TABLE, row(2, 5), row(3, 9))
    quick.run()
    quick.sql(row(1, 1))
    quick.run()
    taken = quick.project.run(platform=quick.platform, check=True)
    assert quick.ids("silver") == [1, 2, 3]
    quick.project.undo(taken.run_id, platform=quick.platform)
    assert quick.ids("silver") == quick.ids("bronze") == [2, 3]
    quick.run()
    assert quick.ids("silver") == quick.ids("bronze") == [1, 2, 3]


def test_a_row_that_is_read_in_the_next_run_anyway_was_not_missed(quick):
    """It was committed between the read of Bronze and the question for the keys."""
    quick.declare(bronze(), silver(missed_rows="read"))
    quick.sql(TABLE, row(2, 5))
    quick.run()
    quick.sql(row(3, 9))
    assert quick.run("silver")["silver"].warnings == []
    assert quick.run()["bronze"].inserted == 1
    assert quick.ids("bronze") == quick.ids("silver") == [2, 3]


def test_a_plan_shows_the_extra_rows(quick):
    quick.declare(bronze(), silver(missed_rows="read"))
    quick.sql(TABLE, row(2, 5), row(3, 9))
    quick.run()
    quick.sql(row(1, 1))
    quick.run()
    planned = {n.name: n.inserted for n in quick.project.plan(platform=quick.platform).nodes}
    assert planned == {"bronze": 1, "silver": 1}


@pytest.mark.long_on_spark
def test_keys_of_two_columns_bring_no_other_rows(shop):
    """(1, a) and (2, b) are missed; (1, b) and (2, a) were read long ago and are not appended again."""
    keys = ("id", "line")
    shop.declare(bronze(), silver(keys=keys, missed_rows="read"))
    shop.sql(TABLE, row(1, 5, line="b"), row(2, 5, line="a"), row(3, 9))
    shop.run()
    shop.sql(row(1, 1), row(2, 1, line="b"))
    shop.run()
    assert shop.run()["bronze"].inserted == 2
    shop.run()
    assert shop.ids("bronze") == [1, 1, 2, 2, 3]


def test_keys_with_other_names_and_types_are_traced_to_the_source(quick):
    rename = {"operation": "rename", "params": {"columns": {"number": "order_no"}}}
    cast = {"operation": "cast", "params": {"columns": {"order_no": "bigint"}}}
    first = {"operation": "rename", "params": {"columns": {"id": "number"}}}
    live = {"source_table": None, "source_query": "SELECT id AS order_no FROM orders"}
    quick.declare(
        bronze(transform={"steps": [first]}),
        silver(rename, cast, keys=("order_no",), missed_rows="read", **live),
    )
    quick.sql(TABLE, row(2, 5), row(3, 9))
    quick.run()
    quick.sql(row(1, 1))
    quick.run()
    found = quick.run()
    assert (found["bronze"].inserted, found["silver"].inserted) == (1, 1)
    assert quick.run()["bronze"].inserted == 0


def test_what_silver_filters_out_is_in_its_input(quick):
    few = {"operation": "filter", "params": {"condition": "amount < 5"}}
    quick.declare(bronze(), silver(few))
    quick.sql(TABLE, row(1, 1), row(2, 5, amount=9), row(3, 9))
    for _ in range(3):
        assert quick.run()["silver"].warnings == []
    assert quick.ids("silver") == [1, 3]


def test_a_silver_that_reads_incrementally_has_the_whole_of_bronze_as_its_input(quick):
    node = silver(soft_delete_col=None)
    node["read"]["incremental"] = MARKED
    quick.declare(bronze(), node)
    quick.sql(TABLE, row(1, 1), row(3, 9))
    quick.run()
    quick.sql("DELETE FROM orders WHERE id = 1")
    quick.run()
    quick.sql(row(1, 1))
    for _ in range(2):
        assert quick.run()["silver"].warnings == []


FEW = {"operation": "filter", "params": {"condition": "amount < 5"}}
QUIET = {
    "a rolling window": direct(
        incremental={"mode": "rolling_window", "column": "changed", "lookback": "36500d"}
    ),
    "an initial value": direct(incremental={**MARKED, "initial_value": "2024-06-04"}),
    "ignored": direct(missed_rows="ignore"),
    "a filter of its own": direct(FEW),
}


@pytest.mark.parametrize("case", QUIET)
def test_where_nothing_is_called_missed(quick, case):
    """What is left out on purpose is not missed."""
    quick.declare(QUIET[case])
    quick.sql(TABLE, row(1, 1, amount=9), row(2, 5), row(3, 9))
    quick.run()
    quick.sql(row(4, 1, amount=9))
    for _ in range(3):
        assert quick.run()["orders"].warnings == []


def test_a_filter_of_its_own_is_no_excuse_when_missed_rows_are_asked_for(quick):
    quick.declare(direct(FEW, missed_rows="warn"))
    quick.sql(TABLE, row(2, 5), row(3, 9))
    quick.run()
    quick.sql(row(1, 1))
    quick.run()
    (warning,) = quick.run()["orders"].warnings
    assert warning.startswith(MISSED)


@pytest.mark.parametrize("missed_rows", ["warn", "read"])
def test_too_many_are_only_warned_of(quick, missed_rows):
    quick.declare(direct(missed_rows=missed_rows, max_missed_rows=2))
    quick.sql(TABLE, row(10, 9))
    quick.run()
    quick.sql(*(row(i, 1) for i in (1, 2, 3)))
    assert quick.run()["orders"].warnings == []
    (warning,) = quick.run()["orders"].warnings
    assert warning.startswith("3 keys are in the live source")
    assert "more than max_missed_rows: 2" in warning
    assert quick.ids("orders") == [10]


def test_a_key_that_was_missing_and_came_starts_again(quick):
    quick.declare(direct())
    quick.sql(TABLE, row(2, 5), row(3, 9))
    quick.run()
    quick.sql(row(1, 1))
    quick.run()
    quick.sql("DELETE FROM orders WHERE id = 1")
    quick.run()
    quick.sql(row(1, 1))
    assert quick.run()["orders"].warnings == []
    assert len(quick.run()["orders"].warnings) == 1


def test_wanted_rows_that_do_not_arrive_are_told(quick):
    """Bronze has not run since, or leaves them out itself."""
    quick.declare(bronze(), silver(missed_rows="read"))
    quick.sql(TABLE, row(2, 5), row(3, 9))
    quick.run()
    quick.sql(row(1, 1))
    quick.run()
    (warning,) = quick.run("silver")["silver"].warnings
    assert "node `bronze` reads them in its next run" in warning


REFUSED = {
    "files": (
        [{**bronze(), "read": {"connection": "files", "path": "orders.csv"}}, silver(missed_rows="read")],
        "node `bronze` reads a folder of files",
    ),
    "nobody writes it": ([silver(missed_rows="read")], "no node of this project writes `bronze`"),
    "read in full": (
        [{**bronze(), "read": {"connection": "erp", "table": "orders"}}, silver(missed_rows="read")],
        "node `bronze` reads its source in full",
    ),
    "a rolling window": (
        [direct(incremental={"mode": "rolling_window", "column": "changed", "lookback": "7d"}, missed_rows="read")],
        "rolling_window",
    ),
    "an initial value": (
        [direct(incremental={**MARKED, "initial_value": "2024-06-04"}, missed_rows="read")],
        "initial_value",
    ),
    "a derived key": (
        [direct({"operation": "derive", "params": {"columns": {"id": "id + 1"}}}, missed_rows="read")],
        "key `id` is no column of the source",
    ),
    "SQL in Bronze": (
        [bronze(transformation_sql="SELECT id, changed FROM source"), silver(missed_rows="read")],
        "key `id` is no column of the source",
    ),
    "Silver reads by the same mark": (
        [bronze(), {**silver(missed_rows="read"), "read": {**silver()["read"], "incremental": MARKED}}],
        "node `silver` itself reads `bronze` from `changed` on",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_read_is_refused_where_no_read_can_be_repeated(quick, case):
    nodes, message = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        quick.declare(*nodes)
    (found,) = caught.value.problems
    assert message in found.message
    assert found.line
    assert found.hint


@pytest.mark.parametrize("key", [{"missed_rows": "warn"}, {"max_missed_rows": 5}])
def test_other_modes_miss_nothing(quick, key):
    node = direct()
    node["read"].pop("incremental")
    node["transform"]["steps"] = [
        {"operation": "detect_deletes", "params": {"mode": "snapshot_diff", "keys": ["id"], **key}}
    ]
    with pytest.raises(ConfigError, match="does nothing with mode: snapshot_diff"):
        quick.declare(node)
