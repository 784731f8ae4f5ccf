"""`approve`, `reject` and `explain`: deletes that wait for a person, and the story of one row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.options import HERE, Debug, Engine, Json, ProjectDir, Quiet
from strandline.cli.rows import KeysFile, NodeOption, keys_in
from strandline.cli.runs import held_by, starting
from strandline.cli.talk import Talk
from strandline.cli.text import clean, instant
from strandline.errors import UsageError
from strandline.words import agree, plural

if TYPE_CHECKING:
    from strandline.report.explain import Event, Story

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run that holds the deletes.")]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="The node's name.")]
Key = Annotated[
    list[str],
    typer.Option(
        "--key", metavar="COLUMN=VALUE", help="The row's key, or NULL; once per key column."
    ),
]
_COLOURS = {"deleted": "red", "held": "yellow", "revived": "green", "inserted": "green"}


def approve(  # noqa: PLR0913, PLR0917 – one argument for each option
    run: RunId,
    project_dir: ProjectDir = HERE,
    node: NodeOption = None,
    keys: KeysFile = None,
    downstream: Annotated[
        bool, typer.Option("--downstream", help="Also run the nodes that depend on theirs.")
    ] = False,
    engine: Engine = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Apply the deletes that a run holds, as far as their keys are still missing."""
    with Talk(json, quiet, debug).guard() as talk:
        from strandline.cli.progress import Progress
        from strandline.run.decide import Choice

        project = talk.load(project_dir, engine)
        choice = Choice(node, keys_in(keys) if keys else None)
        names = [n for n in project.graph.order if n in project.holds()]
        names += project.downstream(names) if downstream else []
        with Progress(talk, names, starting=starting(project)) as progress:
            result = project.approve(
                run, choice, downstream=downstream, observer=progress, debug=debug
            )
        deleted = sum(n.deleted for n in result.nodes)
        still = held_by(project).get(run, 0) if result.status == "failed" else 0
        if deleted or not still:
            talk.say(f"\n{plural(deleted, 'delete')} applied; run {result.run_id}")
        if still:
            talk.say(
                f"\n{plural(still, 'delete')} still held by run {run}; this was run {result.run_id}"
            )
        after = [] if downstream else project.downstream(n.name for n in result.nodes if n.deleted)
        if after:
            talk.say(
                f"{', '.join(after)} {agree(len(after), 'depends', 'depend')} on it: "
                f"strandline run --select {','.join(after)}"
            )
        talk.data({**result.as_dict(), "downstream": after})
        return result.exit_code


def reject(
    run: RunId,
    project_dir: ProjectDir = HERE,
    node: NodeOption = None,
    keys: KeysFile = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Leave the deletes that a run holds alone, until their keys are seen again and go missing anew."""
    with Talk(json, quiet, debug).guard() as talk:
        from strandline.run.decide import Choice

        choice = Choice(node, keys_in(keys) if keys else None)
        result = talk.load(project_dir).reject(run, choice)
        for found in result.nodes:
            talk.answer(f"{found.name}: {found.warnings[0]}")
        talk.data(result.as_dict())
        return 0


def explain(
    node: NodeName,
    key: Key,
    project_dir: ProjectDir = HERE,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Tell what became of one row, batch by batch, and why."""
    with Talk(json, quiet, debug).guard() as talk:
        story = talk.load(project_dir).explain(node, _key(key))
        tell(talk, story)
        talk.data(story.as_dict())
        return 0


def _key(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise UsageError(
                f"--key: expected COLUMN=VALUE, found `{text}`", hint="for example --key id=42"
            )
        if name.casefold() in (n.casefold() for n in found):
            raise UsageError(
                f"--key: `{name}` is given twice",
                hint="one row has one key; ask for each row by itself",
            )
        found[name] = value
    return found


def tell(talk: Talk, story: Story) -> None:
    """A row's story in words."""
    named = ", ".join(f"{k} = {_shown(v)}" for k, v in story.key.items())
    talk.answer(f"{story.table}, {named}")
    for event in story.events:
        word = talk.paint(
            event.event, *([_COLOURS[event.event]] if event.event in _COLOURS else [])
        )
        batch = f"batch {event.batch}" if event.batch is not None else "–"
        talk.answer(f"  {instant(event.at)}  {batch:<9} {word}: {clean(event.reason)}{_by(event)}")
        for column, (old, new) in event.changes.items():
            talk.answer(f"      {column}: {_shown(old)} → {_shown(new)}")
    if not story.events:
        talk.answer("  no such row was ever written")
    elif not story.now:
        talk.answer("  now: not in the table")


def _by(event: Event) -> str:
    mode = f" ({event.mode})" if event.mode else ""
    undone = f", undone by run {event.undone_by}" if event.undone_by else ""
    return f"{mode}, run {event.run_id}{undone}" if event.run_id else mode


def _shown(value: Any) -> str:
    return "NULL" if value is None else clean(str(value))
