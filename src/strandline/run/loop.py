"""The one loop of every command that works on nodes: run, plan, follow a plan, undo."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from strandline.config.load import Project
from strandline.errors import StrandlineError
from strandline.plan.graph import Graph
from strandline.result import NodeResult
from strandline.run.boundary import boundary
from strandline.run.observer import Observer
from strandline.run.retry import Checkpoint
from strandline.run.schedule import walk

Work = Callable[[str], NodeResult]


@dataclass(frozen=True)
class Loop:
    """Works on nodes one by one or side by side; a failure becomes the result of its node, and its error is kept."""

    project: Project
    graph: Graph
    watch: Observer
    checkpoint: Checkpoint | None = None
    errors: list[StrandlineError] = field(default_factory=list)

    def over(
        self,
        chosen: Sequence[str],
        work: Work,
        threads: int = 1,
        after: Callable[[NodeResult], Iterable[NodeResult]] = lambda _: (),
    ) -> list[NodeResult]:
        """Work on each node after its ancestors; what depends on a failed node is skipped."""
        return walk(
            self.graph, chosen, threads, lambda name: self._one(name, work), self._done, after
        )

    def in_line(self, chosen: Sequence[str], work: Work, skipped: str) -> list[NodeResult]:
        """Work on nodes in the order given, up to the first that fails."""
        results = []
        for name in chosen:
            if self.errors:
                results.append(NodeResult(name, "skipped", warnings=[skipped]))
                continue
            results.append(self._one(name, work))
            self._done(results[-1])
        return results

    def _one(self, name: str, work: Work) -> NodeResult:
        self.watch.started(name)
        with boundary(self.project, name, self.errors) as found:
            found.append(work(name))
        return found[0]

    def _done(self, result: NodeResult) -> None:
        if self.checkpoint is not None:
            self.checkpoint.done(result)
        self.watch.finished(result)
