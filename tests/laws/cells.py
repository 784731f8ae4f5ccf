"""The combinations of an engine and a table format for which the laws are shown. A new one is one more line here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from strandline.types import Table


@dataclass(frozen=True)
class Cell:
    """An engine that writes, engines that read what it wrote, and the format of the tables."""

    writer: str
    format: str
    quick: int  # histories per law in `make test`
    long: int  # and in `make long`
    readers: tuple[str, ...] = ()
    at_once: bool = False  # one history shows all laws: where a commit takes seconds

    def table(self, folder: Path) -> Table:
        return Table("lake.t", str(folder / "t"), self.format)


CELLS = {
    "memory-fake": Cell("memory", "memory", 12, 500),
    "local-delta": Cell("pandas", "delta", 6, 500),
    "spark-delta": Cell("spark", "delta", 2, 50, readers=("pandas",), at_once=True),
}


def cells(laws: list[str]) -> list[object]:
    """Each cell with each law, or with all of them together."""
    found = []
    for name, cell in CELLS.items():
        marks = [pytest.mark.spark] if cell.writer == "spark" else []
        groups = [laws] if cell.at_once else [[law] for law in laws]
        found += [
            pytest.param(
                cell, group, id=f"{name}-{group[0] if len(group) == 1 else 'all'}", marks=marks
            )
            for group in groups
        ]
    return found
