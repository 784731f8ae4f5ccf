"""The batches of a hand-written job: a row of `etl_control` per target and source (seed 003)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from strandline.control.ledger import BY_HAND, ControlRow
from strandline.control.store import DeltaStore
from strandline.journal import log
from strandline.loader.tables import hinted, job_store, table_name, utc_now


class ETLControlManager:
    """What was processed, and how it went: one row of `etl_control` per target and source."""

    def __init__(self, control: str | Path | None = None) -> None:
        self._control = control

    @hinted()
    def get_watermark(self, target: object, source: object) -> int | None:
        """The last version of the source that a finished batch has brought into the target; None before the first."""
        row = self._row(table_name(target), table_name(source))
        return row.last_processed_version if row else None

    @hinted()
    def batch_start(self, target: object, source: object) -> str:
        """Record a running batch; returns its id."""
        return self._put(target, source, "RUNNING").batch_id

    @hinted()
    def batch_complete(
        self, target: object, source: object, version: int, rows_read: int, rows_written: int
    ) -> None:
        """Record a finished batch: the next one starts after `version`, or after a higher one that was recorded."""
        new = self._put(
            target, source, "SUCCESS", version, rows_read=rows_read, rows_written=rows_written
        )
        if new.last_processed_version != version:
            log.warning(
                "batch_complete: the watermark of %s stays at version %s, which is higher than %s; "
                "to go back on purpose, call reset_watermark(target, source)",
                new.source_table, new.last_processed_version, version,
            )  # fmt: skip

    @hinted()
    def batch_fail(self, target: object, source: object, error_message: str) -> None:
        """Record a failed batch: the watermark stays where it was."""
        self._put(target, source, "FAILED", error=error_message)

    @hinted()
    def reset_watermark(self, target: object, source: object) -> None:
        """Forget what was processed of a source, for one that was made anew: the next watermark is None."""
        row = self._row(table_name(target), table_name(source))
        if row is not None:
            self._store.put_by_hand(
                replace(row, last_processed_version=None, updated_at=utc_now()), back=True
            )

    @property
    def _store(self) -> DeltaStore:
        return job_store(self._control)

    def _row(self, target: str, source: str) -> ControlRow | None:
        line = (BY_HAND + target, source)
        return next((r for r in self._store.states() if r.line == line), None)

    def _put(
        self,
        target: object,
        source: object,
        status: str,
        version: int | None = None,
        *,
        rows_read: int | None = None,
        rows_written: int | None = None,
        error: str | None = None,
    ) -> ControlRow:
        into, label, now = table_name(target), table_name(source), utc_now()
        row = self._row(into, label)
        revision = row.revision if row else 0
        begun = row.batch_started_at if row and row.batch_status == "RUNNING" else None
        old = row.last_processed_version if row else None
        new = ControlRow(
            target_table=into,
            source_table=label,
            last_processed_version=old if version is None else version,
            batch_id=f"{BY_HAND}{into}/{revision + 1}",
            batch_started_at=now if begun is None or status == "RUNNING" else begun,
            batch_completed_at=None if status == "RUNNING" else now,
            batch_status=status,
            rows_read=rows_read,
            rows_written=rows_written,
            error_message=error,
            updated_at=now,
            node=BY_HAND + into,
            load_id=None,
            watermark_value=None,
            watermark_type=None,
            coverage=row.coverage if row else None,
            project="",
            table_id=BY_HAND + into,
            source=label,
            revision=revision + (status == "SUCCESS"),
        )
        return self._store.put_by_hand(new)


def get_watermark(target: object, source: object) -> int | None:
    """`ETLControlManager().get_watermark`."""
    return ETLControlManager().get_watermark(target, source)


def batch_start(target: object, source: object) -> str:
    """`ETLControlManager().batch_start`."""
    return ETLControlManager().batch_start(target, source)


def batch_complete(
    target: object, source: object, version: int, rows_read: int, rows_written: int
) -> None:
    """`ETLControlManager().batch_complete`."""
    ETLControlManager().batch_complete(target, source, version, rows_read, rows_written)


def batch_fail(target: object, source: object, error_message: str) -> None:
    """`ETLControlManager().batch_fail`."""
    ETLControlManager().batch_fail(target, source, error_message)


def reset_watermark(target: object, source: object) -> None:
    """`ETLControlManager().reset_watermark`."""
    ETLControlManager().reset_watermark(target, source)
