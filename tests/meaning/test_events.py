"""A history in business time is a function of the set of its events: any order, any batching, the same table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Literal

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from tests.lab import Lab, everywhere, for_all, lab

from strandline.engine.base import Platform
from strandline.testing.events import Course, assert_sound, counted, distinct, events_of, fold
from strandline.testing.frames import assert_same
from strandline.testing.oracle import Frame, Row, select

EXAMPLES = {"memory": 12, "pandas": 12, "spark": 1}  # `make soak` draws a thousand and a hundred
BATCHES = {
    "memory": [3, 2, 1, 4],
    "pandas": [3, 2, 1, 4],
    "spark": [2],
}  # where a batch costs seconds
SYSTEM = [
    ("_valid_from", "timestamp"),
    ("_valid_to", "timestamp"),
    ("_is_current", "boolean"),
    ("_is_deleted", "boolean"),
]
END = datetime(9999, 12, 31, tzinfo=UTC)
DAY = datetime(2024, 6, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Story:
    """A set of events, how the table takes them, and the batches in which they come."""

    when: Literal["timestamp", "timestamp_ntz", "date"]
    keys: list[str]
    sequence: bool
    track: list[str] | None
    deletes: Literal["soft", "hard", "ignore"]
    open_end: bool
    row_hash: bool
    batches: list[list[Row]] = field(default_factory=list)

    @property
    def columns(self) -> list[tuple[str, str]]:
        return [
            ("k", "int"),
            ("j", "string"),
            ("v", "string"),
            ("w", "double"),
            ("op", "string"),
            ("n", "bigint"),
            ("t", self.when),
        ]

    @property
    def course(self) -> Course:
        return Course(
            self.keys,
            [n for n, _ in self.columns],
            "t",
            "n" if self.sequence else None,
            self.track,
            self.deletes,
            lambda row: None if row["op"] is None else row["op"] == "D",
            END if self.open_end else None,
        )

    @property
    def write(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "mode": "scd2",
            "keys": self.keys,
            "effective_at": "t",
            "delete_when": "op = 'D'",
        }
        found |= {"sequence_by": "n"} if self.sequence else {}
        found |= {"track": self.track} if self.track else {}
        found |= {"delete_strategy": self.deletes} if self.deletes != "soft" else {}
        found |= {"open_end": "9999-12-31"} if self.open_end else {}
        return found | ({} if self.row_hash else {"row_hash": False})


@st.composite
def stories(draw: DrawFn, batches: Sequence[int]) -> Story:
    """5 to 14 events of a few keys, some of them alike, in several batches; some come twice, in another batch."""
    dice = Random(draw(st.integers(0, 2**40)))
    pick = dice.choice
    story = Story(
        pick(["timestamp", "timestamp_ntz", "date"]),
        pick([["k"], ["k", "j"]]),
        pick([True, False]),
        pick([None, None, ["v"], ["v", "w"]]),
        pick(["soft", "soft", "hard", "ignore"]),
        pick([True, False]),
        pick([True, True, False]),
    )
    told = [_event(story, dice) for _ in range(dice.randint(5, 14))]
    told += [dict(pick(told)) for _ in range(dice.randint(0, 4))]  # replays
    dice.shuffle(told)
    number = draw(st.sampled_from(batches))
    story.batches.extend([] for _ in range(number))
    for row in told:
        pick(story.batches).append(row)
    return story


def _event(story: Story, dice: Random) -> Row:
    pick = dice.choice
    when: Any = DAY + timedelta(days=dice.randint(0, 6))
    if story.when == "timestamp_ntz":
        when = when.replace(tzinfo=None)
    elif story.when == "date":
        when = when.date()
    return {
        "k": pick([1, 1, 2, None]),
        "j": pick(["a", "a", "b"]),
        "v": pick(["x", "x", "y", "", None]),
        "w": pick([1.5, 1.5, None, float("nan")]),
        "op": pick(["U", "U", "U", "D", None]),
        "n": pick([1, 2, 3, None]),
        "t": when,
    }


def shown(at: Lab, story: Story) -> Frame:
    """The table without what depends on the time of the run."""
    return select(at.table(), [n for n, _ in [*story.columns, *SYSTEM]])


def tell(platform: Platform, story: Story) -> None:
    """Live through the batches: after each the table and the counts are the oracle's."""
    told: list[Row] = []
    before: list[Row] = []
    with lab(platform, story.write) as at:
        for number, batch in enumerate(story.batches, start=1):
            result = at.run(Frame(story.columns, batch))
            told += batch
            after = fold(distinct(events_of(told, story.course), story.course), story.course)
            try:
                found = shown(at, story)
                assert_sound(found.rows, story.keys, story.course.open_end)
                assert_same(found, Frame([*story.columns, *SYSTEM], after))
                did = counted(before, after, story.keys)
                counts = {
                    n: getattr(result, n) for n in ("inserted", "updated", "deleted", "reopened")
                }
                assert counts == {n: did[n] for n in counts}
                assert (result.version is not None) == (bool(did) or number == 1)
            except AssertionError as e:
                e.add_note(f"after batch {number} of {story}")
                raise
            before = after
        again = at.run(Frame(story.columns, told))
        assert again.status == "unchanged"
        kept = at.table("t__events")
        assert len(kept.rows) == len(distinct(events_of(told, story.course), story.course))


@everywhere
def test_any_order_and_any_batching_give_the_same_table(
    engine_name: str, platform: Platform
) -> None:
    @for_all(engine_name, stories(BATCHES[engine_name]), counts=EXAMPLES)
    def _(story: Story) -> None:
        tell(platform, story)
