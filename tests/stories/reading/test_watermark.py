"""Watermarks: marks survive as text, bounds are typed, and a read is limited to no less than what may be new."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import product

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.config.queries import SqlError
from strandline.config.reads import ReadConfig
from strandline.engine.local.workspace import LocalPlatform
from strandline.errors import ConfigError, ReadError, UnknownColumn
from strandline.lake.delta.types import to_arrow
from strandline.plan.watermark import Mark, advanced, check_expression, limits, raises_bound
from strandline.sql.portable import render
from strandline.testing.projects import make_project
from strandline.types import Schema

NOW = datetime(2024, 6, 15, 12, 30, tzinfo=UTC)
SCHEMA = Schema.of(
    ("Id", "bigint"), ("small", "smallint"), ("price", "decimal(10,2)"), ("day", "date"), ("at", "timestamp"),
    ("local", "timestamp_ntz"), ("code", "string"), ("ratio", "double"), ("flag", "boolean"),
)  # fmt: skip
DECIMALS = st.decimals(min_value=-(10**19), max_value=10**19, places=18)
VALUES = {
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "decimal(38,18)": DECIMALS,
    "decimal(38,38)": st.integers(-(10**38) + 1, 10**38 - 1).map(
        lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -38))
    ),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
    "string": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
}


def read(**how) -> ReadConfig:
    return ReadConfig(connection="erp", table="t", **how)


def stateful(column, **how):
    return read(incremental={"mode": "stateful", "column": column, **how})


def low(config, marks=None, column=None):
    found = limits(config, SCHEMA, marks or {}, NOW, "n")
    return next(iter(found.lows.values()), None)


# --- marks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", VALUES)
@given(data=st.data())
def test_a_mark_survives_as_text(type_, data):
    mark = Mark(data.draw(VALUES[type_]), type_)
    again = Mark.from_json(mark.as_json())
    assert again == mark
    assert str(again.value) == str(mark.value)  # a decimal keeps its scale too
    assert all(isinstance(part, str) for part in mark.as_json())


def test_an_instant_is_stored_in_utc():
    at = datetime(2024, 6, 15, 1, 2, 3, 4, tzinfo=UTC).astimezone(timezone(timedelta(hours=9)))
    assert Mark(at, "timestamp").as_json() == ("2024-06-15 01:02:03.000004+00:00", "timestamp")


def test_a_mark_never_goes_back():
    old = Mark(7, "int")
    assert advanced(old, 5, "int") == old
    assert advanced(old, 9, "int") == Mark(9, "int")
    assert advanced(old, None, "int") == old
    assert advanced(None, None, "int") is None
    assert advanced(None, date(2024, 1, 1), "date") == Mark(date(2024, 1, 1), "date")
    assert advanced(old, 5, "decimal(10,2)") == Mark(Decimal("7.00"), "decimal(10,2)")
    assert advanced(Mark("a", "string"), "Z", "string") == Mark("a", "string")  # code points
    with pytest.raises(ReadError, match=r"date.*mark '7'.*int"):
        advanced(old, date(2024, 1, 1), "date")


# --- stateful ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "type_", "lag", "last", "expected"),
    [
        ("Id", "bigint", None, 100, 100),
        ("Id", "bigint", 7, 100, 93),
        ("Id", "bigint", 0.5, 100, 99),
        ("Id", "bigint", 10, -(2**63) + 1, -(2**63)),
        ("price", "decimal(10,2)", 0.1, Decimal("5.25"), Decimal("5.15")),
        ("price", "bigint", 1, 5, Decimal("4.00")),
        ("day", "date", "25h", date(2024, 6, 15), date(2024, 6, 13)),
        ("day", "date", "2d", date(2024, 6, 15), date(2024, 6, 13)),
        ("day", "date", "2d", date(1, 1, 1), date(1, 1, 1)),
        ("at", "timestamp", "90m", NOW, NOW - timedelta(minutes=90)),
        ("local", "timestamp_ntz", "1s", datetime(2024, 1, 1), datetime(2023, 12, 31, 23, 59, 59)),
        ("local", "timestamp_ntz", "9w", datetime(1, 1, 1), datetime(1, 1, 1)),
        ("code", "string", None, "m", "m"),
        ("code", "string", 0, "m", "m"),
    ],
)
def test_the_bound_is_the_mark_less_the_lag(column, type_, lag, last, expected):
    how = {} if lag is None else {"watermark_lag": lag}
    found = low(stateful(column.upper(), **how), {column.lower(): Mark(last, type_)})
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("column", "lag", "message"),
    [("code", 1, "cannot be taken from column `code`"), ("code", "2h", "type string"), ("at", 5, "type timestamp"),
     ("Id", "2h", "of type bigint"), ("day", 1, "of type date")],
)  # fmt: skip
def test_a_lag_must_suit_its_column(column, lag, message):
    with pytest.raises(ReadError, match=message) as caught:
        low(stateful(column, watermark_lag=lag))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("column", "given_", "expected"),
    [
        ("Id", 5, 5),
        ("Id", "5", 5),
        ("price", 1.5, Decimal("1.50")),
        ("price", "-0.129", Decimal("-0.13")),
        ("day", "2024-02-29", date(2024, 2, 29)),
        ("day", date(2024, 2, 29), date(2024, 2, 29)),
        ("at", "2024-02-29", datetime(2024, 2, 29, tzinfo=UTC)),
        ("at", "2024-02-29T01:00:00.5+02:00", datetime(2024, 2, 28, 23, 0, 0, 500000, tzinfo=UTC)),
        ("at", datetime(2024, 2, 29, 1), datetime(2024, 2, 29, 1, tzinfo=UTC)),
        ("local", date(2024, 2, 29), datetime(2024, 2, 29)),
        ("code", "x", "x"),
    ],
)
def test_the_first_run_starts_at_the_initial_value(column, given_, expected):
    assert low(stateful(column, initial_value=given_)) == expected
    assert low(stateful(column)) is None
    assert limits(stateful(column), SCHEMA, {}, NOW, "n").predicate is None


@pytest.mark.parametrize(
    ("column", "given_", "found", "expected"),
    [
        ("Id", "soon", "'soon'", "a whole number like 42"),
        ("Id", 1.5, "'1.5'", "a whole number"),
        ("small", 70000, "70000", "does not fit smallint"),
        ("day", "2024-02-30", "'2024-02-30'", "a date like 2024-01-31"),
        ("day", 20240101, "20240101", "a date like"),
        ("day", datetime(2024, 1, 1, 5), "2024-01-01 05:00:00", "a date like"),
        ("at", "yesterday", "'yesterday'", "a timestamp like"),
        ("local", "2024-01-01 00:00:00Z", "'2024-01-01 00:00:00Z'", "without a zone"),
        ("code", 5, "5", "a text"),
    ],
)
def test_an_initial_value_of_another_kind_is_an_error(column, given_, found, expected):
    with pytest.raises(ReadError) as caught:
        low(stateful(column, initial_value=given_))
    assert found in str(caught.value)
    assert expected in str(caught.value)
    assert f"`{column}`" in str(caught.value)


@pytest.mark.parametrize("column", ["ratio", "flag"])
def test_floats_and_booleans_are_no_watermarks(column):
    with pytest.raises(ReadError, match=f"column `{column}` has type (double|boolean)"):
        low(stateful(column))


def test_an_unknown_column_is_named():
    with pytest.raises(UnknownColumn, match="`idd`"):
        low(stateful("idd"))


@pytest.mark.parametrize(
    ("column", "mark"),
    [
        ("at", Mark(date(2024, 1, 1), "date")),
        ("Id", Mark(Decimal("5.00"), "decimal(10,2)")),
        ("code", Mark(5, "int")),
        ("small", Mark(70000, "bigint")),
        ("local", Mark(NOW, "timestamp")),
    ],
)
def test_a_mark_of_another_type_is_an_error_that_names_both(column, mark):
    with pytest.raises(
        ReadError, match=r"is of type .* now, but its last mark .* is of type"
    ) as caught:
        low(stateful(column), {column: mark})
    assert mark.type in str(caught.value)
    assert caught.value.hint


# --- rolling window ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("day", date(2024, 6, 8)),
        ("at", datetime(2024, 6, 8, 12, 30, tzinfo=UTC)),
        ("local", datetime(2024, 6, 8, 12, 30)),
    ],
)
def test_a_rolling_window_looks_back_from_now(column, expected):
    config = read(incremental={"mode": "rolling_window", "column": column, "lookback": "7d"})
    found = limits(config, SCHEMA, {column: Mark("ignored", "string")}, NOW, "n")
    assert found.lows == {column: expected}
    assert [c.name for c in found.columns] == [column]


def test_a_rolling_window_needs_a_time():
    with pytest.raises(ReadError, match="column `Id` has type bigint"):
        low(read(incremental={"mode": "rolling_window", "column": "id", "lookback": "7d"}))


def test_files_without_a_column_have_no_limits_here():
    config = ReadConfig(connection="f", path="*.csv", incremental={"mode": "stateful"})
    found = limits(config, SCHEMA, {}, NOW, "n")
    assert (found.predicate, found.lows, found.columns) == (None, {}, ())


# --- lists and expressions ---------------------------------------------------------------------------------

AT, DAY, ID = Mark(NOW, "timestamp"), Mark(date(2024, 6, 15), "date"), Mark(100, "bigint")


@pytest.mark.parametrize(
    ("column", "mark", "expression", "expected"),
    [
        ("at", AT, "'${last_value}'", NOW),
        ("at", AT, '"${last_value}"', NOW),
        ("at", AT, "date_sub('${last_value}', 7)", datetime(2024, 6, 8, tzinfo=UTC)),
        ("at", AT, "CAST('${last_value}' AS DATE)", datetime(2024, 6, 15, tzinfo=UTC)),
        ("day", DAY, "date_add('${last_value}', -(1 + 2) * 2)", date(2024, 6, 9)),
        ("day", DAY, "'${last_value}' - 7", date(2024, 6, 8)),
        ("day", None, "DATE '2024-01-01'", date(2024, 1, 1)),
        ("Id", ID, "'${last_value}' - 10", 90),
        ("Id", ID, "'${last_value}' / 3", 33),
        ("Id", ID, "-'${last_value}' / 3", -34),
        ("Id", ID, "'${last_value}' - CAST('2.75' AS DECIMAL(3,1))", 97),
        ("price", Mark(Decimal("1.10"), "decimal(10,2)"), "'${last_value}' * 1.5", Decimal("1.65")),
        ("price", ID, "'${last_value}' / 3", Decimal("33.33")),
        ("code", Mark("2024-06-15", "string"), "date_sub('${last_value}', 7)", "2024-06-08"),
        ("code", Mark("1099", "string"), "CAST('${last_value}' AS INT) - 9", "1090"),
        (
            "local",
            Mark(datetime(2024, 1, 2, 3), "timestamp_ntz"),
            "date_sub('${last_value}', 1)",
            datetime(2024, 1, 1),
        ),
        ("at", None, "'${last_value}'", None),
        ("day", None, "date_sub('${last_value}', 7)", None),
    ],
)
def test_an_expression_is_worked_out_in_the_type_of_its_column(column, mark, expression, expected):
    check_expression(expression)
    config = read(watermark=[{"column_name": column, "expression": expression}])
    found = low(config, {column: mark} if mark else {})
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("current_date()", "CURRENT_DATE"),
        ("max(at)", "MAX(at)"),
        ("at", "`at`"),
        ("(SELECT 1)", "SELECT 1"),
        ("'${last_value}' - INTERVAL 2 HOURS", "INTERVAL"),
        ("try_cast('${last_value}' AS INT)", "TRY_CAST"),
        ("'${last_value}' || 'x'", "||"),
        ("'${last_value} 00:00'", "holds more than"),
        ("${last_value}", "without quotes"),
        ("1e5", "1e5"),
        ("1; 2", "1"),
        ("'a' + 1", "text"),
        ("1 / 0", "zero"),
        ("CAST('${last_value}' AS DOUBLE)", "double"),
        ("date_sub('${last_value}', 0.5)", "part of a day"),
        ("date_sub('${last_value}'", "parsed"),
        ("__import__('os').system('true')", "__import__"),
        ("(" * 499 + "1" + ")" * 499, "deep"),
        ("99999999999999999999 * " * 40 + "1", "too large"),
    ],
)
def test_what_is_outside_the_grammar_is_refused_by_name(expression, named):
    with pytest.raises(SqlError) as caught:
        check_expression(expression)
    assert named.casefold() in caught.value.message.casefold()


def test_a_project_file_is_told_where_its_expression_is_wrong(tmp_path):
    entry = {"column_name": "at", "expression": "now()"}
    node = {"name": "n", "read": {"connection": "erp", "table": "t", "watermark": [entry]},
            "write": {"connection": "lake", "table": "t", "mode": "overwrite"}}  # fmt: skip
    connections = {"erp": {"type": "sql", "url": "sqlite:///shop.db"}}
    with pytest.raises(ConfigError, match=r"watermark.*expression.*may not stand in an expression"):
        make_project(tmp_path, [node], connections=connections)
    entry["expression"] = "date_sub('${last_value}', 7)"
    config = make_project(tmp_path, [node], connections=connections).config.config
    assert config.nodes[0].read.watermark[0].expression == entry["expression"]


def test_an_expression_that_fails_at_run_time_names_its_column():
    config = read(watermark=[{"column_name": "code", "expression": "date_sub('${last_value}', 1)"}])
    with pytest.raises(ReadError, match=r"column `code`.*'x' is not a timestamp"):
        low(config, {"code": Mark("x", "string")})


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("'${last_value}'", False),
        ("date_sub('${last_value}', 7)", False),
        ("date_add('${last_value}', 0)", False),
        ("date_add('${last_value}', 1)", True),
        ("'${last_value}' + 1", True),
        ("'${last_value}' - -1", True),
        ("'${last_value}' * 2", True),
        ("'${last_value}' - 1", False),
        ("CAST('${last_value}' AS DATE)", False),
        ("CAST('${last_value}' AS TIMESTAMP)", False),
        ("CAST('${last_value}' AS STRING)", False),
        ("CAST('${last_value}' AS BIGINT)", False),
        ("CAST('${last_value}' AS BIGINT) - 100", False),
        ("CAST('${last_value}' AS INT) - 5", False),
        ("CAST('${last_value}' AS DECIMAL(10,2)) - 5.5", False),
        ("CAST(CAST('${last_value}' AS BIGINT) - 100 AS DECIMAL(20,0))", False),
        ("date_sub(CAST('${last_value}' AS DATE), 7)", False),
        ("CAST('${last_value}' AS BIGINT) + 1", True),
        ("CAST('${last_value}' AS DECIMAL(10,2)) + 0.01", True),
        ("CAST('${last_value}' AS INT) * 2 - 1", True),
        ("CAST('${last_value}' AS INT) / 2", True),  # of what is below zero
        ("date_add(CAST('${last_value}' AS DATE), 1)", True),
        ("date_add(CAST('${last_value}' AS TIMESTAMP), 1)", True),
        ("DATE '2024-01-01'", False),
    ],
)
def test_a_bound_above_the_last_value_is_known(expression, expected):
    assert raises_bound(expression) is expected


@pytest.mark.parametrize(
    ("column", "last", "expression", "gives"),
    [
        ("code", "1000", "CAST('${last_value}' AS BIGINT) - 100", "'900'"),
        ("price", Decimal("-1000.50"), "CAST('${last_value}' AS INT)", "'-1000.00'"),
        ("price", Decimal("1000.50"), "CAST('${last_value}' AS DECIMAL(10,0))", "'1001.00'"),
    ],
)
def test_a_bound_that_rises_in_its_column_is_an_error(column, last, expression, gives):
    config = read(watermark=[{"column_name": column, "expression": expression}])
    marks = {column: Mark(last, SCHEMA.get(column).type)}
    with pytest.raises(
        ReadError, match=rf"column `{column}`.* gives {gives}, which is above the last value"
    ):
        low(config, marks)


def test_a_bound_that_is_meant_to_rise_is_none():
    config = read(watermark=[{"column_name": "Id", "expression": "'${last_value}' + 1"}])
    assert low(config, {"Id": Mark(7, "bigint")}) == 8
    config = read(
        watermark=[{"column_name": "code", "expression": "CAST('${last_value}' AS BIGINT) - 7"}]
    )
    assert low(config, {"code": Mark("20240615", "string")}) == "20240608"


# --- predicates --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def duck():
    with LocalPlatform().workspace("marks") as workspace:
        yield workspace.connection


def kept(duck, predicate, rows, types):
    """Which rows DuckDB keeps, by their place."""
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    arrays = [
        pa.array(values, to_arrow(type_)) for values, (_, type_) in zip(columns, types, strict=True)
    ]
    duck.register(
        "t",
        pa.table([pa.array(range(len(rows))), *arrays], names=["i", *(name for name, _ in types)]),
    )
    where = render(predicate, "duckdb") if predicate is not None else "TRUE"
    found = [r[0] for r in duck.execute(f"SELECT i FROM t WHERE {where} ORDER BY i").fetchall()]
    duck.unregister("t")
    return found


@pytest.mark.parametrize("type_", VALUES)
@given(data=st.data())
def test_the_predicate_keeps_what_python_would(duck, type_, data):
    values = data.draw(st.lists(st.none() | VALUES[type_], max_size=6))
    last = data.draw(
        VALUES[type_] | st.sampled_from([v for v in values if v is not None] or [None])
    )
    marks = {"C": Mark(last, type_)} if last is not None else {}
    found = limits(stateful("c"), Schema.of(("c", type_)), marks, NOW, "n")
    digits = isinstance(last, str) and re.fullmatch(
        "[0-9]+", last
    )  # wider ones are read too, and refused
    expected = [
        i
        for i, v in enumerate(values)
        if last is None or v is None or v >= last or (digits and len(v) > len(last))
    ]
    assert kept(duck, found.predicate, [(v,) for v in values], [("c", type_)]) == expected


@given(
    how=st.lists(
        st.tuples(st.sampled_from(["and", "or"]), st.sampled_from([None, 1, "x"])),
        min_size=1,
        max_size=4,
    ),
    lasts=st.lists(st.sampled_from([None, 1, 2]), min_size=4, max_size=4),
)
def test_entries_join_within_groups_and_groups_by_and(duck, how, lasts):
    names = ["a", "b", "c", "d"][: len(how)]
    entries = [
        {"column_name": n, "operation": op, "operation_group": group}
        for n, (op, group) in zip(names, how, strict=True)
    ]
    marks = {n: Mark(v, "int") for n, v in zip(names, lasts, strict=False) if v is not None}
    types = [(n, "int") for n in names]
    found = limits(read(watermark=entries), Schema.of(*types), marks, NOW, "n")
    rows = list(product([None, 0, 1], repeat=len(names)))
    expected = []
    for place, row in enumerate(rows):
        groups = {}
        for (op, group), name, value in zip(how, names, row, strict=True):
            one = name not in marks or value is None or value >= marks[name].value
            before = groups.get(group)
            groups[group] = (
                one if before is None else (before or one) if op == "or" else (before and one)
            )
        if all(groups.values()):
            expected.append(place)
    assert kept(duck, found.predicate, rows, types) == expected
    assert found.lows == {n: m.value for n, m in marks.items()}
