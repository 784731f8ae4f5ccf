"""Small projects for tests: a `strandline.yaml` with a folder of files and a lake, and its nodes."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from strandline.project import StrandlineProject, load


def make_project(
    folder: Path, nodes: Sequence[Mapping[str, Any]], *, engine: str = "local", **more: Any
) -> StrandlineProject:
    """Write and load a project with connections `files` (landing/) and `lake` (lake/); `more` adds top-level keys."""
    connections = {
        "files": {"type": "files", "path": "landing"},
        "lake": {"type": "lake", "path": "lake"},
    }
    config = {
        "project": "test",
        "engine": engine,
        **more,
        "connections": {**connections, **more.get("connections", {})},
        "nodes": [dict(n) for n in nodes],
    }
    (folder / "landing").mkdir(parents=True, exist_ok=True)
    (folder / "strandline.yaml").write_text(
        yaml.safe_dump(config, allow_unicode=True, sort_keys=False), encoding="utf-8"
    )
    return load(folder)


def execute(database: Path, *statements: str) -> None:
    """Change an SQLite database, in one transaction."""
    with closing(sqlite3.connect(database)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
