"""What the steps of a node do to its rows: is each made of one row, and which columns pass unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from strandline.config.expectations import ValidateConfig
from strandline.config.model import NodeConfig, StepConfig
from strandline.sql.incremental import NotIncremental, restless
from strandline.sql.portable import parse
from strandline.sql.tested import deterministic
from strandline.transform.registry import step_name
from strandline.types import Schema

_SAME = ("filter", "detect_deletes", "generate_surrogate_key", "deduplicate", "validate")


@dataclass(frozen=True)
class Passing:
    """The source's columns that passed unchanged, by the name they have now, and by what rows were deduplicated."""

    columns: Mapping[str, str]
    deduplicated: Sequence[frozenset[str]] = field(default_factory=tuple)


def through_steps(node: NodeConfig, columns: Schema) -> Passing:
    """What passes all steps; raises `NotIncremental` at one that looks at more than a row."""
    passing = {c.fold: c.fold for c in columns}
    by: list[frozenset[str]] = []
    for step in _steps(node):
        if step.operation == "validate":
            _refuse_whole(step)
        elif step.operation == "deduplicate":
            by.append(frozenset(passing.get(str(k).casefold(), "") for k in step.params["keys"]))
        else:
            passing = _passed(step.operation, step.params, passing)
    return Passing(passing, by)


def _refuse_whole(step: StepConfig) -> None:
    """A check that looks at more than a row says something else of the rows that changed than of all."""
    for check in ValidateConfig.model_validate(step.params).expectations:
        if not check.row_by_row:
            raise NotIncremental(f"the check `{check.check}` looks at more than one row")


def rewritten(node: NodeConfig, names: Sequence[str], after: int) -> tuple[str, str] | None:
    """A column that may hold another value at the end than before a step, and what rewrites it; a cast does not."""
    spelled = {n.casefold(): n for n in names}
    wanted = set(spelled)
    for index, step in enumerate(_steps(node)[after:], start=after):
        if step.operation == "sql" and (
            name := named_anew(str(step.params.get("query", "")), wanted)
        ):
            return name, step_name(index, "sql")
        try:
            passing = _passed(step.operation, step.params, {n: n for n in wanted})
        except NotIncremental:  # a function of one's own: nobody knows
            continue
        lost = sorted(n for n in wanted if passing.get(n) != n)
        if lost and step.operation not in ("cast", "deduplicate"):
            return spelled[lost[0]], step_name(index, step.operation)
    name = named_anew(node.transformation_sql, wanted) if node.transformation_sql else None
    return (name, "transformation_sql") if name else None


def named_anew(sql: str, names: set[str]) -> str | None:
    """A name that some part of a query gives to another value than the column of that name."""
    for alias in parse(sql, "").find_all(exp.Alias):
        value = alias.this.this if isinstance(alias.this, exp.Cast) else alias.this
        plain = isinstance(value, exp.Column) and value.name.casefold() == alias.alias.casefold()
        if alias.alias.casefold() in names and not plain:
            return alias.alias
    return None


def _steps(node: NodeConfig) -> Sequence[StepConfig]:
    return node.transform.steps if node.transform else []


def _passed(
    operation: str, params: Mapping[str, Any], passing: Mapping[str, str]
) -> dict[str, str]:
    names = {str(c).casefold() for c in params.get("columns", ())}
    match operation:
        case "rename":
            new = {str(old).casefold(): str(n).casefold() for old, n in params["columns"].items()}
            return {new.get(name, name): source for name, source in passing.items()}
        case "select":
            return {name: source for name, source in passing.items() if name in names}
        case "drop" | "cast" | "derive" | "hash_columns":
            return {name: source for name, source in passing.items() if name not in names}
        case "generate_surrogate_key":
            return {
                n: s
                for n, s in passing.items()
                if n != str(params.get("output_col", "_hash_key")).casefold()
            }
        case _ if operation in _SAME:
            return dict(passing)
    raise NotIncremental(f"the step `{operation}` may look at more than one row")


def clockwork(node: NodeConfig) -> bool:
    """Does the clock decide which rows the node gives, or what is written of them?"""
    filters = [str(s.params.get("condition", "")) for s in _steps(node) if s.operation == "filter"]
    if not all(deterministic(text) for text in (*filters, *node.write.conditions)):
        return True
    return node.transformation_sql is not None and restless(
        parse(node.transformation_sql, node.name)
    )


def repeatable(node: NodeConfig) -> bool:
    """Does the same input always change the table alike? Not with a function of one's own, or a clock in the SQL."""
    sql = [node.transformation_sql or "", *node.write.conditions]
    for step in _steps(node):
        if step.operation == "python":
            return False
        sql += [
            v
            for p in step.params.values()
            for v in (p.values() if isinstance(p, dict) else [p])
            if isinstance(v, str)
        ]
    return all(deterministic(text) for text in sql)
