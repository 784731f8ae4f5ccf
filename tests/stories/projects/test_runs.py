"""Whole projects: order, parallel nodes, failures, selection, plans, and the same result on both engines."""

from __future__ import annotations

import sqlite3
import threading

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from strandline.batch import read
from strandline.errors import ConfigError, UsageError
from strandline.plan.graph import Graph
from strandline.result import NodeResult
from strandline.run.observer import Observer
from strandline.run.schedule import walk
from strandline.testing.frames import assert_same, read_table
from strandline.testing.oracle import drop
from strandline.testing.projects import make_project

NODES = [
    {
        "name": "bronze_customers",
        "tags": ["crm"],
        "read": {"connection": "erp", "table": "customers"},
        "write": {"connection": "lake", "table": "bronze/customers", "mode": "append", "add_metadata": True},
    },
    {
        "name": "bronze_orders",
        "read": {"connection": "erp", "table": "orders"},
        "write": {"connection": "lake", "table": "bronze/orders", "mode": "append", "add_metadata": True},
    },
    {
        "name": "silver_customers",
        "tags": ["crm"],
        "read": {"connection": "lake", "table": "bronze/customers"},
        "transform": {
            "steps": [
                {"operation": "deduplicate", "params": {"keys": ["id"], "order_by": "_extracted_at DESC"}},
                {"operation": "derive", "params": {"columns": {"name": "trim(name)", "size": "length(name)"}}},
                {"operation": "generate_surrogate_key", "params": {"columns": ["id"], "output_col": "_hash_key"}},
                {
                    "operation": "generate_surrogate_key",
                    "params": {"columns": ["name", "city"], "output_col": "_hash_diff"},
                },
            ]
        },
        "write": {
            "connection": "lake", "table": "silver/customers", "mode": "upsert", "keys": ["id"],
            "update_condition": "source._hash_diff != target._hash_diff",
        },
    },
    {
        "name": "silver_orders",
        "read": {"connection": "lake", "table": "bronze/orders"},
        "transform": {
            "steps": [{"operation": "deduplicate", "params": {"keys": ["id"], "order_by": "_extracted_at DESC"}}]
        },
        "write": {
            "connection": "lake", "table": "silver/orders", "mode": "upsert", "keys": ["id"], "partition_by": ["day"],
        },
    },
    {
        "name": "revenue",
        "sources": [
            {"connection": "lake", "table": "silver/customers", "alias": "c"},
            {"connection": "lake", "table": "silver/orders", "alias": "o"},
        ],
        "transformation_sql": "SELECT c.city, count(*) AS orders, sum(o.amount) AS amount "
        "FROM o JOIN c ON c.id = o.customer_id GROUP BY c.city",
        "write": {"connection": "lake", "table": "gold/revenue", "mode": "overwrite"},
    },
]  # fmt: skip


@pytest.fixture
def shop(tmp_path):
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.execute("CREATE TABLE customers (id INTEGER, name TEXT, city TEXT)")
    connection.execute(
        "CREATE TABLE orders (id INTEGER, customer_id INTEGER, amount DECIMAL(10,2), day DATE)"
    )
    connection.executemany(
        "INSERT INTO customers VALUES (?, ?, ?)", [(i, f" n{i}", "ab"[i % 2]) for i in range(20)]
    )
    connection.executemany(
        "INSERT INTO orders VALUES (?, ?, ?, ?)",
        [(i, i % 20, i + 0.25, f"2024-01-0{i % 9 + 1}") for i in range(100)],
    )
    connection.commit()
    yield connection
    connection.close()


def project(folder, nodes=NODES):
    return make_project(
        folder, nodes, connections={"erp": {"type": "sql", "url": "sqlite:///shop.db"}}
    )


def change(shop):
    shop.execute("UPDATE customers SET name = 'new', city = 'c' WHERE id = 3")
    shop.execute("INSERT INTO customers VALUES (99, NULL, '')")
    shop.execute("UPDATE orders SET amount = 0, day = '2024-02-02' WHERE id = 7")
    shop.commit()


def numbers(result):
    return {n.name: (n.status, n.rows_read, n.inserted, n.updated, n.deleted) for n in result.nodes}


def test_bronze_to_gold_and_again(tmp_path, platform, shop):
    first = project(tmp_path).run(platform=platform)
    assert first.status == "success"
    assert numbers(first) == {
        "bronze_customers": ("success", 20, 20, 0, 0),
        "bronze_orders": ("success", 100, 100, 0, 0),
        "silver_customers": ("success", 20, 20, 0, 0),
        "silver_orders": ("success", 100, 100, 0, 0),
        "revenue": ("success", 120, 2, 0, 0),
    }
    change(shop)
    planned = project(tmp_path).plan(platform=platform)
    second = project(tmp_path).run(platform=platform)
    assert numbers(second) == {
        "bronze_customers": ("success", 21, 21, 0, 0),
        "bronze_orders": ("success", 100, 100, 0, 0),
        "silver_customers": ("success", 41, 1, 1, 0),
        "silver_orders": ("success", 200, 0, 1, 0),
        "revenue": ("success", 121, 2, 0, 1),
    }
    assert {n.name: (n.inserted, n.updated, n.deleted) for n in planned.nodes} == {
        n.name: (n.inserted, n.updated, n.deleted) for n in second.nodes
    }
    third = project(tmp_path).run(
        ["silver_customers", "silver_orders", "revenue"], platform=platform
    )
    assert {(n.status, n.version) for n in third.nodes} == {("unchanged", None)}
    moved = [r for r in read_table(tmp_path / "lake/silver/orders").rows if r["id"] == 7]
    assert len(moved) == 1  # a row that moves partition is not doubled


@pytest.mark.spark
def test_both_engines_give_equal_tables(tmp_path, shop, pandas_platform, spark_platform):
    tables = ["bronze/customers", "silver/customers", "silver/orders", "gold/revenue"]
    seen = {}
    for name, platform in {"pandas": pandas_platform, "spark": spark_platform}.items():
        folder = tmp_path / name
        folder.mkdir()
        copy = sqlite3.connect(folder / "shop.db")
        shop.backup(copy)
        project(folder).run(platform=platform)
        change(copy)
        project(folder).run(platform=platform)
        copy.close()
        seen[name] = {t: read_table(folder / "lake" / t) for t in tables}
    for table in tables:
        # the two runs had different clocks, and nothing else
        assert_same(*(drop(seen[e][table], ["_extracted_at"]) for e in ("pandas", "spark")))


@pytest.mark.spark
def test_the_engines_may_take_turns_on_one_project(tmp_path, shop, pandas_platform, spark_platform):
    assert project(tmp_path).run(platform=spark_platform).status == "success"
    change(shop)
    second = project(tmp_path).run(platform=spark_platform)  # leaves deletion vectors behind
    assert numbers(second)["silver_customers"] == ("success", 41, 1, 1, 0)
    shop.execute("UPDATE customers SET city = 'd' WHERE id IN (3, 4)")
    shop.commit()
    third = project(tmp_path).run(platform=pandas_platform)
    assert third.status == "success", third
    assert numbers(third)["silver_customers"] == ("success", 62, 0, 2, 0)
    fourth = project(tmp_path).run("silver_customers+", platform=spark_platform)
    assert {n.status for n in fourth.nodes} == {"unchanged"}
    rows = read_table(tmp_path / "lake/silver/customers").rows
    assert sorted((r["id"], r["city"]) for r in rows if r["id"] in (3, 4)) == [(3, "d"), (4, "d")]
    assert len(rows) == 21


def test_plan_writes_nothing(tmp_path, platform, shop):
    plan = project(tmp_path).plan(platform=platform)
    assert [(n.name, n.inserted) for n in plan.nodes][-1] == ("revenue", 2)
    assert not (tmp_path / "lake" / "bronze").exists()
    assert not list((tmp_path / "lake").rglob("etl_*"))


@pytest.mark.long_on_spark
def test_a_failed_node_stops_its_descendants_and_nothing_else(tmp_path, platform, shop):
    shop.execute("DROP TABLE orders")
    shop.commit()
    result = project(tmp_path).run(platform=platform)
    assert {n.name: n.status for n in result.nodes} == {
        "bronze_customers": "success",
        "bronze_orders": "failed",
        "silver_customers": "success",
        "silver_orders": "skipped",
        "revenue": "skipped",
    }
    assert result.exit_code == 1
    assert "there is no table `orders`" in result.nodes[1].error["message"]
    statuses = {r.node: r.batch_status for r in project(tmp_path).store.all_control()}
    assert statuses == {
        "bronze_customers": "SUCCESS",
        "bronze_orders": "FAILED",
        "silver_customers": "SUCCESS",
    }


def test_records(tmp_path, pandas_platform, shop):
    run = project(tmp_path).run("+silver_customers", platform=pandas_platform)
    store = project(tmp_path).store
    silver = next(r for r in store.all_control() if r.node == "silver_customers")
    assert (silver.source_table, silver.last_processed_version, silver.batch_status) == (
        "lake.bronze/customers",
        0,
        "SUCCESS",
    )
    assert (silver.rows_read, silver.rows_written, silver.batch_id) == (
        20,
        20,
        "silver_customers/1",
    )
    assert {r.run_id for r in store.runs(10)} == {run.run_id}
    assert {r.token for r in store.runs(10)} == {
        "strandline/test/bronze_customers/1",
        "strandline/test/silver_customers/1",
    }


@pytest.mark.parametrize(
    ("select", "chosen"),
    [
        (["silver_customers"], ["silver_customers"]),
        (["+silver_customers"], ["bronze_customers", "silver_customers"]),
        (["bronze_orders+"], ["bronze_orders", "silver_orders", "revenue"]),
        (["tag:crm"], ["bronze_customers", "silver_customers"]),
        (
            ["tag:crm+ silver_orders"],
            ["bronze_customers", "silver_customers", "silver_orders", "revenue"],
        ),
        (["bronze_orders", "bronze_customers"], ["bronze_customers", "bronze_orders"]),
    ],
)
def test_selection(tmp_path, select, chosen):
    assert list(project(tmp_path).graph.select(select)) == chosen


def test_an_unknown_selection_names_the_nearest(tmp_path):
    with pytest.raises(UsageError) as caught:
        project(tmp_path).graph.select(["silver_customer"])
    assert "did you mean `silver_customers`" in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_cycle_is_a_configuration_error_with_its_line(tmp_path):
    nodes = [{**NODES[2], "depends_on": ["revenue"]}, *NODES[3:]]
    with pytest.raises(ConfigError, match=r"wait for each other: .*revenue") as caught:
        project(tmp_path, nodes)
    assert caught.value.problems[0].line


def test_independent_nodes_run_at_the_same_time():
    together = threading.Barrier(2, timeout=10)

    def work(name):
        if name in ("a", "b"):
            together.wait()  # passes only when both are under way
        return NodeResult(name, "success")

    graph = Graph(
        ("a", "b", "c"), {"a": frozenset(), "b": frozenset(), "c": frozenset({"a", "b"})}, {}
    )
    seen: list[str] = []
    results = walk(graph, graph.order, 2, work, lambda r: seen.append(r.name))
    assert [r.name for r in results] == ["a", "b", "c"]
    assert seen[-1] == "c"


def test_a_skipped_node_between_chosen_ones_still_orders_them(tmp_path, pandas_platform, shop):
    project(tmp_path).run(platform=pandas_platform)
    order = []

    class Watch(Observer):
        def finished(self, result):
            order.append(result.name)

    project(tmp_path).run(
        ["bronze_customers", "revenue"], platform=pandas_platform, observer=Watch()
    )
    assert order == ["bronze_customers", "revenue"]


@pytest.mark.parametrize("verb", ["run", "plan"])
def test_a_fault_of_our_own_is_one_line_and_stops_only_its_descendants(
    tmp_path, pandas_platform, shop, monkeypatch, verb
):
    original = read.read_sources

    def broken(job, engine):
        if job.node.name == "bronze_orders":
            raise RuntimeError("first line\nsecond line")
        return original(job, engine)

    monkeypatch.setattr(read, "read_sources", broken)
    result = getattr(project(tmp_path), verb)(platform=pandas_platform)
    by_name = {n.name: n for n in result.nodes}
    assert by_name["bronze_orders"].error["message"] == "internal error: RuntimeError: first line"
    assert by_name["revenue"].status == "skipped"
    assert by_name["silver_customers"].status == "success"
    assert result.exit_code == 1


@pytest.mark.parametrize("verb", ["run", "plan"])
def test_a_panic_of_the_table_library_fails_its_node_and_is_recorded(
    tmp_path, pandas_platform, shop, monkeypatch, verb
):
    original = read.read_sources

    def broken(job, engine):
        if job.node.name == "bronze_orders":
            write_deltalake(
                tmp_path / "a^b", pa.table({"id": [1]})
            )  # no project may have such a name: deltalake panics
        return original(job, engine)

    monkeypatch.setattr(read, "read_sources", broken)
    result = getattr(project(tmp_path), verb)(platform=pandas_platform)
    by_name = {n.name: n for n in result.nodes}
    assert by_name["bronze_orders"].error["code"] == "table"
    assert "broke off: Invalid object store url" in by_name["bronze_orders"].error["message"]
    assert by_name["revenue"].status == "skipped"
    assert by_name["silver_customers"].status == "success"
    recorded = {r.node: r.status for r in project(tmp_path).store.runs()}
    assert recorded.get("bronze_orders") == ("failed" if verb == "run" else None)
