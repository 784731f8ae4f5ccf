"""Writes `<table>__quarantine`: what a batch changes there goes before its own commit, what is over is removed after.

The commits here have numbers of their own. They fence nobody: whoever ends the batch decides which rows count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from strandline.batch.compare import Quarantine
from strandline.control.coverage import Coverage
from strandline.control.ledger import Batch
from strandline.engine.base import Engine, LakeSource
from strandline.errors import CommitConflict, Fenced
from strandline.failpoints import point
from strandline.journal import log
from strandline.lake import describe
from strandline.plan.job import Job
from strandline.sql.expr import all_of, cast, col, eq, lit, named, negate, select, table
from strandline.strategy import quarantine as rules
from strandline.strategy.changes import ACTION, ChangeSet
from strandline.strategy.quarantine import LEFT, NODE, RUN, Standing
from strandline.types import Counts, Relation, Schema, TableState

_TRIES = 5


@dataclass(frozen=True)
class Shelf:
    """The quarantine of a node's table, in one batch."""

    job: Job
    engine: Engine
    this: Batch

    def put(self, aside: Quarantine) -> int | None:
        """Let rows enter and leave under this run; returns the version that was made, None when nothing changes."""
        token = self.this.token
        point("quarantine.before", token.node)
        if (token.node, token.run_id) in aside.standing.void:
            self._forget()
        if aside.landing is None:
            return None
        changes = aside.landing.changes
        at = lit(self.job.clock.now)
        tree = rules.stamped(changes, token.node, token.run_id, self.this.batch_id, at)
        changes = replace(changes, additions=self.engine.query(tree))
        version = self._commit(changes) if not changes.evolves else self._in_two(changes)
        point("quarantine.after", token.node)
        return version

    def _in_two(self, changes: ChangeSet) -> int | None:
        """New columns come with the rows that enter, in a commit that only adds; the rows that leave come after it."""
        version, counts = None, changes.counts or Counts()
        if counts.inserted:
            version = self._commit(_only(self.engine, changes, "insert", changes.columns))
        there = describe(self.job.quarantine)
        if counts.updated and there is not None:
            version = self._commit(_only(self.engine, changes, "update", there.schema))
        return version

    def _forget(self) -> None:
        """Take back what this run had written here before it tried again."""
        mine = eq(col(RUN), lit(self.this.token.run_id))
        found = self._rows()
        if found is None:
            return
        state, rows = found
        left = eq(col(LEFT), lit(self.this.token.run_id))
        columns = rules.kept_schema(state.schema)
        gone = rules.removing(
            rows, columns, all_of([mine, eq(col(NODE), lit(self.this.token.node))])
        )
        none: list[exp.Expr] = [
            named(cast(exp.null(), "string"), c.name) if c.name == LEFT else col(c.name)
            for c in (*columns, *rules.OURS)
        ]
        back = select(*none, named(lit("update"), ACTION)).from_(table(rows.name))
        tree = exp.union(gone, back.where(all_of([left, negate(mine.copy())])), distinct=False)
        self._change(tree, columns)

    def swept(self, aside: Quarantine, ended: set[tuple[str, str]]) -> None:
        """Remove the rows that have left, and those of runs that came to no end; the next batch does what is left."""
        runs = {run for _, run in ended}
        void = tuple(v for v in aside.standing.void if v not in ended)
        left = set(aside.standing.left)
        if aside.landing and (c := aside.landing.changes.counts) and c.updated:
            left |= {self.this.token.run_id} & runs
        over = Standing(void, tuple(sorted(left)))
        if not over.any:
            return
        point("quarantine.sweep", self.this.token.node)
        try:
            found = self._rows()
            if found is not None:
                state, rows = found
                columns = rules.kept_schema(state.schema)
                self._change(rules.removing(rows, columns, over.gone()), columns)
        except CommitConflict as e:
            log.info(
                "%s: %s is tidied up by the next run: %s",
                self.this.token.node,
                self.job.quarantine.label,
                e,
            )

    def _rows(self) -> tuple[TableState, Relation] | None:
        state = describe(self.job.quarantine)
        if state is None:
            return None
        return state, self.engine.scan(LakeSource(self.job.quarantine, state.version)).relation

    def _change(self, tree: exp.Query, columns: Schema) -> None:
        counted = {"n": cast(exp.Count(this=exp.Star()), "bigint")}
        staged = self.engine.stage(tree, counted, None)
        if n := int(staged.measures["n"] or 0):
            changes = rules.change_set(staged.relation, columns, Counts(deleted=n))
            self._commit(changes)

    def _commit(self, changes: ChangeSet) -> int:
        """One commit under the next number of the node; another runner of the node may take it first."""
        place = self.job.quarantine
        for attempt in range(1, _TRIES + 1):
            state = describe(place, self.job.app_id)
            number = (state.commit.number if state and state.commit else 0) + 1
            token = replace(self.this.token, number=number)
            record = {"coverage": Coverage(run=token.run_id).as_dict(), "counts": None}
            try:
                return self.engine.apply(place, changes, token, record)
            except (Fenced, CommitConflict):
                if attempt == _TRIES:
                    raise
        raise AssertionError("the last attempt returns or raises")


def _only(engine: Engine, changes: ChangeSet, verb: str, columns: Schema) -> ChangeSet:
    """The rows of a change set with one verb, in some of its columns."""
    rows = changes.additions
    tree = select(*map(col, columns.names), col(ACTION)).from_(table(rows.name))
    counts = changes.counts or Counts()
    inserts = verb == "insert"
    return replace(
        changes,
        additions=engine.query(tree.where(eq(col(ACTION), lit(verb)))),
        columns=columns,
        counts=Counts(inserted=counts.inserted) if inserts else Counts(updated=counts.updated),
        evolves=changes.evolves if inserts else (),
    )
