"""The protocol of one batch on paper: every order in which two runners can take its steps, and die between them.

Two nodes in a row append what is new: the first copies a source, the second copies the first one's table. A runner
takes one atomic step at a time, as the code does (docs/exactly-once.md names the function of each): look at the
records, look into the table, announce, read, stage, commit with the token, read back, log, record, sweep. Between any
two steps the other runner may go on, the source may grow, and the runner may die; a dead one is followed by a new run.
`check` visits every state that can be reached, and returns the shortest way to one that is wrong.

`rules` leaves one rule of the protocol out at a time: without any of them, there is a way to a wrong state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

RULES = (
    "token",
    "read_back",
    "one_ending",
    "monotone",
    "recover",
    "heal",
    "data_beats_quiet",
    "number_of_the_table",
)
NODES = 2
FIRST, FOREIGN = 1, -1  # the run that has been before, and whoever does not keep to the protocol


class Commit(NamedTuple):
    """A data commit: its number in this table, who made it, its batch, how far it has read, and its rows."""

    number: int
    run: int
    batch: int
    mark: int
    rows: tuple[int, ...]
    does: str = "run"


class Ending(NamedTuple):
    """A row of `etl_runs` that counts, and the number of the newest commit that its runner knew of or made."""

    batch: int
    run: int
    mark: int
    data: bool
    known: int
    does: str = "run"


class Control(NamedTuple):
    """The row of `etl_control`: the newest finished batch, the newest commit known, how far it has read; who works."""

    finished: int = 0
    known: int = 0
    mark: int = 0
    running: int = 0


class Runner(NamedTuple):
    """One run of one process: where it stands in which node, and what it knows."""

    run: int
    node: int = 0
    at: str = "look"
    seen: Control = Control()
    batch: int = 0
    number: int = 0
    mark: int = 0
    rows: tuple[int, ...] = ()
    found: Ending | None = None
    does: str = "run"  # or what a person asks for: see testing/deciding.py
    base: int = 0
    todo: tuple[int, ...] | None = None


class World(NamedTuple):
    """Everything there is."""

    source: int
    tables: tuple[tuple[Commit, ...], ...]
    control: tuple[Control, ...]
    log: tuple[tuple[Ending, ...], ...]
    staged: frozenset[tuple[int, int]]  # run, node
    runners: tuple[Runner, ...]
    next_run: int
    crashes: int
    again: int
    grows: int
    fenced: frozenset[tuple[int, int]] = frozenset()  # run, node
    foreign: int = 0  # how often somebody else may commit


@dataclass(frozen=True)
class Protocol:
    """The steps, as far as their rules are kept. `skips`: a number that is taken is skipped silently, as Spark does."""

    rules: frozenset[str] = frozenset(RULES)
    skips: bool = False

    def step(self, w: World, i: int) -> World | None:
        """The world after the next step of one runner; None when it has nothing left to do."""
        r = w.runners[i]
        if r.at in ("done", "dead"):
            return None
        return getattr(self, f"_{r.at}")(w, i, r)  # type: ignore[no-any-return]

    def wrong_besides(self, w: World, *, over: bool = False) -> str | None:  # noqa: ARG002 – for those who add actors
        """What else must never be, and what must not be once all is over."""
        return None

    def _look(self, w: World, i: int, r: Runner) -> World:
        return goes(w, i, r._replace(at="describe", seen=w.control[r.node]))

    def _describe(self, w: World, i: int, r: Runner) -> World:
        """What does the table hold that the records do not know, and what does the history know that they do not?"""
        seen = r.seen
        commit = newest(w, r.node)
        if commit and "recover" in self.rules and commit.number > seen.known:
            found = Ending(commit.batch, commit.run, commit.mark, True, commit.number, commit.does)
            return goes(w, i, r._replace(at="log", found=found))
        ended = max((e for e in w.log[r.node]), key=lambda e: (e.batch, e.data), default=None)
        if ended and "heal" in self.rules and ended.batch > seen.finished:
            return goes(w, i, r._replace(at="put", found=ended))
        batch = seen.finished + 1
        number = (
            (commit.number if commit else 0) + 1 if "number_of_the_table" in self.rules else batch
        )
        return goes(w, i, r._replace(at="announce", batch=batch, number=number))

    def _announce(self, w: World, i: int, r: Runner) -> World:
        now = w.control[r.node]
        if "monotone" in self.rules and now.finished >= r.batch:
            return stops(w, i, r)
        told = now._replace(running=r.batch)
        if "monotone" not in self.rules:  # the row is replaced by what this runner remembers
            told = r.seen._replace(running=r.batch)
        return goes(_with(w, "control", r.node, told), i, r._replace(at="read"))

    def _read(self, w: World, i: int, r: Runner) -> World:
        there = tuple(range(1, w.source + 1)) if r.node == 0 else rows_of(w, 0)
        new = tuple(sorted(x for x in there if x > r.seen.mark))
        mark = max((*new, r.seen.mark))
        return goes(w, i, r._replace(at="stage", rows=new, mark=mark))

    def _stage(self, w: World, i: int, r: Runner) -> World:
        w = w._replace(staged=w.staged | {(r.run, r.node)})
        return goes(w, i, r._replace(at="commit" if commits(r) else "log"))

    def _commit(self, w: World, i: int, r: Runner) -> World:
        table, last = w.tables[r.node], newest(w, r.node)
        if "token" in self.rules and last and last.number >= r.number:
            return goes(w, i, r._replace(at="read_back")) if self.skips else stops(w, i, r)
        w = _with(
            w, "tables", r.node, (*table, Commit(r.number, r.run, r.batch, r.mark, r.rows, r.does))
        )
        return goes(w, i, r._replace(at="read_back"))

    def _read_back(self, w: World, i: int, r: Runner) -> World:
        mine = [c for c in w.tables[r.node] if (c.number, c.run) == (r.number, r.run)]
        if "read_back" in self.rules and not mine:
            return stops(w, i, r)
        return goes(w, i, r._replace(at="log"))

    def _ending(self, r: Runner) -> Ending:
        """What a runner has to record: what it found, or its own batch."""
        data = commits(r)
        return r.found or Ending(
            r.batch, r.run, r.mark, data, r.number if data else r.seen.known, r.does
        )

    def _log(self, w: World, i: int, r: Runner) -> World:
        """Of one number one ending counts; what has committed is there, whatever was told of its number."""
        mine = self._ending(r)
        there = w.log[r.node]
        if any((e.batch, e.run) == (mine.batch, mine.run) for e in there):
            return goes(w, i, r._replace(at="put"))
        taken = any(e.batch >= mine.batch for e in there)
        if (
            "one_ending" in self.rules
            and taken
            and not (mine.data and "data_beats_quiet" in self.rules)
        ):
            return stops(w, i, r)
        return goes(_with(w, "log", r.node, (*there, mine)), i, r._replace(at="put"))

    def _put(self, w: World, i: int, r: Runner) -> World:
        """The record goes forward, and says what the newest commit covered, or a quiet ending that knew of it."""
        now, mine = w.control[r.node], self._ending(r)
        if "monotone" in self.rules:
            later = (
                mine.known > now.known
                if mine.data
                else (mine.known == now.known and mine.batch > now.finished)
            )
            if "data_beats_quiet" not in self.rules:
                later = mine.batch > now.finished
        else:
            later = True
        mark, known = (mine.mark, mine.known) if later else (now.mark, now.known)
        finished = max(now.finished, mine.batch) if "monotone" in self.rules else mine.batch
        running = 0 if now.running <= finished else now.running
        w = _with(w, "control", r.node, Control(finished, known, mark, running))
        return goes(w, i, r._replace(at="sweep"))

    def _sweep(self, w: World, i: int, r: Runner) -> World:
        """Its own files, and those of the dead."""
        alive = {x.run for x in w.runners if x.at not in ("done", "dead")}
        kept = frozenset(s for s in w.staged if s[0] in alive and s != (r.run, r.node))
        w = w._replace(staged=kept)
        return goes(
            w, i, Runner(r.run, r.node + 1) if r.node + 1 < NODES else r._replace(at="done")
        )


def newest(w: World, node: int) -> Commit | None:
    """The newest commit of ours."""
    for commit in reversed(w.tables[node]):
        if commit.run != FOREIGN:
            return commit
    return None


def commits(r: Runner) -> bool:
    """Does its batch change the table? What a person takes back or approves does."""
    return bool(r.rows) or r.does in ("undo", "approve")


def rows_of(w: World, node: int) -> tuple[int, ...]:
    """The rows of a table; an undo puts it back to before everything."""
    rows: tuple[int, ...] = ()
    for commit in w.tables[node]:
        rows = () if commit.does == "undo" else rows + commit.rows
    return rows


def goes(w: World, i: int, r: Runner) -> World:
    return w._replace(runners=(*w.runners[:i], r, *w.runners[i + 1 :]))


def _with(w: World, field: str, node: int, value: object) -> World:
    old = getattr(w, field)
    changed: dict[str, Any] = {field: (*old[:node], value, *old[node + 1 :])}
    return w._replace(**changed)


def stops(w: World, i: int, r: Runner) -> World:
    """It stops, with its descendants, and takes its files along."""
    w = w._replace(fenced=w.fenced | {(r.run, r.node)}, staged=w.staged - {(r.run, r.node)})
    return goes(w, i, r._replace(at="done"))


def start(crashes: int = 0, again: int = 0, does: tuple[str, str] = ("run", "run")) -> World:
    """Two runners before an empty lake and a source of one row; `again` more runs may follow when one has ended.

    With those, and for what a person asks for, a first run has already been: what matters there is who comes second,
    not who comes first.
    """
    runners = (Runner(2, does=does[0]), Runner(3, does=does[1]))
    if not again and does == ("run", "run"):
        return World(
            1, ((), ()), (Control(),) * 2, ((), ()), frozenset(), runners, 4, crashes, again, 1
        )
    made, told = ((Commit(1, FIRST, 1, 1, (1,)),),) * 2, ((Ending(1, FIRST, 1, True, 1),),) * 2
    return World(1, made, (Control(1, 1, 1),) * 2, told, frozenset(), runners, 4, crashes, again, 1)


def moves(protocol: Protocol, w: World) -> Iterator[tuple[str, World]]:
    """Whatever can happen next."""
    for i, r in enumerate(w.runners):
        after = protocol.step(w, i)
        if after is not None:
            yield f"{r.does} {r.run}, node {r.node}: {r.at}", after
            if w.crashes:
                dead = goes(w, i, r._replace(at="dead"))
                yield (
                    f"{r.does} {r.run} dies before {r.at} of node {r.node}",
                    dead._replace(crashes=w.crashes - 1),
                )
        elif r.at == "dead" or w.again:
            left = w.again if r.at == "dead" else w.again - 1
            for does in sorted({"run", r.does}):  # a person may ask again, or leave it
                new = goes(w, i, Runner(w.next_run, does=does))._replace(next_run=w.next_run + 1)
                yield f"{does} {w.next_run} starts after {r.does} {r.run}", new._replace(again=left)
    if w.grows:
        yield "the source grows", w._replace(source=w.source + 1, grows=w.grows - 1)
    for node in range(NODES) if w.foreign else ():
        theirs = w.tables[node][-1]._replace(run=FOREIGN, rows=(), does="run")
        yield (
            "somebody else commits",
            _with(w, "tables", node, (*w.tables[node], theirs))._replace(foreign=0),
        )


def wrong(w: World) -> str | None:
    """What must never be, at any moment."""
    for node in range(NODES):
        rows = rows_of(w, node)
        if len(rows) != len(set(rows)):
            return f"node {node}: a row is there twice: {rows}"
        losers = {run for run, n in w.fenced if n == node}
        if guilty := losers & {c.run for c in w.tables[node]}:
            return f"node {node}: run {min(guilty)} was told that it has written nothing, and has"
        quiet = [e.batch for e in w.log[node] if not e.data]
        if len(quiet) != len(set(quiet)):
            return f"node {node}: two runs have ended one batch without a commit: {w.log[node]}"
    return None


def stepped_back(before: World, after: World) -> str | None:
    """A record only ever goes forward."""
    for node, (old, new) in enumerate(zip(before.control, after.control, strict=True)):
        made = newest(after, node)
        undone = made is not None and made.does == "undo" and made.number == new.known > old.known
        if (
            new.finished < old.finished
            or (new.mark < old.mark and not undone)
            or new.known < old.known
        ):
            return f"node {node}: the record went from {old} back to {new}"
    return None


def wrong_in_the_end(protocol: Protocol, w: World) -> str | None:
    """After everybody has stopped, and two undisturbed runs: nothing lost, and the records agree with the tables."""
    for _ in range(3):  # the first may only finish records, of one node and then of the next
        w = w._replace(runners=(Runner(w.next_run),), next_run=w.next_run + 1, crashes=0, again=0)
        while (after := protocol.step(w, 0)) is not None:
            w = after
    everything = tuple(range(1, w.source + 1))
    if found := wrong(w) or protocol.wrong_besides(w, over=True):
        return found
    for node in range(NODES):
        if (rows := tuple(sorted(rows_of(w, node)))) != everything:
            return f"node {node}: the table has {rows}, the source {everything}"
        made = {(c.batch, c.run) for c in w.tables[node] if c.run != FOREIGN}
        logged = [(e.batch, e.run) for e in w.log[node] if e.data]
        if sorted(logged) != sorted(made):
            return (
                f"node {node}: the history tells of {sorted(logged)}, the table of {sorted(made)}"
            )
        if w.control[node].mark != max(everything) or w.control[node].running:
            return f"node {node}: the record says {w.control[node]}"
    return f"files of dead batches are left: {sorted(w.staged)}" if w.staged else None


@dataclass(frozen=True)
class Verdict:
    """How many states there are, and the shortest way to a wrong one."""

    states: int
    fault: str | None = None
    way: tuple[str, ...] = ()


def check(protocol: Protocol, first: World) -> Verdict:
    """Visit every state that can be reached, the nearest first."""
    came: dict[World, tuple[World, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        w = waiting.popleft()
        fault = wrong(w) or protocol.wrong_besides(w)
        if fault is None and all(r.at == "done" for r in w.runners):
            fault = wrong_in_the_end(protocol, w)
        if fault is not None:
            return Verdict(len(came), fault, _way(came, w))
        for name, after in moves(protocol, w):
            if after not in came:
                came[after] = (w, name)
                waiting.append(after)
                if back := stepped_back(w, after):
                    return Verdict(len(came), back, _way(came, after))
    return Verdict(len(came))


def _way(came: dict[World, tuple[World, str] | None], w: World) -> tuple[str, ...]:
    steps: list[str] = []
    while (before := came[w]) is not None:
        w, name = before
        steps.append(name)
    return tuple(reversed(steps))
