"""A project in parts that can be checked one by one: a mistake in one part does not hide those in the others."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from strandline.config.base import SALVAGE
from strandline.config.connections import Connection, FilesConnection, LakeConnection, SqlConnection
from strandline.config.increments import SettingsConfig
from strandline.config.model import ControlConfig, NodeConfig, ProjectConfig, StepConfig
from strandline.config.positions import Loc, Mistake
from strandline.config.reads import ReadConfig, SourceConfig
from strandline.config.star import ForeignKeyConfig
from strandline.config.targets import Origin, Spread
from strandline.config.writes import WriteConfig
from strandline.errors import did_you_mean

AnyConnection = SqlConnection | FilesConnection | LakeConnection
KINDS = {
    SqlConnection: "a database",
    FilesConnection: "a folder of files",
    LakeConnection: "a lake",
}


@dataclass(frozen=True)
class NodeParts:
    """What is known of a node; what could not be read is left out."""

    loc: Loc
    name: str | None = None
    depends_on: list[str] = field(default_factory=list)
    reads: list[tuple[Loc, ReadConfig]] = field(default_factory=list)
    steps: list[tuple[Loc, StepConfig]] = field(default_factory=list)
    sql: str | None = None
    aliases: list[str] = field(default_factory=list)
    write: WriteConfig | None = None
    settings: SettingsConfig = field(default_factory=SettingsConfig)
    whole: bool = True
    """False when something of its reads, steps, settings or write could not be read."""
    origin: Origin = field(default_factory=Origin)
    foreign_keys: list[tuple[int, ForeignKeyConfig]] = field(default_factory=list)


@dataclass(frozen=True)
class Parts:
    """What is known of a project. A connection that could not be read is there as None."""

    root: Path
    raw: dict[str, Any]
    connections: dict[str, AnyConnection | None]
    control: ControlConfig | None
    nodes: list[NodeParts]
    engine: str | None = None
    """The engine that was asked for instead of the project's."""
    complete: bool = True
    """False when a file could not be read: then a name that is not there may well be in that file."""


def connection_of(parts: Parts, loc: Loc, name: str) -> AnyConnection | Mistake | None:
    """The connection that `loc` names; None when it is told already that it is broken."""
    if name in parts.connections or not parts.complete:
        return parts.connections.get(name)
    known = sorted(parts.connections)
    hint = did_you_mean(name, known) or f"known connections are {', '.join(known) or 'none'}"
    return Mistake(loc, f"unknown connection `{name}`", hint)


def parts_of(
    config: ProjectConfig, spread: Spread, root: Path, engine: str | None, *, complete: bool
) -> Parts:
    """The parts of a project that is valid as far as its models can tell."""
    nodes = []
    for index, (node, origin) in enumerate(zip(config.nodes, spread.origins, strict=True)):
        loc: Loc = ("nodes", index)
        steps = node.transform.steps if node.transform else []
        nodes.append(
            NodeParts(
                loc,
                node.name,
                node.depends_on,
                [((*loc, *at), read) for at, read in node.reads()],
                [((*loc, "transform", "steps", i), step) for i, step in enumerate(steps)],
                node.transformation_sql,
                node.aliases(),
                node.write,
                node.settings,
                origin=origin,
                foreign_keys=list(enumerate(node.foreign_keys)),
            )
        )
    return Parts(
        root, spread.raw, dict(config.connections), config.control, nodes, engine, complete
    )


def salvaged(spread: Spread, root: Path, engine: str | None, *, complete: bool) -> Parts:
    """The parts that can be read of a project that is not valid; its mistakes are told already."""
    raw = spread.raw
    connections = {
        name: _read(Connection, value) for name, value in _map(raw.get("connections")).items()
    }
    nodes = [
        replace(_salvaged_node(("nodes", i), _map(node)), origin=origin)
        for i, (node, origin) in enumerate(
            zip(_list(raw.get("nodes")), spread.origins, strict=True)
        )
    ]
    return Parts(
        root, raw, connections, _read(ControlConfig, raw.get("control")), nodes, engine, complete
    )


def _salvaged_node(loc: Loc, node: dict[str, Any]) -> NodeParts:
    read = _read(ReadConfig, node.get("read"))
    sources = _list(node.get("sources"))
    reads: list[tuple[Loc, ReadConfig]] = [((*loc, "read"), read)] if read else []
    reads += [
        ((*loc, "sources", i), s)
        for i, raw in enumerate(sources)
        if (s := _read(SourceConfig, raw))
    ]
    steps = enumerate(_list(_map(node.get("transform")).get("steps")))
    aliases = [_read(str, _map(source).get("alias")) for source in sources] or ["source"]
    known = [alias for alias in aliases if alias]
    return NodeParts(
        loc,
        _read(str, node.get("name")),
        _read(list[str], node.get("depends_on")) or [],
        reads,
        [
            ((*loc, "transform", "steps", i), step)
            for i, raw in steps
            if (step := _read(StepConfig, raw))
        ],
        # Without all aliases nobody can say which table of the SQL is not one of them.
        _read(str, node.get("transformation_sql")) if len(known) == len(aliases) else None,
        known,
        _read(WriteConfig, node.get("write")),
        _read(SettingsConfig, node.get("settings")) or SettingsConfig(),
        _whole(node),
        foreign_keys=[
            (i, key)
            for i, raw in enumerate(_list(node.get("foreign_keys")))
            if (key := _read(ForeignKeyConfig, raw))
        ],
    )


def _whole(node: dict[str, Any]) -> bool:
    """Is everything right that says what is read, and how it is written?"""
    for key in ("read", "sources", "settings", "transform", "write"):
        if key not in node:
            continue
        try:
            kind: Any = NodeConfig.model_fields[key].annotation
            TypeAdapter(kind).validate_python(node[key])
        except ValidationError:
            return False
    return "write" in node


def _read(kind: Any, value: Any) -> Any:
    """The value as far as it can be read: without the keys that are wrong, if it can do without them."""
    adapter = TypeAdapter(kind)
    try:
        return adapter.validate_python(value, context=SALVAGE)
    except ValidationError as error:
        wrong = {details["loc"][0] for details in error.errors() if details["loc"]}
        rest = (
            {key: inner for key, inner in value.items() if key not in wrong}
            if isinstance(value, dict)
            else value
        )
    try:
        return adapter.validate_python(rest, context=SALVAGE)
    except ValidationError:
        return None


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
