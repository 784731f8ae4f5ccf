"""From files to a checked project: YAML → Jinja2 → models → cross checks. Every mistake of every file at once."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from strandline.config.check import check
from strandline.config.messages import mistakes_of, wrong_type
from strandline.config.model import ProjectConfig
from strandline.config.parts import parts_of, salvaged
from strandline.config.positions import Loc, Mistake, Place, Positions
from strandline.config.render import Renderer
from strandline.config.resolve import REFERENCE
from strandline.config.targets import spread
from strandline.config.yamlfile import Document, read_yaml
from strandline.errors import ConfigError, Problem, did_you_mean
from strandline.words import redact

PROJECT_FILE = "strandline.yaml"
_INCLUDED: dict[str, Any] = {
    "nodes": list[dict[str, Any]],
    "connections": dict[str, Any],
    "vars": dict[str, Any],
}
_SECRET_NAME = re.compile(r"(?i)pass|pwd|secret|token|key|credential|auth")


@dataclass(frozen=True)
class Project:
    """A project that was found right: its config, its folder, and where each value of it stands."""

    config: ProjectConfig
    root: Path
    file: Path
    positions: Positions
    digest: str
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The nodes that are written as one with several targets, by the name that was written: it is the first's."""

    def together(self, name: str) -> tuple[str, ...]:
        """The targets of the node that this one belongs to, in their order; itself when it is the only one."""
        return next((names for names in self.groups.values() if name in names), (name,))

    def place(self, node: str, loc: Loc = ()) -> Place:
        """The line of a key of a node; of the node when the key is not written down."""
        names = self.together(node)
        if len(names) > 1 and loc[:1] == ("write",):
            loc = ("write", names.index(node), *loc[1:])
        return self.positions.place(("nodes", names[0], *loc))


def load_project(path: str | Path, engine: str | None = None) -> Project:
    """Load the project of a folder or a file, for its own engine or another one.

    Raises a ConfigError that holds every mistake found.
    """
    file = _project_file(Path(path))
    files = _Files(file)
    files.read()
    failed: list[Mistake] = []
    raw = files.rendered(failed)
    positions = Positions(Place(files.label(file), 1), files.places, tuple(_node_names(raw)))
    nodes = spread(raw, failed)
    config, mistakes = _validated(nodes.raw)
    complete = not files.unreadable
    parts = (
        parts_of(config, nodes, files.root, engine, complete=complete)
        if config
        else salvaged(nodes, files.root, engine, complete=complete)
    )
    # What several targets share is wrong once.
    mistakes = list(dict.fromkeys(nodes.written(m) for m in (*mistakes, *check(parts))))
    # A text that could not be rendered is told once; what else is wrong with it follows from that.
    mistakes = failed + [
        m for m in mistakes if not any(m.loc[: len(f.loc)] == f.loc for f in failed)
    ]
    problems = files.problems + [positions.problem(*mistake) for mistake in mistakes]
    if problems or config is None:
        order = {label: index for index, label in enumerate(files.labels)}
        problems.sort(key=lambda p: (order.get(p.file or "", 0), p.line or 0))
        raise ConfigError(_without_secrets(problems, files.renderer.env_names, raw))
    return Project(config, files.root, file, positions, _digest(config), nodes.groups())


def _project_file(path: Path) -> Path:
    file = path / PROJECT_FILE if path.is_dir() else path
    if file.is_file():
        return Path(os.path.normpath(file.absolute()))
    other = path / "strandline.yml"
    hint = (
        f"rename {other} to {PROJECT_FILE}"
        if other.is_file()
        else "`strandline init` writes a project to start from"
    )
    kind = "file" if path.suffix in (".yaml", ".yml") else "folder"
    where = f"no {PROJECT_FILE} in {path}" if path.is_dir() else f"no {kind} {path}"
    raise ConfigError(Problem(f"there is {where}", hint=hint))


def _validated(raw: dict[str, Any]) -> tuple[ProjectConfig | None, list[Mistake]]:
    try:
        return ProjectConfig.model_validate(raw), []
    except ValidationError as error:
        return None, mistakes_of(error, ProjectConfig, raw)


def _node_names(raw: dict[str, Any]) -> Iterator[str | None]:
    nodes = raw.get("nodes")
    for node in nodes if isinstance(nodes, list) else ():
        name = node.get("name") if isinstance(node, dict) else None
        yield name if isinstance(name, str) else None


def _digest(config: ProjectConfig) -> str:
    """A fingerprint of the config as resolved. Secrets are in it as references only."""
    text = json.dumps(config.model_dump(mode="json", by_alias=True), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _without_secrets(
    problems: list[Problem], env_names: set[str], raw: dict[str, Any]
) -> list[Problem]:
    """Someone may read a password with `env()`, or refer to it, and make a mistake beside it."""
    names = {name for name in env_names if _SECRET_NAME.search(name)} | set(
        REFERENCE.findall(json.dumps(raw, default=str))
    )
    secrets = [value for name in names if (value := os.environ.get(name))]
    if not secrets:
        return problems
    return [
        replace(p, message=redact(p.message, secrets), hint=p.hint and redact(p.hint, secrets))
        for p in problems
    ]


class _Files:
    """Reads the project file and what it includes into one map, and remembers where each value came from."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.root = file.parent
        self.renderer = Renderer()
        self.places: dict[Loc, Place] = {}
        self.problems: list[Problem] = []
        self.labels: list[str] = []
        self.unreadable = False
        self._raw: dict[str, Any] = {}

    def read(self) -> None:
        document = self._document(self.file)
        if document.values is None:
            raise ConfigError(self.problems)
        label = self.label(self.file)
        self.places.update({loc: Place(label, line) for loc, line in document.lines.items()})
        self._raw = document.values
        if isinstance(variables := self._raw.get("vars"), dict):
            self.renderer.declare(variables)
        for included in self._included():
            self._add(included)

    def rendered(self, failed: list[Mistake]) -> dict[str, Any]:
        """All values with their templates rendered."""
        return {
            key: self.renderer.render(value, (key,), failed) for key, value in self._raw.items()
        }

    def label(self, file: Path) -> str:
        """A file as people would name it from where they stand, else from the project's folder."""
        for folder in (Path.cwd(), self.root):
            if file.is_relative_to(folder):
                return file.relative_to(folder).as_posix()
        return file.name

    def _document(self, file: Path) -> Document:
        label = self.label(file)
        self.labels.append(label)
        try:
            document = read_yaml(file.read_bytes())
        except OSError as error:
            self.problems.append(Problem(f"the file cannot be read: {error.strerror}", file=label))
            document = Document(None)
        self.problems += [
            Problem(m.message, file=label, line=m.line, hint=m.hint, excerpt=m.excerpt)
            for m in document.mistakes
        ]
        self.unreadable |= document.values is None
        return document

    def _included(self) -> Iterator[Path]:
        patterns = self._raw.get("include")
        seen = {self.file.resolve()}
        for index, pattern in enumerate(patterns if isinstance(patterns, list) else ()):
            told_later: list[Mistake] = []  # when everything is rendered
            rendered = self.renderer.render(pattern, (), told_later)
            if not isinstance(rendered, str) or told_later:
                continue
            for file in self._matches(index, rendered):
                if file.resolve() not in seen:
                    seen.add(file.resolve())
                    yield file

    def _matches(self, index: int, pattern: str) -> list[Path]:
        place = self.places[("include", index)]

        def refuse(message: str, hint: str | None = None) -> list[Path]:
            self.problems.append(
                Problem(message, place.file, place.line, f"include[{index}]", hint)
            )
            return []

        if Path(pattern).is_absolute() or ".." in Path(pattern).parts or pattern.startswith("~"):
            return refuse(
                f"`{pattern}` leaves the project's folder",
                "include files below the folder of strandline.yaml",
            )
        try:
            found = sorted(file for file in self.root.glob(pattern) if file.is_file())
        except (ValueError, NotImplementedError, OSError) as error:
            return refuse(f"`{pattern}` is not a pattern: {error}")
        if not found:
            self.unreadable = True
            return refuse(f"no file matches `{pattern}`", f"patterns start at {self.root}")
        outside = [file for file in found if not file.resolve().is_relative_to(self.root.resolve())]
        if outside:
            return refuse(
                f"`{outside[0].relative_to(self.root)}` is a link that leaves the project's folder"
            )
        return found

    def _add(self, file: Path) -> None:
        document, label = self._document(file), self.label(file)
        for key, value in (document.values or {}).items():
            place = Place(label, document.lines[(key,)])
            if key not in _INCLUDED:
                hint = did_you_mean(key, _INCLUDED) or f"move it to {PROJECT_FILE}"
                message = f"unknown key `{key}`: an included file may hold nodes, connections and vars only"
                self.problems.append(Problem(message, label, place.line, key, hint))
            elif key == "nodes" and isinstance(value, list):
                self._add_nodes(value, document, label)
            elif key != "nodes" and isinstance(value, dict):
                self._add_names(key, value, document, label)
            else:
                self.problems.append(
                    Problem(wrong_type(value, _INCLUDED[key]), label, place.line, key)
                )

    def _add_nodes(self, nodes: list[Any], document: Document, label: str) -> None:
        known = self._raw.setdefault("nodes", [])
        if not isinstance(known, list):
            return  # told when the models are checked
        for loc, line in document.lines.items():
            if len(loc) > 1 and loc[0] == "nodes" and isinstance(loc[1], int):
                self.places[("nodes", loc[1] + len(known), *loc[2:])] = Place(label, line)
        known.extend(nodes)

    def _add_names(self, key: str, named: dict[str, Any], document: Document, label: str) -> None:
        known = self._raw.setdefault(key, {})
        if not isinstance(known, dict):
            return
        for name, value in named.items():
            if name in known:
                first, line = self.places[(key, name)], document.lines[(key, name)]
                what = key.removesuffix("s")
                message = f"{what} `{name}` is declared in {first.file}:{first.line} already"
                self.problems.append(
                    Problem(message, label, line, f"{key}.{name}", "give one of them another name")
                )
                continue
            known[name] = value
            self.places.update(
                {
                    loc: Place(label, line)
                    for loc, line in document.lines.items()
                    if loc[:2] == (key, name)
                }
            )
        if key == "vars":
            self.renderer.declare({name: known[name] for name in named})
