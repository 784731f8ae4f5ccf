"""Histories: what opens a version, what closes one, and what happens to those that come late, again, or not at all."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from tests.lab import lab
from tests.shop import Shop

from strandline.engine.base import Platform
from strandline.errors import StalePlan, TableError, TransformError
from strandline.testing.events import assert_sound
from strandline.testing.frames import read_table, write_parquet
from strandline.testing.oracle import Frame, Row
from strandline.testing.projects import make_project

START = datetime(2024, 10, 27, 0, 30, 0, 1, tzinfo=UTC)
COLUMNS = [("id", "int"), ("name", "string"), ("phone", "string")]


def hour(n: int) -> datetime:
    """When the nth batch of a lab runs."""
    return START + timedelta(hours=n)


def day(n: int) -> datetime:
    return datetime(2024, 1, n, tzinfo=UTC)


def frame(columns: list[tuple[str, str]], *rows: tuple[Any, ...]) -> Frame:
    return Frame(columns, [dict(zip([n for n, _ in columns], row, strict=True)) for row in rows])


def versions(table: Frame, *names: str) -> list[tuple[Any, ...]]:
    """The chosen columns of all versions, in the order of their keys and times."""
    rows = sorted(table.rows, key=lambda r: (r["id"] is None, r["id"] or 0, r["_valid_from"]))
    return [tuple(row[n] for n in names) for row in rows]


# --- by batch time -----------------------------------------------------------------------------------------


@pytest.mark.long_on_spark
def test_only_tracked_columns_open_a_version(platform: Platform) -> None:
    """The others take the latest value inside the version: one row, one `updated`."""
    with lab(platform, {"mode": "scd2", "keys": ["id"], "track": ["name"]}) as at:
        at.run(frame(COLUMNS, (1, "Ada", "1"), (2, "Bob", "1")))
        result = at.run(frame(COLUMNS, (1, "Ada", "2"), (2, "Rob", "2")))
        assert (result.inserted, result.updated) == (0, 2)
        assert versions(
            at.table(), "id", "name", "phone", "_valid_from", "_valid_to", "_is_current"
        ) == [
            (1, "Ada", "2", hour(1), None, True),
            (2, "Bob", "1", hour(1), hour(2), False),
            (2, "Rob", "2", hour(2), None, True),
        ]
        assert at.run(frame(COLUMNS, (1, "Ada", "2"), (2, "Rob", "2"))).status == "unchanged"
        result = at.run(frame(COLUMNS, (1, None, "2")))  # to NULL is a change
        assert (result.updated, len(at.table().rows)) == (1, 4)


OPS = [*COLUMNS, ("op", "string")]


@pytest.mark.parametrize("strategy", ["soft", "hard", "ignore"])
def test_announced_deletes_close_the_version(pandas_platform: Platform, strategy: str) -> None:
    """Seed 001's explicit deletes (X-34), and a row that returns unchanged is a new version (X-33)."""
    write = {
        "mode": "scd2",
        "keys": ["id"],
        "delete_when": "op = 'D'",
        "delete_strategy": strategy,
        "track": ["name"],
    }
    with lab(pandas_platform, write) as at:
        at.run(frame(OPS, (1, "Ada", "1", "I"), (2, "Bob", "1", "I"), (3, "Cy", "1", "D")))
        at.run(frame(OPS, (2, "Rob", "1", "U")))
        result = at.run(frame(OPS, (1, "Ada", "1", "D"), (2, None, None, "D")))
        assert result.deleted == (0 if strategy == "ignore" else 2)
        found = versions(at.table(), "id", "name", "_valid_to", "_is_current", "_is_deleted")
        alive = [
            (1, "Ada", None, True, False),
            (2, "Bob", hour(2), False, False),
            (2, "Rob", None, True, False),
        ]
        closed = [(1, "Ada", hour(3), False, True), alive[1], (2, "Rob", hour(3), False, True)]
        assert found == {"soft": closed, "hard": [], "ignore": alive}[strategy]
        if strategy == "soft":
            again = at.run(frame(OPS, (1, "Ada", "1", "D")))  # gone already
            assert again.status == "unchanged"
            back = at.run(frame(OPS, (1, "Ada", "1", "U")))
            assert back.reopened == 1
            assert versions(at.table(), "id", "_valid_from", "_valid_to")[:2] == [
                (1, hour(1), hour(3)),
                (1, hour(5), None),
            ]


def test_an_open_end_may_have_a_date(pandas_platform: Platform) -> None:
    """X-41: one convention, NULL or a sentinel, for every open version."""
    end = datetime(9999, 12, 31, tzinfo=UTC)
    with lab(
        pandas_platform, {"mode": "scd2", "keys": ["id"], "open_end": date(9999, 12, 31)}
    ) as at:
        at.run(frame(COLUMNS, (1, "Ada", "1")))
        at.run(frame(COLUMNS, (1, "Eve", "1")))
        assert versions(at.table(), "_valid_to", "_is_current") == [(hour(2), False), (end, True)]


def test_upsert_flags_what_is_announced(pandas_platform: Platform) -> None:
    with lab(pandas_platform, {"mode": "upsert", "keys": ["id"], "delete_when": "op = 'D'"}) as at:
        at.run(frame(OPS, (1, "Ada", "1", "I"), (2, "Bob", "1", "I"), (9, "Zed", "1", "D")))
        result = at.run(frame(OPS, (1, None, None, "D"), (9, None, None, "D")))
        assert (result.inserted, result.updated, result.deleted) == (0, 0, 1)
        assert sorted((r["id"], r["name"], r["_is_deleted"]) for r in at.table().rows) == [
            (1, "Ada", True),
            (2, "Bob", False),
        ]
        assert at.run(frame(OPS, (1, "Ada", "1", "I"))).reopened == 1


# --- by business time --------------------------------------------------------------------------------------

TIMED = [*OPS, ("at", "timestamp")]
TIME = {"mode": "scd2", "keys": ["id"], "effective_at": "at", "delete_when": "op = 'D'"}


@pytest.mark.lakes
def test_a_late_row_is_woven_in(platform: Platform) -> None:
    """X-73: older than the current version, it never makes an interval negative."""
    with lab(platform, {**TIME, "track": ["name"]}) as at:
        at.run(frame(TIMED, (1, "Ada", "1", "U", day(10))))
        result = at.run(frame(TIMED, (1, "Eve", "2", "U", day(5))))
        assert (result.inserted, result.updated) == (0, 1)
        assert versions(at.table(), "name", "_valid_from", "_valid_to", "_is_current") == [
            ("Eve", day(5), day(10), False),
            ("Ada", day(10), None, True),
        ]
        result = at.run(frame(TIMED, (1, "Ada", "3", "U", day(4)), (1, "Ada", "0", "U", day(7))))
        assert result.updated == 1
        assert versions(at.table(), "name", "phone", "_valid_from", "_valid_to") == [
            ("Ada", "3", day(4), day(5)),
            ("Eve", "2", day(5), day(7)),
            (
                "Ada",
                "1",
                day(7),
                None,
            ),  # the version that began at 10 begins at 7 now: one row went, one came
        ]


def test_an_equal_event_matters_when_one_lands_before_it(pandas_platform: Platform) -> None:
    with lab(pandas_platform, TIME) as at:
        at.run(frame(TIMED, (1, "Ada", "1", "U", day(1)), (1, "Ada", "1", "U", day(9))))
        assert len(at.table().rows) == 1
        at.run(frame(TIMED, (1, "Eve", "1", "U", day(5))))
        assert versions(at.table(), "name", "_valid_from") == [
            ("Ada", day(1)),
            ("Eve", day(5)),
            ("Ada", day(9)),
        ]


@pytest.mark.lakes
def test_a_version_that_is_no_more_is_really_removed(pandas_platform: Platform) -> None:
    """A delete at the instant of the only row: nothing is left of it."""
    with lab(pandas_platform, TIME) as at:
        at.run(frame(TIMED, (1, "Ada", "1", "U", day(1)), (2, "Bob", "1", "U", day(1))))
        result = at.run(frame(TIMED, (1, "Ada", "1", "D", day(1))))
        assert result.deleted == 1
        assert versions(at.table(), "id") == [(2,)]


def test_hard_deletes_take_all_versions_and_late_rows_do_not_bring_them_back(
    pandas_platform: Platform,
) -> None:
    with lab(pandas_platform, {**TIME, "delete_strategy": "hard"}) as at:
        at.run(frame(TIMED, (1, "Ada", "1", "U", day(1)), (1, "Eve", "1", "U", day(3))))
        assert at.run(frame(TIMED, (1, None, None, "D", day(5)))).deleted == 1
        assert at.table().rows == []
        assert at.run(frame(TIMED, (1, "Old", "1", "U", day(4)))).status == "unchanged"
        assert at.run(frame(TIMED, (1, "New", "1", "U", day(6)))).inserted == 1
        assert versions(at.table(), "name", "_valid_from", "_is_current") == [("New", day(6), True)]


def test_a_row_without_an_instant_is_refused_by_name(pandas_platform: Platform) -> None:
    with lab(pandas_platform, TIME) as at:
        at.run(frame(TIMED, (1, "Ada", "1", "U", day(1))))
        with pytest.raises(TransformError) as refused:
            at.run(frame(TIMED, (7, "Ada", "1", "U", None), (8, "Ada", "1", "U", day(1))))
        assert "id=7" in refused.value.message
        assert "`at`" in refused.value.message
        assert "filter" in str(refused.value.hint)
        assert len(read_table(at.folder / "lake" / "t__events").rows) == 1


def test_an_instant_must_be_a_time(pandas_platform: Platform) -> None:
    with (
        lab(pandas_platform, {**TIME, "effective_at": "name"}) as at,
        pytest.raises(TransformError, match="not a time"),
    ):
        at.run(frame(TIMED, (1, "Ada", "1", "U", day(1))))


def test_a_table_by_batch_time_has_no_events(pandas_platform: Platform) -> None:
    with lab(pandas_platform, {"mode": "scd2", "keys": ["id"]}) as at:
        at.run(frame(TIMED, (1, "Ada", "1", "U", day(1))))
        write = {"connection": "lake", "table": "t", **TIME}
        read = {"connection": "files", "path": "batch*.parquet"}
        at.project = make_project(at.folder, [{"name": "n", "read": read, "write": write}])
        with pytest.raises(TableError, match="without effective_at"):
            at.again()


def test_dates_and_local_times_are_utc(pandas_platform: Platform) -> None:
    columns = [("id", "int"), ("name", "string"), ("at", "date")]
    with lab(pandas_platform, {"mode": "scd2", "keys": ["id"], "effective_at": "at"}) as at:
        at.run(frame(columns, (1, "Ada", date(2024, 3, 31))))
        assert versions(at.table(), "_valid_from") == [(datetime(2024, 3, 31, tzinfo=UTC),)]


PRESETS = {
    "dlf": (
        "dlf_ValidFrom",
        "dlf_ValidTo",
        "dlf_IsCurrent",
        "dlf_deleted",
        "dlf_lastSeen",
        "dlf_SourceHash",
    ),
    "kimball": (
        "__valid_from",
        "__valid_to",
        "__is_current",
        "__is_deleted",
        "__last_seen",
        "__row_hash",
    ),
}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("timed", [True, False], ids=["business", "batch"])
def test_the_books_may_have_other_names(
    pandas_platform: Platform, preset: str, timed: bool
) -> None:
    """Seed 001's names, seed 003's names: nothing else changes."""
    write = {**TIME, "system_columns": {"preset": preset}}
    write = write if timed else {n: v for n, v in write.items() if n != "effective_at"}
    with lab(pandas_platform, write) as at:
        at.run(frame(TIMED, (1, "Ada", "1", "U", day(1))))
        at.run(frame(TIMED, (1, "Eve", "1", "U", day(3))))
        at.run(frame(TIMED, (1, "Eve", "1", "D", day(5))))
        begins, _, current, deleted, *_ = names = PRESETS[preset]
        assert set(at.table().names) == {n for n, _ in TIMED} | set(names)
        rows = sorted(at.table().rows, key=lambda r: r[begins])
        assert [(r["name"], r[current], r[deleted]) for r in rows] == [
            ("Ada", False, False),
            ("Eve", False, True),
        ]


@pytest.mark.parametrize("name", ["_instant", "_kind", "_batch_id"])
def test_what_the_events_keep_cannot_come_from_a_source(
    pandas_platform: Platform, name: str
) -> None:
    columns = [*TIMED, (name, "string")]
    with lab(pandas_platform, TIME) as at, pytest.raises(TableError, match=name):
        at.run(frame(columns, (1, "Ada", "1", "U", day(1), "x")))


# --- columns that come and go ------------------------------------------------------------------------------


@pytest.mark.lakes
def test_a_new_column_re_versions_nothing(pandas_platform: Platform) -> None:
    """X-74: rows that say the same as before stay as they are; a new value at a known instant fills its version."""
    wide = [*TIMED, ("city", "string")]
    with lab(pandas_platform, TIME) as at:
        at.run(frame(TIMED, (1, "Ada", "1", "U", day(1)), (2, "Bob", "1", "U", day(1))))
        result = at.run(
            frame(wide, (1, "Ada", "1", "U", day(1), None), (2, "Bob", "1", "U", day(1), "Bern"))
        )
        assert (result.inserted, result.updated) == (0, 1)
        assert versions(at.table(), "id", "city", "_valid_from") == [
            (1, None, day(1)),
            (2, "Bern", day(1)),
        ]


@pytest.mark.long_on_spark
def test_a_column_that_no_longer_comes_keeps_its_value(platform: Platform) -> None:
    narrow = [c for c in TIMED if c[0] != "phone"]
    with lab(platform, TIME) as at:
        at.run(frame(TIMED, (1, "Ada", "1", "U", day(1)), (1, "Ada", "2", "U", day(5))))
        assert at.run(frame(narrow, (1, "Ada", "U", day(5)))).status == "unchanged"
        at.run(frame(narrow, (1, "Eve", "U", day(7)), (2, "Bob", "U", day(7))))
        assert versions(at.table(), "id", "name", "phone") == [
            (1, "Ada", "1"),
            (1, "Ada", "2"),
            (1, "Eve", "2"),
            (2, "Bob", None),
        ]


def test_a_narrower_type_is_the_same_value(pandas_platform: Platform) -> None:
    wide, narrow = ([("id", t), ("n", t), ("at", "timestamp")] for t in ("bigint", "int"))
    with lab(pandas_platform, {"mode": "scd2", "keys": ["id"], "effective_at": "at"}) as at:
        at.run(frame(wide, (1, 7, day(1))))
        assert at.run(frame(narrow, (1, 7, day(1)))).status == "unchanged"


def test_a_column_added_to_track_re_versions_nothing(pandas_platform: Platform) -> None:
    with lab(pandas_platform, {**TIME, "track": ["name"]}) as at:
        at.run(frame(TIMED, (1, "Ada", "1", "U", day(1)), (1, "Ada", "2", "U", day(5))))
        write = {"connection": "lake", "table": "t", **TIME, "track": ["name", "phone"]}
        read = {"connection": "files", "path": "batch*.parquet"}
        at.project = make_project(at.folder, [{"name": "n", "read": read, "write": write}])
        assert at.again().status == "unchanged"
        assert len(at.table().rows) == 1


def test_metadata_tells_no_events_apart(pandas_platform: Platform) -> None:
    with lab(pandas_platform, {**TIME, "add_metadata": True}) as at:
        at.run(frame(TIMED, (1, "Ada", "1", "U", day(1))))
        assert at.run(frame(TIMED, (1, "Ada", "1", "U", day(1)))).status == "unchanged"


# --- plans, stories, dead runs -----------------------------------------------------------------------------


class Chronicle(Shop):
    """A project of one history over a file, with its records on disk."""

    run = Shop.only

    def __init__(self, folder: Any, platform: Platform, **write: Any) -> None:
        super().__init__(folder, platform)
        self.declare(
            {
                "name": "n",
                "read": {"connection": "files", "path": "rows.parquet"},
                "write": {"connection": "lake", "table": "t", **TIME, **write},
            }
        )

    def land(self, *rows: tuple[Any, ...]) -> None:
        write_parquet(self.folder / "landing" / "rows.parquet", frame(TIMED, *rows))

    def events(self) -> list[Row]:
        return self.stored("t__events")


@pytest.mark.lakes
@pytest.mark.long_on_spark
def test_a_plan_is_followed_exactly(tmp_path: Any, platform: Platform) -> None:
    shop, file = Chronicle(tmp_path, platform), tmp_path / "plan.zip"
    shop.land((1, "Ada", "1", "U", day(1)), (1, "Eve", "1", "U", day(3)))
    planned = shop.project.plan(platform=platform, out=file).nodes[0]
    assert (planned.status, planned.inserted) == ("success", 1)
    assert not (tmp_path / "lake").exists()
    assert shop.project.follow(file, platform=platform, check=True).nodes[0].inserted == 1
    assert versions(shop.table(), "name", "_valid_to") == [("Ada", day(3)), ("Eve", None)]
    shop.land((1, "Bea", "1", "U", day(2)), (1, None, None, "D", day(4)))
    planned = shop.project.plan(platform=platform, out=file).nodes[0]
    assert (planned.updated, planned.deleted) == (0, 1)
    assert planned.sample_deletes == [{"id": 1}]
    assert len(shop.events()) == 2
    result = shop.project.follow(file, platform=platform, check=True).nodes[0]
    assert (result.deleted, len(shop.events())) == (1, 4)
    assert versions(shop.table(), "name", "_valid_from", "_is_deleted") == [
        ("Ada", day(1), False),
        ("Bea", day(2), False),
        ("Eve", day(3), True),
    ]
    with pytest.raises(StalePlan):
        shop.project.follow(file, platform=platform)


def test_the_story_of_a_row(tmp_path: Any, pandas_platform: Platform) -> None:
    shop = Chronicle(tmp_path, pandas_platform)
    for row in (("Ada", "U", 1), ("Eve", "U", 3), (None, "D", 5), ("Ada", "U", 7)):
        shop.land((1, row[0], "1", row[1], day(row[2])))
        shop.run()
    story = shop.project.explain("n", {"id": "1"})
    assert [e.event for e in story.events] == ["inserted", "changed", "deleted", "revived"]
    assert story.events[2].reason == "announced by the source"
    assert len(story.now) == 3


def test_the_sql_can_be_read(tmp_path: Any, pandas_platform: Platform) -> None:
    shop = Chronicle(tmp_path, pandas_platform)
    shop.land((1, "Ada", "1", "U", day(1)))
    assert "LAG(" in shop.project.compile("n", platform=pandas_platform)
    shop.run()
    assert "t__events" in shop.project.compile("n", platform=pandas_platform)


def test_a_table_that_was_dropped_is_folded_anew(tmp_path: Any, pandas_platform: Platform) -> None:
    import shutil

    shop = Chronicle(tmp_path, pandas_platform)
    shop.land((1, "Ada", "1", "U", day(1)), (2, "Bob", "1", "U", day(1)))
    shop.run()
    shutil.rmtree(tmp_path / "lake" / "t")
    shop.land((1, "Eve", "1", "U", day(2)))
    shop.run()
    assert_sound(shop.table().rows, ["id"])
    assert versions(shop.table(), "id", "name") == [(1, "Ada"), (1, "Eve"), (2, "Bob")]
