"""The past of a table as its own log tells it, and which batches are still in it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

UNKNOWN = -1
"""The version that a RESTORE put back, where the log does not say which one that was."""


@dataclass(frozen=True)
class TableCommit:
    """One commit to a table; its record, if it was one of ours."""

    version: int
    at: datetime
    operation: str
    record: dict[str, Any]
    restores: int | None = None  # the version that a RESTORE put back
    replaces: bool = False  # all rows of the table, whatever they were


@dataclass(frozen=True)
class Standing:
    """The newest batch that is still in a table, and the commit of somebody else that removed later ones."""

    batch: TableCommit | None
    removed_by: TableCommit


def removed(
    commits: Mapping[int, TableCommit], now: int, known: int, own: Callable[[TableCommit], bool]
) -> Standing | None:
    """What is left of the batches up to the known version; None when all of it is.

    The log is read from the version of now backwards. A RESTORE leads to the version that it put back, and from there
    on; where the known version is met on the way, nothing is removed. Commits that the log no longer has removed
    nothing, as far as anybody can tell.
    """
    at, by = now, None
    while at != known and (commit := commits.get(at)):
        if by is not None and at < known and own(commit):
            return Standing(commit, by)
        if commit.restores is not None:
            at, by = commit.restores, commit
        elif commit.replaces:
            return Standing(None, commit)
        else:
            at -= 1
    return Standing(None, by) if by is not None and at < known else None
