"""Tables whose batches the control tables do not know: of a second project, or of control tables that were deleted."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.stories.projects.test_names import ALL, MARKED, Place, dies, node

UNKNOWN = "which the control tables did not know"


def two_projects(folder: Path, platform: Any) -> list[Place]:
    """North and south: a database and control tables for each, and one lake."""
    places = [Place(folder / name, platform, name) for name in ("north", "south")]
    for place in places:
        ops = {"type": "lake", "path": str(place.folder / "ops")}
        lake = {"type": "lake", "path": str(folder / "north" / "lake")}
        place.more = {"connections": {"ops": ops, "lake": lake}, "control": {"connection": "ops"}}
    return places


@pytest.mark.parametrize(
    "read",
    [ALL, pytest.param(MARKED, marks=pytest.mark.long_on_spark)],
    ids=["full", "incremental"],
)
def test_a_second_project_appends_its_first_extract(
    tmp_path: Path, platform: Any, read: dict[str, Any]
) -> None:
    north, south = two_projects(tmp_path, platform)
    north.add(100, 101)
    north.run(node(read))
    south.add(1, 2)
    (result,) = south.run(node(read, name="m")).nodes
    assert (result.inserted, result.warnings) == (2, [])
    assert north.ids() == [1, 2, 100, 101]
    assert {r.node for r in south.project.store.all_control()} == {"m"}
    (again,) = north.run(node(read)).nodes
    assert again.warnings == []


@pytest.mark.parametrize("lost", ["everything", "etl_control"])
@pytest.mark.long_on_spark
def test_an_append_reads_on_after_its_control_tables_were_deleted(
    tmp_path: Path, platform: Any, lost: str
) -> None:
    place = Place(tmp_path / "p", platform)
    place.add(1, 2)
    place.run(node())
    place.add(3)
    control = place.folder / "lake" / "_strandline"
    shutil.rmtree(control if lost == "everything" else control / lost)
    (result,) = place.run(node()).nodes
    assert place.ids() == [1, 2, 3]
    (told,) = result.warnings
    assert (UNKNOWN if lost == "everything" else "in the history only") in told
    assert "died" not in told


def test_a_full_extract_is_appended_after_the_control_tables_were_deleted(
    tmp_path: Path, pandas_platform: Any
) -> None:
    place = Place(tmp_path / "p", pandas_platform)
    place.add(1)
    place.run(node(ALL))
    shutil.rmtree(place.folder / "lake" / "_strandline")
    (planned,) = place.project.plan(platform=place.platform).nodes
    assert (planned.inserted, "died" in planned.warnings[0]) == (1, False)
    place.run(node(ALL))
    assert place.ids() == [1, 1]


def test_a_runner_that_died_is_still_told_from_lost_records(
    tmp_path: Path, pandas_platform: Any
) -> None:
    place = Place(tmp_path / "p", pandas_platform)
    place.add(1)
    with dies("commit.after"):
        place.declare(node(ALL)).run(platform=place.platform)
    (result,) = place.run(node(ALL)).nodes
    assert "which had landed before its runner died" in result.warnings[0]
    assert place.ids() == [1]


def test_a_project_that_was_renamed_reads_on(tmp_path: Path, pandas_platform: Any) -> None:
    """What was read of a source into a table is known of both, whatever project and node are called."""
    place = Place(tmp_path / "p", pandas_platform)
    place.add(1, 2)
    place.run(node())
    place.name = "other"
    place.add(3)
    (result,) = place.run(node(name="m")).nodes
    assert (result.inserted, result.warnings) == (1, [])
    assert place.ids() == [1, 2, 3]
