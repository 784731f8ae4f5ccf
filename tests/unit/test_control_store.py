"""The control tables themselves: what they cost after many batches, and that tidying them loses nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from strandline.control import store as control_store
from strandline.control.coverage import NOTHING, Coverage
from strandline.control.ledger import ControlRow, RunRow
from strandline.control.store import DeltaStore
from strandline.errors import StrandlineError, SystemRefused, TableError

NOW = datetime(2025, 1, 1, tzinfo=UTC)
ROW = RunRow(
    "run", "p", "n", 0, "lake.t", "success", NOW, NOW, 0.1, 1, 1, 0, 0, 0, 0, None, "p/n/0", NOTHING, "[]", None,
    "id", "source",
)  # fmt: skip


def batch(number: int, run_id: str = "run") -> RunRow:
    at = NOW + timedelta(hours=number)
    return replace(ROW, run_id=run_id, batch=number, started_at=at, completed_at=at)


def test_many_batches_leave_few_files_and_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_store, "_TIDY", 5)
    store = DeltaStore(tmp_path)
    for number in range(1, 24):
        store.log(batch(number), number)
    assert len(DeltaTable(str(tmp_path / "etl_runs")).file_uris()) <= 6
    assert [r.batch for r in store.runs()] == list(range(23, 0, -1))
    store.log(batch(23), 23)  # whoever finishes a record may come second
    assert (len(store.runs()), store.told(ROW.line)) == (23, 23)
    assert (tmp_path / "etl_runs" / "_delta_log" / "_last_checkpoint").exists()


def test_tidying_that_fails_fails_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_store, "_TIDY", 2)
    store = DeltaStore(tmp_path)

    def refuse(self: DeltaTable, **how: object) -> list[str]:
        raise OSError("the disk is full")

    monkeypatch.setattr(DeltaTable, "vacuum", refuse)
    for number in range(1, 6):
        store.log(batch(number))
    assert [r.batch for r in store.runs()] == [5, 4, 3, 2, 1]


def test_a_damaged_control_table_is_named_with_its_folder_and_the_way_out(tmp_path: Path) -> None:
    store = DeltaStore(tmp_path)
    store.log(batch(1))
    (tmp_path / "etl_runs" / "_delta_log" / f"{0:020d}.json").write_text("garbage")
    for look in (store.all_runs, store.changes, lambda: store.log(batch(2))):
        with pytest.raises(
            TableError, match=r"control table etl_runs in .*etl_runs is damaged"
        ) as told:
            look()
        assert "from a backup" in (told.value.hint or "")
        assert "history" in (told.value.hint or "")


def test_a_control_table_whose_files_are_gone_is_damaged_too(tmp_path: Path) -> None:
    store = DeltaStore(tmp_path)
    store.log(batch(1))
    for file in (tmp_path / "etl_runs").glob("*.parquet"):
        file.unlink()
    with pytest.raises(TableError, match=r"control table etl_runs in .* is damaged"):
        store.runs()


FULL = DeltaError(
    "Failed to parse parquet: Unable to copy data: No space left on device (os error 28)"
)
DENIED = OSError("Generic LocalFileSystem error\n Permission denied (os error 13)")


@pytest.mark.parametrize(
    ("error", "told", "todo"),
    [
        (FULL, "no space", "make room"),
        (DENIED, "permission denied", "let this user"),
        (OSError(30, "Read-only file system"), "read-only", "let this user"),
    ],
)
def test_what_the_system_refuses_is_not_taken_for_another_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str, todo: str
) -> None:
    tried = []

    def refuse(*_args: object, **_how: object) -> None:
        tried.append(1)
        raise error

    monkeypatch.setattr(control_store, "write_deltalake", refuse)
    with pytest.raises(
        SystemRefused, match=f"control tables in .* cannot be written: {told}"
    ) as raised:
        DeltaStore(tmp_path).log(batch(1))
    assert (len(tried), raised.value.retryable) == (1, False)
    assert todo in (raised.value.hint or "")


def test_whatever_else_goes_wrong_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(*_args: object, **_how: object) -> None:
        raise DeltaError("something else\nand more")

    monkeypatch.setattr(control_store, "write_deltalake", break_off)
    with pytest.raises(StrandlineError, match=r"cannot be written: something else$") as raised:
        DeltaStore(tmp_path).log(batch(1))
    assert not raised.value.retryable
    assert raised.value.hint


def state(run_id: str, number: int | None, revision: int = 0) -> ControlRow:
    """What a batch puts: after a commit with this number, or after none."""
    coverage = Coverage(run=run_id, commit=number or 1, committed=number is not None)
    return ControlRow(
        "lake.t", "erp.s", None, f"{run_id}/n", NOW, NOW, "SUCCESS", 1, 1, None, NOW, "n", None, None, None, coverage,
        "p", "id", "source", revision,
    )  # fmt: skip


def test_a_batch_without_a_commit_replaces_only_the_state_that_it_has_looked_at(
    tmp_path: Path,
) -> None:
    store = DeltaStore(tmp_path)
    assert store.put([state("a", 1)], 0) == 1
    assert store.put([state("b", None)], 1) == 2
    assert store.put([state("c", None)], 1) is None  # it has not seen what b has put
    assert store.put([state("d", 2)], 1) == 3  # a commit is true, whatever its runner has seen
    assert store.put([state("e", 2)], 3) is None  # but it is recorded once
    assert [r.covered.run for r in store.states()] == ["d"]


def test_the_sources_of_one_table_have_states_of_their_own(tmp_path: Path) -> None:
    store = DeltaStore(tmp_path)
    other = replace(state("b", 2), source="elsewhere")
    assert (store.put([state("a", 1)], 0), store.put([other], 0)) == (1, 2)
    assert sorted(r.covered.run or "" for r in store.states()) == ["a", "b"]


def test_a_control_table_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    store = DeltaStore(tmp_path)
    store.put([state("a", 1)], 0)
    DeltaTable(str(tmp_path / "etl_control")).alter.set_table_description("a later shape")
    with pytest.raises(TableError, match=r"etl_control in .* has another shape: .*a later shape"):
        store.states()
