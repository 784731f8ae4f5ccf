"""Errors that our own SQL raises inside an engine, turned back into what they mean."""

from __future__ import annotations

from strandline.errors import CastError, DuplicateKeys, TransformError
from strandline.sql.portable import find_fault


def raise_fault(message: str) -> None:
    """Raise the error that a fault in the text stands for; nothing when there is none."""
    found = find_fault(message)
    match found:
        case None:
            return
        case ("cast", [column, value, type_]):
            raise CastError(column, value, type_)
        case ("duplicates", _):
            raise DuplicateKeys([], 0, [])
        case ("division", _):
            raise TransformError("division by zero", hint="guard the divisor with nullif(x, 0)")
        case (kind, _):
            raise TransformError(f"the SQL raised: {kind}")
