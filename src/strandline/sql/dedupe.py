"""One row per key, and always the same one."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from strandline.sql.expr import cast, col, eq, lit, named, ordered, over, rows_of, select, table
from strandline.sql.portable import family
from strandline.types import Relation

_RANK = "_strandline_rank"
_SOURCE_FILE = "_source_file"


def newest_per_key(rows: Relation, keys: Sequence[str], order: Sequence[exp.Ordered]) -> exp.Select:
    """The first row of each key in `order`; ties go to the newest file by its name, then to the highest values of all
    columns, in their order.
    """
    columns = sorted(rows.schema, key=lambda c: c.fold != _SOURCE_FILE)
    ties = [ordered(col(c.name), desc=True) for c in columns if family(c.type) != "map"]
    # 0.0 and -0.0 tie, and still one of them must win
    ties += [
        ordered(cast(col(c.name), "string"), desc=True)
        for c in rows.schema
        if family(c.type) == "float"
    ]
    rank = over(exp.RowNumber(), keys, [*order, *ties])
    ranked = select(*(col(n) for n in rows.schema.names), named(rank, _RANK)).from_(
        table(rows.name)
    )
    return rows_of(rows).from_(ranked.subquery("r")).where(eq(col(_RANK), lit(1)))
