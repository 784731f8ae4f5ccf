# ruff: noqa: E501 – one line per case reads as a table
"""What cannot be right about surrogate keys, dimensions, facts, calendars and bridges."""

from __future__ import annotations

import pytest
from tests.unit.config.conftest import Problems

HEAD = """\
project: shop
engine: pandas
connections:
  files: {type: files, path: landing}
  gold: {type: lake, path: lake/gold}
nodes:
"""
DIM = "  - {name: dim, read: {connection: files, path: c.parquet}, write: {connection: gold, table: dim, mode: %s}}\n"
FACT = "  - {name: fact, read: {connection: files, path: f.parquet}, foreign_keys: [{column: sk, dimension: %s}], write: {connection: gold, table: fact, mode: %s}}\n"
DAYS = "  - {name: days, calendar: {%s}, write: {connection: gold, table: days, mode: %s}}\n"
KEYED = "scd2, keys: [id], surrogate_key: {column: sk}"
LOOKUP = "dim, lookup: {id: id}"
UPSERT = "upsert, keys: [f]"

WRONG = [
    (DIM % "upsert, keys: [id], surrogate_key: {column: sk, strategy: identity}", "surrogate_key.strategy", "filled in by the commit", "hash"),
    (DIM % "append, surrogate_key: {column: sk}", "surrogate_key", "does nothing with mode: append", "upsert"),
    (DIM % "upsert, keys: [id], default_members: true", "default_members", "needs a surrogate_key", "surrogate_key"),
    (DIM % "upsert, keys: [id], durable_key: dk, surrogate_key: {column: sk}", "durable_key", "where a key has one row", "scd2"),
    (DIM % "scd2, keys: [id], durable_key: sk, surrogate_key: {column: sk}", "durable_key", "both keys", "rename"),
    (DIM % "scd2, keys: [id], surrogate_key: {column: ID}", "surrogate_key", "one of the keys", "another name"),
    (FACT % ("dimm, lookup: {id: id}", UPSERT) + DIM % KEYED, "dimension", "unknown node `dimm`", "dim"),
    (FACT % ("fact, lookup: {id: id}", UPSERT), "dimension", "of itself", ""),
    (FACT % (LOOKUP, UPSERT) + DIM % "upsert, keys: [id]", "dimension", "no surrogate key", "surrogate_key"),
    (FACT % ("dim, lookup: {id: name}", UPSERT) + DIM % KEYED, "lookup", "the keys of `dim` are (id)", ""),
    (FACT % (LOOKUP + ", event_time: at", UPSERT) + DIM % "upsert, keys: [id], surrogate_key: {column: sk}", "event_time", "not its history", "scd2"),
    (FACT % (LOOKUP, UPSERT) + DIM % (KEYED + ", delete_strategy: hard"), "dimension", "point at nothing", "soft"),
    (FACT % (LOOKUP + ", on_missing: skeleton", UPSERT) + DIM % (KEYED + ", effective_at: at"), "on_missing", "made from events", "default"),
    (FACT % (LOOKUP, "append") + DIM % (KEYED + ", effective_at: at"), "dimension", "dissolve", "upsert"),
    (FACT % (LOOKUP + ", repoint: true", "append") + DIM % KEYED, "repoint", "never does", "upsert"),
    (FACT % (LOOKUP, "overwrite") + DIM % KEYED, "foreign_keys", "replaces all", "upsert"),
    (DAYS % ("from: 2024-01-02, to: 2024-01-01", "overwrite"), "to", "before", "exchange"),
    (DAYS % ("from: 2024-01-01, to: 2024-01-02", "append"), "mode", "written whole", "overwrite"),
    (DAYS % ("from: 2024-01-01, to: 2024-01-02, fiscal_year_starts: 13", "overwrite"), "fiscal_year_starts", "12", ""),
    (DAYS % ("from: 2024-01-01, to: 2024-01-02, holidays: [2024-01-01, 2024-01-01]", "overwrite"), "holidays", "twice", ""),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "key", "message", "hint"), WRONG, ids=[w[2] for w in WRONG])
def test_a_mistake_says_what_and_where(
    problems: Problems, nodes: str, key: str, message: str, hint: str
) -> None:
    found = problems(HEAD + nodes)
    assert any(
        key in (p.key or "") and message in p.message and hint in (p.hint or "") for p in found
    ), found


def test_a_right_star_loads_and_facts_come_after_their_dimensions(problems: Problems) -> None:
    fact = FACT % (LOOKUP + ", event_time: at, on_missing: skeleton, repoint: true", UPSERT)
    assert problems(HEAD + fact + DIM % (KEYED + ", durable_key: dk, default_members: true")) == []
