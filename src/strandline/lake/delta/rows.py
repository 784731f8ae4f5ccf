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


def row_count(delta: DeltaTable) -> int:
    """How many rows a table has: its log knows, unless deletion vectors take some of them back."""
    if "deletionVectors" not in (delta.protocol().reader_features or ()):
        actions = delta.get_add_actions(flatten=True)
        counts = list(actions.column("num_records").to_pylist()) if actions.num_rows else []
        if None not in counts:
            return sum(counts)
    counted = QueryBuilder().register("t", delta).execute("SELECT count(*) AS n FROM t")
    return int(pa.RecordBatchReader.from_stream(counted).read_all().column("n")[0].as_py())
