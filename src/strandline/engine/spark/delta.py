"""Committing change sets with Delta on Spark: one commit, with the batch's token in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from sqlglot import exp

from strandline.errors import TableError
from strandline.lake.delta import log as delta_log
from strandline.sql.expr import col, ident, one_of, rows_of, table
from strandline.sql.portable import render
from strandline.strategy.changes import ACTION, TOUCHING, ChangeSet, Removals, match
from strandline.types import Table, Token

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
    delta = delta_log.open_on(target, changes, token, record)
    text = delta_log.commit_text(token, dict(record))
    with delta_log.creating(target, new=delta is None), _token(session, token, text):
        if delta is None or changes.inserts_only or changes.removals is Removals.EVERYTHING:
            _write(session, target, changes, delta)
        else:
            session.sql(_merge_sql(session, target, changes, delta))
    written = delta_log.open_table(target)
    if written is None:
        raise TableError(f"{target.label}: the commit left no table behind")
    return int(written.version())


def _write(
    session: SparkSession, target: Table, changes: ChangeSet, delta: DeltaTable | None
) -> None:
    rows = session.sql(render(rows_of(changes.additions, changes.columns), "spark"))
    whole = changes.removals is Removals.EVERYTHING
    mode = "overwrite" if whole and delta is not None else "append"
    writer = _marked(rows, changes, delta).write.format("delta").mode(mode)
    if delta is None:
        # an upsert touches few rows of many files: marking them is cheaper than rewriting the files
        vectors = changes.removals is Removals.REPLACED
        writer = writer.option("delta.enableDeletionVectors", str(vectors).lower())
        writer = writer.option(delta_log.FEED, "true")
    elif changes.evolves:
        writer = writer.option("overwriteSchema" if whole else "mergeSchema", "true")
    if changes.partition_by and (delta is None or whole):
        writer = writer.partitionBy(*changes.partition_by)
    writer.save(target.location)


def _token(session: SparkSession, token: Token, text: str) -> AbstractContextManager[None]:
    settings = {
        _TXN + "txnAppId": token.app_id,
        _TXN + "txnVersion": str(token.txn),
        _METADATA: text,
    }
    return session_settings(session, settings)


@contextmanager
def session_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Whatever this session commits meanwhile carries the token; the session is the node's own."""
    for key, value in settings.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            session.conf.unset(key)


def _marked(rows: DataFrame, changes: ChangeSet, delta: DeltaTable | None) -> DataFrame:
    """The rows with their system and metadata columns marked as such, for the columns that the table gets.

    A column that was read from a lake table may still have a mark from there, under whatever name it has now.
    """
    marks = delta_log.field_marks(changes, delta)
    return rows.select(*(f.col(_tick(c)).alias(c, metadata=marks.get(c, {})) for c in rows.columns))


def _merge_sql(session: SparkSession, target: Table, changes: ChangeSet, delta: DeltaTable) -> str:
    """The MERGE; one that brings columns says so, and its rows carry the marks of those."""
    name = changes.additions.name
    place = exp.Table(this=ident(target.location), db=ident("delta"))
    if not changes.evolves:
        return render(merge_into(place, changes, name), "spark")
    marked = f"{name}_marked"
    _marked(session.table(name), changes, delta).createOrReplaceTempView(marked)
    sql = render(merge_into(place, changes, marked), "spark")
    return sql.replace("MERGE INTO", "MERGE WITH SCHEMA EVOLUTION INTO", 1)


def merge_into(place: exp.Table, changes: ChangeSet, source: str) -> exp.Merge:
    """The MERGE of a change set into a table of any format."""
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
    return exp.Merge(
        this=exp.alias_(place, ident("t"), table=True),
        using=table(source, "s"),
        on=match(changes, "t", "s"),
        whens=exp.Whens(expressions=whens),
    )


def _update(columns: Sequence[str]) -> exp.Update:
    """Columns that are new have no name with the table's alias yet."""
    return exp.Update(expressions=[exp.EQ(this=col(n), expression=col(n, "s")) for n in columns])


def _tick(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
