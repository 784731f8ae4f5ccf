"""The protocol on paper: nothing lost, nothing twice, in every order of two runners and with a death anywhere."""

from __future__ import annotations

import os

import pytest

from strandline.testing.protocol import RULES, Protocol, check

CRASHES = 1 if os.environ.get("STRANDLINE_EXAMPLES", "1") == "1" else 2  # `make soak`: two deaths, millions of states


@pytest.mark.parametrize("skips", [False, True], ids=["a taken number is refused", "a taken number is skipped"])
def test_nothing_lost_and_nothing_twice(skips):
    verdict = check(Protocol(skips=skips), CRASHES)
    assert verdict.fault is None, "\n".join((verdict.fault, *verdict.way))
    assert verdict.states > 200_000


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_needed(rule):
    """Leave one out, and the checker finds the way to a wrong state."""
    verdict = check(Protocol(frozenset(RULES) - {rule}, skips=True))
    assert verdict.fault is not None
    assert len(verdict.way) >= 5
