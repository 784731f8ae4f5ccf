"""Errors that our own SQL raises inside an engine, turned back into what they mean."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.engine.base import FileSource
from strandline.engine.sources import texts
from strandline.engine.sources.files import find, first_bad_line
from strandline.engine.sources.postgres import refused_value
from strandline.errors import CastError, DuplicateKeys, ReadError, TableError, TransformError
from strandline.sql.portable import find_fault


def raise_fault(message: str) -> None:
    """Raise the error that a fault in the text stands for; nothing when there is none."""
    if refusal := refused_value(message):
        raise refusal
    found = find_fault(message)
    match found:
        case None:
            return
        case ("cast", [column, value, type_]):
            raise CastError(column, value, type_)
        case ("duplicates", _):
            raise DuplicateKeys([], 0, [])
        case ("partition", [column]):
            raise TableError(
                f"partition column `{column}`: an empty text cannot be told from NULL there",
                hint=f"make it NULL with a derive step (nullif({column}, '')), or partition by another column",
            )
        case ("division", _):
            raise TransformError("division by zero", hint="guard the divisor with nullif(x, 0)")
        case (kind, _):
            raise TransformError(f"the SQL raised: {kind}")


def unreadable(files: Sequence[FileSource]) -> ReadError | None:
    """The first line of the CSV files read that is not as its header says; engines do not name it alike."""
    for source in (s for s in files if s.format == "csv"):
        try:
            texts.refuse_other_text(find(source), source)
        except ReadError as e:
            return e
        bad = first_bad_line(find(source), source)
        if bad:
            path, line, reason = bad
            place = path.relative_to(source.root.resolve())
            hint = "correct the line: the quotes, or the number of its fields"
            return ReadError(f"{place}, line {line}: unreadable CSV: {reason}", hint=hint)
    return None
