"""A Delta table's rows as Arrow, whole: for tests and small answers."""

from __future__ import annotations

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError


def delta_rows(location: str, version: int | None = None) -> pa.Table:
    """All rows at a version, deletion vectors applied."""
    delta = DeltaTable(location, version=version)
    try:
        return delta.to_pyarrow_table()
    except (DeltaError, NotImplementedError):  # deletion vectors: only deltalake's own query engine applies them
        return pa.table(QueryBuilder().register("t", delta).execute("SELECT * FROM t").read_all())
