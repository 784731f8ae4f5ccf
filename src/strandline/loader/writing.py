"""Writing the frames of a hand-written job into Delta tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from strandline.loader.tables import hinted

if TYPE_CHECKING:
    from strandline.engine.spark.frames import DataFrame


class DeltaManager:
    """Writes frames into Delta tables."""

    @hinted()
    def merge_dataframe(
        self,
        table: object,
        data_frame: DataFrame,
        key_columns: Sequence[str],
        *,
        whole: bool = False,
    ) -> int | None:
        """Merge rows by their keys, NULL-safe, in one commit; the new version, or None when nothing was committed.

        A `_change_type` is applied (deletes delete) and never stored, nor is what else a feed says of a row. Only rows
        that differ are written; columns are added, never dropped; a key that comes twice is an error. A table that is
        not there is made. `whole=True` says that the frame holds all rows: the others of the table are deleted.
        """
        from strandline.engine.spark.frames import Frames

        return Frames(data_frame.sparkSession).merge(
            table, data_frame, list(key_columns), whole=whole
        )
