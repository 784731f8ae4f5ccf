"""Taking a run back: which of its batches still count, what each is put back to, and what is in the way. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strandline.control.fence import KNOWN, MADE, RUN, counting
from strandline.control.ledger import MODE, TABLE, RunRow
from strandline.errors import UsageError, did_you_mean

UNDOES = "undoes"  # in a batch's coverage: the run that it takes back
FEED = "feed"  # and the batch whose rows are in the table again; null: as before the first

BACK = "back"  # and the version of the table that it takes back; null: the batch had not touched it

# what a table format does to a table without touching a row
HARMLESS = (
    "OPTIMIZE", "VACUUM", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "SET TABLE PROPERTIES", "ADD COLUMN",
    "CHANGE COLUMN", "UPGRADE PROTOCOL", "COMPUTE STATS", "CLUSTER BY", "ADD FEATURE", "UPDATE FIELD METADATA",
)  # fmt: skip


@dataclass(frozen=True)
class Taking:
    """One batch to take back, and the batch before it, whose state comes again."""

    node: str
    table: str
    batch: RunRow
    before: RunRow | None
    events: tuple[str, int] | None = None  # the table of a history's events, and the version that the batch made of it
    carried: Mapping[str, Any] | None = None  # the record of the commit before, where the history does not know it

    @property
    def made(self) -> list[tuple[str, int]]:
        """The versions that the batch made, and of which tables."""
        mine = [(self.table, self.batch.version)] if self.batch.version is not None else []
        return [*mine, *([self.events] if self.events else [])]

    @property
    def coverage(self) -> dict[str, Any]:
        """What the records say afterwards: as before the batch, and that it was taken back."""
        record = self.carried or {}
        kept = _coverage(self.before) if self.before else record.get("coverage", {})
        feed = kept.get(FEED, self.before.batch if self.before else record.get("batch"))
        rest = {k: v for k, v in kept.items() if k not in (RUN, KNOWN, MADE, BACK)}
        return {**rest, UNDOES: self.batch.run_id, FEED: feed}


@dataclass(frozen=True)
class Obstacle:
    """Something that an undo would destroy, or cannot do without."""

    node: str
    table: str
    reason: str
    run_id: str | None = None

    def __str__(self) -> str:
        return f"{self.table}: {self.reason}"


def takings(history: Sequence[RunRow], run_id: str, noted: set[tuple[str, str]]) -> list[Taking]:
    """The batches of a run that still count; an error when there is nothing to take back.

    `noted` holds the runs and nodes of which `etl_changes` tells something.
    """
    mine = [r for r in history if r.run_id == run_id]
    if not mine:
        known = list(dict.fromkeys(r.run_id for r in history if r.status != "recovered"))  # a remark is no run
        hint = did_you_mean(run_id, known) or (f"the newest is {known[0]}" if known else "there was no run yet")
        raise UsageError(f"there is no run `{run_id}`", hint=hint)
    if undone := next((c for r in mine if r.counts and (c := _coverage(r).get(UNDOES))), None):
        raise UsageError(f"run `{run_id}` is itself an undo, of run {undone}", hint="run again what it has taken back")
    alive = counting(history)
    found = [r for r in mine if r.counts and (r.run_id, r.node, r.batch) in alive]
    loud = [r for r in found if _loud(r, noted)]
    if not loud and (moved := [r for r in found if _moved(r, _before(history, r))]):
        return [Taking(r.node, r.target_table, r, _before(history, r)) for r in moved]
    if not loud:
        by = sorted({r.run_id for r in history if r.counts and r.takes_back == run_id})
        why = f"is already undone, by run {', '.join(by)}" if by else "has changed nothing"
        hint = "`strandline history` shows what runs have done"
        if not by and (finished := _finished(history, mine)):
            why = f"has only finished the record of run {', '.join(finished)}"
            hint = f"undo that one: strandline undo {finished[0]}"
        raise UsageError(f"run `{run_id}` {why}", hint=hint)
    taken = [Taking(r.node, r.target_table, r, _before(history, r)) for r in found]
    return [t for t in taken if t.batch in loud or not _later(history, t.batch, noted)]


def _finished(history: Sequence[RunRow], mine: Sequence[RunRow]) -> list[str]:
    """The runs that died, and whose records a run has finished: it has left a remark beside their batches."""
    remarks = {(r.node, r.batch) for r in mine if r.recovery and not r.counts}
    alive, own = counting(history), {r.run_id for r in mine}
    done = (r for r in history if (r.node, r.batch) in remarks and (r.run_id, r.node, r.batch) in alive)
    return sorted({r.run_id for r in done} - own)


def in_the_way(
    t: Taking,
    history: Sequence[RunRow],
    past: Mapping[str, Iterable[Any]],
    noted: set[tuple[str, str]],
    ids: Mapping[str, str],
) -> list[Obstacle]:
    """Later runs that changed these tables or consumed a version the run made, and commits of somebody else.

    `past` holds the commits of each table, the oldest first; `ids` says which table it is, whatever others call it.
    The history is that of all projects. Quiet runs are not in the way.
    """
    found = []
    for table, version in t.made:
        mine = replace(t, table=table)
        found += _commits(mine, version, past[table], _taken_back(history))
        found += _consumers(mine, version, history, noted, ids.get(table, ""))
    made_anew = _coverage(t.batch).get(TABLE) not in (None, ids.get(t.table))
    if made_anew and not t.made:  # a batch that committed something meets its commit, or does not
        found.append(Obstacle(t.node, t.table, "the table was made anew since"))
    if _committed(t.batch) and not t.made:
        found.append(Obstacle(t.node, t.table, "no log knows the version that the run made"))
    for row in _later(history, t.batch, noted):
        if not (t.made and _committed(row)):  # a commit was found in the table's own log
            text = f"run {row.run_id} worked on it later, in batch {row.batch}"
            found.append(Obstacle(t.node, t.table, text, row.run_id))
    return found


def _commits(t: Taking, version: int, past: Iterable[Any], back: set[tuple[str, str]]) -> list[Obstacle]:
    found, seen = [], False
    for commit in past:
        record = commit.record
        if commit.version == version:
            seen = True
            if (record.get("run_id"), record.get("batch")) != t.batch.by:
                who = f"run {record['run_id']}'s" if "run_id" in record else f"somebody else's ({commit.operation})"
                text = f"version {version} is {who}: the table was made anew since"
                found.append(Obstacle(t.node, t.table, text, record.get("run_id")))
        if commit.version <= version or record.get("alter"):
            continue
        if "app_id" in record:
            run, node = str(record.get("run_id")), str(record["app_id"]).rpartition("/")[2]
            if (run, node) not in back and not record.get("coverage", {}).get(UNDOES):
                found.append(Obstacle(t.node, t.table, f"run {run} committed version {commit.version} later", run))
        elif not commit.operation.startswith(HARMLESS):
            found.append(Obstacle(t.node, t.table, f"version {commit.version} is somebody else's ({commit.operation})"))
    if not seen:
        found.append(Obstacle(t.node, t.table, f"its log no longer knows version {version}"))
    return found


def _consumers(
    t: Taking, version: int, history: Sequence[RunRow], noted: set[tuple[str, str]], table_id: str
) -> list[Obstacle]:
    alive, found = counting(history), []
    for row in history:
        pins = _coverage(row).get("sources", {}) if (row.run_id, row.node, row.batch) in alive else {}
        read = [pin[1] for pin in pins.values() if pin[0] == table_id]
        if not read or max(read) < version or row.run_id == t.batch.run_id or not _loud(row, noted):
            continue
        text = f"node `{row.node}` consumed version {max(read)} in run {row.run_id}"
        found.append(Obstacle(t.node, t.table, text, row.run_id))
    return found


def _coverage(row: RunRow) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(row.coverage or "{}")
    return found


def _taken_back(history: Sequence[RunRow]) -> set[tuple[str, str]]:
    return {(r.takes_back, r.node) for r in history if r.counts and r.takes_back}


def _loud(row: RunRow, noted: set[tuple[str, str]]) -> bool:
    """Has a batch changed anything? An undo has only put back what was."""
    return (_committed(row) or (row.run_id, row.node) in noted) and not _coverage(row).get(UNDOES)


def _committed(row: RunRow) -> bool:
    """Has a batch committed something, be it events alone?"""
    return row.version is not None or bool(_coverage(row).get(MADE))


def _moved(row: RunRow, before: RunRow | None) -> bool:
    """Has a batch that changed no row got further: by its marks, its snapshot, the files that it has read?"""
    now, then = _coverage(row), _coverage(before) if before else {}
    if (now.get(MODE), now.get("kind")) == ("append", "full"):  # each extract is a snapshot, an empty one too
        return not now.get(UNDOES)
    return not now.get(UNDOES) and any(now.get(k) != then.get(k) for k in ("marks", "snapshot", "files"))


def _same_table(one: RunRow, other: RunRow) -> bool:
    """Are these batches of one table? A table that was made anew is another one, whatever it is called."""
    ids = _coverage(one).get(TABLE), _coverage(other).get(TABLE)
    if None not in ids:
        return bool(ids[0] == ids[1])
    return (one.project, one.target_table) == (other.project, other.target_table)


def _before(history: Sequence[RunRow], row: RunRow) -> RunRow | None:
    """The batch of the table before this one, of those that count and are no undo; none when it made the table."""
    alive = counting(history) if row.version != 0 else set()
    older = [r for r in history if r.batch < row.batch and _same_table(r, row) and not _coverage(r).get(UNDOES)]
    return max((r for r in older if (r.run_id, r.node, r.batch) in alive), key=lambda r: r.batch, default=None)


def _later(history: Sequence[RunRow], row: RunRow, noted: set[tuple[str, str]]) -> list[RunRow]:
    """The batches of the table after this one that count and have changed anything."""
    alive = counting(history)
    later = (r for r in history if r.batch > row.batch and _same_table(r, row) and _loud(r, noted))
    return [r for r in later if (r.run_id, r.node, r.batch) in alive]
