"""What a Delta table can hold and change."""

from __future__ import annotations

from strandline.strategy import widening
from strandline.strategy.evolution import AddColumn, AddField, Limits

DELTA_LIMITS = Limits(
    title="Delta",
    forbidden=frozenset(
        " ,;{}()\n\t="
    ),  # without column mapping, which the local engine cannot write
    types=frozenset(
        {
            "tinyint",
            "smallint",
            "int",
            "bigint",
            "float",
            "double",
            "decimal",
            "string",
            "boolean",
            "binary",
            "date",
        }
        | {"timestamp", "timestamp_ntz"}
    ),
    widenings=frozenset(
        {widening.INTEGER, widening.FLOAT, widening.PRECISION, widening.SCALE, widening.TO_DECIMAL}
        | {widening.TO_TIMESTAMP}
    ),
    carried=frozenset({AddColumn}),
    appended=frozenset(
        {AddField}
    ),  # a merge of deltalake would empty the structs of rows it leaves alone
)
