"""Committing change sets with Delta on Spark: one commit, with the batch's token in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from sqlglot import exp

from strandline.engine import delta_log
from strandline.errors import TableError
from strandline.sql.expr import col, data_type, ident, rows_of, table
from strandline.sql.portable import render
from strandline.strategy.changes import ChangeSet, Removals, match
from strandline.types import Column, Table, Token

_TXN = "spark.databricks.delta.write."
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
# the additions are files that nobody changes: a MERGE that copies them first also forgets how small they are
_STAGED = {"spark.databricks.delta.merge.materializeSource": "none"}


def apply(session: SparkSession, target: Table, changes: ChangeSet, token: Token, record: Mapping[str, Any]) -> int:
    """Write the additions and take out what they replace, in one commit; returns the table's new version."""
    new = delta_log.open_table(target) is None
    text = delta_log.commit_text(token, dict(record))
    with delta_log.creating(target, new=new), _token(session, token, text):
        if new or changes.inserts_only or changes.removals is Removals.EVERYTHING:
            rows = session.sql(render(rows_of(changes.additions, changes.columns), "spark"))
            mode = "overwrite" if changes.removals is Removals.EVERYTHING and not new else "append"
            writer = _marked(rows, changes).write.format("delta").mode(mode)
            if new:
                writer = writer.partitionBy(*changes.partition_by) if changes.partition_by else writer
                # an upsert touches few rows of many files: marking them is cheaper than rewriting the files
                vectors = changes.removals is Removals.REPLACED
                writer = writer.option("delta.enableDeletionVectors", str(vectors).lower())
            writer.save(target.location)
        else:
            session.sql(render(_merge(target, changes), "spark"))
    written = delta_log.open_table(target)
    if written is None:
        raise TableError(f"{target.label}: the commit left no table behind")
    return int(written.version())


@contextmanager
def _token(session: SparkSession, token: Token, text: str) -> Iterator[None]:
    """Whatever this session commits meanwhile carries the token; the session is the node's own."""
    settings = {_TXN + "txnAppId": token.app_id, _TXN + "txnVersion": str(token.batch), _METADATA: text, **_STAGED}
    for key, value in settings.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            session.conf.unset(key)


def _marked(rows: DataFrame, changes: ChangeSet) -> DataFrame:
    """The rows with their system columns marked as such, for the schema of a new table."""
    marks = {s: {delta_log.SYSTEM: "true"} for s in changes.system}
    return rows.select(
        *(f.col(_tick(c)).alias(c, metadata=marks[c]) if c in marks else f.col(_tick(c)) for c in rows.columns)
    )


def _merge(target: Table, changes: ChangeSet) -> exp.Merge:
    columns = changes.columns.names
    update = exp.Update(expressions=[exp.EQ(this=col(n, "t"), expression=col(n, "s")) for n in columns])
    insert = exp.Insert(
        this=exp.Tuple(expressions=[exp.Column(this=ident(n)) for n in columns]),
        expression=exp.Tuple(expressions=[col(n, "s") for n in columns]),
    )
    whens = [exp.When(matched=True, then=update), exp.When(matched=False, then=insert)]
    place = exp.Table(this=ident(target.location), db=ident("delta"))
    return exp.Merge(
        this=exp.alias_(place, ident("t"), table=True),
        using=table(changes.additions.name, "s"),
        on=match(changes, "t", "s"),
        whens=exp.Whens(expressions=whens),
    )


def add_columns(session: SparkSession, target: Table, add: Sequence[Column]) -> None:
    """New columns at the end, all of them optional."""
    place = f"delta.{_tick(target.location)}"
    if any("timestamp_ntz" in c.type for c in add):
        session.sql(f"ALTER TABLE {place} SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')")
    columns = ", ".join(f"{_tick(c.name)} {data_type(c.type).sql(dialect='spark')}" for c in add)
    session.sql(f"ALTER TABLE {place} ADD COLUMNS ({columns})")


def _tick(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
