"""What people ask for, on paper: `undo`, `reject` and `approve` beside the runners of testing/protocol.py.

The first run has filled both tables, and holds deletes of the first one. An undo settles both nodes, plans, and takes
the last node back first; a decision is about the first node. Each looks once more after it has read the records, and an
undo commits on exactly the table that it looked at: others, who keep to no protocol, may commit too.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.testing.protocol import (
    FIRST,
    NODES,
    RULES,
    Ending,
    Protocol,
    Runner,
    World,
    goes,
    stops,
)

PEOPLE = ("look_again", "base", "carried_over")


@dataclass(frozen=True)
class People(Protocol):
    """The protocol with those who take back and decide."""

    rules: frozenset[str] = frozenset((*RULES, *PEOPLE))

    def wrong_besides(self, w: World, *, over: bool = False) -> str | None:
        """Nobody else's commit is destroyed by an undo, and what is held is decided once, as the table shows it."""
        for node in range(NODES):
            undone = max((i for i, c in enumerate(w.tables[node]) if c.does == "undo"), default=0)
            if lost := {c.run for c in w.tables[node][:undone]} - {FIRST}:
                return f"node {node}: an undo has destroyed what run {min(lost)} committed"
            told, shown = (
                self.decided(w, node),
                [c.does for c in w.tables[node] if c.does == "approve"],
            )
            if len(told) > 1:
                return f"node {node}: what was held is decided twice: {told}"
            if over and shown != [d for d in told if d == "approve"]:
                return f"node {node}: the history says {told}, the table shows {shown}"
            if not told and not _undone(w, node) and any(e.does == "reject" for e in w.log[node]):
                return f"node {node}: what was rejected is open again"
        return None

    def decided(self, w: World, node: int) -> list[str]:
        """What became of the deletes that the first run holds; nothing as long as nobody has decided."""
        return [e.does for e in self._counting(w, node) if e.does in ("approve", "reject")]

    def _counting(self, w: World, node: int) -> list[Ending]:
        """The endings of the history that were not outdone: a commit takes back a quiet ending of its number.

        What was rejected there then belongs to the batch of the commit, unless that has approved it.
        """
        made = {e.batch: e.does for e in w.log[node] if e.data}
        carried = [b for b, does in made.items() if does == "run" and "carried_over" in self.rules]
        return [
            e
            for e in w.log[node]
            if e.data or e.batch not in made or (e.does == "reject" and e.batch in carried)
        ]

    def _describe(self, w: World, i: int, r: Runner) -> World:
        """As every runner; then a person's command has its own way to the commit."""
        after = super()._describe(w, i, r)
        mine = after.runners[i]
        if r.does == "run" or mine.at != "announce":
            return after
        if r.does == "undo" and r.todo is None:  # both nodes are settled first
            more = r.node + 1 < NODES
            return goes(
                w, i, r._replace(node=r.node + 1, at="look") if more else r._replace(at="plan")
            )
        return goes(w, i, mine._replace(at="still", base=len(w.tables[r.node])))

    def _plan(self, w: World, i: int, r: Runner) -> World:
        """What the run made and nobody has undone, the last node first; nothing when something is in the way."""
        todo = tuple(n for n in reversed(range(NODES)) if not _undone(w, n))
        if not todo or any(_in_the_way(w, n, todo) for n in todo):
            return goes(w, i, r._replace(at="done"))
        return goes(w, i, r._replace(node=todo[0], at="look", todo=todo))

    def _still(self, w: World, i: int, r: Runner) -> World:
        """Is it still so? Whatever comes after this takes the number, or the version, of this one."""
        if r.does == "undo":
            if "look_again" in self.rules and (
                _undone(w, r.node) or _in_the_way(w, r.node, r.todo or ())
            ):
                return stops(w, i, r)
            return goes(w, i, r._replace(at="announce", mark=0))
        if "look_again" in self.rules and self.decided(w, r.node):
            return stops(w, i, r)
        return goes(
            w, i, r._replace(at="announce" if r.does == "approve" else "log", mark=r.seen.mark)
        )

    def _announce(self, w: World, i: int, r: Runner) -> World:
        after = super()._announce(w, i, r)
        mine = after.runners[i]
        return (
            goes(after, i, mine._replace(at="commit"))
            if r.does == "undo" and mine.at == "read"
            else after
        )

    def _commit(self, w: World, i: int, r: Runner) -> World:
        if r.does == "undo" and "base" in self.rules and len(w.tables[r.node]) != r.base:
            return stops(w, i, r)
        return super()._commit(w, i, r)

    def _put(self, w: World, i: int, r: Runner) -> World:
        """Whoever has finished the record of somebody else looks again."""
        after = super()._put(w, i, r)
        return (
            after
            if r.does == "run" or not r.found
            else goes(after, i, r._replace(at="look", found=None))
        )

    def _sweep(self, w: World, i: int, r: Runner) -> World:
        after = super()._sweep(w, i, r)
        if r.does == "run":
            return after
        left = (r.todo or ())[1:]
        return goes(
            after,
            i,
            Runner(r.run, left[0], does=r.does, todo=left) if left else r._replace(at="done"),
        )


def _undone(w: World, node: int) -> bool:
    """Does the history tell that the first run was taken back here?"""
    return any(e.does == "undo" for e in w.log[node])


def _in_the_way(w: World, node: int, todo: tuple[int, ...]) -> bool:
    """Somebody has committed since, or a later run has consumed what the first one made, and is not undone itself."""
    if any(c.run != FIRST for c in w.tables[node]):
        return True
    consumers = [
        (n, e) for n in range(node + 1, NODES) for e in w.log[n] if e.data and e.does == "run"
    ]
    return any(e.run != FIRST or not (n in todo or _undone(w, n)) for n, e in consumers)
