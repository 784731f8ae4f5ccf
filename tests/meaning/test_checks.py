"""The step `validate`: exactly the oracle's rows pass, exactly the others are put aside, with the same reasons."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from tests.lab import for_all, lab
from tests.meaning.tables import tables

from strandline.engine.base import Platform
from strandline.testing import checking
from strandline.testing.frames import assert_same
from strandline.testing.oracle import Frame, comparable, family


def step(*expectations: dict[str, Any]) -> dict[str, Any]:
    return {"operation": "validate", "params": {"expectations": list(expectations)}}


# --- generated checks over generated tables ----------------------------------------------------------------

KINDS = [
    "bigint",
    "decimal(12,2)",
    "double",
    "string",
    "boolean",
    "date",
    "timestamp",
    "timestamp_ntz",
]
VALUES: dict[str, list[Any]] = {
    "integer": [-1, 0, 1, 2, 100],
    "decimal": [-1, 0, 0.5, 1, 1.25, 100],
    "float": [-1, 0, 0.5, 1.5, 100],
    "string": ["", "a", "A", "é", "e\u0301", "😀", "1", "N"],
    "boolean": [True, False],
    "date": ["1970-01-01", "2024-10-27"],
    "timestamp": ["1970-01-01 00:00:00", "2024-10-27 00:30:00"],
    "timestamp_ntz": ["1970-01-01 00:00:00", "2024-10-27 00:30:00"],
}
PATTERNS = ["^a$", "a", "^$", "[0-9]", "^.$"]


@st.composite
def one(draw: DrawFn, frame: Frame) -> dict[str, Any]:
    name, type_ = draw(st.sampled_from(frame.columns))
    kind = family(type_)
    checks = ["not_null", "unique", "accepted_values"]
    checks += ["range"] if kind != "boolean" else []
    checks += ["regex"] if kind == "string" else []
    made: dict[str, Any] = {"check": draw(st.sampled_from(checks)), "column": name}
    match made["check"]:
        case "accepted_values":
            made["values"] = draw(st.lists(st.sampled_from(VALUES[kind]), min_size=1, max_size=3))
        case "range":
            low, high = draw(st.sampled_from(VALUES[kind])), draw(st.sampled_from(VALUES[kind]))
            made |= draw(st.sampled_from([{"min": low}, {"max": high}, {"min": low, "max": high}]))
        case "regex":
            made["pattern"] = draw(st.sampled_from(PATTERNS))
        case "unique":
            del made["column"]
            made["columns"] = draw(
                st.lists(st.sampled_from(frame.names), min_size=1, max_size=2, unique=True)
            )
    return made | {"severity": "quarantine"}


@st.composite
def cases(draw: DrawFn) -> tuple[Frame, list[dict[str, Any]]]:
    frame = draw(tables(1, 4, KINDS, most=15))
    return frame, draw(st.lists(one(frame), min_size=1, max_size=4))


def put_aside(found: Frame, names: list[str]) -> Counter[tuple[Any, ...]]:
    return Counter((*(comparable(row[n]) for n in names), row["_reasons"]) for row in found.rows)


def test_what_passes_and_what_does_not(engine_name: str, platform: Platform) -> None:
    @for_all(engine_name, cases(), share=2)
    def _(case: tuple[Frame, list[dict[str, Any]]]) -> None:
        frame, expectations = case
        expected = checking.checked(frame, expectations)
        with lab(platform, {"mode": "overwrite"}, transform={"steps": [step(*expectations)]}) as at:
            result = at.run(frame)
            assert_same(at.table(), expected.passed)
            assert result.quarantined == len(expected.rejected)
            if expected.rejected:
                aside = at.quarantine()
                want = Counter(
                    (*(comparable(row[n]) for n in frame.names), "; ".join(why))
                    for row, why in expected.rejected
                )
                assert put_aside(aside, frame.names) == want
