"""Values that would make a watermark lie: texts whose order is not that of what they say, and times in the future."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from strandline.plan.text_order import latest, ordered_as_text, signature
from strandline.plan.watermark import Mark, in_the_future
from strandline.testing.frames import read_table
from strandline.testing.projects import execute, make_project

NOW = datetime(2024, 6, 15, 12, 30, 5, 250, tzinfo=UTC)


class Landing:
    """A file with an id and a watermark column `at`, read incrementally into a table."""

    def __init__(
        self, folder: Path, platform: Any, type_: str, mode: str = "append", *, listed: bool = False
    ) -> None:
        self.folder, self.platform, self.mode, self.listed = folder, platform, mode, listed
        self.rows: dict[int, str] = {}
        self.declare(type_)

    def declare(self, type_: str, *steps: dict[str, Any]) -> None:
        stateful = {"incremental": {"mode": "stateful", "column": "at"}}
        entries = {"watermark": [{"column_name": "at", "expression": "'${last_value}'"}]}
        how = entries if self.listed else stateful
        read = {
            "connection": "files",
            "path": "rows.csv",
            "schema": {"id": "bigint", "at": type_},
            **how,
        }
        write = {"connection": "lake", "table": "t", "mode": self.mode}
        keys = {"keys": ["id"]} if self.mode == "upsert" else {}
        node = {
            "name": "n",
            "read": read,
            "transform": {"steps": [*steps]},
            "write": {**write, **keys},
        }
        self.project = make_project(self.folder, [node])

    def land(self, **rows: str) -> Any:
        self.rows |= {int(k[1:]): v for k, v in rows.items()}
        lines = ["id,at", *(f"{i},{at}" for i, at in self.rows.items())]
        (self.folder / "landing" / "rows.csv").write_text("\n".join(lines) + "\n")
        return self.project.run(platform=self.platform).nodes[0]

    @property
    def ids(self) -> list[int]:
        return sorted(r["id"] for r in read_table(self.folder / "lake" / "t").rows)

    @property
    def mark(self) -> Any:
        (row,) = self.project.store.all_control()
        return Mark.from_json(row.covered.marks["at"])


# --- text --------------------------------------------------------------------------------------------------------


@pytest.mark.long_on_spark
def test_texts_whose_order_is_not_theirs_are_refused(tmp_path: Path, platform: Any) -> None:
    place = Landing(tmp_path, platform, "string")
    assert place.land(r1="08", r2="09").status == "success"
    failed = place.land(r3="10", r4="9").error
    assert "column `at` is ordered as text, and holds '09' and '9': " in failed["message"]
    assert "`schema" in failed["hint"]
    assert "cast" in failed["hint"]
    assert failed["line"]
    assert place.ids == [1, 2]


@pytest.mark.parametrize("listed", [False, True], ids=["stateful", "a list of watermarks"])
def test_digits_that_get_longer_between_two_runs_are_seen(
    tmp_path: Path, pandas_platform: Any, listed: bool
) -> None:
    """'10' stands before '9' as text, and would not be read."""
    place = Landing(tmp_path, pandas_platform, "string", listed=listed)
    place.land(r1="9")
    failed = place.land(r2="10")
    assert "'9' and '10'" in failed.error["message"]
    as_before = {"operation": "cast", "params": {"columns": {"at": "string"}}}
    place.declare("bigint", as_before)  # as the hint says: the watermark goes on as a number
    assert place.land(r3="11").status == "success"
    assert place.ids == [1, 2, 3]


def test_digits_that_get_longer_are_read_from_a_database(
    tmp_path: Path, pandas_platform: Any
) -> None:
    execute(
        tmp_path / "erp.db", "CREATE TABLE s (id INTEGER, at TEXT)", "INSERT INTO s VALUES (1, '9')"
    )
    read = {"connection": "erp", "table": "s", "incremental": {"mode": "stateful", "column": "at"}}
    write = {"connection": "lake", "table": "t", "mode": "append"}
    erp = {"erp": {"type": "sql", "url": "sqlite:///erp.db"}}
    project = make_project(tmp_path, [{"name": "n", "read": read, "write": write}], connections=erp)
    assert project.run(platform=pandas_platform).exit_code == 0
    execute(tmp_path / "erp.db", "INSERT INTO s VALUES (2, '10')")
    (failed,) = project.run(platform=pandas_platform).nodes
    assert "'9' and '10'" in failed.error["message"]


@pytest.mark.parametrize(
    "texts",
    [
        ("0009", "0010"),
        ("2024-01-31", "2024-02-01"),
        ("2024-01-31 10:00", "2024-02-01 09:00"),
        ("2024-01-31T10:00:00.5Z", "2024-02-01T09:00:00.0Z"),
        ("2024-01-31T10:00:00+02:00", "2024-02-01T09:00:00+02:00"),
        ("2024-01", "2024-02"),
    ],
)
def test_texts_of_one_shape_are_a_watermark(
    tmp_path: Path, pandas_platform: Any, texts: tuple[str, str]
) -> None:
    place = Landing(tmp_path, pandas_platform, "string")
    for i, text in enumerate(texts):
        assert place.land(**{f"r{i}": text}).status == "success"
    assert place.ids == [0, 1]
    assert place.mark.value == texts[1]


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        (("2024-01-31", "2024-02-01 00:00"), "'2024-01-31' and '2024-02-01 00:00'"),
        (("2024-01-31", "31.01.2024"), "'31.01.2024' and '2024-01-31'"),
        (("2024-01-31T10:00:00+02:00", "2024-02-01T09:00:00+01:00"), "+02:00'"),
        (("A1", "A2"), "'A1' and 'A2'"),
        (("x", "x"), "'x'"),
    ],
)
def test_other_texts_are_refused_on_the_first_run(
    tmp_path: Path, pandas_platform: Any, texts: tuple[str, str], named: str
) -> None:
    place = Landing(tmp_path, pandas_platform, "string")
    failed = place.land(r1=texts[0], r2=texts[1])
    assert named in failed.error["message"]
    assert not (tmp_path / "lake" / "t").exists()


def test_a_text_without_values_is_no_fault(tmp_path: Path, pandas_platform: Any) -> None:
    place = Landing(tmp_path, pandas_platform, "string")
    assert place.land(r1="").status == "success"
    assert place.ids == [1]


@pytest.mark.parametrize(
    ("text", "expected"), [("0012", True), ("2024-W05", True), ("1.5", False), ("", False)]
)
def test_which_texts_stand_in_their_order(text: str, expected: bool) -> None:
    assert ordered_as_text(signature(text)) is expected


# --- the future --------------------------------------------------------------------------------------------------


def test_a_time_in_the_future_does_not_stop_the_reads(tmp_path: Path, platform: Any) -> None:
    place = Landing(tmp_path, platform, "date")
    today = datetime.now(UTC).date()
    first = place.land(r1="2024-01-01", r2="2999-12-31")
    assert place.mark.value == date(2024, 1, 1)
    (told,) = first.warnings
    assert told.startswith(
        "a value of column `at` is 2999-12-31, which lies in the future: the watermark stays"
    )
    again = place.land(r3=str(today))
    assert (again.warnings, again.inserted) == (
        [],
        1,
    )  # told once, and the row of the future is not doubled
    assert place.ids == [1, 2, 3]
    (told,) = place.land(r4="3000-01-01").warnings
    assert "3000-01-01" in told
    assert place.mark.value == today
    assert place.project.store.all_control()[0].covered.window["at"][1] == "3000-01-01"


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("listed", [False, True], ids=["stateful", "a list of watermarks"])
@pytest.mark.parametrize(
    ("type_", "form"),
    [
        ("timestamp_ntz", "%Y-%m-%d %H:%M:%S"),
        ("timestamp", "%Y-%m-%d %H:%M:%S"),
        ("string", "%Y-%m-%dT%H:%M:%S"),
        ("string", "%Y-%m-%dT%H:%M:%SZ"),
    ],
)
def test_no_kind_of_time_stops_the_reads(
    tmp_path: Path, pandas_platform: Any, mode: str, listed: bool, type_: str, form: str
) -> None:
    place = Landing(tmp_path, pandas_platform, type_, mode, listed=listed)
    place.land(r1=datetime(2999, 12, 31, tzinfo=UTC).strftime(form))
    now = datetime.now(UTC)
    for id_, ago in ((2, 2), (3, 1)):
        assert (
            place.land(**{f"r{id_}": (now - timedelta(minutes=ago)).strftime(form)}).inserted == 1
        )
    assert place.land().rows_read == 2  # that of the future, and the last one
    assert place.ids == [1, 2, 3]


def test_numbers_have_no_future(tmp_path: Path, pandas_platform: Any) -> None:
    place = Landing(tmp_path, pandas_platform, "bigint")
    assert place.land(r1="29991231").warnings == []
    assert place.mark.value == 29991231


def test_a_file_written_in_the_future_does_not_stop_the_reads(
    tmp_path: Path, pandas_platform: Any
) -> None:
    read = {
        "connection": "files",
        "path": "*.csv",
        "schema": {"id": "bigint"},
        "incremental": {"mode": "stateful"},
    }
    write = {"connection": "lake", "table": "t", "mode": "append"}
    project = make_project(tmp_path, [{"name": "n", "read": read, "write": write}])
    future = datetime(2999, 12, 31, tzinfo=UTC).timestamp()
    for i, (name, at) in enumerate([("a", future), ("b", None), ("c", None)]):
        file = tmp_path / "landing" / f"{name}.csv"
        file.write_text(f"id\n{i}\n")
        if at is not None:
            os.utime(file, (at, at))
        (result,) = project.run(platform=pandas_platform, check=True).nodes
        assert bool(result.warnings) is (at is not None)
        assert result.inserted == 1


def test_how_late_a_time_may_be() -> None:
    def limit(value: Any, type_: str, **how: Any) -> Any:
        return in_the_future(value, type_, NOW, **how)

    far = datetime(2999, 1, 1, tzinfo=UTC)
    assert limit(far, "timestamp") == NOW + timedelta(minutes=5)
    assert limit(far.replace(tzinfo=None), "timestamp_ntz") == (NOW + timedelta(hours=24)).replace(
        tzinfo=None
    )
    assert limit(date(2999, 1, 1), "date") == date(2024, 6, 16)
    assert limit(date(2024, 6, 16), "date") is None
    assert limit(NOW + timedelta(minutes=5), "timestamp") is None
    assert limit(NOW + timedelta(hours=20), "timestamp", recorded=True) is None
    assert limit(29991231, "bigint") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2999-12-31", "2024-06-16"),
        ("2999-12", "2024-06"),
        ("2999-12-31 23:59", "2024-06-16 12:30"),
        ("2999-12-31T23:59:59.999", "2024-06-16T12:30:05.000"),
        ("2999-12-31T23:59:59Z", "2024-06-15T12:35:05Z"),
        ("2999-12-31T23:59:59+02:00", "2024-06-15T14:35:05+02:00"),
        ("29991231", None),
        ("2999-W01", None),
    ],
)
def test_the_latest_time_in_the_shape_of_a_text(text: str, expected: str | None) -> None:
    assert latest(text, NOW) == expected


def test_a_column_of_a_list_that_holds_nulls_alone(tmp_path: Path, pandas_platform: Any) -> None:
    entries = [{"column_name": c, "expression": "'${last_value}'"} for c in ("id", "at")]
    read = {
        "connection": "files",
        "path": "r.csv",
        "schema": {"id": "bigint", "at": "date"},
        "watermark": entries,
    }
    write = {"connection": "lake", "table": "t", "mode": "append"}
    project = make_project(tmp_path, [{"name": "n", "read": read, "write": write}])
    (tmp_path / "landing" / "r.csv").write_text("id,at\n1,\n")
    assert project.run(platform=pandas_platform, check=True).exit_code == 0
