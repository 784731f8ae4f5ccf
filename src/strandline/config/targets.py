"""A node with a list of targets becomes one node for each of them; and where in the files each of its keys stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from strandline.config.model import NODE_NAME
from strandline.config.positions import Mistake

_ODD = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True)
class Origin:
    """Where a node comes from: its place among the nodes of the files, and in that node's list of targets."""

    node: int = 0
    target: int | None = None  # None: there is no list
    targets: int = 1


@dataclass(frozen=True)
class Spread:
    """The values of a project, each of its nodes with one target."""

    raw: dict[str, Any]
    origins: tuple[Origin, ...] = ()

    def written(self, mistake: Mistake) -> Mistake:
        """The mistake at the place where somebody wrote it."""
        loc = mistake.loc
        if len(loc) < 2 or loc[0] != "nodes" or not isinstance(loc[1], int):
            return mistake
        origin, inside = self.origins[loc[1]], loc[2:]
        if origin.target is not None and inside[:1] == ("write",):
            inside = ("write", origin.target, *inside[1:])
        elif origin.target and inside[:1] == ("name",):  # it was made from the table's
            inside = ("write", origin.target, "table")
        return mistake._replace(loc=("nodes", origin.node, *inside))

    def groups(self) -> dict[str, tuple[str, ...]]:
        """The names of the nodes that were one, in the order of its targets, by the name that was written."""
        found: dict[int, list[str]] = {}
        for origin, node in zip(self.origins, _nodes(self.raw), strict=True):
            found.setdefault(origin.node, []).append(node["name"])
        return {names[0]: tuple(names) for names in found.values() if len(names) > 1}


def spread(raw: dict[str, Any], failed: list[Mistake]) -> Spread:
    """The nodes of a project, one for each target; a list of none is added to what failed.

    The first keeps the node's name, so that a node goes on as before when it gets a second target.
    """
    nodes: list[Any] = []
    origins: list[Origin] = []
    for index, node in enumerate(_nodes(raw)):
        writes = node.get("write") if isinstance(node, dict) else None
        if writes == []:
            message = "an empty list: the rows of this node would go nowhere"
            failed.append(
                Mistake(
                    ("nodes", index, "write"),
                    message,
                    "give a map, or a list of maps, one per target",
                )
            )
        if not isinstance(writes, list) or not writes:
            nodes.append(node)
            origins.append(Origin(index))
            continue
        nodes += _members(node, writes)
        origins += [Origin(index, target, len(writes)) for target in range(len(writes))]
    return Spread({**raw, "nodes": nodes} if origins else raw, tuple(origins))


def _members(node: dict[str, Any], writes: list[Any]) -> Iterator[dict[str, Any]]:
    yield {**node, "write": writes[0]}
    name = node.get("name")
    # A name that is wrong is told once, of the first.
    known = name if isinstance(name, str) and re.fullmatch(NODE_NAME, name) else "unnamed"
    for target, write in enumerate(writes[1:], start=1):
        table = write.get("table") if isinstance(write, dict) else None
        yield {**node, "name": f"{known}.{_ODD.sub('_', str(table or target))}", "write": write}


def _nodes(raw: dict[str, Any]) -> list[Any]:
    nodes = raw.get("nodes")
    return nodes if isinstance(nodes, list) else []
