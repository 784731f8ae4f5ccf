"""What a run looks like while it runs: finished nodes as lines, and on a terminal the running ones below them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from strandline.cli.talk import Talk, node_error
from strandline.cli.text import COLOURS, SIGNS, count, duration, indented, shortened
from strandline.result import NodeResult, PlannedNode
from strandline.run.observer import Observer
from strandline.strategy.evolution import change_from_json
from strandline.words import plural

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_COLUMNS = (("read", 11), ("inserted", 11), ("updated", 9), ("deleted", 9), ("seconds", 9))
_ENDS = {
    "success": "succeeded", "unchanged": "unchanged", "held": "with held deletes", "failed": "failed",
    "fenced": "held by another runner", "skipped": "skipped",
}  # fmt: skip


class NodeLines:
    """One line per node, in columns that stay where they are from the first line to the last."""

    def __init__(self, talk: Talk, names: Sequence[str]) -> None:
        self.talk = talk
        self.width = max([len(n) for n in names] + [4])
        if talk.width is not None:
            self.width = max(min(self.width, talk.width - 3 - sum(w for _, w in _COLUMNS)), 8)

    def header(self) -> str | None:
        return self.talk.paint(
            f"  {'node'.ljust(self.width)}" + "".join(n.rjust(w) for n, w in _COLUMNS), "dim"
        )

    def line(self, r: NodeResult) -> str:
        """A finished node: its sign, its name, its numbers."""
        sign = self.talk.paint(SIGNS[r.status], COLOURS[r.status])
        name = shortened(r.name, self.width).ljust(self.width)
        if r.status in ("failed", "fenced", "skipped"):
            word = self.talk.paint(r.status, COLOURS[r.status])
            return f"{sign} {name}  {word}"
        numbers = [
            count(r.rows_read),
            count(r.inserted),
            count(r.updated),
            count(r.deleted),
            f"{r.seconds:.2f}",
        ]
        return f"{sign} {name}" + _cells(numbers)

    def running(self, name: str, seconds: float, frame: str) -> str:
        cells = _cells(["", "", "", "", f"{seconds:.0f}"])
        return f"{frame} {shortened(name, self.width).ljust(self.width)}{cells}"

    def details(self, r: NodeResult) -> list[str]:
        """What stands below a node's line: what else was counted, its warnings, its error and the way out."""
        more = [
            f"{count(n)} {word}"
            for n, word in (
                (r.reopened, "reopened"),
                (r.held, "held"),
                (r.quarantined, "in quarantine"),
            )
            if n
        ]
        lines = indented(", ".join(more), self.talk.width) if more else []
        for warning in r.warnings:
            lines += indented(warning, self.talk.width)
        if isinstance(r, PlannedNode):
            told = [*_columns(r), *_deletes(r)]
            lines += [line for text in told for line in indented(text, self.talk.width)]
        return lines + (node_error(r.error, self.talk.width) if r.error else [])


class UndoLines(NodeLines):
    """The same for tables that are put back: the rows that are back, changed back, and gone."""

    def header(self) -> str | None:
        return None

    def line(self, r: NodeResult) -> str:
        if r.error:
            return super().line(r)
        sign = self.talk.paint(SIGNS[r.status], COLOURS[r.status])
        name = shortened(r.name, self.width).ljust(self.width)
        counts = ((r.inserted, "back"), (r.updated, "changed back"), (r.deleted, "gone"))
        told = ", ".join(f"{plural(n, 'row')} {word}" for n, word in counts if n)
        return f"{sign} {name}  {told or 'no row to put back'}"

    def details(self, r: NodeResult) -> list[str]:
        return node_error(r.error, self.talk.width) if r.error else []


def _columns(r: PlannedNode) -> Iterator[str]:
    """What a plan would do to the table's columns."""
    if r.schema_changes:
        told = [change_from_json(c).told for c in r.schema_changes]
        yield f"the table: {', '.join(told)}"


def _deletes(r: PlannedNode) -> Iterator[str]:
    """What a plan would delete: how many, what share, what becomes of them, and a few of them."""
    if not r.sample_deletes:
        return
    share = f" ({r.delete_percent:.1f}% of the living rows)" if r.delete_percent is not None else ""
    fate = ""
    if r.deleted:  # beside others that are held, perhaps
        fate = f"{plural(r.deleted, 'row')}{share} would be deleted: "
    elif r.verdict == "refuse":
        fate = f"{plural(r.found_deletes or 0, 'row')}{share} would be deleted, which is refused: "
    yield f"{fate}{r.reason}"
    keys = "; ".join(", ".join(f"{k}={v}" for k, v in key.items()) for key in r.sample_deletes)
    yield f"for example {keys}"


def _cells(values: Sequence[str]) -> str:
    """Values under their headers; a value too long for its column still keeps its distance."""
    return "".join((" " + v).rjust(w) for v, (_, w) in zip(values, _COLUMNS, strict=True))


class Progress(Observer, AbstractContextManager["Progress"]):
    """Draws a run or a plan. Use it as a context: a live display must be put away, whatever happens."""

    def __init__(
        self,
        talk: Talk,
        names: Sequence[str],
        *,
        starting: str | None = None,
        lines: type[NodeLines] = NodeLines,
    ) -> None:
        self.talk = talk
        self.names = list(names)
        self.lines = lines(talk, names)
        self.began = time.monotonic()
        self.results: list[NodeResult] = []
        self._starting = starting  # the engine on its way up, while it is
        self._running: dict[str, float] = {}
        self._lock = threading.Lock()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self.talk.terminal and not self.talk.quiet:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self.talk.stream, highlight=False, soft_wrap=True)
            self._live = Live(
                console=console, get_renderable=self._frame, transient=True, refresh_per_second=8,
            )  # fmt: skip
            self._live.start()
        elif self._starting:
            self.talk.say(f"{self._starting} …")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    # --- told by the run, from its threads ------------------------------------------------------------------

    def engine_ready(self) -> None:
        self._starting = None
        if self.names and (header := self.lines.header()):
            self._print(header)

    def chosen(self, names: Sequence[str]) -> None:
        self.names, self.lines = list(names), type(self.lines)(self.talk, names)

    def started(self, name: str) -> None:
        with self._lock:
            self._running[name] = time.monotonic()

    def finished(self, result: NodeResult) -> None:
        with self._lock:
            self._running.pop(result.name, None)
            self.results.append(result)
        failure = result.status in ("failed", "fenced")
        for line in (self.lines.line(result), *self.lines.details(result)):
            self._print(line, failure=failure)

    def _print(self, line: str, *, failure: bool = False) -> None:
        if self._live is not None:
            from rich.text import Text

            self._live.console.print(Text.from_ansi(line))
        elif failure:
            self.talk.insist(line)
        else:
            self.talk.say(line)

    # --- drawn on a terminal, several times a second --------------------------------------------------------

    def _frame(self) -> Text:
        from rich.text import Text

        now = time.monotonic()
        sign = self.talk.paint(_SPINNER[int(now * 8) % len(_SPINNER)], "cyan")
        if self._starting or not self.names:
            return Text.from_ansi(
                f"{sign} {self._starting or 'looking'} … {now - self.began:.0f} s"
            )
        with self._lock:
            running, done = list(self._running.items()), len({r.name for r in self.results})
        room = max(self._live.console.height - 4, 1) if self._live else len(running)
        lines = [self.lines.running(name, now - since, sign) for name, since in running[:room]]
        foot = f"  {done} of {len(self.names)} done, {len(running)} running, {duration(now - self.began)}"
        return Text.from_ansi(
            "\n".join([*lines, self.talk.paint(foot, "dim")]), no_wrap=True, overflow="ellipsis"
        )


def summary(results: Sequence[NodeResult]) -> tuple[str, str]:
    """How many nodes ended how, and the sums of the columns above."""
    ends = Counter[str](r.status for r in results)
    nodes = plural(len(results), "node") + (": " if results else "")
    nodes += ", ".join(f"{ends[status]:,} {word}" for status, word in _ENDS.items() if ends[status])
    sums = {
        "read": sum(r.rows_read or 0 for r in results),
        "inserted": sum(r.inserted for r in results),
        "updated": sum(r.updated for r in results),
        "deleted": sum(r.deleted for r in results),
    }
    for word in ("reopened", "held"):  # rare, so said only when there are any
        if n := sum(getattr(r, word) for r in results):
            sums[word] = n
    if n := sum(r.quarantined for r in results):
        sums["in quarantine"] = n
    return nodes, ", ".join(f"{n:,} {word}" for word, n in sums.items())
