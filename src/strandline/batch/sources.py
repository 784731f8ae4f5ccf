"""The sources of a node that follows changes: as they are, as they were, and what moved in between.

The version of each is fixed first; then each side is read at most once, and only when something asks for it. Where the
feed between two versions cannot be read completely, the two snapshots are compared instead; where the old one is gone
too, nobody knows what moved, and the source says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from logging import INFO, WARNING

from sqlglot import exp

from strandline.batch.read import feed_of, kept, lake_of, outside, pin, planned_rows, stored_rows
from strandline.control.coverage import Pin
from strandline.engine.base import Engine, FeedSource, Scan
from strandline.errors import ReadError
from strandline.journal import log
from strandline.lake import format_of
from strandline.plan.inputs import Input, is_lake, source_of
from strandline.plan.job import Job
from strandline.plan.views import by_last, hidden, seen
from strandline.sql import net
from strandline.sql.expr import cast, named, select
from strandline.types import Relation, Schema, TableState


@dataclass(frozen=True)
class Moved:
    """What moved in one source: rows that came and are still there, rows that went."""

    rows: Relation | None = None
    came: int = 0
    went: int = 0
    unknown: str | None = None  # why nobody knows what moved

    @property
    def quiet(self) -> bool:
        return self.unknown is None and not self.came and not self.went


QUIET = Moved()


class Sources:
    """All sources of one batch, each pinned to the version it has now."""

    def __init__(self, job: Job, engine: Engine, *, fresh: bool, silent: bool = False) -> None:
        self.job, self.engine, self.fresh = job, engine, fresh  # fresh: nothing was followed before
        self.silent = (
            silent  # the node does not follow changes: how they were found is not worth a warning
        )
        self.scans: list[Scan] = []  # of changes
        self.snapshots: list[Scan] = []
        self.said: list[str] = []
        self._now: dict[str, Relation] = {}
        self._then: dict[str, Relation | None] = {}
        self.states = {i.alias: self._state(i) for i in job.inputs}

    def _state(self, input_: Input) -> TableState | None:
        """What the table is at this moment; None for a planned table, and for what is no table of the lake."""
        if (
            not is_lake(self.job.project, input_.read)
            or lake_of(self.job, input_).location in self.job.planned
        ):
            return None
        _, state = source_of(self.job.project, self.job.node, input_)
        return state

    def pins(self) -> dict[str, Pin]:
        """The id and version of every lake table, for the records."""
        found = {}
        for input_ in self.job.inputs:
            state = self.states[input_.alias]
            if state is not None:
                found[input_.key] = pin(self.job, state, feed_of(self.job, input_))
        return found

    def versions(self) -> dict[str, int]:
        return {
            i.label: s.version for i in self.job.inputs if (s := self.states[i.alias]) is not None
        }

    # --- as it is ------------------------------------------------------------------------------------------

    def columns(self, input_: Input) -> Schema:
        """What the node sees of a source."""
        state = self.states[input_.alias]
        if state is None:
            return self.now(input_).schema
        return state.schema.without(*hidden(self.job.node, input_.alias, state.roles))

    def none(self, input_: Input) -> Relation:
        """No row of a source, without reading it."""
        columns = (named(cast(exp.null(), c.type), c.name) for c in self.columns(input_))
        return self.engine.query(select(*columns).where(exp.false()))

    def now(self, input_: Input) -> Relation:
        """The source as it is."""
        if input_.alias not in self._now:
            scan = self._scan(input_)
            self.snapshots.append(scan)
            self._now[input_.alias] = scan.relation
        return self._now[input_.alias]

    def _scan(self, input_: Input) -> Scan:
        job, state = self.job, self.states[input_.alias]
        if not is_lake(job.project, input_.read):
            return outside(job, self.engine, input_).scan
        if state is not None:
            return stored_rows(job, self.engine, input_, state, None)
        return planned_rows(job, self.engine, input_, None)

    # --- as it was -----------------------------------------------------------------------------------------

    def position(self, input_: Input) -> tuple[str, int] | None:
        """The table and the version that were processed last; None when nothing was."""
        found = None if self.fresh else self.job.past.memory.sources.get(input_.key)
        if found:
            return found.table_id, found.version
        start, state = (
            input_.read.feed.from_version if input_.read.feed else None,
            self.states[input_.alias],
        )
        if start is None or state is None:
            return None
        if start > state.version + 1:
            raise ReadError(
                f"{self.job.node.name}: from_version: {start}, but {input_.label} is at version {state.version}",
                hint="the changes of that version, and of all after it, are read first: name one that is there",
            )
        return state.table_id, start - 1

    def then(self, input_: Input) -> Relation | None:
        """The source as it was at the end of the last batch; None when that can no longer be read."""
        if input_.alias not in self._then:
            self._then[input_.alias] = self._before(input_)
        return self._then[input_.alias]

    def _before(self, input_: Input) -> Relation | None:
        at = self.position(input_)
        if at is None:
            return None
        table_id, version = at
        lake, state = lake_of(self.job, input_), self.states[input_.alias]
        if state is not None and state.table_id == table_id and state.version == version:
            return self.now(input_)
        if version < 0:
            return self.none(input_)
        before = format_of(lake).at(lake, version)
        if before is None or before.table_id != table_id:
            return None
        before = seen(input_.read, before, lake.label)
        return stored_rows(self.job, self.engine, input_, before, None).relation

    # --- what moved ----------------------------------------------------------------------------------------

    def stirred(self, input_: Input) -> bool:
        """May something have moved? The log knows, without reading a row."""
        at, state = self.position(input_), self.states[input_.alias]
        if at is None or state is None or state.table_id != at[0] or state.version < at[1]:
            return True
        lake = lake_of(self.job, input_)
        return format_of(lake).moved(lake, at[1], state.version)

    def moved(self, input_: Input) -> Moved:
        """What came and what went since the last batch."""
        at, state = self.position(input_), self.states[input_.alias]
        if at is None:
            return Moved(unknown=f"no position is recorded for {input_.key}")
        if state is None:  # a planned table has no feed yet
            return self._compared(input_, "it is planned")
        table_id, after = at
        lake = lake_of(self.job, input_)
        if state.table_id != table_id:
            return self._unknown(input_, f"{input_.label} was made anew since")
        if state.version < after:
            return self._unknown(
                input_, f"{input_.label} is at version {state.version}, older than {after}"
            )
        if by_last(
            input_.read, state.roles
        ):  # a deleted version stays as it is when a new one follows it
            return self._difference(input_, self.then(input_), "the last versions are compared")
        if gap := format_of(lake).gap(
            lake, after, state.version, vectors=self.engine.dialect == "spark"
        ):
            return self._compared(input_, gap)
        feed = FeedSource(
            lake,
            after,
            state.version,
            self.columns(input_),
            kept(self.job, input_, state.roles, None),
        )
        scan = self.engine.scan(feed)
        self.scans.append(scan)
        return self._staged(net.of_feed(scan.relation, feed.columns), feed.columns)

    def _compared(self, input_: Input, reason: str) -> Moved:
        """Two snapshots instead of a feed."""
        then = self.then(input_)
        if then is not None:
            text = f"{input_.label}: its change feed cannot be read: {reason}; its snapshots are compared instead"
            self.say(text, input_)
        return self._difference(input_, then, reason)

    def _difference(self, input_: Input, then: Relation | None, reason: str) -> Moved:
        """What moved between the snapshot of the last batch and that of this one."""
        if then is None:
            return self._unknown(
                input_, f"{reason}, and {input_.label} as it was then can no longer be read"
            )
        columns = self.columns(input_)
        found = self._staged(net.of_snapshots(then, self.now(input_), columns), columns)
        self.scans.append(Scan(self.now(input_), lambda: found.came + found.went))
        return found

    def _unknown(self, input_: Input, reason: str) -> Moved:
        return Moved(
            unknown=reason
            if self.silent
            else f"{input_.label}: its change feed cannot be read: {reason}"
        )

    def _staged(self, signed: exp.Query, columns: Schema) -> Moved:
        staged = self.engine.stage(net.net(signed, columns), net.measures(), None)
        came, went = (
            1 if n is None else int(n) for n in map(staged.measures.get, ("came", "went"))
        )
        return Moved(staged.relation, came, went)

    def side(self, input_: Input, moved: Moved, sign: int) -> Relation:
        """The rows that came (+1) or went (−1)."""
        if moved.rows is None:
            return self.none(input_)
        return self.engine.query(net.side(moved.rows, self.columns(input_), sign))

    def changed(self, input_: Input) -> str | None:
        """Why a source that is read in full counts as changed; None when it does not."""
        state = self.states[input_.alias]
        if not is_lake(self.job.project, input_.read):
            return f"{input_.label} is no lake table, and nobody knows whether it changed"
        if state is None:
            return f"{input_.label} is planned"
        at = self.position(input_)
        if at is None or at[0] != state.table_id or at[1] > state.version:
            return f"{input_.label} is another table"
        return f"{input_.label}, which is read in full, changed" if self.stirred(input_) else None

    def say(self, text: str, input_: Input | None = None) -> None:
        """A line for the log and for the result."""
        planned = (
            input_ is not None and self.states[input_.alias] is None
        )  # a plan compares snapshots anyway
        quiet = self.silent or planned
        log.log(INFO if quiet else WARNING, "%s: %s", self.job.node.name, text)
        if not quiet:
            self.said.append(text)
