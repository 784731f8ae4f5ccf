"""Engines: the only code that touches pyspark, duckdb and deltalake. `connect` picks one, and imports it only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strandline.config.load import Project
    from strandline.engine.base import Platform


def connect(name: str, project: Project) -> Platform:
    """The platform of that name, started."""
    if name == "pandas":
        from strandline.engine.local.workspace import LocalPlatform

        return LocalPlatform.start()
    from strandline.engine.spark.session import SparkPlatform

    return SparkPlatform.start(project)
