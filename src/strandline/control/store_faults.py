"""What is wrong with a control table that cannot be read or written: which one, where, and what to do."""

from __future__ import annotations

from pathlib import Path

from strandline.errors import NodeError, TableError
from strandline.refusal import refused

_WITHOUT = {
    "etl_control": "the next run makes it again from the tables' own logs",
    "etl_runs": "the history, held deletes and what could be undone are lost then, the tables are not",
    "etl_changes": "held deletes and the reasons of single changes are lost then, the tables are not",
}


def unreadable(place: Path, error: Exception) -> NodeError:
    """A control table that is there and cannot be read."""
    if found := refused(f"the control table {place.name} in {place} cannot be read", error):
        return found
    without = _WITHOUT.get(place.name, "what it held is lost then")
    return TableError(
        f"the control table {place.name} in {place} is damaged: {_first_line(error)}",
        hint=f"put that folder back from a backup, or move it away: {without}",
    )


def unwritable(folder: Path, error: Exception) -> NodeError:
    """Control tables that cannot be written, and not because somebody else does."""
    then = "what has landed in the tables stays, and the next run finishes its record"
    if found := refused(f"the control tables in {folder} cannot be written", error, then):
        return found
    hint = "`strandline doctor` looks at all of them; what has landed in the tables stays"
    return TableError(
        f"the control tables in {folder} cannot be written: {_first_line(error)}", hint=hint
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def wrong_shape(place: Path, found: str | None, known: str) -> TableError:
    """A control table that another version of strandline has written."""
    return TableError(
        f"the control table {place.name} in {place} has another shape: it says {found or 'nothing of one'!r}, and this "
        f"strandline knows {known!r}",
        hint="run the version of strandline that wrote it; or move that folder away: "
        + _WITHOUT.get(place.name, "what it held is lost then"),
    )
