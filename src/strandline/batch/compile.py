"""The SQL a node runs, as one statement that can be read: each step a named part, in the order of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlglot import exp

from strandline.batch import business_time, compare, follow
from strandline.engine.base import Engine, Scan, Source, Staged
from strandline.lake import describe
from strandline.plan.job import Job
from strandline.sql.expr import ident, rows_of
from strandline.sql.portable import DIALECTS
from strandline.strategy.changes import ChangeSet
from strandline.types import APP, Column, Relation, Table, Token


class Recorder:
    """An engine that notes what is asked of it and passes it on; it never evaluates and never writes."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.dialect = engine.dialect
        self.parts: list[tuple[str, exp.Query]] = []
        self.names: dict[str, str] = {}

    def scan(self, source: Source) -> Scan:
        scan = self.engine.scan(source)
        self.names[scan.relation.name] = source.label
        return scan

    def query(self, tree: exp.Query) -> Relation:
        relation = self.engine.query(tree)
        self.parts.append((relation.name, tree))
        self.names[relation.name] = f"step_{len(self.parts)}"
        return relation

    def stage(
        self, tree: exp.Query, measures: Mapping[str, exp.Expr], keep: exp.Expr | None
    ) -> Staged:
        """Nothing is evaluated: the rows are a step like any other, and nothing is known of them."""
        kept = tree if keep is None else rows_of(self.query(tree)).where(keep)
        return Staged(self.query(kept), dict.fromkeys(measures))

    def fetch(self, tree: exp.Query) -> list[tuple[Any, ...]]:
        return [tuple(None for _ in tree.selects)]

    def call(self, function: Callable[[Any], Any], rows: Relation) -> Relation:
        return self.engine.call(function, rows)

    def alter(self, table: Table, add: Sequence[Column], system: Mapping[str, Column]) -> None:
        raise NotImplementedError("compiling writes nothing")

    def apply(
        self, table: Table, changes: ChangeSet, token: Token, record: Mapping[str, Any]
    ) -> int:
        raise NotImplementedError("compiling writes nothing")


def compile_node(job: Job, engine: Engine) -> str:
    """The query whose rows a run would stage: the change set of this node."""
    recorder = Recorder(engine)
    state = describe(job.target, APP)
    slice_ = follow.read_or_follow(job, recorder, state)
    transformed = follow.transform(job, recorder, slice_, state)
    if job.events is not None:
        rows = business_time.compiled(job, recorder, transformed, state)
    else:
        rows = compare.reconcile(job, recorder, slice_, transformed, state).proposal.rows
    parts = [
        (recorder.names[name], _renamed(tree, recorder.names)) for name, tree in recorder.parts
    ]
    final = _renamed(rows, recorder.names)
    for name, tree in parts:
        final = final.with_(ident(name), as_=tree, copy=False)
    text: str = final.sql(dialect=DIALECTS[engine.dialect], pretty=True)
    return text


def _renamed(tree: exp.Query, names: Mapping[str, str]) -> exp.Query:
    tree = tree.copy()
    for table in tree.find_all(exp.Table):
        if table.name in names:
            table.set("this", ident(names[table.name]))
    return tree
