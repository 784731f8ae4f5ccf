"""Every function that the local engine knows, over rows on which engines part ways: Spark's own answers, exactly.

`hostile.json` holds what Spark answers over the rows of `hostile.py`, asked in a few large queries; Spark is run
against it too. Lists that have no order are sorted before they are compared; measures of doubles, whose last digit
depends on the order of the rows in Spark itself, are rounded in the SQL.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlglot import exp
from tests.lab import lab
from tests.unit.sql.hostile import HOSTILE

from strandline.engine.base import Platform
from strandline.errors import ConfigError, TransformError
from strandline.sql import functions
from strandline.sql.answers import ANSWERS as ANSWERS_OF_PYTHON
from strandline.sql.expr import rows_of
from strandline.sql.function_table import FAMILIES
from strandline.sql.macros import MACROS
from strandline.sql.names import CALLED, KNOWN_NAMES, PARSED
from strandline.sql.portable import DUCK_MACROS, parse, render
from strandline.sql.tested import deterministic, refuse_untested
from strandline.testing.frames import spelled
from strandline.testing.oracle import Frame
from strandline.testing.projects import make_project
from strandline.transform.sql import run_query

HERE = Path(__file__).parent
ANSWERS: dict[str, dict[str, Any]] = json.loads((HERE / "hostile.json").read_text(encoding="utf-8"))
CLOCKS = {"curdate", "current_date", "current_timestamp", "localtimestamp", "now"}
OPERATORS = {"regexp", "rlike"}  # tried without brackets


def answer(platform: Platform, sql: str) -> Frame:
    with lab(platform, {"mode": "overwrite"}, transformation_sql=sql) as at:
        at.run(HOSTILE)
        return at.table()


@pytest.mark.parametrize("chapter", ANSWERS)
def test_functions_answer_as_spark_does(platform: Platform, chapter: str) -> None:
    expected = ANSWERS[chapter]
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


def test_every_function_is_asked() -> None:
    spark = json.loads((HERE / "spark.json").read_text(encoding="utf-8"))
    chapters = [*ANSWERS.values(), *spark["expressions"].values(), spark["queries"]]
    asked = "\n".join(sql for chapter in chapters for sql in chapter).lower()
    never = {name for name in KNOWN_NAMES if not re.search(rf"\b{name}\s*\(", asked)}
    assert never == CLOCKS | OPERATORS
    assert all(re.search(rf"\b{name}\b", asked) for name in OPERATORS)


def test_every_function_has_a_rule_and_is_counted() -> None:
    assert {family: set(rules) for family, rules in FAMILIES.items()} == {
        family: set(names.split()) for family, names in CALLED.items()
    }
    assert len(KNOWN_NAMES) >= 150


def test_every_function_of_ours_that_a_rule_calls_is_there() -> None:
    """A rule that calls a macro which nobody wrote would fail only for the users of that rule."""
    source = "\n".join(
        file.read_text(encoding="utf-8") for file in Path(functions.__file__).parent.glob("*.py")
    )
    called = {name.lower() for name in re.findall(r'"(strandline_\w+)"', source, re.IGNORECASE)}
    written = {
        m.lower() for text in (*MACROS, *DUCK_MACROS) for m in re.findall(r"MACRO (\w+)\(", text)
    }
    rendered = {
        "strandline_by_name"
    }  # a mark inside a tree, which each dialect spells in its own way
    known = written | rendered | set(ANSWERS_OF_PYTHON)
    assert called <= known, called - known


def test_the_documentation_lists_every_function() -> None:
    text = (HERE.parents[2] / "docs" / "sql.md").read_text(encoding="utf-8")
    for family, names in CALLED.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| {family} |"))
        wanted = {*names.split(), *PARSED.get(family, "").split()}
        listed = set(re.findall(r"`(\w+)`", row))
        assert listed == wanted, f"{family}: {sorted(listed ^ wanted)}"


def test_the_clock_shows_the_instant_of_the_run(pandas_platform: Platform) -> None:
    """One instant for all rows and all functions, in UTC."""
    clocks = (
        "current_date AS a, current_date() AS b, curdate() AS c, now() AS d, current_timestamp AS e"
    )
    sql = f"SELECT id, {clocks}, localtimestamp() AS f, unix_timestamp() AS g FROM source WHERE id < 3"
    with lab(pandas_platform, {"mode": "overwrite"}, transformation_sql=sql) as at:
        at.run(HOSTILE)
        found, now = at.table(), at.clock.now
    day, seconds = now.astimezone(UTC).date(), int(now.timestamp())
    plain = now.astimezone(UTC).replace(tzinfo=None)
    assert dict(found.columns) == {
        "id": "int", "a": "date", "b": "date", "c": "date", "d": "timestamp", "e": "timestamp", "f": "timestamp_ntz",
        "g": "bigint",
    }  # fmt: skip
    for row in found.rows:
        assert [row[name] for name in "abcdefg"] == [day, day, day, now, now, plain, seconds]


@pytest.mark.parametrize(
    "sql", ["now()", "curdate()", "current_date", "localtimestamp()", "unix_timestamp()"]
)
def test_a_clock_is_no_value_to_rely_on(sql: str) -> None:
    assert not deterministic(f"SELECT id FROM source WHERE dt < {sql}")


REFUSED = {
    "soundex(s)": "soundex()",
    "CONCATWS(',', s)": "CONCATWS()",
    "approx_count_distinct(s)": "count(DISTINCT",
    "first(s)": "first_value",
    "mode(s)": "mode()",
    "typeof(s)": "typeof()",
    "rand()": "rand()",
    "transform(array(1), x -> x + 1)": "transform()",
    "explode(array(1))": "explode()",
    "percentile_cont(0.5) WITHIN GROUP (ORDER BY f)": "percentile_cont",
    "iif(b, 1, 2)": "iif()",
    "sin(f)": "sin()",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_is_not_known_is_refused_as_it_was_written(sql: str) -> None:
    with pytest.raises(TransformError) as e:
        refuse_untested(parse(sql, "sql"), "sql")
    assert REFUSED[sql] in f"{e.value.message} {e.value.hint}"


def test_a_misspelt_function_is_told_what_is_near() -> None:
    with pytest.raises(TransformError) as e:
        refuse_untested(parse("regexp_replaced(s, 'a', 'b')", "sql"), "sql")
    assert "regexp_replaced()" in e.value.message
    assert "`regexp_replace`" in str(e.value.hint)


UNSUITED = {
    "regexp_replace(s, p, 'x')": "its pattern is not a literal",
    "regexp_replace(s, 'x*', '-')": "matches everywhere",
    "regexp_extract(s, 'a', 1)": "no group 1",
    r"regexp_replace(s, '\\bx', '')": r"`\b`",
    "regexp_replace(s, 'a++', '')": "`++`",
    "regexp_replace(s, '[a&&b]', '')": "inside of brackets",
    "regexp_replace(s, '(a', '')": "cannot be read",
    "regexp_replace(s, 'a', '$1')": "no group 1",
    "date_format(ts, 'YYYY')": "`YYYY`",
    "date_format(ts, 'yyyy-MM-dd XXX')": "`XXX`",
    "to_date(s, 'yyyyMd')": "in two ways",
    "date_format(ts, p)": "its pattern is not a literal",
    "sha2(s, 100)": "100 bits",
    "next_day(dt, 'x')": "`x`",
    "collect_set(f)": "cast it to decimal",
    "instr(f, 'a')": "of type double",
    "pow(s, 2)": "of type string",
    "md5(i)": "of type int",
    "levenshtein(s, p, s, p)": "it takes 2 arguments, found 4",
    "date_part('seconds', ts)": "`seconds`",
    "size(s)": "it takes an array",
    "element_at(s, 1)": "it takes an array",
}


@pytest.mark.parametrize("sql", UNSUITED)
def test_arguments_that_have_no_equal_are_refused(pandas_platform: Platform, sql: str) -> None:
    name = re.match(r"\w+", sql)
    assert name is not None
    with pytest.raises(TransformError) as e:
        answer(pandas_platform, f"SELECT id, {sql} AS x FROM source GROUP BY ALL")
    assert f"{name[0]}()" in e.value.message
    assert UNSUITED[sql] in f"{e.value.message} {e.value.hint}"


ERRORS = [
    "to_date('31.02.2024', 'dd.MM.yyyy')",
    "to_timestamp('x', 'yyyy')",
    "make_date(2023, 2, 29)",
    "pmod(7, 0)",
    "element_at(array(1), 2)",
    "element_at(array(1), 0)",
    "split_part('a', 'b', 0)",
    "elt(3, 'a', 'b')",
    "negative(cast(-2147483648 AS int))",
    "add_months('x', 1)",
]


def test_errors_stay_errors(platform: Platform) -> None:
    with platform.workspace("errors") as engine:
        for sql in ERRORS:
            with pytest.raises(TransformError):
                engine.fetch(
                    rows_of(run_query(engine, parse(f"SELECT {sql} AS x", "sql"), {}, "sql"))
                )


@pytest.mark.parametrize(
    "sql",
    [
        "DATE_FORMAT(ts, 'EEE''x''')",
        "PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY f)",
        "COLLECT_LIST(DISTINCT s)",
        "EVERY(b)",
        "s LIKE ANY ('a%', 'b%')",
        "NAMED_STRUCT('a', 1)",
        "SPLIT(s, '\\\\d', 2)",
    ],
)
def test_spark_is_asked_what_was_written(sql: str) -> None:
    assert render(parse(sql, "sql"), "spark").replace("\\'", "''") == sql


def test_aggregates_are_known_as_aggregates() -> None:
    """Following changes row by row would be wrong for them."""
    for name in (
        "every",
        "std",
        "collect_list",
        "percentile",
        "max_by",
        "bit_xor",
        "listagg",
        "regr_slope",
    ):
        assert isinstance(parse(f"{name}(a, b)", "sql"), exp.AggFunc), name


def test_rows_are_hostile() -> None:
    values = [row["dt"] for row in HOSTILE.rows]
    assert {date.min, date.max, None, date(2024, 2, 29)} <= set(values)
    assert datetime.max.replace(tzinfo=UTC) in [row["ts"] for row in HOSTILE.rows]


def test_validate_names_every_function_that_is_missing(tmp_path: Path) -> None:
    sql = "SELECT id, Soundex(s) AS x, contat_ws(',', s) AS y, soundex(p) AS z FROM source"
    steps = [{"operation": "filter", "params": {"condition": "levenstein(s, p) > 1"}}]
    node = {
        "name": "n",
        "read": {"connection": "files", "path": "*.parquet"},
        "transform": {"steps": steps},
        "transformation_sql": sql,
        "write": {"connection": "lake", "table": "t", "mode": "overwrite"},
    }
    with pytest.raises(ConfigError) as e:
        make_project(tmp_path, [node], engine="pandas")
    told = [(p.message, p.hint or "") for p in e.value.problems]
    for name, near in (
        ("Soundex", ""),
        ("contat_ws", "`concat_ws`"),
        ("levenstein", "`levenshtein`"),
    ):
        assert any(f"{name}()" in message and near in hint for message, hint in told), told
    make_project(tmp_path, [node], engine="spark")
