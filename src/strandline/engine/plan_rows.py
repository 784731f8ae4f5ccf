"""The rows of a plan in a Parquet file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.errors import TransformError
from strandline.lake.delta.types import to_arrow
from strandline.types import Schema


def write_rows(path: Path, schema: Schema, rows: Sequence[Sequence[Any]]) -> None:
    """Rows with exactly these types."""
    try:
        types = [to_arrow(c.type) for c in schema]
    except KeyError as e:
        raise TransformError(
            f"a plan file cannot hold a column of type {e}", hint="run without a plan file"
        ) from e
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    arrays = [pa.array(values, type_) for values, type_ in zip(columns, types, strict=True)]
    pq.write_table(pa.Table.from_arrays(arrays, names=schema.names), path)
