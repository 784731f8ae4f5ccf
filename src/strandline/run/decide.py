"""The deletes that wait for a person: whose they are among the nodes of a project, and whether they can be approved."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strandline.control.holds import open_holds, unapprovable
from strandline.control.ledger import ChangeRow
from strandline.errors import UsageError, did_you_mean
from strandline.lake import describe
from strandline.plan.job import Job


@dataclass(frozen=True)
class Choice:
    """Which of the held deletes of a run a person decides on: of one node, with some keys, or all of them."""

    node: str | None = None
    keys: Sequence[Mapping[str, str | None]] | None = None

    def of(self, held: Mapping[str, list[ChangeRow]], run_id: str) -> dict[str, list[ChangeRow]]:
        """The rows that are chosen, by node; an error when there are none."""
        if self.node is not None and self.node not in held:
            raise UsageError(
                f"run `{run_id}` holds no deletes of `{self.node}`",
                hint=f"it holds deletes of: {', '.join(held)}",
            )
        found = {n: rows for n, rows in held.items() if self.node in (None, n)}
        if self.keys is None:
            return found
        wanted = [{k.casefold(): v for k, v in key.items()} for key in self.keys]
        found = {n: [r for r in rows if _key(r) in wanted] for n, rows in found.items()}
        found = {n: rows for n, rows in found.items() if rows}
        if not found:
            raise UsageError(
                f"run `{run_id}` holds no delete with one of these keys",
                hint=f"strandline holds {run_id} --csv lists them",
            )
        return found


def _key(row: ChangeRow) -> dict[str, str | None]:
    """The key of a held row as texts, by folded names."""
    return {k.casefold(): None if v is None else _text(v) for k, v in json.loads(row.key).items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Held:
    """What was noted of single rows, and the nodes of a project in the order of its graph."""

    changes: Sequence[ChangeRow]
    jobs: Sequence[Job]

    def by_node(self) -> dict[str, list[ChangeRow]]:
        """The held deletes that nobody has decided on yet, by the node that writes their table."""
        writers, found = self._writers(), dict[str, list[ChangeRow]]()
        for table, rows in open_holds(self.changes).items():
            found.setdefault(writers.get(table, rows[0].node), []).extend(rows)
        return found

    def of_run(self, run_id: str) -> dict[str, list[ChangeRow]]:
        """The open holds of a run, in the order of the graph; an error when there are none."""
        found, writers = open_holds(self.changes, run_id), self._writers()
        by_node = {writers.get(table, rows[0].node): rows for table, rows in found.items()}
        if known := {
            job.node.name: by_node[job.node.name] for job in self.jobs if job.node.name in by_node
        }:
            return known
        if found:
            names = ", ".join(f"`{rows[0].node}`" for rows in found.values())
            raise UsageError(
                f"run `{run_id}` holds deletes of {', '.join(found)}, which no node of this project writes now",
                hint=f"bring back the node that did ({names}) to approve or reject them",
            )
        others = sorted({r.run_id for rows in open_holds(self.changes).values() for r in rows})
        hint = f"deletes are held by: {', '.join(others)}" if others else "no deletes are held"
        raise UsageError(
            f"run `{run_id}` holds no deletes", hint=did_you_mean(run_id, others) or hint
        )

    def unapprovable(self, name: str, held: Sequence[ChangeRow]) -> UsageError | None:
        """Why no run can apply the held deletes of a node; None when one can look again for their keys."""
        job = next(j for j in self.jobs if j.node.name == name)
        looks = job.node.write.keyed and job.detection is not None
        why = unapprovable(held, name, job.target.label, job.node.write.keys, looks=looks)
        hint = f"set it back and approve then, or end them: strandline reject {held[0].run_id}"
        if why is None and describe(job.target) is None:
            why = f"the table {job.target.label} is gone, and what is held ends with it"
            hint = f"a run makes it anew from its sources: strandline run --select {name}"
        if why is None:
            return None
        return UsageError(
            f"the deletes held by run {held[0].run_id} cannot be approved: {why}", hint=hint
        )

    def _writers(self) -> dict[str, str]:
        return {job.target.label: job.node.name for job in self.jobs}
