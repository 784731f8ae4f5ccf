"""What a Delta table's own log says, read without starting a job; shared by both engines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from strandline.errors import CommitConflict, TableError
from strandline.lake.delta.types import to_delta
from strandline.strategy.changes import METADATA, ChangeSet, Removals
from strandline.types import Column, Commit, Schema, Table, TableState, Token

_LOG = "_delta_log"
FEED = "delta.enableChangeDataFeed"
ALTERED = (
    '{"strandline":{"alter":true}}'  # what a commit carries that only prepares a table for a batch
)
SYSTEM = "strandline.system"  # the role of a system column, in the metadata of its field
_UNFILLED = "strandline.unfilled"  # and whether rows that were there before it are still to be filled in: yes or no
_METADATA = "strandline.metadata"  # the role of a metadata column, in the same place
# what Delta does to a table without touching a row
HARMLESS = (
    "OPTIMIZE", "VACUUM", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "SET TABLE PROPERTIES", "ADD COLUMN",
    "CHANGE COLUMN", "UPGRADE PROTOCOL", "COMPUTE STATS", "CLUSTER BY", "ADD FEATURE", "UPDATE FIELD METADATA",
)  # fmt: skip
_PRIMITIVES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}


def describe(table: Table, app_id: str | None = None) -> TableState | None:
    """The table's state, with the newest commit under `app_id`; None when nothing is there."""
    delta = open_table(table)
    return (
        None if delta is None else _state(delta, newest_commit(delta, app_id) if app_id else None)
    )


def describe_at(table: Table, version: int) -> TableState:
    """The table's state at a version that the log still reaches."""
    return _state(DeltaTable(table.location, version=version), None)


def _state(delta: DeltaTable, commit: Commit | None) -> TableState:
    meta = delta.metadata()
    feed = meta.configuration.get(FEED) == "true"
    parts = tuple(meta.partition_columns)
    unfilled = any(mark.get(_UNFILLED) == "yes" for mark in _marks(delta).values())
    required = tuple(f["name"] for f in _fields(delta) if not f["nullable"])
    return TableState(
        delta.version(),
        schema_of(delta),
        parts,
        str(meta.id),
        _roles(delta),
        commit,
        feed,
        required,
        _metadata(delta),
        unfilled,
    )


def _roles(delta: DeltaTable) -> dict[str, str]:
    """The system columns by their role."""
    return {str(mark[SYSTEM]): name for name, mark in _marks(delta).items() if mark.get(SYSTEM)}


def _metadata(delta: DeltaTable) -> frozenset[str]:
    """The metadata columns: those with the role that their name stands for, and the batch of appended rows."""
    found = {
        name.casefold()
        for name, mark in _marks(delta).items()
        if mark.get(_METADATA) == _role(name)
    }
    return frozenset({*found, _roles(delta).get("batch_id", "").casefold()} & {*METADATA})


def _role(name: str) -> str | None:
    """The role of a metadata column; None for any other name."""
    return name.casefold().removeprefix("_") if name.casefold() in METADATA else None


def field_marks(changes: ChangeSet) -> dict[str, dict[str, str]]:
    """What is noted with the columns of a new table: the roles of its system and metadata columns."""
    system = {name: {SYSTEM: role} for role, name in changes.roles.items()}
    metadata = {c.name: {_METADATA: role} for c in changes.columns if (role := _role(c.name))}
    return {**metadata, **system}


def _marks(delta: DeltaTable) -> dict[str, dict[str, Any]]:
    return {f["name"]: f.get("metadata", {}) for f in _fields(delta)}


def _fields(delta: DeltaTable) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = json.loads(delta.schema().to_json())["fields"]
    return fields


def schema_of(delta: DeltaTable) -> Schema:
    """The table's columns, in Spark's words."""
    return Schema(tuple(Column(f["name"], spark_type(f["type"])) for f in _fields(delta)))


def open_table(table: Table) -> DeltaTable | None:
    """The table, None when nothing is there, an error when something else is."""
    path = Path(table.location)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())) or _never_committed(path):
        return None
    try:
        return DeltaTable(table.location)
    except TableNotFoundError:
        raise TableError(
            f"{table.label}: what is stored there is not a Delta table",
            hint="give the node another table name, or move the files that are there out of the way",
        ) from None
    except DeltaError as e:
        raise TableError(f"{table.label}: its Delta log cannot be read: {_first_line(e)}") from e


def files_of(table: Table, delta: DeltaTable) -> list[Path]:
    """The live files of a table on this machine."""
    return [
        file_of(table, p)
        for p in pa.table(delta.get_add_actions(flatten=True)).column("path").to_pylist()
    ]


def file_of(table: Table, path: str) -> Path:
    """A path of the log: below the table, or whole, always percent-encoded; where the table is never is."""
    return (
        Path(unquote(urlparse(path).path))
        if "://" in path
        else Path(table.location) / unquote(path)
    )


def open_on(table: Table, changes: ChangeSet) -> DeltaTable | None:
    """The table to commit to; an error when it is not at its base, or what was found out by looking at it is void."""
    delta, base, seen = open_table(table), changes.base, changes.seen
    if base is not None and (delta is None or delta.version() != base):
        raise CommitConflict(f"{table.label}: it is no longer at version {base}", hint="run again")
    if seen is None:
        return delta
    if delta is None:
        other: str | None = "the table is gone"
    elif delta.version() < seen:
        other = f"is at version {delta.version()} now"
    elif "deleted" in _roles(delta) and "deleted" not in changes.roles:
        other = "it has a delete flag now, which these rows lack"
    else:
        other = _void(delta, range(seen + 1, delta.version() + 1), changes)
    if other:
        raise CommitConflict(
            f"{table.label}: it was looked at in version {seen}, and {other}", hint="run again"
        )
    return delta


def overlooked(table: Table, version: int, changes: ChangeSet) -> str | None:
    """What `open_on` would have refused, and came after it while the commit of this version was made."""
    if changes.seen is None or version - 1 <= changes.seen:
        return None
    return _void(DeltaTable(table.location), range(changes.seen + 1, version), changes)


def _void(delta: DeltaTable, versions: range, changes: ChangeSet) -> str | None:
    """Which of these versions makes void what was found out by looking at the one before them.

    What was compared with the table is void when any writer has touched a row since. An append compares nothing.
    """
    for entry in delta.history(delta.version() + 1 - versions.start) if versions else ():
        operation, theirs = str(entry.get("operation", "")), record_of(entry) or {}
        if (
            entry["version"] not in versions
            or theirs.get("alter")
            or operation.startswith(HARMLESS)
        ):
            continue
        if changes.removals is not Removals.NOTHING:
            return f"version {entry['version']} ({operation}) came meanwhile"
    return None


def add_system_columns(table: Table, add: Mapping[str, Column]) -> None:
    """New system columns by their role, marked as such; Spark's ALTER TABLE has no words for the mark.

    A flag is also marked as not filled in, until `filled` says that it is: who comes after a death sees it here.
    """
    delta = DeltaTable(table.location)
    there = schema_of(delta)
    fields = [
        Field(c.name, to_delta(c.type), nullable=True, metadata=_mark(role))
        for role, c in add.items()
        if c.name not in there
    ]
    if fields:
        with conflicts_told(table):
            delta.alter.add_columns(fields, commit_properties=_ours())


def add_metadata_columns(table: Table, add: Sequence[Column]) -> None:
    """New metadata columns, marked as such; one that is there already, from before there were marks, gets its mark."""
    delta = DeltaTable(table.location)
    there, marked = schema_of(delta), _metadata(delta)
    new = [c for c in add if c.name not in there]
    fields = [
        Field(c.name, to_delta(c.type), nullable=True, metadata={_METADATA: str(_role(c.name))})
        for c in new
    ]
    with conflicts_told(table):
        if fields:
            delta.alter.add_columns(fields, commit_properties=_ours())
        for c in add:
            if (have := there.get(c.name)) and c.fold not in marked:
                mark = {_METADATA: str(_role(c.name))}
                DeltaTable(table.location).alter.set_column_metadata(
                    have.name, mark, commit_properties=_ours()
                )


def _ours() -> CommitProperties:
    """What a commit carries that only prepares a table."""
    return CommitProperties(custom_metadata={"userMetadata": ALTERED})


def _mark(role: str) -> dict[str, str]:
    return {SYSTEM: role, _UNFILLED: "yes"} if role == "deleted" else {SYSTEM: role}


def filled(table: Table, flag: str) -> None:
    """A delete flag is no longer NULL in any row."""
    with conflicts_told(table):
        DeltaTable(table.location).alter.set_column_metadata(
            flag, {_UNFILLED: "no"}, commit_properties=_ours()
        )


@contextmanager
def conflicts_told(table: Table) -> Iterator[None]:
    """A commit that cannot land beside somebody else's becomes an error that is worth another attempt."""
    try:
        yield
    except CommitFailedError as e:
        raise CommitConflict(
            f"{table.label}: somebody else committed at the same moment", hint="run again"
        ) from e


def _never_committed(path: Path) -> bool:
    """A log without a commit: a first write died here, and what it left is not a table."""
    log = path / _LOG
    return log.is_dir() and not any(p.suffix in (".json", ".parquet") for p in log.iterdir())


@contextmanager
def creating(table: Table, *, new: bool) -> Iterator[None]:
    """A first write: its empty log tells a later run whose files these are. If it fails, empty folders go.

    Files stay, and the empty log beside them: they may be those of another runner who makes the same table now.
    """
    if not new:
        yield
        return
    path = Path(table.location)
    (path / _LOG).mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(
            OSError
        ):  # no longer empty; or gone, by another runner whose first write failed too
            if [p.name for p in path.iterdir()] == [_LOG]:
                (path / _LOG).rmdir()
                path.rmdir()


def newest_commit(delta: DeltaTable, app_id: str) -> Commit | None:
    """The newest commit that carries this app id, with the record that it brought along."""
    number = delta.transaction_version(app_id)
    if number is None:
        return None
    for entry in entries(delta):
        record = record_of(entry) or {}
        if record.get("number") == number:
            metrics = entry.get("operationMetrics") or {}
            return Commit(int(entry["version"]), record, metrics=metrics)
    return Commit(delta.version(), {"number": number})


def entries(delta: DeltaTable) -> Iterator[dict[str, Any]]:
    """The entries of the log, the newest first, read as far as they are asked for."""
    given = 0
    for limit in (1, 20, 500, None):
        found = delta.history(limit)
        yield from found[given:]
        if limit is None or len(found) < limit:
            return
        given = len(found)


def commit_text(token: Token, record: dict[str, Any]) -> str:
    """What a commit carries: the token and the batch's record, as one line of JSON."""
    carried = {
        "number": token.number,
        "source": token.source,
        "project": token.project,
        "node": token.node,
        "run_id": token.run_id,
        **record,
    }
    return json.dumps({"strandline": carried}, separators=(",", ":"), default=str)


def record_of(entry: dict[str, Any]) -> dict[str, Any] | None:
    text = entry.get("userMetadata")
    if not isinstance(text, str) or not text.startswith('{"strandline"'):
        return None
    found = json.loads(text)["strandline"]
    return found if isinstance(found, dict) else None


def spark_type(delta_type: Any) -> str:
    """A type of the Delta protocol in Spark's words."""
    if isinstance(delta_type, str):
        return _PRIMITIVES.get(delta_type, delta_type)
    match delta_type["type"]:
        case "array":
            return f"array<{spark_type(delta_type['elementType'])}>"
        case "map":
            return f"map<{spark_type(delta_type['keyType'])},{spark_type(delta_type['valueType'])}>"
        case _:
            inner = ",".join(f"{f['name']}:{spark_type(f['type'])}" for f in delta_type["fields"])
            return f"struct<{inner}>"


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
