"""Counts that agree with their nouns and verbs."""

from __future__ import annotations


def plural(number: int, noun: str, many: str | None = None) -> str:
    """`1 row`, `1,200 rows`; `many` is for what does not end with s."""
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def agree(number: int, one: str, many: str) -> str:
    """The verb for a number of things: `1 row has`, `2 rows have`."""
    return one if number == 1 else many
