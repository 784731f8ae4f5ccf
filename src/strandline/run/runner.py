"""Runs one node: recover → read → transform → reconcile → judge, and then `landing`: evolve → apply → record.

Killed anywhere, the next run finds out from the table itself whether the batch landed, and finishes the record or does
the batch again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from strandline.batch import business_time, read, restore
from strandline.batch.columns import evolution
from strandline.batch.prepare import Entry, Ready, plan_node, prepare, readied
from strandline.batch.star import dimension_pins, dressed
from strandline.config.deletes import DeleteDetectionMode
from strandline.control import fence, ledger
from strandline.control.coverage import NOTHING, Before, Coverage
from strandline.control.holds import open_holds
from strandline.control.ledger import Batch, ChangeRow, ControlRow, RunRow
from strandline.engine.base import Engine
from strandline.errors import CommitConflict, Overtaken
from strandline.failpoints import point
from strandline.journal import step, timings
from strandline.lake import describe, last_batch
from strandline.plan.job import Feed, Job, Planned
from strandline.result import NodeResult, PlannedNode
from strandline.run.commit import Lander, measured
from strandline.run.early import looked_up
from strandline.run.recall import left
from strandline.run.record import Ending, Recorder, Recovered, now
from strandline.transform.lineage import repeatable
from strandline.types import Commit, Counts, Table, TableState, Token
from strandline.words import agree, plural


@dataclass(frozen=True)
class Landed:
    """The newest batch in a node's own tables: its first commit, and whether the table itself shows it."""

    commit: Commit
    state: TableState | None
    folded: bool = True


@dataclass(frozen=True)
class Runner(Recorder):
    """What all nodes of one run share."""

    def run(self, job: Job, engine: Engine) -> NodeResult:
        """One batch of one node; raises what went wrong, after it is recorded."""
        timings()
        began = time.monotonic()
        point("node.start", job.node.name)
        records, state, recovered = self.settle(job, began, engine)
        if _appended(
            job, recovered, records
        ):  # its rows are there: reading the source again would double them
            result = NodeResult(
                job.node.name, "unchanged", seconds=round(time.monotonic() - began, 3)
            )
        else:
            result = self._next(job, engine, records, state, began)
        for found in reversed(recovered):
            result = found.beside(result, self.run_id)
        return result

    def _next(
        self,
        job: Job,
        engine: Engine,
        records: Sequence[ControlRow],
        state: TableState | None,
        began: float,
    ) -> NodeResult:
        """The batch that follows on these records."""
        this = self.after(job, records, self.landed(job, state))
        job = self.remembering(job, this, state)
        if self._nothing_new(job, this, state):
            held = Counts(held=this.coverage().held)
            return self.record(this, began, Ending(held, 0, None, coverage=this.coverage()))
        with self.announced(job, this, began):
            return self._batch(job, engine, this, state, began)

    def token(self, job: Job) -> Token:
        """The token of this run for a node, still without a number."""
        return Token(job.project.config.project, job.node.name, 0, self.run_id)

    def settle(
        self, job: Job, began: float, engine: Engine | None = None, *, alone: bool = False
    ) -> tuple[list[ControlRow], TableState | None, list[Recovered]]:
        """The records and the table of a node, after the records of batches whose runners died are finished.

        Also of those that died while the node or the project had another name, unless it is to be looked at `alone`.

        Records are read before the table, never after it: a number may be older than the table that it is meant for,
        and is then taken; a younger one would let a batch land on a table that it has not seen.
        """
        recovered: list[Recovered] = []
        while True:
            records, state, landed, found = self._look(job)
            if not alone and (former := self._former(job, records, state)):
                recovered += self._settle_former(former, began, engine)
                alone = True
                continue
            if found is None:
                return records, state, recovered
            if landed and not landed.folded and not found.logged:
                result = self._roll_forward(job, engine, records, landed, began)
            else:
                result = self._finish(job, records, found, began)
            if found.target is None:  # else it tells of another table
                whose = found.run_id or self.run_id  # as it is recorded: an old commit may not say
                recovered.append(Recovered(found.batch, whose, result, found.why, found.begun))

    def _look(
        self, job: Job
    ) -> tuple[list[ControlRow], TableState | None, Landed | None, fence.Found | None]:
        every = self._records(job)
        state = describe(job.target, job.app_id)
        records = self._of_table(job, every, state)
        own = self._own(job, records)
        ended = self.store.ended(job.app_id, ledger.finished(own))
        landed = self.landed(job, state)
        found = fence.found(own, job.target.label, landed.commit if landed else None, ended)
        if (
            found and state and not found.logged
        ):  # the commit that made the table could not know its id
            found = replace(
                found,
                coverage=replace(found.coverage, table=found.coverage.table or state.table_id),
            )
        return records, state, landed, found

    def _former(
        self, job: Job, records: Sequence[ControlRow], state: TableState | None
    ) -> list[Job]:
        """The job under the names by which others have begun to write its table, and perhaps not ended."""
        here = [r for r in records if r.target_table == job.target.label]
        me = job.project.config.project, job.node.name
        names = {(r.project or me[0], r.node) for r in here if r.batch_status != "SUCCESS"}
        if state is not None and not self._own(job, here) and (last := last_batch(job.target)):
            _, project, node = str(last.record["app_id"]).split(
                "/", 2
            )  # its runner may have left no row
            if Coverage.in_commit(last.record).origins == tuple(
                job.origins
            ):  # else another one's, which feeds it too
                names.add((project, node))
        return [job.called(*name) for name in sorted(names - {me})]

    def _settle_former(
        self, former: Sequence[Job], began: float, engine: Engine | None
    ) -> list[Recovered]:
        """Finish what a runner left that died while the node, or the project, had another name."""
        return [r for job in former for r in self.settle(job, began, engine, alone=True)[2]]

    def unrecorded(self, job: Job, *, alone: bool = False) -> list[RunRow]:
        """Batches that landed while their runners died, as `settle` would log them; nothing is written."""
        records, state, landed, found = self._look(job)
        former = [] if alone else self._former(job, records, state)
        rows = [row for other in former for row in self.unrecorded(other, alone=True)]
        if found is None or landed is None or found.logged:
            return rows
        if not landed.folded:
            raise self._not_shown(job, landed.commit)
        this, end = self._found(job, records, found)
        return [*rows, self.foreseen(this, end, found.told)]

    def _finish(
        self, job: Job, records: Sequence[ControlRow], found: fence.Found, began: float
    ) -> NodeResult:
        """Write the record of a batch that came to its end while its runner died."""
        point("recover.before", job.node.name)
        this, end = self._found(job, records, found)
        result = self.record(this, began, end)
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

    def _found(
        self, job: Job, records: Sequence[ControlRow], found: fence.Found
    ) -> tuple[Batch, Ending]:
        """A batch whose runner died, under its own numbers, and how it ended."""
        this = self.after(job, records, None)
        made = (
            found.version is not None
            if found.coverage.committed is None
            else found.coverage.committed
        )
        number = (found.batch if found.coverage.commit is None else found.coverage.commit) + (
            not made
        )
        token = replace(
            this.token, batch=found.batch, number=number, run_id=found.run_id or this.token.run_id
        )
        versions = versions_of(job, found.coverage)
        counts = found.counts or measured(found.metrics)
        end = Ending(
            counts,
            found.rows_read,
            found.version,
            versions,
            found.coverage,
            (found.told,),
            found.told,
            made,
        )
        if found.target is None:
            return replace(this, token=token), end
        reads = found.coverage.reads or this.sources  # the node writes another table by now
        return replace(this, token=token, target=found.target, sources=reads), end

    def plan(self, job: Job, engine: Engine) -> tuple[PlannedNode, tuple[Planned, Entry] | None]:
        """What a run would do to this node's table, the table as it would be, and all that a run needs for it.

        Nothing but the first when an append has landed and only its record is missing. The store is a `Foreseen`.
        """
        began, recovered, records = time.monotonic(), list[Recovered](), list[ControlRow]()
        if job.events is None:  # those that nobody has folded are planned with the others
            records, _, recovered = self.settle(job, began)
        job, state = self.next_job(job), describe(job.target)
        first = _foretold(job.batch - 1, recovered)
        if _appended(job, recovered, records):
            return PlannedNode(
                job.node.name, "unchanged", seconds=recovered[-1].result.seconds, warnings=first
            ), None
        result, planned, ready = plan_node(job, engine, state)
        result = replace(result, warnings=[*first, *result.warnings])
        return result, (planned, Entry(job.node.name, job.batch, state, ready))

    def follow(self, job: Job, engine: Engine, entry: Entry) -> NodeResult:
        """Apply one node of a plan, exactly; an error when anything it was made from has moved."""
        began = time.monotonic()
        records, state, _ = self.settle(job, began, engine)
        this = self.after(job, records, self.landed(job, state))
        entry.check(job, this.token.batch, state)
        ready = replace(entry.ready, coverage=entry.coverage(job))
        with self.announced(job, this, began):
            return self.lander(job, engine, this, state).land(ready, began)

    def next_job(self, job: Job) -> Job:
        """The job of a node's next batch, with what earlier runs left."""
        records, state = self._records(job), describe(job.target)
        return self.remembering(
            job, self.after(job, self._of_table(job, records, state), None), state
        )

    def _records(self, job: Job) -> list[ControlRow]:
        """What is known of a node, and of tables that are called as its table is."""
        return self.store.control(job.node.name, job.target.label)

    @staticmethod
    def _of_table(
        job: Job, records: Sequence[ControlRow], state: TableState | None
    ) -> list[ControlRow]:
        """What is known of a node, and of its table from when a node or a project of another name wrote it."""
        table_id = state.table_id if state else None
        return ledger.Whose(
            job.project.config.project, job.target.label, table_id, job.origins
        ).rows(records)

    @staticmethod
    def _own(job: Job, records: Sequence[ControlRow]) -> list[ControlRow]:
        """The rows of a node under the name that its commits carry."""
        return [r for r in records if r.by(job.project.config.project, job.node.name)]

    def after(self, job: Job, records: Sequence[ControlRow], landed: Landed | None) -> Batch:
        """The batch that follows on these records, to be committed to the table that this landed in."""
        known = fence.known(records, job.target.label)  # also by other names: numbers only go up
        token = replace(
            self.token(job), number=max(known, landed.commit.number if landed else 0) + 1
        )
        loads = {
            i.label: i.read.feed.load_id for i in job.inputs if i.read.feed and i.read.feed.load_id
        }
        sources = job.reads
        return replace(
            ledger.next_batch(records, token, job.target.label, sources, now()), loads=loads
        )

    def reject(self, job: Job, holds: Sequence[ChangeRow]) -> NodeResult:
        """Leave held deletes alone until their keys are seen again; a batch of its own, without a data commit."""
        began = time.monotonic()
        point("reject.before", job.node.name)
        records, state, _ = self.settle(job, began)
        this = self.after(job, records, self.landed(job, state))
        batch = this.token.batch
        # after the records: somebody may have decided since, and whoever decides from here on takes this number
        still = open_holds(self.store.changes(), holds[0].run_id).get(holds[0].target_table, [])
        chosen = {h.key_hash for h in holds}
        still = [h for h in still if h.key_hash in chosen]
        if not still:
            raise Overtaken(
                f"{job.node.name}: run {holds[0].run_id} holds no deletes any more: somebody decided on them "
                "meanwhile; nothing was written here",
                hint="`strandline history` shows what runs have done",
            )
        holds = still
        reason = f"rejected by a person; held by run {holds[0].run_id}"
        told = replace(
            holds[0],
            run_id=self.run_id,
            node=job.node.name,
            batch=batch,
            verb="reject",
            reason=reason,
        )
        told = replace(
            told, project=job.project.config.project
        )  # it was held under another name, perhaps
        self.store.log_changes(
            this.token, [replace(told, key=h.key, key_hash=h.key_hash, at=now()) for h in holds]
        )
        before = self.remembering(job, this, state).past.before
        coverage = replace(this.memory(), undoes=None, before=before)
        if holds[0].target_table == job.target.label:
            coverage = replace(coverage, held=max(0, coverage.held - len(holds)))
        note = f"{plural(len(holds), 'held delete')} {agree(len(holds), 'is', 'are')} rejected"
        held = Counts(held=coverage.held)
        return self.record(this, began, Ending(held, 0, None, {}, coverage, (note,)))

    def remembering(self, job: Job, this: Batch, state: TableState | None) -> Job:
        """The job with what earlier runs left."""
        found = left(job, this, state)
        memory = this.of_its_sources(found.coverage)
        notebook = self.store.notebook() if memory.notes else None
        before = Before(found.batch, found.coverage.put_back())
        past = replace(
            job.past,
            memory=memory,
            before=before,
            feed=self._feed,
            notebook=notebook,
            said=found.said,
            ended=self.ended,
        )
        return replace(job, batch=this.token.batch, past=past)

    def _feed(self, target: Table) -> Feed | None:
        """How a table was last fed by a node."""
        rows, state = self.store.writers(target.label), describe(target)
        rows = [r for r in rows if state and r.covered.is_of(state.table_id)]
        if rows:
            coverage, last = ledger.covered(rows), ledger.finished(rows)
        elif commit := last_batch(
            target
        ):  # the records are somewhere else: the table itself says so
            coverage, last = Coverage.in_commit(commit.record), commit.batch
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
        if job.node.foreign_keys:
            with step(job.node.name, "look up"):
                outcome = looked_up(self, job, engine, outcome, state)
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
            or job.past.release is not None
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
        dimensions = dimension_pins(job)
        now = None if now is None or dimensions is None else {**now, **dimensions}
        return now is not None and all(then.get(key) == pin for key, pin in now.items())

    @staticmethod
    def landed(job: Job, state: TableState | None) -> Landed | None:
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
        self,
        job: Job,
        engine: Engine | None,
        records: Sequence[ControlRow],
        landed: Landed,
        began: float,
    ) -> NodeResult:
        """The events of a batch are there and its table does not show them yet: fold them, and record the batch."""
        commit = landed.commit
        if engine is None:
            raise self._not_shown(job, commit)
        token = replace(
            self.token(job), batch=commit.batch, number=commit.number, run_id=commit.run_id
        )
        this = replace(self.after(job, records, None), token=token)
        job, coverage = self.remembering(job, this, landed.state), Coverage.in_commit(commit.record)
        if coverage.undoes and landed.state is not None:
            ready = taken_back(job, engine, landed.state, coverage)
        else:
            outcome = business_time.unfolded(job, engine, commit.batch, landed.state)
            outcome = dressed(job, engine, outcome, landed.state)
            if job.node.foreign_keys:
                outcome = looked_up(self, job, engine, outcome, landed.state)
            made, versions = outcome.made, versions_of(job, coverage)
            ready = Ready(
                replace(outcome.changes, evolves=evolution(made.fit, made.system, landed.state)),
                coverage,
                lambda: None,
                versions,
            )
        note = f"finished the record of batch {commit.batch}, {fence.LANDED}"
        ready = replace(ready, warnings=(note,), recovery=note)
        result = self.lander(job, engine, this, landed.state).land(ready, began)
        if commit.run_id != self.run_id:
            self._remark(this, result, note)
        return result


def _foretold(batch: int, recovered: Sequence[Recovered]) -> list[str]:
    """What a plan says of a record that a run finishes before it reads."""
    if not recovered:
        return []
    why = "whose runner died" if recovered[-1].begun else recovered[-1].why
    return [f"a run first finishes the record of batch {batch}, {why}"]


def _appended(job: Job, recovered: Sequence[Recovered], records: Sequence[ControlRow]) -> bool:
    """Is what was found last the rows of an append whose runner died? Then this run would read the same extract again.

    An undo has taken such rows away, and they are read again. Where records were lost, any number of runs may have
    passed since, so the next extract is due.
    """
    if job.node.write.mode != "append" or not recovered:
        return False
    last = recovered[-1]
    return last.begun and last.result.version is not None and not ledger.covered(records).undoes


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
