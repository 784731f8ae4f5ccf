"""The door to the lake: tables of any format, wherever they are. Formats are imported when a table asks for them."""

from __future__ import annotations

from strandline.lake.base import TableFormat
from strandline.types import Commit, Table, TableState, Token

_FORMATS: dict[str, TableFormat] = {}


def register(format_: TableFormat) -> None:
    """Make a table format known under its name."""
    _FORMATS[format_.name] = format_


def format_of(table: Table) -> TableFormat:
    """The format in which a table is stored."""
    if table.format not in _FORMATS and table.format == "delta":
        from strandline.lake.delta import DeltaFormat

        register(DeltaFormat())
    return _FORMATS[table.format]


def describe(table: Table, app_id: str | None = None) -> TableState | None:
    """The table as it is, with the newest commit under `app_id`; None when there is no table."""
    return format_of(table).describe(table, app_id)


def commits(table: Table) -> list[Commit]:
    """All commits that a table still knows, the oldest first."""
    return list(format_of(table).history(table))[::-1]


def commit_of(table: Table, token: Token) -> Commit | None:
    """The commit that carries a token, whatever came after it."""
    for commit in format_of(table).history(table):
        if commit.number == token.number:
            mine = (commit.run_id, commit.source) == (token.run_id, token.source)
            return commit if mine else None
    return None


def newest_from(table: Table, source: str, after: int = 0) -> Commit | None:
    """The newest commit of ours from a source with a number above this one; None when there is none.

    What came before a commit of another writer that replaced the whole table is no longer in it.
    """
    for commit in format_of(table).history(table):
        if (commit.ours and commit.number <= after) or (commit.replaces and not commit.ours):
            return None
        if commit.ours and commit.source == source:
            return commit
    return None


def last_batch(table: Table) -> Commit | None:
    """The batch that last changed the rows of a table; None when that was another writer, or it is not known."""
    for commit in format_of(table).history(table):
        if "coverage" in commit.record:
            return commit
        if commit.moves_rows:
            return None
    return None


def parent_of(table: Table, version: int) -> int | None:
    """The version before a version; None for the first one, and where the table no longer knows."""
    found = (c.parent for c in format_of(table).history(table) if c.version == version)
    return next(found, None)


def authors_since(table: Table, version: int) -> list[str]:
    """Whose commits came after a version, in words."""
    found = [c for c in commits(table) if c.version > version]
    return [f"version {c.version}, by {_author(c)}" for c in found]


def _author(commit: Commit) -> str:
    return f"run {commit.run_id}" if commit.run_id else f"another writer ({commit.operation})"
