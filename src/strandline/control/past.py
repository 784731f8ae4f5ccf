"""The past of a table as its own log tells it, and which batches are still in it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from strandline.types import Commit


@dataclass(frozen=True)
class Standing:
    """The newest batch that is still in a table, and the commit of somebody else that removed later ones."""

    batch: Commit | None
    removed_by: Commit


def removed(
    commits: Mapping[int, Commit], now: int, known: int, own: Callable[[Commit], bool]
) -> Standing | None:
    """What is left of the batches up to the known version; None when all of it is.

    The log is read from the version of now backwards. A RESTORE leads to the version that it put back, and from there
    on; where the known version is met on the way, nothing is removed. Commits that the log no longer has removed
    nothing, as far as anybody can tell.
    """
    at: int | None = now
    by: Commit | None = None
    while at is not None and at != known and (commit := commits.get(at)):
        if by is not None and at < known and own(commit):
            return Standing(commit, by)
        if commit.restores is not None:
            at, by = commit.restores, commit
        elif commit.replaces:
            return Standing(None, commit)
        else:
            at = commit.parent
    return Standing(None, by) if by is not None and (at is None or at < known) else None
