"""Every error strandline raises, as one tree.

StrandlineError
├── ConfigError           the project is wrong; nothing ran             exit code 2
│   └── UsageError        the command line is wrong                     exit code 2
├── NodeError             one node failed; nothing of it was written    exit code 1
│   ├── ReadError         a source could not be read
│   │   └── SourceDown    … because it is down or busy (worth a retry)
│   ├── TransformError    a step or the SQL failed
│   │   ├── CastError     a value does not fit the type asked for
│   │   ├── ExpectationFailed  rows fail a check of a validate step
│   │   └── UnknownColumn a column that is not there, with the nearest names
│   ├── DuplicateKeys     a slice holds a key more than once
│   ├── DeleteThresholdExceeded  more deletes were found than tolerated
│   │   └── EmptySource   … because the source came back empty
│   ├── TableError        the target cannot be written as asked
│   ├── SystemRefused     there is no room, or no permission
│   ├── RevertRefused     a failed load could not be taken back everywhere
│   ├── TakenBack         another target of the same node failed
│   └── CommitConflict    somebody else committed meanwhile (worth a retry)
│       └── Overtaken     … and what was to be committed no longer fits  exit code 4
├── StalePlan             a plan was made from what is no longer so      exit code 2
├── UndoRefused           something is in the way of an undo             exit code 2
├── Fenced                another runner holds the batch                exit code 4
└── EngineError           Spark, Java or a driver is missing            exit code 1

Each says what was found, what was expected and what to do next. Facts stay attributes,
so that `--json` and tests never parse a sentence.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from strandline.words import agree, plural

_SHOWN = 60  # columns in one message


class StrandlineError(Exception):
    """The root: a message, and a hint that says what to do next."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.loc: tuple[str | int, ...] = ()  # the key of its node that it belongs to
        self.file: str | None = None
        self.line: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The shape that `--json` prints under `error`."""
        return {
            "code": self.code,
            "message": self.message,
            "file": self.file,
            "line": self.line,
            "hint": self.hint,
        }


@dataclass(frozen=True)
class Problem:
    """One mistake in a project file: where it stands, what is wrong, how to mend it."""

    message: str
    file: str | None = None
    line: int | None = None
    key: str | None = None
    hint: str | None = None
    excerpt: str | None = None  # the lines around it, where their layout is what is wrong

    def __str__(self) -> str:
        where = (
            f"{self.file}:{self.line}: "
            if self.file and self.line
            else f"{self.file}: "
            if self.file
            else ""
        )
        key = f"{self.key}: " if self.key else ""
        shown = f"\n{self.excerpt}" if self.excerpt else ""
        return f"{where}{key}{self.message}{shown}" + (f"\n    → {self.hint}" if self.hint else "")


class ConfigError(StrandlineError):
    """The project file is wrong; carries every problem found, not only the first."""

    code = "config"
    exit_code = 2

    def __init__(
        self, problems: Sequence[Problem] | Problem | str, *, hint: str | None = None
    ) -> None:
        if isinstance(problems, str):
            problems = [Problem(problems, hint=hint)]
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        super().__init__("\n".join(str(p) for p in self.problems), hint=None)

    def as_dict(self) -> dict[str, Any]:
        first = self.problems[0]
        return {
            "code": self.code,
            "message": f"{first.key}: {first.message}" if first.key else first.message,
            "file": first.file or self.file,
            "line": first.line or self.line,
            "hint": first.hint,
            "problems": [vars(p) for p in self.problems],
        }


class UsageError(ConfigError):
    """The command line asks for something that is not there."""

    code = "usage"


class EngineError(StrandlineError):
    """The engine cannot start: Java, Spark or a driver is missing or too old."""

    code = "engine"


class StalePlan(StrandlineError):
    """A plan was made from what is no longer so; nothing was written."""

    code = "stale_plan"
    exit_code = 2

    def __init__(self, reason: str) -> None:
        super().__init__(f"stale plan: {reason}", hint="make a new one: strandline plan --out FILE")


class UndoRefused(StrandlineError):
    """Something is in the way of an undo; nothing was written."""

    code = "undo_refused"
    exit_code = 2

    def __init__(self, run_id: str, obstacles: Sequence[str]) -> None:
        self.obstacles = list(obstacles)
        shown = "; ".join(self.obstacles)
        super().__init__(
            f"run {run_id} cannot be undone: {shown}",
            hint="undo the later runs first, the newest first; what others have written or removed is theirs",
        )

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "obstacles": self.obstacles}


class Fenced(StrandlineError):
    """Another runner holds this batch; this one has written nothing."""

    code = "fenced"
    exit_code = 4


def taken(node: str, batch: int, run_id: str | None) -> str:
    """What a runner is told that came second."""
    who = f"run {run_id}" if run_id else "another runner"
    return f"{node}: {who} holds batch {batch}; nothing was written here"


class NodeError(StrandlineError):
    """One node failed; nothing of it was written."""

    code = "node"


class ReadError(NodeError):
    """A source could not be read."""

    code = "read"


class SourceDown(ReadError):
    """A source cannot be reached (refused, timed out, unknown host), or is locked for the moment."""

    code = "source_down"
    retryable = True


class TransformError(NodeError):
    """A step or the SQL failed."""

    code = "transform"


class ExpectationFailed(TransformError):
    """Rows fail checks whose severity is `fail`; the batch is refused."""

    code = "expectation_failed"

    def __init__(self, where: str, failures: Sequence[str]) -> None:
        self.failures = list(failures)
        told = "\n  ".join(failures)
        super().__init__(
            f"{where}: {told}; nothing was written",
            hint="mend the rows at the source; or let the check warn, or put such rows aside: "
            "severity: warn, or severity: quarantine",
        )


class CastError(TransformError):
    """A value does not fit the type asked for."""

    code = "cast"

    def __init__(self, column: str, value: str, type_: str, *, hint: str | None = None) -> None:
        super().__init__(
            f"column `{column}`: the value {value!r} is not a {type_}",
            hint=hint
            or "correct the value at its source, choose another type, or turn such values into NULL "
            "with a `derive` step and try_cast",
        )
        self.column, self.value, self.type = column, value, type_


class UnknownColumn(TransformError):
    """A column that is not there, with the nearest names that are."""

    code = "unknown_column"

    def __init__(
        self, column: str, known: Iterable[str] | Mapping[str, Iterable[str]], *, where: str
    ) -> None:
        groups = (
            {k: list(v) for k, v in known.items()}
            if isinstance(known, Mapping)
            else {"": list(known)}
        )
        self.column, self.known = column, [name for names in groups.values() for name in names]
        super().__init__(
            f"{where}: there is no column `{column}`; {_columns(column, groups)}",
            hint=did_you_mean(column, self.known),
        )


def _columns(wanted: str, groups: Mapping[str, Sequence[str]]) -> str:
    """The columns that there are, by source where there are several; of very many the nearest."""
    listed = [name for names in groups.values() for name in names]
    if len(listed) > _SHOWN:
        near = difflib.get_close_matches(wanted, listed, n=10, cutoff=0)
        return f"there are {len(listed)}, the nearest: {', '.join(near)}"
    texts = [
        f"{k}: {', '.join(names)}" if len(groups) > 1 else ", ".join(names)
        for k, names in groups.items()
    ]
    return f"there are: {'; '.join(texts) or 'none'}"


class DuplicateKeys(NodeError):
    """A slice holds a key more than once, so nobody can say which row is right."""

    code = "duplicate_keys"

    def __init__(
        self,
        keys: Sequence[str],
        count: int,
        samples: Sequence[Sequence[Any]],
        *,
        hint: str | None = None,
    ) -> None:
        self.keys, self.count, self.samples = list(keys), count, [list(s) for s in samples]
        shown = "; ".join(
            ", ".join(f"{k}={v!r}" for k, v in zip(keys, s, strict=True)) for s in samples
        )
        super().__init__(
            f"{plural(count, 'key')} of ({', '.join(keys)}) {agree(count, 'occurs', 'occur')} more than once "
            f"in the rows to write, for example {shown}",
            hint=hint
            or f"add a `deduplicate` step with keys: [{', '.join(keys)}] and an order_by that says which row wins",
        )


class DeleteThresholdExceeded(NodeError):
    """More deletes were found than the configuration tolerates; nothing was written."""

    code = "delete_threshold"
    advice: ClassVar[str] = (
        "look at the source; if the deletes are right, raise max_delete_percent or max_delete_count, "
        "or use on_threshold_breach: hold and approve them"
    )

    def __init__(
        self, reason: str, *, percent: float, found: int, alive: int, hint: str | None = None
    ) -> None:
        self.percent, self.found, self.alive = percent, found, alive
        super().__init__(reason, hint=hint or self.advice)


class EmptySource(DeleteThresholdExceeded):
    """The source came back empty."""

    code = "empty_source"
    advice = (
        "look at the source; if it is empty rightly, use on_empty_source: apply, "
        "or on_empty_source: hold and approve the deletes"
    )


class TableError(NodeError):
    """The target cannot be written as asked: not Delta, another type, another partitioning."""

    code = "table"


class SystemRefused(NodeError):
    """The operating system refused to read or write: the disk is full, or this user may not."""

    code = "system"


class RevertRefused(NodeError):
    """A load failed, and a table it wrote cannot be put back without taking back somebody else's commit."""

    code = "revert_refused"

    def __init__(self, tables: Sequence[str], reason: str) -> None:
        self.tables = list(tables)
        super().__init__(
            f"the load failed ({reason}), and not every table could be put back: {'; '.join(tables)}",
            hint="look at the tables named; the other ones are as they were before the load",
        )


class TakenBack(NodeError):
    """A target was written, and put back because another one of the same node failed."""

    code = "taken_back"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"taken back, because {reason}",
            hint="put that right and run again: the targets of one node are written together",
        )


class CommitConflict(NodeError):
    """Somebody else committed to the table at the same moment."""

    code = "conflict"
    retryable = True


class Overtaken(CommitConflict):
    """Somebody else committed after a table was looked at, and what was to be written holds for that version only."""

    code = "overtaken"
    exit_code = 4
    retryable = False


@contextmanager
def located(*loc: str | int) -> Iterator[None]:
    """Errors raised inside belong to this key of the node, unless they know a narrower one."""
    try:
        yield
    except StrandlineError as e:
        e.loc = e.loc or loc
        raise


class InternalError(NodeError):
    """A fault of strandline itself, told in one line; its trace goes along for `--debug`."""


@contextmanager
def faults_told(leave: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """What is no error of ours becomes an `InternalError`, so that callers need to know one tree of errors."""
    try:
        with panics_told():
            yield
    except StrandlineError:
        raise
    except leave:
        raise
    except Exception as e:
        first = (str(e).strip() or "no message").splitlines()[0]
        text = f"internal error: {type(e).__name__}: {first}"
        raise InternalError(text, hint="--debug shows where") from e


@contextmanager
def panics_told(where: str = "") -> Iterator[None]:
    """A panic of a library written in Rust becomes an error of ours: it is no Exception, so no fence would stop it.

    Its class cannot be imported, and each library has one of its own.
    """
    try:
        yield
    except BaseException as e:
        if (type(e).__module__, type(e).__name__) != ("pyo3_runtime", "PanicException"):
            raise
        first = (str(e).strip() or "no message").splitlines()[0]
        raise TableError(
            f"{where}{': ' if where else ''}the library that reads and writes tables broke off: {first}",
            hint="the next run finds out what was written; --debug shows where it broke off",
        ) from e


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A hint naming the nearest known names, or None when nothing is near."""
    by_fold = {k.casefold(): k for k in known}
    near = difflib.get_close_matches(name.casefold(), by_fold, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(f'`{by_fold[n]}`' for n in near)}?" if near else None
