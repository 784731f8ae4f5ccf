"""`plan` and `run`."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.options import HERE, Debug, Engine, Json, ProjectDir, Quiet, Select, Threads
from strandline.cli.talk import Talk
from strandline.cli.text import duration
from strandline.errors import UsageError
from strandline.words import plural

if TYPE_CHECKING:
    from strandline.project import StrandlineProject
    from strandline.result import PlanResult, RunResult


Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Keep the plan in this file.")
]
PlanOption = Annotated[
    Path | None,
    typer.Option("--plan", metavar="FILE", help="Apply exactly this plan, or stop if it is stale."),
]
First = Annotated[
    bool,
    typer.Option("--first", help="Load the first snapshot of nodes that have on_first_run: error."),
]


def plan(
    project_dir: ProjectDir = HERE,
    select: Select = None,
    engine: Engine = None,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Show what a run would do, row counts per node; write nothing."""
    with Talk(json, quiet, debug).guard() as talk:
        from strandline.cli.progress import Progress

        project = talk.load(project_dir, engine)
        chosen = project.graph.select(select or [])
        with Progress(talk, chosen, starting=starting(project)) as progress:
            result = project.plan(select, observer=progress, out=out)
        talk.say(f"\n{_foreseen(result)}")
        if out is not None and result.whole:
            talk.say(f"Kept in {out}: strandline run --plan {shlex.quote(str(out))}")
        talk.data(result.as_dict())
        return result.exit_code


def run(  # noqa: PLR0913, PLR0917 – one argument for each option
    project_dir: ProjectDir = HERE,
    select: Select = None,
    threads: Threads = 4,
    engine: Engine = None,
    plan: PlanOption = None,
    first: First = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Run the nodes: read, transform, write what changed."""
    with Talk(json, quiet, debug).guard() as talk:
        from strandline.cli.progress import Progress

        project = talk.load(project_dir, engine)
        if plan is not None and select:
            raise UsageError(
                "--plan and --select exclude each other", hint="select when the plan is made"
            )
        if plan is not None and first:
            raise UsageError(
                "--plan and --first exclude each other", hint="run the first load without a plan"
            )
        chosen = project.graph.select(select or [])
        began = time.monotonic()
        with Progress(talk, chosen, starting=starting(project)) as progress:
            if plan is not None:
                result = project.follow(plan, observer=progress, debug=debug)
            else:
                result = project.run(
                    select, threads=threads, observer=progress, debug=debug, first=first
                )
        tell(talk, result, began)
        tell_holds(talk, project, result)
        talk.data(result.as_dict())
        return result.exit_code


def tell(talk: Talk, result: RunResult, began: float) -> None:
    """How a run ended, in three lines."""
    from strandline.cli.progress import summary

    nodes, rows = summary(result.nodes)
    talk.say(f"\n{nodes} in {duration(time.monotonic() - began)}")
    talk.say(f"rows: {rows}")
    talk.say(talk.paint(f"run {result.run_id}", "dim"))


def tell_holds(talk: Talk, project: StrandlineProject, result: RunResult) -> None:
    """Which deletes wait for a person, and how they are decided on, when a run has found or left some."""
    for run_id, n in held_by(project).items() if result.exit_code == 3 else ():
        talk.say(
            f"{plural(n, 'delete')} held by run {run_id}: strandline approve {run_id}, or reject {run_id}"
        )


def held_by(project: StrandlineProject) -> dict[str, int]:
    """How many deletes wait for a person, by the run that holds them."""
    counts: dict[str, int] = {}
    for rows in project.holds().values():
        for row in rows:
            counts[row.run_id] = counts.get(row.run_id, 0) + 1
    return counts


def starting(project: StrandlineProject) -> str | None:
    """What to say while the engine starts; the local one is there at once."""
    from strandline.engine import spark_installed

    if project.engine_name != "spark" or not spark_installed():
        return None
    from strandline.engine.spark.jars import DOWNLOAD, PACKAGES, cached

    there = cached((*PACKAGES, *project.config.config.spark.packages))
    return (
        "starting Spark"
        if there
        else f"downloading the jars that Spark needs ({DOWNLOAD}), starting Spark"
    )


def _foreseen(result: PlanResult) -> str:
    """What the run would do in one sentence, and that nothing was done."""
    touched = [n for n in result.nodes if n.inserted or n.updated or n.deleted]
    refused = [n for n in result.nodes if n.refused]
    failed = [n for n in result.nodes if n.status == "failed" and not n.refused]
    skipped = [n for n in result.nodes if n.status == "skipped"]
    inserted, updated, deleted = (
        sum(getattr(n, verb) for n in touched) for verb in ("inserted", "updated", "deleted")
    )
    would = (
        f"A run would insert {inserted:,}, update {updated:,} and delete {plural(deleted, 'row')}"
    )
    would += f" in {len(touched):,} of {plural(len(result.nodes), 'node')}."
    if refused:
        would += f" {plural(len(refused), 'node')} would fail, because the deletes are refused."
    if failed:
        would += f" {plural(len(failed) + len(skipped), 'node')} could not be planned."
    elif skipped:
        would += f" {plural(len(skipped), 'node')} would be skipped."
    if aside := sum(n.quarantined for n in result.nodes):
        would += f" {plural(aside, 'row')} would be put into quarantine."
    if held := sum(n.held for n in result.nodes):
        would += f" {plural(held, 'delete')} would be held."
    return f"{would} Nothing was written."
