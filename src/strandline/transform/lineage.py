"""What the steps of a node do to its rows: is each made of one row, and which columns pass unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strandline.config.model import NodeConfig
from strandline.sql.incremental import NotIncremental, restless
from strandline.sql.portable import deterministic, parse
from strandline.types import Schema

_SAME = ("filter", "detect_deletes", "generate_surrogate_key", "deduplicate")


@dataclass(frozen=True)
class Passing:
    """The source's columns that passed unchanged, by the name they have now, and by what rows were deduplicated."""

    columns: Mapping[str, str]
    deduplicated: Sequence[frozenset[str]] = field(default_factory=tuple)


def through_steps(node: NodeConfig, columns: Schema) -> Passing:
    """What passes all steps; raises `NotIncremental` at one that looks at more than a row."""
    passing = {c.fold: c.fold for c in columns}
    by: list[frozenset[str]] = []
    for step in node.transform.steps if node.transform else []:
        match step.operation:
            case "deduplicate":
                by.append(frozenset(passing.get(str(k).casefold(), "") for k in step.params["keys"]))
            case "rename":
                new = {str(old).casefold(): str(n).casefold() for old, n in step.params["columns"].items()}
                passing = {new.get(name, name): source for name, source in passing.items()}
            case _:
                passing = _passed(step.operation, step.params, passing)
    return Passing(passing, by)


def _passed(operation: str, params: Mapping[str, Any], passing: Mapping[str, str]) -> dict[str, str]:
    names = {str(c).casefold() for c in params.get("columns", ())}
    match operation:
        case "select":
            return {name: source for name, source in passing.items() if name in names}
        case "drop" | "cast" | "derive" | "hash_columns":
            return {name: source for name, source in passing.items() if name not in names}
        case "generate_surrogate_key":
            return {n: s for n, s in passing.items() if n != str(params.get("output_col", "_hash_key")).casefold()}
        case _ if operation in _SAME:
            return dict(passing)
    raise NotIncremental(f"the step `{operation}` may look at more than one row")


def clockwork(node: NodeConfig) -> bool:
    """Does the clock decide which rows the node gives?"""
    steps = node.transform.steps if node.transform else []
    filters = [str(s.params.get("condition", "")) for s in steps if s.operation == "filter"]
    if not all(deterministic(text) for text in filters):
        return True
    return node.transformation_sql is not None and restless(parse(node.transformation_sql, node.name))
