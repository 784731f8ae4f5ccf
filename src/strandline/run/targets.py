"""Several targets of one node: when one of them fails, what this run did to the others is taken back.

A target that another runner holds takes nothing back: that runner has written it, and those before it are wanted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from strandline.config.load import Project
from strandline.engine.base import Platform
from strandline.errors import RevertRefused, StrandlineError, TakenBack
from strandline.journal import log
from strandline.plan.job import Job
from strandline.plan.lines import failed
from strandline.result import NodeResult
from strandline.run.boundary import boundary
from strandline.run.runner import Runner
from strandline.types import Clock


@dataclass(frozen=True)
class Together:
    """The nodes of a run that have come to their end, and what becomes of those that have a failing one beside them."""

    project: Project
    runner: Runner
    back: str  # the run that takes back: a run of its own, as an undo is
    platform: Platform
    errors: list[StrandlineError]
    ended: dict[str, NodeResult] = field(default_factory=dict)

    def __call__(self, result: NodeResult) -> Iterator[NodeResult]:
        """A node has come to its end: the new results of those that are taken back because of it."""
        self.ended[result.name] = result
        names = self.project.together(result.name)
        if result.status != "failed" or len(names) == 1:
            return
        with boundary(self.project, result.name, []) as refused:
            self._take_back(self._job(result.name))  # its batch may have landed all the same
        if refused and refused[0].error and refused[0].error != result.error:
            note = f"what may have landed of it is not taken back: {refused[0].error['message']}"
            yield replace(result, warnings=[*result.warnings, note])
        for name in reversed(names[: names.index(result.name)]):
            if name in self.ended and (changed := self._without(self.ended[name], result)):
                yield changed

    def _without(self, done: NodeResult, because: NodeResult) -> NodeResult | None:
        """The result of a target after it was put back; None when this run had changed nothing there."""
        job, taken, refused = self._job(done.name), False, list[StrandlineError]()
        reason = f"`{because.name}` failed: {because.error['message'] if because.error else 'nobody knows why'}"
        with boundary(self.project, done.name, refused):
            taken = self._take_back(job)
        if refused:
            self.errors.append(RevertRefused([f"{job.target.label}: {refused[0].message}"], reason))
            return replace(
                done, status="failed", error=failed(self.project, done.name, self.errors[-1]).error
            )
        if not taken:
            return None
        log.warning("%s: taken back by run %s, because %s", done.name, self.back, reason)
        self.errors.append(TakenBack(reason))
        return replace(failed(self.project, done.name, self.errors[-1]), seconds=done.seconds)

    def _take_back(self, job: Job) -> bool:
        """Put one target back to where it was before this run; False when this run had changed nothing there."""
        from strandline.run.undo import of_node, undo_node

        with self.platform.workspace(job.node.name) as engine:
            self.runner.settle(job, time.monotonic(), engine)
            taking = of_node(job, self.runner.run_id, self.runner.store)
            if taking is not None:
                undo_node(replace(self.runner, run_id=self.back), job, engine, taking)
        return taking is not None

    def _job(self, name: str) -> Job:
        node = next(n for n in self.project.config.nodes if n.name == name)
        return Job(self.project, node, Clock(datetime.now(UTC)))
