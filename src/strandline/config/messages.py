"""Pydantic's errors in plain words: what was found, what was expected, which name was probably meant."""

from __future__ import annotations

import datetime as dt
import enum
import functools
import operator
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from strandline.config.model import NODE_NAME, PROJECT_NAME
from strandline.config.positions import Loc, Mistake
from strandline.config.reads import ALIAS
from strandline.errors import did_you_mean

_SECRET_KEYS = {"password", "url", "jdbc_url", "user"}
_TAGS = ("type", "check")
"""The keys by which a map says which of several kinds it is."""
_HIDDEN = "a value that is not shown here"
_PATTERNS = {
    PROJECT_NAME: "letters, digits, `_` and `-`",
    NODE_NAME: "letters, digits, `_`, `-` and `.`",
    ALIAS: "a letter or `_`, then letters, digits and `_`",
}
_WORDS: dict[Any, tuple[str, str]] = {
    str: ("text", "strings"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false"),
    dict: ("a map", "maps"),
    list: ("a list", "lists"),
    dt.date: ("a date", "dates"),
    dt.datetime: ("a date and time", "dates and times"),
    type(None): ("nothing", "nothing"),
}


def mistakes_of(error: ValidationError, kind: Any, data: Any, prefix: Loc = ()) -> list[Mistake]:
    """Every mistake in `data`, which should have been a `kind`, found at `prefix` of the project."""
    found: dict[tuple[Loc, str], Mistake] = {}
    for details in error.errors(include_url=False):
        loc = _without_tags(details, data)
        mistake = _mistake(details, loc, kind, data, hidden=_is_secret((*prefix, *loc)))
        mistake = mistake._replace(loc=(*prefix, *mistake.loc))
        found.setdefault(
            (mistake.loc, mistake.message), mistake
        )  # each member of a union says the same
    return list(found.values())


def wrong_type(value: Any, kind: Any) -> str:
    """`expected a list of strings, found 'abc' (text)`."""
    return f"expected {describe(kind)}, found {_found(value)}"


def _mistake(details: ErrorDetails, loc: Loc, kind: Any, data: Any, *, hidden: bool) -> Mistake:
    error, context = details["type"], details.get("ctx", {})
    found = _HIDDEN if hidden else _found(details["input"])
    name = str(loc[-1]) if loc else ""
    if error == "strandline":
        return Mistake(loc, context["message"], context["hint"])
    if error == "missing":
        return Mistake(loc, f"`{name}` is missing")
    if error == "extra_forbidden":
        known = _keys(_kind_at(kind, loc[:-1], data))
        return Mistake(
            loc,
            f"unknown key `{name}`",
            did_you_mean(name, known) or f"known keys are {', '.join(known)}",
        )
    if error.startswith("union_tag"):
        tag = str(context["discriminator"]).strip("'")
        return _tag_mistake(details, loc, tag, _choices(_kind_at(kind, (*loc, tag), data)))
    return _value_mistake(details, loc, _kind_at(kind, loc, data), found)


def _value_mistake(details: ErrorDetails, loc: Loc, expected: Any, found: str) -> Mistake:
    error, context, value = details["type"], details.get("ctx", {}), details["input"]
    if choices := _choices(expected):
        return Mistake(
            loc, f"expected {_one_of(choices)}, found {found}", did_you_mean(str(value), choices)
        )
    if error == "string_pattern_mismatch":
        pattern = context["pattern"]
        return Mistake(
            loc, f"expected {_PATTERNS.get(pattern, f'text like {pattern}')}, found {found}"
        )
    if error in ("string_too_short", "too_short"):
        return Mistake(loc, "this may not be empty")
    if error in ("value_error", "assertion_error"):
        return Mistake(loc, str(context.get("error") or details["msg"]))
    if expected is not Any and error.endswith(
        ("_type", "_parsing", "_attributes", "_from_float", "_type_float")
    ):
        hint = (
            f'put it in quotes: "{value}"'
            if str in _members(expected) and found != _HIDDEN and _quotable(value)
            else None
        )
        return Mistake(loc, f"expected {describe(expected)}, found {found}", hint)
    words = details["msg"].removeprefix("Input should be ")
    return Mistake(loc, f"expected {words[:1].lower()}{words[1:]}, found {found}")


def _tag_mistake(details: ErrorDetails, loc: Loc, name: str, choices: list[str]) -> Mistake:
    if details["type"] == "union_tag_not_found":
        return Mistake((*loc, name), f"`{name}` is missing", f"it is {_one_of(choices)}")
    tag = details["input"][name]
    return Mistake(
        (*loc, name),
        f"expected {_one_of(choices)}, found {_found(tag)}",
        did_you_mean(str(tag), choices),
    )


def _without_tags(details: ErrorDetails, data: Any) -> Loc:
    """The way to the value, without the names of union members that Pydantic weaves in."""
    loc: list[str | int] = []
    for depth, part in enumerate(details["loc"], start=1):
        if (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int)
        ):
            loc.append(part)
            data = cast(Any, data)[part]
        elif isinstance(data, dict) and part in map(data.get, _TAGS):
            continue
        elif depth == len(details["loc"]) and details["type"] in ("missing", "strandline"):
            loc.append(part)
    return tuple(loc)


def _is_secret(loc: Loc) -> bool:
    return len(loc) > 2 and loc[0] == "connections" and loc[2] in _SECRET_KEYS


def describe(kind: Any) -> str:
    """A type in the words of somebody who writes YAML."""
    if choices := _choices(kind):
        return _one_of(choices)
    members = _members(kind)
    if len(members) > 1:
        return " or ".join(
            dict.fromkeys(describe(member) for member in members if member is not type(None))
        )
    kind = members[0]
    if get_origin(kind) is list:
        (inner,) = get_args(kind) or (Any,)
        return "a list" if inner is Any else f"a list of {_plural(inner)}"
    return _words(kind)[0]


def _plural(kind: Any) -> str:
    members = _members(kind)
    return _words(members[0])[1] if len(members) == 1 else describe(kind)


def _words(kind: Any) -> tuple[str, str]:
    kind = get_origin(kind) or kind
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        kind = dict
    name = getattr(kind, "__name__", str(kind))
    return _WORDS.get(kind, (f"a {name}", f"{name}s"))


def _found(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "a map" if isinstance(value, dict) else "a list"
    shown = repr(value) if isinstance(value, str) else str(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return f"{shown} ({_WORDS.get(type(value), (type(value).__name__, ''))[0]})"


def _quotable(value: Any) -> bool:
    return isinstance(value, int | float | dt.date) and not isinstance(value, bool)


def _one_of(choices: list[str]) -> str:
    listed = [f"`{choice}`" for choice in choices]
    return listed[0] if len(listed) == 1 else f"one of {', '.join(listed)}"


def _members(kind: Any) -> list[Any]:
    """The members of a union, Annotated taken off; the kind itself when it is none."""
    if get_origin(kind) is Annotated:
        return _members(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        return [inner for member in get_args(kind) for inner in _members(member)]
    return [kind]


def _choices(kind: Any) -> list[str]:
    members = [member for member in _members(kind) if member is not type(None)]
    choices: list[str] = []
    for member in members:
        if get_origin(member) is Literal:
            choices += [str(choice) for choice in get_args(member)]
        elif isinstance(member, type) and issubclass(member, enum.Enum):
            choices += [str(choice.value) for choice in member]
        else:
            return []
    return choices


def _kind_at(kind: Any, loc: Loc, data: Any) -> Any:
    """The type expected at a place inside `kind`; Any when it cannot be told."""
    for part in loc:
        inner = [found for member in _members(kind) for found in _inside(member, part, data)]
        if not inner:
            return Any
        kind = functools.reduce(operator.or_, inner)
        data = data.get(part) if isinstance(data, dict) else None
    kinds = [m for m in _members(kind) if _fits_tag(m, data)]
    return functools.reduce(operator.or_, kinds) if kinds else kind


def _inside(kind: Any, part: str | int, data: Any) -> Iterator[Any]:
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (list, tuple) and arguments and isinstance(part, int):
        yield arguments[0]
    elif origin is dict and arguments:
        yield arguments[1]
    elif (
        isinstance(origin, type)
        and issubclass(origin, BaseModel)
        and (part in _TAGS or _fits_tag(origin, data))
    ):
        for name, field in origin.model_fields.items():
            if part == (field.alias or name):
                yield field.annotation


def _fits_tag(kind: Any, data: Any) -> bool:
    """Whether a model's `type` or `check` is the one that the data says; true where there is no such thing."""
    if not isinstance(kind, type) or not issubclass(kind, BaseModel) or not isinstance(data, dict):
        return True
    tags = ((tag, field) for tag in _TAGS if (field := kind.model_fields.get(tag)))
    literal = ((tag, f.annotation) for tag, f in tags if get_origin(f.annotation) is Literal)
    return all(data.get(tag) in get_args(annotation) for tag, annotation in literal)


def _keys(kind: Any) -> list[str]:
    models = [m for m in _members(kind) if isinstance(m, type) and issubclass(m, BaseModel)]
    return list(
        dict.fromkeys(
            field.alias or name for model in models for name, field in model.model_fields.items()
        )
    )
