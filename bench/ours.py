"""strandline as a contestant: a project of one node, put back to its start before each round."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from bench.measure import put_back
from strandline.engine.base import Platform
from strandline.project import StrandlineProject
from strandline.testing.projects import make_project


class Ours:
    """One upsert node that reads Parquet files, or for `nothing` the lake table of last time."""

    def __init__(
        self,
        folder: Path,
        data: Path,
        platform: Platform,
        to_lake: Callable[[Path, Path], None],
        *,
        feed: bool = True,
    ) -> None:
        self.folder, self.data, self.platform, self.to_lake, self.feed = (
            folder,
            data,
            platform,
            to_lake,
            feed,
        )
        self.table = folder / "lake" / "t"
        self.loaded = folder.with_name(folder.name + "-loaded")

    def reset(self, kind: str) -> None:
        """Before a load: nothing. Before an upsert: the loaded table. Else: the batch already in."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if kind == "load":
            self.folder.mkdir(parents=True)
            self.project = self._project(self._files("full"))
            return
        if not self.loaded.exists():
            self.folder.mkdir(parents=True)
            self.project = self._project(self._files("full"))
            self.run()
            if not self.feed:
                DeltaTable(self.table).alter.set_table_properties(
                    {"delta.enableChangeDataFeed": "false"}
                )
            put_back(self.folder, self.loaded)
            shutil.rmtree(self.folder)
        put_back(self.loaded, self.folder)
        self.project = self._project(self._files("batch"))
        if kind == "nothing":
            self.to_lake(self.data / "batch", self.folder / "lake" / "batch")
            self.project = self._project({"connection": "lake", "table": "batch"})
        if kind in ("again", "nothing"):
            self.run()

    def run(self) -> None:
        self.project.run(platform=self.platform, check=True)

    def _files(self, source: str) -> dict[str, Any]:
        return {"connection": "data", "format": "parquet", "path": f"{source}/*.parquet"}

    def _project(self, read: dict[str, Any]) -> StrandlineProject:
        write = {"connection": "lake", "table": "t", "mode": "upsert", "keys": ["id"]}
        node = {"name": "t", "read": read, "write": write}
        return make_project(
            self.folder, [node], connections={"data": {"type": "files", "path": str(self.data)}}
        )
