"""Spark's and the JVM's errors in our words: never a stack trace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException

from strandline.engine.base import FileSource
from strandline.engine.faults import raise_fault, unreadable
from strandline.engine.sources.outage import Kind, of_sqlite, of_state
from strandline.errors import (
    CommitConflict,
    NodeError,
    ReadError,
    SourceDown,
    StrandlineError,
    TableError,
    TransformError,
    UnknownColumn,
)

_CONFLICT = re.compile(
    r"Concurrent\w+Exception|DELTA_CONCURRENT|(Protocol|Metadata)ChangedException|DELTA_(PROTOCOL|METADATA)_CHANGED"
)
_DOWN = re.compile(
    r"(?i)connection .*refused|connect timed out|UnknownHostException|connection attempt failed"
    r"|connection has been closed|terminating connection|I/O error occurred while sending"
)
_DOWN_CLASSES = {
    "java.net.SocketException",
    "java.net.SocketTimeoutException",
    "java.net.UnknownHostException",
    "java.sql.SQLNonTransientConnectionException",
    "java.sql.SQLRecoverableException",
    "java.sql.SQLTransientException",
}
_MALFORMED = re.compile(
    r"MALFORMED_RECORD|FAILED_READ_FILE|MalformedInputException|TextParsingException"
)


@contextmanager
def translated(where: str, files: Sequence[FileSource] = ()) -> Iterator[None]:
    """Run something on Spark; what it says when it fails becomes one of our errors."""
    try:
        yield
    except StrandlineError:
        raise
    except (PySparkException, Py4JError) as e:
        text = _text(e)
        raise_fault(text)
        raise _translate(e, text, where, files) from e


_IN_A_JOB = {
    CommitConflict: "call it again: nothing of it was written",
    TableError: "rename or cast the column in the frame: withColumnRenamed, withColumn",
    TransformError: "the error of Spark is the cause of this one: see above it, or `__cause__`",
}


@contextmanager
def translated_for_job(where: str) -> Iterator[None]:
    """Run something on Spark for a job written in Python: no hint speaks of YAML or of files of a project."""
    try:
        with translated(where):
            yield
    except NodeError as e:
        if isinstance(e.__cause__, PySparkException | Py4JError) and type(e) in _IN_A_JOB:
            e.hint = _IN_A_JOB[type(e)]
        raise


def _text(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return f"{error}\n{java.toString()}" if java is not None else str(error)


def _translate(error: Exception, text: str, where: str, files: Sequence[FileSource]) -> NodeError:
    if isinstance(error, AnalysisException) and "UNRESOLVED_COLUMN" in text:
        name = re.search(r"with name (\S+?) cannot be resolved", text)
        known = re.search(r"\[([^\]]*)\]\. SQLSTATE", text)
        names = re.findall(r"`([^`]+)`(?!\.)", known[1]) if known else []
        return UnknownColumn(name[1].split(".")[-1].strip("`") if name else "?", names, where="SQL")
    if twice := re.search(r"\[COLUMN_ALREADY_EXISTS\] The column (`.+?`)", text):
        told = f"{where}: two columns differ only in case or not at all: {twice[1]} is there twice"
        return TableError(
            told,
            hint="give one of them another name at the source, or with a query: or a rename step",
        )
    if _CONFLICT.search(text):
        return CommitConflict(
            f"{where}: somebody else committed at the same moment", hint="run again"
        )
    if _is_down(error, text):
        return SourceDown(
            f"{where}: the database cannot be reached: {_first(text)}",
            hint="check that it runs, and url:",
        )
    if _MALFORMED.search(text):
        return unreadable(files) or ReadError(f"{where}: {_first(text)}")
    if "ClassNotFoundException" in text and "river" in text:
        return ReadError(
            f"{where}: Spark has no JDBC driver for this database",
            hint="add it under spark: packages:",
        )
    return TransformError(
        f"{where}: {_first(text)}", hint="Spark said so; see .strandline/spark.log"
    )


def _is_down(error: Exception, text: str) -> bool:
    """By the state or the class of what Java threw; by the text where neither can be had."""
    try:
        for java in _causes(error):
            classes = _classes(java)
            kind = _kind(java, classes) if "java.sql.SQLException" in classes else None
            if kind or _DOWN_CLASSES & classes:
                return kind in (None, "down", "busy")
    except Py4JError:  # the JVM itself is gone
        pass
    return _DOWN.search(text) is not None


def _causes(error: Exception) -> Iterator[Any]:
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(20):
        if java is None:
            return
        yield java
        java = java.getCause()


def _classes(java: Any) -> set[str]:
    """The names of an object's class and of all above it."""
    names, found = set(), java.getClass()
    while found is not None:
        names.add(str(found.getName()))
        found = found.getSuperclass()
    return names


def _kind(java: Any, classes: set[str]) -> Kind | None:
    if "org.sqlite.SQLiteException" in classes:
        return of_sqlite(int(java.getErrorCode()))
    return of_state(java.getSQLState())


def _first(text: str) -> str:
    """The sentence that says what happened: the innermost cause, without its class and trace."""
    causes = re.findall(r"Caused by: ([^\n]+)", text)
    told = (
        li
        for li in text.splitlines()
        if li.strip() and not li.startswith("An error occurred while calling")
    )
    line = causes[-1] if causes else next(told, "").removeprefix(": ")
    line = re.sub(r"^(?:[\w$]+\.)+[\w$]+(?:Exception|Error): ", "", line.strip())
    return re.sub(r"\s*SQLSTATE: \w+.*$", "", line)[:500]
