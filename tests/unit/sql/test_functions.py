"""What SQL means in process: exactly what Spark answers, value for value and type for type.

`spark.json` holds Spark's own answers over the rows of `rows.py`; Spark is run against them too. To add an expression,
add it with an empty answer, run this on Spark, and copy what it says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from sqlglot import exp
from tests.lab import lab
from tests.unit.sql.rows import ROWS

from strandline.engine.base import Platform
from strandline.errors import TransformError
from strandline.sql.expr import cast, lit, named, select
from strandline.sql.portable import checked_cast, parse
from strandline.sql.tested import refuse_untested
from strandline.testing.frames import spelled
from strandline.testing.oracle import Frame

ANSWERS = json.loads((Path(__file__).parent / "spark.json").read_text(encoding="utf-8"))


def every(nth: int, asked: Iterable[str]) -> list[Any]:
    """All of them; `make test` asks Spark every nth. The answers are its own, and `make long` asks for all of them."""
    return [
        pytest.param(sql, marks=pytest.mark.long_on_spark if n % nth else [])
        for n, sql in enumerate(asked)
    ]


def answer(platform: Platform, sql: str) -> Frame:
    with lab(platform, {"mode": "overwrite"}, transformation_sql=sql) as at:
        at.run(ROWS)
        return at.table()


@pytest.mark.parametrize("chapter", ANSWERS["expressions"])
def test_expressions_mean_what_spark_means(platform: Platform, chapter: str) -> None:
    expected: dict[str, Any] = ANSWERS["expressions"][chapter]
    named = [f"{sql} AS x{n}" for n, sql in enumerate(expected)]
    first = "0" if chapter == "sums" else "source.id"
    found = answer(platform, f"SELECT {first} AS id, {', '.join(named)} FROM source")
    rows, types = sorted(found.rows, key=lambda row: row["id"]), dict(found.columns)
    wrong = []
    for n, (sql, want) in enumerate(expected.items()):
        have = {"type": types[f"x{n}"], "values": [spelled(row[f"x{n}"]) for row in rows]}
        if have != want:
            wrong.append(f"{sql}\n  found    {have}\n  expected {want}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("sql", every(6, ANSWERS["queries"]))
def test_queries_mean_what_spark_means(platform: Platform, sql: str) -> None:
    found, expected = answer(platform, sql), ANSWERS["queries"][sql]
    assert [list(c) for c in found.columns] == expected["columns"]
    assert sorted([spelled(row[n]) for n in found.names] for row in found.rows) == expected["rows"]


REFUSED = [
    "cast(f AS string)",
    "extract(SECOND FROM ts)",
    "round(i, -1)",
    "dt - dt",
    "trunc(dt, 'hour')",
]
BY_NAME = {
    "from_utc_timestamp(ts, 'Europe/Berlin')": "from_utc_timestamp",
    "to_utc_timestamp(ts, 'Europe/Berlin')": "to_utc_timestamp",
    "s[0]": "s[0]",
    "s COLLATE nocase": "collate",
    "cast(s AS array<int>)": "array<int>",
    "cast(s AS interval day)": "interval day",
    "i << 1": "shiftleft",
    "~i": "~i",
    "INTERVAL 1 DAY": "interval",
    "soundex(s)": "soundex()",
}
CLAUSES = {
    "SELECT DISTINCT ON (b) id FROM source": "distinct on",
    "SELECT id FROM source TABLESAMPLE (10 PERCENT)": "tablesample",
    "SELECT id FROM source LATERAL VIEW explode(s) t AS x": "lateral view",
    "SELECT * FROM source PIVOT (sum(i) FOR b IN (true, false))": "pivot",
    "SELECT id, x FROM source, VALUES (1) AS v(x)": "values",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_would_differ_is_refused_in_process(pandas_platform: Platform, sql: str) -> None:
    with pytest.raises(TransformError):
        answer(pandas_platform, f"SELECT id, {sql} AS x FROM source")


@pytest.mark.parametrize("sql", [*BY_NAME, *CLAUSES])
def test_what_is_not_tested_is_refused_by_name(sql: str) -> None:
    with pytest.raises(TransformError) as e:
        refuse_untested(parse(sql, "sql"), "sql")
    assert {**BY_NAME, **CLAUSES}[sql] in e.value.message.lower()


ERRORS = [
    "i / 0",
    "d / 0",
    "i % 0",
    "d / (i - i)",
    "cast('x' AS int)",
    "cast(i AS tinyint)",
    "i * i * i * i * i",
    "to_date('31.12.2024')",
    "year('x')",
    "last_day('x')",
    "date_add('x', 1)",
    "to_date(s)",
]


@pytest.mark.parametrize("sql", every(4, ERRORS))
def test_errors_are_errors_on_both_engines(platform: Platform, sql: str) -> None:
    """ANSI mode: neither a silent NULL nor infinity."""
    with pytest.raises(TransformError):
        answer(platform, f"SELECT id, {sql} AS x FROM source WHERE i IS NOT NULL")


def test_a_column_without_a_type_is_not_written(platform: Platform) -> None:
    found = answer(platform, "SELECT id, NULL AS x FROM source")
    assert found.columns == [("id", "int")]


EXACT = [  # what is cast, its type, the type asked for, and what it is there; None: it does not fit as it is
    ("2.00", "decimal(10,2)", "bigint", "2"),
    ("-1.50", "decimal(10,2)", "bigint", None),
    ("0.5", "double", "int", None),
    ("-3.0", "double", "int", "-3"),
    ("3e9", "double", "int", None),
    ("9223372036854775808", "double", "bigint", None),
    ("NaN", "double", "bigint", None),
    ("1e300", "double", "decimal(38,0)", None),
    ("1.20", "decimal(10,2)", "decimal(10,1)", "1.2"),
    ("1.25", "decimal(10,2)", "decimal(10,1)", None),
    ("99.99", "decimal(4,2)", "decimal(4,1)", None),
    ("123.0", "decimal(4,1)", "decimal(2,0)", None),
    ("1.5", "double", "decimal(10,1)", "1.5"),
    ("0.1", "double", "decimal(38,18)", "0.100000000000000000"),
    ("1.25", "double", "decimal(10,1)", None),
    ("0.5", "float", "decimal(10,2)", "0.50"),
    ("0.5", "decimal(10,2)", "double", "0.5"),
    ("0.1234567890123456789012345678", "decimal(38,28)", "double", None),
    ("9007199254740992", "bigint", "double", "9007199254740992.0"),
    ("9007199254740993", "bigint", "double", None),
    ("9223372036854775807", "bigint", "double", None),
    ("1.5", "double", "float", "1.5"),
    ("1.1", "double", "float", None),
    ("128", "bigint", "tinyint", None),
    ("127", "bigint", "tinyint", "127"),
    ("7", "bigint", "decimal(3,2)", "7.00"),
    ("77", "bigint", "decimal(3,2)", None),
    ("2", "int", "boolean", None),
    ("1", "int", "boolean", "True"),
    ("2024-06-01 00:00:00", "timestamp", "date", "2024-06-01"),
    ("2024-06-01 10:00:00", "timestamp", "date", None),
    ("2024-06-01 00:00:00", "timestamp_ntz", "date", "2024-06-01"),
    ("2024-06-01 00:00:00.000001", "timestamp_ntz", "date", None),
    ("2024-06-01", "date", "timestamp_ntz", "2024-06-01 00:00:00"),
    ("1.200", "string", "decimal(10,1)", "1.2"),
    (".50", "string", "decimal(10,1)", "0.5"),
    ("-1.25", "string", "decimal(10,1)", None),
    ("7.0", "string", "decimal(10,0)", "7"),
    ("7.01", "string", "decimal(10)", None),
    ("7.0", "string", "bigint", None),
    ("x", "string", "decimal(10,1)", None),
]


def test_an_exact_cast_neither_cuts_nor_rounds(platform: Platform) -> None:
    def exact(text: str, source: str, target: str) -> exp.Expr:
        return checked_cast(cast(lit(text), source), source, target, "k", safe=True, exact=True)

    with platform.workspace("exact") as engine:
        row = engine.fetch(
            select(*(named(exact(*case[:3]), f"c{n}") for n, case in enumerate(EXACT)))
        )[0]
    found = [
        (*case[:3], None if value is None else str(value))
        for case, value in zip(EXACT, row, strict=True)
    ]
    assert found == EXACT
