"""What a run or a plan tells: one typed result per node, and the exit code that follows."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from strandline.types import Counts

Status = Literal["success", "unchanged", "held", "failed", "skipped", "fenced"]


@dataclass(frozen=True)
class NodeResult:
    """One node of one run. `version` is null when nothing was committed."""

    name: str
    status: Status
    rows_read: int | None = None
    counts: Counts = field(default_factory=Counts)
    version: int | None = None
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)
    error: dict[str, Any] | None = None

    @property
    def inserted(self) -> int:
        return self.counts.inserted

    @property
    def updated(self) -> int:
        return self.counts.updated

    @property
    def deleted(self) -> int:
        return self.counts.deleted

    @property
    def reopened(self) -> int:
        return self.counts.reopened

    @property
    def held(self) -> int:
        return self.counts.held

    @property
    def quarantined(self) -> int:
        return self.counts.quarantined

    @property
    def refused(self) -> bool:
        """True when a plan knows what a run would do, and that it would refuse the deletes that it finds."""
        return False

    def as_dict(self) -> dict[str, Any]:
        """The shape of `run --json`: the counts stand beside the rest."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "counts"}
        first = {"name": self.name, "status": self.status, "rows_read": self.rows_read}
        return {**first, **self.counts.shown, **found}


@dataclass(frozen=True)
class PlannedNode(NodeResult):
    """One node of a plan: the same, and what would become of the deletes and of the table's columns."""

    verdict: str | None = None
    found_deletes: int | None = None
    delete_percent: float | None = None
    sample_deletes: list[dict[str, Any]] = field(default_factory=list)
    reason: str | None = None
    schema_changes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def refused(self) -> bool:
        return self.verdict == "refuse"


@dataclass(frozen=True)
class RunResult:
    """A whole run."""

    run_id: str
    status: Literal["success", "failed"]
    nodes: list[NodeResult]

    @property
    def exit_code(self) -> int:
        """When several apply: 2 (never here), 1, 4, 3."""
        seen = {n.status for n in self.nodes}
        return 1 if "failed" in seen else 4 if "fenced" in seen else 3 if "held" in seen else 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "status": self.status,
            "nodes": [n.as_dict() for n in self.nodes],
        }


@dataclass(frozen=True)
class UndoResult(RunResult):
    """A run that took another one back, the last node first; of a dry run nothing was written."""

    undone: str = ""
    dry_run: bool = False
    held: dict[str, int] = field(
        default_factory=dict
    )  # by node, the deletes that the run held: they go with it

    def as_dict(self) -> dict[str, Any]:
        return {
            **super().as_dict(),
            "undone": self.undone,
            "dry_run": self.dry_run,
            "held": self.held,
        }


@dataclass(frozen=True)
class PlanResult:
    """What a run would do, and how many rows it would touch."""

    nodes: list[NodeResult]

    def as_dict(self) -> dict[str, Any]:
        return {"nodes": [n.as_dict() for n in self.nodes]}

    @property
    def whole(self) -> bool:
        """Is it known of every node what a run would do? Else there is no plan to keep."""
        return not any(n.status in ("failed", "fenced") and not n.refused for n in self.nodes)

    @property
    def exit_code(self) -> int:
        return 1 if any(n.status == "failed" for n in self.nodes) else 0
