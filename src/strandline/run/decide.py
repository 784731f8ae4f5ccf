"""The deletes that wait for a person: whose they are among the nodes of a project, and whether they can be approved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.control.holds import open_holds, unapprovable
from strandline.control.ledger import ChangeRow
from strandline.errors import UsageError, did_you_mean
from strandline.lake import describe
from strandline.plan.job import Job


@dataclass(frozen=True)
class Held:
    """What was noted of single rows, and the nodes of a project in the order of its graph."""

    changes: Sequence[ChangeRow]
    jobs: Sequence[Job]

    def by_node(self) -> dict[str, list[ChangeRow]]:
        """The held deletes that no person has decided on yet, by the node that writes their table."""
        writers, found = self._writers(), dict[str, list[ChangeRow]]()
        for table, rows in open_holds(self.changes).items():
            for row in rows if table in writers else ():
                found.setdefault(self._writer(writers, row), []).append(row)
        return found

    def of_run(self, run_id: str) -> dict[str, list[ChangeRow]]:
        """The open holds of a run, in the order of the graph; an error when there are none."""
        found, writers = open_holds(self.changes, run_id), self._writers()
        by_node: dict[str, list[ChangeRow]] = {}
        for row in (r for table, rows in found.items() if table in writers for r in rows):
            by_node.setdefault(self._writer(writers, row), []).append(row)
        if known := {
            job.node.name: by_node[job.node.name] for job in self.jobs if job.node.name in by_node
        }:
            return known
        if found:
            rows = [r for held in found.values() for r in held]
            names = ", ".join(f"`{n}`" for n in sorted({r.node for r in rows}))
            tables = ", ".join(sorted({r.target_table for r in rows}))
            raise UsageError(
                f"run `{run_id}` holds deletes of {tables}, which no node of this project writes now",
                hint=f"bring back the node that did ({names}) to approve or reject them",
            )
        held = [r for t, rows in open_holds(self.changes).items() if t in writers for r in rows]
        others = sorted({r.run_id for r in held})
        hint = f"deletes are held by: {', '.join(others)}" if others else "no deletes are held"
        raise UsageError(
            f"run `{run_id}` holds no deletes", hint=did_you_mean(run_id, others) or hint
        )

    def unapprovable(self, name: str, held: Sequence[ChangeRow]) -> UsageError | None:
        """Why no run can apply the held deletes of a node; None when one can look again for their keys."""
        job = next(j for j in self.jobs if j.node.name == name)
        looks = job.node.write.keyed and job.detection is not None
        why = unapprovable(held, name, job.node.write.keys, looks=looks)
        hint = f"set it back and approve then, or end them: strandline reject {held[0].run_id}"
        if why is None:
            return None
        return UsageError(
            f"the deletes held by run {held[0].run_id} cannot be approved: {why}", hint=hint
        )

    def _writers(self) -> dict[str, list[Job]]:
        """The nodes by the id of the table that they write."""
        found: dict[str, list[Job]] = {}
        for job in self.jobs:
            if state := describe(job.target):
                found.setdefault(state.table_id, []).append(job)
        return found

    @staticmethod
    def _writer(writers: dict[str, list[Job]], row: ChangeRow) -> str:
        """The node that looks for this delete: of several that write its table, the one with its source."""
        jobs = writers[row.table_id]
        return next((j for j in jobs if j.source == row.source), jobs[0]).node.name
