"""The text of files: its encoding, its compression, and the first place where it cannot be read."""

from __future__ import annotations

import codecs
import gzip
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TextIO, cast

from strandline.engine.base import FileSource
from strandline.errors import ReadError

_CHUNK = 1 << 20


def opened(path: Path, encoding: str = "utf-8", mode: str = "r") -> TextIO:
    """A text file, compressed if its name ends with .gz; line ends are left as they are."""
    encoding = "utf-8-sig" if mode == "r" and is_utf8(encoding) else encoding
    if path.suffix.casefold() == ".gz":
        return cast(
            TextIO,
            gzip.open(path, mode + "t", 1 if mode == "w" else 9, encoding=encoding, newline=""),
        )
    return cast(TextIO, path.open(mode, encoding=encoding, newline=""))


def is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def not_text(path: Path, encoding: str = "utf-8") -> tuple[int, str] | None:
    """The first line of a file that is not text in its encoding, and what was found there; None when all is."""
    if is_utf8(encoding) and _wide(path):
        return 1, "NUL bytes or a mark of UTF-16"
    decoder = codecs.getincrementaldecoder(encoding)()
    line, more = 1, True
    with _bytes(path) as file, _damage_told(path):
        while more:
            chunk = file.read(_CHUNK)
            more = len(chunk) == _CHUNK
            state = decoder.getstate()
            try:
                line += decoder.decode(chunk, final=not more).count("\n")
            except UnicodeDecodeError as e:
                decoder.setstate(state)
                line += decoder.decode(chunk[: max(e.start - len(state[0]), 0)]).count("\n")
                bad = e.object[e.start : e.end][:4]
                return (
                    line,
                    f"the byte{'s' if len(bad) > 1 else ''} {' '.join(f'0x{b:02x}' for b in bad)}",
                )
    return None


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        message = f"`{path.name}` cannot be decompressed: {e}"
        raise ReadError(
            message, hint="the file is damaged or incomplete: bring it once more"
        ) from e


def refuse_other_text(paths: Iterable[Path], source: FileSource) -> None:
    """An error when one of the files is not in the encoding that its source says."""
    for path in paths:
        if found := not_text(path, source.encoding):
            raise other_text(path, source, *found)


def other_text(path: Path, source: FileSource, line: int, found: str) -> ReadError:
    """The error for a file in another encoding, with the option to set."""
    place = path.relative_to(source.root.resolve())
    message = f"{place}, line {line}: this is not {_name(source.encoding)} text: found {found}"
    if not is_utf8(source.encoding):
        return ReadError(
            message,
            hint=f"correct options: {{encoding: {source.encoding}}}; without it files are read as UTF-8",
        )
    if wide := _wide(path):
        return ReadError(
            message,
            hint=f"the file begins as UTF-16 does: add options: {{encoding: {wide}}} to the read",
        )
    examples = "latin-1 (Western Europe), cp1252 (Windows) or utf-16"
    return ReadError(
        message, hint=f"add options: {{encoding: …}} to the read, for example {examples}"
    )


def as_utf8(paths: Iterable[Path], source: FileSource, folder: Path) -> FileSource:
    """The same files in UTF-8 below another folder, so that every engine reads them alike.

    They keep their names and times: both say what is read.
    """
    root = source.root.resolve()
    for path in paths:
        copy = folder / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if found := not_text(path, source.encoding):
            raise other_text(path, source, *found)
        with opened(path, source.encoding) as old, opened(copy, mode="w") as new:
            new.write(old.read(1).removeprefix("\ufeff"))
            shutil.copyfileobj(old, new, _CHUNK)
        shutil.copystat(path, copy)
    return replace(source, root=folder, encoding="utf-8")


def _wide(path: Path) -> str | None:
    """Which UTF-16 a file is in, as its first two bytes tell; None when it is in none."""
    with _bytes(path) as file, _damage_told(path):
        first = file.read(2)
    if first in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    if first[:1] == b"\0":
        return "utf-16-be"
    return "utf-16-le" if first[1:] == b"\0" else None


def _bytes(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix.casefold() == ".gz" else path.open("rb")


def _name(encoding: str) -> str:
    return "UTF-8" if is_utf8(encoding) else encoding
