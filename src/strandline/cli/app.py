"""The commands of `strandline`, and who answers them. Imported once an interrupt is heard: this takes a moment."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from strandline import __version__
from strandline.cli import demo, doctor, holds, look, projects, records, rows, runs, undoing
from strandline.cli.talk import Talk, gave_up

app = typer.Typer(
    name="strandline",
    help="Lakehouse pipelines declared in YAML, run on Spark or in process.",
    epilog="Exit codes: 0 fine, 1 a node failed, 2 bad configuration or usage, 3 deletes are held, "
    "4 another runner holds the node.",
    add_completion=False,
    rich_markup_mode=None,  # rich costs a tenth of a second before the first word of --help
    pretty_exceptions_enable=False,
)
for _command in (
    projects.init, demo.demo, projects.validate, runs.plan, runs.run, records.status, records.history, holds.explain,
    holds.approve, holds.reject, undoing.undo, undoing.retry, projects.ls,
):  # fmt: skip
    app.command()(_command)
app.command()(doctor.doctor)
app.command()(look.graph)
app.command("compile")(look.compile_)
app.command()(look.schema)
app.command()(rows.show)
app.command()(rows.holds)
app.add_typer(rows.quarantine, name="quarantine")


@app.callback(invoke_without_command=True)
def _strandline(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> int:
    if version:
        print(f"strandline {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())
    return 0


def answer(given: list[str]) -> int:
    """Do what is asked for; returns the exit code."""
    talk = Talk(json="--json" in given, debug="--debug" in given)
    try:
        code = app(args=given, prog_name="strandline", standalone_mode=False)
    except typer.TyperException as e:
        talk.error(
            {
                "code": "usage",
                "message": e.format_message().rstrip("."),
                "file": None,
                "line": None,
                "hint": _help(e),
            }
        )
        return 2
    except OSError as e:  # a help text that cannot be printed: commands guard themselves
        gave_up(sys.stdout, e)
        return 0
    return code if isinstance(code, int) else 0


def _help(error: Any) -> str:
    path = getattr(getattr(error, "ctx", None), "command_path", "strandline")
    return f"{path} --help"
