"""Which rows a read of a lake table asks for, and where that cannot be right."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from strandline.config.connections import LakeConnection
from strandline.config.naming import Naming, of_parts
from strandline.config.parts import KINDS, NodeParts, Parts
from strandline.config.positions import Mistake
from strandline.config.reads import ReadConfig

VALIDITY = ("valid_from", "valid_to", "is_current")
SAY = "add versions: all for every version, or versions: current for the living rows, to the read"
ALL_KEYS = "with `versions: all` a key has several rows: primary_keys must include the valid-from column `{}`"


def view_advice(
    parts: Parts, node: NodeParts, writer: Callable[[ReadConfig], NodeParts | None]
) -> Iterator[Mistake]:
    """What cannot be right about the rows that the reads of one node ask for."""
    for naming in of_parts(node):
        found = parts.connections.get(naming.read.connection)
        if found and not isinstance(found, LakeConnection):
            yield from _idle_mistakes(naming, KINDS[type(found)])
            continue
        feeder = writer(naming.read)
        if feeder and feeder.write and feeder.write.mode == "scd2":
            yield from _history_mistakes(
                naming, feeder.name or "", feeder.write.system_columns.names()
            )


def _idle_mistakes(naming: Naming, kind: str) -> Iterator[Mistake]:
    read = naming.read
    hints = {
        "include_deleted": "it is for lake tables with a delete flag; remove it",
        "versions": "it is for lake tables that keep versions; remove it",
        "system_columns": "it names the system columns of a lake table; remove it",
    }
    for key, hint in hints.items():
        if getattr(read, key):
            yield Mistake(
                (*naming.at, key), f"`{key}` does nothing here: `{read.connection}` is {kind}", hint
            )


def _history_mistakes(naming: Naming, writer: str, names: dict[str, str]) -> Iterator[Mistake]:
    read = naming.read
    if read.versions is None:
        for role in VALIDITY:
            if at := naming.place(names[role]):
                message = (
                    f"`{names[role]}` tells when a version is valid, and the read of `{read.table}` does not say which "
                    f"versions it wants: node `{writer}` writes it with mode: scd2"
                )
                yield Mistake(at, message, SAY)
                return
    if read.versions == "all" and read.feed is not None:
        keys = {k.casefold() for k in read.feed.primary_keys}
        if names["valid_from"].casefold() not in keys:
            at = (*naming.at, *read.feed_loc, "primary_keys")
            hint = f"write primary_keys: [<the keys of {read.table}>, {names['valid_from']}]"
            yield Mistake(at, ALL_KEYS.format(names["valid_from"]), hint)
