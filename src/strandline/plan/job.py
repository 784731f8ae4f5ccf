"""A node with all it needs to be worked on: its configuration, the instant of the run, and what earlier runs left."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from strandline.config.deletes import DeleteDetectionConfig, DeleteDetectionMode
from strandline.config.identity import of_all
from strandline.config.load import Project
from strandline.config.model import NodeConfig
from strandline.config.writes import EVENTS
from strandline.control.coverage import NO_BATCH, NOTHING, Before, Coverage
from strandline.control.ledger import Notebook
from strandline.plan.inputs import Input, identified, inputs, is_lake, table_of
from strandline.plan.policy import combines, detection_of
from strandline.plan.watermark import Mark
from strandline.types import Clock, Relation, Table


@dataclass(frozen=True)
class Feed:
    """How a lake table was last fed: the id of the batch, and what it covered."""

    batch: str
    coverage: Coverage


@dataclass(frozen=True)
class Planned:
    """A table as a plan would leave it, with its system columns by role."""

    rows: Relation
    roles: Mapping[str, str]
    feed: Feed


@dataclass(frozen=True)
class Past:
    """What earlier runs left behind."""

    memory: Coverage = NOTHING  # what the last finished batch covered
    before: Before = NO_BATCH  # the same, and its number, as an undo puts it back
    feed: Callable[[Table], Feed | None] = lambda _: None  # how a table was last fed
    notebook: Notebook | None = None
    approved: bool = False  # has a person approved deletes that no batch has applied yet?
    said: tuple[str, ...] = ()  # what there is to warn of: the table does not hold what they left
    first: bool = (
        False  # a person has said that this may be a first run, whatever on_first_run says
    )

    def marks(self) -> dict[str, Mark]:
        return {name: Mark.from_json(pair) for name, pair in self.memory.marks.items()}


@dataclass(frozen=True)
class Job:
    """One batch of one node."""

    project: Project
    node: NodeConfig
    clock: Clock
    planned: Mapping[str, Planned] = field(default_factory=dict)  # a plan's tables as they would be
    batch: int = 1  # as people see it
    batch_id: str = "/"
    number: int = 1  # of its commit
    past: Past = field(default_factory=Past)
    instead: str | None = None  # an undo speaks for the source that its run had read

    @property
    def target(self) -> Table:
        return table_of(self.project, self.node.write.connection, self.node.write.table)

    @property
    def events(self) -> Table | None:
        """Where a history in business time keeps its events; None for every other node."""
        return self.events_place if self.node.write.effective_at is not None else None

    @property
    def events_place(self) -> Table:
        """Where the events of its table are, if it has or had any."""
        return table_of(self.project, self.node.write.connection, self.node.write.table + EVENTS)

    @property
    def inputs(self) -> list[Input]:
        return identified(self.project, self.node)

    @property
    def source(self) -> str:
        """The identity of all that it reads: with the table's id, the key of its records."""
        return self.instead or of_all(i.key for i in self.inputs)

    @property
    def keys(self) -> list[str]:
        """The keys of its table, in the order in which they were first given: notes of single keys go by it."""
        order = {k.casefold(): i for i, k in enumerate(self.past.memory.keys or ())}
        return sorted(self.node.write.keys, key=lambda k: order.get(k.casefold(), len(order)))

    @property
    def digest(self) -> str:
        """Tells one configuration of the node from another: other limits judge deletes that were found before anew."""
        deletes = self.project.config.deletes
        limits = deletes.model_dump_json(exclude_unset=True) if deletes and self.detection else ""
        return hashlib.sha256((self.node.model_dump_json() + limits).encode()).hexdigest()[:16]

    @property
    def at(self) -> datetime:
        """The instant this batch writes into tables: the run's, but always later than the last batch's."""
        last = self.past.memory.at
        if last is None:
            return self.clock.now
        return max(self.clock.now, last + timedelta(microseconds=1))

    @property
    def follows(self) -> bool:
        """Does it follow the changes of a source, or of several together?"""
        return any(i.read.feed for i in self.inputs) or (
            combines(self.node) and not any(map(self._part, self.inputs))
        )

    def _part(self, input_: Input) -> bool:
        """Does a table hold only what its last, limited read brought? Then what it lacks is not gone."""
        if not is_lake(self.project, input_.read):
            return False
        lake = table_of(self.project, input_.read.connection, input_.read.table or "")
        writer = self.writer(lake)
        if writer is None:
            feed = self.past.feed(lake)
            return (
                feed is not None and feed.coverage.mode == "overwrite" and not feed.coverage.whole
            )
        return writer.write.mode == "overwrite" and any(r.limited for _, r in writer.reads())

    @property
    def followed(self) -> bool:
        """Does a node of this project follow the changes of the table it writes?"""
        for node in self.project.config.nodes:
            for input_ in inputs(node):
                lake = input_.read.feed is not None and is_lake(self.project, input_.read)
                if (
                    lake
                    and table_of(self.project, input_.read.connection, input_.read.table or "")
                    == self.target
                ):
                    return True
        return False

    @property
    def detection(self) -> DeleteDetectionConfig | None:
        return detection_of(self.project, self.node)

    def writer(self, table: Table) -> NodeConfig | None:
        """The node of this project that writes a table."""
        nodes = self.project.config.nodes
        return next(
            (
                n
                for n in nodes
                if table_of(self.project, n.write.connection, n.write.table) == table
            ),
            None,
        )


def feeds_snapshots(project: Project, node: NodeConfig) -> bool:
    """Does a node that compares snapshots read what this one appends? Then its rows carry their batch."""
    if node.write.mode != "append":
        return False
    mine = table_of(project, node.write.connection, node.write.table)
    for other in project.config.nodes:
        config = detection_of(project, other)
        if (
            config is None
            or config.mode is not DeleteDetectionMode.SNAPSHOT_DIFF
            or config.snapshot_column
        ):
            continue
        for input_ in inputs(other):
            lake = project.config.connections[input_.read.connection].type == "lake"
            if lake and table_of(project, input_.read.connection, input_.read.table or "") == mine:
                return True
    return False
