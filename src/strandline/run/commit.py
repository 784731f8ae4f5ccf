"""Applies what was prepared, in one order: note → events → evolve → commit → read back → record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from strandline.batch.compare import Landing
from strandline.batch.prepare import Ready
from strandline.control.coverage import Coverage
from strandline.control.ledger import Batch
from strandline.engine.base import Engine
from strandline.errors import (
    CommitConflict,
    DuplicateKeys,
    Fenced,
    Overtaken,
    StrandlineError,
    TableError,
    taken,
)
from strandline.failpoints import point
from strandline.journal import log, step
from strandline.lake import authors_since, commit_of, describe, format_of, newest_from
from strandline.plan.job import Job
from strandline.plan.worth import feed_worth
from strandline.result import NodeResult
from strandline.run.record import Ending, Recorder
from strandline.strategy.changes import METADATA, ChangeSet
from strandline.types import Column, Commit, Counts, Table, TableState


@dataclass(frozen=True)
class Lander:
    """A batch with the table it is to land in, as it was looked at."""

    records: Recorder
    job: Job
    engine: Engine
    this: Batch
    state: TableState | None

    def land(self, ready: Ready, began: float) -> NodeResult:
        """Apply what was prepared: note, evolve, commit, record; an error when its deletes were refused."""
        if ready.verdict and (refusal := ready.verdict.refusal):
            raise refusal
        job, state, changes = self.job, self.state, ready.changes
        if state is not None:
            ready = replace(ready, coverage=replace(ready.coverage, table=state.table_id))
        coverage, version, name, said = ready.coverage, None, job.node.name, list(ready.warnings)
        self._note(ready)
        if ready.events is not None:
            now = describe(job.target) if changes.base is not None else None
            if changes.base is not None and (now is None or now.version != changes.base):
                raise _overtaken(
                    job.target, changes.base
                )  # before the events: once they landed, the table follows
            self._land_events(ready.events, coverage)
        commits = state is None or changes.counts is None or changes.counts.any
        if self._evolves(ready, commits=commits):
            with step(name, "evolve"):
                self._unless_taken(job.target, partial(self._evolve, ready))
        if (
            commits
            and state is not None
            and not state.feed
            and job.followed
            and changes.base is None
        ):
            log.info(
                "%s: the change feed of %s is turned on, for nodes that follow it",
                name,
                job.target.label,
            )
            self._unless_taken(job.target, partial(format_of(job.target).keep_feed, job.target))
        if commits:
            with step(name, "apply"):
                version, overlooked = self._apply(ready)
            said += overlooked
        counts = changes.counts or self._committed()
        coverage = replace(
            coverage, target=version if version is not None else self._version(ready)
        )
        this = self.this
        if state is None and (new := describe(job.target)):
            coverage = replace(coverage, table=new.table_id)
            this = replace(this, records=replace(this.records, table_id=new.table_id))
        read = ready.rows_read()
        if advice := feed_worth(job, read):
            log.info("%s: %s", name, advice)
        made = version is not None or ready.events is not None or ready.recovery is not None
        end = Ending(counts, read, version, ready.versions, coverage, said, ready.recovery, made)
        return self.records.record(this, began, end)

    def _note(self, ready: Ready) -> None:
        """Note what happens to single rows; of a batch whose events landed before, that was done before them."""
        token = self.this.token
        point("notes.before", token.node)
        if ready.recovery is None:
            number, table_id = self.this.number, self.this.records.table_id
            notes = [
                replace(n, run_id=token.run_id, batch=number, table_id=table_id)
                for n in ready.notes
            ]
            self.records.store.log_changes(token, number, notes)
        point("notes.after", token.node)

    def _version(self, ready: Ready) -> int | None:
        """The version of a table to which nothing was committed, but which may have got a system column."""
        now = describe(self.job.target) if self._evolves(ready, commits=False) else self.state
        return now.version if now else None

    def _land_events(self, events: Landing, coverage: Coverage) -> None:
        """Commit the events of a history: from here on the batch has landed, whatever happens to this runner."""
        with step(self.job.node.name, "events"):
            if events.state is not None and events.added:
                self._unless_taken(
                    events.table, partial(self.engine.alter, events.table, events.added, {})
                )
            self._commit(events.table, events.changes, coverage)

    def _evolves(self, ready: Ready, *, commits: bool) -> bool:
        """Does the table get columns first, or a flag filled in? Who writes all of its rows fills it in with them."""
        state, whole = self.state, commits and ready.changes.base is not None
        return state is not None and bool(
            ready.system or ready.added or self._unmarked(ready) or (state.unfilled and not whole)
        )

    def _unmarked(self, ready: Ready) -> list[Column]:
        """The metadata columns that this node wrote before there were marks."""
        state, changes = self.state, ready.changes
        if state is None or changes.base is not None or not self.job.past.memory.known:
            return []
        known = {*state.metadata, *(name.casefold() for name in state.system)}
        return [
            c
            for c in changes.columns
            if c.fold in METADATA and c.name in state.schema and c.fold not in known
        ]

    def _evolve(self, ready: Ready) -> None:
        """Add what the table still lacks: a runner that died or came second may have added some of it.

        A flag that somebody has added is filled in by whoever comes next: the one who added it may be dead, whatever
        the records say.
        """
        name, target = self.job.node.name, self.job.target
        point("alter.before", name)
        now = describe(target)
        added = [c for c in ready.added if not (now and c.name in now.schema)] + self._unmarked(
            ready
        )
        system = {r: c for r, c in ready.system.items() if not (now and r in now.roles)}
        if now and now.unfilled and (flag := now.schema.get(now.roles["deleted"])):
            system["deleted"] = flag
        if added or system:
            self.engine.alter(target, added, system)
        point("alter.after", name)

    def _unless_taken(self, table: Table, work: Callable[[], Any]) -> Any:
        """Do something to a table; when it fails because another runner holds the number, say that."""
        try:
            return work()
        except StrandlineError:
            if refusal := self._lost(table):
                raise refusal from None
            raise

    def _lost(self, table: Table) -> StrandlineError | None:
        """Why a taken number is not ours: another runner has done the same, or has fed the table from elsewhere.

        The second is worth another attempt, from a new look.
        """
        token = self.this.token
        landed = describe(table, token.app_id)
        if landed is None or landed.commit is None or landed.commit.number < token.number:
            return None
        if same := newest_from(table, token.source, token.number - 1):
            return Fenced(taken(token.node, same.run_id))
        other = (
            f"run {landed.commit.run_id} committed to {table.label} from another source meanwhile"
        )
        return CommitConflict(f"{token.node}: {other}; nothing was written here", hint="run again")

    def _apply(self, ready: Ready) -> tuple[int, list[str]]:
        """The version that was made; and what is to be said of those that came meanwhile, unnoticed."""
        changes, state, target = ready.changes, self.state, self.job.target
        if state is not None and changes.base is None:
            changes = replace(changes, seen=state.version)
        try:
            version = self._commit(target, changes, ready.coverage)
        except DuplicateKeys:  # found inside a first commit, which is then not made
            raise ready.duplicates() from None
        record = {"coverage": ready.coverage.as_dict()}
        other = format_of(target).overlooked(target, version, changes, self.this.token, record)
        if other is None:
            return version, []
        run_id = self.this.token.run_id
        said = f"{other}, in the moment of the commit: what it did to the rows of version {version} was not looked at"
        told = f"{said}; `strandline undo {run_id}` takes this run back, and the next one compares again"
        log.warning("%s: %s", self.job.node.name, told)
        return version, [told]

    def _commit(self, table: Table, changes: ChangeSet, coverage: Coverage) -> int:
        """One commit under the batch's token; an error when the number turns out to be another runner's."""
        name, token = self.job.node.name, self.this.token
        record = {
            "batch": self.this.number,
            "coverage": coverage.as_dict(),
            "counts": asdict(changes.counts) if changes.counts else None,
        }
        point("commit.before", name)
        try:
            self._unless_taken(table, partial(self.engine.apply, table, changes, token, record))
        except Fenced:
            if not commit_of(table, token):  # else another runner has finished this batch for us
                raise
        except CommitConflict as e:
            if changes.base is None:
                raise
            raise _overtaken(table, changes.base) from e
        point("commit.after", name)
        mine = commit_of(table, token)
        if mine is None:
            raise self._lost(table) or Fenced(taken(name, None))
        if changes.base is not None and mine.parent != changes.base:
            others = [c for c in authors_since(table, changes.base) if token.run_id not in c]
            raise TableError(
                f"{table.label}: version {mine.version} was made from version {changes.base}, and is not the "
                f"next: {'; '.join(others)} came in between, and may be lost",
                hint="compare the versions named, and write again what is missing",
            )
        point("readback.after", name)
        return mine.version

    def _committed(self) -> Counts:
        """How many rows a lazily evaluated commit wrote, from its own metrics."""
        mine = commit_of(self.job.target, self.this.token)
        return _counted(mine) if mine else Counts()


def _overtaken(table: Table, base: int) -> Overtaken:
    others = "; ".join(authors_since(table, base)) or "the table is gone"
    return Overtaken(
        f"{table.label}: it is no longer at version {base} ({others}); nothing was written here",
        hint="ask for it again: it looks at the table anew",
    )


def _counted(commit: Commit) -> Counts:
    """The counts a commit carries, or those the table format measured while it wrote."""
    carried = commit.record.get("counts")
    return Counts(**carried) if carried else measured(commit.metrics)


def measured(metrics: Mapping[str, Any]) -> Counts:
    """The rows that a commit wrote, in the words of either writer."""
    return Counts(inserted=int(metrics.get("numOutputRows") or metrics.get("num_added_rows") or 0))
