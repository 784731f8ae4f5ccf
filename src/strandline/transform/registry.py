"""The steps a pipeline can name. Third parties add theirs by the entry point group `strandline.transforms`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel
from sqlglot import exp

from strandline.config.deletes import DeleteDetectionConfig
from strandline.config.model import StepConfig
from strandline.errors import TransformError, UnknownColumn, located
from strandline.sql.portable import parse
from strandline.sql.tested import refuse_untested
from strandline.sql.typing import spark_expression
from strandline.types import Column, Relation

if TYPE_CHECKING:
    from strandline.engine.base import Engine

P = TypeVar("P", bound=BaseModel)


@dataclass(frozen=True)
class Detection:
    """How deletes are to be found, and the rows as they were at that step."""

    params: DeleteDetectionConfig
    rows: Relation


@dataclass(frozen=True)
class Rejected:
    """Rows that a step has put aside, as it saw them, with the column `_reasons`."""

    step: int  # the place of the step in its node
    rows: Relation
    any: bool = True  # is there a row among them?


@dataclass(frozen=True)
class EngineContext:
    """The rows on their way through the steps, and the engine that can name new ones.

    Rows are checked only on their way into a table (`checking`), not where a node looks at what became of old ones.
    """

    engine: Engine
    rows: Relation
    where: str = "transform"
    index: int = 0  # the place of the step in its node
    carried: tuple[str, ...] = ()  # metadata columns that `select` keeps
    detection: Detection | None = None
    now: datetime | None = None  # the one instant of the run
    checking: bool = False
    partial: bool = False  # some rows, of which checks of the rows as a whole say nothing
    lake: Callable[[str, str], Relation] | None = (
        None  # the living rows of a table, by its connection and name
    )
    rejected: tuple[Rejected, ...] = ()
    said: tuple[str, ...] = ()  # what there is to warn of

    def with_rows(self, tree: exp.Query) -> EngineContext:
        return replace(self, rows=self.engine.query(tree))

    def column(self, name: str) -> Column:
        """A column of the rows, or an error that names the nearest ones."""
        found = self.rows.schema.get(name)
        if found is None:
            raise UnknownColumn(name, self.rows.schema.names, where=self.where)
        return found

    def expression(self, sql: str) -> exp.Expr:
        """A user's expression over the rows: parsed, its columns checked and quoted."""
        tree = self.parse(sql)
        if isinstance(tree, exp.Query | exp.Command):
            raise TransformError(
                f"{self.where}: expected an expression, found a statement: {sql.strip()}"
            )
        for node in list(tree.find_all(exp.Column)):
            if not node.find_ancestor(exp.Subquery, exp.Lambda):
                node.this.set("quoted", True)
                node.this.set("this", self.column(node.name).name)
                node.set("table", None)
        if self.engine.dialect == "spark":
            return tree
        return spark_expression(tree, {"": self.rows.schema}, self.where, self.now)

    def parse(self, sql: str) -> exp.Expr:
        tree = parse(sql, self.where)
        if self.engine.dialect != "spark":
            refuse_untested(tree, self.where)
        return tree


@dataclass(frozen=True)
class Step:
    """A registered step: its name, what it takes, what it does."""

    name: str
    category: str
    param_model: type[BaseModel]
    run: Callable[[EngineContext, Any], EngineContext]


_steps: dict[str, Step] = {}


def transform(
    name: str, *, category: str, param_model: type[P]
) -> Callable[
    [Callable[[EngineContext, P], EngineContext]], Callable[[EngineContext, P], EngineContext]
]:
    """Register a function `(context, params) -> context` as the step `name`."""

    def register(
        function: Callable[[EngineContext, P], EngineContext],
    ) -> Callable[[EngineContext, P], EngineContext]:
        _steps[name] = Step(name, category, param_model, function)
        return function

    return register


@functools.cache
def _load() -> None:
    import strandline.transform.steps
    import strandline.transform.validate  # noqa: F401

    for entry in entry_points(group="strandline.transforms"):
        entry.load()


def get(operation: str) -> Step | None:
    """The step of that name, if there is one."""
    _load()
    return _steps.get(operation)


def step_name(index: int, operation: str) -> str:
    """What messages call a step: counted from 0, as in the keys that `validate` names."""
    return f"transform.steps[{index}] ({operation})"


def applied(context: EngineContext, config: StepConfig, node: str, index: int) -> EngineContext:
    """The rows after one step of a node."""
    step = get(config.operation)
    if step is None:
        raise TransformError(f"{node}: there is no step `{config.operation}`")
    where = f"{node}: {step_name(index, config.operation)}"
    with located("transform", "steps", index):
        return step.run(
            replace(context, where=where, index=index), step.param_model(**config.params)
        )


def names() -> list[str]:
    """All steps, sorted."""
    _load()
    return sorted(_steps)
