"""For hand-written jobs: Delta tables of the user's own session as frames in and frames out."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import unquote, urlparse

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from strandline.engine.spark import merging
from strandline.engine.spark.failures import translated_for_job
from strandline.engine.spark.session import live_session
from strandline.engine.spark.workspace import SparkWorkspace
from strandline.errors import EngineError, ReadError, RevertRefused
from strandline.lake import commits
from strandline.lake.delta import log as delta_log
from strandline.lake.delta.feed import CHANGE, VERSION
from strandline.types import Relation, Table

__all__ = ["DataFrame", "Frames"]
TIMESTAMP = "_commit_timestamp"
_JOINED = "_strandline_version"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


class Frames:
    """One job's view of the user's session; its views are dropped when the frame that they led to is made."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self.engine = SparkWorkspace(
            session, Path("unused"), prefix=f"_strandline_{uuid.uuid4().hex[:8]}_"
        )

    @classmethod
    def of_session(cls) -> Frames:
        """The session that is active in this thread, else the default one of the process."""
        session = live_session()
        if session is None:
            raise EngineError(
                "there is no Spark session", hint="start one: the loaders work in your own"
            )
        return cls(session)

    def told(self, where: str) -> AbstractContextManager[None]:
        """Whatever Spark says when it fails meanwhile is told as an error of ours, for a job written in Python."""
        return translated_for_job(where)

    def place(self, table: object) -> Table:
        """Where a table is: given by its name, its path, or an object with `.identifier`."""
        name = str(getattr(table, "identifier", table))
        if "/" in name:
            return Table(name, _local(name))
        try:
            if not self.session.catalog.tableExists(name):
                raise ReadError(
                    f"there is no table `{name}`", hint="give its name in the catalog, or its path"
                )
            self._refuse_view(name)
            detail = (
                self.session.sql(f"DESCRIBE DETAIL {_quoted(name)}")
                .select("format", "location")
                .collect()[0]
            )
        except AnalysisException as e:
            raise ReadError(
                f"table `{name}` cannot be read: {str(e).splitlines()[0]}",
                hint="give its name in the catalog as schema.table, or its path with a /",
            ) from e
        if detail["format"] != "delta":
            raise ReadError(
                f"`{name}` is a {detail['format']} table, and only Delta tables have versions",
                hint=f"write it as Delta, or CONVERT TO DELTA {name}",
            )
        return Table(name, _local(str(detail["location"])))

    def _refuse_view(self, name: str) -> None:
        if self.session.catalog.getTable(name).tableType in ("VIEW", "TEMPORARY"):
            raise ReadError(
                f"`{name}` is a view, which has no versions and cannot be written",
                hint="give the Delta table that it selects from, by name or path, and apply the view's query to the "
                "frame that you read",
            )

    def exists(self, table: object) -> bool:
        name = str(getattr(table, "identifier", table))
        if "/" in name:
            return delta_log.open_table(Table(name, _local(name))) is not None
        return bool(self.session.catalog.tableExists(name))

    def schema_folder(self, name: str) -> Path:
        """The folder of a schema of the catalog."""
        try:
            return Path(_local(str(self.session.catalog.getDatabase(name).locationUri)))
        except AnalysisException as e:
            raise ReadError(
                f"there is no schema `{name}` in the catalog", hint="give one, or a path"
            ) from e

    def frame(self, relation: Relation) -> DataFrame:
        """The rows under a name as a frame; nothing of ours stays in the session."""
        frame = self.session.table(relation.name)
        self._forget()
        return frame

    def _forget(self) -> None:
        for view in self.session.catalog.listTables():
            if view.isTemporary and view.name.startswith(self.engine.prefix):
                self.session.catalog.dropTempView(view.name)

    def dated(self, frame: DataFrame, lake: Table) -> DataFrame:
        """Changed rows with the time of their commit, as the table's history has it."""
        history = self.session.sql(f"DESCRIBE HISTORY delta.{_tick(lake.location)}")
        times = history.select(f.col("version").alias(_JOINED), f.col("timestamp").alias(TIMESTAMP))
        dated = frame.join(f.broadcast(times), f.col(VERSION) == f.col(_JOINED), "left")
        return dated.drop(_JOINED)

    def merge(
        self, table: object, frame: DataFrame, keys: Sequence[str], *, whole: bool = False
    ) -> int | None:
        """Make a table follow a frame's rows: their changes, and their deletes; None when nothing was committed."""
        with self.told(str(getattr(table, "identifier", table))):
            if CHANGE not in frame.columns:
                frame = frame.withColumn(CHANGE, f.lit("insert"))
            held = frame.drop(
                VERSION, TIMESTAMP
            ).localCheckpoint()  # asked several times: the same each time
            try:
                if not self.exists(table):
                    return self._create(table, held, keys)
                return merging.merge(self.engine, self.place(table), held, keys, whole=whole)
            finally:
                self._forget()

    def _create(self, table: object, frame: DataFrame, keys: Sequence[str]) -> int | None:
        rows = frame.where(f.col(CHANGE) != "delete").drop(CHANGE)
        merging.check_keys(self.engine, self.engine.relation(rows), keys)
        name = str(getattr(table, "identifier", table))
        writer = rows.write.format("delta").mode("error").option(delta_log.FEED, "true")
        writer.save(_local(name)) if "/" in name else writer.saveAsTable(name)
        made = delta_log.open_table(self.place(table))
        return made.version() if made else None

    # --- together ------------------------------------------------------------------------------------------

    @contextmanager
    def together(self, tables: Sequence[object], load_id: str) -> Iterator[None]:
        """Whatever is written meanwhile carries the load's id; when something fails, all these tables are put back."""
        before = {str(getattr(t, "identifier", t)): self._version(t) for t in tables}
        old = self.session.conf.get(_METADATA, None)
        self.session.conf.set(
            _METADATA, json.dumps({"strandline": {"load": load_id}}, separators=(",", ":"))
        )
        try:
            yield
        except BaseException as error:
            self._back(before, load_id, error)
            raise
        finally:
            self.session.conf.unset(_METADATA) if old is None else self.session.conf.set(
                _METADATA, old
            )

    def _version(self, table: object) -> int | None:
        if not self.exists(table):
            return None
        opened = delta_log.open_table(self.place(table))
        return opened.version() if opened else None

    def _back(self, before: dict[str, int | None], load_id: str, error: BaseException) -> None:
        refused = []
        for name, version in before.items():
            if not self.exists(name) or self._version(name) == version:
                continue
            place = self.place(name)
            since = [c for c in commits(place) if version is None or c.version > version]
            foreign = [c.version for c in since if c.record.get("load") != load_id]
            if foreign:
                refused.append(f"{name}: version {foreign[0]} was committed by somebody else")
            else:
                self._restore(name, place, version)
        if refused:
            raise RevertRefused(refused, str(error)) from error

    def _restore(self, name: str, place: Table, version: int | None) -> None:
        if version is not None:
            self.session.sql(
                f"RESTORE TABLE delta.{_tick(place.location)} TO VERSION AS OF {version}"
            )
        elif "/" in name:
            shutil.rmtree(place.location)
        else:
            self.session.sql(f"DROP TABLE {_quoted(name)}")


def _local(path: str) -> str:
    if "://" in path and not path.startswith("file:"):
        raise ReadError(
            f"{path} is not on a file system of this machine",
            hint="the loaders read and write local paths so far",
        )
    return unquote(urlparse(path).path) if path.startswith("file:") else str(Path(path).absolute())


def _quoted(name: str) -> str:
    return ".".join(_tick(part.strip("`")) for part in name.split("."))


def _tick(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
