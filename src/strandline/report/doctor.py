"""Is this machine fit for this project? Each check says what it found and how to mend it."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pyarrow as pa

from strandline.config import resolve
from strandline.config.connections import FilesConnection, LakeConnection, SqlConnection
from strandline.config.load import Project
from strandline.control.store import DeltaStore
from strandline.engine.base import SqlEndpoint
from strandline.errors import StrandlineError
from strandline.lake import describe
from strandline.lake.delta import log as delta_log
from strandline.plan.inputs import table_of
from strandline.plan.worth import could_follow, worth
from strandline.refusal import advice
from strandline.words import plural

_ALWAYS = ("pydantic", "sqlglot", "duckdb", "deltalake", "pyarrow", "sqlalchemy")
_SPARK = {"pyspark": "4.1.", "delta-spark": "4.4.0"}
_LEAST_MEMORY = 3 * 2**30
_LEAST_ROOM = 2**20  # less than any commit needs


@dataclass(frozen=True)
class Check:
    """One thing looked at."""

    name: str
    ok: bool
    found: str
    fix: str | None = None


def machine(engine: str, packages: Sequence[str] = ()) -> Iterator[Check]:
    """What an engine needs, and the Maven packages that a project adds; nothing is downloaded."""
    yield Check(
        "Python",
        sys.version_info >= (3, 11),
        sys.version.split()[0],
        "install Python 3.11 or newer",
    )
    yield from (_package(name, "") for name in _ALWAYS)
    if engine == "spark":
        yield from (_package(name, wanted) for name, wanted in _SPARK.items())
        yield _told("Java", _java)
        yield _told("Spark jars", lambda: _jars(packages))
    yield _memory(engine)


def examine(project: Project, engine: str) -> Iterator[Check]:
    """All checks, the cheap ones first."""
    from strandline.engine.spark.jars import ICEBERG

    more = (ICEBERG,) if resolve.has_catalog(project) else ()
    yield from machine(engine, (*project.config.spark.packages, *more))
    for name, connection in project.config.connections.items():
        yield _told(f"connection {name}", lambda n=name, c=connection: _connection(project, n, c))  # type: ignore[misc]
    yield _told("control tables", lambda: _control(project))
    yield from (Check(f"node {node}", True, advice) for node, advice in _feeds(project))


def _told(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, look())
    except StrandlineError as e:
        return Check(
            name, False, e.message.splitlines()[0], e.hint or getattr(e, "problems", [e])[0].hint
        )
    except OSError as e:
        known = advice(e)
        todo = known[1] if known else "check that the folder exists and may be written"
        return Check(name, False, f"{e.strerror}: {e.filename}", todo)


def _package(name: str, wanted: str) -> Check:
    try:
        found = version(name)
    except PackageNotFoundError:
        extra = "[spark]" if name in _SPARK else ""
        return Check(name, False, "not installed", f"pip install 'strandline{extra}'")
    fits = found.startswith(wanted)
    return Check(
        name,
        fits,
        found,
        None if fits else f"install {name} {wanted}x: other versions have no matching jars",
    )


def _java() -> str:
    from strandline.engine.spark.java import ensure_java

    ensure_java()
    return os.environ["JAVA_HOME"]


def _jars(packages: Sequence[str]) -> str:
    from strandline.engine.spark.jars import DOWNLOAD, PACKAGES, cache_folder, cached

    if jars := cached((*PACKAGES, *packages)):
        return f"{len(jars)} files in the cache"
    return f"not downloaded yet: the first run on Spark downloads them to {cache_folder()} ({DOWNLOAD})"


def _memory(engine: str) -> Check:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    total, cores = pages * size, os.cpu_count() or 1
    enough = engine != "spark" or total >= _LEAST_MEMORY
    fix = (
        None
        if enough
        else "Spark's driver asks for 2 GB: set spark: config: {spark.driver.memory: 1g}"
    )
    return Check("memory", enough, f"{total / 2**30:.1f} GB, {cores} cores", fix)


def _connection(
    project: Project, name: str, connection: SqlConnection | FilesConnection | LakeConnection
) -> str:
    if isinstance(connection, SqlConnection):
        from strandline.engine.sources.sql import opened

        key = f"connections.{name}"
        url = resolve.sqlalchemy_url(connection, project.root, key=key)
        with opened(SqlEndpoint(name, url, lambda: None)) as live:
            live.exec_driver_sql("SELECT 1").close()
        return f"{url.get_backend_name()} answers"
    if isinstance(connection, LakeConnection) and connection.catalog is not None:
        return _catalog(project, name)
    folder = Path(resolve.base(connection, project.root))
    if isinstance(connection, FilesConnection):
        files = sum(1 for p in folder.rglob("*") if p.is_file()) if folder.is_dir() else None
        if files is None:
            raise FileNotFoundError(2, "there is no such folder", str(folder))
        return plural(files, "file")
    tables = (
        table_of(project, name, n.write.table)
        for n in project.config.nodes
        if n.write.connection == name
    )
    _room_to_write(folder, [Path(t.location) for t in tables])
    return "may be written" if folder.exists() else "will be made by the first run"


def _catalog(project: Project, name: str) -> str:
    """Whether an Iceberg catalog answers: it is asked for a table, there or not."""
    table = resolve.table_in_catalog(project, name, "strandline_doctor")
    assert table is not None
    describe(table)
    return "the catalog answers"


def _room_to_write(folder: Path, tables: Iterable[Path]) -> None:
    """An error when a folder, or one of the tables in it, may not be written, or its disk is full."""
    near = next(p for p in (folder, *folder.parents) if p.exists())
    places = (near, *(p for table in tables for p in (table, table / "_delta_log") if p.exists()))
    for place in places:
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "may not be written", str(place))
    if (free := shutil.disk_usage(near).free) < _LEAST_ROOM:
        raise OSError(errno.ENOSPC, f"{free // 1024:,} KB are left on the disk", str(near))


def _control(project: Project) -> str:
    config = project.config
    folder = Path(resolve.control_location(config.connections, config.control, project.root))
    store = DeltaStore(folder)
    rows = store.all_control()
    store.changes()  # reads the other two
    _room_to_write(folder, folder.glob("etl_*"))
    running = sorted({r.node for r in rows if r.batch_status == "RUNNING"})
    note = (
        f"; under way, or died and to be mended by the next run: {', '.join(running)}"
        if running
        else ""
    )
    return (
        f"{plural(len({r.node for r in rows}), 'node')} recorded{note}"
        if rows
        else "none yet: made by the first run"
    )


def _feeds(project: Project) -> Iterator[tuple[str, str]]:
    """Large lake tables that are read in full, where following their changes would read less."""
    for node in project.config.nodes:
        for input_ in could_follow(project, node):
            place = table_of(project, input_.read.connection, input_.read.table or "")
            delta = delta_log.open_table(place) if place.format == "delta" else None
            if delta is None:
                continue
            files = pa.table(delta.get_add_actions(flatten=True))
            rows, size = (
                sum(n or 0 for n in files.column(c).to_pylist())
                for c in ("num_records", "size_bytes")
            )
            if advice := worth(input_.label, rows, size):
                yield node.name, advice
