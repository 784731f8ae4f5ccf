"""Somebody else puts an older version of an incremental table back, or replaces it: reads go on from what is in it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.stories.projects.test_names import ALL, FED, KEPT, Place, node

MERGED = node(mode="upsert")
LISTED = node({**ALL, "watermark": [{"column_name": "u", "expression": "'${last_value}'"}]})


@pytest.fixture
def place(tmp_path: Path, platform: Any) -> Place:
    """On both engines, where a test asks for both."""
    return Place(tmp_path / "p", platform)


@pytest.fixture
def local(tmp_path: Path, pandas_platform: Any) -> Place:
    return Place(tmp_path / "p", pandas_platform)


def table(place: Place) -> DeltaTable:
    return DeltaTable(str(place.folder / "lake" / "t"))


def three_batches(place: Place, *nodes: dict[str, Any]) -> None:
    """Row 1 in version 0, row 2 in version 1, row 3 in version 2."""
    for mark in (1, 2, 3):
        place.add(mark)
        place.run(*nodes)
    assert place.ids() == [1, 2, 3]


def theirs(place: Place) -> pa.Table:
    """A row of somebody else, in the columns of the table."""
    row = {"id": 9, "v": "theirs", "u": 9}
    there = pa.schema(table(place).schema().to_arrow())
    return pa.table({f.name: pa.array([row.get(f.name)], f.type) for f in there})


def test_a_restored_table_is_read_on_from_its_newest_batch(place: Place) -> None:
    three_batches(place, node())
    table(place).restore(0)
    place.add(4)
    (result,) = place.run(node()).nodes
    assert place.ids() == [1, 2, 3, 4]
    (told,) = result.warnings
    assert told.startswith(
        "version 3 of lake.t is a RESTORE to version 0 that no run of strandline made: the newest"
    )
    assert told.endswith("still in the table is 1, and the source is read on from there")
    assert place.run(node()).nodes[0].warnings == []
    assert place.ids() == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", [MERGED, LISTED], ids=["upsert", "a list of watermarks"])
def test_every_way_of_reading_on_goes_back(local: Place, kind: dict[str, Any]) -> None:
    three_batches(local, kind)
    table(local).restore(0)
    local.add(4)
    local.run(kind)
    assert local.ids() == [1, 2, 3, 4]


def test_a_restored_table_that_follows_a_change_feed_gets_its_rows_again(local: Place) -> None:
    three_batches(local, KEPT, FED)
    table(local).restore(0)
    local.add(4)
    local.run(KEPT, FED)
    assert local.ids() == [1, 2, 3, 4]


def test_a_plan_sees_what_a_run_would_read_again(local: Place) -> None:
    three_batches(local, node())
    table(local).restore(0)
    (planned,) = local.project.plan(platform=local.platform).nodes
    assert planned.inserted == 2
    assert "RESTORE to version 0" in planned.warnings[0]


def test_a_restore_of_a_restore_is_followed(local: Place) -> None:
    three_batches(local, node())
    table(local).restore(0)
    table(local).restore(2)  # version 4: rows 1, 2 and 3 again
    assert local.run(node()).nodes[0].warnings == []
    table(local).restore(3)  # version 5: what version 0 had
    local.run(node())
    assert local.ids() == [1, 2, 3]


def test_a_restore_to_a_version_after_the_newest_batch_moves_nothing(local: Place) -> None:
    three_batches(local, node())
    write_deltalake(table(local), theirs(local), mode="append")
    table(local).delete("id = 9")
    table(local).restore(3)
    (result,) = local.run(node()).nodes
    assert (result.warnings, result.inserted) == ([], 0)
    assert local.ids() == [1, 2, 3, 9]


def test_a_watermark_that_a_quiet_batch_moved_stays_where_its_table_stays(local: Place) -> None:
    step = {"operation": "filter", "params": {"condition": "v <> 'x'"}}
    kept = node(transform={"steps": [step]})
    local.add(1)
    local.run(kept)
    local.erp("INSERT INTO s VALUES (2, 'x', 2)")
    local.run(kept)  # commits nothing
    write_deltalake(table(local), theirs(local), mode="append")
    table(local).restore(0)
    (result,) = local.run(kept).nodes
    assert (result.warnings, result.rows_read) == ([], 1)


def test_an_undo_after_a_restore_leaves_the_restored_table(local: Place) -> None:
    three_batches(local, node())
    table(local).restore(0)
    local.undo(local.run(node()))
    assert local.ids() == [1]
    local.run(node())
    assert local.ids() == [1, 2, 3]


def test_a_restore_to_what_somebody_else_had_put_in_the_place_of_all_batches(local: Place) -> None:
    local.add(1, 2)
    local.run(node())
    write_deltalake(table(local), theirs(local), mode="overwrite")
    write_deltalake(table(local), theirs(local), mode="append")
    table(local).restore(1)
    local.run(node())
    assert local.ids() == [1, 2, 9]


# --- replaced by somebody else -----------------------------------------------------------------------------------


def overwrites(place: Place) -> None:
    write_deltalake(table(place), theirs(place), mode="overwrite")


def replaces(place: Place) -> None:
    DeltaTable.create(
        str(place.folder / "lake" / "t"), schema=table(place).schema(), mode="overwrite"
    )


@pytest.mark.parametrize(
    ("act", "left"), [(overwrites, [9]), (replaces, [])], ids=["overwritten", "replaced"]
)
@pytest.mark.long_on_spark
def test_a_table_that_somebody_replaced_is_read_anew(
    place: Place, act: Callable[[Place], None], left: list[int]
) -> None:
    place.add(1, 2)
    place.run(node())
    act(place)
    (result,) = place.run(node()).nodes
    assert place.ids() == [1, 2, *left]
    (told,) = result.warnings
    assert "no batch is left in lake.t, so the source is read anew" in told


def test_rows_that_an_overwrite_kept_are_not_doubled(local: Place) -> None:
    """Somebody rewrites the table with the rows that it has: reading anew appends none of them twice."""
    for nodes in ([node()], [KEPT, FED]):
        local.folder = local.folder.parent / nodes[-1]["name"] / str(len(nodes))
        local.folder.mkdir(parents=True)
        local.erp("CREATE TABLE s (id INTEGER, v TEXT, u INTEGER)")
        three_batches(local, *nodes)
        write_deltalake(table(local), table(local).to_pyarrow_table(), mode="overwrite")
        local.add(4)
        local.run(*nodes)
        assert local.ids() == [1, 2, 3, 4]


def inserts(place: Place) -> None:
    write_deltalake(table(place), theirs(place), mode="append")


def overwrites_a_part(place: Place) -> None:
    write_deltalake(table(place), theirs(place), mode="overwrite", predicate="id = 9")


@pytest.mark.parametrize(
    ("act", "left"),
    [
        (inserts, [1, 2, 9]),
        (lambda p: table(p).update({"v": "'x'"}, predicate="id = 1"), [1, 2]),
        (lambda p: table(p).delete("id = 1"), [2]),
        (lambda p: table(p).optimize.compact(), [1, 2]),
        (overwrites_a_part, [1, 2, 9]),
    ],
    ids=["inserted", "updated", "deleted", "optimized", "overwrote a part"],
)
def test_other_writes_of_somebody_else_move_no_watermark(
    local: Place, act: Callable[[Place], None], left: list[int]
) -> None:
    local.add(1)
    local.run(node())
    local.add(2)
    local.run(node())
    act(local)
    (result,) = local.run(node()).nodes
    assert (result.rows_read, result.warnings) == (1, [])
    assert local.ids() == left


@pytest.mark.spark
def test_a_table_that_spark_restored_to_a_time(tmp_path: Path, spark_platform: Any) -> None:
    """The log of such a RESTORE names a time of some zone, and no version."""
    place = Place(tmp_path / "p", spark_platform)
    three_batches(place, node())
    path = place.folder / "lake" / "t"
    written = (path / "_delta_log" / f"{0:020}.json").stat().st_mtime
    first = datetime.fromtimestamp(written, UTC).isoformat()
    spark_platform.session.sql(f"RESTORE TABLE delta.`{path}` TO TIMESTAMP AS OF '{first}'")
    assert place.ids() == [1]
    place.run(node())
    assert place.ids() == [1, 2, 3]
