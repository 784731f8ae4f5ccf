"""Functions that DuckDB has no expression for, in Python: the local engine makes them known to DuckDB.

They are called with values only: DuckDB answers NULL where an argument is NULL.
"""

from __future__ import annotations

import hashlib
import math
import re
import zlib
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote_plus

from strandline.sql.fdlibm import FDLIBM

FLAGS = re.ASCII


class Answer(NamedTuple):
    """A function of Python under its name in DuckDB, with the types of its arguments and of its answer."""

    function: Callable[..., object]
    arguments: tuple[str, ...]
    result: str


def matches(text: str, pattern: str) -> bool:
    return re.search(pattern, text, FLAGS) is not None


def replaced(text: str, pattern: str, template: str) -> str:
    return re.sub(pattern, template, text, flags=FLAGS)


def extracted(text: str, pattern: str, group: int) -> str:
    """The first match, or its group; an empty text where there is none."""
    found = re.search(pattern, text, FLAGS)
    return (found[group] or "") if found else ""


def all_extracted(text: str, pattern: str, group: int) -> list[str]:
    return [found[group] or "" for found in re.finditer(pattern, text, FLAGS)]


def match_count(text: str, pattern: str) -> int:
    return sum(1 for _ in re.finditer(pattern, text, FLAGS))


def match_place(text: str, pattern: str) -> int:
    """Where the first match starts, counted from 1; 0 without one."""
    found = re.search(pattern, text, FLAGS)
    return found.start() + 1 if found else 0


def split(text: str, pattern: str, limit: int) -> list[str]:
    """The parts between the matches; an empty match at the start divides nothing."""
    parts: list[str] = []
    start = 0
    for found in re.finditer(pattern, text, FLAGS):
        if 0 < limit <= len(parts) + 1:
            break
        if found.end() == 0:
            continue
        parts.append(text[start : found.start()])
        start = found.end()
    return [*parts, text[start:]]


def split_signs(text: str, limit: int) -> list[str]:
    """Every sign by itself, the rest in the last one, as Spark splits by an empty pattern."""
    signs = list(text)
    if not signs or limit <= 0 or limit >= len(signs):
        return signs or [""]
    return [*signs[: limit - 1], "".join(signs[limit - 1 :])]


def initcap(text: str) -> str:
    """Capitals after blanks, small letters elsewhere."""
    return " ".join(
        word[:1].title() + word.lower()[len(word[:1].lower()) :] for word in text.split(" ")
    )


def substring_index(text: str, mark: str, count: int) -> str:
    """The text before the mark of that number; counted from the end when negative."""
    if not mark or not count:
        return ""
    at = -1 if count > 0 else len(text)
    for _ in range(abs(count)):
        at = (
            text.find(mark, at + 1)
            if count > 0
            else text.rfind(mark, 0, max(at - 1, -1) + len(mark))
        )
        if at < 0:
            return text
    return text[:at] if count > 0 else text[at + len(mark) :]


def reversed_text(text: str) -> str:
    return text[::-1]


def levenshtein(left: str, right: str) -> int:
    """How many signs to change, add or take away."""
    row = list(range(len(right) + 1))
    for n, one in enumerate(left, start=1):
        before, row[0] = row[0], n
        for m, other in enumerate(right, start=1):
            before, row[m] = row[m], min(row[m] + 1, row[m - 1] + 1, before + (one != other))
    return row[-1]


def crc32(value: bytes) -> int:
    return zlib.crc32(value)


def upper(text: str) -> str:
    return text.upper()


def lower(text: str) -> str:
    return text.lower()


def sha2(value: bytes, bits: int) -> str | None:
    """The digest as text; NULL for a length that there is none of."""
    name = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}.get(bits)
    return hashlib.new(name, value).hexdigest() if name else None


def url_encoded(text: str) -> str:
    return quote_plus(text, safe="*").replace("~", "%7E")


def rint(number: float) -> float:
    """To the nearest whole number, to the even one from the middle; zeros keep their sign."""
    return math.copysign(round(number), number) if math.isfinite(number) else number


_TEXT = ("VARCHAR", "VARCHAR")
ANSWERS: dict[str, Answer] = {
    "strandline_matches": Answer(matches, _TEXT, "BOOLEAN"),
    "strandline_replaced": Answer(replaced, (*_TEXT, "VARCHAR"), "VARCHAR"),
    "strandline_extracted": Answer(extracted, (*_TEXT, "INTEGER"), "VARCHAR"),
    "strandline_all_extracted": Answer(all_extracted, (*_TEXT, "INTEGER"), "VARCHAR[]"),
    "strandline_match_count": Answer(match_count, _TEXT, "INTEGER"),
    "strandline_match_place": Answer(match_place, _TEXT, "INTEGER"),
    "strandline_split": Answer(split, (*_TEXT, "INTEGER"), "VARCHAR[]"),
    "strandline_split_signs": Answer(split_signs, ("VARCHAR", "INTEGER"), "VARCHAR[]"),
    "strandline_initcap": Answer(initcap, ("VARCHAR",), "VARCHAR"),
    "strandline_upper": Answer(upper, ("VARCHAR",), "VARCHAR"),
    "strandline_lower": Answer(lower, ("VARCHAR",), "VARCHAR"),
    "strandline_substring_index": Answer(substring_index, (*_TEXT, "INTEGER"), "VARCHAR"),
    "strandline_reversed": Answer(reversed_text, ("VARCHAR",), "VARCHAR"),
    "strandline_levenshtein": Answer(levenshtein, _TEXT, "INTEGER"),
    "strandline_crc32": Answer(crc32, ("BLOB",), "BIGINT"),
    "strandline_sha2": Answer(sha2, ("BLOB", "INTEGER"), "VARCHAR"),
    "strandline_url_encoded": Answer(url_encoded, ("VARCHAR",), "VARCHAR"),
    "strandline_rint": Answer(rint, ("DOUBLE",), "DOUBLE"),
    **{f"strandline_{f.__name__}": Answer(f, ("DOUBLE",) * n, "DOUBLE") for f, n in FDLIBM},
}
