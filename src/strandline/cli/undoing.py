"""`undo` and `retry`: taking a run back, and doing what one left undone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import runs
from strandline.cli.options import HERE, Debug, Engine, Json, ProjectDir, Quiet, Threads
from strandline.cli.talk import Talk
from strandline.cli.text import SIGNS, clean, plural

if TYPE_CHECKING:
    from strandline.result import UndoResult

Taken = Annotated[str, typer.Argument(metavar="RUN", help="The run to take back.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be put back; write nothing.")]


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
        project = talk.load(project_dir, engine)
        result = project.undo(run, dry_run=dry_run)
        tell(talk, result)
        talk.data(result.as_dict())
        return result.exit_code


def tell(talk: Talk, result: UndoResult) -> None:
    """What was put back, table by table, the last node first."""
    width = max((len(n.name) for n in result.nodes), default=0)
    for node in result.nodes:
        done = f"{plural(node.inserted, 'row')} back, {plural(node.deleted, 'row')} gone"
        text = clean(str(node.error["message"])) if node.error else done
        talk.answer(f"{SIGNS[node.status]} {node.name:<{width}}  {text}", failure=bool(node.error))
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
    """Run what runs have left and none has done since: what failed or was never reached, and what waits for those."""
    with Talk(json, quiet, debug).guard() as talk:
        from strandline.cli.progress import Progress

        project = talk.load(project_dir, engine)
        left = project.unfinished()
        if left.note:
            talk.say(left.note)
        if not left.nodes:
            end = f": run {left.last.run_id} came to its end" if left.last else ""
            talk.answer(f"nothing to retry{end}")
            talk.data({"run_id": None, "status": "success", "nodes": []})
            return 0
        began = time.monotonic()
        with Progress(talk, left.nodes, starting=runs.starting(project)) as progress:
            result = project.retry(threads=threads, observer=progress, debug=debug)
        assert result is not None, "there was something left"
        runs.tell(talk, result, began)
        talk.data(result.as_dict())
        return result.exit_code
