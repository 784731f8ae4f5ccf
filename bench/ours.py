"""strandline as a contestant: a project of one node, put back to its start before each round."""

from __future__ import annotations

import shutil
from pathlib import Path

from strandline.engine.base import Platform
from strandline.project import StrandlineProject
from strandline.testing.projects import make_project


class Ours:
    """One upsert node that reads Parquet files."""

    def __init__(self, folder: Path, data: Path, platform: Platform) -> None:
        self.folder, self.data, self.platform = folder, data, platform
        self.table = folder / "lake" / "t"
        self.loaded = folder.with_name(folder.name + "-loaded")

    def reset(self, kind: str) -> None:
        """Before a load: nothing. Before an upsert: the loaded table. Before `again`: the batch already in."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if kind == "load":
            self.folder.mkdir(parents=True)
            self.project = self._project("full")
            return
        if not self.loaded.exists():
            self.folder.mkdir(parents=True)
            self.project = self._project("full")
            self.run()
            shutil.copytree(self.folder, self.loaded)
            shutil.rmtree(self.folder)
        shutil.copytree(self.loaded, self.folder)
        self.project = self._project("batch")
        if kind == "again":
            self.run()

    def run(self) -> None:
        self.project.run(platform=self.platform, check=True)

    def _project(self, source: str) -> StrandlineProject:
        node = {
            "name": "t",
            "read": {"connection": "data", "format": "parquet", "path": f"{source}/*.parquet"},
            "write": {"connection": "lake", "table": "t", "mode": "upsert", "keys": ["id"]},
        }
        return make_project(self.folder, [node], connections={"data": {"type": "files", "path": str(self.data)}})
