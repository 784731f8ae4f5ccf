"""`undo` and `retry`: taking a run back, and doing what one left undone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import runs
from strandline.cli.options import HERE, Debug, Engine, Json, ProjectDir, Quiet, Threads
from strandline.cli.talk import Talk
from strandline.words import plural

if TYPE_CHECKING:
    from strandline.result import UndoResult

Taken = Annotated[str, typer.Argument(metavar="RUN", help="The run to take back.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be put back; write nothing.")
]


def undo(
    run: Taken,
    project_dir: ProjectDir = HERE,
    dry_run: DryRun = False,
    engine: Engine = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Take a run back: rows, watermarks, snapshot records and holds as they were; stops when later runs build on it."""
    with Talk(json, quiet, debug).guard() as talk:
        from strandline.cli.progress import Progress, UndoLines

        project = talk.load(project_dir, engine)
        with Progress(talk, [], starting=runs.starting(project), lines=UndoLines) as progress:
            result = project.undo(run, dry_run=dry_run, observer=progress)
        tell(talk, result)
        talk.data(result.as_dict())
        return result.exit_code


def tell(talk: Talk, result: UndoResult) -> None:
    """What becomes of the holds of the run, and how it ended."""
    reached = {n.name for n in result.nodes if not n.error}
    for node, n in result.held.items():
        if node in reached:
            fate = "would go" if result.dry_run else "are gone" if n > 1 else "is gone"
            talk.say(f"{plural(n, 'held delete')} of {node} {fate} with it")
    if result.dry_run:
        talk.say(f"\nrun {result.undone} can be undone; nothing was written")
    elif result.status == "success":
        talk.say(f"\nrun {result.undone} is undone; run {result.run_id}")


def retry(
    project_dir: ProjectDir = HERE,
    threads: Threads = 4,
    engine: Engine = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Run again what failed or was not reached in the last run, and what depends on it."""
    with Talk(json, quiet, debug).guard() as talk:
        from strandline.cli.progress import Progress

        project = talk.load(project_dir, engine)
        left = project.unfinished()
        if left is None or not left.nodes:
            talk.answer(
                f"nothing to retry: {f'run {left.run.run_id} came to its end' if left else 'no run yet'}"
            )
            talk.data({"run_id": None, "status": "success", "nodes": []})
            return 0
        began = time.monotonic()
        with Progress(talk, left.nodes, starting=runs.starting(project)) as progress:
            result = project.retry(threads=threads, observer=progress, debug=debug)
        assert result is not None, "there was something left"
        runs.tell(talk, result, began)
        runs.tell_holds(talk, project, result)
        talk.data(result.as_dict())
        return result.exit_code
