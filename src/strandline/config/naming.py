"""Where a node names a column of one of its sources: in its SQL, its steps, its read or its write.

sqlglot is imported inside the functions, so that `strandline --help` does not pay for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.config.model import NodeConfig, StepConfig
from strandline.config.parts import NodeParts
from strandline.config.positions import Loc
from strandline.config.queries import SqlError, parse_select
from strandline.config.reads import ReadConfig, SourceConfig
from strandline.config.writes import WriteConfig


@dataclass(frozen=True)
class Naming:
    """One source of a node, and every place of the node that may name a column of it."""

    loc: Loc
    at: Loc
    """The place of the read."""
    read: ReadConfig
    aliases: Sequence[str]
    sql: str | None
    steps: Sequence[tuple[Loc, StepConfig]]
    write: WriteConfig | None

    @property
    def alias(self) -> str:
        return self.read.alias if isinstance(self.read, SourceConfig) else "source"

    def place(self, column: str, *, steps: bool = True) -> Loc | None:
        """The first place that names this column, in a step or elsewhere; None when there is none."""
        return next(self._places(column, steps=steps), None)

    def _places(self, column: str, *, steps: bool) -> Iterator[Loc]:
        if self.sql is not None and column.casefold() in columns_of(
            self.sql, self.alias, self.aliases
        ):
            yield (*self.loc, "transformation_sql")
        for at, step in self.steps if steps else ():
            if _mentions(step.params, column):
                yield (*at, "params")
        for key, names in _of_read(self.read):
            if _among(column, names):
                yield (*self.at, *key)
        for name, names in _of_write(self.write) if self.write and self.sql is None else ():
            if _among(column, names):
                yield (*self.loc, "write", name)


def of_node(node: NodeConfig, alias: str) -> Naming:
    """The source that a node's SQL calls by this alias."""
    steps = node.transform.steps if node.transform else []
    placed: list[tuple[Loc, StepConfig]] = [
        (("transform", "steps", i), s) for i, s in enumerate(steps)
    ]
    sql, aliases = node.transformation_sql, node.aliases()
    all_ = (Naming((), at, read, aliases, sql, placed, node.write) for at, read in node.reads())
    return next(naming for naming in all_ if naming.alias == alias)


def of_parts(node: NodeParts) -> list[Naming]:
    """Every source of a node that is being checked."""
    return [
        Naming(node.loc, at, read, node.aliases, node.sql, node.steps, node.write)
        for at, read in node.reads
    ]


def columns_of(sql: str, alias: str, aliases: Sequence[str]) -> set[str]:
    """The columns that a query may take from one source: those it names, but for those it takes from another one."""
    from sqlglot import exp

    try:
        tree = parse_select(sql)
    except SqlError:
        return set()  # told where the SQL is checked
    sources = {a.casefold() for a in aliases}
    called: dict[str, set[str]] = {}
    for table in tree.find_all(exp.Table):
        if table.name.casefold() in sources:
            called.setdefault(table.alias_or_name.casefold(), set()).add(table.name.casefold())
    return {
        c.name.casefold()
        for c in tree.find_all(exp.Column)
        if alias.casefold() in called.get(c.table.casefold(), sources)
    }


def _of_read(read: ReadConfig) -> Iterator[tuple[Loc, Sequence[str]]]:
    if read.incremental is not None:
        yield ("incremental", "column"), [read.incremental.column or ""]
    for index, mark in enumerate(read.watermark):
        yield ("watermark", index, "column_name"), [mark.column_name]
    if read.feed is not None:
        for key in ("primary_keys", "deduplication_columns"):
            yield (*read.feed_loc, key), getattr(read.feed, key)


def _of_write(write: WriteConfig) -> Iterator[tuple[str, Sequence[str]]]:
    for key in ("keys", "partition_by", "track", "sequence_by", "effective_at"):
        found = getattr(write, key) or ()
        yield key, [found] if isinstance(found, str) else found
    if write.delete_when is not None:
        yield "delete_when", re.findall(r"\w+", write.delete_when)


def _among(column: str, names: Sequence[str]) -> bool:
    return column.casefold() in {n.casefold() for n in names}


def _mentions(value: Any, column: str) -> bool:
    """Does a text somewhere in the parameters of a step hold this name as a word?"""
    if isinstance(value, str):
        return re.search(rf"(?<!\w){re.escape(column)}(?!\w)", value, re.IGNORECASE) is not None
    if isinstance(value, dict):
        return any(_mentions(inner, column) for pair in value.items() for inner in pair)
    return isinstance(value, list | tuple) and any(_mentions(inner, column) for inner in value)
