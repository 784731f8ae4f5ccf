# ruff: noqa: E501 – one line per case reads as a table
"""What cannot be right about versions, their order and announced deletes: message, line, key and hint of each."""

from __future__ import annotations

import pytest
from tests.unit.config.conftest import GOOD, Problems, changed

WRITE = "write: {connection: silver, table: customers, mode: upsert, keys: [customer_id]}"
LINE = 15


def write(mode: str, more: str) -> str:
    keys = ", keys: [customer_id]" if mode in ("upsert", "scd2") else ""
    return changed(
        WRITE, f"write: {{connection: silver, table: customers, mode: {mode}{keys}, {more}}}"
    )


WRONG = [
    ("upsert", "track: [name]", "track", "does nothing with mode: upsert", "mode: scd2"),
    ("upsert", "effective_at: at", "effective_at", "does nothing with mode: upsert", "mode: scd2"),
    ("upsert", "open_end: 9999-12-31", "open_end", "does nothing with mode: upsert", "mode: scd2"),
    ("append", "sequence_by: n", "sequence_by", "does nothing with mode: append", "mode: upsert"),
    ("overwrite", "delete_when: \"op = 'D'\"", "delete_when", "cannot be done with mode: overwrite", "filter step"),
    ("append", "delete_when: \"op = 'D'\"", "delete_when", "cannot be done with mode: append", "filter step"),
    ("scd2", "sequence_by: n", "sequence_by", "versions by batch time have none", "effective_at"),
    ("upsert", "sequence_by: n, delete_strategy: hard", "sequence_by", "a removed row forgets its sequence", "delete_strategy: soft"),
    ("scd2", "track: []", "track", "would never open a second version", "leave it out"),
    ("scd2", "track: [name, NAME]", "track[1]", "stands twice", ""),
    ("scd2", "track: [customer_id]", "track[0]", "is a key", "remove it"),
    ("scd2", "effective_at: Customer_ID", "effective_at", "is a key of the table", "another column"),
    ("upsert", "sequence_by: customer_id", "sequence_by", "is a key of the table", "another column"),
    ("scd2", "open_end: some day", "open_end", "is not a timestamp", "9999-12-31"),
    ("upsert", "delete_when: \"source.op = 'D'\"", "delete_when", "names a table", "write op"),
    ("upsert", "delete_when: \"max(op) = 'D'\"", "delete_when", "looks at others", ""),
    ("upsert", "delete_when: \"'D'\"", "delete_when", "expected a condition", "op = 'D'"),
    ("upsert", "effective_until: at", "effective_until", "unknown key", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "more", "key", "message", "hint"), WRONG, ids=[f"{m}: {w}" for m, w, *_ in WRONG]
)
def test_refused_with_its_line(
    problems: Problems, mode: str, more: str, key: str, message: str, hint: str
) -> None:
    (found,) = problems(write(mode, more))
    assert found.key == f"nodes[silver_customers].write.{key}"
    assert found.line == LINE
    assert message in found.message
    assert hint in (found.hint or "")


RIGHT = [
    ("upsert", "sequence_by: n, delete_when: \"op = 'D'\""),
    ("upsert", "delete_when: \"op = 'D'\", delete_strategy: hard"),
    ("scd2", "track: [name], open_end: '9999-12-31'"),
    ("scd2", "track: [name], open_end: 9999-12-31, delete_when: \"op IN ('D', 'X')\""),
    ("scd2", "effective_at: at, sequence_by: n, delete_strategy: hard"),
]


@pytest.mark.parametrize(("mode", "more"), RIGHT)
def test_and_these_are_fine(problems: Problems, mode: str, more: str) -> None:
    assert problems(write(mode, more)) == []


def test_a_step_that_removes_rows_forgets_their_sequence_too(problems: Problems) -> None:
    steps = "transform: {steps: [{operation: detect_deletes, params: {mode: sql_compare, keys: [customer_id], source_connection: erp, source_table: c, soft_delete_col: null}}]}"
    text = write("upsert", "sequence_by: n").replace(
        "    transformation_sql: SELECT customer_id, name FROM source\n", f"    {steps}\n"
    )
    (found,) = problems(text)
    assert (found.key, found.line) == ("nodes[silver_customers].write.sequence_by", LINE)
    assert "forgets" in found.message


def test_the_events_have_their_own_place(problems: Problems) -> None:
    other = """\
  - name: other
    read: {connection: bronze, table: customers}
    write: {connection: silver, table: customers__events, mode: overwrite}
"""
    assert problems(GOOD + other) == []
    (found,) = problems(write("scd2", "effective_at: at") + other)
    assert "also written by node `silver_customers`" in found.message
