"""For hand-written jobs: Delta tables of the user's own session as frames in and frames out."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlparse

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from sqlglot import exp

from strandline.engine import delta_log, delta_past
from strandline.engine.delta_feed import CHANGE
from strandline.engine.spark import delta
from strandline.engine.spark.workspace import SparkWorkspace
from strandline.errors import DuplicateKeys, EngineError, ReadError, RevertRefused, TableError, UnknownColumn
from strandline.schema.diff import VOID, fit
from strandline.sql.expr import any_of, col, eq, ident, lit, negate, same, same_keys, table
from strandline.sql.portable import render
from strandline.types import Relation, Schema, Table

__all__ = ["DataFrame", "Frames"]
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


class Frames:
    """One job's view of the user's session; its views are dropped when the frame that they led to is made."""

    def __init__(self) -> None:
        session = SparkSession.getActiveSession()
        if session is None:
            raise EngineError("there is no active Spark session", hint="start one: the loaders work in your own")
        self.session: SparkSession = session
        self.engine = SparkWorkspace(session, Path("unused"), prefix=f"_strandline_{uuid.uuid4().hex[:8]}_")

    def place(self, table: object) -> Table:
        """Where a table is: given by its name, its path, or an object with `.identifier`."""
        name = str(getattr(table, "identifier", table))
        if "/" in name:
            return Table(name, _local(name))
        try:
            if not self.session.catalog.tableExists(name):
                raise ReadError(f"there is no table `{name}`", hint="give its name in the catalog, or its path")
            location = self.session.sql(f"DESCRIBE DETAIL {_quoted(name)}").select("location").collect()[0][0]
        except AnalysisException as e:
            raise ReadError(f"table `{name}` cannot be read: {str(e).splitlines()[0]}") from e
        return Table(name, _local(str(location)))

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
            raise ReadError(f"there is no schema `{name}` in the catalog", hint="give one, or a path") from e

    def frame(self, relation: Relation) -> DataFrame:
        """The rows under a name as a frame; nothing of ours stays in the session."""
        frame = self.session.table(relation.name)
        self._forget()
        return frame

    def _forget(self) -> None:
        for view in self.session.catalog.listTables():
            if view.isTemporary and view.name.startswith(self.engine.prefix):
                self.session.catalog.dropTempView(view.name)

    # --- writing -------------------------------------------------------------------------------------------

    def merge(self, table: object, frame: DataFrame, keys: Sequence[str], *, whole: bool = False) -> int | None:
        """Make a table follow a frame's rows: their changes, and their deletes; None when nothing was committed."""
        if CHANGE not in frame.columns:
            frame = frame.withColumn(CHANGE, f.lit("insert"))
        held = frame.localCheckpoint()  # asked several times, and it must be the same each time
        try:
            if not self.exists(table):
                return self._create(table, held, keys)
            return self._merge(self.place(table), held, keys, whole=whole)
        finally:
            self._forget()

    def _create(self, table: object, frame: DataFrame, keys: Sequence[str]) -> int | None:
        rows = frame.where(f.col(CHANGE) != "delete").drop(CHANGE)
        self._check(self.engine.relation(rows), keys)
        name = str(getattr(table, "identifier", table))
        writer = rows.write.format("delta").mode("error").option(delta_log.FEED, "true")
        writer.save(_local(name)) if "/" in name else writer.saveAsTable(name)
        made = delta_log.open_table(self.place(table))
        return made.version() if made else None

    def _merge(self, target: Table, frame: DataFrame, keys: Sequence[str], *, whole: bool) -> int | None:
        state = delta_log.describe(target)
        if state is None:
            raise TableError(f"{target.label} is not a Delta table")
        if state.roles:
            raise TableError(
                f"{target.label} is written by a strandline node, which keeps its own books in it",
                hint="write another table, or let the node write this one",
            )
        live = self.engine.relation(frame.where(f.col(CHANGE) != "delete").drop(CHANGE))
        self._check(live, keys)
        if frame.isEmpty() and not whole:
            return None
        shape = fit(live.schema, state.schema, (), target.label)
        if shape.added:
            delta.add_columns(self.session, target, shape.added, {})
        rows = self.engine.relation(self._decided(frame, live, keys))
        known = (c for c in rows.schema if c.type != VOID or c.name in state.schema)
        rows = replace(rows, schema=Schema(tuple(known)))
        self.session.sql(render(_merged(target, rows, _spelled(state.schema, keys), whole=whole), "spark"))
        written = delta_log.open_table(target)
        return written.version() if written and written.version() > state.version else None

    def _decided(self, frame: DataFrame, live: Relation, keys: Sequence[str]) -> DataFrame:
        """Living rows, and deletes of keys that no living row has."""
        gone = frame.where(f.col(CHANGE) == "delete").dropDuplicates(list(keys))
        there = self.session.table(live.name).select(*(f.col(k).alias(f"_strandline_{k}") for k in keys))
        on = [gone[k].eqNullSafe(there[f"_strandline_{k}"]) for k in keys]
        return frame.where(f.col(CHANGE) != "delete").unionByName(gone.join(there, on, "left_anti"))

    def _check(self, rows: Relation, keys: Sequence[str]) -> None:
        """Every key is there, and occurs once."""
        if not keys:
            raise TableError("merge_dataframe needs key_columns", hint="name the columns that identify a row")
        for key in keys:
            if key not in rows.schema:
                raise UnknownColumn(key, rows.schema.names, where="key_columns")
        counted = self.session.table(rows.name).groupBy(*keys).count().where("count > 1")
        found = counted.limit(5).collect()
        if found:
            raise DuplicateKeys(list(keys), counted.count(), [tuple(r)[:-1] for r in found])

    # --- together ------------------------------------------------------------------------------------------

    @contextmanager
    def together(self, tables: Sequence[object], load_id: str) -> Iterator[None]:
        """Whatever is written meanwhile carries the load's id; when something fails, all these tables are put back."""
        before = {str(getattr(t, "identifier", t)): self._version(t) for t in tables}
        old = self.session.conf.get(_METADATA, None)
        self.session.conf.set(_METADATA, json.dumps({"strandline": {"load": load_id}}, separators=(",", ":")))
        try:
            yield
        except BaseException as error:
            self._back(before, load_id, error)
            raise
        finally:
            self.session.conf.unset(_METADATA) if old is None else self.session.conf.set(_METADATA, old)

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
            since = [c for c in delta_past.commits(place) if version is None or c.version > version]
            foreign = [c.version for c in since if c.record.get("load") != load_id]
            if foreign:
                refused.append(f"{name}: version {foreign[0]} was committed by somebody else")
            else:
                self._restore(name, place, version)
        if refused:
            raise RevertRefused(refused, str(error)) from error

    def _restore(self, name: str, place: Table, version: int | None) -> None:
        if version is not None:
            self.session.sql(f"RESTORE TABLE delta.{_tick(place.location)} TO VERSION AS OF {version}")
        elif "/" in name:
            shutil.rmtree(place.location)
        else:
            self.session.sql(f"DROP TABLE {_quoted(name)}")


def _merged(target: Table, rows: Relation, keys: Sequence[str], *, whole: bool) -> exp.Merge:
    """Deletes, real changes, new rows; what the rows do not have goes only when they are all there are."""
    columns = [c.name for c in rows.schema if c.name != CHANGE]
    changing = [c for c in columns if c.casefold() not in {k.casefold() for k in keys}]
    gone = eq(col(CHANGE, "s"), lit("delete"))
    differs = any_of(negate(same(col(c, "t"), col(c, "s"))) for c in changing)
    update = exp.Update(expressions=[exp.EQ(this=col(c, "t"), expression=col(c, "s")) for c in columns])
    insert = exp.Insert(
        this=exp.Tuple(expressions=[exp.Column(this=ident(c)) for c in columns]),
        expression=exp.Tuple(expressions=[col(c, "s") for c in columns]),
    )
    whens = [
        exp.When(matched=True, condition=gone, then=exp.Var(this="DELETE")),
        exp.When(matched=True, condition=differs, then=update),
        exp.When(matched=False, condition=negate(gone.copy()), then=insert),
    ]
    if whole:
        whens.append(exp.When(matched=False, source=True, then=exp.Var(this="DELETE")))
    place = exp.Table(this=ident(target.location), db=ident("delta"))
    return exp.Merge(
        this=exp.alias_(place, ident("t"), table=True),
        using=table(rows.name, "s"),
        on=same_keys(keys, "s", "t"),
        whens=exp.Whens(expressions=whens),
    )


def _spelled(schema: Schema, keys: Sequence[str]) -> list[str]:
    return [c.name if (c := schema.get(k)) else k for k in keys]


def _local(path: str) -> str:
    return unquote(urlparse(path).path) if path.startswith("file:") else str(Path(path).absolute())


def _quoted(name: str) -> str:
    return ".".join(_tick(part.strip("`")) for part in name.split("."))


def _tick(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
