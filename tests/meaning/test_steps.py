"""The built-in steps: each gives exactly the oracle's rows and types."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from tests import effort
from tests.lab import for_all, lab
from tests.meaning.tables import HASHABLE, TYPES, tables, values

from strandline.engine.base import Platform
from strandline.errors import CastError, TransformError
from strandline.testing import oracle
from strandline.testing.frames import assert_same
from strandline.testing.oracle import Frame


def through(platform: Platform, frame: Frame, *steps: dict[str, Any]) -> Frame:
    """The rows after these steps, as they reach a table."""
    with lab(platform, {"mode": "overwrite"}, transform={"steps": list(steps)}) as at:
        at.run(frame)
        return at.table()


def step(operation: str, **params: Any) -> dict[str, Any]:
    return {"operation": operation, "params": params}


# --- deduplicate -------------------------------------------------------------------------------------------


@st.composite
def deduplications(draw: DrawFn) -> tuple[Frame, list[str], list[tuple[str, str]]]:
    frame = draw(tables(2, 5, most=30))
    keys = frame.names[: draw(st.integers(1, len(frame.names) - 1))]
    order = draw(
        st.lists(
            st.tuples(st.sampled_from(frame.names), st.sampled_from(["asc", "desc"])), max_size=2
        )
    )
    return frame, keys, order


def test_deduplicate_keeps_the_same_row_whatever_the_order(
    engine_name: str, platform: Platform
) -> None:
    @for_all(engine_name, deduplications())
    def _(case: tuple[Frame, list[str], list[tuple[str, str]]]) -> None:
        frame, keys, order = case
        terms = [f"`{name.replace('`', '``')}` {direction}" for name, direction in order]
        expected = oracle.deduplicate(frame, keys, order)
        shuffled = Frame(frame.columns, random.Random(1).sample(frame.rows, len(frame.rows)))
        for rows in (frame, shuffled):
            found = through(
                platform,
                rows,
                step("deduplicate", keys=keys, **({"order_by": terms} if terms else {})),
            )
            assert_same(found, expected)


def test_deduplicate_prefers_zero_to_minus_zero(platform: Platform) -> None:
    """They are equal, and still every run must keep the same one."""
    columns = [("k", "int"), ("x", "double")]
    rows = [{"k": k, "x": x} for k, zeros in ((1, (0.0, -0.0)), (2, (-0.0, 0.0))) for x in zeros]
    found = through(platform, Frame(columns, rows), step("deduplicate", keys=["k"]))
    assert_same(found, Frame(columns, [{"k": 1, "x": 0.0}, {"k": 2, "x": 0.0}]))


# --- hashes ------------------------------------------------------------------------------------------------


def test_hashes_are_the_same_everywhere(engine_name: str, platform: Platform) -> None:
    @for_all(engine_name, tables(1, 5, HASHABLE, most=30))
    def _(frame: Frame) -> None:
        found = through(
            platform,
            frame,
            step("generate_surrogate_key", columns=frame.names),
            step("generate_surrogate_key", columns=frame.names[:1], output_col="_hash_diff"),
            step("hash_columns", columns=frame.names[-1:]),
        )
        expected = oracle.generate_surrogate_key(frame, frame.names)
        expected = oracle.generate_surrogate_key(expected, frame.names[:1], "_hash_diff")
        assert_same(found, oracle.hash_columns(expected, frame.names[-1:]))


ONE = [("a", "string"), ("b", "string")]
DIFFERENT = [
    ({"a": None, "b": ""}, {"a": "", "b": None}),
    ({"a": "ab", "b": "c"}, {"a": "a", "b": "bc"}),
    ({"a": "1", "b": None}, {"a": None, "b": "1"}),
    ({"a": "N", "b": ""}, {"a": None, "b": ""}),
    ({"a": "é", "b": ""}, {"a": "e\u0301", "b": ""}),
]


def test_different_rows_have_different_hashes(platform: Platform) -> None:
    rows = [row for pair in DIFFERENT for row in pair]
    found = through(platform, Frame(ONE, rows), step("generate_surrogate_key", columns=["a", "b"]))
    hashes = {(row["a"], row["b"]): row["_hash_key"] for row in found.rows}
    assert len(set(hashes.values())) == len(hashes) == len({tuple(row.values()) for row in rows})


@pytest.mark.long_on_spark
def test_a_hash_does_not_depend_on_the_width_of_an_integer(platform: Platform) -> None:
    rows = [{"a": 1, "b": 1, "c": Decimal("1.5"), "d": Decimal("1.5000")}]
    frame = Frame(
        [("a", "tinyint"), ("b", "bigint"), ("c", "decimal(5,1)"), ("d", "decimal(38,4)")], rows
    )
    (row,) = through(platform, frame, step("hash_columns", columns=["a", "b", "c", "d"])).rows
    assert row["a"] == row["b"] == oracle.key_hash([(1, "int")])
    assert row["c"] == row["d"] == oracle.key_hash([(Decimal("1.50"), "decimal(10,2)")])


@pytest.mark.long_on_spark
def test_floats_are_refused_in_hashes(platform: Platform) -> None:
    with pytest.raises(TransformError, match="no exact text to hash"):
        through(
            platform, Frame([("x", "double")], [{"x": 1.0}]), step("hash_columns", columns=["x"])
        )


# --- cast --------------------------------------------------------------------------------------------------

SPELLINGS = {
    "integer": [
        "0",
        " 7 ",
        "+5",
        "-0",
        "007",
        "9223372036854775807",
        "-9223372036854775808",
        "9223372036854775808",
        "128",
        "1.0",
        "1e3",
        "",
        " ",
        "0x1f",
        "1_000",
        "１",
        "12\n",
        "\u00a012",
        "- 1",
    ],
    "decimal": [
        "0",
        "1.005",
        "-1.005",
        "-0.001",
        ".5",
        "5.",
        "-.5",
        "99.995",
        "9.5",
        "1e3",
        "12345e-4",
        "1,5",
        "",
        ".",
        "nan",
        "0" * 40 + "1",
        "0." + "9" * 60,
        "1" * 38,
        "+1.50",
    ],
    "float": [
        "0",
        "-0",
        "1.5",
        ".5",
        "5.",
        "1e3",
        "1E-7",
        "1e400",
        "-1e400",
        "1e-400",
        "nan",
        "NaN",
        "inf",
        "-Infinity",
        "+inf",
        "1.5f",
        "1.5d",
        "",
        "0.1",
        "123456789.123456789",
        "4.9e-324",
        "+nan",
    ],
    "boolean": [
        "true",
        "FALSE",
        "t",
        "F",
        "yes",
        "No",
        "y",
        "n",
        "1",
        "0",
        "on",
        "",
        "2",
        " true ",
    ],
    "date": [
        "2024-02-29",
        "2023-02-29",
        "1900-01-01",
        " 2024-01-01 ",
        "2024-1-1",
        "20240101",
        "2024-01-01 ",
        "2024-01-01T00:00:00",
        "24-01-01",
        "2024-13-01",
        "2024-01-00",
    ],
    "timestamp": [
        "2024-03-31 01:59:59.999999",
        "2024-03-31T02:30:00Z",
        "2024-10-27 02:30:00+02:00",
        "2024-10-27 02:30:00+01:00",
        "2024-01-01",
        "2024-01-01 10:00",
        "2024-01-01 10:00Z",
        "2024-01-01 24:00:00",
        "2024-01-01 10:00:60",
        "2024-01-01 10:60",
        "2024-01-01t10:00:00z",
        "2024-01-01 10:00:00.1",
        "2024-01-01 10:00:00.1234567",
        "2024-01-01 10:00:00-17:59",
        "2024-01-01 10:00:00+19:00",
        "2024-01-01+02:00",
        "2024-01-01 10:00:00 Europe/Zurich",
        "2024-02-30 10:00:00",
        "1900-01-01 00:00:00",
        "",
    ],
}
SPELLINGS["timestamp_ntz"] = SPELLINGS["timestamp"]


def test_text_is_cast_by_one_grammar(engine_name: str, platform: Platform) -> None:
    """Every spelling alone: it gives the oracle's value, or the error that names it."""
    for type_ in [
        "tinyint",
        "bigint",
        "decimal(5,2)",
        "decimal(38,18)",
        "decimal(1,0)",
        "double",
        "boolean",
        "date",
        "timestamp",
        "timestamp_ntz",
    ]:
        good, bad = [], []
        for text in SPELLINGS[oracle.family(type_)]:
            try:
                oracle.parse(text, type_)
                good.append(text)
            except oracle.NotCastable:
                bad.append(text)
        frame = Frame([("text", "string")], [{"text": t} for t in [*good, None]])
        assert_same(
            through(platform, frame, step("cast", columns={"text": type_})),
            oracle.cast_columns(frame, {"text": type_}),
        )
        few = engine_name == "spark" and effort.EXAMPLES < 1  # each takes a while there
        for text in bad[::5] if few else bad:
            with pytest.raises(CastError) as refused:
                through(
                    platform,
                    Frame([("text", "string")], [{"text": text}]),
                    step("cast", columns={"text": type_}),
                )
            assert (refused.value.column, refused.value.value, refused.value.type) == (
                "text",
                text,
                type_,
            )


# what may be cast to what; text of floats is left out, because no two engines write it alike
CASTS = {
    "integer": [
        "tinyint",
        "int",
        "bigint",
        "decimal(38,0)",
        "decimal(5,2)",
        "double",
        "boolean",
        "string",
    ],
    "decimal": [
        "tinyint",
        "bigint",
        "decimal(38,18)",
        "decimal(5,2)",
        "decimal(10,0)",
        "double",
        "string",
    ],
    "float": ["int", "bigint", "decimal(10,2)", "decimal(38,18)", "double"],
    "boolean": ["int", "string"],
    "date": ["timestamp", "timestamp_ntz", "string"],
    "timestamp": ["date", "timestamp_ntz", "string"],
    "timestamp_ntz": ["date", "timestamp", "string"],
    "binary": ["string"],
    "string": ["binary"],
}


@st.composite
def castings(draw: DrawFn) -> tuple[Frame, str]:
    source = draw(st.sampled_from(TYPES))
    target = draw(st.sampled_from(CASTS[oracle.family(source)]))
    rows = [{"x": v} for v in draw(st.lists(values(source) | st.none(), max_size=20))]
    return Frame([("x", source)], rows), target


def test_values_are_cast_alike(engine_name: str, platform: Platform) -> None:
    @for_all(engine_name, castings(), share=3)
    def _(case: tuple[Frame, str]) -> None:
        frame, target = case
        good, bad = [], []
        for row in frame.rows:
            try:
                oracle.cast(row["x"], frame.columns[0][1], target)
                good.append(row)
            except (oracle.NotCastable, UnicodeDecodeError):
                bad.append(row)
        fine = Frame(frame.columns, good)
        expected = oracle.cast_columns(fine, {"x": target})
        assert_same(through(platform, fine, step("cast", columns={"x": target})), expected)
        for row in bad[:1]:
            with pytest.raises(CastError):
                through(platform, Frame(frame.columns, [row]), step("cast", columns={"x": target}))


# --- columns and rows --------------------------------------------------------------------------------------


@st.composite
def shaped(draw: DrawFn) -> tuple[Frame, list[str], str]:
    frame = draw(tables(2, 5))
    some = draw(
        st.lists(
            st.sampled_from(frame.names), min_size=1, max_size=len(frame.names) - 1, unique=True
        )
    )
    return frame, some, draw(st.sampled_from(["new", "Neu`er", "x.y", "名前"]))


def test_select_drop_and_rename(engine_name: str, platform: Platform) -> None:
    @for_all(engine_name, shaped(), share=0.5)
    def _(case: tuple[Frame, list[str], str]) -> None:
        frame, some, name = case
        assert_same(
            through(platform, frame, step("select", columns=some)), oracle.select(frame, some)
        )
        kept = (
            through(
                platform,
                frame,
                step("drop", columns=some),
                step("rename", columns={frame.names[0]: name}),
            )
            if frame.names[0] not in some
            else None
        )
        if kept is not None:
            assert_same(kept, oracle.rename(oracle.drop(frame, some), {frame.names[0]: name}))


@pytest.mark.long_on_spark
def test_a_column_with_blanks_can_be_renamed(platform: Platform) -> None:
    frame = Frame(
        [("first name", "string"), ("a,b;(c)=d", "int")], [{"first name": "Zoë", "a,b;(c)=d": 1}]
    )
    names = {"first name": "first_name", "a,b;(c)=d": "x"}
    assert_same(
        through(platform, frame, step("rename", columns=names)), oracle.rename(frame, names)
    )


CONDITIONS: list[tuple[str, Any]] = [
    ("n > 0", lambda r: None if r["n"] is None else r["n"] > 0),
    ("NOT (n > 0)", lambda r: None if r["n"] is None else not r["n"] > 0),
    ("s = ''", lambda r: None if r["s"] is None else r["s"] == ""),
    ("s IS NULL OR n IS NOT NULL", lambda r: r["s"] is None or r["n"] is not None),
    ("n <=> m", lambda r: r["n"] == r["m"]),
    ("s IN ('a', 'A', '''')", lambda r: None if r["s"] is None else r["s"] in ("a", "A", "'")),
    ("n BETWEEN -1 AND 1", lambda r: None if r["n"] is None else -1 <= r["n"] <= 1),
]
EXPRESSIONS: list[tuple[str, str, str, Any]] = [
    ("x", "string", "upper(s)", lambda r: None if r["s"] is None else r["s"].upper()),
    ("x", "bigint", "coalesce(n, m)", lambda r: r["n"] if r["n"] is not None else r["m"]),
    (
        "s",
        "string",
        "CASE WHEN n IS NULL THEN s ELSE 'x' END",
        lambda r: r["s"] if r["n"] is None else "x",
    ),
    (
        "x",
        "string",
        "concat(s, '|', s)",
        lambda r: None if r["s"] is None else f"{r['s']}|{r['s']}",
    ),
    ("x", "string", "'it''s \\\\ \"quoted\" `so` é😀'", lambda r: 'it\'s \\ "quoted" `so` é😀'),
    (
        "x",
        "boolean",
        "n = m",
        lambda r: None if r["n"] is None or r["m"] is None else r["n"] == r["m"],
    ),
]
PLAIN = [("n", "bigint"), ("m", "bigint"), ("s", "string")]
_TEXTS = [None, "", "a", "A", "'", "a'b", "\\", "😀", "a\nb"]


@st.composite
def plain(draw: DrawFn) -> Frame:
    number = st.sampled_from([None, 0, 1, -1, 2**63 - 1, -(2**63)])
    row = st.fixed_dictionaries({"n": number, "m": number, "s": st.sampled_from(_TEXTS)})
    return Frame(PLAIN, draw(st.lists(row, max_size=30)))


@pytest.mark.long_on_spark
@pytest.mark.parametrize(("sql", "meaning"), CONDITIONS, ids=[c[0] for c in CONDITIONS])
def test_filter_keeps_what_is_true(
    engine_name: str, platform: Platform, sql: str, meaning: Any
) -> None:
    @for_all(engine_name, plain(), share=0.15)
    def _(frame: Frame) -> None:
        assert_same(
            through(platform, frame, step("filter", condition=sql)), oracle.filter_(frame, meaning)
        )


def test_all_conditions_and_expressions_in_one_step(engine_name: str, platform: Platform) -> None:
    """On Spark for `make test`: every expression as a column of one query, and a filter behind it."""
    asked = [(type_, sql, meaning) for _, type_, sql, meaning in EXPRESSIONS]
    asked += [("boolean", sql, meaning) for sql, meaning in CONDITIONS]
    kept, keeps = CONDITIONS[4]

    @for_all(engine_name, plain(), share=0.5)
    def _(frame: Frame) -> None:
        columns = {f"x{n}": sql for n, (_, sql, _) in enumerate(asked)}
        found = through(
            platform, frame, step("derive", columns=columns), step("filter", condition=kept)
        )
        expected = frame
        for n, (type_, _, meaning) in enumerate(asked):
            expected = oracle.derive(expected, f"x{n}", type_, meaning)
        assert_same(found, oracle.filter_(expected, keeps))


@pytest.mark.long_on_spark
@pytest.mark.parametrize(
    ("name", "type_", "sql", "meaning"), EXPRESSIONS, ids=[e[2] for e in EXPRESSIONS]
)
def test_derive_adds_or_replaces_a_column(
    engine_name: str, platform: Platform, name: str, type_: str, sql: str, meaning: Any
) -> None:
    @for_all(engine_name, plain(), share=0.15)
    def _(frame: Frame) -> None:
        found = through(platform, frame, step("derive", columns={name: sql}))
        assert_same(found, oracle.derive(frame, name, type_, meaning))
