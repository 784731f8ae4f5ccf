"""Whole pasts of a source: after every run the tables and all counts are the oracle's."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.lab import for_all
from tests.meaning.pasts import SILVER, Expected, Past, Shape, World, pasts, world

from strandline.engine.base import Platform
from strandline.errors import StrandlineError
from strandline.testing.frames import assert_same
from strandline.testing.histories import Ran, Refused
from strandline.testing.oracle import Frame, Row, key_of, select

SHAPES = [
    Shape(detect, mode, bronze=bronze, stateful=stateful)
    for detect, bronze, stateful in [
        ("none", False, False),
        ("none", True, False),
        ("none", True, True),
        ("snapshot_diff", False, False),
        ("snapshot_diff", True, False),
        ("sql_compare", False, True),
        ("sql_compare", True, False),
        ("sql_compare", True, True),
        ("watermark_window", False, True),
    ]
    for mode in ("upsert", "scd2")
]
EXAMPLES = {"memory": 3, "pandas": 3, "spark": 1}  # per shape; `make soak` lives through many more
# where a past takes longer than in memory: every way of finding deletes and both modes; `make long` has all
ON_SPARK = [SHAPES[8], SHAPES[11], SHAPES[17]]


def locally(shape: Shape) -> Any:
    marks = [] if shape in ON_SPARK else [pytest.mark.long]
    return pytest.param("pandas", shape, id=f"pandas-{shape}", marks=marks)


def on_spark(shape: Shape) -> Any:
    marks = [pytest.mark.spark] if shape in ON_SPARK else [pytest.mark.spark, pytest.mark.long]
    return pytest.param("spark", shape, id=f"spark-{shape}", marks=marks)


LIVED = [
    *(pytest.param("memory", shape, id=f"memory-{shape}") for shape in SHAPES),
    *map(locally, SHAPES),
    *map(on_spark, SHAPES),
]


def live_through(platform: Platform, past: Past, *, recorded: bool = False) -> None:
    """Run a past, and compare after every run."""
    expected = Expected(past)
    with world(platform, past, recorded=recorded) as at:
        for number, run in enumerate(past.runs, start=1):
            at.change(run.source)
            expected.change(run.source)
            for name in run.nodes:
                try:
                    check(at, expected, name, looks=run.looks)
                except AssertionError as e:
                    e.add_note(f"in run {number}, node {name}")
                    raise


def check(at: World, expected: Expected, name: str, *, looks: bool) -> None:
    try:
        result, error = at.run(name, looks=looks), None
    except StrandlineError as e:
        result, error = None, e
    wanted = expected.run(name, at.clock.now, looks=looks)
    if isinstance(wanted, Refused):
        assert error is not None, f"should have been refused: {wanted}"
        assert wanted.reason != "threshold" or type(error).__name__ == "DeleteThresholdExceeded"
        if expected.silver.table is not None:
            assert_same(arranged(at.table(name), expected.silver.table), expected.silver.table)
        return
    if error is not None:
        raise error
    assert result is not None
    assert_same(arranged(at.table(name), wanted.table), wanted.table)
    c = wanted.counts
    counts = (result.inserted, result.updated, result.deleted, result.reopened, result.held)
    assert counts == (c.inserted, c.updated, c.deleted, c.reopened, c.held)
    assert result.status == wanted.status
    assert (result.version is not None) == wanted.commits
    assert result.warnings or not wanted.breached


def arranged(found: Frame, wanted: Frame) -> Frame:
    """The table in the oracle's order of columns: where the system columns stand is nobody's business."""
    same_columns = sorted(found.names) == sorted(wanted.names)
    return select(found, wanted.names) if same_columns else found


@pytest.mark.parametrize(("engine_name", "shape"), LIVED, indirect=["engine_name"])
def test_every_run_of_a_past_is_the_oracles(
    engine_name: str, platform: Platform, shape: Shape
) -> None:
    @for_all(engine_name, pasts(shape), counts=EXAMPLES, least=1)
    def _(past: Past) -> None:
        live_through(platform, past)


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.bronze and s.detect != "none"], ids=str)
def test_and_so_it_is_with_the_records_on_disk(pandas_platform: Platform, shape: Shape) -> None:
    @for_all("pandas", pasts(shape), share=0.34, counts=EXAMPLES)
    def _(past: Past) -> None:
        live_through(pandas_platform, past, recorded=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_oracle_keeps_its_own_promises(shape: Shape) -> None:
    """One row or one unbroken line of versions per key; the deleted stay as they are; what is deleted was absent."""

    @for_all("pandas", pasts(shape))
    def _(past: Past) -> None:
        expected, now = Expected(past), datetime(2024, 10, 27, tzinfo=UTC)
        for run in past.runs:
            expected.change(run.source)
            for name in run.nodes:
                before, now = expected.silver.table, now + timedelta(hours=1)
                result = expected.run(name, now, looks=run.looks)
                if name == SILVER and isinstance(result, Ran):
                    one_line_per_key(result.table, past)
                    nothing_old_is_touched(before, result, past)


def one_line_per_key(table: Frame, past: Past) -> None:
    lines: dict[tuple[Any, ...], list[Row]] = {}
    for row in table.rows:
        lines.setdefault(key_of(row, past.keys), []).append(row)
    for line in lines.values():
        if past.shape.mode == "upsert":
            assert len(line) == 1
            continue
        line.sort(key=lambda row: row["_valid_from"])
        assert [row["_is_current"] for row in line[:-1]] == [False] * (len(line) - 1)
        assert all(row["_is_current"] == (row["_valid_to"] is None) for row in line)
        assert all(a["_valid_to"] <= b["_valid_from"] for a, b in itertools.pairwise(line))
        assert not any(row["_is_deleted"] and None in key_of(row, past.keys) for row in line)


def nothing_old_is_touched(before: Frame | None, result: Ran, past: Past) -> None:
    """What a run counts is what it changed; a closed version is never written again."""
    old = before.rows if before else []
    gone = [row for row in old if row not in result.table.rows]
    come = [row for row in result.table.rows if row not in old]
    counts = result.counts
    if past.deletes != "hard":
        assert len(gone) <= counts.updated + counts.deleted + counts.reopened
        assert not any(row.get("_is_current") is False for row in gone)
    assert bool(gone or come) <= result.commits
    if past.shape.mode == "upsert":
        soft = counts.deleted if past.deletes == "soft" else 0
        assert len(come) == counts.inserted + counts.updated + counts.reopened + soft
