"""The Spark session: the active one when there is one, else a local one tuned for its cores."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from strandline.config.resolve import control_location, has_catalog, resolve_secrets, unseen
from strandline.engine.base import Engine
from strandline.engine.spark.jars import ICEBERG, PACKAGES, resolve
from strandline.engine.spark.java import ensure_java
from strandline.engine.spark.workspace import SparkWorkspace
from strandline.engine.staging import staging, sweep, sweep_scratch
from strandline.errors import EngineError

if TYPE_CHECKING:
    from strandline.config.load import Project

_LOG4J = """
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""
# what every node's session has, whoever made the session: the meaning of our SQL depends on it
_MEANING = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # not Spark's own INT96: other readers count it in nanoseconds, which end in the year 2262
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def live_session() -> SparkSession | None:
    """The session that is active in this thread, else the default one of the process; None when there is none.

    Spark knows the active session by thread: in a thread of one's own only the default one is found.
    """
    try:
        session = SparkSession.active()
    except PySparkException:
        return None
    stopped = session.sparkContext._jsc is None  # noqa: SLF001 – a context that was stopped below its session
    return None if stopped else session


class SparkPlatform:
    """A Spark session and the folder where it may stage rows."""

    def __init__(self, session: SparkSession, staging: Path, *, owned: bool) -> None:
        self.session = session
        self.staging = staging
        self.owned = owned

    @classmethod
    def start(cls, project: Project) -> SparkPlatform:
        """Take the active session, or make one; its log goes to a file of the project."""
        control = control_location(project.config.connections, project.config.control, project.root)
        rows = Path(control) / "_staging"
        sweep(rows)
        sweep_scratch()  # the rows of plans are staged there
        active = live_session()
        if active is not None:
            for name, message, hint in unseen(
                project.config.connections, str(active.sparkContext.master)
            ):
                raise EngineError(f"connection `{name}`: {message}", hint=hint)
            return cls(active, rows, owned=False)
        return cls(_local_session(project), rows, owned=True)

    @contextmanager
    def workspace(self, name: str) -> Iterator[Engine]:
        session = self.session.newSession()
        for key, value in {**self._runtime(), **_MEANING}.items():
            session.conf.set(key, value)
        with staging(self.staging, name) as folder:
            yield SparkWorkspace(session, folder)

    def _runtime(self) -> dict[str, str]:
        """Settings made in the user's own session: a new session would not have them."""
        if self.owned:
            return {}
        return {
            k: v
            for k, v in dict(self.session.conf.getAll).items()
            if k.startswith("spark.sql.") and self.session.conf.isModifiable(k)
        }

    def close(self) -> None:
        """Stop the session if it is ours."""
        if self.owned:
            self.session.stop()


def _local_session(project: Project) -> SparkSession:
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    config = project.config.spark
    given = {k: resolve_secrets(str(v), key=f"spark.config.{k}") for k, v in config.config.items()}
    packages = (*config.packages, *((ICEBERG,) if has_catalog(project) else ()))
    settings = {**_settings(config.master), **_jars(config.master, packages), **given}
    logs = project.root / ".strandline"
    logs.mkdir(exist_ok=True)
    log4j = logs / "log4j2.properties"
    log4j.write_text(_LOG4J.format(file=(logs / "spark.log").as_posix()))
    own = given.get("spark.driver.extraJavaOptions", "")
    options = f"-Duser.timezone=UTC -Dlog4j2.configurationFile={log4j.as_uri()} {own}"
    settings["spark.driver.extraJavaOptions"] = options.strip()
    for logger in (
        "SQLQueryContextLogger",
        "DataFrameQueryContextLogger",
    ):  # every error is told once, in our words
        PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL)
    builder = SparkSession.builder.master(config.master).appName(
        f"strandline {project.config.project}"
    )
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _stderr_to(logs / "spark.log"):
        try:
            return builder.getOrCreate()
        except (PySparkException, RuntimeError, OSError) as e:
            raise EngineError(
                f"Spark did not start: {str(e).strip().splitlines()[0]}",
                hint=f"its log: {logs / 'spark.log'}",
            ) from e


def _settings(master: str) -> dict[str, str]:
    settings = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.ui.showConsoleProgress": "false",
        **_MEANING,
    }
    if master.startswith("local"):
        # the defaults are made for clusters: 200 shuffle and 50 snapshot partitions dominate small work
        cores = (
            str(os.cpu_count() or 2)
            if master == "local[*]"
            else "".join(filter(str.isdigit, master)) or "1"
        )
        settings |= {
            "spark.ui.enabled": "false",
            "spark.driver.memory": "2g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": cores,
            "spark.default.parallelism": cores,
            "spark.databricks.delta.snapshotPartitions": cores,
            # a node makes about 60 classes; with the default of 100 the next one of its shape compiles them again
            "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "64m",  # a small side is hashed, not sorted
            "spark.sql.codegen.cache.maxEntries": "2000",
            "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "strandline-warehouse"),
        }
    return settings


def _jars(master: str, extra: tuple[str, ...]) -> dict[str, str]:
    files = resolve((*PACKAGES, *extra))
    if master.startswith("local"):  # on the class path they need not be copied at each start
        return {"spark.driver.extraClassPath": os.pathsep.join(files)}
    return {"spark.jars": ",".join(files)}


@contextmanager
def _stderr_to(file: Path) -> Iterator[None]:
    """The JVM inherits our stderr when it starts; what it says before its log is set up goes to the log too."""
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)
