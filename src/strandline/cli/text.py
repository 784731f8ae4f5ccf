"""Numbers, times and tables as text; pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime

SIGNS = {
    "success": "✓",
    "unchanged": "=",
    "held": "!",
    "failed": "✗",
    "skipped": "–",
    "fenced": "#",
    "recovered": "+",
}
COLOURS = {
    "success": "green",
    "unchanged": "dim",
    "held": "yellow",
    "failed": "red",
    "skipped": "dim",
    "fenced": "yellow",
}
_MIN_FLEXIBLE = 10


def count(number: int | None) -> str:
    """1,234,567; a dash for what nobody counted."""
    return "–" if number is None else f"{number:,}"


def duration(seconds: float) -> str:
    """0.41 s, 12.3 s, 3 min 05 s."""
    if seconds >= 100:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"


def instant(moment: datetime | None) -> str:
    """2024-01-31 12:00:00Z; always UTC, so that two people read the same."""
    return "–" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def clean(text: str) -> str:
    """Text that came from data or drivers, without what a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else " " if c == "\t" else "�" for c in text)


def shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 1)] + "…"


def indented(text: str, width: int | None, indent: str = "    ") -> list[str]:
    """Lines of prose; wrapped only where somebody looks at them on a terminal."""
    lines = clean(text).splitlines()
    if width is None:
        return [f"{indent}{line}" for line in lines]
    wrapped = (
        textwrap.wrap(line, max(width - 1, 20), initial_indent=indent, subsequent_indent=indent + _hang(line),
                      break_long_words=False, break_on_hyphens=False)
        for line in lines
    )  # fmt: skip
    return [line for part in wrapped for line in part]


def _hang(line: str) -> str:
    return "  " if line.startswith("→ ") else ""


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[int] = (),
    flexible: Sequence[int] = (),
    width: int | None = None,
) -> list[str]:
    """Aligned columns, the header first; on a narrow terminal the flexible columns are shortened, widest first."""
    cells = [list(headers), *([clean(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]
    while width is not None and sum(widths) + 2 * (len(widths) - 1) > width and flexible:
        widest = max(flexible, key=lambda i: widths[i])
        if widths[widest] <= _MIN_FLEXIBLE:
            break
        widths[widest] -= 1
    lines = []
    for row in cells:
        fitted = [shortened(cell, w) for cell, w in zip(row, widths, strict=True)]
        padded = [
            c.rjust(w) if i in right else c.ljust(w)
            for i, (c, w) in enumerate(zip(fitted, widths, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return lines
