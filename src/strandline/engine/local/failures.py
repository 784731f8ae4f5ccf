"""DuckDB's and deltalake's errors in our words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import duckdb
from deltalake.exceptions import DeltaError

from strandline.engine.base import FileSource
from strandline.engine.faults import raise_fault, unreadable
from strandline.errors import (
    NodeError,
    ReadError,
    TableError,
    TransformError,
    UnknownColumn,
    panics_told,
)
from strandline.refusal import refused


@contextmanager
def translated(where: str, files: Sequence[FileSource] = ()) -> Iterator[None]:
    """Run something in DuckDB; what it says when it fails becomes one of our errors."""
    try:
        with panics_told(where):
            yield
    except duckdb.Error as e:
        text = str(e)
        raise_fault(text)
        raise (unreadable(files) if _of_files(text) else None) or _translate(e, text, where) from e
    except (
        DeltaError
    ) as e:  # deltalake pulls rows out of DuckDB while it writes: the fault may come from there
        raise_fault(str(e))
        if _of_files(str(e)) and (bad := unreadable(files)):
            raise bad from e
        if known := refused(where, e):
            raise known from e
        first = str(e).strip().splitlines()[0]
        raise TableError(
            f"{where}: {first}", hint="the table format (deltalake) said so; no row was written"
        ) from e
    except OSError as e:  # deltalake's own, too
        raise refused(where, e) or e from e


def _of_files(text: str) -> bool:
    return "CSV" in text or "GZIP" in text.upper()


def _translate(error: duckdb.Error, text: str, where: str) -> NodeError:
    first = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    if missing := re.search(r'column "([^"]+)" not found', text, re.IGNORECASE):
        known = re.search(r"Candidate bindings: (.*)", text)
        names = re.findall(r'"([^"]+)"', known[1]) if known else []
        return UnknownColumn(missing[1], [n.split(".")[-1] for n in names], where="SQL")
    if isinstance(error, duckdb.IOException):
        if refusal := refused(where, error):
            return refusal
        return ReadError(f"{where}: {first.removeprefix('IO Error: ')}")
    if isinstance(error, duckdb.OutOfMemoryException):
        return NodeError(f"{where}: out of memory: {first}", hint="run it on engine: spark")
    return TransformError(f"{first.split(': ', 1)[-1]}", hint="the local engine (DuckDB) said so")
