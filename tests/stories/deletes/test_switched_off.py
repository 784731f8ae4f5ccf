"""Detection of deletes that is switched off: flags stay, and a row that was read after its delete is alive again."""

from __future__ import annotations

import shutil

import pytest
from tests.shop import Shop, numbers


class ThreeRows(Shop):
    """A table `s` at the source, and nodes that are declared anew each time."""

    def __init__(self, folder, platform):
        super().__init__(folder, platform)
        self.sql(
            "CREATE TABLE s (id INTEGER, v TEXT, u INTEGER)",
            "INSERT INTO s VALUES (1,'a',1),(2,'b',1),(3,'c',1)",
        )

    def run(self, *nodes, select=None):
        return self.declare(*nodes).foreseen(select)

    def alive(self, name):
        return self.living(name, "id", "v")


def silver(name="silver", read=None, mode="upsert", *, off=None, step=None, **write):
    """A node that looks for deletes, or no longer does."""
    node = {"name": name, "read": read or {"connection": "erp", "table": "s"}}
    node["write"] = {"connection": "lake", "table": name, "mode": mode, "keys": ["id"], **write}
    newest = {
        "operation": "deduplicate",
        "params": {"keys": ["id"], "order_by": "_extracted_at DESC"},
    }
    steps = [newest] if read else []
    if off is None or off == "ignore":
        params = {
            "mode": "snapshot_diff",
            "keys": ["id"],
            "max_delete_percent": None,
            **(step or {}),
        }
        steps.append({"operation": "detect_deletes", "params": params})
    elif off == "none":
        steps.append({"operation": "detect_deletes", "params": {"mode": "none"}})
    if off == "ignore":
        node["write"]["delete_strategy"] = "ignore"
    return node | ({"transform": {"steps": steps}} if steps else {})


BRONZE = {
    "name": "bronze",
    "read": {"connection": "erp", "table": "s"},
    "write": {"connection": "lake", "table": "bronze", "mode": "append", "add_metadata": True},
}
COMPARE = {"mode": "sql_compare", "source_connection": "erp", "source_table": "s"}
FROM_BRONZE = {"connection": "lake", "table": "bronze"}


@pytest.fixture
def shop(tmp_path, platform):
    return ThreeRows(tmp_path, platform)


@pytest.fixture
def quick(tmp_path, pandas_platform):
    return ThreeRows(tmp_path, pandas_platform)


@pytest.mark.parametrize("off", ["removed", "none", "ignore"])
@pytest.mark.parametrize("mode", ["upsert", "scd2"])
def test_a_row_that_the_source_has_again_is_alive(quick, off, mode):
    quick.run(silver(mode=mode))
    quick.sql("DELETE FROM s WHERE id > 1")
    assert quick.run(silver(mode=mode))["silver"].deleted == 2
    before = quick.stored("silver")
    assert quick.run(silver(mode=mode, off=off))["silver"].status == "unchanged"
    assert quick.stored("silver") == before
    quick.sql("INSERT INTO s VALUES (2, 'b', 1), (3, 'new', 2)")
    assert numbers(quick.run(silver(mode=mode, off=off))["silver"]) == (0, 0, 0, 2)
    assert quick.alive("silver") == [(1, "a"), (2, "b"), (3, "new")]


def test_delete_missing_that_is_false_again(quick):
    read = {
        "connection": "erp",
        "table": "s",
        "incremental": {"mode": "stateful", "column": "u", "watermark_lag": 9},
    }
    node = {**silver(read=None, off="removed"), "read": read}
    quick.run({**node, "settings": {"delete_missing": True}})
    quick.sql("DELETE FROM s WHERE id = 2")
    assert quick.run({**node, "settings": {"delete_missing": True}})["silver"].deleted == 1
    quick.sql("INSERT INTO s VALUES (2, 'b', 1)")
    assert numbers(quick.run({**node, "settings": {"delete_missing": False}})["silver"]) == (
        0,
        0,
        0,
        1,
    )


@pytest.mark.long_on_spark
def test_old_rows_of_bronze_revive_nothing(shop):
    """Both modes, found by snapshots and by the live source; every run reads all of Bronze again."""

    def nodes(off=None):
        compare = silver("history", FROM_BRONZE, "scd2", off=off, step=COMPARE)
        return [BRONZE, silver("silver", FROM_BRONZE, off=off), compare]

    shop.run(*nodes())
    shop.sql("DELETE FROM s WHERE id > 1")
    assert {r.deleted for name, r in shop.run(*nodes()).items() if name != "bronze"} == {2}
    flagged = [shop.stored(name) for name in ("silver", "history")]
    shop.run(*nodes("removed"))  # Bronze appends what the source still has
    assert [shop.stored(name) for name in ("silver", "history")] == flagged
    shop.sql("INSERT INTO s VALUES (2, 'b', 1)")
    back = shop.run(*nodes("ignore"))
    assert {numbers(back[name]) for name in ("silver", "history")} == {(0, 0, 0, 1)}
    assert shop.alive("silver") == shop.alive("history") == [(1, "a"), (2, "b")]


def test_a_bronze_that_is_overwritten_holds_what_was_read_last(quick):
    bronze = {**BRONZE, "write": {**BRONZE["write"], "mode": "overwrite", "add_metadata": False}}

    def node(off=None):
        return {**silver(off=off, step=COMPARE), "read": FROM_BRONZE}

    quick.run(bronze, node())
    quick.sql("DELETE FROM s WHERE id = 2")
    assert quick.run(bronze, node(), select="silver")["silver"].deleted == 1  # Bronze still has it
    assert quick.run(bronze, node("removed"), select="silver")["silver"].status == "unchanged"
    quick.sql("INSERT INTO s VALUES (2, 'b', 1)", "UPDATE s SET v = 'A' WHERE id = 1")
    assert numbers(quick.run(bronze, node("removed"))["silver"]) == (
        0,
        1,
        0,
        1,
    )  # as it was, but read again


def test_where_the_old_version_is_gone_nothing_is_revived_and_a_warning_says_so(quick):
    quick.run(BRONZE, silver(read=FROM_BRONZE))
    quick.sql("DELETE FROM s WHERE id = 2")
    quick.run(BRONZE, silver(read=FROM_BRONZE))
    shutil.rmtree(quick.folder / "lake" / "bronze")
    quick.sql("INSERT INTO s VALUES (2, 'b', 1)")
    found = quick.run(BRONZE, silver(read=FROM_BRONZE, off="removed"))["silver"]
    told = "deleted rows of lake.silver stay deleted until they are read again: lake.bronze was made anew since"
    assert (numbers(found), found.warnings) == ((0, 0, 0, 0), [told])
    quick.run(BRONZE, silver(read=FROM_BRONZE, off="removed"))
    assert quick.alive("silver") == [(1, "a"), (2, "b"), (3, "c")]


def test_the_order_of_rows_comes_before_when_they_were_read(quick):
    """An older row revives nothing, an equal one does; so it is beside a feed whose deletes are ignored."""
    quick.sql("UPDATE s SET u = 5")
    quick.run(silver(sequence_by="u"))
    quick.sql("DELETE FROM s WHERE id > 1")
    quick.run(silver(sequence_by="u"))
    quick.sql("INSERT INTO s VALUES (2, 'old', 4), (3, 'c', 5)")
    assert numbers(quick.run(silver(sequence_by="u", off="removed"))["silver"]) == (0, 0, 0, 1)
    assert quick.alive("silver") == [(1, "a"), (3, "c")]


def test_a_feed_whose_deletes_are_ignored_brings_rows_back(quick):
    def nodes(**write):
        fed = {"connection": "lake", "table": "silver", "incremental": {"mode": "cdf"}}
        gold = {
            "name": "gold",
            "read": fed,
            "write": {"connection": "lake", "table": "gold", "mode": "upsert"},
        }
        return [silver(), {**gold, "write": {**gold["write"], "keys": ["id"], **write}}]

    quick.run(*nodes())
    quick.sql("DELETE FROM s WHERE id = 2")
    assert quick.run(*nodes())["gold"].deleted == 1
    assert quick.run(*nodes(delete_strategy="ignore"))["gold"].status == "unchanged"
    quick.sql("INSERT INTO s VALUES (2, 'b', 1)")
    assert numbers(quick.run(*nodes(delete_strategy="ignore"))["gold"]) == (0, 0, 0, 1)


def test_a_history_in_business_time_opens_a_new_version(quick):
    """The row is the event that was there before: that it was read again says that its key is there."""
    times = {
        "operation": "derive",
        "params": {"columns": {"at": "CAST(concat('2024-01-0', u) AS timestamp)"}},
    }

    def node(read=None, off=None, **step):
        made = silver(read=read, mode="scd2", off=off, step=step, effective_at="at")
        return {
            **made,
            "transform": {"steps": [times, *made.get("transform", {"steps": []})["steps"]]},
        }

    quick.run(BRONZE, node(FROM_BRONZE))
    quick.sql("DELETE FROM s WHERE id > 1")
    assert quick.run(BRONZE, node(FROM_BRONZE))["silver"].deleted == 2
    assert numbers(quick.run(BRONZE, node(FROM_BRONZE, "removed"))["silver"]) == (0, 0, 0, 0)
    quick.sql("INSERT INTO s VALUES (2, 'b', 1)")
    assert numbers(quick.run(BRONZE, node(FROM_BRONZE, "removed"))["silver"]) == (0, 0, 0, 1)
    assert quick.alive("silver") == [(1, "a"), (2, "b")]
