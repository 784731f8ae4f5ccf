"""The combinations of an engine and a table format for which the laws are shown. A new one is one more line here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.meaning.tables import TYPES

from strandline.config.catalogs import CatalogConfig, pyiceberg_properties, spark_properties
from strandline.types import Catalog, Table


@dataclass(frozen=True)
class Cell:
    """An engine that writes, engines that read what it wrote, and the format of the tables."""

    writer: str
    format: str
    quick: int  # histories per law in `make test`
    long: int  # and in `make long`
    readers: tuple[str, ...] = ()
    at_once: bool = False  # one history shows all laws: where a commit takes seconds

    @property
    def types(self) -> list[str]:
        """The types of columns; an Iceberg table keeps the smallest whole numbers as int."""
        narrow = {"tinyint", "smallint"} if self.format == "iceberg" else set()
        return [t for t in TYPES if t not in narrow]

    def table(self, folder: Path) -> Table:
        if self.format == "iceberg":
            catalog = CatalogConfig(
                type="sql", name="laws", uri=f"sqlite:///{folder}/ice.db", warehouse=f"{folder}/ice"
            )
            given = {"uri": str(catalog.uri)}
            ask = (
                lambda: pyiceberg_properties(catalog, folder, given),
                lambda: spark_properties(catalog, folder, given),
            )
            name = ("lake", "t")
            return Table("lake.t", str(folder / "t"), "iceberg", Catalog("laws", "", *ask), name)
        return Table("lake.t", str(folder / "t"), self.format)


CELLS = {
    "memory-fake": Cell("memory", "memory", 8, 500),
    "local-delta": Cell("pandas", "delta", 4, 500),
    "local-iceberg": Cell("pandas", "iceberg", 4, 500),
    "spark-iceberg": Cell("spark", "iceberg", 2, 50, readers=("pandas",), at_once=True),
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
