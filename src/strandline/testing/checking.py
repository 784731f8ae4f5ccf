"""The meaning of a `validate` step, in plain Python: which rows pass, which go to quarantine and why, what is counted.

An expectation is a map as it stands in YAML; values of `where` and `sql` are Python conditions over a row, because
what SQL means is told by the tests of SQL.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from strandline.testing.oracle import Frame, Row, key_of, same

Expected = Mapping[str, Any]


@dataclass(frozen=True)
class Checked:
    """What a step leaves: the rows that go on, those that are put aside with their reasons, failures by check."""

    passed: Frame
    rejected: list[tuple[Row, list[str]]] = field(default_factory=list)
    failures: list[int] = field(
        default_factory=list
    )  # per judged part of each check, in their order
    refused: bool = False


def checked(frame: Frame, expectations: Sequence[Expected]) -> Checked:
    """The rows after a `validate` step whose checks judge single rows."""
    passed, rejected = Frame(frame.columns), []
    verdicts = [part for e in expectations for part in _parts(frame, e)]
    for index, row in enumerate(frame.rows):
        reasons = [why for e, why, wrong in verdicts if wrong[index] and _aside(e)]
        if reasons:
            rejected.append((row, reasons))
        else:
            passed.rows.append(row)
    failures = [sum(wrong) for _, _, wrong in verdicts]
    refused = any(
        n and e.get("severity", "fail") == "fail"
        for n, (e, _, _) in zip(failures, verdicts, strict=True)
    )
    return Checked(passed, rejected, failures, refused)


def _aside(expected: Expected) -> bool:
    return bool(expected.get("severity") == "quarantine")


def _parts(frame: Frame, expected: Expected) -> list[tuple[Expected, str, list[bool]]]:
    """Per part of a check: its name, and for each row whether it fails."""
    asked = [_asked(row, expected) for row in frame.rows]
    columns = expected.get("columns") or [expected["column"]] if expected["check"] != "sql" else []
    name = expected.get("name") or expected["check"]
    if expected["check"] == "unique":
        wrong = _doubled(frame, columns, asked)
        return [(expected, f"{name}({', '.join(columns)})", wrong)]
    if expected["check"] == "sql":
        wrong = [
            a and expected["expression"](row) is not True
            for row, a in zip(frame.rows, asked, strict=True)
        ]
        return [(expected, name, wrong)]
    return [
        (
            expected,
            f"{name}({c})",
            [a and not _holds(row[c], expected) for row, a in zip(frame.rows, asked, strict=True)],
        )
        for c in columns
    ]


def _asked(row: Row, expected: Expected) -> bool:
    condition: Callable[[Row], bool | None] | None = expected.get("where")
    return condition is None or condition(row) is True


def _doubled(frame: Frame, columns: Sequence[str], asked: Sequence[bool]) -> list[bool]:
    """A row with a NULL is no double; a row that is not asked about does not count for the others."""
    whole = [
        a and all(row[c] is not None for c in columns)
        for row, a in zip(frame.rows, asked, strict=True)
    ]
    counts = Counter(key_of(row, columns) for row, w in zip(frame.rows, whole, strict=True) if w)
    return [
        w and counts[key_of(row, columns)] > 1 for row, w in zip(frame.rows, whole, strict=True)
    ]


def _holds(value: Any, expected: Expected) -> bool:
    check = expected["check"]
    if check == "not_null":
        return value is not None
    if value is None:
        return True
    if check == "accepted_values":
        return any(same(_plain(value), _like(v, value)) for v in expected["values"])
    if check == "relationship":
        return any(same(value, v) for v in expected["there"])
    if check == "regex":
        return re.search(expected["pattern"], value) is not None
    return _between(value, expected.get("min"), expected.get("max"))


def _between(value: Any, low: Any, high: Any) -> bool:
    if isinstance(value, float) and math.isnan(value):
        return False
    value = _plain(value)
    return (low is None or value >= _like(low, value)) and (
        high is None or value <= _like(high, value)
    )


def _like(bound: Any, value: Any) -> Any:
    """A bound as YAML gives it, as a value of the column's kind."""
    if isinstance(value, datetime):
        return datetime.fromisoformat(str(bound)).replace(tzinfo=value.tzinfo)
    if isinstance(value, str):
        return str(bound)
    if isinstance(value, bool | int | float | Decimal):
        return _plain(bound)
    return type(value).fromisoformat(str(bound))


def _plain(value: Any) -> Any:
    """Numbers of all kinds compare by value; a number of YAML is the decimal that is written there."""
    return Decimal(repr(value)) if isinstance(value, float) and math.isfinite(value) else value
