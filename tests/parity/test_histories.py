"""Whole pasts of a source: after every run the tables and all counts are the oracle's."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from tests.parity.pasts import SILVER, Expected, Past, Shape, World, pasts, world

from strandline.engine.base import Platform
from strandline.errors import StrandlineError
from strandline.testing.frames import assert_same
from strandline.testing.histories import Ran, Refused
from strandline.testing.oracle import Frame, select

SHAPES = [
    Shape(detect, mode, bronze=bronze, stateful=stateful)
    for detect, bronze, stateful in [
        ("none", False, False),
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
EXAMPLES = {"pandas": 125, "spark": 7}  # per shape


def live_through(platform: Platform, past: Past, *, recorded: bool = False) -> None:
    """Run a past, and compare after every run."""
    expected = Expected(past)
    with world(platform, past, recorded=recorded) as at:
        for number, run in enumerate(past.runs, start=1):
            at.change(run.source)
            expected.change(run.source)
            for name in run.nodes:
                try:
                    check(at, expected, name)
                except AssertionError as e:
                    e.add_note(f"in run {number}, node {name}")
                    raise


def check(at: World, expected: Expected, name: str) -> None:
    try:
        result, error = at.run(name), None
    except StrandlineError as e:
        result, error = None, e
    wanted = expected.run(name, at.clock.now)
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


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_run_of_a_past_is_the_oracles(engine_name: str, platform: Platform, shape: Shape) -> None:
    factor = float(os.environ.get("STRANDLINE_EXAMPLES", "1"))

    @settings(max_examples=max(2, round(EXAMPLES[engine_name] * factor)))
    @given(pasts(shape))
    def holds(past: Past) -> None:
        live_through(platform, past)

    holds()
