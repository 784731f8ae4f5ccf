"""A Delta table's rows as Arrow, whole: for the control tables and for tests."""

from __future__ import annotations

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder


def delta_rows(delta: DeltaTable) -> pa.Table:
    """All rows, deletion vectors applied.

    Through deltalake's own query engine: pyarrow's threads may abort a process that ends right after it read a table.
    """
    return pa.RecordBatchReader.from_stream(delta_stream(delta)).read_all()


def delta_stream(delta: DeltaTable) -> object:
    """The same as a stream of Arrow batches."""
    return QueryBuilder().register("t", delta).execute("SELECT * FROM t")
