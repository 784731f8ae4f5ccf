"""Committing change sets to Iceberg tables: one snapshot of new data files and position deletes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from strandline.engine.local.delta import watched
from strandline.engine.local.iceberg_scans import FILE, POS, FileReader
from strandline.lake.iceberg import log
from strandline.lake.iceberg.commit import Draft, Placed
from strandline.lake.iceberg.files import LiveFile, live
from strandline.lake.iceberg.writing import drafted
from strandline.sql.expr import OUTER, col, lit, one_of, rows_of, select, table
from strandline.sql.portable import render
from strandline.strategy.changes import ACTION, TOUCHING, ChangeSet, Removals, coming, match
from strandline.types import Relation, Table, Token

if TYPE_CHECKING:
    from strandline.engine.local.workspace import LocalWorkspace


def apply(
    workspace: LocalWorkspace,
    place: Table,
    changes: ChangeSet,
    token: Token,
    record: Mapping[str, Any],
) -> int:
    """Write the additions and take out what they replace, in one commit; returns the table's new version."""
    draft = drafted(place, changes, token, record)
    everything = changes.removals is Removals.EVERYTHING
    try:
        if draft.new or everything or changes.inserts_only:
            rows: exp.Query = rows_of(changes.additions, changes.columns)
        else:
            files = live(draft.base, place, log.head_of(draft.base.metadata))
            reader = FileReader(workspace, draft.table, draft.base, draft.metadata.schema())
            name = workspace.fresh("stored")
            workspace.run(f'CREATE TEMP VIEW "{name}" AS {reader.stored_rows(files)}')
            stored = workspace.relation(name)
            replaced = _replaced(workspace, changes, reader, files, stored)
            rows = coming(changes, _touched(workspace, changes, stored, replaced))
            _delete(workspace, draft, files, replaced)
        arrow = workspace.arrow(rows)
        draft.write(watched(arrow), arrow.schema)
    except BaseException:
        draft.drop()
        raise
    marks = log.marks(draft.metadata.schema(), changes.roles, changes.columns)
    properties = {**log.token_properties(token), **(marks if draft.new else {})}
    note = {log.NOTE: log.note_text(token, record)}
    return draft.commit(draft.base.catalog, note, properties, everything=everything)


def _replaced(
    workspace: LocalWorkspace,
    changes: ChangeSet,
    reader: FileReader,
    files: Sequence[LiveFile],
    stored: Relation,
) -> str:
    """The places of the rows that additions replace, touch or take out.

    What is deleted already is left out after the match: that is a join of few rows instead of all.
    """
    there = (
        select(lit(1)).from_(table(changes.additions.name, "c")).where(match(changes, OUTER, "c"))
    )
    found = (
        select(col(FILE, OUTER), col(POS, OUTER))
        .from_(table(stored.name, OUTER))
        .where(exp.Exists(this=there))
    )
    name = workspace.fresh("replaced")
    workspace.run(f'CREATE TEMP TABLE "{name}" AS {render(found, workspace.dialect)}')
    if any(file.deletes for file in files):
        gone = reader.deletes(files)
        same = f'd.{FILE} = "{name}".{FILE} AND d.{POS} = "{name}".{POS}'
        workspace.run(f'DELETE FROM "{name}" WHERE EXISTS (SELECT 1 FROM "{gone}" d WHERE {same})')
    return name


def _touched(
    workspace: LocalWorkspace, changes: ChangeSet, stored: Relation, replaced: str
) -> Relation | None:
    """The stored rows of which some columns are written anew; None when there are none, so that none are read."""
    touching = select(exp.Count(this=exp.Star())).from_(table(changes.additions.name))
    if not workspace.fetch(touching.where(one_of(col(ACTION), TOUCHING)))[0][0]:
        return None
    name = workspace.fresh("touched")
    workspace.run(
        f'CREATE TEMP VIEW "{name}" AS SELECT s.* FROM "{stored.name}" s '
        f'SEMI JOIN "{replaced}" r ON s.{FILE} = r.{FILE} AND s.{POS} = r.{POS}'
    )
    return workspace.relation(name)


def _delete(
    workspace: LocalWorkspace, draft: Draft, files: Sequence[LiveFile], replaced: str
) -> None:
    """Delete rows by their places: one file of deletes per partition, for Spark reads others only there."""
    order = sorted(range(len(files)), key=lambda n: (*_partition(files[n]), files[n].uri))
    ordered = [files[number] for number in order]
    known = workspace.fresh("numbers")
    places = {FILE: pa.array(order, pa.int64()), "n": pa.array(range(len(order)), pa.int32())}
    workspace.register(known, pa.table(places))
    rows: pa.Table = workspace.connection.sql(
        f'SELECT k.n, r.{POS} AS pos FROM "{replaced}" r JOIN "{known}" k ON r.{FILE} = k.{FILE} '
        "ORDER BY k.n, pos"
    ).to_arrow_table()
    counts = {c["values"]: c["counts"] for c in pc.value_counts(rows.column("n")).to_pylist()}
    start = 0
    for _, group in groupby(range(len(ordered)), key=lambda n: _partition(ordered[n])):
        numbers = list(group)
        size = sum(counts.get(n, 0) for n in numbers)
        if size:
            part = rows.slice(start, size)
            uris = pa.DictionaryArray.from_arrays(
                part.column("n").combine_chunks(), pa.array([f.uri for f in ordered], pa.string())
            )
            file = ordered[numbers[0]].data
            draft.delete(
                uris, part.column("pos").combine_chunks(), Placed(file.spec_id, file.partition)
            )
        start += size


def _partition(file: LiveFile) -> tuple[int, str]:
    return file.data.spec_id or 0, repr(file.data.partition)
