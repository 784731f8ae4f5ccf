"""The loaders of hand-written PySpark jobs, on real Delta tables: every change once, deletes included."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pytest

from strandline.control import loads
from strandline.control.store import DeltaStore
from strandline.errors import (
    DuplicateKeys,
    EmptySource,
    Fenced,
    ReadError,
    RevertRefused,
    TableError,
    TransformError,
    UnknownColumn,
    UsageError,
)
from strandline.loader import (
    DeltaLoaderFactory,
    DeltaLoadOption,
    DeltaLoadOptions,
    DeltaManager,
    ETLControlManager,
    batch_complete,
    batch_fail,
    batch_start,
    get_latest_version,
    get_watermark,
    load_cdf,
    load_full_snapshot,
)
from strandline.testing.projects import execute, make_project

pytestmark = pytest.mark.spark
FEED_COLUMNS = ["_change_type", "_commit_version", "_commit_timestamp"]


@dataclass(frozen=True)
class Named:
    """A table as some libraries hand it around."""

    identifier: str


class Job:
    """A source, a target and a control folder of a hand-written job, in one Spark session."""

    def __init__(self, folder, spark):
        self.folder, self.spark = folder, spark
        self.source, self.target = str(folder / "source"), str(folder / "target")

    def sql(self, statement):
        self.spark.sql(
            statement.replace("SOURCE", f"delta.`{self.source}`").replace(
                "TARGET", f"delta.`{self.target}`"
            )
        )

    def create(self, *rows, feed=True, place="SOURCE"):
        """CTAS: its rows are in version 0 (X-45)."""
        values = ", ".join(f"({i}, '{v}')" for i, v in rows)
        self.sql(
            f"CREATE TABLE {place} USING delta TBLPROPERTIES ('delta.enableChangeDataFeed' = '{str(feed).lower()}') "
            f"AS SELECT * FROM VALUES {values} AS t(id, v)"
        )

    def feed(self, *, on):
        self.sql(
            f"ALTER TABLE SOURCE SET TBLPROPERTIES ('delta.enableChangeDataFeed' = '{str(on).lower()}')"
        )

    def loader(self, name="nightly", **options):
        given = {"deduplication_columns": ["id"], **options}
        return DeltaLoaderFactory.create_loader(
            table_identifier=Named(self.source), options=DeltaLoadOptions("CDF", name, given)
        )

    def once(self, loader=None):
        """Seed 002's job: read, merge, consume."""
        loader = loader or self.loader()
        data = loader.get_data()
        delivered = changes(data)
        DeltaManager().merge_dataframe(
            table=Named(self.target), data_frame=data, key_columns=["id"]
        )
        loader.consume_data()
        return delivered

    def rows(self, place=None):
        found = [
            tuple(r) for r in self.spark.read.format("delta").load(place or self.target).collect()
        ]
        return sorted(found, key=lambda row: [(v is None, v) for v in row])

    def records(self, name="nightly"):
        return DeltaStore(self.folder / "control").loads(self.source, name)


def changes(frame):
    return sorted((r["_change_type"], r["id"], r["v"]) for r in frame.collect())


@pytest.fixture
def job(tmp_path, spark_platform, monkeypatch):
    monkeypatch.setenv("STRANDLINE_ETL_SCHEMA", str(tmp_path / "control"))
    return Job(tmp_path, spark_platform.session)


def test_the_job_of_seed_002_with_its_deletes(job):
    job.create((1, "a"), (2, "b"), (3, "c"))
    assert job.once() == [("insert", 1, "a"), ("insert", 2, "b"), ("insert", 3, "c")]
    job.sql("UPDATE SOURCE SET v = 'B' WHERE id = 2")
    job.sql("DELETE FROM SOURCE WHERE id = 1")
    job.sql("INSERT INTO SOURCE VALUES (4, 'd')")
    job.sql("UPDATE SOURCE SET id = 33 WHERE id = 3")  # the old key goes, the new one comes (X-51)
    assert job.once() == [
        ("delete", 1, "a"),
        ("delete", 3, "c"),
        ("insert", 4, "d"),
        ("insert", 33, "c"),
        ("update", 2, "B"),
    ]
    assert job.rows() == [(2, "B"), (4, "d"), (33, "c")] == job.rows(job.source)
    assert job.once() == []  # nothing new is a success (X-58)
    job.sql(
        "INSERT OVERWRITE SOURCE VALUES (2, 'B'), (5, 'e')"
    )  # delete and insert of key 2 in one version (X-50)
    assert job.once() == [("delete", 4, "d"), ("delete", 33, "c"), ("insert", 5, "e")]
    assert job.rows() == [(2, "B"), (5, "e")]


@pytest.mark.long_on_spark
def test_what_was_read_is_recorded_with_its_versions(job):
    job.create((1, "a"))
    job.once()
    job.sql("INSERT INTO SOURCE VALUES (2, 'b')")
    loader = job.loader()
    loader.get_data()
    rows = sorted(job.records(), key=lambda r: r.registered_at)
    told = [
        (r.start_commit_version, r.end_commit_version, r.is_processed, r.is_stale) for r in rows
    ]
    assert told == [(None, 0, True, False), (0, 1, False, False)]
    loader.consume_data()
    assert loads.position(job.records()).end_commit_version == 1


@pytest.mark.long_on_spark
def test_an_interrupted_load_goes_stale_and_is_read_again(job):
    job.create((1, "a"))
    first, second = job.loader(), job.loader()
    first.get_data()
    assert changes(second.get_data()) == [("insert", 1, "a")]
    with pytest.raises(Fenced, match="was read again meanwhile"):
        first.consume_data()  # not the other one's load (X-55)
    second.consume_data()
    assert [r.is_stale for r in sorted(job.records(), key=lambda r: r.registered_at)] == [
        True,
        False,
    ]


@pytest.mark.long_on_spark
def test_two_jobs_read_at_their_own_pace(job):
    job.create((1, "a"))
    job.once()
    job.sql("INSERT INTO SOURCE VALUES (2, 'b')")
    assert changes(job.loader("weekly").get_data()) == [("insert", 1, "a"), ("insert", 2, "b")]
    assert changes(job.loader().get_data()) == [("insert", 2, "b")]


def test_the_frame_is_fixed_when_it_is_read(job):
    job.create((1, "a"))
    loader = job.loader()
    data = loader.get_data()
    job.sql("INSERT INTO SOURCE VALUES (2, 'b')")
    assert changes(data) == [("insert", 1, "a")]  # X-54
    loader.consume_data()
    assert changes(job.loader().get_data()) == [("insert", 2, "b")]


def test_a_job_joins_what_it_was_given(job):
    """Rows of a later load: Spark has no plan for a join over a union of rows that hold an EXISTS."""
    job.create((1, "a"), (2, "b"), (3, "c"))
    loader = job.loader()
    loader.get_data()
    loader.consume_data()
    job.sql("UPDATE SOURCE SET v = 'B' WHERE id = 2")
    job.sql("DELETE FROM SOURCE WHERE id = 1")
    names = job.spark.createDataFrame([(1, "one"), (2, "two")], "id int, name string")
    joined = loader.get_data().join(names, "id")
    assert sorted((r["_change_type"], r["name"]) for r in joined.collect()) == [
        ("delete", "one"),
        ("update", "two"),
    ]
    # each row with the commit that changed it, as the table's history has it
    data = load_cdf(job.source, 1, ["id"])
    history = job.spark.sql(f"DESCRIBE HISTORY delta.`{job.source}`").collect()
    at = {r["version"]: r["timestamp"] for r in history}
    told = [
        (r["id"], r["_commit_version"], r["_commit_timestamp"])
        for r in data.join(names, "id").collect()
    ]
    assert sorted(told) == [(1, 2, at[2]), (2, 1, at[1])]
    assert (
        load_cdf(job.source, 3).columns == data.columns == [*names.columns[:1], "v", *FEED_COLUMNS]
    )


def test_the_session_keeps_nothing_of_ours(job):
    job.create((1, "a"))
    job.once()
    assert [
        t.name for t in job.spark.catalog.listTables() if t.isTemporary and "strandline" in t.name
    ] == []


@pytest.mark.parametrize(
    "accident",
    [
        "restored",
        *(
            pytest.param(a, marks=pytest.mark.long_on_spark)
            for a in ("late", "off and on", "vacuumed")
        ),
    ],
)
def test_where_the_feed_has_a_gap_snapshots_are_compared(job, caplog, accident):
    job.create((1, "a"), (2, "b"), feed=accident != "late")
    job.once()
    if accident == "off and on":
        job.feed(on=False)
    job.sql("DELETE FROM SOURCE WHERE id = 1")
    job.sql("INSERT INTO SOURCE VALUES (3, 'c')")
    if accident in ("late", "off and on"):
        job.feed(on=True)
    if accident == "restored":
        job.sql("RESTORE TABLE SOURCE TO VERSION AS OF 1")
    if accident == "vacuumed":
        for file in (job.folder / "source" / "_change_data").glob("*.parquet"):
            file.unlink()
    expected = (
        [("delete", 1, "a")] if accident == "restored" else [("delete", 1, "a"), ("insert", 3, "c")]
    )
    assert job.once() == expected
    assert job.rows() == job.rows(job.source)
    if accident != "vacuumed":  # deletes by vectors need no files of changes
        assert "its snapshots are compared instead" in caplog.text


@pytest.mark.long_on_spark
def test_a_table_made_anew_is_delivered_whole_and_the_target_follows(job, caplog):
    job.create((1, "a"), (2, "b"))
    job.loader().write_data(table=job.target, key_columns=["id"])
    job.spark.sql(f"DROP TABLE IF EXISTS delta.`{job.source}`")
    shutil.rmtree(job.source)
    job.create((2, "B"), (3, "c"))
    job.loader().write_data(table=job.target, key_columns=["id"])
    assert "nobody can tell what changed after version 0" in caplog.text
    assert job.rows() == [(2, "B"), (3, "c")]
    shutil.rmtree(job.source)
    job.sql("CREATE TABLE SOURCE (id INT, v STRING) USING delta")
    with pytest.raises(EmptySource, match="came back empty"):
        job.loader().write_data(table=job.target, key_columns=["id"])
    assert job.rows() == [(2, "B"), (3, "c")]


@pytest.mark.long_on_spark
def test_a_replaced_table_is_compared_with_what_it_was(job):
    job.create((1, "a"), (2, "b"))
    job.once()
    job.sql(
        "CREATE OR REPLACE TABLE SOURCE USING delta AS SELECT * FROM VALUES (2, 'B'), (3, 'c') AS t(id, v)"
    )
    assert job.once() == [("delete", 1, "a"), ("insert", 3, "c"), ("update", 2, "B")]
    assert job.rows() == job.rows(job.source)
    job.sql("CREATE OR REPLACE TABLE SOURCE USING delta AS SELECT * FROM VALUES (2, 5) AS t(id, v)")
    with pytest.raises(ReadError, match="what was deleted since the last load is unknown"):
        job.loader().get_data()  # rows of other types cannot be compared


@pytest.mark.long_on_spark
def test_deletes_that_nobody_can_tell_are_not_lost(job):
    job.create((1, "a"), (2, "b"))
    job.create((1, "a"), (2, "b"), place="TARGET")
    loader = job.loader()
    loader.get_data()
    loader.consume_data()
    older = list((job.folder / "source").glob("*.parquet"))
    job.sql("INSERT OVERWRITE SOURCE VALUES (2, 'B'), (3, 'c')")
    for file in older:  # as VACUUM does after a week
        file.unlink()
    loader = job.loader()
    for read in (loader.get_data, lambda: loader.write_data(print, tables=[job.target])):
        with pytest.raises(
            ReadError, match="what was deleted since the last load is unknown"
        ) as error:
            read()
    assert "reset()" in error.value.hint
    assert error.value.__notes__ == [f"→ {error.value.hint}"]  # a traceback shows it
    with pytest.raises(UsageError, match="nothing was read yet"):
        loader.consume_data()
    with pytest.raises(
        ReadError, match=r"what changed after version 0 can no longer be read"
    ) as error:
        load_cdf(job.source, 1, ["id"])
    assert "whole=True" in error.value.hint
    loader.reset()  # the way out that the error tells
    data = loader.get_data()
    merge = partial(DeltaManager().merge_dataframe, job.target, key_columns=["id"], whole=True)
    merge(data_frame=data)
    assert job.rows() == [(2, "B"), (3, "c")]
    assert merge(data_frame=data) is None
    with pytest.raises(EmptySource, match="came back empty"):
        merge(data_frame=data.limit(0))


@pytest.mark.long_on_spark
def test_reset_starts_over(job):
    job.create((1, "a"))
    job.once()
    job.loader().reset()
    assert changes(job.loader().get_data()) == [("insert", 1, "a")]


def test_verify_says_what_is_in_the_way(job, caplog):
    with pytest.raises(ReadError, match="there is no Delta table"):
        job.loader().verify()
    job.create((1, "a"), feed=False)
    with pytest.raises(UnknownColumn, match="there is no column `nr`"):
        job.loader(deduplication_columns=["nr"]).verify()
    job.loader().verify()
    assert "keeps no change feed" in caplog.text
    with pytest.raises(UsageError, match="nothing was read yet"):
        job.loader().consume_data()
    with pytest.raises(UsageError, match="'TIMESTAMP' is not known"):
        DeltaLoadOption("TIMESTAMP", "nightly")


@pytest.mark.long_on_spark
def test_a_range_of_versions(job):
    job.create((1, "a"))
    for i in (2, 3, 4):
        job.sql(f"INSERT INTO SOURCE VALUES ({i}, 'x')")
    data = job.loader(from_commit_version=2, to_commit_version=2).get_data()
    assert changes(data) == [("insert", 3, "x")]


# --- writing -----------------------------------------------------------------------------------------------


def test_merge_writes_only_what_differs_and_adds_columns(job):
    job.create((1, "a"), (2, None), place="TARGET")
    manager = DeltaManager()
    again = job.spark.createDataFrame([(1, "a"), (2, None)], "id int, v string")
    manager.merge_dataframe(job.target, again, ["id"])
    version = get_latest_version(job.target)
    assert manager.merge_dataframe(job.target, again, ["id"]) is None
    assert get_latest_version(job.target) == version  # nothing differs, so nothing is committed
    more = job.spark.createDataFrame([(1, "a", 7), (None, "n", 8)], "id int, v string, n int")
    manager.merge_dataframe(job.target, more, ["ID"])
    manager.merge_dataframe(job.target, more, ["id"])  # a NULL is a key like any other
    assert job.rows() == [(1, "a", 7), (2, None, None), (None, "n", 8)]
    assert manager.merge_dataframe(job.target, more.limit(0), ["id"]) is None
    assert get_latest_version(job.target) > version


@pytest.mark.long_on_spark
def test_merge_refuses_what_it_cannot_do_rightly(job):
    twice = job.spark.createDataFrame([(1, "a"), (1, "b")], "id int, v string")
    with pytest.raises(DuplicateKeys, match="id=1"):
        DeltaManager().merge_dataframe(job.target, twice, ["id"])
    with pytest.raises(UnknownColumn):
        DeltaManager().merge_dataframe(job.target, twice, ["nr"])
    with pytest.raises(TableError, match="needs key_columns"):
        DeltaManager().merge_dataframe(job.target, twice, [])
    job.create((1, "a"), place="TARGET")
    wrong = job.spark.createDataFrame([(1, 2)], "id int, v int")
    with pytest.raises(
        TableError, match="column `v` is string in the table, but the rows bring int"
    ):
        DeltaManager().merge_dataframe(job.target, wrong, ["id"])


def test_errors_speak_to_a_job_in_python(job):
    job.create((1, "a"), place="TARGET")
    rows = job.spark.createDataFrame([(1, "a"), (1, "b")], "id int, v string")
    merge = partial(DeltaManager().merge_dataframe, job.target, key_columns=["id"])
    told = {
        DuplicateKeys: rows,
        TableError: rows.limit(1).selectExpr("id", "2 AS v"),
        TransformError: rows.limit(1).selectExpr("id", "raise_error('the rate is missing') AS v"),
    }
    for kind, frame in told.items():
        with pytest.raises(kind) as error:
            merge(data_frame=frame)
        assert not any(
            word in error.value.hint for word in ("step", "operation", "spark.log", "order_by")
        )
    assert "the rate is missing" in str(error.value)
    job.spark.sql(f"CREATE TEMPORARY VIEW living AS SELECT * FROM delta.`{job.target}`")
    try:
        with pytest.raises(ReadError, match="`living` is a view") as error:
            get_latest_version("living")
        assert "give the Delta table that it selects from" in error.value.hint
    finally:
        job.spark.catalog.dropTempView("living")
    with pytest.raises(ReadError, match="cannot be read") as error:
        get_latest_version("no-such-name")
    assert "its path with a /" in error.value.hint
    with pytest.raises(UsageError, match="system_columns: deletd"):
        load_full_snapshot(job.target, system_columns={"deletd": "gone"})


@pytest.mark.long_on_spark
def test_a_thread_finds_the_session(job):
    job.create((1, "a"))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(job.once).result() == [("insert", 1, "a")]
    assert job.rows() == [(1, "a")]


@pytest.mark.long_on_spark
def test_write_data_by_a_function(job):
    job.create((1, "a"))
    write = partial(DeltaManager().merge_dataframe, table=job.target, key_columns=["id"])
    job.loader().write_data(write)
    assert job.rows() == [(1, "a")]
    assert loads.position(job.records()) is not None


def failing(job, second, *, meanwhile=lambda: None):
    """A job that writes two tables and dies after the first."""

    def write(data):
        DeltaManager().merge_dataframe(job.target, data, ["id"])
        DeltaManager().merge_dataframe(second, data, ["id"])
        meanwhile()
        raise RuntimeError("the disk is full")

    return lambda: job.loader().write_data(write, tables=[job.target, Named(second)])


def test_several_targets_are_reverted_together(job):
    second = str(job.folder / "second")
    job.create((1, "a"), (2, "b"))
    job.create((1, "x"), (9, "z"), place="TARGET")
    with pytest.raises(RuntimeError, match="the disk is full"):
        failing(job, second)()
    assert job.rows() == [(1, "x"), (9, "z")]
    assert not (job.folder / "second").exists()  # it was not there before
    assert loads.position(job.records()) is None
    assert job.once() == [("insert", 1, "a"), ("insert", 2, "b")]


@pytest.mark.long_on_spark
def test_somebody_elses_commit_is_not_rolled_back(job):
    second = str(job.folder / "second")
    job.create((1, "a"))
    job.create((1, "x"), place="TARGET")
    job.spark.createDataFrame([(1, "y")], "id int, v string").write.format("delta").save(second)
    other = job.spark.newSession()

    def meanwhile():
        other.sql(f"INSERT INTO delta.`{job.target}` VALUES (5, 'theirs')")

    with pytest.raises(RevertRefused, match=r"target: version \d+ was committed by somebody else"):
        failing(job, second, meanwhile=meanwhile)()
    assert (5, "theirs") in job.rows()
    assert job.rows(second) == [(1, "y")]


# --- seed 003 ----------------------------------------------------------------------------------------------


def test_the_loop_of_seed_003(job):
    job.create((1, "a"), (2, "b"))
    source, target = job.source, job.target
    assert get_watermark(target, source) is None
    batch_start(target, source)
    version = get_latest_version(source)
    DeltaManager().merge_dataframe(target, load_full_snapshot(source), ["id"])
    batch_complete(target, source, version, rows_read=2, rows_written=2)
    assert get_watermark(target, source) == 0
    job.sql("DELETE FROM SOURCE WHERE id = 1")
    job.sql("UPDATE SOURCE SET v = 'B'")
    batch_start(target, source)
    assert get_watermark(target, source) == 0  # until it is complete
    data = load_cdf(source, get_watermark(target, source) + 1, deduplicate_keys=["id"])
    assert changes(data) == [("delete", 1, "a"), ("update", 2, "B")]
    batch_fail(target, source, "out of memory")
    assert get_watermark(target, source) == 0
    DeltaManager().merge_dataframe(target, data, ["id"])
    batch_complete(target, source, get_latest_version(source), 2, 2)
    assert job.rows() == [(2, "B")]
    assert (
        changes(load_cdf(source, get_watermark(target, source) + 1)) == []
    )  # start > latest is no error (X-52)


@pytest.mark.long_on_spark
def test_a_batch_keeps_its_number_until_it_is_done(job):
    manager = ETLControlManager()
    first = manager.batch_start("gold.t", "silver.s")
    assert manager.batch_start("gold.t", "silver.s") == first
    manager.batch_complete("gold.t", "silver.s", 3, 10, 10)
    assert manager.batch_start("gold.t", "silver.s") != first
    (row,) = DeltaStore(job.folder / "control").all_control()
    assert (row.batch_status, row.last_processed_version) == ("RUNNING", 3)


def test_a_table_by_its_name_in_the_catalog(job):
    job.spark.sql("CREATE SCHEMA IF NOT EXISTS loads")
    try:
        job.spark.sql(
            f"CREATE TABLE loads.customers USING delta LOCATION '{job.source}' AS SELECT 1 AS id, 'a' AS v"
        )
        assert get_latest_version("loads.customers") == 0
        with pytest.raises(ReadError, match=r"there is no table `loads\.nobody`"):
            get_latest_version("loads.nobody")
        DeltaManager().merge_dataframe(
            "loads.gold", load_full_snapshot(Named("loads.customers")), ["id"]
        )
        assert [tuple(r) for r in job.spark.table("loads.gold").collect()] == [(1, "a")]
    finally:
        job.spark.sql("DROP SCHEMA loads CASCADE")


def test_a_history_is_read_as_its_living_rows_or_as_asked(job, pandas_platform, monkeypatch):
    """Key 1 changes, key 2 is deleted and returns, key 3 is deleted."""
    monkeypatch.delenv("STRANDLINE_ETL_SCHEMA")
    erp = {"erp": {"type": "sql", "url": "sqlite:///erp.db"}}
    step = {"mode": "snapshot_diff", "keys": ["id"], "max_delete_percent": None}
    node = {
        "name": "n",
        "read": {"connection": "erp", "table": "s"},
        "transform": {"steps": [{"operation": "detect_deletes", "params": step}]},
        "write": {"connection": "lake", "table": "c", "mode": "scd2", "keys": ["id"]},
    }
    project, place = (
        make_project(job.folder, [node], connections=erp),
        str(job.folder / "lake" / "c"),
    )

    def batch(*values):
        execute(
            job.folder / "erp.db",
            "CREATE TABLE IF NOT EXISTS s (id INTEGER, v TEXT)",
            "DELETE FROM s",
            *values,
        )
        project.run(platform=pandas_platform, check=True)

    def loader(name, *keys, **wanted):
        options = DeltaLoadOptions(
            "CDF", name, {"deduplication_columns": list(keys)}, job.folder / "control", **wanted
        )
        return DeltaLoaderFactory.create_loader(place, options)

    batch("INSERT INTO s VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    loaders = {
        "living": loader("living", "id"),
        "last": loader("last", "id", include_deleted=True),
        "all": loader("all", "id", "_valid_from", versions="all"),
    }
    for one in loaders.values():
        one.get_data()
        one.consume_data()
    batch("INSERT INTO s VALUES (1, 'A')")
    batch("INSERT INTO s VALUES (1, 'A'), (2, 'b')")
    data = {name: one.get_data() for name, one in loaders.items()}
    assert changes(data["living"]) == [("delete", 3, "c"), ("update", 1, "A")]
    assert changes(data["last"]) == [("update", 1, "A"), ("update", 3, "c")]
    versions = [
        ("insert", 1, "A"),
        ("insert", 2, "b"),
        ("update", 1, "a"),
        ("update", 2, "b"),
        ("update", 3, "c"),
    ]
    assert changes(data["all"]) == versions
    assert [c for c in data["last"].columns if c.startswith("_")] == ["_is_deleted", "_change_type"]
    assert sorted(tuple(r) for r in load_full_snapshot(place).collect()) == [(1, "A"), (2, "b")]
    assert load_full_snapshot(place, versions="all").count() == 5
    with pytest.raises(UsageError, match="include_deleted needs the keys"):
        load_cdf(place, 1, include_deleted=True)
    with pytest.raises(UsageError, match="versions='newest' is not known"):
        load_full_snapshot(place, versions="newest")
