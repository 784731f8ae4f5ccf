"""Where each value of a project stands: every mistake gets its file, its line and its key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from strandline.errors import Problem

Loc = tuple[str | int, ...]
"""The way to a value: `("nodes", 0, "write", "keys")`."""


class Mistake(NamedTuple):
    """Something wrong at a place in the project, before file and line are looked up."""

    loc: Loc
    message: str
    hint: str | None = None


class Place(NamedTuple):
    """A line of a file, the file named as people would name it from where they stand."""

    file: str
    line: int


@dataclass(frozen=True)
class Positions:
    """The places of all values of a project, over all its files."""

    main: Place
    places: Mapping[Loc, Place] = field(default_factory=dict)
    nodes: tuple[str | None, ...] = ()

    def place(self, loc: Loc) -> Place:
        """The place of a value; of what surrounds it when the value itself is not written down."""
        loc = self._indexed(loc)
        for end in range(len(loc), 0, -1):
            if place := self.places.get(loc[:end]):
                return place
        return self.main

    def problem(self, loc: Loc, message: str, hint: str | None = None) -> Problem:
        """A problem at a value. A node may be given by its index or by its name."""
        file, line = self.place(loc)
        return Problem(message, file=file, line=line, key=self.key(loc), hint=hint)

    def key(self, loc: Loc) -> str | None:
        """The way to a value as people write it: `nodes[bronze_customers].write.keys`."""
        text = ""
        for depth, part in enumerate(self._indexed(loc)):
            if isinstance(part, str):
                text += f".{part}" if text else part
            elif depth == 1 and loc[0] == "nodes" and part < len(self.nodes) and self.nodes[part]:
                text += f"[{self.nodes[part]}]"
            else:
                text += f"[{part}]"
        return text or None

    def _indexed(self, loc: Loc) -> Loc:
        if len(loc) > 1 and loc[0] == "nodes" and isinstance(loc[1], str) and loc[1] in self.nodes:
            return ("nodes", self.nodes.index(loc[1]), *loc[2:])
        return loc
