"""YAML text → plain values, each with its line. Safe: no tags, no bombs, no second key of the same name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from strandline.config.positions import Loc
from strandline.config.yamlwords import LineMistake, syntax

MAX_BYTES = 2_000_000
MAX_DEPTH = 50
MAX_VALUES = 100_000
MAX_TEXT = 10_000_000
"""Limits on what aliases may expand to: a few lines of YAML can stand for billions of values."""

_PREFIX = "tag:yaml.org,2002:"
_SCALARS = {_PREFIX + kind for kind in ("str", "int", "float", "bool", "null", "timestamp")}
_QUOTE_HINT = "a value that starts with {{ needs quotes: \"{{ var('x') }}\""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Document:
    """A YAML file: its values, the line of each, and what is wrong with it. No values: it could not be read."""

    values: dict[str, Any] | None
    lines: dict[Loc, int] = field(default_factory=dict)
    mistakes: list[LineMistake] = field(default_factory=list)


@dataclass
class _Value:
    """A value as written: a scalar, or values inside. Aliases share one."""

    line: int
    content: Any


class _UnreadableError(Exception):
    """The rest of the file cannot be read."""

    def __init__(self, line: int, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.mistake = LineMistake(line, message, hint)


def read_yaml(content: bytes) -> Document:
    """Read a YAML file of one map."""
    composer = _Composer()
    try:
        if len(content) > MAX_BYTES:
            raise _UnreadableError(
                1, f"the file is larger than {MAX_BYTES:,} bytes", "split it with `include`"
            )
        root = composer.document(_decoded(content))
        if not isinstance(root.content, dict):
            raise _UnreadableError(
                root.line,
                "expected a map of keys at the top of the file",
                "start with `project: <name>`",
            )
        expansion = _Expansion()
        values = expansion.expand(root, (), root.line)
    except _UnreadableError as stop:
        return Document(None, {}, [*composer.mistakes, stop.mistake])
    except yaml.MarkedYAMLError as error:
        return Document(None, {}, [*composer.mistakes, syntax(error, content.decode("utf-8-sig"))])
    except yaml.reader.ReaderError as error:
        before = content.decode("utf-8-sig")[: error.position]
        return Document(
            None, {}, [LineMistake(before.count("\n") + 1, "the file holds a control character")]
        )
    return Document(values, expansion.lines, composer.mistakes)


def _decoded(content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise _UnreadableError(line, "the file is not UTF-8 text", "save it as UTF-8") from error
    if not text.strip():
        raise _UnreadableError(
            1, "the file is empty", "`strandline init` writes a project to start from"
        )
    return text


class _Composer:
    """Builds values from YAML's events, one by one, so that depth is known before anything recurses."""

    def __init__(self) -> None:
        self.mistakes: list[LineMistake] = []
        self._anchors: dict[str, _Value] = {}
        self._scalars = yaml.SafeLoader("")
        self._events: Iterator[Any] = iter(())  # PyYAML types its events by what they share

    def document(self, text: str) -> _Value:
        self._events = yaml.parse(text, Loader=_LOADER)
        root: _Value | None = None
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent) and root is not None:
                raise _UnreadableError(
                    _line(event),
                    "expected one document, found a second one",
                    "remove the line `---`",
                )
            if isinstance(event, yaml.NodeEvent):
                root = self._value(event, 1)
        if root is None or root.content is None:
            raise _UnreadableError(
                1, "the file is empty", "`strandline init` writes a project to start from"
            )
        return root

    def _value(self, event: yaml.NodeEvent, depth: int) -> _Value:
        line = _line(event)
        if depth > MAX_DEPTH:
            raise _UnreadableError(line, f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise _UnreadableError(
                    line,
                    f"`*{event.anchor}` refers to itself, or to an anchor that is not above it",
                )
            return self._anchors[event.anchor]
        if isinstance(event, yaml.ScalarEvent):
            value = _Value(line, self._scalar(event))
        else:
            self._refuse_tag(event, line)
            inside = (
                self._items(depth)
                if isinstance(event, yaml.SequenceStartEvent)
                else self._entries(depth)
            )
            value = _Value(line, inside)
        if event.anchor:
            self._anchors[event.anchor] = value
        return value

    def _items(self, depth: int) -> list[_Value]:
        items = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event, depth + 1))
        return items

    def _entries(self, depth: int) -> dict[str, tuple[int, _Value]]:
        entries: dict[str, tuple[int, _Value]] = {}
        merged: dict[str, tuple[int, _Value]] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            line = _line(event)
            key = self._key(event, depth)
            value = self._value(next(self._events), depth + 1)
            if key is None:
                continue
            if key == "<<" and event.implicit[0]:
                merged.update(self._merge(line, value))
            elif key in entries:
                first = entries[key][0]
                self.mistakes.append(
                    LineMistake(line, f"the key `{key}` stands twice, first in line {first}")
                )
            else:
                entries[key] = (line, value)
        return {**merged, **entries}

    def _key(self, event: Any, depth: int) -> str | None:
        if not isinstance(event, yaml.ScalarEvent):
            self._value(event, depth + 1)
            self.mistakes.append(
                LineMistake(
                    _line(event), "expected a text as key, found a list or a map", _QUOTE_HINT
                )
            )
            return None
        tag = self._tag(event)
        if tag not in (_PREFIX + "str", _PREFIX + "merge", _PREFIX + "value"):
            hint = f'put it in quotes: "{event.value}":'
            self.mistakes.append(
                LineMistake(_line(event), f"the key `{event.value}` is not a text to YAML", hint)
            )
            return None
        return str(event.value)

    def _merge(self, line: int, value: _Value) -> dict[str, tuple[int, _Value]]:
        parts = value.content if isinstance(value.content, list) else [value]
        merged: dict[str, tuple[int, _Value]] = {}
        for part in reversed(
            parts
        ):  # of several maps the first one wins, as YAML's merge key has it
            if isinstance(part.content, dict):
                merged.update(part.content)
            else:
                self.mistakes.append(LineMistake(line, "`<<` takes a map, or a list of maps"))
        return merged

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        tag = self._tag(event)
        if tag in (_PREFIX + "merge", _PREFIX + "value"):
            return event.value
        if tag not in _SCALARS:
            self._refuse_tag(event, _line(event))
            return event.value
        node = yaml.ScalarNode(tag, event.value)
        try:
            return yaml.SafeLoader.yaml_constructors[tag](self._scalars, node)
        except (ValueError, KeyError, OverflowError):
            kind = tag.removeprefix(_PREFIX)
            message = f"{_short(event.value)} looks like a {kind}, but is none"
            self.mistakes.append(LineMistake(_line(event), message, "put it in quotes"))
            return event.value

    def _tag(self, event: yaml.ScalarEvent) -> str:
        if event.tag and event.tag != "!":
            return str(event.tag)
        scalars: Any = self._scalars
        return str(scalars.resolve(yaml.ScalarNode, event.value, event.implicit))

    def _refuse_tag(self, event: Any, line: int) -> None:
        if event.tag and event.tag not in (_PREFIX + "map", _PREFIX + "seq", "!"):
            shown = event.tag.replace(_PREFIX, "!!")
            self.mistakes.append(
                LineMistake(line, f"the YAML tag `{shown}` is not allowed", "write the plain value")
            )


class _Expansion:
    """Turns composed values into plain ones, following aliases, within limits."""

    def __init__(self) -> None:
        self.lines: dict[Loc, int] = {}
        self._values = 0
        self._text = 0

    def expand(self, value: _Value, loc: Loc, line: int) -> Any:
        self.lines[loc] = line
        self._values += 1
        self._text += len(value.content) if isinstance(value.content, str) else 0
        if self._values > MAX_VALUES or self._text > MAX_TEXT:
            raise _UnreadableError(
                line,
                f"the file stands for more than {MAX_VALUES:,} values",
                "its aliases (*name) multiply them",
            )
        if len(loc) > MAX_DEPTH:
            raise _UnreadableError(line, f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(value.content, dict):
            return {
                key: self.expand(inner, (*loc, key), at)
                for key, (at, inner) in value.content.items()
            }
        if isinstance(value.content, list):
            return [
                self.expand(inner, (*loc, i), inner.line) for i, inner in enumerate(value.content)
            ]
        return value.content


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
