"""Putting rows where a node reads them, taking a table's rows back, and comparing the two exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from strandline.lake import describe
from strandline.lake.delta.rows import delta_rows
from strandline.lake.delta.types import to_arrow
from strandline.testing.oracle import Frame
from strandline.types import Table


def write_parquet(path: Path, frame: Frame) -> None:
    """A Parquet file of exactly these types."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(arrow(frame), path)


def arrow(frame: Frame) -> pa.Table:
    arrays = [pa.array([row[n] for row in frame.rows], to_arrow(t)) for n, t in frame.columns]
    return pa.Table.from_arrays(
        arrays, schema=pa.schema([(n, to_arrow(t)) for n, t in frame.columns])
    )


def read_table(location: Path | str) -> Frame:
    """A lake table as it is now, system columns included: Delta, or of the Iceberg catalog in its folder."""
    if (catalog := Path(location).parent / "ice.db").exists():
        return _read_iceberg(catalog, Path(location).name)
    state = describe(Table(str(location), str(location)))
    assert state is not None, f"there is no table at {location}"
    columns = [(c.name, c.type) for c in state.schema]
    rows = delta_rows(DeltaTable(str(location), version=state.version)).to_pylist()
    return Frame(columns, [{n: row[n] for n, _ in columns} for row in rows])


def _read_iceberg(database: Path, name: str) -> Frame:
    """A table of Iceberg, by PyIceberg alone."""
    from pyiceberg.catalog import load_catalog

    from strandline.lake.iceberg.types import columns_of_schema

    catalog = load_catalog(database.parent.name, type="sql", uri=f"sqlite:///{database}")
    table = catalog.load_table((database.parent.name, name))
    columns = [(c.name, c.type) for c in columns_of_schema(table.schema())]
    rows = table.scan().to_arrow().to_pylist()
    return Frame(columns, [{n: row[n] for n, _ in columns} for row in rows])


def assert_same(actual: Frame, expected: Frame) -> None:
    """Equal columns in order, and equal rows as multisets: exact to the scale of a decimal and the sign of a zero."""
    assert actual.columns == expected.columns, (
        f"columns\n  found    {actual.columns}\n  expected {expected.columns}"
    )
    found, wanted = _counted(actual), _counted(expected)
    extra, missing = found - wanted, wanted - found
    if extra or missing:
        message = "\n".join(
            [*_shown("found, not expected", extra), *_shown("expected, not found", missing)]
        )
        raise AssertionError(f"rows differ in ({', '.join(actual.names)})\n{message}")


def _counted(frame: Frame) -> Counter[tuple[str, ...]]:
    return Counter(tuple(spelled(row[n]) for n in frame.names) for row in frame.rows)


def spelled(value: Any) -> str:
    """A value with its kind, such that two texts are equal exactly when the values are identical."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)
        return f"instant {value.replace(tzinfo=None).isoformat(sep=' ')}"
    return f"{type(value).__name__} {value}" if isinstance(value, Decimal) else repr(value)


def _shown(title: str, rows: Counter[tuple[str, ...]]) -> Sequence[str]:
    some = [f"    {n} × ({', '.join(row)})" for row, n in sorted(rows.items())[:10]]
    return [f"  {title}: {rows.total()}", *some] if rows else []
