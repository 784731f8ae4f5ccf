"""Runs one node: the only place where effects are ordered.

recover → read → transform → reconcile → judge → evolve → apply → record. Killed anywhere, the next run finds out from
the table itself whether the batch landed, and finishes the record or does the batch again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from strandline import batch as batches
from strandline import slices
from strandline.batch import Outcome
from strandline.changelog import change_rows, evidence, sample_deletes
from strandline.config.deletes import DeleteDetectionMode
from strandline.config.resolve import redact
from strandline.control import ledger
from strandline.control.ledger import Batch, ControlRow, Store
from strandline.engine.base import Engine
from strandline.errors import DuplicateKeys, Fenced, StrandlineError
from strandline.job import Feed, Job, Planned
from strandline.journal import step
from strandline.result import NodeResult, PlannedNode
from strandline.sql.expr import rows_of
from strandline.strategy.changes import Counts, Removals, after, measures
from strandline.types import Commit, TableState, Token


@dataclass(frozen=True)
class Ending:
    """How a batch ended: what the records will say of it."""

    counts: Counts
    rows_read: int | None
    version: int | None
    versions: Mapping[str, int] = field(default_factory=dict)
    coverage: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Runner:
    """What all nodes of one run share."""

    store: Store
    run_id: str
    secrets: Sequence[str] = ()  # never recorded, whatever a driver says

    def run(self, job: Job, engine: Engine) -> NodeResult:
        """One batch of one node; raises what went wrong, after it is recorded."""
        began = time.monotonic()
        token = Token(job.project.config.project, job.node.name, 0, self.run_id)
        records = self.store.control(job.node.name)
        state = engine.describe(job.target, token.app_id)
        if state and state.commit and ledger.unrecorded(records, state.commit):
            recovered = self._recover(job, records, state.commit, token, began)
            if job.node.write.mode == "append":  # its rows are there: reading the source again would double them
                return recovered
            records = self.store.control(job.node.name)
        sources = [i.label for i in job.inputs]
        this = ledger.next_batch(records, token, job.target.label, sources, _now())
        job = self.remembering(job, this)
        if self._nothing_new(job, engine, this, state):
            held = Counts(held=int(this.coverage().get("held", 0)))
            return self._record(this, began, Ending(held, 0, None, coverage=this.coverage()))
        self.store.put(ledger.control_rows(this, "RUNNING", _now()))
        try:
            return self._batch(job, engine, this, state, began)
        except Fenced:
            raise
        except StrandlineError as e:
            self._fail(job, this, e, began)
            raise

    def plan(self, job: Job, engine: Engine) -> tuple[PlannedNode, Planned]:
        """What a run would do to this node's table, and the table as it would be; nothing is written."""
        token = Token(job.project.config.project, job.node.name, 0, self.run_id)
        records = self.store.control(job.node.name)
        sources = [i.label for i in job.inputs]
        this = ledger.next_batch(records, token, job.target.label, sources, _now())
        return plan_node(self.remembering(job, this), engine, engine.describe(job.target))

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
        covered = next((r.coverage for r in rows if r.coverage), None)
        return Feed(ledger.finished(rows), json.loads(covered) if covered else {})

    def _batch(self, job: Job, engine: Engine, this: Batch, state: TableState | None, began: float) -> NodeResult:
        outcome = prepare(job, engine, state)
        changes, coverage = outcome.changes, _coverage(job, outcome)
        version = None
        with step(job.node.name, "note"):
            self.store.log_changes(change_rows(job, engine, outcome, this.token))
        if state is not None and (outcome.made.fit.added or outcome.made.system) and _evolves(outcome):
            with step(job.node.name, "evolve"):
                engine.alter(job.target, outcome.made.fit.added, outcome.made.system)
        if state is None or changes.counts is None or changes.counts.any:
            with step(job.node.name, "apply"):
                version = self._apply(job, engine, this, outcome, coverage)
        counts = changes.counts or self._committed(engine, job, this)
        coverage["target"] = version if version is not None else state.version if state else None
        slice_ = outcome.slice
        end = Ending(counts, slice_.rows_read, version, slice_.versions, coverage, outcome.warnings)
        return self._record(this, began, end)

    def _apply(self, job: Job, engine: Engine, this: Batch, outcome: Outcome, coverage: dict[str, Any]) -> int:
        changes = outcome.changes
        record = {"coverage": coverage, "counts": asdict(changes.counts) if changes.counts else None}
        try:
            version = engine.apply(job.target, changes, this.token, record)
        except DuplicateKeys:  # found inside a first commit, which is then not made
            raise batches.duplicate_keys(engine, outcome.rows, changes.keys) from None
        landed = engine.describe(job.target, this.token.app_id)
        if landed is None or landed.commit is None or landed.commit.run_id != self.run_id:
            raise Fenced(f"{job.node.name}: another runner holds batch {this.token.batch}; nothing was written here")
        return version

    def _committed(self, engine: Engine, job: Job, this: Batch) -> Counts:
        """How many rows a lazily evaluated commit wrote, from its own metrics."""
        state = engine.describe(job.target, this.token.app_id)
        return _counted(state.commit) if state and state.commit else Counts()

    def _nothing_new(self, job: Job, engine: Engine, this: Batch, state: TableState | None) -> bool:
        """Same sources, same versions, same node, same target: the answer is known without reading a row."""
        last, config = this.coverage(), job.detection
        rolling = any(i.read.incremental and i.read.incremental.mode == "rolling_window" for i in job.inputs)
        if rolling or job.past.approved or (config and config.mode is DeleteDetectionMode.SQL_COMPARE):
            return False
        if job.node.write.mode == "append" or state is None or last.get("digest") != job.digest:
            return False
        if last.get("target") != state.version or not slices.repeatable(job.node):
            return False
        now = slices.pinned(job, engine)
        return now is not None and now == last.get("sources")

    def _recover(
        self, job: Job, records: Sequence[ControlRow], commit: Commit, token: Token, began: float
    ) -> NodeResult:
        """Finish the record of a batch that landed while its runner died."""
        sources = [i.label for i in job.inputs]
        this = ledger.next_batch(records, token, job.target.label, sources, _now())
        this = replace(this, token=replace(token, batch=commit.batch, run_id=commit.run_id or token.run_id))
        coverage = {**commit.record.get("coverage", {}), "target": commit.version}
        versions = {label: v[1] for label, v in coverage.get("sources", {}).items()}
        note = f"finished the record of batch {commit.batch}, which had landed before its runner died"
        return self._record(this, began, Ending(_counted(commit), None, commit.version, versions, coverage, (note,)))

    def _record(self, this: Batch, began: float, end: Ending) -> NodeResult:
        """Write the batch into the history and make it the newest state."""
        result = NodeResult(
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
        done = ledger.control_rows(
            this,
            "SUCCESS",
            _now(),
            rows_read=end.rows_read,
            rows_written=end.counts.written,
            versions=end.versions,
            coverage=end.coverage,
        )
        with step(this.token.node, "record"):
            self._log(this, result, end.coverage, None)
            self.store.put(done)
        return result

    def _fail(self, job: Job, this: Batch, error: StrandlineError, began: float) -> None:
        result = NodeResult(job.node.name, "failed", seconds=round(time.monotonic() - began, 3))
        message = redact(error.message, self.secrets)
        self._log(this, result, {}, message)
        self.store.put(ledger.control_rows(this, "FAILED", _now(), error=message))

    def _log(self, this: Batch, result: NodeResult, coverage: Mapping[str, Any], error: str | None) -> None:
        token = this.token
        self.store.log(
            ledger.RunRow(
                run_id=token.run_id,
                project=token.project,
                node=token.node,
                batch=token.batch,
                target_table=this.target,
                status=result.status,
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
            )
        )


def prepare(job: Job, engine: Engine, state: TableState | None) -> Outcome:
    """Steps 1 to 4: read, transform, reconcile, judge."""
    name = job.node.name
    with step(name, "read"):
        slice_ = slices.read(job, engine)
    with step(name, "transform"):
        transformed = batches.transform(job, engine, slice_)
    with step(name, "reconcile"):
        made = batches.reconcile(job, engine, slice_, transformed, state)
    with step(name, "evaluate"):
        outcome = batches.evaluate(job, engine, slice_, transformed.rows, made)
    counts = outcome.changes.counts
    emptied = outcome.changes.removals is Removals.EVERYTHING and counts is not None and counts.deleted
    if emptied and counts and counts.inserted + counts.unchanged == 0:
        text = f"the source is empty, so {job.target.label} is overwritten with nothing"
        outcome = replace(outcome, warnings=(*outcome.warnings, text))
    return outcome


def _coverage(job: Job, outcome: Outcome) -> dict[str, Any]:
    """What this batch covers, for the next ones to know."""
    coverage = dict(outcome.slice.coverage)
    if job.node.write.keyed:
        coverage["at"] = job.at.isoformat()
    m, counts = outcome.measured, outcome.changes.counts
    if m:
        new = outcome.verdict.found if outcome.verdict and outcome.verdict.kind == "hold" else 0
        open_ = m["open"] + m["silenced"] + m["missing"] + new
        window = job.detection is not None and job.detection.mode is DeleteDetectionMode.WATERMARK_WINDOW
        coverage["notes"] = open_ or (int(job.past.memory.get("notes", 0)) if window else 0)
        coverage["held"] = counts.held if counts else 0
    return coverage


def _evolves(outcome: Outcome) -> bool:
    """A system column that is configured is always there; others come with the rows that bring them."""
    counts = outcome.changes.counts
    return bool(outcome.made.system) or counts is None or counts.any


def plan_node(job: Job, engine: Engine, state: TableState | None) -> tuple[PlannedNode, Planned]:
    """What a run would do to this node's table, and the table as it would be; nothing is written."""
    began = time.monotonic()
    outcome = prepare(job, engine, state)
    changes, verdict = outcome.changes, outcome.verdict
    if changes.counts is None:
        staged = engine.stage(rows_of(changes.additions), measures(), None)
        changes = replace(changes, additions=staged.relation, counts=Counts(**staged.measures))
    counts = changes.counts or Counts()
    result = PlannedNode(
        job.node.name,
        "held" if counts.held else "success" if counts.any or state is None else "unchanged",
        outcome.slice.rows_read,
        counts.inserted,
        counts.updated,
        counts.deleted,
        counts.reopened,
        counts.held,
        seconds=round(time.monotonic() - began, 3),
        warnings=list(outcome.warnings),
        verdict=verdict.kind if verdict else None,
        delete_percent=round(verdict.percent, 3) if verdict and verdict.percent is not None else None,
        sample_deletes=sample_deletes(engine, outcome),
        reason=evidence(job, outcome) if outcome.measured.get("deleted") else None,
    )
    rows = engine.query(after(changes, batches.target_rows(job, engine, state)))
    return result, Planned(rows, changes.roles, Feed(job.batch, outcome.slice.coverage))


def _counted(commit: Commit) -> Counts:
    """The counts a commit carries, or those the table format measured while it wrote."""
    carried = commit.record.get("counts")
    if carried:
        return Counts(**carried)
    metrics = commit.record.get("metrics", {})
    return Counts(inserted=int(metrics.get("numOutputRows") or metrics.get("num_added_rows") or 0))


def _now() -> datetime:
    return datetime.now(UTC)
