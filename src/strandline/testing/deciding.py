"""What people ask for, on paper: `undo`, `reject` and `approve` beside the runners of testing/protocol.py.

The first run has filled both tables, and holds a delete of the first one. A decision is a note on (table, key): one
conditional write, before anything else, that whoever comes second sees. A rejection is that note and nothing more; an
approval is applied by the batch that follows on it, be it the person's own run or any later one. An undo settles both
lines, writes down which of them it takes back, and takes the last one back first; whoever asks again goes on with that
list. It looks once more after it has read the records, and commits on exactly the table that it looked at: other
writers, who keep to no protocol, may commit too.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.testing.protocol import (
    FIRST,
    LINES,
    RULES,
    Protocol,
    Runner,
    World,
    commits_of,
    goes,
    stops,
)

PEOPLE = ("look_again", "base", "decided_once", "still_held", "list_first")


@dataclass(frozen=True)
class People(Protocol):
    """The protocol with those who take back and decide."""

    rules: frozenset[str] = frozenset((*RULES, *PEOPLE))

    def wrong_besides(self, w: World, *, over: bool = False) -> str | None:
        """Nothing of others is destroyed by an undo, and what is held is decided once, as the table shows it."""
        for line in range(LINES):
            there = commits_of(w, line)
            undone = max((i for i, c in enumerate(there) if c.does == "undo"), default=0)
            if lost := {c.run for c in there[:undone] if c.does != "undo"} - {FIRST}:
                return f"line {line}: an undo has destroyed what run {min(lost)} committed"
            if undone and line not in (w.undoing or ()):
                return f"line {line}: is taken back, and no list says so"
        decisions = {does for does, _ in w.decided}
        if len(decisions) > 1:
            return f"what was held is decided twice: {sorted(decisions)}"
        shown = [c.does for c in commits_of(w, 0) if c.does in ("approve", "undo")]
        if "approve" in shown and (shown.count("approve") > 1 or decisions != {"approve"}):
            return f"decided was {sorted(decisions)}, and the table shows {shown}"
        if shown[:2] == ["undo", "approve"]:
            return "what an undone run held is approved"
        if over and decisions == {"approve"} and not shown:
            return "an approval was never applied"
        return None

    def _look(self, w: World, i: int, r: Runner) -> World:
        """A person who decides writes that down first; then an approval is a run like any other."""
        if r.does not in ("approve", "reject"):
            return super()._look(w, i, r)
        if "decided_once" in self.rules:
            return goes(w, i, r._replace(at="decide"))
        held = _held(w)
        return goes(w, i, r._replace(at="decide", base=int(held)))

    def _decide(self, w: World, i: int, r: Runner) -> World:
        """The note lands only while the delete is held and nothing else is decided; approving twice is one approval."""
        held = _held(w) if "decided_once" in self.rules else bool(r.base)
        if (r.does, held) == ("approve", False) and ("approve" in {d for d, _ in w.decided}):
            return goes(w, i, r._replace(at="look", does="run"))
        if not held:
            return goes(w, i, r._replace(at="done"))
        w = w._replace(decided=(*w.decided, (r.does, r.run)))
        after = "done" if r.does == "reject" else "look"
        return goes(w, i, r._replace(at=after, does="run" if r.does == "approve" else r.does))

    def _describe(self, w: World, i: int, r: Runner) -> World:
        """As every runner; then an undo has its own way to the commit."""
        after = super()._describe(w, i, r)
        mine = after.runners[i]
        if r.does != "undo" or mine.at != "announce":
            return after
        if r.todo is None:  # both lines are settled first
            more = r.line + 1 < LINES
            settled = r._replace(line=r.line + 1, at="look") if more else r._replace(at="plan")
            return goes(w, i, settled)
        return goes(w, i, mine._replace(at="still", base=len(commits_of(w, r.line))))

    def _plan(self, w: World, i: int, r: Runner) -> World:
        """The list that is there, as far as it is not done; else what the run made, the last line first."""
        known = w.undoing or tuple(reversed(range(LINES)))
        todo = tuple(n for n in known if not _undone(w, n))
        if not todo or any(_in_the_way(w, n, todo) for n in todo):
            return goes(w, i, r._replace(at="done"))
        w = w._replace(undoing=known) if "list_first" in self.rules else w
        return goes(w, i, r._replace(line=todo[0], at="look", todo=todo))

    def _still(self, w: World, i: int, r: Runner) -> World:
        """Is it still so? Whatever comes after this takes the number, or the version, of this one."""
        gone = _undone(w, r.line) or _in_the_way(w, r.line, r.todo or ())
        if "look_again" in self.rules and gone:
            return stops(w, i, r)
        return goes(w, i, r._replace(at="announce", mark=0))

    def _announce(self, w: World, i: int, r: Runner) -> World:
        after = super()._announce(w, i, r)
        mine = after.runners[i]
        return goes(after, i, mine._replace(at="commit")) if r.does == "undo" else after

    def _read(self, w: World, i: int, r: Runner) -> World:
        """The delete that a person has approved is applied by the next batch that looks for it, if it is still held."""
        after = super()._read(w, i, r)
        if r.line or r.does != "run" or not _approved(w):
            return after
        open_ = not _undone(w, 0) or "still_held" not in self.rules
        return goes(after, i, after.runners[i]._replace(applies=open_))

    def _commit(self, w: World, i: int, r: Runner) -> World:
        if r.does == "undo" and "base" in self.rules and len(commits_of(w, r.line)) != r.base:
            return stops(w, i, r)
        return super()._commit(w, i, r)

    def _sweep(self, w: World, i: int, r: Runner) -> World:
        after = super()._sweep(w, i, r)
        if r.does == "run":
            return after
        left = (r.todo or ())[1:]
        if "list_first" not in self.rules:
            after = after._replace(undoing=tuple(reversed(range(LINES))))
        new = Runner(r.run, left[0], does=r.does, todo=left) if left else r._replace(at="done")
        return goes(after, i, new)


def _held(w: World) -> bool:
    """Is the delete that the first run holds open? Not when it was decided on, nor when that run is undone."""
    return not w.decided and not _undone(w, 0)


def _approved(w: World) -> bool:
    """Is there an approval that the table does not show yet?"""
    applied = any(c.does == "approve" for c in commits_of(w, 0))
    return any(does == "approve" for does, _ in w.decided) and not applied


def _undone(w: World, line: int) -> bool:
    """Does the history tell that the first run was taken back here?"""
    return any(e.does == "undo" for e in w.log[line])


def _in_the_way(w: World, line: int, todo: tuple[int, ...]) -> bool:
    """Another writer or run has committed since, or a later run has consumed what the first one made."""
    if any(c.run != FIRST for c in commits_of(w, line)):
        return True
    consumers = [
        (n, e) for n in range(line + 1, LINES) for e in w.log[n] if e.data and e.does == "run"
    ]
    return any(e.run != FIRST or not (n in todo or _undone(w, n)) for n, e in consumers)
