"""What the checks of a node say about other parts of the project: connections, tables, and rows put aside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from strandline.config.connections import LakeConnection
from strandline.config.expectations import RelationshipCheck, ValidateConfig
from strandline.config.model import NodeConfig, StepConfig
from strandline.config.parts import KINDS, NodeParts, Parts, connection_of
from strandline.config.positions import Loc, Mistake

_SQL = ("where", "expression", "query")


def texts_of(expectations: Sequence[Any]) -> Iterator[tuple[int, str, str]]:
    """The SQL of checks: place, key and text."""
    for index, check in enumerate(expectations):
        for key in _SQL if isinstance(check, dict) else ():
            if isinstance(text := check.get(key), str):
                yield index, key, text


def quarantining(steps: Sequence[tuple[Loc, StepConfig]]) -> Loc | None:
    """The first check that puts rows aside; None when there is none."""
    for loc, config in _validations(steps):
        for index, check in enumerate(config.expectations):
            if check.severity == "quarantine":
                return (*loc, "params", "expectations", index, "severity")
    return None


def expectation_advice(parts: Parts, node: NodeParts) -> Iterator[Mistake]:
    """Every table that a check looks into lies in a lake."""
    for loc, config in _validations(node.steps):
        for index, check in enumerate(config.expectations):
            if not isinstance(check, RelationshipCheck):
                continue
            at: Loc = (*loc, "params", "expectations", index, "connection")
            found = connection_of(parts, at, check.connection)
            if isinstance(found, Mistake):
                yield found
            elif found is not None and not isinstance(found, LakeConnection):
                message = (
                    f"`{check.connection}` is {KINDS[type(found)]}, and a relationship needs a lake"
                )
                yield Mistake(at, message, "load its values into a lake table, and name that")


def related(node: NodeConfig) -> list[tuple[str, str]]:
    """The connection and name of the tables that a node's checks look into."""
    steps = node.transform.steps if node.transform else []
    placed: list[tuple[Loc, StepConfig]] = [((), step) for step in steps]
    return [
        (check.connection, check.table)
        for _, config in _validations(placed)
        for check in config.expectations
        if isinstance(check, RelationshipCheck)
    ]


def _validations(
    steps: Sequence[tuple[Loc, StepConfig]],
) -> Iterator[tuple[Loc, ValidateConfig]]:
    """The validate steps that can be read; what is wrong with others is told already."""
    for loc, step in steps:
        if step.operation == "validate":
            try:
                yield loc, ValidateConfig.model_validate(step.params)
            except ValidationError:
                continue
