"""The metadata columns of a Bronze write: when and where each row came from."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from strandline.config.model import NodeConfig
from strandline.plan.reading import SOURCE_FILE, Input
from strandline.sql.expr import cast, col, lit, named, select, table
from strandline.types import Clock, Relation


def metadata_columns(node: NodeConfig, inputs: Sequence[Input], clock: Clock) -> list[tuple[str, exp.Expr]]:
    """The columns to add, where applicable; `_source_file` comes with the rows."""
    wanted = node.write.metadata()
    only = inputs[0] if len(inputs) == 1 else None
    found: list[tuple[str, exp.Expr]] = []
    if wanted.extracted_at:
        found.append(("_extracted_at", lit(clock.now)))
    if wanted.source_connection and only:
        found.append(("_source_connection", lit(only.read.connection)))
    if wanted.source_table and only and only.read.path is None:
        found.append(("_source_table", lit(only.read.table or "query")))
    return found


def with_metadata(rows: Relation, columns: Sequence[tuple[str, exp.Expr]], *, file: bool) -> exp.Select | None:
    """The rows with their metadata at the end; None when there is none to add."""
    names = {n.casefold() for n, _ in columns}
    late = [SOURCE_FILE] if file else []
    kept = [c.name for c in rows.schema if c.fold not in names and c.name not in late]
    lost = file and SOURCE_FILE not in rows.schema
    tail = [named(cast(exp.null(), "string") if lost else col(SOURCE_FILE), SOURCE_FILE)] if file else []
    if not columns and not tail:
        return None
    return select(*map(col, kept), *(named(tree, name) for name, tree in columns), *tail).from_(table(rows.name))
