"""A plan in a file: the staged change sets of all nodes, and what they were made from. A ZIP of JSON and Parquet."""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from strandline.config.load import Project
from strandline.control.ledger import ChangeRow
from strandline.engine.base import Engine, FileSource
from strandline.engine.plan_rows import write_rows
from strandline.errors import StalePlan, UsageError
from strandline.run import Entry, Ready
from strandline.sql.expr import rows_of
from strandline.strategy.changes import ChangeSet, Counts, Removals
from strandline.types import Column, Relation, Schema, TableState

_FORMAT = 1


def digest(project: Project) -> str:
    """The configuration as it is loaded; secrets are references in it."""
    return hashlib.sha256(project.config.model_dump_json(by_alias=True).encode()).hexdigest()


class PlanWriter:
    """Collects the nodes of a plan while they are planned."""

    def __init__(self, path: Path, project: Project) -> None:
        self.path, self.digest = path, digest(project)
        self.entries: list[dict[str, Any]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="strandline-plan-")

    def add(self, entry: Entry, engine: Engine) -> None:
        rows = entry.ready.changes.additions
        name = f"{len(self.entries)}.parquet"
        write_rows(Path(self._folder.name) / name, rows.schema, engine.fetch(rows_of(rows)))
        self.entries.append({**_as_json(entry), "rows": name})

    def close(self) -> None:
        """Write the file, whole or not at all."""
        facts = {"format": _FORMAT, "config": self.digest, "nodes": self.entries}
        partial = self.path.with_name(self.path.name + ".part")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("plan.json", json.dumps(facts, default=_text, indent=1))
            for entry in self.entries:
                file.write(Path(self._folder.name) / entry["rows"], entry["rows"])
        partial.replace(self.path)
        self._folder.cleanup()


@dataclass(frozen=True)
class PlanFile:
    """A plan read back; its rows lie in a folder while it is followed."""

    entries: Mapping[str, Entry]
    files: Mapping[str, str]
    folder: Path

    def rows(self, name: str, engine: Engine) -> Relation:
        """The rows of one node's change set."""
        return engine.scan(FileSource(self.folder, self.files[name], "parquet")).relation

    @classmethod
    def open(cls, path: Path, project: Project, folder: Path) -> PlanFile:
        """Read a plan; an error when it is none, or not of this configuration."""
        try:
            with zipfile.ZipFile(path) as file:
                facts = json.loads(file.read("plan.json"))
                file.extractall(folder)
        except FileNotFoundError:
            raise UsageError(f"there is no plan file {path}", hint="make one: strandline plan --out FILE") from None
        except (zipfile.BadZipFile, KeyError, ValueError) as e:
            raise UsageError(f"{path} is not a plan: {e}", hint="make one: strandline plan --out FILE") from e
        if facts.get("format") != _FORMAT or facts.get("config") != digest(project):
            raise StalePlan("the configuration is not the one that the plan was made with")
        entries = {n["name"]: _from_json(n) for n in facts["nodes"]}
        return cls(entries, {n["name"]: n["rows"] for n in facts["nodes"]}, folder)


def _as_json(entry: Entry) -> dict[str, Any]:
    ready, changes = entry.ready, entry.ready.changes
    return {
        "name": entry.name,
        "batch": entry.batch,
        "target": [entry.target.table_id, entry.target.version] if entry.target else None,
        "coverage": dict(ready.coverage),
        "rows_read": ready.rows_read(),
        "versions": dict(ready.versions),
        "added": _columns(ready.added),
        "system": {role: [c.name, c.type] for role, c in ready.system.items()},
        "notes": [asdict(n) for n in ready.notes],
        "warnings": list(ready.warnings),
        "columns": _columns(changes.columns),
        "staged": _columns(changes.additions.schema),
        "removals": changes.removals.value,
        "keys": list(changes.keys),
        "partition_by": list(changes.partition_by),
        "roles": dict(changes.roles),
        "counts": asdict(changes.counts) if changes.counts else None,
        "hard": changes.hard,
    }


def _columns(columns: Sequence[Column] | Schema) -> list[list[str]]:
    return [[c.name, c.type] for c in columns]


def _schema(pairs: Sequence[Sequence[str]]) -> Schema:
    return Schema(tuple(Column(n, t) for n, t in pairs))


def _from_json(facts: Mapping[str, Any]) -> Entry:
    changes = ChangeSet(
        Relation("", _schema(facts["staged"])),
        _schema(facts["columns"]),
        Removals(facts["removals"]),
        tuple(facts["keys"]),
        tuple(facts["partition_by"]),
        facts["roles"],
        Counts(**facts["counts"]) if facts["counts"] else None,
        hard=facts["hard"],
    )
    read = facts["rows_read"]
    ready = Ready(
        changes,
        facts["coverage"],
        lambda: read,
        facts["versions"],
        tuple(_schema(facts["added"])),
        {role: Column(*pair) for role, pair in facts["system"].items()},
        [ChangeRow(**{**n, "at": datetime.fromisoformat(n["at"])}) for n in facts["notes"]],
        facts["warnings"],
    )
    target = facts["target"]
    state = TableState(target[1], Schema(()), table_id=target[0]) if target else None
    return Entry(facts["name"], facts["batch"], state, ready)


def _text(value: Any) -> str:
    return str(value.isoformat() if hasattr(value, "isoformat") else value)
