"""Finding files and looking at their first line; reading them is the engines' work."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from glob import escape
from pathlib import Path

from strandline.engine.base import FileSource
from strandline.engine.sources import texts
from strandline.errors import ReadError
from strandline.types import Column, Schema
from strandline.words import plural

_DELIMITERS = (";", "\t", "|", ",")


@dataclass(frozen=True)
class FileGroup:
    """Files that share their columns."""

    files: tuple[Path, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """A file as it was found: its path below the root, its size, when it was modified, and both to the last digit."""

    name: str
    size: int
    modified: datetime
    stamp: str


def find(source: FileSource) -> list[Path]:
    """The files of a source, sorted. None is an error; but none since a time is a quiet day, and an empty list."""
    found = [p for p in _matching(source) if source.since is None or _modified(p) >= source.since]
    return found if source.only is None else [p for p in found if _name(p, source) in source.only]


def listed(source: FileSource) -> list[Found]:
    """All matching files as they are at this moment; none is no error here."""
    found = []
    for path in _matching(source, required=False):
        stat = path.stat()
        size, written = stat.st_size, stat.st_mtime_ns
        found.append(Found(_name(path, source), size, _instant(written), f"{size}-{written}"))
    return found


def fingerprint(source: FileSource) -> str:
    """What tells these files from those of another day: their names, sizes and times."""
    found = [(_name(p, source), p.stat().st_size, p.stat().st_mtime_ns) for p in find(source)]
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]


def single(source: FileSource) -> bool:
    """Does the pattern name one file, and can never mean another?"""
    return (source.root / source.pattern).is_file()


def quiet(source: FileSource) -> bool:
    """Has nothing come since the time asked for? A file without a byte says nothing either."""
    bare = source.format != "parquet"  # there it is a file that is broken
    return source.since is not None and all(bare and not p.stat().st_size for p in find(source))


def shape(source: FileSource) -> FileSource:
    """The newest of all matching files alone: it says which columns an empty slice has."""
    latest = max(_matching(source), key=lambda p: (p.stat().st_size > 0, _modified(p), str(p)))
    pattern = escape(str(latest.relative_to(source.root.resolve())))
    return replace(source, pattern=pattern, since=None, only=None)


def _name(path: Path, source: FileSource) -> str:
    return path.relative_to(source.root.resolve()).as_posix()


def _modified(path: Path) -> datetime:
    return _instant(path.stat().st_mtime_ns)


def _instant(nanoseconds: int) -> datetime:
    """To the microsecond, rounded down: a float of seconds would not be exact."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=nanoseconds // 1000)


def _matching(source: FileSource, *, required: bool = True) -> list[Path]:
    root = source.root.resolve()
    if any(c in source.pattern for c in "*?["):
        found = sorted(
            p for p in root.glob(source.pattern) if p.is_file() and not _hidden(p.relative_to(root))
        )
    else:
        path = root / source.pattern
        found = (
            sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(root)))
            if path.is_dir()
            else [path]
        )
    for path in found:
        if not path.resolve().is_relative_to(root):
            raise ReadError(
                f"{source.label}: `{path.name}` is a link that leaves its connection's folder"
            )
    if not found or not found[0].exists():
        if not required:
            return []
        raise ReadError(
            f"no file matches `{source.pattern}`",
            hint=f"looked in {root}; relative paths start at the folder of strandline.yaml",
        )
    return found


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def csv_groups(source: FileSource) -> list[FileGroup]:
    """CSV files grouped by their header, so that a column that moved or came is read by its name."""
    groups: dict[tuple[str, ...], list[Path]] = {}
    for path in find(source):
        columns = _header(path, source)
        if columns:
            groups.setdefault(columns, []).append(path)
    if not groups:
        which = ", ".join(sorted(source.only)) if source.only else source.pattern
        raise ReadError(
            f"`{which}`: every file is empty", hint="a CSV file needs at least its header line"
        )
    return [FileGroup(tuple(files), columns) for columns, files in groups.items()]


def in_utf8(source: FileSource, folder: Path) -> FileSource:
    """The source with its files in UTF-8; those of another encoding are copied to a folder of the engine."""
    if source.format != "csv" or texts.is_utf8(source.encoding):
        return source
    return texts.as_utf8(find(shape(source) if quiet(source) else source), source, folder)


def _header(path: Path, source: FileSource) -> tuple[str, ...]:
    try:
        with texts.opened(path) as f:
            first = next(csv.reader(f, delimiter=source.delimiter), [])
    except UnicodeDecodeError as e:
        raise _bad_text(path, source) or ReadError(
            f"`{path.name}` changed while it was read", hint="run again"
        ) from e
    except (OSError, EOFError, csv.Error) as e:
        texts.refuse_other_text([path], source)  # a damaged archive is told as such
        raise ReadError(f"`{path.name}` cannot be read as CSV: {e}") from e
    if not first:
        return ()
    if any("\0" in name for name in first) and (bad := _bad_text(path, source)):
        raise bad
    _refuse_other_delimiter(path, source, first)
    names = tuple(first) if source.header else tuple(f"_c{i}" for i in range(len(first)))
    if any(not n.strip() for n in names):
        raise ReadError(
            f"`{path.name}`, line 1: column {names.index('') + 1 if '' in names else '?'} has no name"
        )
    Schema(tuple(Column(n, "string") for n in names))  # two names alike are refused
    refuse_own(names, source)
    return names


def _bad_text(path: Path, source: FileSource) -> ReadError | None:
    found = texts.not_text(path)
    return texts.other_text(path, source, *found) if found else None


def _refuse_other_delimiter(path: Path, source: FileSource, first: Sequence[str]) -> None:
    """A header of one column that holds another delimiter is a file of several columns."""
    text = first[0] if len(first) == 1 and source.header else ""
    other = next((d for d in _DELIMITERS if d in text), None)
    if other is not None:
        raise ReadError(
            f"{_name(path, source)}, line 1: the header has no `{source.delimiter}`, so it is one column: `{text}`",
            hint=f"add options: {{delimiter: {json.dumps(other)}}} to the read",
        )


def refuse_own(names: Iterable[str], source: FileSource) -> None:
    """Files may not have a column of the name under which each row says its file."""
    own = next((n for n in names if n.casefold() == source.file_column), None)
    if own is not None:
        raise ReadError(
            f"`{source.pattern}`: the files have a column `{own}` of their own; strandline keeps that name for the "
            "path of the file",
            hint="rename it in the files; add_metadata, `deduplicate` and steps that name it need it",
        )


def first_bad_line(paths: Sequence[Path], source: FileSource) -> tuple[Path, int, str] | None:
    """The first record with another number of fields than its file's header: file, line and what is wrong."""
    for path in paths:
        with texts.opened(path) as f:
            reader = csv.reader(f, delimiter=source.delimiter, strict=True)
            line = 1
            try:
                width = len(next(reader, []))
                line = reader.line_num + 1
                for record in reader:
                    if record and len(record) != width:
                        return (
                            path,
                            line,
                            f"{plural(len(record), 'field')} where the header has {width}",
                        )
                    line = reader.line_num + 1
            except csv.Error as e:
                return path, line, str(e)
    return None


def union_columns(groups: Sequence[FileGroup]) -> list[str]:
    """All columns of all groups, in the order they first appear; names compare case-insensitively."""
    seen: dict[str, str] = {}
    for group in groups:
        for name in group.columns:
            seen.setdefault(name.casefold(), name)
    return list(seen.values())
