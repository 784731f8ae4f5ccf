"""Stars: what a user sees of dimensions that know less than their facts, and of facts that are early or late."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from strandline.engine.base import Platform
from strandline.errors import StrandlineError, TableError
from strandline.project import StrandlineProject
from strandline.result import NodeResult
from strandline.sql import portable
from strandline.testing.frames import read_table, write_parquet
from strandline.testing.oracle import Frame, Row
from strandline.testing.projects import LAKE, make_project
from strandline.types import Clock

CUSTOMERS = [("id", "int"), ("name", "string"), ("vip", "boolean")]
ORDERS = [("o", "int"), ("id", "int"), ("at", "timestamp"), ("amount", "int")]
KEY = {"column": "sk", "strategy": "sequence"}


def day(n: int) -> datetime:
    return datetime(2024, 1, n, tzinfo=UTC)


class Shop:
    """Customers and their orders, each a file, and a star of both."""

    def __init__(self, folder: Path, platform: Platform) -> None:
        self.folder, self.platform, self.hour = folder, platform, 0
        self.project: StrandlineProject

    def star(
        self, write: dict[str, Any], foreign: dict[str, Any] | None, *more: Any, **fact: Any
    ) -> None:
        write = {"connection": "lake", "table": "dim", "keys": ["id"], **write}
        extra = more[0] if more and "name" not in more[0] else {}
        read = self.read("customers")
        nodes: list[Any] = [{"name": "dim", "read": read, "write": write, **extra}]
        if foreign is not None:
            key = {"column": "sk", "dimension": "dim", "lookup": {"id": "id"}, **foreign}
            to = {"connection": "lake", "table": "fact", "mode": "upsert", "keys": ["o"], **fact}
            nodes.append(
                {"name": "fact", "read": self.read("orders"), "foreign_keys": [key], "write": to}
            )
        nodes += [m for m in more if "name" in m]
        self.project = make_project(self.folder, nodes)

    @staticmethod
    def read(name: str) -> dict[str, str]:
        return {"connection": "files", "path": f"{name}.parquet"}

    def put(self, name: str, columns: list[tuple[str, str]], *rows: tuple[Any, ...]) -> None:
        values = [dict(zip([n for n, _ in columns], row, strict=True)) for row in rows]
        write_parquet(self.folder / "landing" / f"{name}.parquet", Frame(columns, values))

    def customers(self, *rows: tuple[Any, ...]) -> None:
        self.put("customers", CUSTOMERS, *((*row, True) for row in rows))

    def orders(self, *rows: tuple[Any, ...]) -> None:
        self.put("orders", ORDERS, *rows)

    def run(self, **how: Any) -> dict[str, NodeResult]:
        self.hour += 1
        clock = Clock(datetime(2024, 2, 1, self.hour, tzinfo=UTC))
        result = self.project.run(platform=self.platform, clock=clock, check=True, threads=1, **how)
        self.last = result.run_id
        return {n.name: n for n in result.nodes}

    def rows(self, table: str, *names: str) -> list[tuple[Any, ...]]:
        found = [tuple(r[n] for n in names) for r in self.table(table)]
        return sorted(found, key=str)

    def table(self, name: str) -> list[Row]:
        return read_table(self.folder / "lake" / name).rows


@pytest.fixture
def shop(tmp_path: Path, platform: Platform) -> Shop:
    return Shop(tmp_path, platform)


def test_a_member_fills_its_skeleton_and_undo_takes_both(shop: Shop) -> None:
    shop.star({"mode": "scd2", "surrogate_key": KEY}, {"on_missing": "skeleton"})
    shop.customers((1, "Ada"))
    shop.orders((1, 1, day(1), 5), (2, 7, day(1), 5), (3, 7, day(2), 5), (4, None, day(1), 5))
    first = shop.run()
    assert shop.rows("dim", "id", "name", "sk", "_is_skeleton") == [
        (1, "Ada", 1, False), (7, None, 2, True)]  # fmt: skip
    assert shop.rows("fact", "o", "sk") == [(1, 1), (2, 2), (3, 2), (4, -1)]
    assert first["fact"].warnings == ["added 1 skeleton to `dim`"]
    shop.customers((1, "Ada"), (7, "Gus"))
    filled = shop.run()
    assert (filled["dim"].updated, filled["dim"].inserted, filled["fact"].version) == (1, 0, None)
    assert shop.rows("dim", "id", "name", "sk", "_is_skeleton") == [
        (1, "Ada", 1, False), (7, "Gus", 2, False)]  # fmt: skip
    shop.project.undo(shop.last, platform=shop.platform)
    assert (7, None, 2, True) in shop.rows("dim", "id", "name", "sk", "_is_skeleton")


@pytest.mark.long_on_spark
def test_undo_of_a_facts_run_takes_its_skeletons_and_no_number_comes_again(shop: Shop) -> None:
    shop.star({"mode": "upsert", "surrogate_key": KEY}, {"on_missing": "skeleton"})
    shop.customers((1, "Ada"))
    shop.orders((1, 1, day(1), 5))
    shop.run()
    shop.orders((1, 1, day(1), 5), (2, 7, day(1), 5))
    shop.run(select="fact")
    assert shop.rows("dim", "id", "sk") == [(1, 1), (7, 2)]
    undone = shop.project.undo(shop.last, platform=shop.platform)
    assert undone.status == "success"
    assert shop.rows("dim", "id", "sk") == [(1, 1)]
    assert shop.rows("fact", "o", "sk") == [(1, 1)]
    shop.customers((1, "Ada"), (9, "Ida"))
    shop.run(select="dim")
    assert shop.rows("dim", "id", "sk") == [(1, 1), (9, 3)]


@pytest.mark.long_on_spark
def test_detection_of_deletes_misses_neither_skeletons_nor_default_members(shop: Shop) -> None:
    params = {"mode": "snapshot_diff", "keys": ["id"], "max_delete_percent": None}
    steps = {"transform": {"steps": [{"operation": "detect_deletes", "params": params}]}}
    write = {"mode": "upsert", "surrogate_key": KEY, "default_members": True}
    shop.star(write, {"on_missing": "skeleton"}, steps)
    shop.customers((1, "Ada"), (2, "Bob"))
    shop.orders((1, 7, day(1), 5))
    shop.run()
    shop.customers((1, "Ada"))
    assert shop.run()["dim"].deleted == 1
    assert shop.rows("dim", "sk", "_is_deleted") == [
        (-1, False), (-2, False), (1, False), (2, True), (3, False)]  # fmt: skip
    assert shop.run()["dim"].deleted == 0


@pytest.mark.long_on_spark
def test_a_source_row_without_a_key_is_not_the_unknown_member(shop: Shop) -> None:
    shop.star({"mode": "upsert", "surrogate_key": KEY, "default_members": True}, None)
    shop.customers((1, "Ada"))
    shop.run()
    shop.customers((1, "Ada B"), (None, "nobody"))
    result = shop.run()["dim"]
    assert (result.inserted, result.updated) == (1, 1)
    assert shop.rows("dim", "id", "name", "sk") == [
        (1, "Ada B", 1), (None, "Not applicable", -2), (None, "Unknown", -1), (None, "nobody", 2)]  # fmt: skip


@pytest.mark.long_on_spark
def test_default_members_are_edited_in_the_project(shop: Shop) -> None:
    write = {"mode": "scd2", "surrogate_key": KEY, "durable_key": "dk", "default_members": True}
    shop.star(write, None)
    shop.customers((1, "Ada"))
    assert shop.run()["dim"].inserted == 3
    members = {"unknown": {"name": "?", "vip": False}}
    shop.star({**write, "default_members": members}, None)
    assert shop.run()["dim"].updated == 1
    assert shop.rows("dim", "name", "vip", "sk", "dk") == [
        ("?", False, -1, -1), ("Ada", True, 1, 1), ("Not applicable", None, -2, -2)]  # fmt: skip
    assert shop.run()["dim"].version is None
    for wrong, text in (({"nam": "?"}, "nam"), ({"vip": "perhaps"}, "vip")):
        shop.star({**write, "default_members": {"unknown": wrong}}, None)
        with pytest.raises(StrandlineError, match=text):
            shop.run()


@pytest.mark.long_on_spark
def test_reads_leave_out_what_no_source_has_brought(shop: Shop) -> None:
    def copy(name: str, **read: Any) -> dict[str, Any]:
        to = {"connection": "lake", "table": name, "mode": "overwrite"}
        given = {"connection": "lake", "table": "dim", **read}
        return {"name": name, "depends_on": ["fact"], "read": given, "write": to}

    write = {"mode": "scd2", "surrogate_key": KEY, "durable_key": "dk", "default_members": True}
    every = copy("every", include_members=True)
    shop.star(write, {"on_missing": "skeleton"}, copy("plain"), every, copy("all", versions="all"))
    shop.customers((1, "Ada"))
    shop.orders((1, 7, day(1), 5))
    shop.run()
    assert list(shop.table("plain")[0]) == ["id", "name", "vip", "sk", "dk"]
    assert shop.rows("plain", "id", "sk") == [(1, 1)]
    assert shop.rows("all", "id", "sk") == [(1, 1)]
    assert shop.rows("every", "sk", "_is_skeleton") == [
        (-1, False), (-2, False), (1, False), (2, True)]  # fmt: skip


def test_late_history_moves_only_the_facts_that_it_concerns(shop: Shop) -> None:
    columns = [("id", "int"), ("name", "string"), ("since", "timestamp")]
    write = {"mode": "scd2", "surrogate_key": KEY, "durable_key": "dk", "effective_at": "since"}
    shop.star(write, {"event_time": "at", "repoint": True})
    shop.put("customers", columns, (1, "Ada", day(1)), (2, "Bob", day(1)))
    shop.orders((1, 1, day(2), 5), (2, 1, day(9), 5), (3, 2, day(9), 5))
    shop.run()
    assert shop.rows("fact", "o", "sk") == [(1, 1), (2, 1), (3, 2)]
    shop.put("customers", columns, (1, "Eve", day(5)))  # known late, true since the 5th
    moved = shop.run()
    assert (moved["fact"].updated, moved["fact"].inserted) == (1, 0)
    assert shop.rows("dim", "id", "name", "sk", "dk") == [
        (1, "Ada", 1, 1), (1, "Eve", 3, 1), (2, "Bob", 2, 2)]  # fmt: skip
    assert shop.rows("fact", "o", "sk") == [(1, 1), (2, 3), (3, 2)]


@pytest.mark.long_on_spark
def test_a_version_whose_start_moves_keeps_its_key_and_its_facts(shop: Shop) -> None:
    columns = [("id", "int"), ("name", "string"), ("since", "timestamp")]
    write = {"mode": "scd2", "surrogate_key": {"column": "sk"}, "effective_at": "since"}
    shop.star(write, {"event_time": "at", "repoint": True})
    shop.put("customers", columns, (1, "Ada", day(5)), (1, "Eve", day(8)))
    shop.orders((1, 1, day(6), 5), (2, 1, day(9), 5), (3, 1, day(1), 5))
    shop.run()
    before = shop.rows("dim", "name", "sk")
    facts = shop.rows("fact", "o", "sk")
    shop.put("customers", columns, (1, "Ada", day(3)))  # it was Ada two days before
    moved = shop.run()
    assert (moved["dim"].updated, moved["fact"].version) == (1, None)
    assert ("Ada", day(3)) in shop.rows("dim", "name", "_valid_from")
    assert shop.rows("dim", "name", "sk") == before
    assert shop.rows("fact", "o", "sk") == facts


@pytest.mark.long_on_spark
def test_a_version_that_a_late_event_dissolves_takes_its_facts_along(shop: Shop) -> None:
    """Whatever `repoint` says: the key would lead nowhere."""
    columns = [("id", "int"), ("name", "string"), ("since", "timestamp"), ("n", "int")]
    write = {"mode": "scd2", "surrogate_key": KEY, "effective_at": "since", "sequence_by": "n"}
    shop.star(write, {"event_time": "at"})
    shop.put("customers", columns, (1, "Ada", day(1), 1), (1, "Eve", day(5), 1))
    shop.orders((1, 1, day(2), 5), (2, 1, day(9), 5))
    shop.run()
    assert shop.rows("fact", "o", "sk") == [(1, 1), (2, 2)]
    shop.put("customers", columns, (1, "Ada", day(5), 2))  # it was Ada all the time
    assert shop.run()["fact"].updated == 1
    assert shop.rows("dim", "name", "sk") == [("Ada", 1)]
    assert shop.rows("fact", "o", "sk") == [(1, 1), (2, 1)]


@pytest.mark.long_on_spark
def test_facts_that_are_only_appended_and_have_no_measure(shop: Shop) -> None:
    shop.star({"mode": "upsert", "surrogate_key": KEY}, {}, mode="append", keys=[])
    shop.customers((1, "Ada"), (2, "Bob"))
    visits = [("o", "int"), ("id", "int")]
    shop.put("orders", visits, (1, 1), (2, 2), (3, 5))
    shop.run()
    assert shop.rows("fact", "o", "id", "sk") == [(1, 1, 1), (2, 2, 2), (3, 5, -1)]


@pytest.mark.long_on_spark
def test_a_table_keeps_the_keys_that_it_was_made_with(shop: Shop) -> None:
    shop.customers((1, "Ada"))
    shop.star({"mode": "upsert"}, None)
    shop.run()
    shop.star({"mode": "upsert", "surrogate_key": KEY}, None)
    with pytest.raises(TableError, match="was made without surrogate_key"):
        shop.run()
    shop.star({"mode": "upsert", "table": "other", "surrogate_key": KEY}, None)
    shop.run()
    shop.star({"mode": "upsert", "table": "other", "surrogate_key": {"column": "key"}}, None)
    with pytest.raises(TableError, match="in column `sk`"):
        shop.run()


@pytest.mark.long_on_spark
def test_a_hash_that_is_taken_is_hashed_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """With four bits, ten customers cannot all have the first hash of their key."""
    monkeypatch.setitem(portable._DUCK_OWN, "hex63", "CAST('0x' || SUBSTRING({0}, 1, 1) AS BIGINT)")
    monkeypatch.setitem(
        portable._SPARK_OWN, "hex63", "CAST(CONV(SUBSTRING({0}, 1, 1), 16, 10) AS BIGINT)"
    )
    shop.star({"mode": "upsert", "surrogate_key": {"column": "sk"}}, None)
    shop.customers(*((n, "x") for n in range(5)))
    shop.run()
    before = shop.rows("dim", "id", "sk")
    shop.customers(*((n, "x") for n in range(10)))
    assert shop.run()["dim"].inserted == 5
    after = shop.rows("dim", "id", "sk")
    assert set(before) <= set(after)
    assert len({sk for _, sk in after}) == 10
    assert {sk for _, sk in after} <= set(range(16))


@pytest.mark.long_on_spark
def test_a_plan_foresees_keys_and_a_kept_one_refuses_early_facts(
    shop: Shop, tmp_path: Path
) -> None:
    shop.star({"mode": "upsert", "surrogate_key": KEY}, {"on_missing": "skeleton"})
    shop.customers((1, "Ada"))
    shop.orders((1, 1, day(1), 5), (2, 7, day(1), 5))
    plan = shop.project.plan(platform=shop.platform)
    assert [(n.name, n.status, n.inserted) for n in plan.nodes] == [
        ("dim", "success", 1), ("fact", "success", 2)]  # fmt: skip
    refused = shop.project.plan(platform=shop.platform, out=tmp_path / "plan").nodes[1].error
    assert refused is not None
    assert "skeleton" in refused["message"]
    shop.orders((1, 1, day(1), 5))
    shop.project.plan(platform=shop.platform, out=tmp_path / "plan")
    shop.project.follow(tmp_path / "plan", platform=shop.platform, check=True)
    assert shop.rows("fact", "o", "sk") == [(1, 1)]
    assert {n.version for n in shop.run().values()} == {None}


@pytest.mark.parametrize(
    "story",
    [
        test_a_member_fills_its_skeleton_and_undo_takes_both,
        test_late_history_moves_only_the_facts_that_it_concerns,
        test_reads_leave_out_what_no_source_has_brought,
        pytest.param(
            test_undo_of_a_facts_run_takes_its_skeletons_and_no_number_comes_again,
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_star_in_iceberg_tables_is_the_same(
    tmp_path: Path, pandas_platform: Platform, monkeypatch: pytest.MonkeyPatch, story: Any
) -> None:
    monkeypatch.setenv(LAKE, "iceberg")
    story(Shop(tmp_path, pandas_platform))


# --- bridges and calendars ---------------------------------------------------------------------------------


def bridge(shop: Shop) -> None:
    node = {
        "name": "owners",
        "read": shop.read("owners"),
        "bridge": {"group": "account", "member": "owner", "weight": "share"},
        "write": {"connection": "lake", "table": "owners", "mode": "upsert", "keys": ["account", "owner"]},
    }  # fmt: skip
    shop.project = make_project(shop.folder, [node])


OWNERS = [("account", "int"), ("owner", "int"), ("share", "double")]


@pytest.mark.long_on_spark
def test_owners_of_an_account_share_it(shop: Shop) -> None:
    bridge(shop)
    shop.put("owners", OWNERS, (1, 1, None), (1, 2, None), (2, 1, 0.7), (2, 3, None), (3, 9, 1.0))
    shop.run()
    assert shop.rows("owners", "account", "owner", "share") == [
        (1, 1, 0.5), (1, 2, 0.5), (2, 1, 0.7), (2, 3, 0.3), (3, 9, 1.0)]  # fmt: skip
    shop.put("owners", OWNERS[:2], (4, 1), (4, 2), (4, 3))
    assert shop.run()["owners"].inserted == 3
    assert shop.run()["owners"].version is None


@pytest.mark.long_on_spark
def test_weights_that_do_not_sum_to_1_are_refused_before_the_commit(shop: Shop) -> None:
    bridge(shop)
    shop.put("owners", OWNERS, (1, 1, 0.5), (1, 2, 0.5))
    shop.run()
    for rows in ([(1, 1, 0.6), (1, 2, 0.5)], [(1, 3, 1.0)], [(2, 1, 1.5), (2, 2, None)]):
        shop.put("owners", OWNERS, *rows)
        with pytest.raises(StrandlineError, match=r"must sum to 1.*account=[12]"):
            shop.run()
    assert shop.rows("owners", "account", "owner", "share") == [(1, 1, 0.5), (1, 2, 0.5)]


@pytest.mark.long_on_spark
def test_every_day_of_a_calendar_is_as_python_knows_it(shop: Shop) -> None:
    holidays = [{"date": "2024-12-25", "name": "Christmas 'Day'"}, "2025-01-01"]
    days = {"from": "2019-12-01", "to": "2027-01-31", "fiscal_year_starts": 7, "holidays": holidays}
    to = {"connection": "lake", "table": "days", "mode": "overwrite"}
    shop.project = make_project(shop.folder, [{"name": "days", "calendar": days, "write": to}])
    shop.run()
    found = sorted(shop.table("days"), key=lambda r: r["date"])
    count = (date(2027, 1, 31) - date(2019, 12, 1)).days + 1
    assert len({r["date_key"] for r in found}) == len(found) == count
    for row in found:
        assert row == as_python_knows(row["date"])
    assert shop.run()["days"].version is None


def as_python_knows(d: date) -> Row:
    iso, fiscal = d.isocalendar(), (d.month - 7) % 12
    quarter = (d.month + 2) // 3
    names = {date(2024, 12, 25): "Christmas 'Day'"}
    return {
        "date_key": int(f"{d:%Y%m%d}"), "date": d, "year": d.year, "quarter": quarter,
        "quarter_name": f"{d.year}-Q{quarter}", "month": d.month, "month_name": f"{d:%B}", "day": d.day,
        "day_of_year": d.timetuple().tm_yday, "weekday": iso.weekday, "weekday_name": f"{d:%A}",
        "is_weekend": iso.weekday > 5, "iso_year": iso.year, "iso_week": iso.week,
        "fiscal_year": d.year + (d.month >= 7), "fiscal_quarter": fiscal // 3 + 1, "fiscal_month": fiscal + 1,
        "is_holiday": d in names or d == date(2025, 1, 1), "holiday_name": names.get(d),
    }  # fmt: skip
