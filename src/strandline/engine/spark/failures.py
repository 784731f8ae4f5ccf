"""Spark's and the JVM's errors in our words: never a stack trace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException

from strandline.engine.base import FileSource
from strandline.engine.faults import raise_fault, unreadable
from strandline.errors import (
    CommitConflict,
    NodeError,
    ReadError,
    SourceDown,
    StrandlineError,
    TransformError,
    UnknownColumn,
)

_CONFLICT = re.compile(r"Concurrent\w+Exception|DELTA_CONCURRENT|ProtocolChangedException|DELTA_PROTOCOL_CHANGED")
_DOWN = re.compile(
    r"(?i)connection .*refused|connect timed out|UnknownHostException|connection attempt failed"
    r"|connection has been closed|terminating connection|I/O error occurred while sending"
)
_MALFORMED = re.compile(r"MALFORMED_RECORD|FAILED_READ_FILE|MalformedInputException|TextParsingException")


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


def _text(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return f"{error}\n{java.toString()}" if java is not None else str(error)


def _translate(error: Exception, text: str, where: str, files: Sequence[FileSource]) -> NodeError:
    if isinstance(error, AnalysisException) and "UNRESOLVED_COLUMN" in text:
        name = re.search(r"with name (\S+?) cannot be resolved", text)
        known = re.search(r"\[([^\]]*)\]\. SQLSTATE", text)
        names = re.findall(r"`([^`]+)`", known[1]) if known else []
        return UnknownColumn(name[1].split(".")[-1].strip("`") if name else "?", names, where="SQL")
    if _CONFLICT.search(text):
        return CommitConflict(f"{where}: somebody else committed at the same moment", hint="run again")
    if _DOWN.search(text):
        return SourceDown(
            f"{where}: the database cannot be reached: {_first(text)}", hint="check that it runs, and url:"
        )
    if _MALFORMED.search(text):
        return unreadable(files) or ReadError(f"{where}: {_first(text)}")
    if "ClassNotFoundException" in text and "river" in text:
        return ReadError(f"{where}: Spark has no JDBC driver for this database", hint="add it under spark: packages:")
    return TransformError(f"{where}: {_first(text)}", hint="Spark said so; see .strandline/spark.log")


def _first(text: str) -> str:
    """The sentence that says what happened: the innermost cause, without its class and trace."""
    causes = re.findall(r"Caused by: ([^\n]+)", text)
    line = causes[-1] if causes else next((li for li in text.splitlines() if li.strip()), "")
    line = re.sub(r"^(?:[\w$]+\.)+[\w$]+(?:Exception|Error): ", "", line.strip())
    return re.sub(r"\s*SQLSTATE: \w+.*$", "", line)[:500]
