"""`undo RUN`: every table, watermark, snapshot record and hold of a run as it was before it.

Nothing is rewound: each table gets a new commit with a new token, that puts the rows of the version before back.
Columns that the run added stay, and a table that the run made is empty afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from strandline.batch import restore
from strandline.batch.compare import Landing
from strandline.batch.prepare import Ready
from strandline.control.coverage import NOTHING
from strandline.control.fence import counting, undone
from strandline.control.ledger import UNDOING, RunRow, Store
from strandline.control.undo import Taking, in_the_way, takings
from strandline.engine.base import Engine
from strandline.errors import Overtaken, StrandlineError, UndoRefused, UsageError
from strandline.failpoints import point
from strandline.lake import commits, describe, format_of
from strandline.plan.graph import Graph
from strandline.plan.job import Job
from strandline.result import NodeResult
from strandline.run.record import now
from strandline.run.retry import Checkpoint
from strandline.run.runner import Runner, taken_back
from strandline.types import Commit, Counts, Table, TableState


@dataclass(frozen=True)
class Undo:
    """A run that is to be taken back, among the nodes of its project and the runs that are at work now."""

    run_id: str
    jobs: Sequence[Job]
    runner: Runner
    graph: Graph
    busy: Sequence[Checkpoint]

    def foreseen(self) -> list[tuple[Job, Taking]]:
        """What an undo would take back, the last node first; nothing is written, also not of runs that died."""
        return self._free(*self._dead())

    def settled(self, settle: Callable[[Job], None]) -> list[tuple[Job, Taking]]:
        """The same, after what dead runners left is finished; nothing is written for a run that nobody knows."""
        if not self._known():
            dead, unknown = self._dead()
            if not unknown:
                self._planned(dead)
        return self._free([], self._each(settle))

    def _known(self) -> bool:
        return any(r.run_id == self.run_id for r in self.runner.store.all_runs())

    def _dead(self) -> tuple[list[RunRow], dict[str, StrandlineError]]:
        """The batches that landed while their runners died; and the nodes of which nobody can tell."""
        dead = list[RunRow]()
        return dead, self._each(lambda job: dead.extend(self.runner.unrecorded(job)))

    def _each(self, look: Callable[[Job], None]) -> dict[str, StrandlineError]:
        """Look at every node; one that cannot be looked at may have nothing to do with the run."""
        unknown = {}
        for job in self.jobs:
            try:
                look(job)
            except StrandlineError as e:
                unknown[job.node.name] = e
        return unknown

    def _planned(self, dead: Sequence[RunRow]) -> list[tuple[Job, Taking]]:
        store = self.runner.store
        return planned(self.jobs, self.run_id, [*dead, *store.all_runs()], noted_in(store))

    def _free(
        self, dead: Sequence[RunRow], unknown: Mapping[str, StrandlineError]
    ) -> list[tuple[Job, Taking]]:
        """What is to be taken back; an error while anybody works on those tables or reads them, or is unknown."""
        if unknown and not dead and not self._known():  # it may be the one of which nobody can tell
            raise next(iter(unknown.values()))
        found = self._planned(dead)
        tables = {job.target.label for job, _ in found}
        mine = {job.node.name for job in self.jobs if job.target.label in tables}
        touched = mine | {reader for name in mine for reader in self.graph.reach(name, up=False)}
        for run in self.busy:
            if work := sorted(touched & (set(run.nodes) - set(run.ended))):
                at = f"run {run.run_id} is still at work on {', '.join(work)}"
                raise UsageError(
                    f"run {self.run_id} cannot be undone now: {at}",
                    hint="wait for its end, or stop it",
                )
        for name in sorted(touched & unknown.keys()):
            raise unknown[name]
        return found


def planned(
    jobs: Sequence[Job], run_id: str, everybody: Sequence[RunRow], noted: set[tuple[str, str]]
) -> list[tuple[Job, Taking]]:
    """What an undo will do, the last node first; raises when something is in the way.

    `everybody` is the history of all projects: runs of others may have consumed what this one made.
    """
    taken = takings(_known(jobs, run_id, everybody), run_id, noted)
    if listed := begun(
        run_id, everybody
    ):  # another undo has set out: this one goes on with its list
        taken = [t for t in taken if t.last.line in listed]
    found = [(_job(jobs, t), t) for t in taken]
    gone = [t for place, t in found if place is None and not t.quiet]
    if gone:
        raise UndoRefused(
            run_id,
            [f"{t.table}: no node of this project writes it, as `{t.node}` did" for t in gone],
        )
    looked = [(*place, *_looked(place[1], t, everybody, noted)) for place, t in found if place]
    if obstacles := [o for _, _, t, in_way in looked if not t.quiet for o in in_way]:
        raise UndoRefused(run_id, obstacles)
    free = [(order, job, t) for order, job, t, in_way in looked if not in_way]
    return [(job, t) for _, job, t in sorted(free, key=lambda found: -found[0])]


def begun(run_id: str, history: Sequence[RunRow]) -> set[tuple[str, str]]:
    """What an undo of this run has set out to take back, when it has come to take back some of it."""
    listed = {r.line for r in history if r.status == UNDOING and r.takes_back == run_id}
    return listed if any((run_id, *line) in undone(history) for line in listed) else set()


def write_list(runner: Runner, run_id: str, found: Sequence[tuple[Job, Taking]]) -> None:
    """Write down what is going to be taken back, before any of it is."""
    if begun(run_id, runner.store.all_runs()):
        return
    rows = []
    for job, taking in found:
        line = replace(
            taking.last,
            run_id=runner.run_id,
            node=job.node.name,
            status=UNDOING,
            started_at=now(),
            completed_at=now(),
            coverage=NOTHING,
            takes_back=run_id,
        )
        rows.append(replace(line, inserted=0, updated=0, deleted=0, reopened=0, held=0))
    if rows:
        runner.store.list_undo(rows)


def _known(jobs: Sequence[Job], run_id: str, everybody: Sequence[RunRow]) -> Sequence[RunRow]:
    """The history in which a run is looked for: that of this project, unless it has written a table of ours."""
    mine = [r for r in everybody if r.project == jobs[0].project.config.project] if jobs else []
    if any(r.run_id == run_id for r in mine):
        return everybody
    theirs = {r.table_id for r in everybody if r.run_id == run_id}
    ours = theirs and any(
        state.table_id in theirs for job in jobs if (state := describe(job.target))
    )
    return everybody if ours else mine


def _job(jobs: Sequence[Job], taking: Taking) -> tuple[int, Job] | None:
    """The node that writes a table now, and its place in the order; it speaks for the source that was read then."""
    row = taking.last
    found = [
        (job.source != row.source, i, job)
        for i, job in enumerate(jobs)
        if _id_of(job) == row.table_id
    ]
    found = found or [
        (False, i, job)
        for i, job in enumerate(jobs)
        if (job.node.name, job.target.label) == (row.node, row.target_table)
    ]  # the table is gone, or was made anew
    if not found:
        return None
    _, i, job = min(found, key=lambda f: f[:2])
    return i, replace(job, instead=row.source)


def _id_of(job: Job) -> str | None:
    """The id of the table that a node writes; None when there is none, or it cannot be read."""
    try:
        state = describe(job.target)
    except StrandlineError:
        return None
    return state.table_id if state else None


def of_node(job: Job, run_id: str, store: Store) -> Taking | None:
    """What is to be taken back of one node of a run; None when the run has changed nothing there."""
    alone = [row for row in store.all_runs() if row.run_id != run_id or row.node == job.node.name]
    try:
        found = takings(alone, run_id, noted_in(store))
    except UsageError:  # it was quiet, or finished what another run had begun
        return None
    return found[0]


def _looked(
    job: Job, taking: Taking, history: Sequence[RunRow], noted: set[tuple[str, str]]
) -> tuple[Taking, list[str]]:
    """What is to be taken back, with the version of its events; and what is in the way of it now."""
    places = {p.label: p for p in (job.target, job.events) if p}
    past = {label: commits(place) for label, place in places.items()}
    label = job.target.label
    if not past[label]:  # also under a batch that had only held deletes of it
        return taking, [f"{label}: the table is gone"]
    taking = replace(taking, table=label, events=_events(job, taking, past))
    ids = {label: state.table_id for label, place in places.items() if (state := describe(place))}
    obstacles = [str(o) for o in in_the_way(taking, history, past, noted, ids)]
    if job.events is None and (
        events := _wrote(job.events_place, taking, commits(job.events_place))
    ):
        obstacles.append(f"{events[0]}: the run wrote it too, and the node has no effective_at now")
    for label, version in taking.made:
        parent = next((c.parent for c in past[label] if c.version == version), None)
        lost = (
            format_of(places[label]).unreadable(places[label], parent)
            if parent is not None
            else None
        )
        obstacles += [f"{label}: {lost}"] if lost else []
    return taking, obstacles


def _events(
    job: Job, taking: Taking, past: Mapping[str, Sequence[Commit]]
) -> tuple[str, int] | None:
    """The first version that the run made of the table of its events, if it had new ones."""
    return _wrote(job.events, taking, past[job.events.label]) if job.events else None


def _wrote(place: Table, taking: Taking, past: Sequence[Commit]) -> tuple[str, int] | None:
    mine = (c.version for c in past if (c.run_id, c.source) == taking.by)
    version = min(mine, default=None)
    return (place.label, version) if version is not None else None


def undo_node(runner: Runner, job: Job, engine: Engine, taking: Taking) -> NodeResult:
    """Take back one batch: a batch of its own, on the tables as they are when it is looked at once more."""
    began = time.monotonic()
    point("undo.before", job.node.name)
    look, _ = runner.settle(job, began)
    this, state = runner.after(job, look), look.state
    events = describe(job.events) if job.events else None
    taking = _still(
        runner.store, job, taking
    )  # after records and tables: what comes to them later is refused
    ready = _ready(job, engine, state, events, taking)
    if at := this.records.memory.at:  # the instants that a table was given only ever go forward
        ready = replace(ready, coverage=replace(ready.coverage, at=at))
    with runner.announced(job, this, began, undoes=taking.run_id):
        result = runner.lander(job, engine, this, state).land(ready, began)
    point("undo.after", job.node.name)
    return result


def _still(store: Store, job: Job, taking: Taking) -> Taking:
    """What was found before, if it is still so; somebody may have run meanwhile."""
    history = store.all_runs()
    taking, obstacles = _looked(job, taking, history, noted_in(store))
    if not counting(history) >= {r.ending for r in taking.batches}:
        obstacles.append(f"{taking.table}: somebody else has undone it meanwhile")
    if obstacles:
        raise Overtaken(
            f"run {taking.run_id} can no longer be undone: {'; '.join(obstacles)}; nothing was written here",
            hint="ask for the undo again: it says what is in the way",
        )
    return taking


def noted_in(store: Store) -> set[tuple[str, str]]:
    """The runs and nodes of which `etl_changes` tells something."""
    return store.noted()


def foreseen(job: Job, engine: Engine, taking: Taking) -> NodeResult:
    """What taking back one batch would do; nothing is written."""
    began = time.monotonic()
    events = describe(job.events) if job.events else None
    counts = _ready(job, engine, describe(job.target), events, taking).changes.counts or Counts()
    counts = replace(counts, reopened=0, held=0)
    seconds = round(time.monotonic() - began, 3)
    return NodeResult(
        job.node.name, "success" if counts.any else "unchanged", counts=counts, seconds=seconds
    )


def _ready(
    job: Job, engine: Engine, state: TableState | None, written: TableState | None, taking: Taking
) -> Ready:
    assert state is not None, "a batch that was recorded has a table"
    events = None
    if taking.events is not None and job.events is not None:
        assert written is not None, "and its events are there"
        events = Landing(
            job.events, written, restore.without(job.events, engine, written, taking.events[1]), ()
        )
    ready = taken_back(job, engine, state, taking.coverage)
    told = [f"took back batch {row.batch} of run {row.run_id}" for row in taking.batches]
    return replace(ready, warnings=tuple(told), events=events)
