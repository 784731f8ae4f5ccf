"""Reading Delta tables by hand: whole, or what changed since a version (seed 003)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from strandline.errors import ReadError
from strandline.journal import log
from strandline.loader import delivery
from strandline.loader.delivery import Wanted
from strandline.loader.tables import hinted, opened, spelled_keys
from strandline.types import Table

if TYPE_CHECKING:
    from strandline.engine.spark.frames import DataFrame


class DataLoader:
    """Reads Delta tables: whole, or what changed since a version."""

    @hinted()
    def load_full_snapshot(self, table: object, **wanted: Any) -> DataFrame:
        """The living rows of a table, fixed to the version it has now; or others, by the options of `Wanted`."""
        frames, lake, state = opened(table)
        with frames.told(lake.label):
            state = Wanted(**wanted).of(state, lake, ())
            return frames.frame(delivery.snapshot(frames.engine, lake, state))

    @hinted()
    def load_cdf(
        self,
        table: object,
        start_version: int,
        deduplicate_keys: Sequence[str] | None = None,
        **wanted: Any,
    ) -> DataFrame:
        """The net change from `start_version` (included) to now; with keys one row of each.

        Each row has its `_change_type` (insert, update, delete), and the `_commit_version` and `_commit_timestamp` of
        the commit that changed it.
        """
        frames, lake, state = opened(table)
        with frames.told(lake.label):
            state = Wanted(**wanted).of(state, lake, deduplicate_keys or ())
            keys = spelled_keys(deduplicate_keys or (), state, lake)
            if start_version > state.version:
                _warn_of_gap(lake, start_version, state.version)
                return frames.dated(frames.frame(delivery.nothing(frames.engine, state)), lake)
            rows = delivery.since(frames.engine, lake, state, start_version - 1, keys)
            if rows is None:
                raise changes_lost(lake, start_version - 1)
            return frames.dated(frames.frame(rows), lake)

    @hinted()
    def get_latest_version(self, table: object) -> int:
        """The version that a table has now."""
        return opened(table)[2].version


def changes_lost(lake: Table, after: int) -> ReadError:
    """The error for changes that can no longer be read."""
    return ReadError(
        f"{lake.label}: what changed after version {after} can no longer be read, so what was deleted since is unknown",
        hint="read all rows with load_full_snapshot, and delete the others from the target: "
        "merge_dataframe(table, data_frame, key_columns, whole=True)",
    )


def _warn_of_gap(lake: Table, start: int, newest: int) -> None:
    """Warn of a start that no commit can have led to."""
    if start > newest + 1:
        log.warning(
            "%s is at version %s, and changes from version %s on were asked for: nothing is delivered; if the table "
            "was made anew, read it whole and call reset_watermark(target, source)",
            lake.label, newest, start,
        )  # fmt: skip


def load_full_snapshot(table: object, **wanted: Any) -> DataFrame:
    """`DataLoader().load_full_snapshot`."""
    return DataLoader().load_full_snapshot(table, **wanted)


def load_cdf(
    table: object, start_version: int, deduplicate_keys: Sequence[str] | None = None, **wanted: Any
) -> DataFrame:
    """`DataLoader().load_cdf`."""
    return DataLoader().load_cdf(table, start_version, deduplicate_keys, **wanted)


def get_latest_version(table: object) -> int:
    """`DataLoader().get_latest_version`."""
    return DataLoader().get_latest_version(table)
