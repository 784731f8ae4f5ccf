"""Where words and data go: data to stdout, talk to stdout or, beside data, to stderr; errors to stderr."""

from __future__ import annotations

import codecs
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import typer

from strandline.cli.interrupt import DATA, TALK
from strandline.cli.text import clean, indented
from strandline.errors import ConfigError, InternalError, StrandlineError, faults_told
from strandline.native import speaking_elsewhere
from strandline.refusal import advice

if TYPE_CHECKING:
    from pathlib import Path

    from strandline.project import StrandlineProject

_lost: list[str] = []  # why streams of this command could not be written

_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}


@dataclass
class Talk:
    """How one command speaks."""

    json: bool = False
    quiet: bool = False
    debug: bool = False
    _out: IO[str] | None = field(
        default=None, repr=False
    )  # where data goes, when stdout itself is kept clean
    _secrets: list[str] = field(default_factory=list, repr=False)

    # --- saying -------------------------------------------------------------------------------------------

    @property
    def stream(self) -> IO[str]:
        """Where talk goes."""
        return sys.stderr if self.json else sys.stdout

    @property
    def terminal(self) -> bool:
        """Is somebody looking at the talk as it comes?"""
        return self.stream.isatty() and os.environ.get("TERM") != "dumb"

    @property
    def width(self) -> int | None:
        """The width of the terminal; None when there is none, and nothing needs to fit."""
        return shutil.get_terminal_size().columns if self.terminal else None

    def paint(self, text: str, *styles: str, stream: IO[str] | None = None) -> str:
        """Coloured text on a terminal, unless NO_COLOR is set; plain text otherwise."""
        target = stream or self.stream
        if (
            not styles
            or os.environ.get("NO_COLOR")
            or os.environ.get("TERM") == "dumb"
            or not target.isatty()
        ):
            return text
        return "".join(f"\x1b[{_CODES[s]}m" for s in styles) + text + "\x1b[0m"

    def say(self, text: str = "") -> None:
        """A line of talk, unless nobody wants to hear it."""
        if not self.quiet:
            write(self.stream, text)

    def insist(self, text: str) -> None:
        """A line of talk that even `--quiet` lets through."""
        write(self.stream, text)

    def answer(self, text: str = "", *, failure: bool = False) -> None:
        """A line of what was asked for, in words; with `--json` the data says it instead."""
        if not self.json and (failure or not self.quiet):
            write(self.stream, text)

    def data(self, value: Any) -> None:
        """The answer as JSON; only with `--json`."""
        if self.json:
            out = self._out or sys.stdout
            text = json.dumps(value, indent=2, ensure_ascii=not _any_letter(out), default=_plain)
            write(out, text)

    # --- a command from its start to its end -----------------------------------------------------------------

    @contextmanager
    def guard(self) -> Iterator[Talk]:
        """Turns whatever goes wrong inside into words, JSON and an exit code."""
        with self._own_stderr(), self._clean_stdout():
            try:
                with faults_told(leave=(typer.Exit, typer.Abort, OSError)):
                    yield self
            except InternalError as e:  # a bug is one line, not a screenful
                self._trace()
                self.error(
                    _facts("internal", e.message, None if self.debug else "run again with --debug")
                )
                raise typer.Exit(1) from None
            except StrandlineError as e:
                self._trace()
                self.error(e.as_dict(), e.problems if isinstance(e, ConfigError) else ())
                raise typer.Exit(e.exit_code) from None
            except (typer.Exit, typer.Abort):
                raise
            except OSError as e:
                self._trace()
                where = f": {e.filename}" if e.filename else ""
                known = advice(e)
                self.error(
                    _facts(
                        "system",
                        f"{e.strerror or e}{where}",
                        f"{known[1]}, and try again" if known else None,
                    )
                )
                raise typer.Exit(1) from None

    def load(self, path: Path, engine: str | None = None) -> StrandlineProject:
        """The project, whose secrets are never said from here on."""
        from strandline.config.resolve import secret_values
        from strandline.project import load

        project = load(path, engine=engine)
        self._secrets = secret_values(project.config.config)
        return project

    def error(self, facts: dict[str, Any], problems: Any = ()) -> None:
        """An error of the whole command: words to stderr and, with `--json`, facts to stdout."""
        facts = {k: self._redacted(v) for k, v in facts.items()}
        if facts["code"] == "internal" and facts["hint"]:
            write(sys.stderr, self._red(f"{facts['message']}, {facts['hint']}"))
        elif problems:
            self._problems([self._redacted(str(p)) for p in problems])
        else:
            write(sys.stderr, self._red("error: ") + clean(_where(facts) + str(facts["message"])))
            if facts["hint"]:
                write(sys.stderr, f"    → {clean(str(facts['hint']))}")
        self.data({"error": facts})

    def _problems(self, problems: list[str]) -> None:
        for problem in problems:
            first, *rest = clean(problem).splitlines()
            write(sys.stderr, self._red("error: ") + first)
            for line in rest:
                write(sys.stderr, line)
        if len(problems) > 1:
            write(sys.stderr, f"{len(problems)} mistakes")

    def _red(self, text: str) -> str:
        return self.paint(clean(text), "red", stream=sys.stderr)

    def _redacted(self, value: Any) -> Any:
        if not self._secrets or not isinstance(value, str):
            return value
        from strandline.words import redact

        return redact(value, self._secrets)

    def _trace(self) -> None:
        if self.debug:
            import traceback

            write(sys.stderr, self._redacted(traceback.format_exc()).rstrip())

    @contextmanager
    def _own_stderr(self) -> Iterator[None]:
        """Errors go by a descriptor of their own: what libraries print to the common one is for the log of a run."""
        if self.debug or not _leads_to(sys.stderr, 2):
            yield
            return
        sys.stderr.flush()
        common, saved = sys.stderr, os.dup(2)
        sys.stderr = os.fdopen(saved, "w", buffering=1, encoding=common.encoding, errors="replace")
        TALK["fd"] = saved
        try:
            with speaking_elsewhere():
                yield
        finally:
            own, sys.stderr, TALK["fd"] = sys.stderr, common, 2
            with suppress(OSError):  # it was told already that it cannot be written
                own.close()

    @contextmanager
    def _clean_stdout(self) -> Iterator[None]:
        """With `--json`, what a user's function or a JVM prints to stdout goes to stderr, so that data stays data."""
        if not self.json:
            yield
            return
        saved = os.dup(1) if _leads_to(sys.stdout, 1) else None
        self._out = (
            sys.stdout
            if saved is None
            else os.fdopen(saved, "w", encoding=sys.stdout.encoding, errors="replace")
        )
        try:
            if saved is not None:
                os.dup2(2, 1)
                DATA["fd"] = saved
            with redirect_stdout(sys.stderr):
                yield
        finally:
            if saved is not None:
                os.dup2(saved, 1)
                DATA["fd"] = 1
                with suppress(OSError):  # whoever read our data has left
                    self._out.close()
            self._out = None


def write(stream: IO[str], text: str) -> None:
    """Print a line now. Nothing more is said to a stream that cannot be written: what is under way goes on.

    A reader that has left (`| head`) is not an error; a file that takes no more is one, at the end.
    """
    try:
        stream.write(text + "\n")
        stream.flush()
    except OSError as e:
        gave_up(stream, e)


def flushed() -> bool:
    """At the end of a command: could everything be written? If not, that is told where it still can be."""
    for stream in (sys.stdout, sys.stderr):  # also what others have printed
        try:
            stream.flush()
        except OSError as e:
            gave_up(stream, e)
    lost, _lost[:] = list(_lost), []
    for reason in lost:
        write(sys.stderr, f"error: {reason}")
    return not lost


def gave_up(stream: IO[str], error: OSError) -> None:
    """Say nothing more to a stream that cannot be written, and remember it unless its reader has left."""
    if not isinstance(error, BrokenPipeError):
        name = "standard error" if stream is sys.stderr else "standard output"
        _lost.append(f"{name} cannot be written, and is incomplete: {error.strerror or error}")
    with suppress(OSError, ValueError):
        silence(stream)


def _any_letter(stream: IO[str]) -> bool:
    """Does a stream take every letter? Others would get question marks in place of data."""
    try:
        return codecs.lookup(getattr(stream, "encoding", None) or "ascii").name == "utf-8"
    except LookupError:
        return False


def _leads_to(stream: IO[str], descriptor: int) -> bool:
    try:
        return stream.fileno() == descriptor
    except (OSError, ValueError):  # somebody captures it
        return False


def silence(stream: IO[str]) -> None:
    """Lead a stream to nowhere, so that the interpreter's last flush does not fail either."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def node_error(facts: dict[str, Any], width: int | None) -> list[str]:
    """A node's error: where and what, then what to do."""
    lines = indented(_where(facts) + str(facts.get("message", "")), width)
    return lines + (indented(f"→ {facts['hint']}", width) if facts.get("hint") else [])


def _where(facts: dict[str, Any]) -> str:
    return f"{facts['file']}:{facts['line']}: " if facts.get("file") and facts.get("line") else ""


def _facts(code: str, message: str, hint: str | None) -> dict[str, Any]:
    return {"code": code, "message": message, "file": None, "line": None, "hint": hint}


def _plain(value: Any) -> Any:
    """Values that JSON lacks: times as ISO 8601, the rest as their text."""
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
