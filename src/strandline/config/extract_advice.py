"""Several full extracts in one read, where nothing says which of them is the newest."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from strandline.config.parts import NodeParts
from strandline.config.positions import Loc, Mistake
from strandline.config.reads import ReadConfig

Writer = Callable[[ReadConfig], NodeParts | None]


def extract_advice(loc: Loc, read: ReadConfig, writer: Writer) -> Iterator[Mistake]:
    """Whether `snapshot_diff` without a `snapshot_column` may get more than one extract, whatever matches today."""
    found = _wildcard(read, writer)
    if found is None:
        return
    node, upstream = found
    which, carried = f"`{upstream.path}`", ""
    if node is not None:
        which = f"node `{node.name}` reads {which}, which"
        carried = f" (with add_metadata: true in node `{node.name}`)"
    yield Mistake(
        loc,
        f"mode: snapshot_diff compares the newest full extract, and {which} may match several extracts: "
        "rows of an older one would hide what is gone",
        f"say which rows are of the newest: snapshot_column: _source_file{carried}, or a column that holds its day",
    )


def _wildcard(read: ReadConfig, writer: Writer) -> tuple[NodeParts | None, ReadConfig] | None:
    """The read of a wildcard path whose rows are read here, if they were only passed on since; and its node."""
    node, seen = None, set[Loc]()
    while not read.wildcard:
        node = writer(read)
        if (
            node is None
            or node.loc in seen
            or len(node.reads) != 1
            or not node.write
            or node.write.keyed
        ):
            return None
        seen.add(node.loc)
        read = node.reads[0][1]
    return node, read
