"""Runs one node: recover → read → transform → reconcile → judge, and then `landing`: evolve → apply → record.

Killed anywhere, the next run finds out from the table itself whether the batch landed, and finishes the record or does
the batch again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from strandline.batch import business_time, read, restore
from strandline.batch.prepare import Entry, Ready, plan_node, prepare, readied
from strandline.config.deletes import DeleteDetectionMode
from strandline.control import fence, ledger
from strandline.control.coverage import NOTHING, Before, Coverage
from strandline.control.holds import approvals, open_holds
from strandline.control.ledger import Batch, ChangeRow, ControlRow, Records, RunRow
from strandline.engine.base import Engine
from strandline.errors import CommitConflict, Fenced, Overtaken
from strandline.failpoints import point
from strandline.journal import step, timings
from strandline.lake import describe, last_batch, newest_from
from strandline.plan.job import Feed, Job, Planned
from strandline.result import NodeResult, PlannedNode
from strandline.run.commit import Lander, measured
from strandline.run.recall import left
from strandline.run.record import Ending, Recorder, Recovered, now
from strandline.transform.lineage import repeatable
from strandline.types import APP, Commit, Counts, Table, TableState, Token
from strandline.words import agree, plural


@dataclass(frozen=True)
class Landed:
    """A commit that the records do not know, and whether the table itself shows all of it."""

    commit: Commit
    folded: bool = True


@dataclass(frozen=True)
class Look:
    """A node's table and its records at one moment."""

    records: Records
    state: TableState | None
    landed: Landed | None = None
    others: Sequence[ControlRow] = ()  # of other tables that were called the same
    found: fence.Found | None = None
    highest: int = (
        0  # the number of the newest commit of ours, be it of events that no run has folded
    )


@dataclass(frozen=True)
class Runner(Recorder):
    """What all nodes of one run share."""

    def run(self, job: Job, engine: Engine) -> NodeResult:
        """One batch of one node; raises what went wrong, after it is recorded."""
        timings()
        began = time.monotonic()
        point("node.start", job.node.name)
        look, recovered = self.settle(job, began, engine)
        if _appended(
            job, recovered, look.records
        ):  # its rows are there: reading the source again would double them
            result = NodeResult(
                job.node.name, "unchanged", seconds=round(time.monotonic() - began, 3)
            )
        else:
            result = self._next(job, engine, look, began)
        for found in reversed(recovered):
            result = found.beside(result, self.run_id)
        return result

    def _next(self, job: Job, engine: Engine, look: Look, began: float) -> NodeResult:
        """The batch that follows on these records."""
        this, state = self.after(job, look), look.state
        job = self.remembering(job, this, look)
        if self._nothing_new(job, this, state):
            held = Counts(held=this.coverage().held)
            return self.record(this, began, Ending(held, 0, None, coverage=this.coverage()))
        with self.announced(job, this, began):
            return self._batch(job, engine, this, state, began)

    def settle(
        self, job: Job, began: float, engine: Engine | None = None
    ) -> tuple[Look, list[Recovered]]:
        """What there is of a node's table, after the records of batches whose runners died are finished.

        Records are read before the table, never after it: a number may be older than the table that it is meant for,
        and is then taken; a younger one would let a batch land on a table that it has not seen.
        """
        recovered: list[Recovered] = []
        while True:
            look = self.look(job)
            found = look.found
            if found is None:
                return look, recovered
            if look.landed and not look.landed.folded and not found.logged and found.put is None:
                result = self._roll_forward(job, engine, look, began)
            else:
                result = self._finish(job, look, found, began)
            recovered.append(Recovered(found.number, found.run_id, result, found.why, found.begun))

    def look(self, job: Job) -> Look:
        """The records of a node's table, the table, and what the one lacks of the other."""
        states, state = self.store.states(), describe(job.target, APP)
        key = ledger.table_key(job.target, state)
        place = ledger.table_key(job.target, None)
        rows = [r for r in states if r.table_id in (key, place)]
        others = [r for r in states if r.target_table == job.target.label and r not in rows]
        records = Records(key, job.source, rows, (job.project.config.project, job.node.name))
        events = describe(job.events, APP) if job.events else None
        first = events.commit if events else None
        landed = self.landed(job, state, first, records.last.commit or 0)
        numbers = [c.number for c in (first, state and state.commit) if c]
        look = Look(records, state, landed, others, highest=max(numbers, default=0))
        return replace(look, found=self._found(job, look))

    def _found(self, job: Job, look: Look) -> fence.Found | None:
        """A batch that came to its end, and that the state or the history does not know."""
        records, landed = look.records, look.landed
        row = ledger.newest(records.mine)
        told = None if row else self._in_history(records)
        if landed and not (told and (told.coverage.commit or 0) >= landed.commit.number):
            return fence.landed(records, landed.commit)
        if told:
            return fence.stateless(told)
        if row is None or self.store.told(row.line) >= row.revision:
            return None
        commit = newest_from(job.target, job.source) if row.covered.committed else None
        return fence.untold(row, commit)

    def _in_history(self, records: Records) -> RunRow | None:
        """The newest batch of a table and source that the history knows, when their state was lost."""
        line = (records.table_id, records.source)
        if not self.store.told(line):
            return None
        history = self.store.all_runs()
        counts = fence.counting(history)
        mine = (r for r in history if r.line == line and r.recorded)
        newest = max(mine, key=lambda r: r.batch, default=None)
        return newest if newest and newest.ending in counts else None

    def unrecorded(self, job: Job) -> list[RunRow]:
        """Batches that landed while their runners died, as `settle` would log them; nothing is written."""
        look = self.look(job)
        if look.found is None or look.found.logged:
            return []
        if look.landed and not look.landed.folded:
            raise self._not_shown(job, look.landed.commit)
        this, end = self._as_it_ended(job, look, look.found)
        return [self.foreseen(this, end, look.found.told)]

    def _finish(self, job: Job, look: Look, found: fence.Found, began: float) -> NodeResult:
        """Write the record of a batch that came to its end while its runner died."""
        point("recover.before", job.node.name)
        this, end = self._as_it_ended(job, look, found)
        put = found.put
        result = self.record(this, began, end) if put is None else self.tell(this, began, end, put)
        if found.logged or this.token.run_id != self.run_id:  # else the batch tells of it itself
            self._remark(this, result, found.told)
        point("recover.after", job.node.name)
        return result

    def _remark(self, this: Batch, result: NodeResult, told: str) -> None:
        """Tell, beside the batch of a runner that died, that this run is the one that finished its record."""
        mine = replace(this, token=replace(this.token, run_id=self.run_id))
        self.log(
            mine, NodeResult(result.name, "unchanged", seconds=result.seconds), NOTHING, None, told
        )

    def _as_it_ended(self, job: Job, look: Look, found: fence.Found) -> tuple[Batch, Ending]:
        """A batch whose runner died, under its own names and number, and how it ended."""
        this, coverage = self.after(job, look), found.coverage
        token = replace(
            this.token,
            run_id=found.run_id,
            node=found.node or this.token.node,
            number=coverage.commit or 0,
        )
        end = Ending(
            found.counts or measured(found.metrics),
            found.rows_read,
            found.version,
            versions_of(job, coverage),
            coverage,
            (found.told,),
            found.told,
            bool(coverage.committed),
        )
        return replace(this, token=token, number=found.number), end

    def plan(self, job: Job, engine: Engine) -> tuple[PlannedNode, tuple[Planned, Entry] | None]:
        """What a run would do to this node's table, the table as it would be, and all that a run needs for it.

        Nothing but the first when an append has landed and only its record is missing. The store is a `Foreseen`.
        """
        began, recovered = time.monotonic(), list[Recovered]()
        if job.events is None:  # those that no run has folded are planned with the others
            look, recovered = self.settle(job, began)
        else:
            look = self.look(job)
        job, state = self.remembering(job, self.after(job, look), look), look.state
        first = _foretold(job.batch - 1, recovered)
        if _appended(job, recovered, look.records):
            return PlannedNode(
                job.node.name, "unchanged", seconds=recovered[-1].result.seconds, warnings=first
            ), None
        result, planned, ready = plan_node(job, engine, state)
        result = replace(result, warnings=[*first, *result.warnings])
        return result, (planned, Entry(job.node.name, job.batch, state, ready))

    def follow(self, job: Job, engine: Engine, entry: Entry) -> NodeResult:
        """Apply one node of a plan, exactly; an error when anything it was made from has moved."""
        began = time.monotonic()
        look, _ = self.settle(job, began, engine)
        this = self.after(job, look)
        entry.check(job, this.number, look.state)
        ready = replace(entry.ready, coverage=entry.coverage(job))
        with self.announced(job, this, began):
            return self.lander(job, engine, this, look.state).land(ready, began)

    def next_job(self, job: Job) -> Job:
        """The job of a node's next batch, with what earlier runs left."""
        look = self.look(job)
        return self.remembering(job, self.after(job, look), look)

    def after(self, job: Job, look: Look) -> Batch:
        """The batch that follows on these records, to be committed to the table as it was looked at."""
        number = max(look.records.known, look.highest) + 1
        token = Token(
            job.project.config.project, job.node.name, self.run_id, number, look.records.source
        )
        loads = {
            i.label: i.read.feed.load_id for i in job.inputs if i.read.feed and i.read.feed.load_id
        }
        sources = tuple(i.label for i in job.inputs)
        return Batch(
            token, look.records.next, job.target.label, sources, now(), look.records, loads
        )

    def decide(self, job: Job, verb: str, holds: Sequence[ChangeRow]) -> None:
        """Note what a person decides on held deletes; an error when another decision came first."""
        this, at = self.after(job, self.look(job)), now()
        told = replace(
            holds[0],
            run_id=self.run_id,
            project=job.project.config.project,
            node=job.node.name,
            batch=max(this.number, *(h.batch + 1 for h in holds)),  # after what it decides on
            verb=verb,
            reason=f"{verb.removesuffix('e')}ed by a person; held by run {holds[0].run_id}",
            at=at,
            source=job.source,
        )
        notes = [replace(told, key=h.key, key_hash=h.key_hash) for h in holds]
        if not self.store.decide(notes, holds):
            raise Overtaken(
                f"{job.node.name}: run {holds[0].run_id} holds no deletes any more: they were decided on "
                "meanwhile; nothing was written here",
                hint="`strandline history` shows what runs have done",
            )

    def reject(self, job: Job, holds: Sequence[ChangeRow]) -> NodeResult:
        """Leave held deletes alone until their keys are seen again; its batch, without a commit, is for the history."""
        began = time.monotonic()
        point("reject.before", job.node.name)
        look, _ = self.settle(job, began)
        still = open_holds(self.store.changes(), holds[0].run_id).get(holds[0].table_id, [])
        holds = still or holds
        self.decide(job, "reject", holds)
        while True:
            this = self.after(job, look)
            before = self.remembering(job, this, look).past.before
            memory = look.records.memory
            mine = holds[0].table_id == look.records.table_id
            held = max(0, memory.held - len(holds)) if mine else memory.held
            coverage = replace(memory, undoes=None, before=before, held=held)
            note = f"{plural(len(holds), 'held delete')} {agree(len(holds), 'is', 'are')} rejected"
            end = Ending(Counts(held=held), 0, None, {}, coverage, (note,))
            if look.state is None:  # a table that is gone has no state
                return self.tell(this, began, end, 0)
            try:
                return self.record(this, began, end)
            except (
                Fenced
            ):  # a run has gone on meanwhile: the decision stands, and its record comes after
                look, _ = self.settle(job, began)

    def remembering(self, job: Job, this: Batch, look: Look) -> Job:
        """The job with what earlier runs left."""
        found = left(job, look.records, look.state, look.others)
        memory = found.coverage
        notebook = self.store.notebook() if memory.notes else None
        past = replace(
            job.past,
            memory=memory,
            before=Before(found.batch, memory.put_back()),
            feed=self._feed,
            notebook=notebook,
            said=found.said,
            approved=bool(memory.held) and self._approved(this.records.table_id),
        )
        token = this.token
        return replace(
            job, batch=this.number, batch_id=token.batch_id, number=token.number, past=past
        )

    def _approved(self, table_id: str) -> bool:
        """Has a person approved deletes of a table that no batch has applied yet?"""
        return any(r.table_id == table_id for r in approvals(self.store.changes()))

    def _feed(self, target: Table) -> Feed | None:
        """How a table was last fed by a node."""
        state = describe(target)
        row = ledger.newest(
            r for r in self.store.states() if state and r.table_id == state.table_id
        )
        if row:
            coverage, last = row.covered, row.covered.batch
        elif commit := last_batch(
            target
        ):  # the records are somewhere else: the table itself says so
            coverage, last = Coverage.in_commit(commit.record), commit.batch_id
        else:
            return None
        batch = (
            coverage.feed.batch if coverage.feed else last
        )  # after an undo: the batch whose rows are there again
        return Feed(batch, coverage) if batch is not None else None

    def _batch(
        self, job: Job, engine: Engine, this: Batch, state: TableState | None, began: float
    ) -> NodeResult:
        outcome = prepare(job, engine, state)
        with step(job.node.name, "note"):
            ready = readied(job, engine, outcome)
        return self.lander(job, engine, this, state).land(ready, began)

    def lander(self, job: Job, engine: Engine, this: Batch, state: TableState | None) -> Lander:
        """What brings a prepared batch into its table."""
        return Lander(self, job, engine, this, state)

    def _nothing_new(self, job: Job, this: Batch, state: TableState | None) -> bool:
        """Same sources, same versions, same node, same target: the answer is known without reading a row."""
        last, config = this.coverage(), job.detection
        rolling = any(
            i.read.incremental and i.read.incremental.mode == "rolling_window" for i in job.inputs
        )
        if (
            rolling
            or job.past.approved
            or (config and config.mode is DeleteDetectionMode.SQL_COMPARE)
        ):
            return False
        appends = job.node.write.mode == "append" and not job.follows
        if appends or state is None or last.digest != job.digest:
            return False
        if last.target != state.version or last.undoes or not repeatable(job.node):
            return False
        if not last.is_of(state.table_id):
            return False
        now, then = read.pinned(job), last.sources
        return now is not None and all(then.get(key) == pin for key, pin in now.items())

    @staticmethod
    def landed(
        job: Job, state: TableState | None, first: Commit | None, known: int
    ) -> Landed | None:
        """The newest batch of the own source that the records do not know; `first` is the newest commit of events."""
        shown = state.commit.number if state and state.commit else 0
        if first is not None and first.number > max(shown, known) and first.source == job.source:
            return Landed(first, folded=False)
        if shown <= known:
            return None
        mine = newest_from(job.target, job.source, known)
        return Landed(mine) if mine else None

    @staticmethod
    def _not_shown(job: Job, commit: Commit) -> CommitConflict:
        return CommitConflict(
            f"{job.node.name}: what run {commit.run_id} committed landed, and {job.target.label} does not show it yet",
            hint=f"run it first: strandline run --select {job.node.name}",
        )

    def _roll_forward(
        self, job: Job, engine: Engine | None, look: Look, began: float
    ) -> NodeResult:
        """The events of a batch are there and its table does not show them yet: fold them, and record the batch."""
        assert look.landed is not None, "it was found"
        commit, state = look.landed.commit, look.state
        if engine is None:
            raise self._not_shown(job, commit)
        this = self.after(job, look)
        token = replace(this.token, number=commit.number, run_id=commit.run_id, node=commit.node)
        this = replace(this, token=token)
        job, coverage = self.remembering(job, this, look), Coverage.in_commit(commit.record)
        if coverage.undoes and state is not None:
            ready = taken_back(job, engine, state, coverage)
        else:
            outcome = business_time.unfolded(job, engine, commit.number, state)
            made, versions = outcome.made, versions_of(job, coverage)
            ready = Ready(
                outcome.changes, coverage, lambda: None, versions, made.fit.added, made.system
            )
        note = f"finished the record of batch {this.number}, {fence.LANDED}"
        ready = replace(ready, warnings=(note,), recovery=note)
        result = self.lander(job, engine, this, state).land(ready, began)
        if commit.run_id != self.run_id:
            self._remark(this, result, note)
        return result


def _foretold(batch: int, recovered: Sequence[Recovered]) -> list[str]:
    """What a plan says of a record that a run finishes before it reads."""
    if not recovered:
        return []
    why = "whose runner died" if recovered[-1].begun else recovered[-1].why
    return [f"a run first finishes the record of batch {batch}, {why}"]


def _appended(job: Job, recovered: Sequence[Recovered], records: Records) -> bool:
    """Is what was found last the rows of an append whose runner died? Then this run would read the same extract again.

    An undo has taken such rows away, and they are read again. Where records were lost, any number of runs may have
    passed since, so the next extract is due.
    """
    if job.node.write.mode != "append" or not recovered:
        return False
    last = recovered[-1]
    return last.begun and last.result.version is not None and not records.last.undoes


def taken_back(job: Job, engine: Engine, state: TableState, coverage: Coverage) -> Ready:
    """What puts a table back to where it was before the version that an undo names."""
    changes = restore.untouched(state, coverage.held)
    if (version := coverage.back) is not None:
        keys = [
            c.name
            for k in job.node.write.keys
            if job.node.write.keyed and (c := state.schema.get(k))
        ]
        changes = restore.without(job.target, engine, state, version, keys)
    return Ready(changes, coverage, lambda: None, versions_of(job, coverage))


def versions_of(job: Job, coverage: Coverage) -> dict[str, int]:
    """The versions of its sources that a batch covered."""
    pins = coverage.sources
    return {i.label: pins[i.key].version for i in job.inputs if i.key in pins}
