"""The command `strandline`: what is asked, who answers, which exit code."""

from __future__ import annotations

import atexit
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from strandline import __version__
from strandline.cli import demo, doctor, holds, look, projects, records, runs, undoing
from strandline.cli.talk import DATA, Talk

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


@app.callback(invoke_without_command=True)
def _strandline(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> int:
    if version:
        print(f"strandline {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())
    return 0


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line; ends with SystemExit."""
    given = list(sys.argv[1:] if args is None else args)
    _prepare_streams()
    _quiet_libraries()
    with _Interrupt(json="--json" in given):
        code = _answer(given)
    sys.exit(code)


def _prepare_streams() -> None:
    """Speak in any encoding, and even to nobody."""
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 – closed by the caller (`>&-`)
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a ✓ on a terminal that knows ASCII only


def _answer(given: list[str]) -> int:
    talk = Talk(json="--json" in given, debug="--debug" in given)
    try:
        code = app(args=given, prog_name="strandline", standalone_mode=False)
    except typer.TyperException as e:
        talk.error(
            {"code": "usage", "message": e.format_message().rstrip("."), "file": None, "line": None, "hint": _help(e)}
        )
        return 2
    except BrokenPipeError:
        return 0
    return code if isinstance(code, int) else 0


def _help(error: Any) -> str:
    path = getattr(getattr(error, "ctx", None), "command_path", "strandline")
    return f"{path} --help"


def _quiet_libraries() -> None:
    """Warnings of libraries are for us, not for users, unless asked for with -W or PYTHONWARNINGS."""
    if not sys.warnoptions:
        import warnings

        warnings.simplefilter("ignore")


class _Interrupt:
    """Ctrl-C ends the process at once: nodes at work are left as a kill would leave them, which every run survives."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self.previous: Any = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self.previous = signal.signal(signal.SIGINT, self._stop)

    def __exit__(self, *_: object) -> None:
        if self.previous is not None:
            signal.signal(signal.SIGINT, self.previous)

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Straight to the terminal: the live display's thread may hold any lock at this moment.
        for fd in (1, 2):
            if os.isatty(fd) and os.environ.get("TERM") != "dumb":
                os.write(fd, b"\r\x1b[J\x1b[?25h")  # the cursor that the display hid
        with suppress(OSError):
            os.write(2, b"interrupted; the next run finds out what was written and goes on from there\n")
            if self.json:
                facts = {"code": "interrupted", "message": "interrupted", "file": None, "line": None, "hint": None}
                os.write(DATA["fd"], f"{json.dumps({'error': facts})}\n".encode())
        with suppress(Exception):
            atexit._run_exitfuncs()  # noqa: SLF001 – temporary folders go, a Spark that we started stops
        os._exit(130)


if __name__ == "__main__":
    main()
