"""Runs one node: the only place where effects are ordered.

recover → read → transform → reconcile → judge → evolve → apply → record. Killed anywhere, the next run finds out from
the table itself whether the batch landed, and finishes the record or does the batch again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from strandline import history, restore, slices
from strandline.batch import Landing
from strandline.config.deletes import DeleteDetectionMode
from strandline.config.resolve import redact
from strandline.control import fence, ledger
from strandline.control.holds import open_holds
from strandline.control.ledger import Batch, ChangeRow, ControlRow, RunRow, Store
from strandline.control.undo import BACK, FEED, UNDOES
from strandline.engine import delta_feed, delta_log
from strandline.engine.base import Engine
from strandline.engine.delta_past import since
from strandline.errors import (
    CommitConflict,
    DuplicateKeys,
    Fenced,
    Overtaken,
    StrandlineError,
    TableError,
    internal,
    taken,
)
from strandline.faults import point
from strandline.job import Feed, Job, Planned
from strandline.journal import log, step, timings
from strandline.plan.worth import feed_worth
from strandline.ready import Entry, Ready, plan_node, prepare, readied
from strandline.result import NodeResult, PlannedNode
from strandline.strategy.changes import ChangeSet, Counts, Removals
from strandline.switches import enabled
from strandline.types import Commit, Table, TableState, Token

Describe = Callable[..., TableState | None]  # `Engine.describe`, of an engine or of the table format alone


@dataclass(frozen=True)
class Ending:
    """How a batch ended: what the records will say of it."""

    counts: Counts
    rows_read: int | None
    version: int | None
    versions: Mapping[str, int] = field(default_factory=dict)
    coverage: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    recovery: str | None = None
    made: bool = False  # did it commit anything, be it events alone?


@dataclass(frozen=True)
class Landed:
    """The newest batch in a node's own tables: its first commit, and whether the table itself shows it."""

    commit: Commit
    state: TableState | None
    folded: bool = True


@dataclass(frozen=True)
class Runner:
    """What all nodes of one run share."""

    store: Store
    run_id: str
    secrets: Sequence[str] = ()  # never recorded, whatever a driver says

    def run(self, job: Job, engine: Engine) -> NodeResult:
        """One batch of one node; raises what went wrong, after it is recorded."""
        timings()
        began = time.monotonic()
        point("node.start", job.node.name)
        records, state, recovered = self.settle(job, engine.describe, began, engine)
        if recovered and recovered.version is not None and job.node.write.mode == "append":
            return recovered  # its rows are there: reading the source again would double them
        this = self.after(job, records, self.landed(job, engine.describe, state))
        job = self.remembering(job, this)
        if self._nothing_new(job, engine, this, state):
            held = Counts(held=int(this.coverage().get("held", 0)))
            return self._record(this, began, Ending(held, 0, None, coverage=this.coverage()))
        with self.announced(job, this, began):
            state = self._mended(job, engine, this, state)
            return self._batch(job, engine, this, state, began)

    def token(self, job: Job) -> Token:
        """The token of this run for a node, still without a number."""
        return Token(job.project.config.project, job.node.name, 0, self.run_id)

    def settle(
        self, job: Job, describe: Describe, began: float, engine: Engine | None = None
    ) -> tuple[list[ControlRow], TableState | None, NodeResult | None]:
        """The records and the table of a node, after the records of batches whose runners died are finished.

        Records are read before the table, never after it: a number may be older than the table that it is meant for,
        and is then taken; a younger one would let a batch land on a table that it has not seen.
        """
        recovered = None
        while True:
            records, state, landed, found = self._look(job, describe)
            if found is None:
                return records, state, recovered
            if landed and not landed.folded and not found.logged:
                recovered = self._roll_forward(job, engine, records, landed, began)
            else:
                recovered = self._finish(job, records, found, began)

    def _look(
        self, job: Job, describe: Describe
    ) -> tuple[list[ControlRow], TableState | None, Landed | None, fence.Found | None]:
        records = self.store.control(job.node.name)
        state = describe(job.target, self.token(job).app_id)
        ended = self.store.ended(self.token(job).app_id, job.node.name, ledger.finished(records))
        landed = self.landed(job, describe, state)
        return records, state, landed, fence.found(records, landed.commit if landed else None, ended)

    def unrecorded(self, job: Job, describe: Describe) -> RunRow | None:
        """A batch that landed while its runner died, as `settle` would log it; nothing is written."""
        records, _, landed, found = self._look(job, describe)
        if found is None or landed is None or found.logged:
            return None
        if not landed.folded:
            raise self._not_shown(job, landed.commit)
        this, end = self._found(job, records, found)
        return self._row(this, _result(this, time.monotonic(), end), _ended(this, end).coverage, None, found.told)

    def _finish(self, job: Job, records: Sequence[ControlRow], found: fence.Found, began: float) -> NodeResult:
        """Write the record of a batch that came to its end while its runner died."""
        point("recover.before", job.node.name)
        this, end = self._found(job, records, found)
        result = self._record(this, began, end)
        if found.logged:  # the history has the batch already: what was done about it is told beside it
            told = replace(result, status="unchanged", warnings=[])
            self._log(replace(this, token=replace(this.token, run_id=self.run_id)), told, {}, None, found.told)
        point("recover.after", job.node.name)
        return result

    def _found(self, job: Job, records: Sequence[ControlRow], found: fence.Found) -> tuple[Batch, Ending]:
        """A batch whose runner died, under its own numbers, and how it ended."""
        this = self.after(job, records, None)
        made = bool(found.coverage.get(fence.MADE, found.version is not None))
        number = int(found.coverage.get(fence.KNOWN, found.batch)) + (not made)
        token = replace(this.token, batch=found.batch, number=number, run_id=found.run_id or this.token.run_id)
        versions = versions_of(job, found.coverage)
        counts = Counts(**found.counts) if found.counts else _measured(found.metrics)
        end = Ending(counts, found.rows_read, found.version, versions, found.coverage, (found.told,), found.told, made)
        return replace(this, token=token), end

    @contextmanager
    def announced(self, job: Job, this: Batch, began: float, undoes: str | None = None) -> Iterator[None]:
        """A batch at work: announced before; when it fails, whatever the fault, it does not stay RUNNING for ever."""
        name = job.node.name
        point("running.before", name)
        if not self.store.put(ledger.control_rows(this, "RUNNING", _now())):
            raise Fenced(taken(name, this.token.batch, fence.holder(self.store.control(name))))
        try:
            point("running.after", name)
            yield
        except Fenced:
            raise
        except Exception as e:
            self._fail(job, this, e if isinstance(e, StrandlineError) else internal(e), began, undoes)
            raise

    def _mended(self, job: Job, engine: Engine, this: Batch, state: TableState | None) -> TableState | None:
        """What a runner left that died while it gave the table new columns: a flag that is not filled in."""
        died = ledger.unfinished(list(this.previous.values()))
        if state is None or not died or "deleted" not in state.roles:
            return state
        flag = state.schema.get(state.roles["deleted"])
        engine.alter(job.target, (), {"deleted": flag} if flag else {})
        return engine.describe(job.target, this.token.app_id)

    def plan(self, job: Job, engine: Engine) -> tuple[PlannedNode, tuple[Planned, Entry] | None]:
        """What a run would do to this node's table, the table as it would be, and all that a run needs for it.

        Nothing but the first when an append has landed and only its record is missing. The store is a `Foreseen`.
        """
        began, recovered = time.monotonic(), None
        if job.events is None:  # those that nobody has folded are planned with the others
            _, _, recovered = self.settle(job, engine.describe, began)
        job, state = self.next_job(job), engine.describe(job.target)
        first = [f"a run first finishes the record of batch {job.batch - 1}, whose runner died"] if recovered else []
        if recovered and recovered.version is not None and job.node.write.mode == "append":
            return PlannedNode(job.node.name, "unchanged", seconds=recovered.seconds, warnings=first), None
        result, planned, ready = plan_node(job, engine, state)
        result = replace(result, warnings=[*first, *result.warnings])
        return result, (planned, Entry(job.node.name, job.batch, state, ready))

    def follow(self, job: Job, engine: Engine, entry: Entry) -> NodeResult:
        """Apply one node of a plan, exactly; an error when anything it was made from has moved."""
        began = time.monotonic()
        records, state, _ = self.settle(job, engine.describe, began, engine)
        this = self.after(job, records, self.landed(job, engine.describe, state))
        entry.check(job, this.token.batch, state, engine.describe)
        ready = replace(entry.ready, coverage=entry.coverage(job, engine.describe))
        with self.announced(job, this, began):
            return self.land(job, engine, this, state, ready, began)

    def next_job(self, job: Job) -> Job:
        """The job of a node's next batch, with what earlier runs left."""
        return self.remembering(job, self._next(job))

    def _next(self, job: Job) -> Batch:
        return self.after(job, self.store.control(job.node.name), None)

    def after(self, job: Job, records: Sequence[ControlRow], landed: Landed | None) -> Batch:
        """The batch that follows on these records, to be committed to the table that this landed in."""
        token = replace(self.token(job), number=max(fence.known(records), landed.commit.number if landed else 0) + 1)
        loads = {i.label: i.read.feed.load_id for i in job.inputs if i.read.feed and i.read.feed.load_id}
        sources = [i.label for i in job.inputs]
        return replace(ledger.next_batch(records, token, job.target.label, sources, _now()), loads=loads)

    def reject(self, job: Job, holds: Sequence[ChangeRow], describe: Describe) -> NodeResult:
        """Leave held deletes alone until their keys are seen again; a batch of its own, without a data commit."""
        began = time.monotonic()
        point("reject.before", job.node.name)
        records, state, _ = self.settle(job, describe, began)
        this = self.after(job, records, self.landed(job, describe, state))
        batch = this.token.batch
        # after the records: somebody may have decided since, and whoever decides from here on takes this number
        still = open_holds(self.store.changes(job.node.name), holds[0].run_id).get(job.node.name, [])
        if not still:
            raise Overtaken(
                f"{job.node.name}: run {holds[0].run_id} holds no deletes any more: somebody decided on them "
                "meanwhile; nothing was written here",
                hint="`strandline history` shows what runs have done",
            )
        holds = still
        reason = f"rejected by a person; held by run {holds[0].run_id}"
        self.store.log_changes(
            [replace(h, run_id=self.run_id, batch=batch, verb="reject", reason=reason, at=_now()) for h in holds]
        )
        coverage = {k: v for k, v in this.memory().items() if k != UNDOES}
        coverage["held"] = max(0, int(coverage.get("held", 0)) - len(holds))
        note = f"{len(holds)} held deletes are rejected"
        return self._record(this, began, Ending(Counts(held=coverage["held"]), 0, None, {}, coverage, (note,)))

    def remembering(self, job: Job, this: Batch) -> Job:
        """The job with what earlier runs left."""
        memory = this.memory()
        notebook = self.store.notebook() if memory.get("notes") else None
        past = replace(job.past, memory=memory, feed=self._feed, notebook=notebook)
        return replace(job, batch=this.token.batch, past=past)

    def _feed(self, node: str) -> Feed | None:
        """How a node last fed its table."""
        rows = self.store.control(node)
        if not rows:
            return None
        covered = max(rows, key=lambda r: r.updated_at).coverage
        coverage = json.loads(covered) if covered else {}
        batch = coverage.get(FEED, ledger.finished(rows))  # after an undo: the batch whose rows are there again
        return Feed(batch, coverage) if batch is not None else None

    def _batch(self, job: Job, engine: Engine, this: Batch, state: TableState | None, began: float) -> NodeResult:
        outcome = prepare(job, engine, state)
        with step(job.node.name, "note"):
            ready = readied(job, engine, outcome)
        return self.land(job, engine, this, state, ready, began)

    def land(
        self, job: Job, engine: Engine, this: Batch, state: TableState | None, ready: Ready, began: float
    ) -> NodeResult:
        """Apply what was prepared: note, evolve, commit, record."""
        changes, coverage, version, name = ready.changes, dict(ready.coverage), None, job.node.name
        point("notes.before", name)
        self.store.log_changes([replace(n, run_id=self.run_id, batch=this.token.batch) for n in ready.notes])
        point("notes.after", name)
        if ready.events is not None:
            now = engine.describe(job.target) if changes.base is not None else None
            if changes.base is not None and (now is None or now.version != changes.base):
                raise _overtaken(job.target, changes.base)  # before the events: once they landed, the table follows
            self._land_events(job, engine, this, ready.events, coverage)
        commits = state is None or changes.counts is None or changes.counts.any
        if state is not None and (ready.system or (ready.added and commits)):
            with step(name, "evolve"):
                evolve = partial(self._evolve, job, engine, ready, commits=commits)
                self._unless_taken(job, engine, this, job.target, evolve)
        if commits and state is not None and not state.feed and job.followed and changes.base is None:
            log.info("%s: the change feed of %s is turned on, for nodes that follow it", name, job.target.label)
            delta_feed.enable(job.target)
        if commits:
            with step(name, "apply"):
                version = self._apply(job, engine, this, state, ready)
        counts = changes.counts or self._committed(job, this)
        coverage["target"] = version if version is not None else self._version(job, engine, state, ready)
        read = ready.rows_read()
        if advice := feed_worth(job, read):
            log.info("%s: %s", job.node.name, advice)
        made = version is not None or ready.events is not None or ready.recovery is not None
        end = Ending(counts, read, version, ready.versions, coverage, ready.warnings, ready.recovery, made)
        return self._record(this, began, end)

    def _version(self, job: Job, engine: Engine, state: TableState | None, ready: Ready) -> int | None:
        """The version of a table to which nothing was committed, but which may have got a system column."""
        now = engine.describe(job.target) if ready.system else state
        return now.version if now else None

    def _land_events(self, job: Job, engine: Engine, this: Batch, events: Landing, coverage: Mapping[str, Any]) -> None:
        """Commit the events of a history: from here on the batch has landed, whatever happens to this runner."""
        with step(job.node.name, "events"):
            if events.state is not None and events.added:
                engine.alter(events.table, events.added, {})
            self._commit(job, engine, this, events.table, events.changes, coverage)

    @staticmethod
    def _evolve(job: Job, engine: Engine, ready: Ready, *, commits: bool) -> None:
        """Add what the table still lacks: a runner that died or came second may have added some of it."""
        point("alter.before", job.node.name)
        now = engine.describe(job.target)
        added = [c for c in ready.added if commits and not (now and c.name in now.schema)]
        system = {r: c for r, c in ready.system.items() if not (now and r in now.roles)}
        if added or system:
            engine.alter(job.target, added, system)
        point("alter.after", job.node.name)

    def _unless_taken(self, job: Job, engine: Engine, this: Batch, table: Table, work: Callable[[], Any]) -> Any:
        """Do something to a table; when it fails because another runner holds the number, say that."""
        try:
            return work()
        except Fenced:
            raise
        except StrandlineError:
            landed = engine.describe(table, this.token.app_id)
            if landed and landed.commit and landed.commit.number >= this.token.txn:
                raise Fenced(taken(job.node.name, this.token.batch, landed.commit.run_id)) from None
            raise

    def _apply(self, job: Job, engine: Engine, this: Batch, state: TableState | None, ready: Ready) -> int:
        changes = ready.changes
        if state is not None and changes.base is None and changes.removals is not Removals.NOTHING:
            changes = replace(changes, seen=state.version)
        try:
            return self._commit(job, engine, this, job.target, changes, ready.coverage)
        except DuplicateKeys:  # found inside a first commit, which is then not made
            raise ready.duplicates() from None

    def _commit(
        self, job: Job, engine: Engine, this: Batch, table: Table, changes: ChangeSet, coverage: Mapping[str, Any]
    ) -> int:
        """One commit under the batch's token; an error when the number turns out to be another runner's."""
        record = {"coverage": dict(coverage), "counts": asdict(changes.counts) if changes.counts else None}
        point("commit.before", job.node.name)
        apply = partial(engine.apply, table, changes, this.token, record)
        try:
            self._unless_taken(job, engine, this, table, apply)
        except Fenced:
            if not delta_log.commit_of(table, this.token):  # else another runner has finished this batch for us
                raise
        except CommitConflict as e:
            if changes.base is None:
                raise
            raise _overtaken(table, changes.base) from e
        point("commit.after", job.node.name)
        mine = delta_log.commit_of(table, this.token)
        if mine is None:
            landed = engine.describe(table, this.token.app_id)
            holder = landed.commit.run_id if landed and landed.commit else None
            raise Fenced(taken(job.node.name, this.token.batch, holder))
        if changes.base is not None and mine.version != changes.base + 1:
            others = [c for c in since(table, changes.base) if this.token.run_id not in c]
            raise TableError(
                f"{table.label}: version {mine.version} was made from version {changes.base}, and is not the "
                f"next: {'; '.join(others)} came in between, and may be lost",
                hint="compare the versions named, and write again what is missing",
            )
        point("readback.after", job.node.name)
        return mine.version

    def _committed(self, job: Job, this: Batch) -> Counts:
        """How many rows a lazily evaluated commit wrote, from its own metrics."""
        mine = delta_log.commit_of(job.target, this.token)
        return _counted(mine) if mine else Counts()

    def _nothing_new(self, job: Job, engine: Engine, this: Batch, state: TableState | None) -> bool:
        """Same sources, same versions, same node, same target: the answer is known without reading a row."""
        last, config = this.coverage(), job.detection
        rolling = any(i.read.incremental and i.read.incremental.mode == "rolling_window" for i in job.inputs)
        if rolling or job.past.approved or (config and config.mode is DeleteDetectionMode.SQL_COMPARE):
            return False
        appends = job.node.write.mode == "append" and not job.follows
        if appends or state is None or last.get("digest") != job.digest:
            return False
        if last.get("target") != state.version or last.get(UNDOES) or not slices.repeatable(job.node):
            return False
        now, then = slices.pinned(job, engine), last.get("sources", {})
        return now is not None and all(then.get(key) == pin for key, pin in now.items())

    @staticmethod
    def landed(job: Job, describe: Describe, state: TableState | None) -> Landed | None:
        """The newest batch that this node committed, and whether all of it is in the table."""
        mine = state.commit if state else None
        events = describe(job.events, job.app_id) if job.events else None
        first = events.commit if events else None
        if first is not None and (mine is None or first.number > mine.number):
            return Landed(first, state, folded=False)
        return Landed(mine, state) if mine else None

    @staticmethod
    def _not_shown(job: Job, commit: Commit) -> CommitConflict:
        return CommitConflict(
            f"{job.node.name}: batch {commit.batch} landed, and {job.target.label} does not show it yet",
            hint=f"run it first: strandline run --select {job.node.name}",
        )

    def _roll_forward(
        self, job: Job, engine: Engine | None, records: Sequence[ControlRow], landed: Landed, began: float
    ) -> NodeResult:
        """The events of a batch are there and its table does not show them yet: fold them, and record the batch."""
        commit = landed.commit
        if engine is None:
            raise self._not_shown(job, commit)
        token = replace(self.token(job), batch=commit.batch, number=commit.number, run_id=commit.run_id)
        this = replace(self.after(job, records, None), token=token)
        job, coverage = self.remembering(job, this), dict(commit.record.get("coverage", {}))
        if coverage.get(UNDOES) and landed.state is not None:
            ready = taken_back(job, engine, landed.state, coverage)
        else:
            outcome = history.unfolded(job, engine, commit.batch, landed.state)
            made, versions = outcome.made, versions_of(job, coverage)
            ready = Ready(outcome.changes, coverage, lambda: None, versions, made.fit.added, made.system)
        note = f"finished the record of batch {commit.batch}, which had landed before its runner died"
        ready = replace(ready, warnings=(note,), recovery=note)
        return self.land(job, engine, this, landed.state, ready, began)

    def _record(self, this: Batch, began: float, end: Ending) -> NodeResult:
        """Write the batch into the history and make it the newest state."""
        result, end = _result(this, began, end), _ended(this, end)
        done = ledger.control_rows(
            this,
            "SUCCESS",
            _now(),
            rows_read=end.rows_read,
            rows_written=end.counts.written,
            versions=end.versions,
            coverage=end.coverage,
        )
        node = this.token.node
        with step(node, "record"):
            point("log.before", node)
            self._log(this, result, end.coverage, None, end.recovery or _redone(this, self.run_id))
            point("log.after", node)
            point("put.before", node)
            self.store.put(done)
            point("put.after", node)
        return result

    def _fail(self, job: Job, this: Batch, error: StrandlineError, began: float, undoes: str | None) -> None:
        result = NodeResult(job.node.name, "failed", seconds=round(time.monotonic() - began, 3))
        message = redact(error.message, self.secrets)
        self._log(this, result, {UNDOES: undoes} if undoes else {}, message)
        self.store.put(ledger.control_rows(this, "FAILED", _now(), error=message))

    def _log(
        self,
        this: Batch,
        result: NodeResult,
        coverage: Mapping[str, Any],
        error: str | None,
        recovery: str | None = None,
    ) -> None:
        self.store.log(self._row(this, result, coverage, error, recovery))

    @staticmethod
    def _row(
        this: Batch, result: NodeResult, coverage: Mapping[str, Any], error: str | None, recovery: str | None
    ) -> RunRow:
        token = this.token
        metrics = timings() if enabled("METRICS") else None
        return RunRow(
            run_id=token.run_id,
            project=token.project,
            node=token.node,
            batch=token.batch,
            target_table=this.target,
            status="recovered" if recovery and not coverage else result.status,  # a remark, not an ending
            started_at=this.started_at,
            completed_at=_now(),
            seconds=result.seconds,
            rows_read=result.rows_read,
            inserted=result.inserted,
            updated=result.updated,
            deleted=result.deleted,
            reopened=result.reopened,
            held=result.held,
            version=result.version,
            token=f"{token.app_id}/{token.batch}",
            coverage=json.dumps(coverage, sort_keys=True),
            warnings=json.dumps(result.warnings),
            error=error,
            metrics=json.dumps(metrics) if metrics is not None else None,
            recovery=recovery,
            takes_back=coverage.get(UNDOES),
        )


def _result(this: Batch, began: float, end: Ending) -> NodeResult:
    return NodeResult(
        this.token.node,
        "held" if end.counts.held else "success" if end.version is not None else "unchanged",
        end.rows_read,
        end.counts.inserted,
        end.counts.updated,
        end.counts.deleted,
        end.counts.reopened,
        end.counts.held,
        version=end.version,
        seconds=round(time.monotonic() - began, 3),
        warnings=list(end.warnings),
    )


def _ended(this: Batch, end: Ending) -> Ending:
    """An ending that says who brought it about, and which commits it knew."""
    known = this.token.txn - (not end.made)
    ended_by = {fence.RUN: this.token.run_id, fence.KNOWN: known, fence.MADE: end.made}
    return replace(end, coverage={**end.coverage, **ended_by})


def _overtaken(table: Table, base: int) -> Overtaken:
    others = "; ".join(since(table, base)) or "the table is gone"
    return Overtaken(
        f"{table.label}: it is no longer at version {base} ({others}); nothing was written here",
        hint="ask for it again: it looks at the table anew",
    )


def _counted(commit: Commit) -> Counts:
    """The counts a commit carries, or those the table format measured while it wrote."""
    carried = commit.record.get("counts")
    return Counts(**carried) if carried else _measured(commit.record.get("metrics", {}))


def _measured(metrics: Mapping[str, Any]) -> Counts:
    return Counts(inserted=int(metrics.get("numOutputRows") or metrics.get("num_added_rows") or 0))


def taken_back(job: Job, engine: Engine, state: TableState, coverage: Mapping[str, Any]) -> Ready:
    """What puts a table back to where it was before the version that an undo names."""
    version, held = coverage.get(BACK), int(coverage.get("held", 0))
    changes = restore.untouched(state, held)
    if version is not None:
        changes = restore.without(job.target, engine, state, version)
    return Ready(changes, coverage, lambda: None, versions_of(job, coverage))


def versions_of(job: Job, coverage: Mapping[str, Any]) -> dict[str, int]:
    """The versions of its sources that a batch covered."""
    pins = coverage.get("sources", {})
    return {i.label: pins[i.key][1] for i in job.inputs if i.key in pins}


def _redone(this: Batch, run_id: str) -> str | None:
    """What is told of a batch that an earlier runner had announced and never ended."""
    died = any(r.batch_status == "RUNNING" and r.batch_id == this.batch_id for r in this.previous.values())
    mine = this.token.run_id == run_id
    return f"did batch {this.token.batch} again: whoever had begun it died, or came second" if died and mine else None


def _now() -> datetime:
    return datetime.now(UTC)
