"""Which change feeds cannot be read, or cannot be written, as a node says it; and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.config.connections import LakeConnection
from strandline.config.deletes import DeleteDetectionMode
from strandline.config.parts import KINDS, NodeParts, Parts
from strandline.config.positions import Loc, Mistake
from strandline.config.reads import ReadConfig, SourceConfig


def feed_advice(parts: Parts, node: NodeParts) -> Iterator[Mistake]:
    """What cannot be right about the feeds of one node."""
    fed = [(loc, read) for loc, read in node.reads if read.feed]
    for loc, read in fed:
        connection = parts.connections.get(read.connection)
        if connection and not isinstance(connection, LakeConnection):
            message = f"only a lake table has a change feed, and `{read.connection}` is {KINDS[type(connection)]}"
            yield Mistake(
                _at(loc, read),
                message,
                "use incremental: {mode: stateful, column: …}, or read it in full",
            )
    if node.reads and not any(read.triggers for _, read in node.reads):
        message = "every source is a `lookup`, so nothing would ever make this node run"
        yield Mistake(
            (*node.reads[0][0], "cdc_strategy"),
            message,
            "use cdf or full for the source that matters",
        )
    if fed and node.write and node.whole:
        yield from _write_mistakes(node, fed)
        yield from _deduplication_mistakes(node, fed)


def _at(loc: Loc, read: ReadConfig) -> Loc:
    return (
        (*loc, "cdc_strategy")
        if isinstance(read, SourceConfig) and read.cdc_strategy == "cdf"
        else (
            *loc,
            "incremental",
            "mode",
        )
    )


def _write_mistakes(node: NodeParts, fed: list[tuple[Loc, ReadConfig]]) -> Iterator[Mistake]:
    write = node.write
    assert write is not None
    if write.mode == "overwrite":
        message = "mode: overwrite replaces the table by what was read, and a change feed brings only what changed"
        yield Mistake(
            _at(*fed[0]), message, "write with mode: upsert or scd2, or read the table in full"
        )
    if write.mode != "append":
        return
    for loc, read in node.reads:
        if read is not fed[0][1] and read.triggers:
            message = "mode: append adds the rows that one feed brought, and this source may change them too"
            yield Mistake(
                (*loc, "cdc_strategy"),
                message,
                "use cdc_strategy: lookup here, or mode: upsert with keys",
            )


def _deduplication_mistakes(
    node: NodeParts, fed: list[tuple[Loc, ReadConfig]]
) -> Iterator[Mistake]:
    for loc, read in fed:
        if len(node.reads) > 1 and read.feed and read.feed.deduplication_columns:
            at = (
                loc
                if isinstance(read, SourceConfig) and read.cdc_strategy == "cdf"
                else (*loc, "incremental")
            )
            message = f"`deduplication_columns` keep rows of one source, and this node has {len(node.reads)}"
            yield Mistake(
                (*at, "deduplication_columns"), message, "deduplicate in a node of its own"
            )


def detection_advice(node: NodeParts, loc: Loc, mode: DeleteDetectionMode) -> Iterator[Mistake]:
    """Whether a way of finding deletes fits the feeds that the node reads."""
    fed = any(read.feed for _, read in node.reads)
    if mode is DeleteDetectionMode.FEED and not fed:
        message = "mode: feed takes the deletes from a change feed, and this node reads none"
        yield Mistake(
            loc, message, "read a lake table with incremental: {mode: cdf} or cdc_strategy: cdf"
        )
    if fed and mode in (DeleteDetectionMode.SNAPSHOT_DIFF, DeleteDetectionMode.WATERMARK_WINDOW):
        message = f"mode: {mode} looks for what is missing from the read, and a change feed brings only what changed"
        yield Mistake(
            loc,
            message,
            "remove it, or use mode: feed to set limits: the feed tells the deletes itself",
        )
