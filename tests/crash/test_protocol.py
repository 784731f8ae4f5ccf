"""The protocol on paper: nothing lost, nothing twice, in every order of two runners and with a death anywhere."""

from __future__ import annotations

import pytest
from tests.effort import SOAK

from strandline.testing.deciding import PEOPLE, People
from strandline.testing.protocol import CHAIN, RULES, SHARED, Protocol, World, check, start

# how many die, and how many runs follow on those that ended; `make soak` goes through millions of states
LIVES = [(1, 0), (0, 1), *([(2, 0), (1, 1)] if SOAK else [])]


@pytest.mark.parametrize("skips", [False, True], ids=["refused", "skipped"])  # a taken number
@pytest.mark.parametrize(("crashes", "again"), LIVES)
def test_nothing_lost_and_nothing_twice(crashes: int, again: int, skips: bool) -> None:
    verdict = check(Protocol(skips=skips), start(crashes, again))
    assert verdict.fault is None, "\n".join((verdict.fault, *verdict.way))
    assert verdict.states > 50_000


@pytest.mark.parametrize(("crashes", "again"), LIVES)
def test_two_sources_of_one_table(crashes: int, again: int) -> None:
    """Two lines that write one table take turns by its numbers: one lands, and the other one looks again."""
    first = start(crashes, again, table=SHARED)
    first = first if SOAK or again else first._replace(grows=0)
    for skips in (False, True) if SOAK else (True,):
        verdict = check(Protocol(skips=skips), first)
        assert verdict.fault is None, "\n".join((verdict.fault, *verdict.way))
        assert verdict.states > 30_000


def _where(rule: str) -> World:
    """The smallest world that shows why a rule is there."""
    if rule in ("number_of_the_table", "again"):
        return start(again=int(rule != "again"), table=SHARED)
    return start(crashes=1, table=SHARED if rule == "own_source" else CHAIN)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_needed(rule: str) -> None:
    """Leave one out, and the checker finds the way to a wrong state."""
    broken = Protocol(frozenset(RULES) - {rule}, skips=True)
    verdict = check(broken, _where(rule))
    assert verdict.fault is not None
    assert len(verdict.way) >= 5


# who works at the same time; how many die, how often the source grows, and another writer commits
BESIDE = [
    (("run", "undo"), 0, 1, 1),
    (("run", "undo"), 1, 0, 0),
    (("undo", "undo"), 1, 0, 0),
    (("run", "reject"), 1, 1, 0),
    (("run", "approve"), 0, 1, 0),
    (("approve", "reject"), 1, 1, 0),
    (("approve", "undo"), 1, 0, 0),
]
ASKED = ("undo", "reject", "approve")
if SOAK:
    BESIDE = [
        ((who, asked), 1, 1, 1)
        for asked in ASKED
        for who in ("run", *ASKED[: ASKED.index(asked) + 1])
    ]


@pytest.mark.parametrize(("does", "crashes", "grows", "foreign"), BESIDE)
def test_what_people_ask_for_beside_it(
    does: tuple[str, str], crashes: int, grows: int, foreign: int
) -> None:
    first = start(crashes, does=does)._replace(grows=grows, foreign=foreign)
    for skips in (False, True) if SOAK else (True,):
        verdict = check(People(skips=skips), first)
        assert verdict.fault is None, "\n".join((verdict.fault, *verdict.way))
        assert verdict.states > 5_000


@pytest.mark.parametrize(
    ("rule", "does", "fault"),
    [
        ("look_again", ("run", "undo"), "an undo has destroyed what run"),
        ("base", ("run", "undo"), "an undo has destroyed what run -1"),
        ("decided_once", ("approve", "reject"), "is decided twice"),
        ("still_held", ("approve", "undo"), "what an undone run held is approved"),
        ("list_first", ("run", "undo"), "is taken back, and no list says so"),
    ],
)
def test_every_rule_for_people_is_needed(rule: str, does: tuple[str, str], fault: str) -> None:
    broken = People(frozenset((*RULES, *PEOPLE)) - {rule})
    verdict = check(broken, start(does=does)._replace(foreign=int("undo" in does)))
    assert fault in str(verdict.fault)
