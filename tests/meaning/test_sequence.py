"""`sequence_by` in upsert: after every batch the table is what the rows so far say, whatever order they came in."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from tests.lab import everywhere, for_all, lab

from strandline.engine.base import Platform
from strandline.testing.events import Sequenced, by_sequence
from strandline.testing.frames import assert_same
from strandline.testing.oracle import Frame, Row, key_of, select

EXAMPLES = {"memory": 12, "pandas": 12, "spark": 1}
COLUMNS = [("k", "int"), ("v", "string"), ("w", "double"), ("op", "string"), ("n", "bigint")]
HOW = Sequenced(["k"], "n", lambda row: row["op"] == "D")


@st.composite
def batches(draw: DrawFn) -> list[list[Row]]:
    """2 to 5 batches, each with at most one row per key; sequences repeat, fall and are missing."""
    dice = Random(draw(st.integers(0, 2**40)))
    found = []
    for _ in range(draw(st.sampled_from([3, 2, 4, 5]))):
        keys: list[Any] = dice.sample([1, 2, 3, None], dice.randint(1, 4))
        found.append([_row(key, dice) for key in keys])
    return found


def _row(key: Any, dice: Random) -> Row:
    pick = dice.choice
    return {
        "k": key,
        "v": pick(["a", "b", "", None]),
        "w": pick([1.0, -0.0, None]),
        "op": pick(["U", "U", "D", None]),
        "n": pick([1, 2, 3, 4, None]),
    }


@everywhere
def test_older_rows_never_overwrite_newer_ones(engine_name: str, platform: Platform) -> None:
    @for_all(engine_name, batches(), counts=EXAMPLES)
    def _(told: list[list[Row]]) -> None:
        write = {"mode": "upsert", "keys": ["k"], "sequence_by": "n", "delete_when": "op = 'D'"}
        table: dict[Any, Row] = {}
        with lab(platform, write) as at:
            for batch in told:
                before = dict(table)
                result = at.run(Frame(COLUMNS, batch))
                for row in batch:
                    key = key_of(row, ["k"])
                    found = by_sequence(table.get(key), row, HOW)
                    assert found is not None
                    table[key] = found
                columns = [*COLUMNS, ("_is_deleted", "boolean")]
                assert_same(
                    select(at.table(), [n for n, _ in columns]),
                    Frame(columns, list(table.values())),
                )
                assert result.inserted == len(table) - len(before)
                died = [
                    k for k in before if table[k]["_is_deleted"] and not before[k]["_is_deleted"]
                ]
                back = [
                    k for k in before if before[k]["_is_deleted"] and not table[k]["_is_deleted"]
                ]
                assert (result.deleted, result.reopened) == (len(died), len(back))
