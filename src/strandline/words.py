"""Words for people: counts that agree with their nouns, texts without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus


def plural(number: int, noun: str, many: str | None = None) -> str:
    """`1 row`, `1,200 rows`; `many` is for what does not end with s."""
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def agree(number: int, one: str, many: str) -> str:
    """The verb for a number of things: `1 row has`, `2 rows have`."""
    return one if number == 1 else many


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text with `***` for each secret, also where it is quoted for a URL."""
    forms: set[str] = set()
    for secret in filter(None, secrets):
        forms |= {
            secret,
            quote(secret),
            quote(secret, safe=""),
            quote_plus(secret),
            repr(secret)[1:-1],
        }
    for form in sorted(forms, key=len, reverse=True):
        # A very short value is taken only as a word of its own: else `sa` would blank half of every sentence.
        pattern = re.escape(form) if len(form) > 3 else rf"(?<!\w){re.escape(form)}(?!\w)"
        text = re.sub(pattern, "***", text)
    return text
