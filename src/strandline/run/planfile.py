"""A plan in a file: the staged change sets of all nodes, and what they were made from. A ZIP of JSON and Parquet."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from strandline.batch.compare import Landing, Quarantine
from strandline.batch.prepare import Entry, Ready
from strandline.config.load import Project
from strandline.config.writes import EVENTS, QUARANTINE
from strandline.control.coverage import Coverage
from strandline.control.ledger import ChangeRow
from strandline.engine.base import Engine, FileSource
from strandline.engine.plan_rows import write_rows
from strandline.engine.staging import scratch
from strandline.errors import StalePlan, UsageError
from strandline.plan.inputs import table_of
from strandline.sql.expr import rows_of
from strandline.strategy.changes import ChangeSet, Removals
from strandline.strategy.evolution import change_from_json, change_to_json
from strandline.strategy.quarantine import Standing
from strandline.strategy.verdict import Verdict
from strandline.types import Column, Counts, Relation, Schema, Table, TableState
from strandline.words import plural

_FORMAT = 4


def digest(project: Project) -> str:
    """The configuration as it is loaded; secrets are references in it."""
    return hashlib.sha256(project.config.model_dump_json(by_alias=True).encode()).hexdigest()


@contextmanager
def writing(path: str | Path | None, project: Project) -> Iterator[PlanWriter | None]:
    """What keeps a plan while it is made, its rows in a folder of this process; nothing when it is not to be kept."""
    if path is None:
        yield None
        return
    path = Path(path)
    if not path.parent.is_dir():
        raise UsageError(
            f"{path}: there is no folder {path.parent}", hint="make it, or keep the plan elsewhere"
        )
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="name a file: strandline plan --out FILE")
    with scratch("plan") as folder:
        yield PlanWriter(path, digest(project), folder)


@dataclass(frozen=True)
class PlanWriter:
    """Collects the nodes of a plan while they are planned."""

    path: Path
    digest: str
    folder: Path
    entries: list[dict[str, Any]] = field(default_factory=list)
    landed: list[str] = field(default_factory=list)

    def add(self, name: str, entry: Entry | None, engine: Engine) -> None:
        """One node of the plan; of one whose batch has landed, only its record is left to finish."""
        if entry is None:
            self.landed.append(name)
            return
        if early := entry.ready.early:
            raise UsageError(
                f"{name}: a dimension lacks {plural(early, 'member')} of which these facts know, and a run adds a "
                "skeleton of each first: that cannot be kept in a plan",
                hint="run without a plan file: strandline run",
            )
        number, events = len(self.entries), entry.ready.events
        facts = {
            **_as_json(entry),
            "rows": self._write(f"{number}.parquet", entry.ready.changes, engine),
        }
        if events is not None:
            facts["events"]["rows"] = self._write(
                f"{number}.events.parquet", events.changes, engine
            )
        if (aside := entry.ready.quarantine) and aside.landing:
            facts["quarantine"]["landing"]["rows"] = self._write(
                f"{number}.quarantine.parquet", aside.landing.changes, engine
            )
        self.entries.append(facts)

    def _write(self, name: str, changes: ChangeSet, engine: Engine) -> str:
        rows = changes.additions
        write_rows(self.folder / name, rows.schema, engine.fetch(rows_of(rows)))
        return name

    def close(self, skipped: Sequence[str]) -> None:
        """Write the file, whole or not at all; with the nodes that a run would skip, behind refused ones."""
        facts = {
            "format": _FORMAT,
            "config": self.digest,
            "nodes": self.entries,
            "landed": self.landed,
        }
        facts["skipped"] = list(skipped)
        partial = self.path.with_name(self.path.name + ".part")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("plan.json", json.dumps(facts, default=_text, indent=1))
            for path in sorted(self.folder.iterdir()):
                file.write(path, path.name)
        partial.replace(self.path)


@dataclass(frozen=True)
class PlanFile:
    """A plan read back; its rows lie in a folder while it is followed."""

    entries: Mapping[str, Entry]
    files: Mapping[
        str, tuple[str, str | None, str | None]
    ]  # its rows, and those of the events and of the quarantine that come first
    folder: Path
    landed: Sequence[str] = ()  # nodes whose newest batch is in its table, and not in the records
    skipped: Sequence[str] = ()  # nodes behind those whose deletes are refused

    def entry(self, name: str, engine: Engine) -> Entry:
        """One node of the plan, with the rows of its change sets."""
        entry, (file, events, aside) = self.entries[name], self.files[name]
        ready = replace(entry.ready, changes=self._with_rows(entry.ready.changes, file, engine))
        if ready.events is not None and events is not None:
            landing = replace(
                ready.events, changes=self._with_rows(ready.events.changes, events, engine)
            )
            ready = replace(ready, events=landing)
        if aside is not None and (found := ready.quarantine) and found.landing:
            landing = replace(
                found.landing, changes=self._with_rows(found.landing.changes, aside, engine)
            )
            ready = replace(ready, quarantine=replace(found, landing=landing))
        return replace(entry, ready=ready)

    def _with_rows(self, changes: ChangeSet, file: str, engine: Engine) -> ChangeSet:
        return replace(
            changes, additions=engine.scan(FileSource(self.folder, file, "parquet")).relation
        )

    @classmethod
    def open(cls, path: Path, project: Project, folder: Path) -> PlanFile:
        """Read a plan; an error when it is none, or not of this configuration."""
        hint = "make one: strandline plan --out FILE"
        try:
            with zipfile.ZipFile(path) as file:
                facts = json.loads(file.read("plan.json"))
                file.extractall(folder)
        except FileNotFoundError:
            raise UsageError(f"there is no plan file {path}", hint=hint) from None
        except IsADirectoryError:
            raise UsageError(f"{path} is a folder, and not a plan", hint=hint) from None
        except (zipfile.BadZipFile, KeyError, ValueError) as e:
            raise UsageError(f"{path} is not a plan: {e}", hint=hint) from e
        if not isinstance(facts, dict):
            raise UsageError(
                f"{path} is not a plan: its plan.json holds no facts by name", hint=hint
            )
        if facts.get("format") != _FORMAT or facts.get("config") != digest(project):
            raise StalePlan("the configuration is not the one that the plan was made with")
        entries = {n["name"]: _from_json(n, project) for n in facts["nodes"]}
        files = {
            n["name"]: (
                n["rows"],
                (n.get("events") or {}).get("rows"),
                ((n.get("quarantine") or {}).get("landing") or {}).get("rows"),
            )
            for n in facts["nodes"]
        }
        return cls(entries, files, folder, facts["landed"], facts["skipped"])


def _as_json(entry: Entry) -> dict[str, Any]:
    ready, changes = entry.ready, entry.ready.changes
    return {
        "name": entry.name,
        "batch": entry.batch,
        "target": [entry.target.table_id, entry.target.version] if entry.target else None,
        "coverage": ready.coverage.as_dict(),
        "rows_read": ready.rows_read(),
        "versions": dict(ready.versions),
        "notes": [asdict(n) for n in ready.notes],
        "warnings": list(ready.warnings),
        "changes": _changes_as_json(changes),
        "events": _landing_as_json(ready.events) if ready.events else None,
        "quarantine": _quarantine_as_json(ready.quarantine) if ready.quarantine else None,
        "verdict": asdict(ready.verdict) if ready.verdict else None,
    }


def _changes_as_json(changes: ChangeSet) -> dict[str, Any]:
    return {
        "columns": _columns(changes.columns),
        "staged": _columns(changes.additions.schema),
        "removals": changes.removals.value,
        "keys": list(changes.keys),
        "partition_by": list(changes.partition_by),
        "roles": dict(changes.roles),
        "counts": asdict(changes.counts) if changes.counts else None,
        "hard": changes.hard,
        "drops": changes.drops,
        "evolves": [change_to_json(c) for c in changes.evolves],
    }


def _landing_as_json(landing: Landing) -> dict[str, Any]:
    return {
        "state": [landing.state.table_id, landing.state.version] if landing.state else None,
        "changes": _changes_as_json(landing.changes),
    }


def _quarantine_as_json(aside: Quarantine) -> dict[str, Any]:
    return {
        "number": aside.number,
        "landing": _landing_as_json(aside.landing) if aside.landing else None,
        "void": [list(v) for v in aside.standing.void],
        "left": list(aside.standing.left),
        "state": [aside.state.table_id, aside.state.version] if aside.state else None,
    }


def _quarantine_from_json(facts: Mapping[str, Any], table: Table) -> Quarantine:
    standing = Standing(tuple((node, run) for node, run in facts["void"]), tuple(facts["left"]))
    landing = _landing_from_json(facts["landing"], table) if facts["landing"] else None
    return Quarantine(facts["number"], landing, standing, _state(facts["state"]))


def _columns(columns: Sequence[Column] | Schema) -> list[list[str]]:
    return [[c.name, c.type] for c in columns]


def _schema(pairs: Sequence[Sequence[str]]) -> Schema:
    return Schema(tuple(Column(n, t) for n, t in pairs))


def _changes_from_json(facts: Mapping[str, Any]) -> ChangeSet:
    return ChangeSet(
        Relation("", _schema(facts["staged"])),
        _schema(facts["columns"]),
        Removals(facts["removals"]),
        tuple(facts["keys"]),
        tuple(facts["partition_by"]),
        facts["roles"],
        Counts(**facts["counts"]) if facts["counts"] else None,
        hard=facts["hard"],
        drops=facts["drops"],
        evolves=tuple(change_from_json(c) for c in facts["evolves"]),
    )


def _landing_from_json(facts: Mapping[str, Any], table: Table) -> Landing:
    return Landing(table, _state(facts["state"]), _changes_from_json(facts["changes"]))


def _beside(project: Project, name: str, what: str) -> Table:
    """A table beside that of a node: of its events, or of its quarantine."""
    write = next(n.write for n in project.config.nodes if n.name == name)
    return table_of(project, write.connection, write.table + what)


def _state(facts: Sequence[Any] | None) -> TableState | None:
    return TableState(facts[1], Schema(()), table_id=facts[0]) if facts else None


def _from_json(facts: Mapping[str, Any], project: Project) -> Entry:
    read, events, aside = facts["rows_read"], facts["events"], facts["quarantine"]
    ready = Ready(
        _changes_from_json(facts["changes"]),
        Coverage.from_dict(facts["coverage"]),
        lambda: read,
        facts["versions"],
        [ChangeRow(**{**n, "at": datetime.fromisoformat(n["at"])}) for n in facts["notes"]],
        facts["warnings"],
        events=_landing_from_json(events, _beside(project, facts["name"], EVENTS))
        if events
        else None,
        quarantine=_quarantine_from_json(aside, _beside(project, facts["name"], QUARANTINE))
        if aside
        else None,
        verdict=Verdict(**facts["verdict"]) if facts["verdict"] else None,
    )
    return Entry(facts["name"], facts["batch"], _state(facts["target"]), ready)


def _text(value: Any) -> str:
    return str(value.isoformat() if hasattr(value, "isoformat") else value)
