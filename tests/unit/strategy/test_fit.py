"""The six properties of a schema that never loses a column, over random columns and cycles; the policy is pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from strandline.errors import StrandlineError, TableError
from strandline.lake.delta.limits import DELTA_LIMITS
from strandline.strategy.evolution import (
    AddColumn,
    AddField,
    Limits,
    Relax,
    Widen,
    change_from_json,
    change_to_json,
    rewrites,
)
from strandline.strategy.fit import Fit, Policy, Stored, fit
from strandline.testing import shapes
from strandline.testing.shapes import Columns
from strandline.types import Schema

ICEBERG_LIKE = replace(
    DELTA_LIMITS,
    title="Iceberg",
    widenings=frozenset({"integer", "float", "precision"}),
    carried=frozenset({AddColumn, AddField, Widen, Relax}),
)
FORMATS = [(DELTA_LIMITS, shapes.DELTA), (ICEBERG_LIKE, shapes.ICEBERG)]
PLAIN = [
    *("tinyint", "smallint", "int", "bigint", "float", "double", "string", "boolean", "binary"),
    *("date", "timestamp", "timestamp_ntz", "decimal(5,2)", "decimal(10,0)", "decimal(38,18)"),
]
NAMES = ["a", "b", "c", "d", "e", "Größe"]


@st.composite
def types(draw: DrawFn, depth: int = 2) -> str:
    """A type, now and then with others inside."""
    kind = draw(st.sampled_from(["plain"] * 4 + ["struct", "array", "map"] * bool(depth)))
    if kind == "plain":
        return draw(st.sampled_from(PLAIN))
    if kind == "array":
        return f"array<{draw(types(depth - 1))}>"
    if kind == "map":
        return f"map<{draw(st.sampled_from(PLAIN))},{draw(types(depth - 1))}>"
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    return f"struct<{','.join(f'{n}:{draw(types(depth - 1))}' for n in names)}>"


@st.composite
def column_lists(draw: DrawFn) -> Columns:
    """Columns whose names differ not only in case, spelled in either."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    return [(draw(st.sampled_from([n, n.upper()])), draw(types())) for n in names]


@st.composite
def kin(draw: DrawFn, type_: str) -> str:
    """A type that may hold the values of another one, or be held by it: digits, widths and fields move."""
    shape = shapes.shape_of(type_)
    if shape.inner:
        inner = [(n, draw(kin(s.text))) for n, s in shape.inner]
        if shape.kind == "struct":
            inner = draw(st.permutations(inner)) if draw(st.booleans()) else inner
            fresh = [n for n in NAMES if n not in {name.casefold() for name, _ in inner}]
            inner += [(n, "int") for n in fresh[: draw(st.integers(0, 1))]]
            return f"struct<{','.join(f'{n}:{t}' for n, t in inner)}>"
        return f"{shape.kind}<{','.join(t for _, t in inner)}>"
    families = [
        ["tinyint", "smallint", "int", "bigint", "decimal(12,2)", "decimal(5,0)"],
        ["float", "double"],
        ["decimal(5,2)", "decimal(10,0)", "decimal(38,18)", "decimal(12,4)", "int"],
        ["date", "timestamp", "timestamp_ntz"],
    ]
    near = [t for family in families if type_ in family for t in family]
    return draw(st.sampled_from([type_, *near]))


@st.composite
def cycles(draw: DrawFn) -> list[Columns]:
    """[a, b] → [a, c] → [a, d] and longer: columns come, go, come back, change their case and their type."""
    pool = draw(column_lists())
    found = []
    for _ in range(draw(st.integers(2, 6))):
        some = draw(
            st.lists(st.sampled_from(pool), min_size=1, unique_by=lambda c: c[0].casefold())
        )
        found.append([(draw(st.sampled_from([n, n.swapcase()])), draw(kin(t))) for n, t in some])
    return found


def schema(columns: Columns) -> Schema:
    return Schema.of(*columns)


def pairs(found: Fit) -> Columns:
    return [(c.name, c.type) for c in found.columns]


def evolved(table: Columns, rows: Columns, limits: Limits = DELTA_LIMITS, **how: Any) -> Fit:
    return fit(schema(rows), Stored(schema(table)), "t", Policy(limits, **how))


@pytest.mark.parametrize(("limits", "widens"), FORMATS, ids=lambda v: getattr(v, "title", ""))
def test_every_cycle_gives_the_columns_of_the_oracle(
    limits: Limits, widens: frozenset[str]
) -> None:
    """Properties 1, 2 and 3: no column is lost, every new one is there, and the rest is the union in order."""

    @given(cycles())
    def holds(cycle: list[Columns]) -> None:
        table, wanted = cycle[0], list(cycle[0])
        for rows in cycle[1:]:
            try:
                expected = shapes.union(wanted, rows, widens)
            except shapes.Unfit:
                with pytest.raises(TableError, match="no type for both"):
                    evolved(table, rows, limits)
                continue
            found = evolved(table, rows, limits)
            assert pairs(found) == expected
            assert [n for n, _ in pairs(found)][: len(table)] == [n for n, _ in table]
            assert {n.casefold() for n, _ in rows} <= {c.fold for c in found.columns}
            assert_told(found, table)
            table = wanted = expected

    holds()


def assert_told(found: Fit, table: Columns) -> None:
    """The changes say all that becomes of a table, and nothing that does not."""
    assert bool(found.changes) == (pairs(found) != table)
    added = [c.column.name for c in found.changes if isinstance(c, AddColumn)]
    assert added == [n for n, _ in pairs(found)][len(table) :]
    assert all(change_from_json(change_to_json(c)) == c for c in found.changes)


@given(column_lists(), column_lists())
def test_columns_that_the_rows_lack_are_kept(table: Columns, rows: Columns) -> None:
    """Properties 4 and 5: what is gone from the source is padded, so that both lists are equally long."""
    try:
        found = evolved(table, rows)
    except TableError:
        return
    have = {n.casefold() for n, _ in rows}
    assert [c.name for c in found.kept] == [n for n, _ in table if n.casefold() not in have]
    brought = [c for c in found.columns if c.fold in have]
    assert len(found.columns) == len(brought) + len(found.kept)


@given(column_lists(), column_lists())
def test_nothing_is_ever_dropped(table: Columns, rows: Columns) -> None:
    """Property 6: there is no change that drops, whatever comes."""
    for evolution in ("add", "off"):
        try:
            found = evolved(table, rows, evolution=evolution)
        except TableError:
            continue
        assert {type(c) for c in found.changes} <= {AddColumn, AddField, Widen}
        assert len(found.columns) >= len(table)


@given(column_lists())
def test_the_same_columns_in_any_order_and_case_change_nothing(table: Columns) -> None:
    found = evolved(table, [(n.swapcase() if n.isascii() else n, t) for n, t in reversed(table)])
    assert (pairs(found), found.changes, found.kept) == (table, (), ())


@given(column_lists(), column_lists())
def test_strict_and_off_leave_the_table_as_it_is(table: Columns, rows: Columns) -> None:
    with_case = {n.casefold(): t for n, t in table}
    alike = {n.casefold(): t for n, t in rows} == with_case
    if alike:
        assert evolved(table, rows, evolution="strict").changes == ()
    else:
        with pytest.raises(TableError):
            evolved(table, rows, evolution="strict")
    try:
        found = evolved(table, rows, evolution="off")
    except TableError:
        return
    assert (pairs(found), found.changes) == (table, ())
    new = [n for n, _ in rows if n.casefold() not in with_case]
    assert all(f"`{n}`" in found.warnings[0] for n in new)


# --- what single cases say ---------------------------------------------------------------------------------


def test_the_worked_example_of_the_seed() -> None:
    table = [("customerid", "int"), ("name", "string"), ("placeholder5", "string")]
    found = evolved(table, [("CustomerID", "int"), ("name", "string"), ("placeholder6", "string")])
    assert found.columns.names == ["customerid", "name", "placeholder5", "placeholder6"]
    assert [c.name for c in found.kept] == ["placeholder5"]


def test_strict_names_every_column_that_differs() -> None:
    with pytest.raises(TableError) as error:
        evolved(
            [("a", "int"), ("b", "int"), ("c", "int")],
            [("a", "bigint"), ("b", "int"), ("d", "int")],
            evolution="strict",
        )
    for part in ("`d` (int) is new", "`c` is gone", "`a` is bigint instead of int"):
        assert part in error.value.message


def test_what_cannot_be_widened_gets_advice_that_loses_nothing() -> None:
    with pytest.raises(TableError) as error:
        evolved([("a", "string")], [("a", "int")])
    assert "column `a` is string in the table, but the rows bring int" in error.value.message
    assert "cast" in str(error.value.hint)
    with pytest.raises(TableError) as error:
        evolved([("a", "int")], [("A", "string")])
    assert "column `a` is int in the table, but the rows bring string" in error.value.message
    assert "rename: " in str(error.value.hint).replace("operation: rename", "rename: ")
    assert "A_string" in str(error.value.hint)
    with pytest.raises(TableError, match=r"at `s\.x`: int and string"):
        evolved([("s", "struct<x:int>")], [("s", "struct<x:string>")])


def test_a_decimal_never_gets_more_digits_than_there_are() -> None:
    with pytest.raises(TableError, match="decimal"):
        evolved([("a", "decimal(38,0)")], [("a", "decimal(10,2)")])


def test_a_type_without_a_counterpart_becomes_text_with_a_warning() -> None:
    found = fit(
        Schema.of(("a", "time"), ("s", "struct<i:interval,n:int>")), None, "t", Policy(DELTA_LIMITS)
    )
    assert pairs(found) == [("a", "string"), ("s", "struct<i:string,n:int>")]
    assert len(found.warnings) == 2
    assert "`a` is time" in found.warnings[0]
    with pytest.raises(TableError, match="timestamp_ns"):
        fit(Schema.of(("a", "timestamp_ns")), None, "t", Policy(DELTA_LIMITS))


def test_names_that_differ_only_in_case_are_refused_inside_structs_too() -> None:
    with pytest.raises(StrandlineError, match="differ only in case"):
        evolved([("k", "int")], [("l", "array<struct<a:int,A:int>>")])


def test_what_has_no_type_yet_waits_for_its_first_value() -> None:
    found = evolved(
        [("k", "int")],
        [("k", "int"), ("x", "void"), ("y", "array<void>"), ("s", "struct<a:int,b:void>")],
    )
    assert pairs(found) == [("k", "int"), ("s", "struct<a:int>")]
    found = evolved([("k", "int"), ("y", "array<int>")], [("k", "int"), ("y", "array<void>")])
    assert (found.changes, found.kept) == ((), ())


def test_vanished_not_null_columns_are_relaxed_only_when_asked() -> None:
    table = Stored(Schema.of(("k", "int"), ("n", "int")), required=("n",))
    rows = Schema.of(("k", "int"))
    assert fit(rows, table, "t", Policy(DELTA_LIMITS)).changes == ()
    found = fit(rows, table, "t", Policy(DELTA_LIMITS, relax_not_null=True))
    assert found.changes == (Relax("n"),)


def test_what_a_commit_of_rows_carries_is_for_the_format_to_say() -> None:
    column, field, wide = (
        AddColumn(schema([("c", "int")]).columns[0]),
        AddField("s.b", "int"),
        Widen("a", "int", "bigint"),
    )
    assert not rewrites([column], DELTA_LIMITS, adds_only=False)
    assert rewrites([column, field], DELTA_LIMITS, adds_only=False)
    assert not rewrites([column, field], DELTA_LIMITS, adds_only=True)
    assert rewrites([wide], DELTA_LIMITS, adds_only=True)
    assert not rewrites([column, field, wide], ICEBERG_LIKE, adds_only=False)
