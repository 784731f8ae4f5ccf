"""What an Iceberg table can hold and change."""

from __future__ import annotations

from strandline.strategy import widening
from strandline.strategy.evolution import AddColumn, AddField, Limits, Relax, Widen

ICEBERG_LIMITS = Limits(
    title="Iceberg",
    forbidden=frozenset("."),  # a column and a field of a struct are named alike
    types=frozenset(
        {"tinyint", "smallint"}  # kept as int
        | {"int", "bigint", "float", "double", "decimal", "string", "boolean", "binary", "date"}
        | {"timestamp", "timestamp_ntz"}
    ),
    widenings=frozenset({widening.INTEGER, widening.FLOAT, widening.PRECISION}),
    carried=frozenset({AddColumn, AddField, Widen, Relax}),
    appended=frozenset(),
)
