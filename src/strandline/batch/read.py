"""Reading: the rows of every source, limited to what may be new, and what they cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from sqlglot import exp

from strandline.batch.extracts import Newest, by_file, newest_file, newest_value
from strandline.batch.missed_keys import Extra, extra_rows
from strandline.batch.watermark import (
    Progress,
    hints_of,
    limits_of,
    marks_of,
    measures_of,
    progress,
    progress_of_files,
    wanted_rows,
    window_of,
)
from strandline.config.connections import FilesConnection
from strandline.config.deletes import DeleteDetectionMode
from strandline.config.model import NodeConfig
from strandline.control.coverage import Coverage, FilesRead, Pin
from strandline.engine.base import Engine, FileSource, LakeSource, Scan, Source, SqlSource
from strandline.engine.sources.files import Found, fingerprint, listed, single
from strandline.errors import ReadError, located
from strandline.lake import describe
from strandline.plan.inputs import Input, is_lake, source_of, table_of
from strandline.plan.job import Feed, Job
from strandline.plan.views import by_last, check_view, chosen, hidden, last_versions
from strandline.sql.expr import all_of, cast, col, eq, lit, named, rows_of, select, table
from strandline.types import Changes, Increment, Relation, Snapshot, Table, TableState, Window

FILES = "_modified_at"  # the mark of files that are read by the time they were written


@dataclass(frozen=True)
class Followed:
    """How a node followed the changes of its sources, and what is to be said of it."""

    how: Literal["first", "rows", "keys", "recompute", "quiet"]
    told: str = ""  # which versions, for the records of single rows
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Arrived:
    """Which of the files that an append takes by their time may have brought rows before."""

    doubtful: tuple[str, ...] = ()
    single: bool = False  # there is one file, so what the table has came from it


@dataclass(frozen=True)
class Slice:
    """What was read: rows by alias, what they cover, and how many there were once something counted them."""

    rows: Mapping[str, Relation]
    scans: Sequence[Scan]
    versions: Mapping[str, int]
    coverage: Coverage
    evidence: Snapshot | Window | Changes | Increment
    marked: tuple[str, ...] = ()  # the watermark columns of a limited read
    outdated: str | None = (
        None  # why nothing was taken of a snapshot: it is older than the one before
    )
    followed: Followed | None = None  # how its sources' changes were followed, if they were
    arrived: Arrived | None = None  # of files that are appended by the time they were written
    newest: Newest | None = (
        None  # of several extracts, where a step makes the column that tells them
    )
    said: tuple[str, ...] = ()  # what there is to warn of

    @property
    def window(self) -> Mapping[str, tuple[Any, Any]]:
        """The bounds of a limited read."""
        return self.evidence.bounds if isinstance(self.evidence, Window) else {}

    @property
    def rows_read(self) -> int | None:
        counts = [s.rows_read() for s in self.scans]
        return None if any(c is None for c in counts) else sum(c or 0 for c in counts)


@dataclass(frozen=True)
class _Read:
    """One source, read."""

    scan: Scan
    evidence: Snapshot | Window | Increment
    state: TableState | None = None
    feed: Feed | None = None
    progress: Progress = field(default_factory=Progress)
    columns: tuple[str, ...] = ()
    snapshot: Any = None
    outdated: str | None = None
    files: FilesRead | None = None  # those that need not be read again
    arrived: Arrived | None = None
    newest: Newest | None = None

    @classmethod
    def whole(cls, scan: Scan, state: TableState | None = None, feed: Feed | None = None) -> _Read:
        """All rows that a source has."""
        return cls(scan, Snapshot(scan.relation), state, feed)


def pinned(job: Job) -> dict[str, Pin] | None:
    """The id and version of every source that counts and how it was last fed, when all are lake tables; else None."""
    found = {}
    for input_ in job.inputs:
        if not input_.read.triggers:
            continue
        if not is_lake(job.project, input_.read):
            return None
        state = describe(lake_of(job, input_))
        if state is None:
            return None
        found[input_.key] = pin(job, state, feed_of(job, input_))
    return found


def pin(job: Job, state: TableState, feed: Feed | None) -> Pin:
    """What a table is at this moment; where snapshots are compared, one that came back empty is another one."""
    return Pin(
        state.table_id, state.version, feed.batch if feed and _compares_snapshots(job) else None
    )


def read_sources(job: Job, engine: Engine) -> Slice:
    """Scan every source; lake tables at the version they have now, limited reads once and for all."""
    found = {i.alias: (i, _read(job, engine, i)) for i in job.inputs}
    sources = {i.key: pin(job, r.state, r.feed) for i, r in found.values() if r.state is not None}
    versions = {i.label: r.state.version for i, r in found.values() if r.state is not None}
    only = next(iter(found.values()))[1]
    evidence = _together([r.evidence for _, r in found.values()])
    window = evidence.bounds if isinstance(evidence, Window) else {}
    coverage = Coverage(
        kind="full" if isinstance(evidence, Snapshot) else "increment",
        digest=job.digest,
        sources=sources,
        marks={name: mark.as_json() for name, mark in only.progress.marks.items()},
        window=window_of(window, only.scan.relation.schema),
        future=only.progress.future,
        snapshot=only.snapshot,
        files=only.files,
    )
    rows = {alias: r.scan.relation for alias, (_, r) in found.items()}
    scans = [r.scan for _, r in found.values()]
    made = Slice(
        rows,
        scans,
        versions,
        coverage,
        evidence,
        only.columns,
        only.outdated,
        said=only.progress.said,
    )
    return replace(made, arrived=only.arrived, newest=only.newest)


def _together(found: Sequence[Snapshot | Window | Increment]) -> Snapshot | Window | Increment:
    """What the rows of several sources say together: no more than the least of them."""
    if len(found) == 1 or all(isinstance(e, Snapshot) for e in found):
        return found[0]
    return Increment(found[0].rows)


def _read(job: Job, engine: Engine, input_: Input) -> _Read:
    with located(*input_.loc):
        found = (_lake if is_lake(job.project, input_.read) else outside)(job, engine, input_)
    config = job.detection
    if (
        config is None
        or config.mode is not DeleteDetectionMode.SNAPSHOT_DIFF
        or found.snapshot is not None
    ):
        return found
    if config.snapshot_column:
        return _limited_to(
            engine, found, newest_value(job, engine, found.scan.relation, config.snapshot_column)
        )
    return replace(found, snapshot=_extract(job, input_))


def _limited_to(engine: Engine, found: _Read, newest: Newest) -> _Read:
    """The rows of the newest extract, or none where a newer one was compared before."""
    rows, scan, newest_ = found.scan.relation, found.scan, None
    where = exp.false() if newest.outdated else newest.where
    if newest.after:
        newest_ = newest
    elif where is not None:
        scan = Scan(engine.query(rows_of(rows).where(where)), scan.rows_read)
    found = replace(found, scan=scan, evidence=Snapshot(scan.relation))
    return replace(found, snapshot=newest.snapshot, outdated=newest.outdated, newest=newest_)


def _extract(job: Job, input_: Input) -> str:
    """What tells one extract from the next: files by themselves, anything else by when it is read."""
    connection = job.project.config.connections[input_.read.connection]
    if not isinstance(connection, FilesConnection):
        return job.clock.now.isoformat()
    source, _ = source_of(job.project, job.node, input_)
    assert isinstance(source, FileSource)
    return fingerprint(source)


# --- lake tables -------------------------------------------------------------------------------------------


def lake_of(job: Job, input_: Input) -> Table:
    return table_of(job.project, input_.read.connection, input_.read.table or "")


def feed_of(job: Job, input_: Input) -> Feed | None:
    """How a table was last fed, be it by a node of this project or of another; None when nobody knows."""
    lake = lake_of(job, input_)
    planned = job.planned.get(lake.location)
    return planned.feed if planned else job.past.feed(lake)


def _lake(job: Job, engine: Engine, input_: Input) -> _Read:
    """A lake table: its living rows, of its newest snapshot where snapshots are compared."""
    lake = lake_of(job, input_)
    feed, planned = feed_of(job, input_), job.planned.get(lake.location)
    if planned is not None:
        found = _Read.whole(whole_table(job, engine, input_), None, feed)
    else:
        _, state = source_of(job.project, job.node, input_)
        assert state is not None
        found = _Read.whole(stored_rows(job, engine, input_, state, feed), state, feed)
    if feed is not None and not feed.coverage.whole:
        found = replace(found, evidence=Increment(found.scan.relation))
    if feed is not None and _compares_snapshots(job):
        found = replace(found, snapshot=feed.batch)
    return _limited(job, engine, input_, found) if input_.read.limited else found


def whole_table(job: Job, engine: Engine, input_: Input) -> Scan:
    """What a node sees of a lake table if its read is not limited: as it is now, or as the same plan would leave it."""
    feed = feed_of(job, input_)
    if lake_of(job, input_).location in job.planned:
        return planned_rows(job, engine, input_, feed)
    _, state = source_of(job.project, job.node, input_)
    assert state is not None
    return stored_rows(job, engine, input_, state, feed)


def stored_rows(
    job: Job, engine: Engine, input_: Input, state: TableState, feed: Feed | None
) -> Scan:
    """What a node sees of a lake table at one version, as `source_of` or `seen` describe it."""
    lake = lake_of(job, input_)
    unseen = (*hidden(job.node, input_.alias, state.roles), *_unknown(job, feed))
    if not by_last(input_.read, state.roles):
        return engine.scan(
            LakeSource(lake, state.version, unseen, kept(job, input_, state.roles, feed))
        )
    scan = engine.scan(LakeSource(lake, state.version))
    keys = keys_of(job, input_, state.roles)
    return replace(
        scan, relation=engine.query(last_versions(scan.relation, state.roles, keys, unseen))
    )


def planned_rows(job: Job, engine: Engine, input_: Input, feed: Feed | None) -> Scan:
    """What a node sees of a table that the same plan would write."""
    planned = job.planned[lake_of(job, input_).location]
    roles = planned.roles
    check_view(job.node, input_.alias, roles, input_.label)
    unseen = (*hidden(job.node, input_.alias, roles), *_unknown(job, feed))
    where = kept(job, input_, roles, feed)
    if by_last(input_.read, roles):
        shown = last_versions(planned.rows, roles, keys_of(job, input_, roles), unseen)
    else:
        shown = rows_of(planned.rows, planned.rows.schema.without(*unseen))
    rows = engine.query(shown.where(where) if where is not None else shown)
    return Scan(rows, lambda: count(engine, rows))


def keys_of(job: Job, input_: Input, roles: Mapping[str, str]) -> list[str]:
    """The keys of a table that keeps versions: by them its last versions are found."""
    lake = lake_of(job, input_)
    writer, feed = job.writer(lake), feed_of(job, input_)
    keys = list(writer.write.keys) if writer else []
    keys = keys or list((feed.coverage.keys or ()) if feed else ())
    keys = keys or [
        k
        for k in (input_.read.feed.primary_keys if input_.read.feed else ())
        if k != roles["valid_from"]
    ]
    if not keys or "valid_from" not in roles:
        lacks = "what its keys are" if not keys else "when a version begins"
        raise ReadError(
            f"{job.node.name}: include_deleted reads the last version of each key, and it is not known of {lake.label} "
            f"{lacks}",
            hint="say versions: all, and choose the rows with SQL",
        )
    return keys


def _unknown(job: Job, feed: Feed | None) -> tuple[str, ...]:
    """The columns of which a snapshot says nothing: what is known of them stays, as if it were read from the source."""
    return feed.coverage.lacks if feed is not None and _compares_snapshots(job) else ()


def _compares_snapshots(job: Job) -> bool:
    config = job.detection
    mode = DeleteDetectionMode.SNAPSHOT_DIFF
    return config is not None and config.mode is mode and config.snapshot_column is None


def kept(job: Job, input_: Input, roles: Mapping[str, str], feed: Feed | None) -> exp.Expr | None:
    """Which rows of a lake table are read: the living ones, and of appended snapshots the newest."""
    seen_rows = chosen(input_.read, roles)
    parts = [seen_rows] if seen_rows is not None else []
    if _compares_snapshots(job) and feed is not None:
        lake = lake_of(job, input_)
        writer = job.writer(lake)
        mode = (
            writer.write.mode
            if writer
            else feed.coverage.mode or ("append" if "batch_id" in roles else None)
        )
        if mode == "append":
            if "batch_id" not in roles:
                raise ReadError(
                    f"{lake.label} does not say which rows belong to its newest snapshot",
                    hint=_told(writer),
                )
            parts.append(eq(col(roles["batch_id"]), lit(feed.batch)))
    return all_of(parts) if parts else None


def _told(writer: NodeConfig | None) -> str:
    """What makes the snapshots of an appended table known."""
    if writer is not None:
        return f"run node `{writer.name}` once more: its rows will carry their batch"
    return "declare the node that writes it in this project too, or say with snapshot_column which rows are newest"


# --- databases and files -----------------------------------------------------------------------------------


def outside(job: Job, engine: Engine, input_: Input) -> _Read:
    source, _ = source_of(job.project, job.node, input_)
    if isinstance(source, FileSource) and input_.read.limited and _by_time(input_):
        return _files_by_time(job, engine, input_, source)
    if isinstance(source, FileSource) and by_file(job, input_):
        return _newest_file(job, engine, source)
    extra = Extra(job.node.name)
    if isinstance(source, SqlSource) and input_.read.limited:
        extra = extra_rows(job, engine)
        source = replace(source, hints=lambda schema: hints_of(job, input_, schema, extra))
    scan = engine.scan(source)
    if input_.read.limited:
        return _limited(job, engine, input_, _Read.whole(scan), extra)
    if job.detection is not None and not _asked_once(
        job, source
    ):  # compared more than once, so it is read once
        return _Read.whole(_staged(engine, scan.relation, {})[0])
    return _Read.whole(scan)


def _newest_file(job: Job, engine: Engine, source: FileSource) -> _Read:
    """The one file that is the newest extract."""
    name, newest = newest_file(job, [f.name for f in listed(source)])
    only = replace(source, only=frozenset({name})) if name is not None else source
    return _limited_to(
        engine, _Read.whole(_staged(engine, engine.scan(only).relation, {})[0]), newest
    )


def _asked_once(job: Job, source: Source) -> bool:
    """Is the slice compared with the table and nothing else?"""
    node, config = job.node, job.detection
    assert config is not None
    if node.write.effective_at is not None:
        return False
    if (
        config.mode is DeleteDetectionMode.SQL_COMPARE
    ):  # rows read after the keys would be there without their keys
        return isinstance(source, FileSource)
    steps = node.transform.steps if node.transform else []
    plain = all(s.operation == "detect_deletes" for s in steps) and node.transformation_sql is None
    stamped = any(node.write.metadata().model_dump().values())
    return (
        config.mode is DeleteDetectionMode.SNAPSHOT_DIFF
        and plain
        and not stamped
        and not config.snapshot_column
    )


def _limited(
    job: Job, engine: Engine, input_: Input, found: _Read, extra: Extra | None = None
) -> _Read:
    """Rows at or above their marks, read once; the highest values among them are the new marks.

    Rows that are wanted wherever their marks lie come along, and move no mark.
    """
    rows = found.scan.relation
    limited = limits_of(job, input_, rows.schema)
    if (where := wanted_rows(limited, extra, rows.schema)) is not None:
        rows = engine.query(rows_of(rows).where(where))
    scan, measured = _staged(engine, rows, measures_of(limited))
    came = progress(job, engine, input_, limited, scan.relation, measured)
    window = Window(
        scan.relation, {n: (limited.lows.get(n), high) for n, high in came.highs.items()}
    )
    names = tuple(c.name for c in limited.columns)
    return replace(found, scan=scan, evidence=window, progress=came, columns=names)


def _staged(
    engine: Engine, rows: Relation, measures: Mapping[str, exp.Expr]
) -> tuple[Scan, dict[str, Any]]:
    counted = {"n": cast(exp.Count(this=exp.Star()), "bigint"), **measures}
    staged = engine.stage(rows_of(rows), counted, None)
    return Scan(staged.relation, lambda: int(staged.measures["n"])), staged.measures


def _by_time(input_: Input) -> bool:
    return input_.read.incremental is not None and input_.read.incremental.column is None


def _files_by_time(job: Job, engine: Engine, input_: Input, source: FileSource) -> _Read:
    """Files written since the last run; the newest of them is the new mark.

    They are listed once: what arrives while they are read is for the next run.
    """
    incremental = input_.read.incremental
    assert incremental is not None
    old, there = marks_of(job).get(FILES), listed(source)
    lag = (
        incremental.lag
        if isinstance(incremental.lag, timedelta)
        else timedelta(seconds=incremental.lag or 0)
    )
    since = old.value - lag if old is not None else None
    taken = [f for f in there if since is None or f.modified >= since]
    appends, memory = job.node.write.mode == "append", job.past.memory.files
    if appends:
        taken = [f for f in taken if memory is None or memory.read.get(f.name) != f.stamp]
    only = frozenset(f.name for f in taken)
    scan, _ = _staged(engine, engine.scan(replace(source, since=since, only=only)).relation, {})
    came = progress_of_files(job, input_, FILES, [f.modified for f in there])
    mark, found = came.marks.get(FILES), _Read(scan, Increment(scan.relation), progress=came)
    if not appends or not there:
        return found
    arrived = Arrived(tuple(f.name for f in taken if _read_before(f, memory)), single(source))
    remembered = _remembered(there, mark.value - lag if mark else datetime.min.replace(tzinfo=UTC))
    return replace(found, files=remembered, arrived=arrived)


def _remembered(there: Sequence[Found], since: datetime) -> FilesRead:
    """The files that the next run would take by their time, and which have been read by now.

    One without a byte has brought nothing: somebody is about to write it.
    """
    return FilesRead(since, {f.name: f.stamp for f in there if f.modified >= since and f.size})


def _read_before(file: Found, memory: FilesRead | None) -> bool:
    """May an append have brought rows of this file, as it is or as it was?"""
    if memory is None:  # by a run that did not remember files
        return True
    return file.name in memory.read or file.modified < memory.since


def count(engine: Engine, rows: Relation) -> int:
    return int(
        engine.fetch(select(named(exp.Count(this=exp.Star()), "n")).from_(table(rows.name)))[0][0]
    )
