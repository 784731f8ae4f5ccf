"""Following a table's changes, in whole projects: first loads, deletes, accidents, positions, and what is refused."""

from __future__ import annotations

import json
import logging
import shutil
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from strandline.errors import ConfigError, DeleteThresholdExceeded, ReadError
from strandline.testing.frames import read_table
from strandline.testing.projects import execute, make_project
from strandline.transform.lineage import clockwork, repeatable

FEED = {"delta.enableChangeDataFeed": "true"}
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def rows(*pairs):
    return pa.table({"id": [i for i, _ in pairs], "v": [v for _, v in pairs]}, schema=SCHEMA)


def node(name="n", source="src", target="t", *, feed=None, write=None, **more):
    read = {"connection": "lake", "table": source, "incremental": {"mode": "cdf", **(feed or {})}}
    write = {
        "connection": "lake",
        "table": target,
        "mode": "upsert",
        "keys": ["id"],
        **(write or {}),
    }
    return {"name": name, "read": read, "write": write, **more}


class Lake:
    """Lake tables that others write, and nodes that follow them."""

    def __init__(self, folder, platform):
        self.folder, self.platform = folder, platform

    def place(self, name):
        return str(self.folder / "lake" / name)

    def declare(self, *nodes, **more):
        self.project = make_project(self.folder, nodes, **more)
        return self

    def write(self, name, data, mode="error", **how):
        write_deltalake(
            self.place(name),
            data,
            mode=mode,
            configuration=FEED if mode == "error" else None,
            **how,
        )
        return self

    def erp(self, *statements):
        execute(self.folder / "erp.db", *statements)

    def delta(self, name="src"):
        return DeltaTable(self.place(name))

    def run(self, select=None, **how):
        found = self.project.run(select, platform=self.platform, check=True, **how).nodes
        return found[0] if len(found) == 1 else {n.name: n for n in found}

    def living(self, name="t", *columns):
        """The rows of a table that are not deleted: the values of these columns."""
        found = [r for r in read_table(self.place(name)).rows if r.get("_is_current", True)]
        names = columns or ("id", "v")
        return sorted(
            (tuple(r[n] for n in names) for r in found if not r.get("_is_deleted")), key=repr
        )

    def coverage(self, name="n"):
        return next(r for r in self.project.store.states() if r.node == name).covered.as_dict()


@pytest.fixture
def lake(tmp_path, platform):
    return Lake(tmp_path, platform)


@pytest.fixture
def quick(tmp_path, pandas_platform):
    return Lake(tmp_path, pandas_platform)


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="strandline")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "strandline"]


def numbers(result):
    return (result.inserted, result.updated, result.deleted, result.reopened, result.held)


# --- the first load, and what comes after it ---------------------------------------------------------------


@pytest.mark.parametrize("mode", ["upsert", pytest.param("scd2", marks=pytest.mark.long_on_spark)])
def test_every_kind_of_change(lake, mode):
    """X-45, X-49, X-50, X-51: rows of version 0, deletes, delete and insert in one version, a changed key."""
    lake.write("src", rows((1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e"), (6, "f"))).declare(
        node(write={"mode": mode})
    )
    assert numbers(lake.run()) == (6, 0, 0, 0, 0)
    lake.delta().delete("id = 1")
    lake.delta().update(updates={"v": "'B'"}, predicate="id = 2")
    lake.delta().update(updates={"id": "30"}, predicate="id = 3")
    lake.write("src", rows((2, "B"), (4, "D"), (5, "e"), (30, "c"), (6, "f")), mode="overwrite")
    assert numbers(lake.run()) == (1, 2, 2, 0, 0)
    assert lake.living() == [(2, "B"), (30, "c"), (4, "D"), (5, "e"), (6, "f")]
    lake.write("src", rows((1, "a")), mode="append")
    assert numbers(lake.run()) == (0, 0, 0, 1, 0)  # evidence of presence revives
    assert lake.living()[0] == (1, "a")


def test_no_new_version_reads_nothing(quick):
    """X-52, X-58: caught up is a quiet success."""
    quick.write("src", rows((1, "a"))).declare(node())
    quick.run()
    result = quick.run()
    assert (result.status, result.rows_read, result.version) == ("unchanged", 0, None)


def test_maintenance_is_no_change(quick):
    """X-5: compaction and properties make versions, not changes; the position moves on."""
    quick.write("src", rows((1, "a"))).write("src", rows((2, "b")), mode="append").declare(node())
    quick.run()
    quick.delta().optimize.compact()
    quick.delta().alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})
    result = quick.run()
    assert (result.status, numbers(result)) == ("unchanged", (0, 0, 0, 0, 0))
    assert quick.coverage()["sources"]["lake.src"][1] == quick.delta().version() == 3


def test_what_came_and_went_again_is_no_change(quick):
    quick.write("src", rows((1, "a"))).declare(node())
    quick.run()
    quick.write("src", rows((2, "b")), mode="append")
    quick.delta().delete("id = 2")
    quick.delta().update(updates={"v": "'x'"}, predicate="id = 1")
    quick.delta().update(updates={"v": "'a'"}, predicate="id = 1")
    assert quick.run().status == "unchanged"
    assert quick.living() == [(1, "a")]


def test_the_version_is_fixed_before_reading_and_recorded_with_the_commit(quick):
    """X-54, X-67: the coverage travels in the data commit itself."""
    quick.write("src", rows((1, "a"))).declare(node())
    quick.run()
    quick.write("src", rows((2, "b")), mode="append")
    quick.run()
    record = json.loads(quick.delta("t").history(1)[0]["userMetadata"])["strandline"]
    assert record["coverage"]["sources"]["lake.src"][1] == 1
    (row,) = [r for r in quick.project.store.states() if r.node == "n"]
    assert (row.last_processed_version, row.load_id, row.batch_status) == (1, None, "SUCCESS")


def test_a_load_id_has_a_position_of_its_own(quick):
    quick.write("src", rows((1, "a"))).declare(node(feed={"load_id": "one"}))
    quick.run()
    quick.write("src", rows((2, "b")), mode="append")
    quick.declare(node(feed={"load_id": "two"}))
    result = quick.run()
    assert "no position is recorded for lake.src#two" in result.warnings[0]
    assert next(r for r in quick.project.store.states() if r.node == "n").load_id == "two"
    assert {k: v[1] for k, v in quick.coverage()["sources"].items()} == {
        "lake.src#one": 0,
        "lake.src#two": 1,
    }
    quick.declare(node(feed={"load_id": "one"}))
    assert quick.run().rows_read == 1  # the version after its own


def test_from_version_starts_there(quick):
    """Inclusive: the changes of that version are the first to be read."""
    quick.write("src", rows((1, "a"))).write("src", rows((2, "b")), mode="append")
    quick.write("src", rows((3, "c")), mode="append").declare(node(feed={"from_version": 1}))
    assert numbers(quick.run()) == (2, 0, 0, 0, 0)
    quick.delta().delete("id = 3")
    assert numbers(quick.run()) == (0, 0, 1, 0, 0)
    assert quick.living() == [(2, "b")]


def test_from_version_is_for_the_first_run(quick):
    """Once everything is computed again, nobody can tell which rows came before it: it says so."""
    quick.write("src", rows((1, "a"))).write("src", rows((2, "b")), mode="append")
    quick.declare(node(feed={"from_version": 1})).run()
    assert quick.living() == [(2, "b")]
    quick.declare(
        node(feed={"from_version": 1}, transformation_sql="SELECT * FROM source WHERE id < 3")
    )
    (warning,) = quick.run().warnings
    assert warning.startswith(
        "everything is computed again, also what was there before from_version: "
    )
    assert quick.living() == [(1, "a"), (2, "b")]


def test_from_version_zero_is_everything(quick):
    quick.write("src", rows((1, "a"))).declare(node(feed={"from_version": 0}))
    assert numbers(quick.run()) == (1, 0, 0, 0, 0)


def test_from_a_version_that_is_not_there_yet(quick):
    quick.write("src", rows((1, "a"))).declare(node(feed={"from_version": 5}))
    with pytest.raises(ReadError, match=r"from_version: 5, but lake\.src is at version 0"):
        quick.run()


def test_a_table_that_was_dropped_is_loaded_again(quick):
    quick.write("src", rows((1, "a"), (2, "b"))).declare(node())
    quick.run()
    shutil.rmtree(quick.place("t"))
    quick.write("src", rows((3, "c")), mode="append")
    assert numbers(quick.run()) == (3, 0, 0, 0, 0)


# --- accidents ---------------------------------------------------------------------------------------------


def _overwrite(lake):
    lake.write("src", rows((2, "b"), (7, "g")), mode="overwrite")


def _delete_all_and_load(lake):
    lake.delta().delete()
    lake.write("src", rows((2, "z"), (8, "h")), mode="append")


def _restore(lake):
    lake.write("src", rows((9, "i")), mode="append")
    lake.delta().restore(lake.delta().version() - 1)
    lake.delta().delete("id = 8")


def _made_anew(lake):
    shutil.rmtree(lake.place("src"))
    lake.write("src", rows((2, "new"), (10, "j")))
    lake.write("src", rows((11, "k")), mode="append")
    lake.write("src", rows((12, "l")), mode="append")


def _off_and_on(lake):
    lake.delta().alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    lake.delta().delete("id = 10")
    lake.delta().alter.set_table_properties(FEED)
    lake.write("src", rows((13, "m")), mode="append")


def _vacuumed(lake):
    lake.delta().update(updates={"v": "'V'"}, predicate="id = 2")
    lake.delta().delete("id = 11")
    _vacuum(lake)


def _vacuum(lake):
    lake.delta().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    shutil.rmtree(f"{lake.place('src')}/_change_data", ignore_errors=True)


def _log_cleaned(lake):
    lake.write("src", rows((14, "n")), mode="append")
    lake.delta().delete("id = 12")
    version = lake.delta().version()
    lake.delta().create_checkpoint()
    for old in range(version):
        (lake.folder / "lake" / "src" / "_delta_log" / f"{old:020}.json").unlink(missing_ok=True)


def _other_columns(lake):
    data = pa.table(
        {"id": pa.array([2, 15], pa.int64()), "v": pa.array(["p", "q"]), "w": pa.array([1, 2])}
    )
    lake.write("src", data.drop_columns("v"), mode="overwrite", schema_mode="overwrite")
    lake.write("src", data, mode="overwrite", schema_mode="overwrite")


COMPARED = "its change feed cannot be read: {}; its snapshots are compared instead"
ACCIDENTS = {
    _overwrite: None,
    _delete_all_and_load: None,
    _restore: COMPARED.format("version {version} restored an older one"),
    _made_anew: "everything is computed again: lake.src: its change feed cannot be read: lake.src was made anew since",
    _off_and_on: COMPARED.format("the feed was off in version {version}"),
    _vacuumed: "can no longer be read",
    _log_cleaned: "everything is computed again: lake.src: its change feed cannot be read: the log no longer reaches",
    _other_columns: "column `v` of type string was dropped in version",
}


def survive(lake, accident, expected):
    """Whatever happened to the source, the table has its rows afterwards, and the log says why it took the long way."""
    version = lake.delta().version()
    accident(lake)
    result = lake.run()
    source = [tuple(r[n] for n in ("id", "v")) for r in read_table(lake.place("src")).rows]
    assert lake.living() == sorted(source, key=repr), accident
    said = [w for w in result.warnings if "%" not in w]
    if expected is None:
        assert said == [], accident
    else:
        assert any(expected.split("{")[0] in w for w in said), (accident, said, version)
    assert lake.run().status == "unchanged"


@pytest.mark.parametrize("accident", ACCIDENTS, ids=lambda a: a.__name__.strip("_"))
def test_accidents(quick, accident):
    quick.write("src", rows((1, "a"), (2, "b"), (8, "h"), (10, "j"), (11, "k"), (12, "l"))).declare(
        node()
    )
    quick.run()
    survive(quick, accident, ACCIDENTS[accident])


@pytest.mark.spark
def test_all_accidents_in_a_row_on_spark(tmp_path, spark_platform):
    lake = Lake(tmp_path, spark_platform)
    lake.write("src", rows((1, "a"), (2, "b"))).declare(node())
    lake.run()
    for accident, expected in ACCIDENTS.items():
        survive(lake, accident, expected)


def test_a_feed_that_was_turned_on_late(quick, lines):
    """X-47: the rows before are there from the first load; what changed before it was on is found by comparing."""
    write_deltalake(quick.place("src"), rows((1, "a"), (2, "b")))
    quick.declare(node())
    assert numbers(quick.run()) == (2, 0, 0, 0, 0)
    quick.delta().delete("id = 1")
    quick.delta().alter.set_table_properties(FEED)
    quick.write("src", rows((3, "c")), mode="append")
    result = quick.run()
    assert numbers(result) == (1, 0, 1, 0, 0)
    assert "the feed was off in version 1" in result.warnings[0]
    assert any("the feed was off in version 1" in line for line in lines())


def test_setting_the_property_again_changes_nothing(quick):
    """X-46."""
    quick.write("src", rows((1, "a"))).declare(node())
    quick.run()
    quick.write("src", rows((2, "b")), mode="append")
    quick.delta().alter.set_table_properties(FEED)
    quick.write("src", rows((3, "c")), mode="append")
    result = quick.run()
    assert (numbers(result), result.warnings) == ((2, 0, 0, 0, 0), [])


def test_an_old_version_that_is_no_longer_there_on_either_side(quick):
    """X-53: vacuumed; the target itself is compared with the source, and what it alone has is gone."""
    quick.write("src", rows((1, "a"), (2, "b"), (3, "c"))).declare(node())
    quick.run()
    quick.delta().delete("id = 1")
    _vacuum(quick)
    result = quick.run()
    assert numbers(result) == (0, 0, 1, 0, 0)
    (change,) = quick.project.store.changes("n")
    assert (change.verb, change.mode) == ("delete", "recompute")
    assert change.reason == "absent from the result, which was computed again as a whole"


def test_columns_that_came_later(quick):
    quick.write("src", rows((1, "a"))).declare(node())
    quick.run()
    more = pa.table({"id": pa.array([2], pa.int64()), "v": ["b"], "w": pa.array([5], pa.int64())})
    quick.write("src", more, mode="append", schema_mode="merge")
    assert numbers(quick.run()) == (1, 0, 0, 0, 0)
    assert quick.living("t", "id", "v", "w") == [(1, "a", None), (2, "b", 5)]


def test_maps_are_told_apart(lake):
    def data(*pairs):
        kind = pa.map_(pa.string(), pa.int64())
        return pa.table(
            {
                "id": pa.array([i for i, _ in pairs], pa.int64()),
                "m": pa.array([m for _, m in pairs], kind),
            }
        )

    lake.write("src", data((1, [("k", 1)]), (2, [("k", 2)]))).declare(
        node(transformation_sql="SELECT id, m FROM source", write={"mode": "append", "keys": []})
    )
    lake.run()
    lake.write("src", data((1, [("k", 9)]), (2, [("k", 2)])), mode="overwrite")
    result = lake.run()
    assert (result.inserted, result.rows_read) == (1, 4)


MERGED = (
    "MERGE INTO {t} t USING (SELECT 5L AS id UNION ALL SELECT 99L) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET v = 'm' WHEN NOT MATCHED THEN INSERT (id, p, v) VALUES (s.id, 'c/d', 'n')"
)
REPLACED = (
    "CREATE OR REPLACE TABLE {t} USING delta PARTITIONED BY (p) "
    "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true') "
    "AS SELECT 1L AS id, 'a b' AS p, 'one' AS v UNION ALL SELECT 6L, 'c/d', 'v6!'"
)
SPARK_SAYS = [
    [
        "INSERT INTO {t} VALUES (20, 'a b', 'new'), (21, 'c/d', NULL)",
        "DELETE FROM {t} WHERE id IN (2, 3)",
    ],
    ["UPDATE {t} SET v = 'x' WHERE id = 4", MERGED, "OPTIMIZE {t}"],
    ["DELETE FROM {t} WHERE id = 4", "RESTORE TABLE {t} TO VERSION AS OF 2"],
    ["INSERT OVERWRITE {t} SELECT id, p, concat(v, '!') FROM {t} WHERE id > 5", REPLACED],
]


@pytest.mark.spark
def test_what_spark_does_to_a_table_is_followed_on_both_engines(
    tmp_path, spark_platform, pandas_platform
):
    """Deletion vectors, partitions with odd names, and statements that only Spark has."""
    lake, place = Lake(tmp_path, spark_platform), f"delta.`{tmp_path}/lake/src`"
    spark = spark_platform.session
    spark.sql(
        f"CREATE TABLE {place} (id BIGINT, p STRING, v STRING) USING delta PARTITIONED BY (p) TBLPROPERTIES "
        "('delta.enableDeletionVectors' = 'true', 'delta.enableChangeDataFeed' = 'true')"
    )
    spark.sql(
        f"INSERT INTO {place} SELECT id, if(id % 2 = 0, 'a b', 'c/d'), concat('v', id) FROM range(10)"
    )
    lake.declare(node("s", target="ts"), node("l", target="tl"))
    for statements in [[], *SPARK_SAYS]:
        for statement in statements:
            spark.sql(statement.format(t=place))
        for platform, name in ((spark_platform, "s"), (pandas_platform, "l")):
            lake.platform = platform
            lake.run(name)
            source = [(r["id"], r["p"], r["v"]) for r in read_table(lake.place("src")).rows]
            assert lake.living(f"t{name}", "id", "p", "v") == sorted(source, key=repr), (
                name,
                statements,
            )


def test_what_vanished_before_the_feed_was_followed_is_found(quick):
    """Reading in full found no deletes; whoever turns to the feed expects the table to be the source."""
    full = node()
    del full["read"]["incremental"]
    quick.write("src", rows((1, "a"), (2, "b"), (3, "c"))).declare(full)
    quick.run()
    quick.delta().delete("id = 1")
    quick.run()
    result = quick.declare(node()).run()
    assert (result.deleted, result.warnings) == (
        1,
        ["everything is computed again: until now its sources were read in full"],
    )
    assert quick.living() == [(2, "b"), (3, "c")]
    assert quick.run().status == "unchanged"


# --- more than one row of a key ----------------------------------------------------------------------------


def test_a_key_is_gone_when_none_of_its_rows_is_left(quick):
    """A source that nobody keeps unique: what is left of the key decides."""
    newest = {
        "steps": [{"operation": "deduplicate", "params": {"keys": ["id"], "order_by": "v DESC"}}]
    }
    quick.write("src", rows((1, "a"), (1, "b"), (2, "c"), (2, "d"))).declare(node(transform=newest))
    quick.run()
    assert quick.living() == [(1, "b"), (2, "d")]
    quick.delta().delete("v IN ('b', 'c', 'd')")
    assert numbers(quick.run()) == (0, 1, 1, 0, 0)
    assert quick.living() == [(1, "a")]


def test_a_row_that_comes_late_is_chosen_among_all_rows_of_its_key(quick):
    """Only what changed is read, but the steps choose as if everything were there."""
    newest = {
        "steps": [{"operation": "deduplicate", "params": {"keys": ["id"], "order_by": "v DESC"}}]
    }
    quick.write("src", rows((1, "b"), (2, "c"))).declare(node(transform=newest))
    quick.run()
    quick.write("src", rows((1, "a"), (3, "x")), mode="append")
    assert numbers(quick.run())[:2] == (1, 0)
    assert quick.living() == [(1, "b"), (2, "c"), (3, "x")]


def test_deduplication_columns_keep_the_newest_commit(quick):
    """X-50: the newest commit wins, whatever the values; without commits to tell, the highest of all columns."""
    quick.write("src", rows((1, "a"), (1, "b"))).declare(
        node(feed={"deduplication_columns": ["id"]})
    )
    quick.run()
    assert quick.living() == [(1, "b")]
    quick.write("src", rows((1, "z")), mode="append")
    quick.write("src", rows((1, "c"), (2, "x")), mode="append")
    quick.run()
    assert quick.living() == [(1, "c"), (2, "x")]


def test_deduplication_columns_choose_among_what_is_left(quick):
    quick.write("src", rows((1, "a"), (1, "b"))).declare(
        node(feed={"deduplication_columns": ["id"]})
    )
    quick.run()
    quick.write("src", rows((1, "A")), mode="append")
    quick.run()
    assert quick.living() == [(1, "A")]
    quick.delta().delete("v = 'A'")
    quick.run()
    assert quick.living() == [(1, "b")]


def test_append_adds_what_came_as_often_as_it_came(quick):
    quick.write("src", rows((1, "a"))).declare(node(write={"mode": "append", "keys": []}))
    quick.run()
    quick.write("src", rows((1, "a"), (1, "a"), (2, "b")), mode="append")
    quick.delta().delete("id = 2")
    result = quick.run()
    assert (result.inserted, result.status) == (2, "success")
    assert quick.run().status == "unchanged"
    assert quick.living() == [(1, "a")] * 3


def test_append_after_an_accident_adds_what_is_not_there(quick):
    quick.write("src", rows((1, "a"), (2, "b"))).declare(node(write={"mode": "append", "keys": []}))
    quick.run()
    _made_anew(quick)
    assert quick.run().inserted == 4
    quick.write("src", rows((1, "a")), mode="append")
    assert quick.run().inserted == 1


def test_a_run_that_dies_after_its_commit_is_finished_and_goes_on(quick):
    """X-62, X-70: the position came with the commit; the next run records it and reads what is after it."""
    quick.write("src", rows((1, "a"), (2, "b"), (3, "c"))).declare(node())
    quick.run()
    quick.delta().delete("id = 1")
    control = quick.folder / "lake" / "_strandline"
    shutil.copytree(control, quick.folder / "before")
    quick.run()
    shutil.rmtree(control)  # as if the runner had died before it could record its batch
    shutil.move(quick.folder / "before", control)
    version = quick.delta("t").version()
    quick.write("src", rows((4, "d")), mode="append")
    result = quick.run()
    assert (numbers(result), result.rows_read) == ((1, 0, 0, 0, 0), 1)
    assert quick.delta("t").version() == version + 1


# --- tables of our own -------------------------------------------------------------------------------------


def erp(mode="upsert", **more):
    step = {"mode": "snapshot_diff", "keys": ["id"]}
    return {
        "name": "silver",
        "read": {"connection": "files", "path": "in.parquet"},
        "transform": {"steps": [{"operation": "detect_deletes", "params": step}]},
        "write": {"connection": "lake", "table": "src", "mode": mode, "keys": ["id"], **more},
    }


def put(lake, *pairs):
    import pyarrow.parquet as pq

    (lake.folder / "landing").mkdir(exist_ok=True)
    pq.write_table(rows(*pairs), lake.folder / "landing" / "in.parquet")


@pytest.mark.long_on_spark
def test_a_flag_that_turns_is_a_delete_and_back_an_insert(lake):
    """A table with soft deletes: its living rows are followed, its system columns are not."""
    lake.declare(erp(), node("gold"))
    put(lake, (1, "a"), (2, "b"), (3, "c"))
    lake.run()
    put(lake, (2, "b"), (3, "C"))
    found = lake.run()
    assert numbers(found["silver"]) == numbers(found["gold"]) == (0, 1, 1, 0, 0)
    put(lake, (1, "a"), (2, "b"), (3, "C"))
    found = lake.run()
    assert numbers(found["silver"]) == numbers(found["gold"]) == (0, 0, 0, 1, 0)
    assert lake.living() == [(1, "a"), (2, "b"), (3, "C")]
    assert read_table(lake.place("t")).names == [
        "id",
        "v",
        "_row_hash",
        "_is_deleted",
        "_last_seen",
    ]


@pytest.mark.parametrize("hard", [False, True])
def test_a_plan_follows_what_is_planned(quick, hard):
    quick.declare(erp(**({"delete_strategy": "hard"} if hard else {})), node("gold"))
    put(quick, (1, "a"), (2, "b"), (3, "c"))
    quick.run()
    put(quick, (1, "A"), (3, "c"))
    planned = {n.name: n for n in quick.project.plan(platform=quick.platform).nodes}
    assert numbers(planned["silver"]) == numbers(planned["gold"]) == (0, 1, 1, 0, 0)
    assert planned["gold"].sample_deletes == [{"id": 2}]
    assert planned["gold"].warnings == []
    assert planned["gold"].reason == "gone from lake.src, as the change feed says"
    done = quick.run()
    assert numbers(done["gold"]) == (0, 1, 1, 0, 0)


def test_a_plan_is_followed_and_the_position_goes_along(quick):
    quick.declare(erp(), node("gold"))
    put(quick, (1, "a"), (2, "b"))
    quick.run()
    put(quick, (1, "A"), (2, "b"))
    quick.project.plan(platform=quick.platform, out=quick.folder / "plan.zip")
    assert {
        n.name: n.updated for n in quick.project.follow(quick.folder / "plan.zip", check=True).nodes
    } == {
        "silver": 1,
        "gold": 1,
    }
    assert [n.status for n in quick.project.run(platform=quick.platform, check=True).nodes] == [
        "unchanged"
    ] * 2


def test_tables_we_create_keep_a_feed(lake):
    put(lake, (1, "a"))
    lake.declare(erp()).run()
    assert lake.delta().metadata().configuration["delta.enableChangeDataFeed"] == "true"


@pytest.mark.long_on_spark
def test_the_feed_of_an_older_table_is_turned_on_once_somebody_follows_it(lake, lines):
    write_deltalake(lake.place("src"), rows((1, "a"), (2, "b")))
    put(lake, (1, "a"), (2, "c"))
    lake.declare({**erp(), "transform": None}, node("gold"))
    lake.run()
    assert lake.delta().metadata().configuration["delta.enableChangeDataFeed"] == "true"
    assert any("the change feed of lake.src is turned on" in line for line in lines())
    put(lake, (1, "b"), (2, "c"))
    found = lake.run()
    assert (numbers(found["gold"]), found["gold"].warnings) == ((0, 1, 0, 0, 0), [])


# --- judged before they are applied ------------------------------------------------------------------------


def limits(**params):
    return {
        "steps": [
            {"operation": "detect_deletes", "params": {"mode": "feed", "keys": ["id"], **params}}
        ]
    }


@pytest.mark.long_on_spark
def test_a_source_that_was_emptied_deletes_nothing_by_itself(lake):
    lake.write("src", rows((1, "a"), (2, "b"))).declare(node())
    lake.run()
    lake.delta().delete()
    result = lake.run()
    assert (result.status, numbers(result)) == ("held", (0, 0, 0, 0, 2))
    assert lake.run().held == 2  # still held: nobody decided, nobody came back
    lake.write("src", rows((2, "b")), mode="append")
    result = lake.run()
    assert (result.held, numbers(result)) == (1, (0, 0, 0, 0, 1))  # seen again: no longer held
    (run_id,) = {h.run_id for h in lake.project.holds()["n"]}
    done = lake.project.approve(run_id, platform=lake.platform, check=True).nodes[0]
    assert numbers(done) == (0, 0, 1, 0, 0)
    assert lake.living() == [(2, "b")]
    assert lake.run().status == "unchanged"


def test_rejected_deletes_stay_until_their_keys_are_seen_again(quick):
    quick.write("src", rows((1, "a"), (2, "b"))).declare(node())
    quick.run()
    quick.delta().delete()
    quick.run()
    (run_id,) = {h.run_id for h in quick.project.holds()["n"]}
    quick.project.reject(run_id)
    quick.write("src", rows((3, "c")), mode="append")
    assert numbers(quick.run()) == (1, 0, 0, 0, 0)
    quick.write("src", rows((1, "a")), mode="append")
    quick.run()
    quick.delta().delete("id = 1")
    assert numbers(quick.run()) == (0, 0, 1, 0, 0)
    assert quick.living() == [(2, "b"), (3, "c")]


def test_too_many_deletes_are_an_error_and_are_read_again(quick):
    quick.write("src", rows((1, "a"), (2, "b"), (3, "c"))).declare(
        node(transform=limits(max_delete_percent=10, on_threshold_breach="error"))
    )
    quick.run()
    quick.delta().delete("id = 1")
    planned = quick.project.plan(platform=quick.platform).nodes[0]
    assert (planned.verdict, planned.found_deletes, planned.sample_deletes) == (
        "refuse",
        1,
        [{"id": 1}],
    )
    for _ in range(2):
        with pytest.raises(DeleteThresholdExceeded, match=r"33\.3% exceeds 10\.0%"):
            quick.run()
    quick.declare(node(transform=limits(max_delete_percent=40)))
    assert numbers(quick.run()) == (0, 0, 1, 0, 0)


def test_more_than_half_warns(quick):
    quick.write("src", rows((1, "a"), (2, "b"), (3, "c"))).declare(node())
    quick.run()
    quick.delta().delete("id < 3")
    assert "66.7% of rows flagged for deletion (2 of 3" in quick.run().warnings[0]


@pytest.mark.parametrize("strategy", ["soft", "hard", "ignore"])
def test_what_becomes_of_deletes(quick, strategy):
    quick.write("src", rows((1, "a"), (2, "b"), (3, "c"))).declare(
        node(write={"delete_strategy": strategy})
    )
    quick.run()
    quick.delta().delete("id = 1")
    assert quick.run().deleted == (0 if strategy == "ignore" else 1)
    assert len(read_table(quick.place("t")).rows) == (2 if strategy == "hard" else 3)
    assert ("_is_deleted" in read_table(quick.place("t")).names) == (strategy == "soft")


def test_explain_tells_why(quick):
    quick.write("src", rows((1, "a"), (2, "b"), (3, "c"))).declare(node())
    quick.run()
    quick.delta().delete("id = 1")
    quick.run()
    event = quick.project.explain("n", {"id": "1"}).events[-1]
    assert (event.event, event.mode) == ("deleted", "feed")
    assert event.reason == "gone from lake.src after version 0 up to 1, as the change feed says"


# --- steps and SQL -----------------------------------------------------------------------------------------


@pytest.mark.long_on_spark
def test_steps_and_sql_see_no_change_columns(lake):
    """X-61: filters, renames and expressions over one source; a row that a filter no longer lets through is gone."""
    steps = [
        {"operation": "filter", "params": {"condition": "v <> 'x'"}},
        {"operation": "rename", "params": {"columns": {"v": "w"}}},
    ]
    sql = "SELECT id, upper(w) AS v FROM source WHERE id < 100"
    lake.write("src", rows((1, "a"), (2, "b"), (3, "c"), (100, "d"))).declare(
        node(transform={"steps": steps}, transformation_sql=sql)
    )
    lake.run()
    lake.delta().update(updates={"v": "'x'"}, predicate="id = 1")
    lake.delta().update(updates={"id": "id + 100"}, predicate="id = 2")
    lake.delta().update(updates={"v": "'C2'"}, predicate="id = 3")
    assert numbers(lake.run()) == (0, 1, 2, 0, 0)
    assert lake.living() == [(3, "C2")]
    assert lake.coverage()["followed"] == "rows"


def test_a_group_is_computed_from_all_its_rows(quick):
    quick.write("src", rows((1, "a"), (2, "a"), (3, "b"))).declare(
        node(
            transformation_sql="SELECT v, count(*) AS n FROM source GROUP BY v",
            write={"keys": ["v"]},
        )
    )
    quick.run()
    quick.delta().delete("id IN (1, 3)")
    assert numbers(quick.run()) == (0, 1, 1, 0, 0)
    assert quick.living("t", "v", "n") == [("a", 1)]
    assert quick.coverage()["followed"] == "keys"


def test_a_group_without_a_name_is_found_deleted_by_a_feed_and_only_by_that(quick):
    """A feed says what is gone, a NULL in its key or not; what is missing is never found by one."""
    group = node(
        transformation_sql="SELECT v, count(*) AS n FROM source GROUP BY v", write={"keys": ["v"]}
    )
    quick.write("src", rows((1, "a"), (2, None), (3, None))).declare(group)
    quick.run()
    quick.delta().delete("id = 2")
    assert quick.run().warnings == []
    quick.delta().delete("id = 3")
    result = quick.run()
    assert (numbers(result), result.warnings) == ((0, 0, 1, 0, 0), [])
    quick.write("src", rows((4, None)), mode="append")
    quick.run()
    shutil.rmtree(quick.place("src"))
    quick.write("src", rows((1, "a"))).write("src", rows((5, "a")), mode="append")
    assert quick.run().warnings[-1] == "1 row has a NULL in its key and is never found deleted"


@pytest.mark.parametrize("mode", ["upsert", pytest.param("scd2", marks=pytest.mark.long_on_spark)])
@pytest.mark.long_on_spark
def test_a_result_whose_only_row_has_no_key_is_not_an_empty_source(lake, mode):
    """A recompute that leaves the group without a name has an answer: the other groups are gone."""
    two = "SELECT o.v, count(*) AS n FROM o LEFT JOIN c ON o.id = c.id WHERE c.id IS NULL GROUP BY o.v"
    sources = [{"connection": "lake", "table": t, "alias": t} for t in ("o", "c")]
    write = {"connection": "lake", "table": "t", "mode": mode, "keys": ["v"]}
    lake.write("o", rows((1, "a"), (2, "a"))).write("c", rows((9, "z")))
    lake.declare({"name": "n", "sources": sources, "transformation_sql": two, "write": write})
    lake.run()
    lake.delta("o").update(updates={"v": "NULL"})
    assert numbers(lake.run()) == (1, 0, 1, 0, 0)
    assert lake.living("t", "v", "n") == [(None, 2)]
    lake.write("o", rows((3, "b")), mode="append")
    lake.run()
    lake.delta("o").delete()
    assert numbers(lake.run()) == (0, 0, 0, 0, 1)  # but no row at all is: its deletes are held


def test_keys_that_other_rows_share(quick):
    """Written by another column than the source's key: one row less is not a delete while another has the key."""
    quick.write("src", rows((1, "a"), (2, "b"))).declare(
        node(
            feed={"primary_keys": ["id"]},
            transformation_sql="SELECT v, id FROM source",
            write={"keys": ["v"]},
        )
    )
    quick.run()
    quick.write("src", rows((2, "a"), (3, "c")), mode="overwrite")
    assert numbers(quick.run()) == (1, 1, 1, 0, 0)
    assert quick.living("t", "v", "id") == [("a", 2), ("c", 3)]


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        (
            "SELECT id, v, row_number() OVER (ORDER BY id) AS n FROM source",
            "it has a window function",
        ),
        (
            "SELECT id, v FROM source WHERE id < (SELECT max(id) FROM source)",
            "it holds a query in a query",
        ),
        (
            "SELECT id, v FROM source UNION ALL SELECT id + 100 AS id, v FROM source",
            "it is a UNION",
        ),
        ("SELECT max(id) AS id, v FROM source GROUP BY v", "the write key `id` is summed up"),
    ],
)
def test_other_sql_is_computed_again_and_says_so(quick, sql, reason):
    quick.write("src", rows((1, "a"), (2, "b"), (3, "c"), (4, "d"))).declare(
        node(transformation_sql=sql)
    )
    quick.run()
    before = quick.living()
    quick.delta().delete("id = 2")
    result = quick.run()
    assert result.warnings[0] == (
        f"everything is computed again: its SQL cannot be followed change by change: {reason}"
    )
    assert 0 < len(quick.living()) < len(before)
    assert result.deleted > 0


def test_another_sql_computes_everything_again(quick):
    quick.write("src", rows((1, "a"), (2, "b"), (3, "c"))).declare(node())
    quick.run()
    quick.declare(node(transformation_sql="SELECT id, upper(v) AS v FROM source WHERE id < 3"))
    result = quick.run()
    assert numbers(result) == (0, 2, 1, 0, 0)
    assert "other ones than before" in result.warnings[0]


@pytest.mark.parametrize(
    ("before", "after", "done"),
    [
        ({}, {"delete_when": "v = 'x'"}, (0, 0, 1, 0, 0)),
        ({"delete_when": "v = 'x'"}, {}, (1, 0, 0, 0, 0)),
        ({"delete_strategy": "ignore"}, {}, (0, 0, 1, 0, 0)),
        (
            {"delete_strategy": "ignore", "delete_when": "v = 'x'"},
            {"delete_strategy": "ignore"},
            (1, 0, 0, 0, 0),
        ),
        ({"update_condition": "source.v <> 'B'"}, {}, (0, 1, 0, 0, 0)),
        ({"sequence_by": "v"}, {}, (0, 1, 0, 0, 0)),  # capitals are lower
        ({"delete_strategy": "soft"}, {"delete_strategy": "hard"}, (0, 0, 0, 0, 0)),
    ],
)
def test_another_way_to_write_is_what_a_full_read_would_do(quick, before, after, done):
    """What decided which rows came and went until now no longer does: rows are looked at that did not move."""
    quick.write("src", rows((1, "a"), (2, "b"), (3, "x"), (4, "d"))).declare(node(write=before))
    quick.run()
    quick.delta().delete("id = 1")
    quick.delta().update(updates={"v": "'B'"}, predicate="id = 2")
    quick.run()
    assert numbers(quick.declare(node(write=after)).run()) == done
    assert quick.run().status == "unchanged"


def test_other_deduplication_columns_choose_again(quick):
    write = {"keys": ["id", "v"]}
    quick.write("src", rows((1, "a"), (1, "b"), (2, "b"))).declare(
        node(feed={"deduplication_columns": ["id", "v"]}, write=write)
    )
    quick.run()
    result = quick.declare(node(feed={"deduplication_columns": ["id"]}, write=write)).run()
    assert result.deleted == 1
    assert quick.living() == [(1, "b"), (2, "b")]


CLOCKS = [{"delete_when": "v < current_timestamp()"}, {"update_condition": "source.v < now()"}]


@pytest.mark.parametrize("write", CLOCKS, ids=lambda w: next(iter(w)))
def test_a_clock_that_decides_what_is_written_is_asked_at_each_run(quick, write):
    (one,) = quick.declare(node(write=write)).project.config.config.nodes
    assert (repeatable(one), clockwork(one)) == (False, True)
    (one,) = quick.declare(node(write={"delete_when": "v < 'x'"})).project.config.config.nodes
    assert (repeatable(one), clockwork(one)) == (True, False)


@pytest.mark.spark
@pytest.mark.long_on_spark
def test_what_expires_is_deleted_while_its_source_stands_still(tmp_path, spark_platform):
    """In process there is no clock in SQL."""
    lake, soon = Lake(tmp_path, spark_platform), datetime.now(UTC) + timedelta(seconds=20)
    until = pa.array([soon, datetime(2100, 1, 1, tzinfo=UTC)], pa.timestamp("us", tz="UTC"))
    lake.write("src", pa.table({"id": pa.array([1, 2], pa.int64()), "until": until}))
    write = {"delete_when": "until < current_timestamp()"}
    full = {**node("f", target="f", write=write), "read": {"connection": "lake", "table": "src"}}
    lake.declare(node(write=write), full).run()
    time.sleep(max(0.0, (soon - datetime.now(UTC)).total_seconds()))
    lake.run()
    assert lake.living("t", "id") == lake.living("f", "id") == [(2,)]


# --- rows that know their order ----------------------------------------------------------------------------


def sequenced(*triples):
    names = ("id", "v", "seq")
    schema = pa.schema([*SCHEMA, ("seq", pa.int64())])
    return pa.Table.from_pylist([dict(zip(names, t, strict=True)) for t in triples], schema=schema)


BY_SEQUENCE = {"sequence_by": "seq"}
THREE = ("id", "v", "seq")


@pytest.mark.long_on_spark
def test_what_the_source_no_longer_has_is_deleted_whatever_its_sequence(lake):
    """Only a row can be older than another: that a key is gone, or back, is so at the version that was read."""
    lake.write("src", sequenced((1, "a", 1), (2, "b", 2), (3, "c", None))).declare(
        node(write=BY_SEQUENCE)
    )
    lake.run()
    lake.delta().delete("id <> 2")
    lake.write("src", sequenced((2, "old", 1)), mode="overwrite")
    assert numbers(lake.run()) == (0, 0, 2, 0, 0)
    assert lake.living("t", *THREE) == [(2, "b", 2)]
    kept = {r["id"]: tuple(r[n] for n in THREE[1:]) for r in read_table(lake.place("t")).rows}
    assert kept == {1: ("a", 1), 2: ("b", 2), 3: ("c", None)}  # what they were stays to be seen
    lake.write("src", sequenced((1, "older", 0), (3, "c", None)), mode="append")
    assert numbers(lake.run()) == (
        0,
        0,
        0,
        2,
        0,
    )  # an older row brings its key back, and overwrites nothing
    assert lake.living("t", *THREE) == [(1, "a", 1), (2, "b", 2), (3, "c", None)]


def test_rows_that_announce_their_delete_obey_their_sequence(quick):
    """Beside deletes of the feed, which do not."""
    quick.write("src", sequenced((1, "a", 5), (2, "b", 5), (3, "c", 5), (4, "D", 5)))
    quick.declare(node(write={**BY_SEQUENCE, "delete_when": "v = 'D'"}))
    quick.run()
    quick.write("src", sequenced((1, "D", 4), (2, "D", 6)), mode="overwrite")
    assert numbers(quick.run())[:3] == (0, 0, 2)
    assert quick.living("t", *THREE) == [(1, "a", 5)]
    found = {r["id"]: r["seq"] for r in read_table(quick.place("t")).rows}
    assert found == {1: 5, 2: 6, 3: 5, 4: 5}
    quick.write("src", sequenced((1, "D", 4), (2, "b", 5), (5, "e", 1)), mode="overwrite")
    assert numbers(quick.run()) == (1, 0, 0, 0, 0)


def test_a_key_that_the_table_never_had_leaves_no_trace_when_it_goes(quick):
    quick.write("src", sequenced((1, "a", 1), (2, "b", 1)))
    quick.write("src", sequenced((3, "c", 1)), mode="append")
    quick.declare(node(feed={"from_version": 1}, write=BY_SEQUENCE)).run()
    quick.delta().delete("id = 1")
    assert quick.run().status == "unchanged"
    assert [r["id"] for r in read_table(quick.place("t")).rows] == [3]


def test_held_deletes_of_rows_that_know_their_order_stay_held(quick):
    quick.write("src", sequenced((1, "a", 1), (2, "b", 2))).declare(node(write=BY_SEQUENCE))
    quick.run()
    quick.delta().delete()
    assert quick.run().held == 2
    assert quick.run().held == 2
    quick.write("src", sequenced((2, "b", 2)), mode="append")
    assert quick.run().held == 1
    (run_id,) = {h.run_id for h in quick.project.holds()["n"]}
    done = quick.project.approve(run_id, platform=quick.platform, check=True).nodes[0]
    assert numbers(done) == (0, 0, 1, 0, 0)
    assert quick.living("t", *THREE) == [(2, "b", 2)]


def test_a_join_of_feeds_by_sequence_loses_what_its_query_no_longer_gives(quick):
    sql = "SELECT o.id, o.v, c.seq FROM o JOIN c ON o.v = c.v"
    sources = [
        {"connection": "lake", "table": t, "alias": t, "cdc_strategy": "cdf"} for t in ("o", "c")
    ]
    write = {"connection": "lake", "table": "t", "mode": "upsert", "keys": ["id"], **BY_SEQUENCE}
    quick.write("o", rows((1, "a"), (2, "b"), (3, "c"), (4, "c"))).write(
        "c", sequenced((1, "a", 7), (2, "b", 8), (3, "c", 9))
    )
    quick.declare({"name": "n", "sources": sources, "transformation_sql": sql, "write": write})
    quick.run()
    quick.delta("o").delete("id IN (1, 4)")
    quick.delta("c").delete("v = 'b'")
    assert numbers(quick.run())[:3] == (0, 0, 3)
    assert quick.living("t", *THREE) == [(3, "c", 9)]
    assert quick.coverage()["followed"] == "keys"


@pytest.mark.parametrize("delete_when", [None, "v = 'D'"])
def test_a_history_with_a_sequence_ends_what_the_source_no_longer_has(quick, delete_when):
    schema = pa.schema([*SCHEMA, ("seq", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])

    def dated(*triples):
        values = (
            {"id": i, "v": v, "seq": s, "at": datetime(2024, 6, s, tzinfo=UTC)}
            for i, v, s in triples
        )
        return pa.Table.from_pylist(list(values), schema=schema)

    more = {"delete_when": delete_when} if delete_when else {}
    quick.write("src", dated((1, "a", 3), (2, "b", 3), (3, "c", 3))).declare(
        node(write={"mode": "scd2", "effective_at": "at", **BY_SEQUENCE, **more})
    )
    quick.run()
    quick.write("src", dated((2, "B", 2), (3, "D", 4)), mode="overwrite")
    quick.run()
    assert quick.living() == [(2, "b"), *([] if delete_when else [(3, "D")])]
    assert quick.run().status == "unchanged"


# --- several sources ---------------------------------------------------------------------------------------


def star(**strategies):
    return {
        "name": "n",
        "sources": [
            {"connection": "lake", "table": t, "alias": t, "cdc_strategy": strategies[t]}
            for t in ("o", "c")
        ],
        "transformation_sql": "SELECT o.id, o.v, c.v AS name FROM o LEFT JOIN c ON o.v = c.v",
        "write": {"connection": "lake", "table": "t", "mode": "upsert", "keys": ["id"]},
    }


@pytest.mark.long_on_spark
def test_the_other_side_is_a_snapshot_even_when_it_is_quiet(lake):
    """X-68: a source without changes is joined whole."""
    lake.write("o", rows((1, "a"), (2, "b"))).write("c", rows((1, "a"))).declare(
        star(o="cdf", c="cdf")
    )
    lake.run()
    lake.write("o", rows((3, "a")), mode="append")
    assert numbers(lake.run()) == (1, 0, 0, 0, 0)
    lake.delta("c").update(updates={"v": "'b'"}, predicate="id = 1")
    assert numbers(lake.run()) == (0, 3, 0, 0, 0)
    assert lake.living("t", "id", "name") == [(1, None), (2, "b"), (3, None)]
    assert lake.coverage()["followed"] == "keys"


@pytest.mark.long_on_spark
def test_sources_read_in_full_delete_what_their_query_no_longer_gives(lake):
    """The table is what the query makes of its sources, also when none of them is followed by its feed."""
    lake.write("o", rows((1, "a"), (2, "b"), (3, "c"))).write("c", rows((1, "a"))).declare(
        star(o="full", c="full")
    )
    lake.run()
    lake.delta("o").delete("id = 2")
    result = lake.run()
    assert (numbers(result), result.warnings) == ((0, 0, 1, 0, 0), [])
    assert lake.living("t", "id", "name") == [(1, "a"), (3, None)]
    assert lake.run().status == "unchanged"


def test_a_table_that_holds_only_its_last_read_says_nothing_of_what_it_lacks(quick):
    read = {"connection": "erp", "table": "o", "incremental": {"mode": "stateful", "column": "id"}}
    bronze = {
        "name": "b",
        "read": read,
        "write": {"connection": "lake", "table": "o", "mode": "overwrite"},
    }
    quick.erp("CREATE TABLE o (id INTEGER, v TEXT)", "INSERT INTO o VALUES (1, 'a'), (2, 'b')")
    quick.write("c", rows((1, "a")))
    erp = {"type": "sql", "url": "sqlite:///erp.db"}
    quick.declare(bronze, star(o="full", c="full"), connections={"erp": erp})
    quick.run()
    quick.erp("INSERT INTO o VALUES (3, 'c')")
    quick.run()
    assert quick.living("t", "id") == [(1,), (2,), (3,)]


def test_a_full_source_makes_everything_run_and_a_lookup_nothing(quick):
    """X-69."""
    quick.write("o", rows((1, "a"), (2, "b"))).write("c", rows((1, "a"))).declare(
        star(o="cdf", c="full")
    )
    quick.run()
    quick.write("c", rows((2, "b")), mode="append")
    result = quick.run()
    assert numbers(result) == (0, 1, 0, 0, 0)
    assert result.warnings == [
        "everything is computed again: lake.c, which is read in full, changed"
    ]
    quick.declare(star(o="cdf", c="lookup"))
    quick.run()
    quick.write("c", rows((3, "z")), mode="overwrite")
    assert (quick.run().status, quick.run().rows_read) == ("unchanged", 0)
    quick.write("o", rows((3, "z")), mode="append")
    assert numbers(quick.run()) == (1, 0, 0, 0, 0)
    quick.delta("o").update(updates={"v": "'a'"}, predicate="id = 1")
    assert quick.living("t", "id", "name") == [
        (1, "a"),
        (2, "b"),
        (3, "z"),
    ]  # as they were when they were computed


def test_a_source_that_the_sql_does_not_use_does_not_matter(quick):
    sources = [
        {"connection": "lake", "table": t, "alias": t, "cdc_strategy": "cdf"} for t in ("a", "b")
    ]
    write = {"connection": "lake", "table": "t", "mode": "upsert", "keys": ["id"]}
    quick.write("a", rows((1, "a"))).write("b", rows((1, "b")))
    quick.declare(
        {
            "name": "n",
            "sources": sources,
            "transformation_sql": "SELECT a.id, a.v FROM a",
            "write": write,
        }
    )
    quick.run()
    quick.write("b", rows((2, "b")), mode="append")
    assert (quick.run().status, quick.coverage()["followed"]) == ("unchanged", "quiet")
    assert quick.coverage()["sources"]["lake.b"][1] == 1
    quick.delta("b").delete()
    quick.write("a", rows((2, "c")), mode="append")
    assert numbers(quick.run()) == (1, 0, 0, 0, 0)
    assert quick.living() == [(1, "a"), (2, "c")]


def test_append_joins_what_came_with_a_lookup(quick):
    facts = {
        **star(o="cdf", c="lookup"),
        "write": {"connection": "lake", "table": "t", "mode": "append"},
    }
    quick.write("o", rows((1, "a"))).write("c", rows((1, "a"))).declare(facts)
    quick.run()
    quick.write("o", rows((2, "a")), mode="append")
    assert quick.run().inserted == 1
    assert quick.living("t", "id", "name") == [(1, "a"), (2, "a")]


# --- what is advised ---------------------------------------------------------------------------------------


def test_the_feed_is_recommended_for_large_tables_that_are_read_in_full(quick, lines):
    from strandline.report.doctor import examine

    many = pa.table({"id": pa.array(range(1_000_001), pa.int64())})
    quick.write("src", many)
    full = {**node(), "read": {"connection": "lake", "table": "src"}}
    quick.declare(full).run()
    advice = "lake.src is read in full (1,000,001 rows"
    assert any(advice in line for line in lines())
    assert next(
        c.found for c in examine(quick.project.config, "pandas") if c.name == "node n"
    ).startswith(advice)
    quick.declare(node())
    assert not [c for c in examine(quick.project.config, "pandas") if c.name == "node n"]


# --- what is refused ---------------------------------------------------------------------------------------


def refused(quick, *nodes, **more):
    with pytest.raises(ConfigError) as caught:
        quick.declare(*nodes, **more)
    return [(p.message, p.line) for p in caught.value.problems]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"read": {"connection": "files", "path": "x.csv", "incremental": {"mode": "cdf"}}},
            "only a lake table has",
        ),
        (
            {"write": {"connection": "lake", "table": "t", "mode": "overwrite"}},
            "mode: overwrite replaces the table",
        ),
        (
            {"transform": limits(mode="snapshot_diff")},
            "mode: snapshot_diff looks for what is missing from the read",
        ),
        ({"transform": limits(confirm_runs=2)}, "`confirm_runs` does nothing with mode: feed"),
        (
            {"transform": limits(on_threshold_breach="skip")},
            "`on_threshold_breach: skip` would lose them",
        ),
        (
            {"read": {"connection": "lake", "table": "src"}, "transform": limits()},
            "this node reads none",
        ),
        (
            {
                "read": {
                    "connection": "lake",
                    "table": "src",
                    "incremental": {"mode": "cdf", "column": "v"},
                }
            },
            "`column` does nothing with mode: cdf",
        ),
        (
            {
                "read": {
                    "connection": "lake",
                    "table": "src",
                    "incremental": {"mode": "stateful", "column": "v", "load_id": "x"},
                }
            },
            "`load_id` is for a change feed",
        ),
        (
            {
                "write": {
                    "connection": "lake",
                    "table": "t",
                    "mode": "append",
                    "delete_strategy": "soft",
                }
            },
            "`delete_strategy: soft` cannot be done",
        ),
    ],
)
def test_combinations_that_cannot_be_right(quick, change, message):
    found = refused(quick, {**node(), **change})
    assert any(message in text and line for text, line in found), found


@pytest.mark.parametrize(
    ("node_", "message"),
    [
        (star(o="lookup", c="lookup"), "every source is a `lookup`"),
        (
            {
                **star(o="cdf", c="full"),
                "write": {"connection": "lake", "table": "t", "mode": "append"},
            },
            "this source may change them too",
        ),
    ],
)
def test_sources_that_cannot_be_right(quick, node_, message):
    found = refused(quick, node_)
    assert any(message in text and line for text, line in found), found


def test_a_history_in_business_time_follows_a_feed(lake):
    """Deletes of the feed end a version at batch time; what comes back later begins one."""
    when = pa.schema([*SCHEMA, ("at", pa.timestamp("us", tz="UTC"))])

    def day(number):
        return datetime(2024, 6, number, tzinfo=UTC)

    def dated(*triples):
        names = ("id", "v", "at")
        return pa.Table.from_pylist(
            [dict(zip(names, t, strict=True)) for t in triples], schema=when
        )

    lake.write("src", dated((1, "a", day(1)), (2, "b", day(1)), (3, "c", day(1))))
    lake.declare(node(write={"mode": "scd2", "effective_at": "at"}))
    assert lake.run().inserted == 3
    lake.delta().delete("id = 1")
    lake.write("src", dated((2, "B", day(3))), mode="append")
    lake.delta().delete("v = 'b'")
    done = lake.run()
    assert (done.deleted, done.updated, done.inserted) == (1, 1, 0)
    assert lake.living() == [(2, "B"), (3, "c")]
    ends = {
        (r["id"], r["v"]): (r["_valid_to"], r["_is_deleted"])
        for r in read_table(lake.place("t")).rows
    }
    assert ends[2, "b"] == (day(3), False)
    assert ends[1, "a"][1] is True
    assert ends[1, "a"][0] > day(3)  # found now
    assert lake.run().status == "unchanged"
    lake.write("src", dated((1, "again", datetime.now(UTC) + timedelta(days=1))), mode="append")
    assert lake.run().reopened == 1
    assert lake.living() == [(1, "again"), (2, "B"), (3, "c")]
