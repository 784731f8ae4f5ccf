"""What is written down of a batch: that it is at work, how it ended, and the state that the next one starts from."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from strandline.control import ledger
from strandline.control.coverage import NOTHING, Coverage
from strandline.control.ledger import Batch, RunRow, Store
from strandline.errors import Fenced, StrandlineError, internal, panics_told, taken
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
        rows = ledger.control_rows(this, "RUNNING", now())
        if self.store.put(rows, this.records.revision) is None:
            raise Fenced(taken(name, self._holder(this)))
        try:
            with panics_told():
                point("running.after", name)
                yield
        except Fenced:
            raise
        except Exception as e:
            self._fail(
                job, this, e if isinstance(e, StrandlineError) else internal(e), began, undoes
            )
            raise

    def record(self, this: Batch, began: float, end: Ending) -> NodeResult:
        """Make the batch the newest state, and write it into the history."""
        result, end = _result(this, began, end), _ended(this, end)
        node = this.token.node
        with step(node, "record"):
            point("put.before", node)
            revision = self._put(this, end)
            point("put.after", node)
            point("log.before", node)
            row = self.row(this, result, end.coverage, None, end.recovery or _redone(this))
            self.store.log(row, revision)
            point("log.after", node)
        return result

    def tell(self, this: Batch, began: float, end: Ending, revision: int) -> NodeResult:
        """Write a batch into the history that is the newest state already."""
        result = _result(this, began, end)
        row = self.row(this, result, end.coverage, None, end.recovery)
        self.store.log(row, revision)
        return result

    def _put(self, this: Batch, end: Ending) -> int:
        """The revision of the state; an error when a batch without a commit comes too late."""
        done = ledger.control_rows(
            this,
            "SUCCESS",
            now(),
            rows_read=end.rows_read,
            rows_written=end.counts.written,
            versions=end.versions,
            coverage=end.coverage,
        )
        revision = self.store.put(done, this.records.revision)
        if revision is None and not end.made:
            raise Fenced(taken(this.token.node, self._holder(this)))
        return this.number if revision is None else revision

    def _holder(self, this: Batch) -> str | None:
        """The run that has gone on in the place of this one."""
        line = (this.records.table_id, this.records.source)
        return ledger.covered(r for r in self.store.states() if r.line == line).run

    def _fail(
        self, job: Job, this: Batch, error: StrandlineError, began: float, undoes: str | None
    ) -> None:
        result = NodeResult(job.node.name, "failed", seconds=round(time.monotonic() - began, 3))
        message = redact(error.message, self.secrets)
        self.log(this, result, Coverage(undoes=undoes), message)
        rows = ledger.control_rows(this, "FAILED", now(), error=message)
        self.store.put(rows, this.records.revision)

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
    ) -> None:
        self.store.log(self.row(this, result, coverage, error, recovery))

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
            batch=this.number,
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
            token=f"{token.app_id}/{coverage.commit}" if coverage.committed else None,
            coverage=coverage,
            warnings=json.dumps(result.warnings),
            error=error,
            table_id=this.records.table_id,
            source=this.records.source,
            metrics=json.dumps(metrics) if metrics is not None else None,
            recovery=recovery,
            takes_back=coverage.undoes,
        )


def _result(this: Batch, began: float, end: Ending) -> NodeResult:
    return NodeResult(
        this.token.node,
        "held" if end.counts.held else "success" if end.version is not None else "unchanged",
        end.rows_read,
        end.counts,
        version=end.version,
        seconds=round(time.monotonic() - began, 3),
        warnings=list(end.warnings),
    )


def _ended(this: Batch, end: Ending) -> Ending:
    """An ending that says which batch it is of, and which commits it knew."""
    known, token = this.records.last.commit or 0, this.token
    coverage = replace(
        end.coverage,
        run=token.run_id,
        batch=token.batch_id,
        commit=token.number if end.made else known,
        committed=end.made,
    )
    return replace(end, coverage=coverage)


def _redone(this: Batch) -> str | None:
    """What is told of a batch that an earlier runner had announced and never ended."""
    died = [r for r in this.records.mine if r.batch_status == "RUNNING"]
    if not any(r.batch_id != this.token.batch_id for r in died):
        return None
    return f"did batch {this.number} again: the runner that had begun it died, or came second"


def now() -> datetime:
    """The instant at which something is recorded."""
    return datetime.now(UTC)
