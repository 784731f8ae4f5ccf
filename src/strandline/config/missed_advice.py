"""Where `missed_rows: read` cannot work: no node has a read of the source that could be repeated for single keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from strandline.config.connections import LakeConnection, SqlConnection
from strandline.config.deletes import DeleteDetectionConfig
from strandline.config.key_columns import source_columns, up_to_detection
from strandline.config.parts import KINDS, NodeParts, Parts
from strandline.config.positions import Loc, Mistake
from strandline.config.reads import ReadConfig

Writer = Callable[[ReadConfig], NodeParts | None]
_WARN = "use missed_rows: warn"


def missed_advice(
    parts: Parts, node: NodeParts, at: Loc, step: DeleteDetectionConfig, writer: Writer
) -> Iterator[Mistake]:
    """Why a node's missed rows cannot be read, if they are to be."""
    if step.missed_rows != "read" or len(node.reads) != 1:
        return
    if why := _unreadable(parts, node, step, writer):
        message, hint = why
        yield Mistake(
            (*at, "missed_rows"),
            f"missed_rows: read repeats an incremental read for single keys, {message}",
            hint,
        )


def _unreadable(
    parts: Parts, node: NodeParts, step: DeleteDetectionConfig, writer: Writer
) -> tuple[str, str] | None:
    """What is in the way, and what to do instead."""
    ((_, read),) = node.reads
    connection = parts.connections.get(read.connection)
    if connection is None:
        return None  # it is told already that the connection is broken
    keys = source_columns(up_to_detection([s for _, s in node.steps]), step.keys)
    if not isinstance(connection, LakeConnection):
        return _unrepeatable(parts, node) or _untraced(node, step, keys)
    bronze = writer(read)
    if bronze is None:
        return (
            f"and no node of this project writes `{read.table}`",
            f"{_WARN}, or declare the node that does",
        )
    if not bronze.whole:
        return None
    return (
        _unrepeatable(parts, bronze)
        or _passed_over(node, read)
        or _untraced(bronze, step, _below(bronze, keys))
    )


def _below(bronze: NodeParts, names: list[str | None]) -> list[str | None]:
    """The columns of its source that these columns of a node's table are."""
    if bronze.sql is not None:
        return [None] * len(names)
    steps = [s for _, s in bronze.steps]
    return [source_columns(steps, [name])[0] if name is not None else None for name in names]


def _passed_over(node: NodeParts, read: ReadConfig) -> tuple[str, str] | None:
    """A table that is itself read from a mark on would not give the rows that were read for it."""
    columns = [w.column_name for w in read.watermark]
    columns += [read.incremental.column] if read.incremental and read.incremental.column else []
    passing = [c for c in columns if c.casefold() != "_extracted_at"]
    if not read.limited or not passing:
        return None
    what = f"and node `{node.name}` itself reads `{read.table}` from `{passing[0]}` on, so it would not see these rows"
    return what, "read the table whole, or from _extracted_at on"


def _unrepeatable(parts: Parts, node: NodeParts) -> tuple[str, str] | None:
    """What a node reads that is not one limited read of a database."""
    if len(node.reads) != 1:
        return f"and node `{node.name}` has {len(node.reads)} reads", _WARN
    ((_, read),) = node.reads
    connection, incremental = parts.connections.get(read.connection), read.incremental
    if connection is not None and not isinstance(connection, SqlConnection):
        return f"and node `{node.name}` reads {KINDS[type(connection)]}, not a database", _WARN
    if not read.limited:
        return (
            f"and node `{node.name}` reads its source in full: it misses none",
            "remove missed_rows",
        )
    if incremental and incremental.mode == "rolling_window":
        return (
            f"and node `{node.name}` reads a rolling_window: what is older is left out on purpose",
            "remove missed_rows",
        )
    if incremental and incremental.initial_value is not None:
        what = f"and node `{node.name}` starts at its initial_value: what is older is left out on purpose"
        return what, "remove missed_rows, or initial_value"
    return None


def _untraced(
    node: NodeParts, step: DeleteDetectionConfig, traced: list[str | None]
) -> tuple[str, str] | None:
    if None not in traced:
        return None
    key = step.keys[traced.index(None)]
    what = f"and its key `{key}` is no column of the source of node `{node.name}`: a step or SQL computes it"
    return (
        what,
        "use columns of the source as keys (they may be renamed and cast), or missed_rows: warn",
    )
