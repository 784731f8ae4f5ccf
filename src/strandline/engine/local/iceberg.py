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
from strandline.lake.iceberg.files import LiveFile, live, local_path
from strandline.lake.iceberg.writing import drafted
from strandline.sql.expr import OUTER, col, lit, rows_of, select, table
from strandline.sql.portable import render
from strandline.strategy.changes import ChangeSet, Removals, coming, match
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
            target = _stored(workspace, draft, files)
            rows = coming(changes, target)
            _delete(workspace, draft, files, _replaced(workspace, changes, target))
        reader = workspace.arrow(rows)
        draft.write(watched(reader), reader.schema)
    except BaseException:
        draft.drop()
        raise
    marks = log.marks(draft.metadata.schema(), changes.roles, changes.columns)
    properties = {**log.token_properties(token), **(marks if draft.new else {})}
    note = {log.NOTE: log.note_text(token, record)}
    return draft.commit(draft.base.catalog, note, properties, everything=everything)


def _stored(workspace: LocalWorkspace, draft: Draft, files: Sequence[LiveFile]) -> Relation:
    """The rows of a table in its columns to be, each with where it is stored."""
    reader = FileReader(workspace, draft.table, draft.base, draft.metadata.schema())
    name = workspace.fresh("stored")
    workspace.run(f'CREATE TEMP VIEW "{name}" AS {reader.rows(files, where_stored=True)}')
    return workspace.relation(name)


def _replaced(workspace: LocalWorkspace, changes: ChangeSet, target: Relation) -> str:
    """The places of the rows that additions replace, touch or take out."""
    there = (
        select(lit(1)).from_(table(changes.additions.name, "c")).where(match(changes, OUTER, "c"))
    )
    found = (
        select(col(FILE, OUTER), col(POS, OUTER))
        .from_(table(target.name, OUTER))
        .where(exp.Exists(this=there))
    )
    return render(found, workspace.dialect)


def _delete(
    workspace: LocalWorkspace, draft: Draft, files: Sequence[LiveFile], replaced: str
) -> None:
    """Delete rows by their places: one file of deletes per partition, for Spark reads others only there."""
    ordered = sorted(files, key=lambda f: (*_partition(f), f.uri))
    known = workspace.fresh("numbers")
    paths = [local_path(f.uri, draft.table) for f in ordered]
    workspace.register(known, pa.table({FILE: paths, "n": pa.array(range(len(paths)), pa.int32())}))
    rows: pa.Table = workspace.connection.sql(
        f'SELECT k.n, r.{POS} AS pos FROM ({replaced}) r JOIN "{known}" k ON r.{FILE} = k.{FILE} ORDER BY k.n, pos'
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
