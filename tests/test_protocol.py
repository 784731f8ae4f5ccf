"""The protocol on paper: nothing lost, nothing twice, in every order of two runners and with a death anywhere."""

from __future__ import annotations

import os

import pytest

from strandline.testing.protocol import RULES, Protocol, check

SOAK = os.environ.get("STRANDLINE_EXAMPLES", "1") != "1"
# how many die, and how many runs follow on those that ended; `make soak` goes through millions of states
LIVES = [(1, 0), (0, 1), *([(2, 0), (1, 1)] if SOAK else [])]


@pytest.mark.parametrize("skips", [False, True], ids=["refused", "skipped"])  # what becomes of a taken number
@pytest.mark.parametrize(("crashes", "again"), LIVES)
def test_nothing_lost_and_nothing_twice(crashes: int, again: int, skips: bool) -> None:
    verdict = check(Protocol(skips=skips), crashes, again)
    assert verdict.fault is None, "\n".join((verdict.fault, *verdict.way))
    assert verdict.states > 50_000


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_needed(rule: str) -> None:
    """Leave one out, and the checker finds the way to a wrong state."""
    broken = Protocol(frozenset(RULES) - {rule}, skips=True)
    verdict = check(broken, again=1) if rule == "number_of_the_table" else check(broken, crashes=1)
    assert verdict.fault is not None
    assert len(verdict.way) >= 5
