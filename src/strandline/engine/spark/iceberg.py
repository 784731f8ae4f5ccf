"""Committing change sets to Iceberg tables: Spark writes on a branch, and one conditional commit makes it main."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyiceberg.catalog import Catalog as IceCatalog
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import Table as IceTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from sqlglot import exp

from strandline.engine.spark.delta import merge_into, session_settings
from strandline.engine.spark.iceberg_scans import know_catalog, spark_name, ticked
from strandline.engine.staging import alive, owner
from strandline.errors import CommitConflict, StrandlineError, TableError
from strandline.lake.iceberg import log
from strandline.lake.iceberg.branches import branched, drop_branch, drop_unnamed, moved_to_main
from strandline.lake.iceberg.catalogs import catalog_for_writing, opened, told
from strandline.lake.iceberg.commit import Draft
from strandline.lake.iceberg.writing import commit_columns, drafted
from strandline.sql.expr import ident, rows_of
from strandline.sql.portable import render
from strandline.strategy.changes import ChangeSet, Removals
from strandline.types import Table, Token

_NOTE = f"spark.sql.iceberg.snapshot-property.{log.NOTE}"
_EMPTY = '{"strandline":{"empty":true}}'
_BRANCH = "strandline-"
_STALE = timedelta(days=1)
_NEW = "_strandline_new_"
"""What the name begins with under which Spark fills a table before it gets its own."""


def apply(
    session: SparkSession,
    target: Table,
    changes: ChangeSet,
    token: Token,
    record: Mapping[str, Any],
) -> int:
    """Write the additions and take out what they replace, in one commit; returns the table's new version."""
    know_catalog(session, target)
    draft = drafted(target, changes, token, record)
    note = log.note_text(token, record)
    if draft.new:
        return _create(session, draft, changes, token, note)
    if (
        draft.changes
    ):  # Spark writes only columns that are there: they come by a commit of their own
        commit_columns(draft)
    properties = log.token_properties(token)
    return _on_branch(
        session, target, note, properties, lambda place: _write(session, place, changes)
    )


def _on_branch(
    session: SparkSession,
    target: Table,
    note: str,
    properties: Mapping[str, str],
    write: Any,
) -> int:
    """Let Spark write on a branch, and make it main."""
    found = _with_snapshot(target)
    name = f"{_BRANCH}{owner().encode().hex()}-{uuid.uuid4().hex[:8]}"
    with branched(target, found, name, _left(found)):
        with session_settings(session, {_NOTE: note}):
            write((*_parts(target), f"branch_{name}"))
        version = moved_to_main(target, found, name, properties)
    if version is not None:
        return version
    drop_branch(target, name)  # Spark saw that there is nothing to write
    return Draft(target, found).commit(found.catalog, {log.NOTE: note}, properties)


def _left(found: IceTable) -> list[str]:
    """The branches that dead runners have left; of runners on other machines those that are a day old."""
    left = []
    for name, ref in found.metadata.refs.items():
        if not name.startswith(_BRANCH):
            continue
        who = bytes.fromhex(name.removeprefix(_BRANCH).partition("-")[0]).decode()
        there, snapshot = alive(who), found.metadata.snapshot_by_id(ref.snapshot_id)
        made = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC) if snapshot else None
        old = made is not None and datetime.now(UTC) - made > _STALE
        if there is False or (there is None and old):
            left.append(name)
    return left


def _with_snapshot(target: Table) -> IceTable:
    """The table; one that has no snapshot gets an empty one, because a branch begins at a snapshot."""
    found = opened(target)
    if found is None:
        raise TableError(f"{target.label}: the table is gone", hint="run again")
    if found.metadata.current_snapshot() is not None:
        return found
    Draft(target, found).commit(found.catalog, {log.NOTE: _EMPTY}, {})
    return _with_snapshot(target)


def _parts(target: Table) -> tuple[str, ...]:
    assert target.catalog is not None
    return (target.catalog.name, *target.name)


def _write(session: SparkSession, place: tuple[str, ...], changes: ChangeSet) -> None:
    if not (changes.inserts_only or changes.removals is Removals.EVERYTHING):
        session.sql(render(merge_into(_table(place), changes, changes.additions.name), "spark"))
        return
    writer = _rows(session, changes).writeTo(".".join(map(ticked, place)))
    if changes.removals is Removals.EVERYTHING:
        writer.overwrite(f.lit(True))
    else:
        writer.append()


def _rows(session: SparkSession, changes: ChangeSet) -> DataFrame:
    return session.sql(render(rows_of(changes.additions, changes.columns), "spark"))


def _table(parts: Sequence[str]) -> exp.Table:
    """A name of any number of parts."""
    catalog, schema, *rest = (ident(part) for part in parts)
    return exp.Table(
        this=exp.Dot.build(rest) if len(rest) > 1 else rest[0], db=schema, catalog=catalog
    )


def _create(
    session: SparkSession, draft: Draft, changes: ChangeSet, token: Token, note: str
) -> int:
    """Make a table together with its rows: Spark fills it under another name, and then it gets its own."""
    target = draft.table
    catalog = catalog_for_writing(target)
    _sweep(catalog, target)
    name = f"{_NEW}{owner().encode().hex()}_{uuid.uuid4().hex[:8]}"
    place = replace(target, name=(*target.name[:-1], name))
    marks = log.marks(draft.base.schema(), changes.roles, changes.columns)
    properties = {
        **draft.base.properties, "format-version": "2", **marks, **log.token_properties(token)
    }  # fmt: skip
    with told(target):
        catalog.create_table(
            place.name,
            draft.base.schema(),
            location=draft.base.location(),
            partition_spec=draft.base.spec(),
            properties=properties,
        )
    try:
        with session_settings(session, {_NOTE: note}):
            _rows(session, changes).writeTo(spark_name(place)).append()
        made = opened(place)
        if made is not None and made.metadata.current_snapshot() is None:
            Draft(place, made).commit(catalog, {log.NOTE: note}, {})
        with told(target):
            catalog.rename_table(place.name, target.name)
    except BaseException as e:
        with suppress(NoSuchTableError, StrandlineError):  # it is swept later
            drop_unnamed(place)
        if isinstance(e, TableAlreadyExistsError):
            raise CommitConflict(
                f"{target.label}: another writer made the table at the same moment",
                hint="run again",
            ) from e
        raise
    found = opened(target)
    assert found is not None, "it has just got its name"
    return log.head_of(found.metadata)


def _sweep(catalog: IceCatalog, target: Table) -> None:
    """Drop the tables that dead runners were filling."""
    with told(target):
        for *_, name in catalog.list_tables(target.name[:-1]):
            if not name.startswith(_NEW):
                continue
            who = bytes.fromhex(name.removeprefix(_NEW).partition("_")[0]).decode()
            if alive(who) is False:
                with suppress(NoSuchTableError):
                    drop_unnamed(replace(target, name=(*target.name[:-1], name)))
