"""Applies what was prepared, in one order: note → events → commit → read back → record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from strandline.batch.columns import rewritten, writes_anew
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
from strandline.lake import authors_since, commit_of, describe, format_of
from strandline.plan.job import Job
from strandline.plan.worth import feed_worth
from strandline.result import NodeResult
from strandline.run.record import Ending, Recorder
from strandline.run.shelf import Shelf
from strandline.strategy.changes import ChangeSet
from strandline.types import Commit, Counts, Table, TableState


@dataclass(frozen=True)
class Lander:
    """A batch with the table it is to land in, as it was looked at."""

    records: Recorder
    job: Job
    engine: Engine
    this: Batch
    state: TableState | None

    def land(self, ready: Ready, began: float) -> NodeResult:
        """Apply what was prepared: note, commit, record; an error when its deletes were refused."""
        if ready.verdict and (refusal := ready.verdict.refusal):
            raise refusal
        result = self._land(ready, began)
        if ready.quarantine is not None:
            Shelf(self.job, self.engine, self.this).swept(ready.quarantine, self.records.ended())
        return result

    def _land(self, ready: Ready, began: float) -> NodeResult:
        job, state, changes = self.job, self.state, ready.changes
        if state is not None:
            ready = replace(ready, coverage=replace(ready.coverage, table=state.table_id))
        self._note(ready)
        ready = self._set_aside(ready)
        coverage, version, name, said = ready.coverage, None, job.node.name, list(ready.warnings)
        if ready.events is not None:
            now = describe(job.target) if changes.base is not None else None
            if changes.base is not None and (now is None or now.version != changes.base):
                raise _overtaken(
                    job.target, changes.base
                )  # before the events: once they landed, the table follows
            self._land_events(ready.events, coverage)
        commits = self._commits(ready)
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
        known = state.version if state else None
        coverage = replace(coverage, target=version if version is not None else known)
        if state is None and (new := describe(job.target)):
            coverage = replace(coverage, table=new.table_id)
        read = ready.rows_read()
        if advice := feed_worth(job, read):
            log.info("%s: %s", name, advice)
        made = version is not None or ready.events is not None or ready.recovery is not None
        end = Ending(counts, read, version, ready.versions, coverage, said, ready.recovery, made)
        return self.records.record(self.this, began, end)

    def _set_aside(self, ready: Ready) -> Ready:
        """Write the rows that checks have put aside; they count once the batch has come to its end."""
        if ready.quarantine is None:
            return ready
        with step(self.job.node.name, "quarantine"):
            version = Shelf(self.job, self.engine, self.this).put(ready.quarantine)
        return replace(ready, coverage=replace(ready.coverage, quarantine=version))

    def _note(self, ready: Ready) -> None:
        """Note what happens to single rows; of a batch whose events landed before, that was done before them."""
        token = self.this.token
        point("notes.before", token.node)
        if ready.recovery is None:
            notes = [replace(n, run_id=token.run_id, batch=token.batch) for n in ready.notes]
            self.records.store.log_changes(token, notes)
        point("notes.after", token.node)

    def _commits(self, ready: Ready) -> bool:
        """Is there anything to commit? New columns are, unless deletes are held and nothing else is to be written."""
        counts = ready.changes.counts
        if self.state is None or counts is None or counts.any:
            return True
        return bool(ready.changes.evolves) and not counts.held

    def _land_events(self, events: Landing, coverage: Coverage) -> None:
        """Commit the events of a history: from here on the batch has landed, whatever happens to this runner."""
        with step(self.job.node.name, "events"):
            changes, now = (
                events.changes,
                describe(events.table) if events.changes.evolves else None,
            )
            self._commit(events.table, self._whole(events.table, now, changes), coverage)

    def _whole(self, table: Table, state: TableState | None, changes: ChangeSet) -> ChangeSet:
        """The change set; the whole table, where its columns cannot change without all of its rows."""
        if state is None or not writes_anew(self.engine, table, changes):
            return changes
        return rewritten(self.engine, table, state, changes)

    def _unless_taken(self, table: Table, work: Callable[[], Any]) -> Any:
        """Do something to a table; when it fails because another runner holds the number, say that."""
        try:
            return work()
        except Fenced:
            raise
        except StrandlineError:
            token = self.this.token
            landed = describe(table, token.app_id)
            if landed and landed.commit and landed.commit.number >= token.txn:
                raise Fenced(taken(token.node, token.batch, landed.commit.run_id)) from None
            raise

    def _apply(self, ready: Ready) -> tuple[int, list[str]]:
        """The version that was made; and what is to be said of those that came meanwhile, unnoticed."""
        changes, state, target = ready.changes, self.state, self.job.target
        if state is not None and changes.base is None:
            changes = replace(changes, seen=state.version)
        changes = self._whole(target, state, changes)
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
            "coverage": coverage.as_dict(),
            "counts": asdict(changes.counts) if changes.counts else None,
            **({"rewrites": True} if changes.rewrites else {}),
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
            landed = describe(table, token.app_id)
            holder = landed.commit.run_id if landed and landed.commit else None
            raise Fenced(taken(name, token.batch, holder))
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
