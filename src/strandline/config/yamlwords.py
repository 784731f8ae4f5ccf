"""PyYAML's syntax errors in plain words, with the lines that they are about."""

from __future__ import annotations

import re
from typing import NamedTuple

import yaml

_BEFORE = 3  # lines shown above the one that is wrong
_SECRET = re.compile(
    r"(?i)(\b(?:\w*(?:pass|pwd|secret|token|credential|auth)\w*|\w+_key|url|jdbc_url|user)[\"']?\s*:\s*)\S.*"
)
_DEEPER = (
    "this line is indented deeper than the line above it, which has a value already",
    "give the keys of one map the same indentation",
)
_COLON = ("the value holds a colon", "put the value in quotes")
_BETWEEN = (
    "the indentation of this line fits no line above it",
    "give it the indentation of the keys, or of the `-`, that it belongs to",
)
_NAMES = {"flow sequence": "`[`", "flow mapping": "`{`", "quoted scalar": "quote"}


class LineMistake(NamedTuple):
    """Something wrong in a line of a YAML file."""

    line: int
    message: str
    hint: str | None = None
    excerpt: str | None = None


def syntax(error: yaml.MarkedYAMLError, text: str) -> LineMistake:
    """What is wrong with the text of a YAML file, where, and how to fix it."""
    mark, context = error.problem_mark or error.context_mark, error.context or ""
    if mark is None:
        return LineMistake(1, f"this is not YAML: {error.problem or 'not understood'}")
    hint: str | None
    begins = re.search("flow sequence|flow mapping|quoted scalar", context)
    if begins and error.context_mark:
        mark = error.context_mark
        message, hint = (
            f"the {_NAMES[begins[0]]} that begins here is not closed",
            "close it, or correct what is inside",
        )
    elif "expected ':'" in (error.problem or "") and error.context_mark:
        mark = error.context_mark
        message, hint = "this line is no `key: value`", "add the colon, or the `-` of a list"
    else:
        message, hint = _words(error.problem or "", text.split("\n")[mark.line], mark.column)
    return LineMistake(
        mark.line + 1, f"this is not YAML: {message}", hint, _excerpt(text, mark.line, mark.column)
    )


def _words(problem: str, line: str, column: int) -> tuple[str, str | None]:
    """A problem at a column of a line."""
    if "tab" in problem or line[column : column + 1] == "\t":
        return "a tab indents this line", "YAML is indented with spaces, not with tabs"
    if "mapping values are not allowed" in problem:
        return _COLON if re.search(r":\s", line[:column]) else _DEEPER
    if "node content" in problem:
        return "a value is missing here, or a `[` or `{` above is not closed", None
    if "did not find expected" in problem or "expected <block end>" in problem:
        return _BETWEEN
    if "cannot start any token" in problem:
        return "a value cannot begin with this character", "put the value in quotes"
    return problem, None


def _excerpt(text: str, line: int, column: int) -> str:
    """The lines up to the one that is wrong, numbered, with a mark below it; values that may be secret are hidden."""
    lines = text.split("\n")[: line + 1]
    wide = len(str(line + 1))
    shown = [
        f"{n + 1:>{wide + 4}} | {_hidden(lines[n])}"
        for n in range(max(line - _BEFORE, 0), len(lines))
    ]
    return "\n".join([*shown, f"{'':>{wide + 4}} | {' ' * column}^"])


def _hidden(line: str) -> str:
    return _SECRET.sub(r"\1***", line.rstrip().replace("\t", "→"))
