"""One shop for all stories: a database, files, and the tables that a project makes of them.

A story that always has the same pipeline derives from it and declares its nodes once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from strandline.engine.base import Platform
from strandline.engine.local.workspace import LocalPlatform
from strandline.project import StrandlineProject
from strandline.result import NodeResult
from strandline.testing.frames import read_table, write_parquet
from strandline.testing.oracle import Columns, Frame, Row
from strandline.testing.projects import execute, make_project

ERP = {"erp": {"type": "sql", "url": "sqlite:///erp.db"}}
"""The connection to its database."""


class Shop:
    """A folder with a database `erp`, files in `landing`, and tables in `lake`."""

    project: StrandlineProject

    def __init__(self, folder: Path, platform: Platform) -> None:
        self.folder, self.platform = folder, platform

    def declare(self, *nodes: Mapping[str, Any], **more: Any) -> Self:
        """The nodes from now on; `more` are other keys of the project file."""
        connections = {**ERP, **more.pop("connections", {})}
        self.project = make_project(self.folder, nodes, connections=connections, **more)
        return self

    # --- what the sources hold -----------------------------------------------------------------------------

    def sql(self, *statements: str) -> None:
        """Change the database, in one transaction."""
        execute(self.folder / "erp.db", *statements)

    def put(self, name: str, columns: Columns, *rows: Sequence[Any]) -> None:
        """A Parquet file of these rows."""
        names = [n for n, _ in columns]
        frame = Frame(columns, [dict(zip(names, row, strict=True)) for row in rows])
        write_parquet(self.folder / "landing" / f"{name}.parquet", frame)

    # --- what runs do --------------------------------------------------------------------------------------

    def run(self, **how: Any) -> Any:
        """One run; raises what goes wrong."""
        return self.project.run(platform=self.platform, check=True, **how)

    def only(self, **how: Any) -> NodeResult:
        """One run of one node."""
        return Shop.run(self, **how).nodes[0]

    def by_name(self, select: Any = None) -> dict[str, NodeResult]:
        """The results of one run by node."""
        return {n.name: n for n in Shop.run(self, select=select).nodes}

    def foreseen(self, select: Any = None) -> dict[str, NodeResult]:
        """The same; on the local engine also a plan, which must foresee the run."""
        planned: Sequence[Any] = ()
        if isinstance(self.platform, LocalPlatform):
            planned = self.project.plan(select, platform=self.platform).nodes
        found = self.by_name(select)
        if planned:
            assert {n.name: numbers(n) for n in planned} == {
                name: numbers(n) for name, n in found.items()
            }
        return found

    def undo(self, run_id: str, **how: Any) -> Any:
        return self.project.undo(run_id, platform=self.platform, **how)

    # --- what the tables hold ------------------------------------------------------------------------------

    def place(self, name: str) -> str:
        return str(self.folder / "lake" / name)

    def table(self, name: str = "t") -> Frame:
        return read_table(self.place(name))

    def stored(self, name: str = "t") -> list[Row]:
        """All rows, deleted ones and former versions too."""
        return read_table(self.place(name)).rows

    def living(self, name: str, *columns: str) -> list[Any]:
        """The rows that are not deleted, in these columns; of a history the current versions."""
        rows = [
            r
            for r in self.stored(name)
            if r.get("_is_current", True) and not r.get("_is_deleted", False)
        ]
        return sorted(tuple(r[c] for c in columns) for r in rows)


def numbers(result: Any) -> tuple[int, int, int, int]:
    """What a batch did to rows."""
    return (result.inserted, result.updated, result.deleted, result.reopened)
