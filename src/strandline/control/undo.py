"""Taking a run back: which of its batches still count, what each is put back to, and what is in the way. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from strandline.control.coverage import NO_BATCH, NOTHING, Coverage, Fed
from strandline.control.fence import counting, undone
from strandline.control.ledger import UNDOING, RunRow
from strandline.errors import UsageError, did_you_mean
from strandline.types import Commit


@dataclass(frozen=True)
class Taking:
    """What a run did to one table, to be taken back: one batch, or several where the run tried again."""

    node: str
    table: str
    batches: tuple[RunRow, ...]  # the oldest first
    events: tuple[str, int] | None = (
        None  # the table of a history's events, and the version that the run made of it
    )
    quiet: bool = False  # it changed nothing there: put back beside others, and in nobody's way

    @property
    def last(self) -> RunRow:
        return self.batches[-1]

    @property
    def run_id(self) -> str:
        return self.last.run_id

    @property
    def by(self) -> tuple[str, str]:
        """What the commits of the run carry."""
        return self.run_id, self.last.source

    @property
    def version(self) -> int | None:
        """The first version that the run made of the table."""
        return min((r.version for r in self.batches if r.version is not None), default=None)

    @property
    def made(self) -> list[tuple[str, int]]:
        """The first versions that the run made, and of which tables."""
        mine = [(self.table, self.version)] if self.version is not None else []
        return [*mine, *([self.events] if self.events else [])]

    @property
    def coverage(self) -> Coverage:
        """What the records say afterwards: what the run found, and that it was taken back."""
        mine = self.batches[0].coverage
        before = mine.before or NO_BATCH
        found = before.coverage
        return replace(
            found,
            undoes=self.run_id,
            feed=found.feed or Fed(before.batch),
            back=self.version,
        )


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
    """What a run did that still counts; an error when there is nothing to take back.

    `noted` holds the runs and nodes of which `etl_changes` tells something.
    """
    mine = [r for r in history if r.run_id == run_id and r.status != UNDOING]
    if not mine:
        known = list(dict.fromkeys(r.run_id for r in history if not _remark(r)))
        hint = did_you_mean(run_id, known) or (
            f"the newest is {known[0]}" if known else "there was no run yet"
        )
        raise UsageError(f"there is no run `{run_id}`", hint=hint)
    if undone := next((c for r in mine if r.recorded and (c := r.coverage.undoes)), None):
        raise UsageError(
            f"run `{run_id}` is itself an undo, of run {undone}",
            hint="run again what it has taken back",
        )
    found = _found(history, mine, noted)
    loud = [t for t in found if not t.quiet]
    free = [t for t in found if t.quiet and _moved(t) and not _later(history, t.last, noted)]
    by = sorted(
        {r.run_id for r in history if r.recorded and r.takes_back == run_id and r.coverage.undoes}
    )
    if loud:  # what was quiet beside it goes back too, unless somebody has gone on from there
        return [t for t in found if not t.quiet or not _later(history, t.last, noted)]
    moved = free or ([t for t in found if _moved(t)] if not by else [])
    if moved:
        return [replace(t, quiet=False) for t in moved]
    why = f"is already undone, by run {', '.join(by)}" if by else "has changed nothing"
    hint = "`strandline history` shows what runs have done"
    if not by and (finished := _finished(history, mine)):
        why = f"has only finished the record of run {', '.join(finished)}"
        hint = f"undo that one: strandline undo {finished[0]}"
    raise UsageError(f"run `{run_id}` {why}", hint=hint)


def _found(
    history: Sequence[RunRow], mine: Sequence[RunRow], noted: set[tuple[str, str]]
) -> list[Taking]:
    """What still counts of a run, by node; without what was known to be nothing new before it was looked at."""
    alive, groups = counting(history), dict[str, list[RunRow]]()
    for row in sorted(mine, key=lambda r: r.batch):
        if row.recorded and row.ending in alive:
            groups.setdefault(row.node, []).append(row)
    found = []
    for node, rows in groups.items():
        quiet = not any(_loud(r, noted) for r in rows)
        if not quiet or rows[0].coverage.before is not None:
            found.append(Taking(node, rows[-1].target_table, tuple(rows), quiet=quiet))
    return found


def _remark(row: RunRow) -> bool:
    """Does a row only tell that a run has finished the record of another?"""
    return row.status in ("recovered", UNDOING)


def _finished(history: Sequence[RunRow], mine: Sequence[RunRow]) -> list[str]:
    """The runs that died, and whose records a run has finished: it has left a remark beside their batches."""
    remarks = {(*r.line, r.batch) for r in mine if _remark(r)}
    alive, own = counting(history), {r.run_id for r in mine}
    done = (r for r in history if (*r.line, r.batch) in remarks and r.ending in alive)
    return sorted({r.run_id for r in done} - own)


def in_the_way(
    t: Taking,
    history: Sequence[RunRow],
    past: Mapping[str, Iterable[Commit]],
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
        found += _commits(mine, version, past[table], undone(history))
        found += _consumers(mine, version, history, noted, ids.get(table, ""))
    made_anew = not t.last.coverage.is_of(ids.get(t.table, ""))
    if made_anew and not t.made:  # a batch that committed something meets its commit, or does not
        found.append(Obstacle(t.node, t.table, "the table was made anew since"))
    if any(map(_committed, t.batches)) and not t.made:
        found.append(Obstacle(t.node, t.table, "no log knows the version that the run made"))
    if t.batches[0].coverage.before is None:
        found.append(Obstacle(t.node, t.table, "its record does not say what was before it"))
    for row in _later(history, t.last, noted):
        if not (t.made and _committed(row)):  # a commit was found in the table's own log
            text = f"run {row.run_id} worked on it later, in batch {row.batch}"
            found.append(Obstacle(t.node, t.table, text, row.run_id))
    return found


def _commits(
    t: Taking, version: int, past: Iterable[Commit], back: set[tuple[str, str, str]]
) -> list[Obstacle]:
    found, seen = [], False
    for commit in past:
        record = commit.record
        mine = (commit.run_id, commit.source) == t.by
        if commit.version == version:
            seen = True
            if not mine:
                who = (
                    f"run {record['run_id']}'s"
                    if "run_id" in record
                    else f"another writer's ({commit.operation})"
                )
                text = f"version {version} is {who}: the table was made anew since"
                found.append(Obstacle(t.node, t.table, text, record.get("run_id")))
        if commit.version <= version or mine or not commit.moves_rows:
            continue
        if commit.ours:
            run = commit.run_id
            taken_back = (run, t.last.table_id, commit.source) in back
            if not taken_back and not Coverage.in_commit(record).undoes:
                found.append(
                    Obstacle(
                        t.node, t.table, f"run {run} committed version {commit.version} later", run
                    )
                )
        elif commit.moves_rows:
            found.append(
                Obstacle(
                    t.node,
                    t.table,
                    f"version {commit.version} is another writer's ({commit.operation})",
                )
            )
    if not seen:
        found.append(Obstacle(t.node, t.table, f"its log no longer knows version {version}"))
    return found


def _consumers(
    t: Taking, version: int, history: Sequence[RunRow], noted: set[tuple[str, str]], table_id: str
) -> list[Obstacle]:
    alive, found = counting(history), []
    for row in history:
        pins = row.coverage.sources if row.ending in alive else {}
        read = [pin.version for pin in pins.values() if pin.table_id == table_id]
        if not read or max(read) < version or row.run_id == t.run_id or not _loud(row, noted):
            continue
        text = f"node `{row.node}` consumed version {max(read)} in run {row.run_id}"
        found.append(Obstacle(t.node, t.table, text, row.run_id))
    return found


def _loud(row: RunRow, noted: set[tuple[str, str]]) -> bool:
    """Has a batch changed anything? An undo has only put back what was."""
    return (_committed(row) or (row.run_id, row.node) in noted) and not row.coverage.undoes


def _committed(row: RunRow) -> bool:
    """Has a batch committed something, be it events alone?"""
    return row.version is not None or bool(row.coverage.committed)


def _moved(t: Taking) -> bool:
    """Has a run that changed no row got further: by its marks, its snapshot, the files that it has read?"""
    before = t.batches[0].coverage.before
    now, then = t.last.coverage, before.coverage if before else NOTHING
    if now.mode == "append" and now.whole:  # each extract is a snapshot, an empty one too
        return True
    return (now.marks, now.snapshot, now.files) != (then.marks, then.snapshot, then.files)


def _later(history: Sequence[RunRow], row: RunRow, noted: set[tuple[str, str]]) -> list[RunRow]:
    """The batches of its table and source after this one that count and have changed anything."""
    alive = counting(history)
    later = (r for r in history if r.batch > row.batch and r.line == row.line and _loud(r, noted))
    return [r for r in later if r.ending in alive]
