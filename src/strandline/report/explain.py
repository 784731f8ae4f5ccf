"""The story of one row: each batch that inserted, changed, deleted, revived or held it, with mode and evidence.

What was done to single rows is in `etl_changes`; what the row looked like before and after is in the table's own past.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from strandline.control.coverage import Coverage
from strandline.control.ledger import ChangeRow, table_key
from strandline.errors import ReadError, UsageError
from strandline.lake import commits, describe, format_of
from strandline.lake.base import Key
from strandline.plan.job import Job
from strandline.sql.values import exact, spelled_bytes, to_text
from strandline.strategy.changes import METADATA
from strandline.types import Commit, Schema

if TYPE_CHECKING:
    from strandline.control.store import DeltaStore

_NOTES = {
    "hold": "held",
    "reject": "rejected",
    "missing": "missing",
    "seen": "seen",
}
_SKIPPED = "unknown"


@dataclass(frozen=True)
class Event:
    """One thing that happened to a row."""

    at: datetime
    event: str
    reason: str
    run_id: str | None = None
    batch: int | None = None
    version: int | None = None
    mode: str | None = None
    changes: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # column → before, after
    undone_by: str | None = None  # the run that took it back


@dataclass(frozen=True)
class Story:
    """A row's story, and the row as it is now."""

    node: str
    table: str
    key: Mapping[str, str | None]
    now: list[dict[str, Any]]
    events: list[Event]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "events": [asdict(e) for e in self.events]}


def explain(job: Job, store: DeltaStore, key: Mapping[str, Any]) -> Story:
    """What became of the row with these keys."""
    given = _keys(job, key)
    past = commits(job.target)
    if not past:
        raise ReadError(
            f"there is no table {job.target.label} yet", hint=f"run node `{job.node.name}` first"
        )
    state = describe(job.target)
    schema, roles = (state.schema, state.roles) if state else (Schema(()), {})
    tables = {table_key(job.target, state), table_key(job.target, None)}
    value, undone = _typed(given, schema), _undone(store, tables, past)
    mine = (c for c in store.changes(also=undone) if c.table_id in tables)
    noted = [c for c in mine if _is(json.loads(c.key), value, schema)]
    events, now = _from_table(job, past, value, noted, roles)
    events += [
        Event(c.at, _NOTES[c.verb], c.reason, c.run_id, c.batch, None, c.mode)
        for c in noted
        if c.verb in _NOTES
    ]
    events = [replace(e, undone_by=undone.get(e.run_id or "")) for e in events]
    events.sort(key=lambda e: (e.batch if e.batch is not None else 0, e.version or 0, e.at))
    return Story(job.node.name, job.target.label, given, now, events)


def _undone(store: DeltaStore, tables: set[str], past: Sequence[Commit]) -> dict[str, str]:
    """The runs whose batches of a table were undone, each with the run that did it, as the records and it say."""
    rows = [(r.coverage, r.run_id) for r in store.runs() if r.table_id in tables and r.recorded]
    rows += [(Coverage.in_commit(c.record), str(c.record.get("run_id"))) for c in past]
    return {coverage.undoes: run_id for coverage, run_id in rows if coverage.undoes}


def _keys(job: Job, key: Mapping[str, Any]) -> dict[str, str | None]:
    wanted = {k.casefold(): k for k in job.node.write.keys}
    if not wanted:
        raise UsageError(
            f"node `{job.node.name}` writes with mode: {job.node.write.mode}, which knows no keys"
        )
    given = {k.casefold(): v for k, v in key.items()}
    if given.keys() != wanted.keys():
        shown = " ".join(f"--key {k}=…" for k in job.node.write.keys)
        raise UsageError(
            f"the keys of node `{job.node.name}` are {', '.join(job.node.write.keys)}",
            hint=f"give {shown}",
        )
    return {wanted[k]: _spelled(v) for k, v in given.items()}


def _spelled(value: Any) -> str | None:
    """A value of Python, or as the command line writes it: there NULL is NULL, and 'NULL' the text."""
    match value:
        case None | "NULL":
            return None
        case "'NULL'":
            return "NULL"
        case bool():
            return str(value).lower()
        case bytes():
            return spelled_bytes(value)
    return to_text(value)


def _typed(key: Mapping[str, str | None], schema: Schema) -> Key:
    """The key's values; one that its column cannot hold is a slip of the pen, not a row that is not there."""
    found: dict[str, Any] = {}
    for name, text in key.items():
        column = schema.get(name)
        try:
            found[name] = exact(text, column.type) if column and text is not None else text
        except ValueError:
            kind = column.type if column else ""
            hint = f"`{name}` is a {kind}; NULL stands for NULL"
            raise UsageError(f"the key {name}={text} is not a {kind}", hint=hint) from None
    return found


def _is(found: Mapping[str, Any], key: Key, schema: Schema) -> bool:
    """Is a key that was noted the same value? It was noted as text, in the type that it had then."""
    have = {k.casefold(): None if v is None else str(v) for k, v in found.items()}
    try:
        return _typed({k: have[k.casefold()] for k in key}, schema) == key
    except (KeyError, UsageError):
        return False


def _from_table(
    job: Job, past: Sequence[Commit], key: Key, noted: Sequence[ChangeRow], roles: Mapping[str, str]
) -> tuple[list[Event], list[dict[str, Any]]]:
    """The events that the table's own versions tell, and the row as it is now."""
    events: list[Event] = []
    before: list[dict[str, Any]] | None = []
    reasons = {
        (c.run_id, c.batch): c for c in noted if c.verb in ("delete", "reopen", "insert", "update")
    }
    for commit in past:
        after = _ordered(format_of(job.target).rows_at(job.target, commit.version, key), roles)
        if after is None:
            before = None
            continue
        if before is None:
            events.append(
                Event(commit.at, _SKIPPED, "older versions of the table are no longer there")
            )
        elif told := _told(before, after, roles):
            events.append(_event(commit, told, (before, after), reasons, roles))
        before = after
    if before is None:
        raise _lost(job, past[-1].version)
    return events, before


def _lost(job: Job, newest: int) -> ReadError:
    """The newest version cannot be read: nobody knows whether the row is there, so nobody may say that it is not."""
    why = format_of(job.target).unreadable(job.target, newest) or f"version {newest} cannot be read"
    return ReadError(
        f"{job.target.label}: {why}, and it is the newest: what became of the row cannot be told",
        hint="put the files of the table back from a backup, or remove its folder and let a run make it anew",
    )


def _ordered(
    rows: list[dict[str, Any]] | None, roles: Mapping[str, str]
) -> list[dict[str, Any]] | None:
    """The versions of a row, the newest last."""
    begins = roles.get("valid_from")
    return sorted(rows, key=lambda r: r[begins]) if rows and begins in rows[0] else rows


def _event(
    commit: Commit,
    told: str,
    rows: tuple[list[dict[str, Any]], list[dict[str, Any]]],
    reasons: Mapping[tuple[str, int], ChangeRow],
    roles: Mapping[str, str],
) -> Event:
    run_id, batch = commit.record.get("run_id"), commit.record.get("batch")
    row = reasons.get((str(run_id), int(batch or 0)))
    undoes = Coverage.in_commit(commit.record).undoes
    if undoes:
        told, reason = "undone", f"run {undoes} was undone"
    elif not commit.record:
        reason = f"a commit of somebody else ({commit.operation})"
    else:
        reason = row.reason if row else "read from the source"
    changed = _changed(*rows, roles) if told != "inserted" and all(rows) else {}
    return Event(
        commit.at, told, reason, run_id, batch, commit.version, row.mode if row else None, changed
    )


def _told(
    before: list[dict[str, Any]], after: list[dict[str, Any]], roles: Mapping[str, str]
) -> str | None:
    """What happened between two versions of the table, as far as this key is concerned."""
    if _same(before, after):
        return None
    if not before:
        return "inserted"
    was, is_ = (any(_alive(r, roles) for r in rows) for rows in (before, after))
    if was and not is_:
        return "deleted"
    return "revived" if is_ and not was else "changed"


def _same(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> bool:
    """A column that was added and is NULL changes nothing."""

    def told(rows: list[dict[str, Any]]) -> list[str]:
        return sorted(
            repr(sorted((k, repr(v)) for k, v in r.items() if v is not None)) for r in rows
        )

    return told(before) == told(after)


def _alive(row: Mapping[str, Any], roles: Mapping[str, str]) -> bool:
    if "is_current" in roles:
        return bool(row.get(roles["is_current"]))
    return not row.get(roles.get("deleted", ""))


def _changed(
    before: list[dict[str, Any]], after: list[dict[str, Any]], roles: Mapping[str, str]
) -> dict[str, Sequence[Any]]:
    """The columns of the newest row that changed; metadata and the hash aside."""
    old, new = before[-1], after[-1]
    quiet = {*METADATA, roles.get("row_hash", "").casefold()}
    return {
        k: (old.get(k), v) for k, v in new.items() if old.get(k) != v and k.casefold() not in quiet
    }
