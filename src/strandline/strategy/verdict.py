"""The verdict over found deletes: apply them, hold them for a person, leave them, or refuse the batch. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from strandline.config.deletes import DeleteDetectionConfig
from strandline.errors import DeleteThresholdExceeded, EmptySource
from strandline.words import agree, plural

Kind = Literal["apply", "hold", "skip", "refuse"]


@dataclass(frozen=True)
class Verdict:
    """What becomes of the deletes that were found, and why."""

    kind: Kind = "apply"
    found: int = 0
    alive: int = 0
    warning: str | None = None
    reason: str | None = None
    empty: bool = False  # is it about a source that came back empty?

    @property
    def percent(self) -> float | None:
        """Newly found deletes as a share of the rows alive; None when there was nothing to judge."""
        return 100.0 * self.found / self.alive if self.alive else None

    @property
    def applied(self) -> bool:
        return self.kind == "apply"

    @property
    def refusal(self) -> DeleteThresholdExceeded | None:
        """The error that a run ends with, instead of writing; a plan shows it beside what was found."""
        if self.kind != "refuse":
            return None
        error = EmptySource if self.empty else DeleteThresholdExceeded
        return error(
            self.reason or "", percent=self.percent or 0.0, found=self.found, alive=self.alive
        )


def judge(
    config: DeleteDetectionConfig, found: int, alive: int, empty: Callable[[], bool], label: str
) -> Verdict:
    """Judge newly found deletes."""
    verdict = Verdict(found=found, alive=alive)
    if not found:
        return verdict
    if empty():
        return _empty(config, found, alive, label)
    reason = _breach(config, found, alive)
    if reason is None:
        return verdict
    shown = f"{verdict.percent or 0.0:.1f}%"
    match config.on_threshold_breach:
        case "error":
            return Verdict("refuse", found, alive, reason=reason)
        case "warn":
            text = f"Delete detection: {shown} of rows flagged for deletion ({found:,} of {alive:,}; {reason})"
            return Verdict("apply", found, alive, text, reason)
        case "skip":
            text = f"Delete threshold exceeded, skipping delete detection ({found:,} of {alive:,} rows; {reason})"
            return Verdict("skip", found, alive, text, reason)
    held = agree(found, "is", "are")
    text = (
        f"{found:,} of {plural(alive, 'row')} ({shown}) would be deleted, and {held} held: {reason}"
    )
    return Verdict("hold", found, alive, text, reason)


def _empty(config: DeleteDetectionConfig, found: int, alive: int, label: str) -> Verdict:
    reason = f"the source came back empty, so {found:,} of {plural(alive, 'row')} of {label} would be deleted"
    if config.on_empty_source == "apply":
        told = f"{plural(found, 'row')} of {label} {agree(found, 'is', 'are')} deleted"
        return Verdict("apply", found, alive, f"the source came back empty: {told}")
    if config.on_empty_source == "error":
        return Verdict("refuse", found, alive, reason=reason, empty=True)
    return Verdict(
        "hold", found, alive, f"{reason}; the deletes are held", "the source came back empty"
    )


def _breach(config: DeleteDetectionConfig, found: int, alive: int) -> str | None:
    """Strictly more than tolerated."""
    percent = 100.0 * found / alive if alive else 0.0
    if config.max_delete_percent is not None and percent > config.max_delete_percent:
        return f"{percent:.1f}% exceeds {config.max_delete_percent}%"
    if config.max_delete_count is not None and found > config.max_delete_count:
        return f"{plural(found, 'row')} {agree(found, 'exceeds', 'exceed')} {config.max_delete_count:,}"
    return None
