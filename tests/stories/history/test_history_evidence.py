"""A history in business time that also looks for deletes: absence and presence are events at batch time."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.lab import Lab, lab
from tests.stories.history.test_history import START, day, frame, hour, versions

from strandline.engine.base import Platform
from strandline.errors import DeleteThresholdExceeded
from strandline.testing.events import assert_sound
from strandline.testing.frames import read_table
from strandline.testing.projects import make_project

COLUMNS = [("id", "int"), ("name", "string"), ("at", "timestamp")]
WRITE = {"mode": "scd2", "keys": ["id"], "effective_at": "at"}


def detect(**params: Any) -> dict[str, Any]:
    limits = {"max_delete_percent": None, **params}
    return {
        "steps": [
            {
                "operation": "detect_deletes",
                "params": {"mode": "snapshot_diff", "keys": ["id"], **limits},
            }
        ]
    }


def shown(at: Lab) -> list[tuple[Any, ...]]:
    table = at.table()
    assert_sound(table.rows, ["id"])
    return versions(table, "id", "name", "_valid_from", "_valid_to", "_is_deleted")


ADA, BOB = (1, "Ada", day(1)), (2, "Bob", day(2))


@pytest.mark.long_on_spark
def test_absent_and_back(platform: Platform) -> None:
    """A found delete takes batch time; the key that is seen again begins a new version at batch time."""
    with lab(platform, WRITE, transform=detect()) as at:
        at.run(frame(COLUMNS, ADA, BOB))
        result = at.run(frame(COLUMNS, ADA))
        assert (result.deleted, result.updated) == (1, 0)
        assert shown(at) == [(1, "Ada", day(1), None, False), (2, "Bob", day(2), hour(2), True)]
        assert at.run(frame(COLUMNS, ADA)).status == "unchanged"  # never deleted twice
        result = at.run(frame(COLUMNS, ADA, BOB))
        assert (result.reopened, result.inserted) == (1, 0)
        assert shown(at)[1:] == [
            (2, "Bob", day(2), hour(2), True),
            (2, "Bob", hour(4), None, False),
        ]
        assert at.run(frame(COLUMNS, ADA, BOB)).status == "unchanged"


def test_back_with_news(pandas_platform: Platform) -> None:
    """What it says of the time before the delete is woven in; it is back as it is now."""
    with lab(pandas_platform, WRITE, transform=detect()) as at:
        at.run(frame(COLUMNS, ADA, BOB))
        at.run(frame(COLUMNS, ADA))
        at.run(frame(COLUMNS, ADA, (2, "Rob", day(9))))
        assert shown(at)[1:] == [
            (2, "Bob", day(2), day(9), False),
            (2, "Rob", day(9), hour(2), True),
            (2, "Rob", hour(3), None, False),
        ]


def test_back_by_an_event_of_its_own(pandas_platform: Platform) -> None:
    """News from after the delete revives by itself, from its own instant on."""
    with lab(pandas_platform, WRITE, transform=detect()) as at:
        at.run(frame(COLUMNS, ADA, BOB))
        at.run(frame(COLUMNS, ADA))
        later = hour(2) + timedelta(minutes=20)
        result = at.run(frame(COLUMNS, ADA, (2, "Bob", later)))
        assert result.reopened == 1
        assert shown(at)[1:] == [(2, "Bob", day(2), hour(2), True), (2, "Bob", later, None, False)]


def test_without_evidence_an_old_event_does_not_revive(pandas_platform: Platform) -> None:
    columns = [*COLUMNS, ("op", "string")]
    with lab(pandas_platform, {**WRITE, "delete_when": "op = 'D'"}) as at:
        at.run(frame(columns, (1, "Ada", day(1), "U"), (1, None, day(5), "D")))
        result = at.run(frame(columns, (1, "Eve", day(3), "U")))
        assert (result.updated, result.reopened) == (1, 0)
        assert shown(at) == [(1, "Ada", day(1), day(3), False), (1, "Eve", day(3), day(5), True)]


def test_announced_and_found(pandas_platform: Platform) -> None:
    """A snapshot whose rows say that they are gone: neither a second delete, nor evidence that they are there."""
    columns = [*COLUMNS, ("op", "string")]
    write = {**WRITE, "delete_when": "op = 'D'"}
    with lab(
        pandas_platform, write, transform=detect(max_delete_count=0, on_threshold_breach="error")
    ) as at:
        at.run(frame(columns, (1, "Ada", day(1), "U"), (2, "Bob", day(1), "U")))
        result = at.run(frame(columns, (1, "Ada", day(5), "D"), (2, "Bob", day(1), "U")))
        assert result.deleted == 1  # an announced delete is a fact: no limit holds it back
        assert shown(at)[0] == (1, "Ada", day(1), day(5), True)
        again = at.run(frame(columns, (1, "Ada", day(5), "D"), (2, "Bob", day(1), "U")))
        assert again.status == "unchanged"
        with pytest.raises(DeleteThresholdExceeded):
            at.run(frame(columns, (1, "Ada", day(5), "D")))
        assert len(read_table(at.folder / "lake" / "t__events").rows) == 3


def test_hard_and_back(pandas_platform: Platform) -> None:
    """Nothing of the key is left in the table, and it is known all the same that it was deleted."""
    with lab(pandas_platform, {**WRITE, "delete_strategy": "hard"}, transform=detect()) as at:
        at.run(frame(COLUMNS, ADA, BOB))
        assert at.run(frame(COLUMNS, ADA)).deleted == 1
        assert shown(at) == [(1, "Ada", day(1), None, False)]
        assert at.run(frame(COLUMNS, ADA)).status == "unchanged"
        assert at.run(frame(COLUMNS, ADA, BOB)).inserted == 1
        assert shown(at)[1:] == [(2, "Bob", hour(4), None, False)]
        assert at.run(frame(COLUMNS, ADA, BOB)).status == "unchanged"


def test_held_deletes_are_no_events(tmp_path: Any, pandas_platform: Platform) -> None:
    """A verdict holds back what was found, not what was read; approved, it takes the time of the approval."""
    from strandline.testing.frames import write_parquet

    node = {
        "name": "n",
        "read": {"connection": "files", "path": "rows.parquet"},
        "write": {"connection": "lake", "table": "t", **WRITE},
        "transform": detect(max_delete_count=0, on_threshold_breach="hold"),
    }
    project, file = make_project(tmp_path, [node]), tmp_path / "landing" / "rows.parquet"
    write_parquet(file, frame(COLUMNS, ADA, BOB))
    project.run(platform=pandas_platform, check=True)
    write_parquet(file, frame(COLUMNS, (1, "Eve", day(5))))
    held = project.run(platform=pandas_platform, check=True)
    assert (held.nodes[0].status, held.nodes[0].updated, held.nodes[0].held) == ("held", 1, 1)
    assert len(read_table(tmp_path / "lake" / "t__events").rows) == 3
    approved = project.approve(held.run_id, platform=pandas_platform, check=True)
    assert (approved.nodes[0].deleted, approved.nodes[0].held) == (1, 0)
    bob = [r for r in read_table(tmp_path / "lake" / "t").rows if r["id"] == 2]
    assert [(r["_is_deleted"], r["_valid_to"] > datetime(2025, 1, 1, tzinfo=UTC)) for r in bob] == [
        (True, True)
    ]
    verbs = [(c.verb, c.key) for c in project.store.changes("n")]
    assert verbs == [("hold", '{"id": 2}'), ("delete", '{"id": 2}')]


def test_refused_deletes_are_planned_and_no_event_of_the_batch_lands(
    tmp_path: Any, pandas_platform: Platform
) -> None:
    from strandline.testing.frames import write_parquet

    node = {
        "name": "n",
        "read": {"connection": "files", "path": "rows.parquet"},
        "write": {"connection": "lake", "table": "t", **WRITE},
        "transform": detect(max_delete_count=0, on_threshold_breach="error"),
    }
    project, file = make_project(tmp_path, [node]), tmp_path / "landing" / "rows.parquet"
    write_parquet(file, frame(COLUMNS, ADA, BOB))
    project.run(platform=pandas_platform, check=True)
    write_parquet(file, frame(COLUMNS, (1, "Eve", day(5))))
    planned = project.plan(platform=pandas_platform, out=tmp_path / "x.plan").nodes[0]
    assert (planned.status, planned.verdict, planned.found_deletes) == ("failed", "refuse", 1)
    assert (planned.sample_deletes, planned.reason) == (
        [{"id": 2}],
        "absent from the newest snapshot",
    )
    for run in (lambda **how: project.follow(tmp_path / "x.plan", **how), project.run):
        with pytest.raises(DeleteThresholdExceeded, match="1 row exceeds 0"):
            run(platform=pandas_platform, check=True)
        assert len(read_table(tmp_path / "lake" / "t__events").rows) == 2
        assert {r["name"] for r in read_table(tmp_path / "lake" / "t").rows} == {"Ada", "Bob"}


def test_twice_missing(pandas_platform: Platform) -> None:
    with lab(pandas_platform, WRITE, transform=detect(confirm_runs=2)) as at:
        at.store.folder = at.folder / "notes"
        at.run(frame(COLUMNS, ADA, BOB))
        assert at.run(frame(COLUMNS, ADA)).deleted == 0
        assert at.run(frame(COLUMNS, ADA)).deleted == 1


def test_sequences_and_absence(pandas_platform: Platform) -> None:
    """`upsert`: what was inferred deleted keeps its sequence; seen again it is back, and older news changes nothing."""
    columns = [("id", "int"), ("name", "string"), ("n", "int")]
    ada, bob = (1, "Ada", 1), (2, "Bob", 5)
    with lab(
        pandas_platform, {"mode": "upsert", "keys": ["id"], "sequence_by": "n"}, transform=detect()
    ) as at:
        at.run(frame(columns, ada, bob))
        assert at.run(frame(columns, ada)).deleted == 1
        assert at.run(frame(columns, ada, (2, "Old", 4))).reopened == 1
        assert at.run(frame(columns, ada, bob)).status == "unchanged"
        assert sorted((r["id"], r["name"], r["n"], r["_is_deleted"]) for r in at.table().rows) == [
            (1, "Ada", 1, False),
            (2, "Bob", 5, False),
        ]


@pytest.mark.parametrize("how", ["announced", "found missing"])
def test_where_rows_announce_deletes_an_older_row_revives_nothing(
    pandas_platform: Platform, how: str
) -> None:
    """The table does not tell a delete that was announced from one that was found; a row that is not older does."""
    columns = [("id", "int"), ("name", "string"), ("n", "int"), ("op", "string")]
    ada, bob = (1, "Ada", 1, "U"), (2, "Bob", 5, "U")
    write = {"mode": "upsert", "keys": ["id"], "sequence_by": "n", "delete_when": "op = 'D'"}
    with lab(pandas_platform, write, transform=detect()) as at:
        at.run(frame(columns, ada, bob))
        gone = [(2, None, 5, "D")] if how == "announced" else []
        assert at.run(frame(columns, ada, *gone)).deleted == 1
        assert at.run(frame(columns, ada, (2, "Old", 4, "U"))).status == "unchanged"
        assert at.run(frame(columns, ada, (2, "New", 6, "U"))).reopened == 1


class Live:
    """A history over a SQLite table that is also asked which keys it has."""

    def __init__(self, folder: Any, platform: Platform, **write: Any) -> None:
        self.folder, self.platform = folder, platform
        params = {
            "mode": "sql_compare",
            "keys": ["id"],
            "source_connection": "erp",
            "source_table": "live",
        }
        limits = {"max_delete_percent": None}
        node = {
            "name": "n",
            "read": {"connection": "erp", "table": "log"},
            "transform": {
                "steps": [{"operation": "detect_deletes", "params": {**params, **limits}}]
            },
            "write": {"connection": "lake", "table": "t", **WRITE, **write},
        }
        self.project = make_project(
            folder, [node], connections={"erp": {"type": "sql", "url": "sqlite:///erp.db"}}
        )
        self.base = sqlite3.connect(folder / "erp.db", isolation_level=None)
        self.base.execute("CREATE TABLE log (id INTEGER, name TEXT, at TIMESTAMP)")
        self.base.execute("CREATE TABLE live (id INTEGER)")

    def run(self, log: list[tuple[Any, ...]], live: list[int]) -> Any:
        self.base.execute("DELETE FROM log")
        self.base.execute("DELETE FROM live")
        self.base.executemany(
            "INSERT INTO log VALUES (?, ?, ?)", [(i, n, f"{at:%F %T}") for i, n, at in log]
        )
        self.base.executemany("INSERT INTO live VALUES (?)", [(i,) for i in live])
        return self.project.run(platform=self.platform, check=True).nodes[0]

    def rows(self) -> list[tuple[Any, ...]]:
        table = read_table(self.folder / "lake" / "t")
        assert_sound(table.rows, ["id"])
        return versions(table, "id", "name", "_valid_from", "_is_deleted")


@pytest.mark.parametrize("strategy", ["soft", "hard"])
def test_the_live_source_has_the_last_word(
    tmp_path: Any, pandas_platform: Platform, strategy: str
) -> None:
    now = datetime.now(UTC)
    at = Live(tmp_path, pandas_platform, delete_strategy=strategy)
    at.run([ADA, BOB, (3, "Cy", day(3))], [1, 2])
    buried = [(3, "Cy", day(3), True)] if strategy == "soft" else []
    assert at.rows() == [(1, "Ada", day(1), False), (2, "Bob", day(2), False), *buried]
    assert at.run([], [1]).deleted == 1  # nobody mentions 2 any more
    assert at.run([], [1]).status == "unchanged"
    # what was really removed has no values to come back with until it is read again
    back = at.run([] if strategy == "soft" else [BOB], [1, 2])
    assert (back.reopened, back.inserted) == ((1, 0) if strategy == "soft" else (0, 1))
    assert [r[1] for r in at.rows() if r[0] == 2 and not r[3]] == [
        "Bob"
    ]  # with the last that is known of it
    # news of a key that the source does not have: told, and gone again
    result = at.run([(3, "Cyd", now + timedelta(days=1))], [1, 2])
    assert (result.inserted, result.reopened) == (0, 0)
    assert not [r for r in at.rows() if r[0] == 3 and not r[3]]
    assert at.run([], [1, 2]).status == "unchanged"


def test_what_lies_in_the_window_and_did_not_come(pandas_platform: Platform) -> None:
    """`watermark_window`: the stored row inside the window is the current version."""
    columns = [*COLUMNS, ("m", "bigint")]
    read = {
        "connection": "files",
        "path": "batch*.parquet",
        "incremental": {"mode": "stateful", "column": "m", "watermark_lag": 5},
    }
    with lab(pandas_platform, WRITE, read=read, settings={"delete_missing": True}) as at:
        at.run(frame(columns, (1, "Ada", day(1), 1), (2, "Bob", day(1), 6), (3, "Cy", day(1), 7)))
        result = at.run(frame(columns, (3, "Cy", day(1), 7), (4, "Dee", day(2), 8)))
        assert (result.inserted, result.deleted) == (1, 1)
        assert [(r[0], r[4]) for r in shown(at)] == [(1, False), (2, True), (3, False), (4, False)]


def test_a_version_that_begins_only_later(pandas_platform: Platform) -> None:
    """Absent before it begins: it never begins, and is not found missing again and again."""
    with lab(pandas_platform, WRITE, transform=detect()) as at:
        later = START + timedelta(days=30)
        at.run(frame(COLUMNS, ADA, (2, "Bob", day(2)), (2, "Rob", later)))
        assert at.run(frame(COLUMNS, ADA)).deleted == 1
        assert shown(at)[1:] == [(2, "Bob", day(2), later, True)]
        assert at.run(frame(COLUMNS, ADA)).status == "unchanged"


def test_a_version_that_begins_only_later_comes_back(pandas_platform: Platform) -> None:
    """Seen again, it begins after all, right after the instant at which it was taken back."""
    with lab(pandas_platform, WRITE, transform=detect()) as at:
        later = START + timedelta(days=30)
        bob = (2, "Bob", later)
        at.run(frame(COLUMNS, ADA, bob))
        assert at.run(frame(COLUMNS, ADA)).deleted == 1
        at.run(frame(COLUMNS, ADA, bob))
        assert shown(at)[1:] == [(2, "Bob", later + timedelta(microseconds=1), None, False)]
        assert at.run(frame(COLUMNS, ADA, bob)).status == "unchanged"


def test_a_delete_announced_for_later_is_not_refuted_by_presence(pandas_platform: Platform) -> None:
    columns, later = [*COLUMNS, ("op", "string")], START + timedelta(days=30)
    with lab(pandas_platform, {**WRITE, "delete_when": "op = 'D'"}, transform=detect()) as at:
        both = [(2, "Bob", day(2), "U"), (2, None, later, "D")]
        at.run(frame(columns, *both))
        assert at.run(frame(columns, *both)).status == "unchanged"
        assert shown(at) == [(2, "Bob", day(2), later, True)]


def test_at_one_instant_the_highest_sequence_counts(pandas_platform: Platform) -> None:
    """Also before a delete; but not before what a run found out, which has no sequence."""
    columns = [*COLUMNS, ("op", "string"), ("n", "bigint")]
    write = {**WRITE, "delete_when": "op = 'D'", "sequence_by": "n"}
    with lab(pandas_platform, write, transform=detect()) as at:
        back = [(1, "Ada", day(1), "U", 1), (1, None, day(5), "D", 3), (1, "Eve", day(5), "U", 4)]
        later = START + timedelta(days=30)
        at.run(frame(columns, *back, (2, "Bob", later, "U", 7)))
        assert shown(at)[:2] == [(1, "Ada", day(1), day(5), False), (1, "Eve", day(5), None, False)]
        at.run(frame(columns, *back))
        assert [row[0] for row in shown(at)] == [1, 1]
