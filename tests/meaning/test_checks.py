"""The step `validate`: exactly the oracle's rows pass, exactly the others are put aside, with the same reasons."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from tests.lab import for_all, lab
from tests.meaning.tables import tables

from strandline.engine.base import Platform
from strandline.errors import ExpectationFailed, TransformError
from strandline.testing import checking
from strandline.testing.frames import assert_same
from strandline.testing.oracle import Frame, comparable, family


def step(*expectations: dict[str, Any]) -> dict[str, Any]:
    return {"operation": "validate", "params": {"expectations": list(expectations)}}


# --- generated checks over generated tables ----------------------------------------------------------------

KINDS = [
    "bigint",
    "decimal(12,2)",
    "double",
    "string",
    "boolean",
    "date",
    "timestamp",
    "timestamp_ntz",
]
VALUES: dict[str, list[Any]] = {
    "integer": [-1, 0, 1, 2, 100],
    "decimal": [-1, 0, 0.5, 1, 1.25, 100],
    "float": [-1, 0, 0.5, 1.5, 100],
    "string": ["", "a", "A", "é", "e\u0301", "😀", "1", "N"],
    "boolean": [True, False],
    "date": ["1970-01-01", "2024-10-27"],
    "timestamp": ["1970-01-01 00:00:00", "2024-10-27 00:30:00"],
    "timestamp_ntz": ["1970-01-01 00:00:00", "2024-10-27 00:30:00"],
}
PATTERNS = ["^a$", "a", "^$", "[0-9]", "^.$"]


@st.composite
def one(draw: DrawFn, frame: Frame) -> dict[str, Any]:
    name, type_ = draw(st.sampled_from(frame.columns))
    kind = family(type_)
    checks = ["not_null", "unique", "accepted_values"]
    checks += ["range"] if kind != "boolean" else []
    checks += ["regex"] if kind == "string" else []
    made: dict[str, Any] = {"check": draw(st.sampled_from(checks)), "column": name}
    match made["check"]:
        case "accepted_values":
            made["values"] = draw(st.lists(st.sampled_from(VALUES[kind]), min_size=1, max_size=3))
        case "range":
            low, high = draw(st.sampled_from(VALUES[kind])), draw(st.sampled_from(VALUES[kind]))
            made |= draw(st.sampled_from([{"min": low}, {"max": high}, {"min": low, "max": high}]))
        case "regex":
            made["pattern"] = draw(st.sampled_from(PATTERNS))
        case "unique":
            del made["column"]
            made["columns"] = draw(
                st.lists(st.sampled_from(frame.names), min_size=1, max_size=2, unique=True)
            )
    return made | {"severity": "quarantine"}


@st.composite
def cases(draw: DrawFn) -> tuple[Frame, list[dict[str, Any]]]:
    frame = draw(tables(1, 4, KINDS, most=15))
    return frame, draw(st.lists(one(frame), min_size=1, max_size=4))


def put_aside(found: Frame, names: list[str]) -> Counter[tuple[Any, ...]]:
    return Counter((*(comparable(row[n]) for n in names), row["_reasons"]) for row in found.rows)


def test_what_passes_and_what_does_not(engine_name: str, platform: Platform) -> None:
    @for_all(engine_name, cases(), share=2)
    def _(case: tuple[Frame, list[dict[str, Any]]]) -> None:
        frame, expectations = case
        expected = checking.checked(frame, expectations)
        with lab(platform, {"mode": "overwrite"}, transform={"steps": [step(*expectations)]}) as at:
            result = at.run(frame)
            assert_same(at.table(), expected.passed)
            assert result.quarantined == len(expected.rejected)
            if expected.rejected:
                aside = at.quarantine()
                want = Counter(
                    (*(comparable(row[n]) for n in frame.names), "; ".join(why))
                    for row, why in expected.rejected
                )
                assert put_aside(aside, frame.names) == want


# --- the checks that generated tables do not reach -----------------------------------------------------------


def through(platform: Platform, frame: Frame, *expectations: dict[str, Any]) -> tuple[Any, Frame]:
    with lab(platform, {"mode": "overwrite"}, transform={"steps": [step(*expectations)]}) as at:
        return at.run(frame), at.table()


AMOUNTS = Frame(
    [("id", "bigint"), ("kind", "string"), ("amount", "decimal(10,2)")],
    [
        {"id": 1, "kind": "a", "amount": Decimal("1.00")},
        {"id": 2, "kind": "b", "amount": Decimal("-1.00")},
        {"id": 3, "kind": "a", "amount": None},
        {"id": None, "kind": None, "amount": Decimal("-2.00")},
    ],
)


def aside(check: dict[str, Any]) -> dict[str, Any]:
    return {**check, "severity": "quarantine"}


def passed(platform: Platform, *expectations: dict[str, Any]) -> list[int | None]:
    return [r["id"] for r in through(platform, AMOUNTS, *expectations)[1].rows]


@pytest.mark.long_on_spark
def test_an_expression_is_true_for_every_row(platform: Platform) -> None:
    found = passed(platform, aside({"check": "sql", "expression": "amount > 0"}))
    assert found == [1]  # NULL is not true


@pytest.mark.long_on_spark
def test_only_some_rows_are_asked(platform: Platform) -> None:
    check = {"check": "range", "column": "amount", "min": 0}
    assert sorted(passed(platform, aside({**check, "where": "kind = 'a'"})), key=str) == [
        1,
        2,
        3,
        None,
    ]
    assert sorted(passed(platform, aside({**check, "where": "kind = 'b'"})), key=str) == [
        1,
        3,
        None,
    ]
    doubled = {"check": "unique", "column": "kind"}
    assert sorted(passed(platform, aside(doubled)), key=str) == [2, None]
    assert len(passed(platform, aside({**doubled, "where": "id <> 3"}))) == 4


@pytest.mark.long_on_spark
def test_a_value_with_a_quote_in_it_and_a_name_for_a_check(platform: Platform) -> None:
    frame = Frame([("v", "string")], [{"v": "it's"}, {"v": "\\d"}, {"v": "no"}])
    known = {
        "check": "accepted_values",
        "name": "known words",
        "column": "v",
        "values": ["it's", "\\d"],
    }
    result, table = through(platform, frame, {**known, "severity": "warn"})
    assert len(table.rows) == 3
    assert any("1 row fails known words(v): v=no" in w for w in result.warnings)


@pytest.mark.long_on_spark
@pytest.mark.parametrize(
    ("days", "age", "fresh"), [(0, "1d", True), (3, "2d", False), (1, "1d", True), (2, "1d", False)]
)
def test_fresh_enough(platform: Platform, days: int, age: str, fresh: bool) -> None:
    now = datetime(2024, 10, 27, 1, 30, 0, 1, tzinfo=UTC)  # of the lab's first run
    for type_, value in (
        ("timestamp", now - timedelta(days=days)),
        ("date", (now - timedelta(days=days)).date()),
        ("timestamp_ntz", (now - timedelta(days=days)).replace(tzinfo=None)),
    ):
        frame = Frame([("t", type_)], [{"t": value}, {"t": None}, {"t": _long_ago(value)}])
        check = {"check": "freshness", "column": "t", "max_age": age, "severity": "warn"}
        assert (not through(platform, frame, check)[0].warnings) is fresh
    empty = Frame([("t", "date")], [])
    assert through(platform, empty, check)[0].warnings


def _long_ago(value: Any) -> Any:
    return value - timedelta(days=1000)


@pytest.mark.long_on_spark
def test_rows_are_counted(platform: Platform) -> None:
    for bounds, fine in (({"min": 5}, False), ({"min": 4, "max": 4}, True), ({"max": 3}, False)):
        result, _ = through(platform, AMOUNTS, {"check": "row_count", "severity": "warn", **bounds})
        assert (not result.warnings) is fine
    some = {"check": "row_count", "min": 2, "where": "kind = 'a'"}
    assert through(platform, AMOUNTS, some)[0].warnings == []


@pytest.mark.long_on_spark
def test_a_query_finds_the_rows_that_are_wrong(platform: Platform) -> None:
    query = "SELECT kind, sum(amount) AS s FROM source GROUP BY kind HAVING sum(amount) < 0"
    with pytest.raises(ExpectationFailed) as failed:
        through(platform, AMOUNTS, {"check": "failing_rows", "name": "no losses", "query": query})
    assert "no losses: the query finds 2 rows" in failed.value.message


@pytest.mark.long_on_spark
def test_values_of_the_wrong_kind_are_an_error(platform: Platform) -> None:
    for check in (
        {"check": "range", "column": "amount", "min": "a lot"},
        {"check": "accepted_values", "column": "id", "values": ["one"]},
        {"check": "regex", "column": "id", "pattern": "1"},
        {"check": "freshness", "column": "id", "max_age": "1d"},
        {"check": "not_null", "column": "idd"},
    ):
        with pytest.raises(TransformError):
            through(platform, AMOUNTS, check)
