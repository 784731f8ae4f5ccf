"""A Delta table's change feed as its log tells it: which files hold the changes, and whether all of them are there.

Both engines ask here, before they read: a feed that cannot be read completely is not read at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from strandline.lake.delta import log
from strandline.lake.delta.log import FEED, file_of
from strandline.types import Table

CHANGE, VERSION = "_change_type", "_commit_version"


@dataclass(frozen=True)
class ChangeFile:
    """One file of a feed: rows that came or went with a version; `change` is None where the rows say it themselves."""

    path: str
    version: int
    change: str | None
    partition: dict[str, str | None]
    vector: bool


class _Commit:
    """The actions of one version, as its log entry lists them."""

    def __init__(self, version: int, lines: list[dict[str, Any]]) -> None:
        self.version = version
        self.actions = [(kind, body) for line in lines for kind, body in line.items()]

    def of(self, *kinds: str) -> list[tuple[str, dict[str, Any]]]:
        return [(kind, body) for kind, body in self.actions if kind in kinds]

    @property
    def moves_rows(self) -> bool:
        return any(body.get("dataChange", True) for _, body in self.of("add", "remove")) or bool(
            self.of("cdc")
        )

    @property
    def operation(self) -> str:
        return next((str(body.get("operation", "")) for _, body in self.of("commitInfo")), "")

    def files(self, table: Table) -> Iterator[ChangeFile]:
        """Where a version has files of changes, they are the feed; else the data files that came and went."""
        told = self.of("cdc")
        for kind, body in told or self.of("add", "remove"):
            if kind != "cdc" and not body.get("dataChange", True):
                continue
            change = {"cdc": None, "add": "insert", "remove": "delete"}[kind]
            parts = body.get("partitionValues") or {}
            yield ChangeFile(
                str(file_of(table, body["path"])),
                self.version,
                change,
                parts,
                bool(body.get("deletionVector")),
            )


def changed(table: Table, after: int, version: int) -> bool:
    """May rows have come or gone after one version up to another? Yes, when the log no longer says."""
    commits = _commits(table, after, version)
    return commits is None or any(c.moves_rows for c in commits)


def gap(table: Table, after: int, version: int, *, vectors: bool) -> str | None:
    """Why the changes after one version up to another cannot be read completely; None when they can.

    `vectors` says whether the reader can tell what a deletion vector took out of a file.
    """
    commits = _commits(table, after, version)
    if commits is None:
        return f"the log no longer reaches back to version {after + 1}"
    before = _opened(table, after) if after >= 0 else None
    if after >= 0 and before is None:
        return f"the log no longer reaches back to version {after}"
    if not vectors and before is not None and log.has_mapped_names(before):
        return "its files call columns by other names (column mapping)"
    return (
        _interrupted(commits, before)
        or _other_columns(commits, before)
        or _lost(table, commits, vectors=vectors)
    )


def _interrupted(commits: list[_Commit], before: DeltaTable | None) -> str | None:
    """The feed is on in every version, and the table is one and the same."""
    on = before is not None and before.metadata().configuration.get(FEED) == "true"
    table_id = str(before.metadata().id) if before else None
    for commit in commits:
        for _, body in commit.of("metaData"):
            on = body.get("configuration", {}).get(FEED) == "true"
            if table_id not in (None, body.get("id")):
                return f"version {commit.version} made the table anew"
            table_id = body.get("id")
        if not on:
            return f"the feed was off in version {commit.version}"
        if commit.operation == "RESTORE":
            return f"version {commit.version} restored an older one"
    return None


def _other_columns(commits: list[_Commit], before: DeltaTable | None) -> str | None:
    """Columns may come; one that went or has another type since would not be the same column."""
    shape = {c.name: c.type for c in log.schema_of(before)} if before else {}
    for commit in commits:
        for _, body in commit.of("metaData"):
            fields = json.loads(body["schemaString"])["fields"]
            next_ = {f["name"]: log.spark_type(f["type"]) for f in fields}
            for name, type_ in shape.items():
                if next_.get(name) != type_:
                    became = f"became {next_[name]}" if name in next_ else "was dropped"
                    return f"column `{name}` of type {type_} {became} in version {commit.version}"
            shape = next_
    return None


def _lost(table: Table, commits: list[_Commit], *, vectors: bool) -> str | None:
    for commit in commits:
        for file in commit.files(table):
            if not Path(file.path).exists():
                return f"files of version {commit.version} were vacuumed"
            if file.vector and not vectors:
                return f"version {commit.version} deleted rows by deletion vectors"
    return None


def files(table: Table, after: int, version: int) -> list[ChangeFile]:
    """The files of a feed that has no gap."""
    return [f for commit in _commits(table, after, version) or [] for f in commit.files(table)]


def enable(table: Table) -> None:
    """Turn the feed on; changes from here on can be read."""
    with log.conflicts_told(table):
        DeltaTable(table.location).alter.set_table_properties({FEED: "true"})


def _commits(table: Table, after: int, version: int) -> list[_Commit] | None:
    """The log's entries after one version up to another; None when one is no longer there."""
    found = []
    for number in range(after + 1, version + 1):
        try:
            text = (Path(table.location) / "_delta_log" / f"{number:020}.json").read_text(
                encoding="utf-8"
            )
        except FileNotFoundError:
            return None
        found.append(
            _Commit(number, [json.loads(line) for line in text.splitlines() if line.strip()])
        )
    return found


def _opened(table: Table, version: int) -> DeltaTable | None:
    try:
        return DeltaTable(table.location, version=version)
    except (DeltaError, OSError):
        return None
