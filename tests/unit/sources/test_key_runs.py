"""Keys as runs of consecutive numbers: exact for every set of keys, and used only where they pay."""

from __future__ import annotations

import pytest
import sqlalchemy
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.engine.base import SqlEndpoint, SqlSource
from strandline.engine.sources.sql import plan_read
from strandline.sql import key_runs

KEYS = st.lists(
    st.one_of(st.none(), st.integers(-70, 70), st.integers(-(2**40), 2**40)), max_size=60
)


def source(url, table="t"):
    endpoint = SqlEndpoint("erp", sqlalchemy.make_url(url), lambda: None)
    return SqlSource(endpoint, table=table, columns=("id",), runs=True)


def filled(url, keys, declared="BIGINT"):
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS t")
        connection.exec_driver_sql(f"CREATE TABLE t (id {declared})")
        if keys:
            connection.execute(
                sqlalchemy.text("INSERT INTO t VALUES (:k)"), [{"k": k} for k in keys]
            )
    return engine


def unfolded(engine, url):
    read = plan_read(source(url), partitioned=False)
    assert [c.name for c in read.columns] == [key_runs.LOW, key_runs.HIGH]
    with engine.connect() as connection:
        ends = [(int(low), int(high)) for low, high in connection.exec_driver_sql(read.statement)]
    return [k for low, high in ends for k in range(low, high + 1)]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    return (
        f"sqlite:///{tmp_path}/shop.db"
        if request.param == "sqlite"
        else request.getfixturevalue("postgres_url")
    )


@settings(max_examples=40)
@given(keys=KEYS)
def test_runs_hold_exactly_the_keys(url, keys):
    engine = filled(url, keys)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(key_runs, "pays", lambda *_: True)
        patched.setattr(key_runs, "_PIECE", 16)
        assert sorted(unfolded(engine, url)) == sorted({k for k in keys if k is not None})


@pytest.mark.parametrize(
    ("keys", "declared", "paid"),
    [
        (range(10_000), "BIGINT", True),
        (range(-20_000, 0), "BIGINT", True),
        ([k for k in range(20_000) if k % 100], "BIGINT", True),
        (range(9_999), "BIGINT", False),  # too few to ask
        (range(0, 40_000, 2), "BIGINT", False),  # a gap after each
        ([*range(20_000), 2**62], "BIGINT", False),
        (range(20_000), "TEXT", False),
    ],
)
def test_they_come_as_runs_only_where_that_pays(url, keys, declared, paid):
    if declared == "TEXT":
        keys = map(str, keys)
    filled(url, list(keys), declared)
    assert (plan_read(source(url), partitioned=False).columns[0].name == key_runs.LOW) == paid


def test_a_text_among_the_numbers_of_sqlite_is_told_as_ever(tmp_path):
    url = f"sqlite:///{tmp_path}/shop.db"
    filled(url, [*range(20_000), "x7"], "INTEGER")
    assert plan_read(source(url), partitioned=False).columns[0].name == "id"
