"""Taking runs back where the table is folded from its events: both as they were, also when the undo died in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from tests.crash.test_history_crash import AFTER, FIRST, SECOND, Dying
from tests.stories.history.test_history import TIMED, day, frame
from tests.stories.undo.test_undo import meanwhile

from strandline import failpoints
from strandline.errors import UndoRefused, UsageError
from strandline.testing.frames import read_table, spelled, write_parquet

LATE = [(1, "Abe", "1", "U", day(3))]  # woven in between two versions
SAME = [
    (1, "Abc", "1", "U", day(5))
]  # lower than what is known of that day: an event, and no version


def everything(shop: Dying) -> list[list[str]]:
    """The rows of the table and of its events, whole."""
    tables = [read_table(shop.folder / "lake" / name).rows for name in ("t", "t__events")]
    return [sorted(spelled(tuple(sorted(r.items()))) for r in rows) for rows in tables]


def lived(folder: Path, platform: Any) -> tuple[Dying, list[str], list[list[list[str]]]]:
    shop, runs, seen = Dying(folder, platform), [], []
    for rows in (FIRST, SECOND, LATE, SAME):
        shop.land(*rows)
        runs.append(shop.project.run(platform=platform, check=True).run_id)
        seen.append(everything(shop))
    return shop, runs, seen


def test_table_and_events_newest_first(tmp_path: Path, platform: Any) -> None:
    shop, runs, seen = lived(tmp_path, platform)
    assert seen[2][0] == seen[3][0]
    assert seen[2][1] != seen[3][1]
    for k in (3, 2, 1):
        assert shop.project.undo(runs[k], platform=platform).exit_code == 0
        assert everything(shop) == seen[k - 1], k
    shop.land(*SECOND)
    assert shop.run().inserted == 1
    assert shop.rows() == AFTER


@pytest.mark.parametrize("asked", ["undo", "run"])
@pytest.mark.parametrize("at", [1, 2], ids=["events", "table"])
@pytest.mark.long
def test_an_undo_that_died_between_the_two_commits(
    tmp_path: Path, pandas_platform: Any, asked: str, at: int
) -> None:
    shop, runs, seen = lived(tmp_path, pandas_platform)
    assert shop.project.undo(runs[3], platform=pandas_platform).exit_code == 0
    met = [0]

    def dies(name: str, node: str | None) -> None:
        if name == "readback.after":
            met[0] += 1
            if met[0] == at:
                raise failpoints.InjectedFault(name)

    with failpoints.armed(dies):
        assert shop.project.undo(runs[2], platform=pandas_platform).exit_code == 1
    write_parquet(tmp_path / "landing" / "rows.parquet", frame(TIMED, *SECOND))  # nothing new
    if asked == "undo":
        with pytest.raises(UsageError, match="already undone"):
            shop.project.undo(runs[2], platform=pandas_platform)
    else:
        assert shop.run().status == "unchanged"
    assert everything(shop) == seen[1]


def test_later_events_are_in_the_way(tmp_path: Path, pandas_platform: Any) -> None:
    shop, runs, _ = lived(tmp_path, pandas_platform)
    with pytest.raises(UndoRefused) as refused:
        shop.project.undo(runs[2], platform=pandas_platform)
    assert any(
        o.startswith("lake.t__events: run") and runs[3] in o for o in refused.value.obstacles
    )
    assert shop.project.undo(runs[3], platform=pandas_platform, dry_run=True).exit_code == 0


@pytest.mark.parametrize("table", ["t", "t__events"])
def test_a_commit_to_either_table_after_the_look(
    tmp_path: Path, pandas_platform: Any, table: str
) -> None:
    shop, runs, _ = lived(tmp_path, pandas_platform)
    assert shop.project.undo(runs[3], platform=pandas_platform).exit_code == 0
    place = str(tmp_path / "lake" / table)
    row = DeltaTable(place).to_pyarrow_table().slice(0, 1)
    after = []

    def commits() -> None:
        write_deltalake(place, row, mode="append")
        after.append(everything(shop))

    with failpoints.armed(meanwhile("notes.after", "n", commits)):
        assert shop.project.undo(runs[2], platform=pandas_platform).exit_code == 4
    assert everything(shop) == after[0]
