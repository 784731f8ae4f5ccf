"""The control tables themselves: what they cost after many batches, and that tidying them loses nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from strandline.control.ledger import RunRow
from strandline.engine import control_store
from strandline.engine.control_store import DeltaStore
from strandline.errors import Fenced

NOW = datetime(2025, 1, 1, tzinfo=UTC)
ROW = RunRow(
    "run", "p", "n", 0, "lake.t", "success", NOW, NOW, 0.1, 1, 1, 0, 0, 0, 0, None, "p/n/0", "{}", "[]", None
)  # fmt: skip


def batch(number: int, run_id: str = "run") -> RunRow:
    at = NOW + timedelta(hours=number)
    return replace(ROW, run_id=run_id, batch=number, started_at=at, completed_at=at, token=f"p/n/{number}")


def test_many_batches_leave_few_files_and_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_store, "_TIDY", 5)
    store = DeltaStore(tmp_path)
    for number in range(1, 24):
        store.log(batch(number))
    assert len(DeltaTable(str(tmp_path / "etl_runs")).file_uris()) <= 6
    assert [r.batch for r in store.runs()] == list(range(23, 0, -1))
    with pytest.raises(Fenced):
        store.log(batch(23, "another"))
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
