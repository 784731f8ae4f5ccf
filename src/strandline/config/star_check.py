"""Do the foreign keys of a fact and the dimensions that they name fit each other?"""

from __future__ import annotations

from collections.abc import Iterator

from strandline.config.parts import NodeParts, Parts
from strandline.config.positions import Loc, Mistake
from strandline.config.star import ForeignKeyConfig
from strandline.config.writes import WriteConfig
from strandline.errors import did_you_mean


def star_mistakes(parts: Parts, node: NodeParts) -> Iterator[Mistake]:
    """What is wrong between a node's foreign keys and their dimensions."""
    if not node.foreign_keys:
        return
    by_name = {other.name: other for other in parts.nodes if other.name}
    for index, key in node.foreign_keys:
        loc: Loc = (*node.loc, "foreign_keys", index)
        dimension = by_name.get(key.dimension)
        if dimension is None:
            if parts.complete:
                hint = did_you_mean(key.dimension, sorted(by_name))
                message = f"unknown node `{key.dimension}`"
                yield Mistake((*loc, "dimension"), message, hint)
        elif dimension is node:
            message = "a table cannot be a dimension of itself"
            yield Mistake((*loc, "dimension"), message, "name the node that writes the dimension")
        elif dimension.write is not None:
            yield from _dimension_mistakes(loc, key, dimension.write, key.dimension)
            yield from _fact_mistakes(loc, key, node.write, dimension.write)
        if key.on_missing == "quarantine":
            message = "facts without a member cannot be put aside yet"
            hint = "use on_missing: default or on_missing: skeleton"
            yield Mistake((*loc, "on_missing"), message, hint)


def _dimension_mistakes(
    loc: Loc, key: ForeignKeyConfig, write: WriteConfig, name: str
) -> Iterator[Mistake]:
    if write.surrogate_key is None:
        message = f"`{name}` has no surrogate key that a fact could carry"
        hint = f"add write.surrogate_key: {{column: …}} to `{name}`"
        yield Mistake((*loc, "dimension"), message, hint)
    if write.keyed and {v.casefold() for v in key.lookup.values()} != {
        k.casefold() for k in write.keys
    }:
        message = (
            f"lookup finds ({', '.join(key.lookup.values())}), and the keys of `{name}` are "
            f"({', '.join(write.keys)})"
        )
        yield Mistake((*loc, "lookup"), message, "name each key of the dimension once")
    if key.event_time and write.mode == "upsert":
        message = f"`event_time` does nothing: `{name}` has one row of each key, not its history"
        yield Mistake(
            (*loc, "event_time"), message, f"remove it, or write `{name}` with mode: scd2"
        )
    if write.delete_strategy == "hard":
        message = f"`{name}` removes deleted rows, and facts would point at nothing"
        yield Mistake((*loc, "dimension"), message, f"use delete_strategy: soft in `{name}`")
    if key.on_missing == "skeleton" and write.effective_at:
        message = (
            f"skeletons cannot be added yet to `{name}`, whose versions are made from events "
            "(effective_at)"
        )
        yield Mistake((*loc, "on_missing"), message, "use on_missing: default with repoint: true")


def _fact_mistakes(
    loc: Loc, key: ForeignKeyConfig, write: WriteConfig | None, dimension: WriteConfig
) -> Iterator[Mistake]:
    if write is None or write.keyed or not dimension.effective_at:
        return
    message = (
        f"a late event can dissolve a version of `{key.dimension}`, and facts in mode: {write.mode} "
        "cannot be pointed to another one"
    )
    yield Mistake((*loc, "dimension"), message, "write the fact with mode: upsert")
