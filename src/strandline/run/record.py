"""What is written down of a batch: that it is at work, how it ended, and the state that the next one starts from."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from strandline.control import fence, ledger
from strandline.control.coverage import NOTHING, Coverage
from strandline.control.ledger import Batch, RunRow, Store
from strandline.errors import Fenced, StrandlineError, faults_told, taken
from strandline.failpoints import point
from strandline.journal import step, timings
from strandline.plan.job import Job
from strandline.result import NodeResult
from strandline.switches import enabled
from strandline.types import Counts
from strandline.words import redact


@dataclass(frozen=True)
class Ending:
    """How a batch ended: what the records will say of it."""

    counts: Counts
    rows_read: int | None
    version: int | None
    versions: Mapping[str, int] = field(default_factory=dict)
    coverage: Coverage = NOTHING
    warnings: Sequence[str] = ()
    recovery: str | None = None
    made: bool = False  # did it commit anything, be it events alone?


@dataclass(frozen=True)
class Recovered:
    """A batch whose record was finished on the way: a runner died, records were lost, or this run tried before."""

    batch: int
    run_id: str
    result: NodeResult
    why: str
    begun: bool = True  # its runner died; else its records were lost

    @property
    def remark(self) -> str:
        """What is told of another run's batch: its rows are not those of whoever finished its record."""
        counts = {verb: n for verb, n in self.result.counts.shown.items() if verb != "held"}
        done = ", ".join(f"{n} row{'s' if n > 1 else ''} {verb}" for verb, n in counts.items() if n)
        whose = f"{done or 'nothing changed'} by run {self.run_id}"
        return f"finished the record of batch {self.batch} ({whose}), {self.why}"

    def beside(self, result: NodeResult, run_id: str) -> NodeResult:
        """The result of a run that has finished this record first; what it had done itself before is its own."""
        mine = self.result
        if self.run_id != run_id:
            return replace(result, warnings=[self.remark, *result.warnings])
        version = mine.version if result.version is None else result.version
        read = [n for n in (mine.rows_read, result.rows_read) if n is not None]
        return replace(
            result,
            status="held" if result.held else "success" if version is not None else "unchanged",
            rows_read=sum(read) if read else None,
            counts=result.counts.plus_written(mine.counts),
            version=version,
            warnings=[*mine.warnings, *result.warnings],
        )


@dataclass(frozen=True)
class Recorder:
    """Writes the records of one run."""

    store: Store
    run_id: str
    secrets: Sequence[str] = ()  # never recorded, whatever a driver says

    @contextmanager
    def announced(
        self, job: Job, this: Batch, began: float, undoes: str | None = None
    ) -> Iterator[None]:
        """A batch at work: announced before; when it fails, whatever the fault, it does not stay RUNNING for ever."""
        name = job.node.name
        point("running.before", name)
        if not self.store.put(ledger.control_rows(this, "RUNNING", now())):
            own = [r for r in self.store.control(name) if r.by(this.token.project, name)]
            raise Fenced(taken(name, this.token.batch, fence.holder(own)))
        try:
            with faults_told():
                point("running.after", name)
                yield
        except Fenced:
            raise
        except StrandlineError as e:
            self._fail(job, this, e, began, undoes)
            raise

    def ended(self) -> set[tuple[str, str]]:
        """Node and run of all batches that count."""
        return {(node, run) for run, node, _ in fence.counting(self.store.all_runs())}

    def record(self, this: Batch, began: float, end: Ending) -> NodeResult:
        """Write the batch into the history and make it the newest state."""
        result, end = _result(this, began, end), _ended(this, end)
        node = this.token.node
        with step(node, "record"):
            point("log.before", node)
            row = self.log(
                this, result, end.coverage, None, end.recovery or _redone(this, self.run_id)
            )
            point("log.after", node)
            result = _as_told(result, row)
            done = ledger.control_rows(
                this,
                "SUCCESS",
                now(),
                rows_read=end.rows_read,
                rows_written=end.counts.written,
                versions=end.versions,
                coverage=row.coverage,
            )
            point("put.before", node)
            self.store.put(done)
            point("put.after", node)
        return result

    def _fail(
        self, job: Job, this: Batch, error: StrandlineError, began: float, undoes: str | None
    ) -> None:
        result = NodeResult(job.node.name, "failed", seconds=round(time.monotonic() - began, 3))
        message = redact(error.message, self.secrets)
        self.log(this, result, Coverage(undoes=undoes), message)
        self.store.put(ledger.control_rows(this, "FAILED", now(), error=message))

    def foreseen(self, this: Batch, end: Ending, told: str) -> RunRow:
        """The row that a batch will have which landed and is not recorded; nothing is written."""
        return self.row(
            this, _result(this, time.monotonic(), end), _ended(this, end).coverage, None, told
        )

    def log(
        self,
        this: Batch,
        result: NodeResult,
        coverage: Coverage,
        error: str | None,
        recovery: str | None = None,
    ) -> RunRow:
        return self.store.log(self.row(this, result, coverage, error, recovery))

    @staticmethod
    def row(
        this: Batch, result: NodeResult, coverage: Coverage, error: str | None, recovery: str | None
    ) -> RunRow:
        token = this.token
        metrics = timings() if enabled("METRICS") else None
        return RunRow(
            run_id=token.run_id,
            project=token.project,
            node=token.node,
            batch=token.batch,
            target_table=this.target,
            status="recovered"
            if recovery and not coverage.known
            else result.status,  # a remark, not an ending
            started_at=this.started_at,
            completed_at=now(),
            seconds=result.seconds,
            rows_read=result.rows_read,
            **result.counts.shown,
            version=result.version,
            token=f"{token.app_id}/{token.batch}",
            coverage=coverage,
            warnings=json.dumps(result.warnings),
            error=error,
            metrics=json.dumps(metrics) if metrics is not None else None,
            recovery=recovery,
            takes_back=coverage.undoes,
        )


def _result(this: Batch, began: float, end: Ending) -> NodeResult:
    changed = end.version is not None or end.coverage.quarantine is not None
    return NodeResult(
        this.token.node,
        "held" if end.counts.held else "success" if changed else "unchanged",
        end.rows_read,
        replace(end.counts, quarantined=end.coverage.quarantined),
        version=end.version,
        seconds=round(time.monotonic() - began, 3),
        warnings=list(end.warnings),
    )


def _as_told(result: NodeResult, row: RunRow) -> NodeResult:
    """The result as the history has it: a person may have decided meanwhile on what the batch held."""
    if row.held == result.held:
        return result
    counts = replace(result.counts, held=row.held)
    said = json.loads(row.warnings or "[]")
    return replace(result, status="held" if row.held else "success", counts=counts, warnings=said)


def _ended(this: Batch, end: Ending) -> Ending:
    """An ending that says who brought it about, and which commits it knew."""
    known = this.token.txn - (not end.made)
    coverage = replace(end.coverage, run=this.token.run_id, commit=known, committed=end.made)
    return replace(end, coverage=coverage)


def _redone(this: Batch, run_id: str) -> str | None:
    """What is told of a batch that an earlier runner had announced and never ended."""
    died = any(
        r.batch_status == "RUNNING" and r.batch_id == this.batch_id for r in this.previous.values()
    )
    mine = this.token.run_id == run_id
    return (
        f"did batch {this.token.batch} again: whoever had begun it died, or came second"
        if died and mine
        else None
    )


def now() -> datetime:
    """The instant at which something is recorded."""
    return datetime.now(UTC)
