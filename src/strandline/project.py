"""A loaded project: plan it, run it, look at its records."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.config.base import engine_name
from strandline.config.load import Project, load_project
from strandline.config.model import NodeConfig
from strandline.config.resolve import control_location, secret_values
from strandline.control.foreseen import Foreseen
from strandline.control.holds import open_holds
from strandline.control.ledger import ChangeRow, Store
from strandline.engine import connect, staging
from strandline.engine.base import Platform
from strandline.errors import StrandlineError, UsageError, did_you_mean
from strandline.failpoints import point
from strandline.journal import run_log
from strandline.lake import describe
from strandline.plan.graph import Graph, build
from strandline.plan.job import Job, Past, Planned, Release
from strandline.plan.lines import failed, placed
from strandline.result import NodeResult, PlanResult, RunResult, UndoResult
from strandline.run.loop import Loop
from strandline.run.observer import Observer
from strandline.run.retry import Checkpoint, Left, Retry, downstream, folder_of, kept, left
from strandline.run.runner import Runner
from strandline.run.schedule import STOPS
from strandline.run.targets import Together
from strandline.types import Clock

if TYPE_CHECKING:
    from strandline.control.store import DeltaStore
    from strandline.control.undo import Taking
    from strandline.report.explain import Story
    from strandline.run.decide import Choice, Held
    from strandline.run.halfway import HalfUndone
    from strandline.run.look import Asked, HeldRow, Rows


class StrandlineProject:
    """What `strandline.load` returns."""

    def __init__(self, config: Project, *, engine: str | None = None) -> None:
        self.config = config
        self.engine_name = engine or config.config.engine
        self.graph: Graph = build(config)

    @property
    def store(self) -> DeltaStore:
        """The control tables."""
        from strandline.control.store import DeltaStore

        config = self.config.config
        return DeltaStore(
            Path(control_location(config.connections, config.control, self.config.root)),
            config.project,
        )

    def run(  # noqa: PLR0913 – options by name, each with its default
        self,
        select: str | Iterable[str] | None = None,
        *,
        threads: int = 4,
        observer: Observer | None = None,
        platform: Platform | None = None,
        check: bool = False,
        debug: bool = False,
        approved: str | Mapping[str, str] | None = None,
        clock: Clock | None = None,
        retry: Retry | None = None,
        exactly: Sequence[str] | None = None,
        first: bool = False,
        pasts: Mapping[str, Past] | None = None,
    ) -> RunResult:
        """Run the selected nodes. A failed node is a result, not an exception, unless `check` asks for one.

        `approved` names a run whose held deletes are applied, as far as their keys are still missing; by node, if
        they differ. `clock` is the one instant of the run; `retry` says how faults that pass by themselves are met,
        instead of the project. `exactly` names nodes instead of `select`, and of several targets only those wanted.
        `first` lets nodes with `on_first_run: error` load their first snapshot; `pasts` says more for single nodes.

        Each run leaves a log with the timings of its steps in `.strandline/logs`; `debug` shows it live.
        """
        chosen = exactly if exactly is not None else self.graph.select(_patterns(select))
        at = clock or _now()
        runner = self._runner()
        tried = retry or Retry(self.config.config.retry.attempts, self.config.config.retry.wait)
        approvals = (
            dict.fromkeys(chosen, approved) if isinstance(approved, str) else dict(approved or {})
        )
        checkpoint = self._checkpoint(runner.run_id, chosen, approved=approvals)
        loop = Loop(self.config, self.graph, observer or Observer(), checkpoint)

        def batch(job: Job) -> NodeResult:
            with platform_.workspace(job.node.name) as engine:
                return runner.run(job, engine)

        def work(name: str) -> NodeResult:
            past = (pasts or {}).get(name) or Past(approved=approvals.get(name), first=first)
            job = Job(self.config, self._node(name), at, past=past)
            return tried(name, lambda: batch(job))

        logged = run_log(self.config.root, runner.run_id, runner.secrets, live=debug)
        with logged, self._platform(platform) as platform_:
            point("run.start")
            with checkpoint.at_work():
                loop.watch.engine_ready()
                together = Together(self.config, runner, _run_id(_now()), platform_, loop.errors)
                results = loop.over(chosen, work, threads, together)
                point("run.end")
        return self._result(runner, results, loop.errors, check=check)

    @property
    def _checkpoints(self) -> Path:
        return folder_of(self.store.folder, self.config.config.project)

    def _checkpoint(self, run_id: str, nodes: Sequence[str], **how: Any) -> Checkpoint:
        """What a run is going to do."""
        return Checkpoint(self._checkpoints, run_id, nodes, owner=staging.owner(), **how)

    def leftovers(self) -> list[Left]:
        """What each run that is over left, and no later run has worked on; the newest run first."""
        busy = {run.run_id for run in self._busy()}
        found = left(
            kept(self._checkpoints), self.store.runs(), self.store.all_control(), self.graph
        )
        return [one for one in found if one.run.run_id not in busy]

    def unfinished(self) -> Left | None:
        """What the last run did not bring to a good end, and what depends on it; None before the first run.

        An error when a run is still at work, an undo was left half-way, the last run applied a plan, which only a
        person can make again, or the last run kept no checkpoint.
        """
        for half in self.half_undone():
            raise UsageError(str(half), hint=half.hint)
        for run in self._busy():
            raise UsageError(
                f"run {run.run_id} is still at work",
                hint="wait for its end, or stop it, and retry then",
            )
        last = next(iter(self.leftovers()), None)
        if last is None and self.store.runs(1):
            hint = "strandline status shows which nodes failed; run those"
            raise UsageError(
                "the last run kept no checkpoint, so what it left is not known", hint=hint
            )
        if last and last.nodes and last.run.plan:
            text = f"run {last.run.run_id} applied a plan, and left: {', '.join(last.nodes)}"
            raise UsageError(text, hint=f"run them without a plan: {last.hint}; or make a new plan")
        return last and replace(last, nodes=downstream(last.nodes, self.graph))

    def _busy(self) -> list[Checkpoint]:
        """The runs that processes of this machine are working on."""
        return [r for r in kept(self._checkpoints) if not r.over and staging.alive(r.owner)]

    def retry(self, **how: Any) -> RunResult | None:
        """Run what the last run left, each node as it was to be run; None when nothing is left."""
        found = self.unfinished()
        if found is None or not found.nodes:
            return None
        for name, run_id in found.approved.items():
            held = self._held  # read only where a person had approved
            rows = [row for row in held.by_node().get(name, []) if row.run_id == run_id]
            if rows and (refused := held.unapprovable(name, rows)):
                raise refused
        return self.run(exactly=found.nodes, approved=found.approved, **how)

    def plan(
        self,
        select: str | Iterable[str] | None = None,
        *,
        observer: Observer | None = None,
        platform: Platform | None = None,
        out: str | Path | None = None,
    ) -> PlanResult:
        """What a run would do, node by node, each over its upstream's planned result; nothing is written.

        With `out` the plan is kept in a file, and `follow` applies exactly that.
        """
        from strandline.run.planfile import writing

        planned: dict[str, Planned] = {}
        clock = _now()
        runner = self._runner(Foreseen(self.store))
        loop = Loop(self.config, self.graph, observer or Observer())
        keeping = writing(out, self.config)
        with (
            keeping as writer,
            self._platform(platform) as platform_,
            platform_.workspace("plan") as engine,
        ):
            loop.watch.engine_ready()

            def work(name: str) -> NodeResult:
                job = Job(self.config, self._node(name), clock, planned)
                result, left = runner.plan(job, engine)
                if left is not None:
                    planned[job.target.location] = left[0]
                if writer is not None:
                    writer.add(name, left[1] if left else None, engine)
                return result

            results = loop.over(self.graph.select(_patterns(select)), work)
            plan = PlanResult(results)
            if writer is not None and plan.whole:
                writer.close([r.name for r in results if r.status == "skipped"])
        return plan

    def follow(
        self,
        path: str | Path,
        *,
        observer: Observer | None = None,
        platform: Platform | None = None,
        check: bool = False,
        debug: bool = False,
    ) -> RunResult:
        """Apply a plan from its file, exactly; a stale plan is an error, and none of it is written."""
        from strandline.run.planfile import PlanFile

        clock, runner = _now(), self._runner()
        with staging.scratch("plan") as folder:
            plan = PlanFile.open(Path(path), self.config, folder)
            chosen = [n for n in self.graph.order if n in plan.entries or n in plan.skipped]
            checkpoint = self._checkpoint(runner.run_id, chosen, plan=True)
            loop = Loop(self.config, self.graph, observer or Observer(), checkpoint)

            def work(name: str) -> NodeResult:
                with platform_.workspace(name) as engine:
                    job = runner.next_job(Job(self.config, self._node(name), clock))
                    return runner.follow(job, engine, plan.entry(name, engine))

            logged = run_log(self.config.root, runner.run_id, runner.secrets, live=debug)
            with logged, self._platform(platform) as platform_:
                loop.watch.engine_ready()
                touched = [n for n in self.graph.order if n in plan.entries or n in plan.landed]
                self._settle(
                    runner, [Job(self.config, self._node(n), clock) for n in touched], platform_
                )
                for name, entry in plan.entries.items():
                    job = runner.next_job(Job(self.config, self._node(name), clock))
                    entry.check(job, job.batch, describe(job.target))
                with checkpoint.at_work():
                    together = Together(self.config, runner, _run_id(clock), platform_, loop.errors)
                    results = loop.over(chosen, work, 1, together)
        return self._result(runner, results, loop.errors, check=check)

    @staticmethod
    def _result(
        runner: Runner, results: list[NodeResult], errors: list[StrandlineError], *, check: bool
    ) -> RunResult:
        if check and errors:
            raise errors[0]
        bad = any(r.status in STOPS for r in results)
        return RunResult(runner.run_id, "failed" if bad else "success", results)

    def approve(
        self,
        run_id: str,
        choice: Choice | None = None,
        *,
        downstream: bool = False,
        observer: Observer | None = None,
        check: bool = False,
        **how: Any,
    ) -> RunResult:
        """Apply the deletes that a run held, as far as their keys are still missing: a run of its own.

        `choice` limits them to a node or to keys; with `downstream` the nodes that depend on theirs run too.
        What a node no longer looks for cannot be approved: it is an error, of that node when others can be approved.
        """
        held, run_id = self._held, self._run_called(run_id)
        every = held.of_run(run_id)
        holds = choice.of(every, run_id) if choice else every
        refused = {n: error for n, rows in holds.items() if (error := held.unapprovable(n, rows))}
        chosen = [n for n in holds if n not in refused]
        if not chosen:
            raise next(iter(refused.values()))
        some = {
            n: Past(approved=run_id, approved_keys=frozenset(h.key_hash for h in holds[n]))
            for n in chosen
            if len(holds[n]) < len(every[n])
        }
        wanted = {*chosen, *(self.downstream(chosen) if downstream else ())}
        result = self.run(
            exactly=[n for n in self.graph.order if n in wanted],
            approved={n: run_id for n in chosen if n not in some},  # a retry does not know of keys
            pasts=some,
            observer=observer,
            check=check,
            **how,
        )
        if not refused:
            return result
        if check:
            raise next(iter(refused.values()))
        told = [failed(self.config, name, error) for name, error in refused.items()]
        for node in told:
            (observer or Observer()).finished(node)
        return RunResult(result.run_id, "failed", [*result.nodes, *told])

    def downstream(self, names: Iterable[str]) -> list[str]:
        """The nodes that depend on some nodes, in the graph's order; not these themselves."""
        names = set(names)
        found = {n for name in names for n in self.graph.reach(name, up=False)} - names
        return [n for n in self.graph.order if n in found]

    def _run_called(self, name: str) -> str:
        """The id of a run by a part of it, or `latest`; another name as it is, for an error that knows more."""
        from strandline.run.look import known_run

        return known_run(self.store, name) or name

    def reject(self, run_id: str, choice: Choice | None = None) -> RunResult:
        """Leave the deletes that a run held alone, until their keys are seen again and go missing anew."""
        run_id = self._run_called(run_id)
        holds = self._held.of_run(run_id)
        holds = choice.of(holds, run_id) if choice else holds
        clock, runner = _now(), self._runner()
        results = [
            runner.reject(Job(self.config, self._node(n), clock), rows) for n, rows in holds.items()
        ]
        return RunResult(runner.run_id, "success", results)

    def undo(
        self,
        run_id: str,
        *,
        dry_run: bool = False,
        platform: Platform | None = None,
        observer: Observer | None = None,
    ) -> UndoResult:
        """Take a run back: its tables, watermarks, snapshot records and holds as they were, as a run of its own.

        Raises `UndoRefused`, and writes nothing, when something is in the way.
        """
        from strandline.run.undo import foreseen, undo_node

        run_id, runner = self._run_called(run_id), self._runner()
        loop = Loop(self.config, self.graph, observer or Observer())

        def work(name: str) -> NodeResult:
            job, taking = chosen[name]
            with platform_.workspace(name) as engine:
                return (
                    foreseen(job, engine, taking)
                    if dry_run
                    else undo_node(runner, job, engine, taking)
                )

        logged = run_log(self.config.root, runner.run_id, runner.secrets, live=False)
        with logged, self._platform(platform) as platform_:
            takings = self._to_undo(run_id, runner, platform_, dry_run=dry_run)
            chosen = {job.node.name: (job, taking) for job, taking in takings}
            holds = open_holds(self.store.changes(), run_id)
            held = {
                name: len(holds[t.table]) for name, (_, t) in chosen.items() if t.table in holds
            }
            loop.watch.chosen(list(chosen))
            loop.watch.engine_ready()
            results = loop.in_line(list(chosen), work, "not taken back: the undo stopped before it")
        status = self._result(runner, results, loop.errors, check=False).status
        return UndoResult(runner.run_id, status, results, undone=run_id, dry_run=dry_run, held=held)

    def _to_undo(
        self, run_id: str, runner: Runner, platform: Platform, *, dry_run: bool
    ) -> list[tuple[Job, Taking]]:
        """The batches of a run to take back, the last first; records are finished before, unless it is a dry run."""
        from strandline.run.undo import Undo

        undo = Undo(run_id, self._jobs(), runner, self.graph, self._busy())
        return (
            undo.foreseen()
            if dry_run
            else undo.settled(lambda job: self._settle(runner, [job], platform))
        )

    def half_undone(self) -> list[HalfUndone]:
        """The undos that were left half-way, and are finished by asking for them again."""
        from strandline.run.halfway import half_undone

        running = {r.node for r in self.store.all_control() if r.batch_status == "RUNNING"}
        return half_undone(self._jobs(), self._runner(), running)

    @staticmethod
    def _settle(runner: Runner, jobs: Iterable[Job], platform: Platform) -> None:
        """Finish the records of batches that landed while their runners died; an engine folds events that are left."""
        for job in jobs:
            if job.events is None:
                runner.settle(job, time.monotonic())
                continue
            with platform.workspace(job.node.name) as engine:
                runner.settle(job, time.monotonic(), engine)

    def holds(self) -> dict[str, list[ChangeRow]]:
        """The held deletes that nobody has decided on yet, by the node that writes their table."""
        return self._held.by_node()

    def held_rows(self, run: str | None = None, node: str | None = None) -> list[HeldRow]:
        """The held deletes, each with its row as it is now, its evidence, and since when it is held."""
        from strandline.run.look import held_rows, run_named

        run_id = run_named(self.store, run) if run is not None else None
        found: list[HeldRow] = []
        changes, known = self.store.changes(), self.holds()
        if node is not None:
            self._node(node)
        with self._platform(None) as platform:
            for job in self._jobs():
                rows = [h for h in known.get(job.node.name, []) if run_id in (None, h.run_id)]
                if rows and node in (None, job.node.name):
                    with platform.workspace("holds") as engine:
                        found += held_rows(job, engine, rows, changes)
        return found

    def show(self, name: str, asked: Asked) -> Rows:
        """Rows of a node's table, or of another table of a lake."""
        from strandline.run.look import table_rows

        with self._platform(None) as platform, platform.workspace("show") as engine:
            return table_rows(self._jobs(), engine, self.store, name, asked)

    def quarantined(self, node: str | None = None) -> dict[str, Rows]:
        """The rows that checks have put aside, by node."""
        from strandline.run.look import quarantined_rows

        jobs = [j for j in self._jobs() if node in (None, j.node.name)]
        if node is not None:
            self._node(node)
        found = {}
        with self._platform(None) as platform:
            for job in jobs:
                with platform.workspace("quarantine") as engine:
                    rows = quarantined_rows(job, engine, self.store)
                if rows is not None:
                    found[job.node.name] = rows
        return found

    def release(
        self, node: str, keys: Sequence[Mapping[str, str | None]] | None = None, **how: Any
    ) -> RunResult:
        """Put rows in quarantine through their node again, all of them or those with some keys: a run of its own."""
        self._node(node)
        chosen = Release(tuple(keys) if keys is not None else None)
        return self.run(exactly=[node], pasts={node: Past(release=chosen)}, **how)

    @property
    def _held(self) -> Held:
        from strandline.run.decide import Held

        return Held(self.store.changes(), self._jobs())

    def explain(self, node: str, key: Mapping[str, Any]) -> Story:
        """What became of one row, batch by batch, and why; a key is a value, or a text: `NULL` is NULL."""
        from strandline.report.explain import explain

        job = Job(self.config, self._node(node), _now())
        with placed(self.config, node):
            return explain(job, self.store, key)

    def compile(self, node: str, *, platform: Platform | None = None) -> str:
        """The SQL that a node will run, as one readable statement; sources are looked at, nothing is written."""
        from strandline.batch.compile import compile_node

        job = Job(self.config, self._node(node), _now(), past=Past(first=True))
        with (
            self._platform(platform) as platform_,
            placed(self.config, node),
            platform_.workspace(node) as engine,
        ):
            return compile_node(Runner(self.store, "compile").next_job(job), engine)

    def _runner(self, store: Store | None = None) -> Runner:
        """A runner with an id of its own."""
        return Runner(store or self.store, _run_id(_now()), secret_values(self.config.config))

    def _jobs(self) -> list[Job]:
        """A job for each node, in the graph's order."""
        clock = _now()
        return [Job(self.config, self._node(n), clock) for n in self.graph.order]

    def _node(self, name: str) -> NodeConfig:
        for node in self.config.config.nodes:
            if node.name == name:
                return node
        known = self.graph.order
        raise UsageError(
            f"there is no node `{name}`",
            hint=did_you_mean(name, known) or f"there are: {', '.join(known) or 'none'}",
        )

    @contextmanager
    def _platform(self, given: Platform | None) -> Iterator[Platform]:
        """The engine: the one given, else one of our own that is stopped afterwards."""
        folder = str(self.config.root)
        if folder not in sys.path:  # python steps are imported from the project's folder
            sys.path.insert(0, folder)
        if given is not None:
            yield given
            return
        platform = connect(self.engine_name, self.config)
        try:
            yield platform
        finally:
            platform.close()


def load(path: str | Path = ".", *, engine: str | None = None) -> StrandlineProject:
    """Load a project from a folder or a file."""
    name = None if engine is None else str(engine_name(str(engine)))
    return StrandlineProject(load_project(path, name), engine=name)


def _patterns(select: str | Iterable[str] | None) -> list[str]:
    return [select] if isinstance(select, str) else list(select or [])


def _now() -> Clock:
    return Clock(datetime.now(UTC))


def _run_id(clock: Clock) -> str:
    return f"{clock.now:%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"
