"""Engines: the only code that touches pyspark, duckdb and deltalake. `connect` picks one, and imports it only then."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from strandline.errors import EngineError

if TYPE_CHECKING:
    from strandline.config.load import Project
    from strandline.engine.base import Platform


def spark_installed() -> bool:
    return find_spec("pyspark") is not None


def connect(name: str, project: Project) -> Platform:
    """The platform of that name, started."""
    if name == "local":
        from strandline.engine.local.workspace import LocalPlatform

        return LocalPlatform.start()
    if not spark_installed():
        hint = "pip install 'strandline[spark]'; or run on the local engine with --engine local"
        raise EngineError("Spark is not installed: there is no package `pyspark`", hint=hint)
    from strandline.engine.spark.session import SparkPlatform

    return SparkPlatform.start(project)
