"""The tables of a hand-written job: where they are, what they hold, and where the job's records are kept."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.config.resolve import ETL_SCHEMA, PlaceError, folder_given
from strandline.control.store import DeltaStore
from strandline.errors import ConfigError, ReadError, StrandlineError, UnknownColumn
from strandline.lake import describe, format_of
from strandline.loader import delivery
from strandline.types import Table, TableState

if TYPE_CHECKING:
    from strandline.engine.spark.frames import Frames


@contextmanager
def hinted() -> Iterator[None]:
    """Put the hint of an error at the end of its traceback: a job in Python has no other place where it is read."""
    try:
        yield
    except StrandlineError as error:
        if error.hint and not getattr(error, "__notes__", None):
            error.add_note(f"→ {error.hint}")
        raise


def job_frames() -> Frames:
    """The user's Spark session, ready for frames; pyspark is imported with the first call."""
    from strandline.engine.spark.frames import Frames

    return Frames.of_session()


def job_store(control: str | Path | None) -> DeltaStore:
    """The control tables: in the place given, else in that of the environment, else in the working directory."""
    given = str(control or os.environ.get(ETL_SCHEMA) or Path.cwd() / ".strandline")
    try:
        folder = folder_given(given)
    except PlaceError as error:
        raise ConfigError(f"the control tables: {error}") from error
    return DeltaStore(Path(folder) if folder else job_frames().schema_folder(given))


def utc_now() -> datetime:
    return datetime.now(UTC)


def table_name(table: object) -> str:
    """The name or path of a table, given as text or as an object with `.identifier`."""
    return str(getattr(table, "identifier", table))


def opened(table: object, version: int | None = None) -> tuple[Frames, Table, TableState]:
    """A table as it is, or as it was at an older version."""
    frames = job_frames()
    lake = frames.place(table)
    state = describe(lake)
    if state is None:
        raise ReadError(
            f"there is no Delta table {lake.label}",
            hint="give its name in the catalog, or its path",
        )
    if version is None or version == state.version:
        return frames, lake, state
    if version > state.version:
        raise ReadError(
            f"{lake.label} is at version {state.version}: there is no version {version} yet",
            hint=f"give a version up to {state.version}",
        )
    then = format_of(lake).at(lake, int(version))
    if then is None:
        why = format_of(lake).unreadable(lake, int(version))
        raise ReadError(f"{lake.label}: {why}", hint="give a newer version")
    return frames, lake, then


def spelled_keys(keys: Sequence[str], state: TableState, lake: Table) -> list[str]:
    """The keys as the table spells them."""
    known = delivery.columns_of(state)
    for key in keys:
        if key not in known:
            raise UnknownColumn(key, known.names, where=f"{lake.label}, deduplication columns")
    return [c.name for k in keys if (c := known.get(k))]
