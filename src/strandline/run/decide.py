"""The deletes that wait for a person: whose they are among the nodes of a project, and whether they can be approved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strandline.control.holds import approvals, open_holds, unapprovable
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
        return self._grouped(open_holds(self.changes))

    def _grouped(self, open_: Mapping[str, Sequence[ChangeRow]]) -> dict[str, list[ChangeRow]]:
        """Held deletes by node; not those of tables that were made anew, or that no node here has written."""
        writers, found = self._writers(), dict[str, list[ChangeRow]]()
        for row in (r for rows in open_.values() for r in rows):
            if job := self._job(writers, row):
                found.setdefault(job.node.name, []).append(row)
        return found

    def of_run(self, run_id: str, *, none: bool = False) -> dict[str, list[ChangeRow]]:
        """The open holds of a run, in the order of the graph; an error when there are none, unless that is fine."""
        found = open_holds(self.changes, run_id)
        by_node = self._grouped(found)
        if known := {
            job.node.name: by_node[job.node.name] for job in self.jobs if job.node.name in by_node
        }:
            return known
        if none:
            return {}
        if found:
            rows = [r for held in found.values() for r in held]
            names = ", ".join(f"`{n}`" for n in sorted({r.node for r in rows}))
            tables = ", ".join(sorted({r.target_table for r in rows}))
            raise UsageError(
                f"run `{run_id}` holds deletes of {tables}, which no node of this project writes now",
                hint=f"bring back the node that did ({names}) to approve or reject them",
            )
        others = sorted({r.run_id for rows in self.by_node().values() for r in rows})
        hint = f"deletes are held by: {', '.join(others)}" if others else "no deletes are held"
        raise UsageError(
            f"run `{run_id}` holds no deletes", hint=did_you_mean(run_id, others) or hint
        )

    def approved(self, run_id: str) -> set[str]:
        """The nodes with deletes that the run held, that a person has approved, and that no batch has applied."""
        of_run = {(c.table_id, c.key_hash) for c in self.changes if c.run_id == run_id}
        rows = [r for r in approvals(self.changes) if (r.table_id, r.key_hash) in of_run]
        writers = self._writers()
        jobs = (self._job(writers, row) for row in rows if row.table_id in writers)
        return {job.node.name for job in jobs if job}

    def unapprovable(self, name: str, held: Sequence[ChangeRow]) -> UsageError | None:
        """Why no run can apply the held deletes of a node; None when one can look again for their keys."""
        job = next(j for j in self.jobs if j.node.name == name)
        looks = job.node.write.keyed and job.detection is not None
        why = unapprovable(held, name, job.node.write.keys, looks=looks)
        state = describe(job.target)
        if state and state.table_id != held[0].table_id:
            why = f"node `{name}` writes {job.target.label} now, and they are held for {held[0].target_table}"
        hint = f"set it back and approve then, or end them: strandline reject {held[0].run_id}"
        if why is None and state is None:
            why = f"the table {job.target.label} is gone, and what is held ends with it"
            hint = f"a run makes it anew from its sources: strandline run --select {name}"
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

    def _job(self, writers: Mapping[str, Sequence[Job]], row: ChangeRow) -> Job | None:
        """The node that looks for this delete: it writes its table, or did and writes another one now."""
        jobs = writers.get(row.table_id, ())
        if jobs:
            return next((j for j in jobs if j.source == row.source), jobs[0])
        moved = (j for j in self.jobs if j.node.name == row.node)
        gone = (j for j in moved if j.target.label != row.target_table or not describe(j.target))
        return next(gone, None)
