"""Cases that other tools document, with data of our own: what their users may expect, they find here."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.lab import Lab, lab
from tests.stories.history.test_history import day, frame, hour, versions

from strandline.engine.base import Platform
from strandline.testing.events import assert_sound
from strandline.testing.frames import read_table, write_parquet
from strandline.testing.projects import make_project

# --- Databricks: AUTO CDC ----------------------------------------------------------------------------------

PARCELS = [
    ("id", "int"),
    ("owner", "string"),
    ("town", "string"),
    ("op", "string"),
    ("seq", "bigint"),
    ("at", "timestamp"),
]
EARLY = [
    (10, "Ines", "Porto", "INSERT", 1, day(1)),
    (11, "Ravi", "Pune", "INSERT", 1, day(1)),
    (12, "Mona", "Turin", "INSERT", 2, day(2)),
    (13, "Lars", "Oslo", "INSERT", 2, day(2)),
]
LATE = [  # 10 moves and is then deleted, 12 moves twice; the newest comes first
    (10, None, None, "DELETE", 6, day(6)),
    (12, "Mona", "Genoa", "UPDATE", 6, day(6)),
    (12, "Mona", "Milan", "UPDATE", 5, day(5)),
    (10, "Ines", "Faro", "UPDATE", 5, day(5)),
]
DELETE = {"delete_when": "op = 'DELETE'"}
NEWEST = {
    "steps": [{"operation": "deduplicate", "params": {"keys": ["id"], "order_by": "seq DESC"}}]
}


def living(at: Lab) -> list[tuple[Any, ...]]:
    return sorted((r["id"], r["owner"], r["town"]) for r in at.table().rows if not r["_is_deleted"])


def test_auto_cdc_scd_type_1(pandas_platform: Platform) -> None:
    """Databricks, "Simplified change data capture with the APPLY CHANGES API" (now AUTO CDC), SCD type 1."""
    write = {"mode": "upsert", "keys": ["id"], "sequence_by": "seq", **DELETE}
    with lab(pandas_platform, write, transform=NEWEST) as at:
        at.run(frame(PARCELS, *EARLY))
        at.run(frame(PARCELS, *LATE))
        assert living(at) == [(11, "Ravi", "Pune"), (12, "Mona", "Genoa"), (13, "Lars", "Oslo")]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5])
def test_auto_cdc_scd_type_1_row_by_row(pandas_platform: Platform, order: Sequence[int]) -> None:
    """The same page: out-of-order events end in the same table, the delete included."""
    write = {"mode": "upsert", "keys": ["id"], "sequence_by": "seq", **DELETE}
    with lab(pandas_platform, write, transform=NEWEST) as at:
        for index in order:
            at.run(
                frame(PARCELS, EARLY[0], LATE[index]) if index == 0 else frame(PARCELS, LATE[index])
            )
        assert living(at) == [(12, "Mona", "Genoa")]


TRACKED = {"mode": "scd2", "keys": ["id"], "effective_at": "at", "track": ["owner", "town"]}
TYPE_2 = [
    (10, "Porto", day(1), day(5)),
    (10, "Faro", day(5), day(6)),
    (11, "Pune", day(1), None),
    (12, "Turin", day(2), day(5)),
    (12, "Milan", day(5), day(6)),
    (12, "Genoa", day(6), None),
    (13, "Oslo", day(2), None),
]


def test_auto_cdc_scd_type_2(platform: Platform) -> None:
    """The same page, SCD type 2: several changes of a key in one batch, and late ones, in their places."""
    with lab(platform, {**TRACKED, **DELETE}) as at:
        for batch in (LATE, EARLY):
            at.run(frame(PARCELS, *batch))
        assert versions(at.table(), "id", "town", "_valid_from", "_valid_to") == TYPE_2
        assert_sound(at.table().rows, ["id"])


@pytest.mark.parametrize("batches", [[EARLY + LATE], [EARLY, LATE]], ids=["one", "two"])
def test_auto_cdc_scd_type_2_in_order(
    pandas_platform: Platform, batches: list[list[tuple[Any, ...]]]
) -> None:
    with lab(pandas_platform, {**TRACKED, **DELETE}) as at:
        for batch in batches:
            at.run(frame(PARCELS, *batch))
        assert versions(at.table(), "id", "town", "_valid_from", "_valid_to") == TYPE_2


def test_auto_cdc_track_history_on_a_subset(pandas_platform: Platform) -> None:
    """The same page, TRACK HISTORY ON * EXCEPT (town): the town takes its latest value inside the version."""
    with lab(
        pandas_platform,
        {"mode": "scd2", "keys": ["id"], "effective_at": "at", "track": ["owner"], **DELETE},
    ) as at:
        at.run(frame(PARCELS, *EARLY, *LATE))
        assert versions(at.table(), "id", "town", "_valid_from", "_valid_to") == [
            (10, "Faro", day(1), day(6)),
            (11, "Pune", day(1), None),
            (12, "Genoa", day(2), None),
            (13, "Oslo", day(2), None),
        ]


SURVIVORS = """
SELECT id, owner, town FROM (
  SELECT id, owner, town, op, seq, row_number() OVER (PARTITION BY id ORDER BY seq DESC) AS newest,
         max(CASE WHEN op = 'TRUNCATE' THEN seq END) OVER () AS emptied
  FROM source)
WHERE newest = 1 AND op NOT IN ('DELETE', 'TRUNCATE') AND (emptied IS NULL OR seq > emptied)
"""


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
@pytest.mark.long_on_spark
def test_auto_cdc_truncate(tmp_path: Path, platform: Platform, order: Sequence[int]) -> None:
    """The same page, APPLY AS TRUNCATE WHEN: what came before it is gone, in whatever order the log arrives."""
    lake = {"connection": "lake"}
    nodes = [
        {
            "name": "bronze",
            "read": {"connection": "files", "path": "rows.parquet"},
            "write": {**lake, "table": "changes", "mode": "append"},
        },
        {
            "name": "silver",
            "read": {**lake, "table": "changes"},
            "transformation_sql": SURVIVORS,
            "write": {**lake, "table": "owners", "mode": "overwrite"},
        },
    ]
    project = make_project(tmp_path, nodes)
    log = [EARLY, [(None, None, None, "TRUNCATE", 3, day(3))], LATE]
    for index in order:
        write_parquet(tmp_path / "landing" / "rows.parquet", frame(PARCELS, *log[index]))
        project.run(platform=platform, check=True)
    assert [(r["id"], r["town"]) for r in read_table(tmp_path / "lake" / "owners").rows] == [
        (12, "Genoa")
    ]


# --- dbt: snapshots ----------------------------------------------------------------------------------------

TICKETS = [("id", "int"), ("state", "string"), ("note", "string"), ("updated_at", "timestamp_ntz")]


def ticket(number: int, state: str, note: str, n: int) -> tuple[Any, ...]:
    return (number, state, note, datetime(2024, 1, n))


def gone(**params: Any) -> dict[str, Any]:
    found = {"mode": "snapshot_diff", "keys": ["id"], "max_delete_percent": None, **params}
    return {"steps": [{"operation": "detect_deletes", "params": found}]}


def test_dbt_timestamp_strategy(pandas_platform: Platform) -> None:
    """dbt, "Add snapshots to your DAG", timestamp: a row with a newer `updated_at` ends its predecessor there."""
    write = {
        "mode": "scd2",
        "keys": ["id"],
        "effective_at": "updated_at",
        "track": ["state", "note", "updated_at"],
    }
    with lab(pandas_platform, write) as at:
        at.run(frame(TICKETS, ticket(1, "open", "a", 1), ticket(2, "open", "b", 1)))
        at.run(frame(TICKETS, ticket(1, "done", "a", 2), ticket(2, "open", "b", 1)))
        at.run(
            frame(TICKETS, ticket(1, "done", "a", 3))
        )  # touched and otherwise the same: dbt records it, so may we
        assert versions(at.table(), "id", "state", "_valid_from", "_valid_to") == [
            (1, "open", day(1), day(2)),
            (1, "done", day(2), day(3)),
            (1, "done", day(3), None),
            (2, "open", day(1), None),
        ]


def test_dbt_check_strategy(pandas_platform: Platform) -> None:
    """dbt, the same page, check: only `check_cols` make a new record, and they do even if `updated_at` stands still."""
    with lab(pandas_platform, {"mode": "scd2", "keys": ["id"], "track": ["state"]}) as at:
        at.run(frame(TICKETS, ticket(1, "open", "a", 1), ticket(2, "open", "b", 1)))
        at.run(frame(TICKETS, ticket(1, "done", "a", 1), ticket(2, "open", "c", 2)))
        assert versions(at.table(), "id", "state", "note", "_valid_from", "_valid_to") == [
            (1, "open", "a", hour(1), hour(2)),
            (1, "done", "a", hour(2), None),
            (2, "open", "c", hour(1), None),
        ]


def test_dbt_hard_deletes_invalidate(pandas_platform: Platform) -> None:
    """dbt, "hard_deletes", invalidate: the record ends when it was missed, and the restored row is a new one."""
    with lab(pandas_platform, {"mode": "scd2", "keys": ["id"]}, transform=gone()) as at:
        both = frame(TICKETS, ticket(1, "open", "a", 1), ticket(2, "open", "b", 1))
        at.run(both)
        at.run(frame(TICKETS, ticket(1, "open", "a", 1)))
        assert (
            at.run(frame(TICKETS, ticket(1, "open", "a", 1))).status == "unchanged"
        )  # not again each time
        at.run(both)
        assert versions(at.table(), "id", "_valid_from", "_valid_to") == [
            (1, hour(1), None),
            (2, hour(1), hour(2)),
            (2, hour(4), None),
        ]


def test_dbt_hard_deletes_new_record(pandas_platform: Platform) -> None:
    """dbt, the same page, new_record: that it was deleted can be told for every moment, until it is restored.

    dbt keeps a record of its own for the deleted time; here it is the time between a version that ended by a delete
    (`_is_deleted`) and the next one.
    """
    write = {"mode": "scd2", "keys": ["id"], "effective_at": "updated_at"}
    with lab(pandas_platform, write, transform=gone()) as at:
        both = frame(TICKETS, ticket(1, "open", "a", 1), ticket(2, "open", "b", 1))
        at.run(both)
        for _ in range(2):
            at.run(frame(TICKETS, ticket(1, "open", "a", 1)))
        at.run(both)
        found = versions(at.table(), "id", "_valid_from", "_valid_to", "_is_deleted")
        assert found[1:] == [(2, day(1), hour(2), True), (2, hour(4), None, False)]


# --- dlt: scd2 ---------------------------------------------------------------------------------------------

COUNTERS = [("id", "int"), ("code", "int")]


def test_dlt_scd2_reinserted(pandas_platform: Platform) -> None:
    """dlt, "Merge loading", scd2: a retired record that is inserted again as it was becomes active a second time."""
    end = datetime(9999, 12, 31, tzinfo=UTC)
    with lab(
        pandas_platform,
        {"mode": "scd2", "keys": ["id"], "open_end": "9999-12-31"},
        transform=gone(),
    ) as at:
        at.run(frame(COUNTERS, (1, 7), (2, 8)))
        at.run(frame(COUNTERS, (1, 9), (2, 8)))  # updated
        at.run(frame(COUNTERS, (2, 8)))  # deleted
        at.run(frame(COUNTERS, (1, 9), (2, 8)))  # inserted again, identical
        assert versions(at.table(), "id", "code", "_valid_from", "_valid_to") == [
            (1, 7, hour(1), hour(2)),
            (1, 9, hour(2), hour(3)),
            (1, 9, hour(4), end),
            (2, 8, hour(1), end),
        ]


def test_dlt_scd2_incremental(pandas_platform: Platform) -> None:
    """dlt, the same page, "incremental scd2": what an increment does not bring is not retired."""
    with lab(pandas_platform, {"mode": "scd2", "keys": ["id"]}) as at:
        at.run(frame(COUNTERS, (1, 7), (2, 8)))
        at.run(frame(COUNTERS, (1, 9)))
        assert versions(at.table(), "id", "code", "_valid_to") == [
            (1, 7, hour(2)),
            (1, 9, None),
            (2, 8, None),
        ]
