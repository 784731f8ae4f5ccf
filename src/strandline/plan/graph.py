"""Which node waits for which, and which nodes a selection names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from strandline.config.expectation_advice import related
from strandline.config.load import Project
from strandline.config.model import NodeConfig
from strandline.config.resolve import locate
from strandline.errors import ConfigError, Problem, UsageError, did_you_mean


@dataclass(frozen=True)
class Graph:
    """Nodes in an order that respects who reads what another writes."""

    order: tuple[str, ...]
    parents: Mapping[str, frozenset[str]]
    tags: Mapping[str, frozenset[str]]
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The nodes that are the targets of one, in their order, by its name."""

    def children(self, name: str) -> frozenset[str]:
        return frozenset(n for n, parents in self.parents.items() if name in parents)

    def reach(self, name: str, *, up: bool) -> set[str]:
        """All ancestors or all descendants of a node."""
        found: set[str] = set()
        todo = [name]
        while todo:
            here = todo.pop()
            new = (self.parents[here] if up else self.children(here)) - found
            found |= new
            todo += new
        return found

    def select(self, patterns: Iterable[str]) -> tuple[str, ...]:
        """`a`, `+a` with its ancestors, `a+` with its descendants, `tag:x`; several, separated by blanks or commas.

        A node with several targets is all of them; `a.table` is one.
        """
        words = [w for p in patterns for w in p.replace(",", " ").split()]
        if not words:
            return self.order
        chosen: set[str] = set()
        for word in words:
            chosen |= self._match(word)
        return tuple(n for n in self.order if n in chosen)

    def _match(self, word: str) -> set[str]:
        up, down, core = word.startswith("+"), word.endswith("+"), word.strip("+")
        if core.startswith("tag:"):
            tag = core.removeprefix("tag:")
            found = {n for n, tags in self.tags.items() if tag in tags}
            known = {f"tag:{t}" for tags in self.tags.values() for t in tags}
        else:
            found = set(self.groups.get(core, {core} & set(self.order)))
            known = set(self.order)
        if not found:
            raise UsageError(
                f"--select: nothing is called `{core}`",
                hint=did_you_mean(core, known)
                or f"there are: {', '.join(sorted(known)) or 'none'}",
            )
        return found.union(
            *(self.reach(n, up=True) for n in found if up),
            *(self.reach(n, up=False) for n in found if down),
        )


def build(project: Project) -> Graph:
    """The graph of a project; a cycle is an error that names its nodes.

    The targets of one node go one after the other, and whoever waits for one of them waits for all: if a later one
    fails, those before it are taken back, and nobody may have built on them.
    """
    nodes = project.config.nodes
    writers = {locate(project, n.write.connection, n.write.table): n.name for n in nodes}
    before = {
        name: previous for names in project.groups.values() for previous, name in pairwise(names)
    }
    parents = {}
    for node in nodes:
        found = {
            name for parent in _parents(project, node, writers) for name in project.together(parent)
        }
        parents[node.name] = frozenset(
            found | {before[node.name]} if node.name in before else found
        )
    tags = {n.name: frozenset(n.tags) for n in nodes}
    return Graph(_ordered(project, parents), parents, tags, project.groups)


def reads(node: NodeConfig) -> list[tuple[str, str]]:
    """The (connection, table) pairs that a node reads as tables."""
    sources = [node.read] if node.read else node.sources
    return [(s.connection, s.table) for s in sources if s.table]


def _parents(project: Project, node: NodeConfig, writers: Mapping[str, str]) -> frozenset[str]:
    lakes = {name for name, c in project.config.connections.items() if c.type == "lake"}
    read = {writers.get(locate(project, c, t)) for c, t in reads(node) if c in lakes}
    looked = {writers.get(locate(project, c, t)) for c, t in related(node)} - {node.name}
    dimensions = {key.dimension for key in node.foreign_keys}
    return frozenset({n for n in read | looked if n} | set(node.depends_on) | dimensions)


def _ordered(project: Project, parents: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    order: list[str] = []
    left = list(parents)
    while left:
        ready = [n for n in left if parents[n] <= set(order)]
        if not ready:
            raise ConfigError(_cycle(project, left, parents))
        order += ready
        left = [n for n in left if n not in ready]
    return tuple(order)


def _cycle(project: Project, left: list[str], parents: Mapping[str, frozenset[str]]) -> Problem:
    path = [left[0]]
    while path[-1] not in path[:-1]:
        path.append(next(p for p in sorted(parents[path[-1]]) if p in left))
    circle = path[path.index(path[-1]) :][::-1]
    return project.positions.problem(
        ("nodes", project.together(circle[0])[0]),
        f"these nodes wait for each other: {' → '.join(circle)}",
        hint="break the circle at one of them",
    )
