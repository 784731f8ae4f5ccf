"""Committing change sets with Delta on Spark: one commit, with the batch's token in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from sqlglot import exp

from strandline.errors import TableError
from strandline.failpoints import point
from strandline.lake.delta import log as delta_log
from strandline.sql.expr import col, data_type, ident, one_of, rows_of, table
from strandline.sql.portable import render
from strandline.strategy.changes import ACTION, METADATA, TOUCHING, ChangeSet, Removals, match
from strandline.types import Column, Table, Token

_TXN = "spark.databricks.delta.write."
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


def apply(
    session: SparkSession,
    target: Table,
    changes: ChangeSet,
    token: Token,
    record: Mapping[str, Any],
) -> int:
    """Write the additions and take out what they replace, in one commit; returns the table's new version."""
    new = delta_log.open_on(target, changes) is None
    text = delta_log.commit_text(token, dict(record))
    with delta_log.creating(target, new=new), _token(session, token, text):
        if new or changes.inserts_only or changes.removals is Removals.EVERYTHING:
            rows = session.sql(render(rows_of(changes.additions, changes.columns), "spark"))
            mode = "overwrite" if changes.removals is Removals.EVERYTHING and not new else "append"
            writer = _marked(rows, changes).write.format("delta").mode(mode)
            if new:
                writer = (
                    writer.partitionBy(*changes.partition_by) if changes.partition_by else writer
                )
                # an upsert touches few rows of many files: marking them is cheaper than rewriting the files
                vectors = changes.removals is Removals.REPLACED
                writer = writer.option("delta.enableDeletionVectors", str(vectors).lower())
                writer = writer.option(delta_log.FEED, "true")
            writer.save(target.location)
        else:
            session.sql(render(_merge(target, changes), "spark"))
    written = delta_log.open_table(target)
    if written is None:
        raise TableError(f"{target.label}: the commit left no table behind")
    return int(written.version())


def _token(session: SparkSession, token: Token, text: str) -> AbstractContextManager[None]:
    settings = {
        _TXN + "txnAppId": token.app_id,
        _TXN + "txnVersion": str(token.number),
        _METADATA: text,
    }
    return _settings(session, settings)


@contextmanager
def _settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Whatever this session commits meanwhile carries the token; the session is the node's own."""
    for key, value in settings.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            session.conf.unset(key)


def _marked(rows: DataFrame, changes: ChangeSet) -> DataFrame:
    """The rows with their system and metadata columns marked as such, for the schema of a new table.

    A column that was read from a lake table may still have a mark from there, under whatever name it has now.
    """
    marks = delta_log.field_marks(changes)
    return rows.select(*(f.col(_tick(c)).alias(c, metadata=marks.get(c, {})) for c in rows.columns))


def _merge(target: Table, changes: ChangeSet) -> exp.Merge:
    columns = changes.columns.names
    insert = exp.Insert(
        this=exp.Tuple(expressions=[exp.Column(this=ident(n)) for n in columns]),
        expression=exp.Tuple(expressions=[col(n, "s") for n in columns]),
    )
    whens = [exp.When(matched=True, then=_update(columns))]
    if (
        not changes.replaces_only
    ):  # without it Spark need not shuffle the table to find what is not there
        whens.append(exp.When(matched=False, then=insert))
    if changes.touched:
        touching = one_of(col(ACTION, "s"), TOUCHING)
        whens.insert(0, exp.When(matched=True, condition=touching, then=_update(changes.touched)))
    if changes.removing:
        gone = one_of(col(ACTION, "s"), changes.removing)
        whens.insert(0, exp.When(matched=True, condition=gone, then=exp.Var(this="DELETE")))
    place = exp.Table(this=ident(target.location), db=ident("delta"))
    return exp.Merge(
        this=exp.alias_(place, ident("t"), table=True),
        using=table(changes.additions.name, "s"),
        on=match(changes, "t", "s"),
        whens=exp.Whens(expressions=whens),
    )


def _update(columns: Sequence[str]) -> exp.Update:
    return exp.Update(
        expressions=[exp.EQ(this=col(n, "t"), expression=col(n, "s")) for n in columns]
    )


def add_columns(
    session: SparkSession, target: Table, add: Sequence[Column], system: Mapping[str, Column]
) -> None:
    """New columns at the end, all of them optional; a new delete flag is false in all rows there are."""
    place, now = f"delta.{_tick(target.location)}", delta_log.describe(target)
    metadata = [c for c in add if c.fold in METADATA]
    known = now.schema if now else ()  # another runner may have added some of them since
    add = [c for c in add if c.fold not in METADATA and c.name not in known]
    with _settings(session, {_METADATA: delta_log.ALTERED}):
        if any("timestamp_ntz" in c.type for c in add):
            session.sql(
                f"ALTER TABLE {place} SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')"
            )
        if add:
            columns = ", ".join(
                f"{_tick(c.name)} {data_type(c.type).sql(dialect='spark')}" for c in add
            )
            session.sql(f"ALTER TABLE {place} ADD COLUMNS ({columns})")
        if metadata:
            delta_log.add_metadata_columns(target, metadata)
        point("alter.system")
        if system:
            delta_log.add_system_columns(target, system)
        point("alter.fill")
        if "deleted" in system:
            flag = _tick(system["deleted"].name)
            session.sql(f"UPDATE {place} SET {flag} = false WHERE {flag} IS NULL")
            delta_log.filled(target, system["deleted"].name)


def _tick(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
