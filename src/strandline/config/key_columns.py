"""Which columns of its source a node's keys are, told from its steps alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strandline.config.model import StepConfig

_KEEP_ROWS = {
    "deduplicate", "rename", "cast", "derive", "select", "drop", "generate_surrogate_key", "hash_columns",
    "detect_deletes",
}  # fmt: skip
_KEEP_VALUES = {"deduplicate", "cast", "select", "drop", "filter", "detect_deletes", "validate"}


def keeps_every_key(steps: Iterable[StepConfig]) -> bool:
    """Is every key still there after these steps? Any other step may leave rows out."""
    return all(step.operation in _KEEP_ROWS for step in steps)


def up_to_detection(steps: Sequence[StepConfig]) -> Sequence[StepConfig]:
    """The steps before the point where deletes are looked for."""
    looking = (
        s.operation == "detect_deletes" and s.params.get("mode", "none") != "none" for s in steps
    )
    return steps[: next((index for index, looks in enumerate(looking) if looks), len(steps))]


def source_columns(steps: Sequence[StepConfig], names: Sequence[str]) -> list[str | None]:
    """The column of the source that each of these columns is, perhaps cast; None where a step may compute it."""
    found: list[str | None] = [name.casefold() for name in names]
    for step in reversed(steps):
        found = [_before(step, name) if name is not None else None for name in found]
    return found


def _before(step: StepConfig, name: str) -> str | None:
    """What a column was called before a step."""
    if step.operation in _KEEP_VALUES:
        return name
    columns = step.params.get("columns", ())
    if step.operation == "rename":
        renamed = {str(new).casefold(): str(old).casefold() for old, new in columns.items()}
        return renamed.get(name, None if name in renamed.values() else name)
    made = {str(c).casefold() for c in columns}
    match step.operation:
        case "derive" | "hash_columns":
            return None if name in made else name
        case "generate_surrogate_key":
            return (
                None if name == str(step.params.get("output_col", "_hash_key")).casefold() else name
            )
    return None
