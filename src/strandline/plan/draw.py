"""A graph as people read it: lines of text, or Mermaid for a page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from strandline.plan.graph import Graph


def as_text(graph: Graph, chosen: Sequence[str]) -> Iterator[str]:
    """Each node below what it reads; a node with several parents stands below the last of them and names the others."""
    inside = set(chosen)
    home = {
        n: max((p for p in graph.parents[n] if p in inside), key=graph.order.index, default=None)
        for n in chosen
    }

    def lines(name: str, lead: str, hook: str) -> Iterator[str]:
        others = sorted(p for p in graph.parents[name] if p in inside and p != home[name])
        yield f"{hook}{name}" + (f"  (also after {', '.join(others)})" if others else "")
        below = [n for n in chosen if home[n] == name]
        for n in below:
            last = n is below[-1]
            yield from lines(
                n, lead + ("   " if last else "│  "), lead + ("└─ " if last else "├─ ")
            )

    for name in chosen:
        if home[name] is None:
            yield from lines(name, "", "")


def as_mermaid(graph: Graph, chosen: Sequence[str]) -> Iterator[str]:
    """A Mermaid flow chart; names become ids, and stay as labels."""
    ids = {n: f"n{i}_{re.sub(r'[^A-Za-z0-9]', '_', n)}" for i, n in enumerate(chosen)}
    yield "flowchart LR"
    yield from (f'    {ids[n]}["{n}"]' for n in chosen)
    yield from (
        f"    {ids[p]} --> {ids[n]}" for n in chosen for p in sorted(graph.parents[n]) if p in ids
    )
