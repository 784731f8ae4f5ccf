"""One batch made ready: everything up to its effects, for a run that applies it at once and for a plan that waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from strandline.batch import business_time, compare, follow, read, target_filter
from strandline.batch.checks import check_required
from strandline.batch.compare import Landing, Outcome
from strandline.batch.missed import with_missed
from strandline.batch.notes import change_rows, evidence, sample_deletes
from strandline.config.deletes import DeleteDetectionMode
from strandline.control.coverage import Coverage
from strandline.control.ledger import ChangeRow
from strandline.engine.base import Engine
from strandline.errors import DuplicateKeys, StalePlan, StrandlineError, TransformError
from strandline.failpoints import point
from strandline.journal import log, step
from strandline.lake import describe
from strandline.plan.inputs import is_lake
from strandline.plan.job import Feed, Job, Planned
from strandline.plan.lines import failed
from strandline.result import PlannedNode, Status
from strandline.sql.expr import rows_of
from strandline.strategy.changes import ChangeSet, Removals, after, measures
from strandline.strategy.verdict import Verdict
from strandline.types import Column, Counts, TableState

_PARTLY = (DeleteDetectionMode.WATERMARK_WINDOW, DeleteDetectionMode.FEED)
"""Ways of finding deletes that do not look at every row of the table."""


@dataclass(frozen=True)
class Ready:
    """A batch that only needs to be applied: by the run that prepared it, or later from a plan."""

    changes: ChangeSet
    coverage: Coverage
    rows_read: Callable[[], int | None]
    versions: Mapping[str, int]
    added: Sequence[Column] = ()
    system: Mapping[str, Column] = field(default_factory=dict)
    notes: Sequence[ChangeRow] = ()
    warnings: Sequence[str] = ()
    duplicates: Callable[[], StrandlineError] = lambda: DuplicateKeys([], 0, [])
    events: Landing | None = None  # what a history in business time commits first
    recovery: str | None = None  # its events landed before: what is told of the runner that died
    verdict: Verdict | None = None  # on the deletes that were found; a refused batch does not land


@dataclass(frozen=True)
class Entry:
    """One node of a plan: what to apply, and what it was made from."""

    name: str
    batch: int
    target: TableState | None
    ready: Ready

    def check(self, job: Job, batch: int, state: TableState | None) -> None:
        """The plan is stale when the records, the target or a lake source are not what they were."""
        if batch != self.batch:
            raise StalePlan(
                f"{self.name}: the plan is for batch {self.batch}, and the next one is {batch}"
            )
        then, now = ((s.table_id, s.version) if s else None for s in (self.target, state))
        if then != now:
            raise StalePlan(
                f"{self.name}: {job.target.label} was at version {_seen(then)}, and is at {_seen(now)}"
            )
        if events := self.ready.events:
            there = describe(events.table)
            then, now = ((s.table_id, s.version) if s else None for s in (events.state, there))
            if then != now:
                raise StalePlan(
                    f"{self.name}: {events.table.label} was at {_seen(then)}, and is at {_seen(now)}"
                )
        for input_ in job.inputs:
            pin = self.ready.coverage.sources.get(input_.key)
            lake = describe(read.lake_of(job, input_)) if pin else None
            if pin and (
                lake is None or (lake.table_id, lake.version) != (pin.table_id, pin.version)
            ):
                now = (lake.table_id, lake.version) if lake else None
                raise StalePlan(
                    f"{self.name}: {input_.label} was at version {pin.version}, and is at {_seen(now)}"
                )

    def coverage(self, job: Job) -> Coverage:
        """What the batch covers, with the versions of the sources that the same plan has written by now."""
        sources = dict(self.ready.coverage.sources)
        for input_ in job.inputs:
            if is_lake(job.project, input_.read) and input_.key not in sources:
                state = describe(read.lake_of(job, input_))
                if state is not None:
                    sources[input_.key] = read.pin(job, state, read.feed_of(job, input_))
        return replace(self.ready.coverage, sources=sources)


def _seen(state: tuple[str, int] | None) -> str:
    return "none" if state is None else str(state[1])


def prepare(job: Job, engine: Engine, state: TableState | None) -> Outcome:
    """Steps 1 to 4: read, transform, reconcile, judge."""
    for told in job.past.said:
        log.warning("%s: %s", job.node.name, told)
    try:
        outcome = with_missed(job, engine, _still_held(job, _judged(job, engine, state)))
        outcome = replace(
            outcome, warnings=(*job.past.said, *outcome.slice.said, *outcome.warnings)
        )
        check_required(job, engine, state, outcome.changes, outcome.made.fit.kept)
    except TransformError as e:
        if named := target_filter.fault(job, engine, state, e):
            raise named from e
        raise
    point("judged", job.node.name)
    return outcome


def _still_held(job: Job, outcome: Outcome) -> Outcome:
    """A batch that does not look for deletes decides about none: what is held for a person stays held."""
    held, counts = int(job.past.memory.held), outcome.changes.counts
    if not held or counts is None or outcome.made.finding is not None or not job.node.write.keyed:
        return outcome
    return replace(outcome, changes=replace(outcome.changes, counts=replace(counts, held=held)))


def _judged(job: Job, engine: Engine, state: TableState | None) -> Outcome:
    name = job.node.name
    with step(name, "read"):
        slice_ = follow.read_or_follow(job, engine, state)
    point("read.after", name)
    with step(name, "transform"):
        transformed = follow.transform(job, engine, slice_, state)
    if job.events is not None:
        with step(name, "fold"):
            return business_time.prepare(job, engine, slice_, transformed, state)
    with step(name, "reconcile"):
        made = compare.reconcile(job, engine, slice_, transformed, state)
    with step(name, "evaluate"):
        outcome = compare.evaluate(job, engine, slice_, transformed.rows, made)
    counts = outcome.changes.counts
    emptied = (
        outcome.changes.removals is Removals.EVERYTHING and counts is not None and counts.deleted
    )
    if emptied and counts and counts.inserted + counts.unchanged == 0:
        text = f"the source is empty, so {job.target.label} is overwritten with nothing"
        outcome = replace(outcome, warnings=(*outcome.warnings, text))
    return outcome


def _coverage(job: Job, outcome: Outcome) -> Coverage:
    """What this batch covers, for the next ones to know."""
    keyed, counts = job.node.write.keyed, outcome.changes.counts
    looked = bool(outcome.measured)
    return replace(
        outcome.slice.coverage,
        mode=job.node.write.mode,
        keys=tuple(job.keys) if keyed else None,
        at=job.at if keyed else None,
        lacks=()
        if keyed
        else tuple(c.name for c in outcome.made.fit.kept),  # by keys, the stored values stay
        notes=_open_notes(job, outcome) if looked else 0,
        held=counts.held if looked and counts else 0,
        before=job.past.before,
        missed=outcome.missed,
    )


def _open_notes(job: Job, outcome: Outcome) -> int:
    """How many keys have an open note after this batch."""
    m, verdict = outcome.measured, outcome.verdict
    new = verdict.found if verdict and verdict.kind == "hold" else 0
    found = int(m["open"] + m["silenced"] + m["missing"] + new)
    return found if _looked_at_all(job, outcome) else max(found, job.past.memory.notes)


def _looked_at_all(job: Job, outcome: Outcome) -> bool:
    """Was every row of the table in question? Else what was noted of the others stays noted."""
    finding, config = outcome.made.finding, job.detection
    return (
        finding is not None
        and finding.absence.scope is None
        and config is not None
        and config.mode not in _PARTLY
    )


def readied(job: Job, engine: Engine, outcome: Outcome) -> Ready:
    """What is left to apply of a prepared batch."""
    keys = job.node.write.keys
    return Ready(
        outcome.changes,
        _coverage(job, outcome),
        lambda: outcome.slice.rows_read,
        outcome.slice.versions,
        outcome.made.fit.added,
        outcome.made.system,
        change_rows(job, engine, outcome),
        outcome.warnings,
        lambda: compare.duplicate_keys(engine, outcome.rows, keys),
        outcome.events,
        verdict=outcome.verdict,
    )


def _counted(job: Job, engine: Engine, outcome: Outcome) -> ChangeSet:
    """The change set of a first load, evaluated before its commit would do so."""
    try:
        staged = engine.stage(rows_of(outcome.changes.additions), measures(), None)
    except DuplicateKeys:
        raise compare.duplicate_keys(engine, outcome.rows, job.node.write.keys) from None
    return replace(outcome.changes, additions=staged.relation, counts=Counts(**staged.measures))


def _kind(verdict: Verdict | None, counts: Counts) -> str | None:
    """The verdict on all deletes that a run would find: those that wait for a person are not applied either."""
    applied = verdict is None or verdict.applied
    return "hold" if applied and counts.held else verdict.kind if verdict else None


def plan_node(
    job: Job, engine: Engine, state: TableState | None
) -> tuple[PlannedNode, Planned, Ready]:
    """What a run would do to this node's table, and the table as it would be; nothing is written."""
    began = time.monotonic()
    outcome = prepare(job, engine, state)
    changes, verdict = outcome.changes, outcome.verdict
    if changes.counts is None:
        changes = _counted(job, engine, outcome)
    refusal = verdict.refusal if verdict else None
    counts = Counts() if refusal else changes.counts or Counts()
    done: Status = (
        "held" if counts.held else "success" if counts.any or state is None else "unchanged"
    )
    result = PlannedNode(
        job.node.name,
        "failed" if refusal else done,
        outcome.slice.rows_read,
        counts,
        seconds=round(time.monotonic() - began, 3),
        warnings=list(outcome.warnings),
        error=failed(job.project, job.node.name, refusal).error if refusal else None,
        found_deletes=verdict.found if verdict else None,
        verdict=_kind(verdict, counts),
        delete_percent=round(verdict.percent, 3)
        if verdict and verdict.percent is not None
        else None,
        sample_deletes=sample_deletes(engine, outcome),
        reason=evidence(job, outcome) if outcome.measured.get("deleted") else None,
    )
    rows = engine.query(after(changes, compare.target_rows(job, engine, state)))
    ready = readied(job, engine, replace(outcome, changes=changes))
    return result, Planned(rows, changes.roles, Feed(job.batch_id, ready.coverage)), ready
