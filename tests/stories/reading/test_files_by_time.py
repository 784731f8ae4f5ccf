"""Files that arrive one after another and are appended by the time they were written: every row exactly once."""

from __future__ import annotations

import os
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from strandline.failpoints import armed
from strandline.testing.frames import read_table
from strandline.testing.projects import make_project

NOON = datetime(2024, 6, 15, 12, tzinfo=UTC)


class Landing:
    """A folder of CSV files, and the table they are appended to."""

    def __init__(self, folder, platform):
        self.folder, self.platform = folder, platform

    def declare(
        self, *, path="ev/*.csv", lag=None, metadata=True, mode="append", sql=None, **write
    ):
        incremental = {"mode": "stateful", **({"watermark_lag": lag} if lag else {})}
        node = {
            "name": "events",
            "read": {"connection": "files", "path": path, "incremental": incremental},
            "write": {
                "connection": "lake",
                "table": "events",
                "mode": mode,
                "add_metadata": metadata,
                **write,
            },
            **({"transformation_sql": sql} if sql else {}),
        }
        self.project = make_project(self.folder, [node])
        return self

    def arrive(self, name, minute, *rows):
        file = self.folder / "landing" / "ev" / f"{name}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(["sensor,state", *rows, ""]) if rows else "", encoding="utf-8")
        at = (NOON + timedelta(minutes=minute)).timestamp()
        os.utime(file, (at, at))

    def run(self):
        return self.project.run(platform=self.platform, check=True).nodes[0]

    def rows(self):
        return Counter(
            f"{r['sensor']},{r['state']}" for r in read_table(self.folder / "lake" / "events").rows
        )


@pytest.fixture
def landing(tmp_path, pandas_platform):
    return Landing(tmp_path, pandas_platform)


KEPT = [True, False]
"""With the file that each row is from, and without."""


@pytest.mark.parametrize("metadata", KEPT)
@pytest.mark.parametrize(
    "how", [{}, {"lag": "1h"}, {"keys": ["sensor"]}, {"lag": "1h", "keys": ["sensor"]}], ids=str
)
def test_the_rows_of_every_file_come_once(landing, how, metadata):
    """A row of a new file is new, however many files before it brought an equal one."""
    landing.declare(metadata=metadata, **how)
    for number in range(5):
        landing.arrive(number, number, "7,on", "7,on")
        assert landing.run().inserted == 2
        quiet = landing.run()
        assert (quiet.status, quiet.rows_read) == ("unchanged", 0)
    assert landing.rows() == {"7,on": 10}


@pytest.mark.parametrize("columns", ["sensor, state", "DISTINCT sensor, state"])
def test_sql_that_loses_the_file_loses_no_row(landing, columns):
    landing.declare(sql=f"SELECT {columns} FROM source")
    for number in range(4):
        landing.arrive(number, number, "7,on")
        assert landing.run().inserted == 1
    assert landing.run().inserted == 0


@pytest.mark.parametrize("metadata", KEPT)
def test_a_file_of_the_same_instant_that_comes_later_is_read(landing, metadata):
    landing.declare(metadata=metadata)
    for name in ("b", "a", "c"):
        landing.arrive(name, 0, "7,on")
        assert landing.run().inserted == 1
    assert landing.run().inserted == 0


@pytest.mark.parametrize("metadata", KEPT)
def test_a_late_file_is_read_within_the_lag(landing, metadata):
    landing.declare(metadata=metadata, lag="10m")
    landing.arrive("a", 30, "7,on")
    landing.run()
    landing.arrive("late", 25, "7,on")
    landing.arrive("too late", 5, "7,on")
    assert landing.run().inserted == 1
    assert landing.run().inserted == 0
    landing.arrive("b", 60, "7,on")
    assert landing.run().inserted == 1
    assert landing.rows() == {"7,on": 3}


@pytest.mark.parametrize("keys", [[], ["sensor"]])
@pytest.mark.parametrize("metadata", KEPT)
def test_a_file_that_is_written_again_brings_its_new_rows(landing, keys, metadata):
    landing.declare(metadata=metadata, **({"keys": keys} if keys else {}))
    landing.arrive("a", 0, "1,on")
    landing.arrive("b", 0, "2,on")
    assert landing.run().inserted == 2
    landing.arrive("b", 5, "2,on", "3,on")
    assert landing.run().inserted == 1
    landing.arrive("b", 5, "2,on", "3,on", "4,on")  # in the same instant
    assert landing.run().inserted == 1
    assert landing.run().rows_read == 0
    assert landing.rows() == {f"{n},on": 1 for n in (1, 2, 3, 4)}


def test_rows_of_a_file_written_again_are_compared_with_that_file_only(landing):
    landing.declare()
    landing.arrive("a", 0, "7,on")
    landing.arrive("b", 0, "7,off")
    landing.run()
    landing.arrive("b", 5, "7,off", "7,on")  # a has such a row, b had none
    landing.arrive("c", 5, "7,on", "7,off")
    assert landing.run().inserted == 3
    landing.arrive("a", 90, "7,on", "8,on")  # long after the mark went past what it was
    assert landing.run().inserted == 1
    assert landing.rows() == {"7,on": 3, "7,off": 2, "8,on": 1}


def test_without_the_file_a_row_is_compared_with_the_table_and_that_is_said(landing):
    landing.declare(metadata=False)
    landing.arrive("a", 0, "7,on")
    landing.arrive("b", 0, "7,off")
    landing.run()
    landing.arrive("b", 5, "7,off", "7,on")
    told = landing.run()
    assert told.inserted == 0
    assert "may have been read before, as it was: `ev/b.csv`" in told.warnings[0]
    assert "add_metadata" in told.warnings[0]


def test_a_file_that_was_empty_has_brought_nothing(landing):
    landing.declare(metadata=False)
    landing.arrive("a", 0, "7,on")
    landing.run()
    landing.arrive("b", 5)
    assert landing.run().inserted == 0
    landing.arrive("b", 6, "7,on")
    filled = landing.run()
    assert (filled.inserted, filled.warnings) == (1, [])


def test_a_single_file_that_grows_is_the_whole_table(landing):
    landing.declare(path="ev/a.csv", metadata=False)
    rows = []
    for number in range(4):
        rows.append("7,on")
        landing.arrive("a", number, *rows)
        grown = landing.run()
        assert (grown.inserted, grown.warnings) == (1, [])
    assert landing.rows() == {"7,on": 4}


@pytest.mark.parametrize("metadata", KEPT)
def test_a_longer_lag_doubles_nothing(landing, metadata):
    """What was read before the lag was raised is no longer remembered by its name."""
    landing.declare(metadata=metadata)
    for number in range(3):
        landing.arrive(number, number, f"{number},on")
        landing.run()
    landing.declare(metadata=metadata, lag="1h")
    again = landing.run()
    assert (again.rows_read, again.inserted) == (2, 0)
    assert landing.run().rows_read == 0
    landing.arrive(3, 3, "0,on")
    assert landing.run().inserted == 1


@pytest.mark.parametrize("point", ["commit.before", "commit.after", "log.before", "put.before"])
def test_a_runner_that_dies_leaves_every_row_once(landing, point):
    class Died(BaseException):
        """As a kill would end it."""

    def die(name, _node):
        if name == point:
            raise Died

    landing.declare(metadata=False)
    landing.arrive("a", 0, "7,on")
    landing.run()
    landing.arrive("b", 5, "7,on")
    with armed(die), pytest.raises(Died):
        landing.run()
    landing.run()
    landing.run()
    assert landing.rows() == {"7,on": 2}


def test_undo_forgets_the_files_of_its_run(landing):
    landing.declare(metadata=False)
    landing.arrive("a", 0, "7,on")
    landing.run()
    landing.arrive("b", 5, "7,on")
    taken = landing.project.run(platform=landing.platform, check=True)
    landing.project.undo(taken.run_id, platform=landing.platform)
    assert landing.rows() == {"7,on": 1}
    assert landing.run().inserted == 1
    assert landing.rows() == {"7,on": 2}


def test_an_upsert_reads_the_bound_again(landing):
    """There it is harmless, and what a person changed in the table by hand is set right."""
    landing.declare(mode="upsert", keys=["sensor"])
    landing.arrive("a", 0, "7,on")
    assert landing.run().inserted == 1
    again = landing.run()
    assert (again.rows_read, again.inserted, again.updated) == (1, 0, 0)
    landing.arrive("b", 5, "8,on")
    assert landing.run().inserted == 1
