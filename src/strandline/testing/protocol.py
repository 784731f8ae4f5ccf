"""The protocol of one batch on paper: every order in which two runners can take its steps, and die between them.

A *line* is a table and one source of it. Two lines either follow each other, the second one copying the first one's
table, or feed one table from two sources. Each appends what is new. A runner takes one atomic step at a time, as the
code does (docs/exactly-once.md names the function of each): look at the record, look into the table, announce, read,
stage, commit under the table's next number, read back, put the record, log, sweep. Between any two steps the other
runner may go on, a source may grow, and the runner may die; a dead one is followed by a new run.
`check` visits every state that can be reached, and returns the shortest way to one that is wrong.

`rules` leaves one rule of the protocol out at a time: without any of them, there is a way to a wrong state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

RULES = (
    "token",  # of one number of a table, one commit lands
    "read_back",  # where a taken number is skipped without an error, the runner looks whose commit it is
    "number_of_the_table",  # numbers count the commits of the table, whichever of its sources they came from
    "compare_and_set",  # a batch without a commit puts its record only over the one that it has looked at
    "forward",  # a batch with a commit puts its record only over that of an older commit
    "recover",  # a commit that the record does not know is recorded first
    "own_source",  # and it is one from the same source
    "heal",  # an ending that the history does not know is logged first
    "again",  # who loses to another source of the table tries again
)
LINES = 2
FIRST, FOREIGN = (
    1,
    -1,
)  # the run that has been before, and a writer that does not keep to the protocol
CHAIN, SHARED = (0, 1), (0, 0)
"""The table of each line: the second reads what the first writes, or both write one table."""


class Commit(NamedTuple):
    """A data commit: its number in this table, who made it, from which source, how far it has read, and its rows."""

    number: int
    run: int
    line: int
    mark: int
    rows: tuple[int, ...]
    does: str = "run"


class Ending(NamedTuple):
    """A row of `etl_runs`."""

    run: int
    mark: int
    data: bool
    does: str = "run"


class Control(NamedTuple):
    """The row of `etl_control`: how often it was put, the newest commit known, how far it has read, how it ended."""

    revision: int = 0
    known: int = 0
    mark: int = 0
    last: Ending | None = None
    running: int = 0


class Runner(NamedTuple):
    """One run of one process: where it stands in which line, and what it knows."""

    run: int
    line: int = 0
    at: str = "look"
    seen: Control = Control()
    number: int = 0
    mark: int = 0
    rows: tuple[int, ...] = ()
    found: Commit | None = None
    does: str = "run"  # or what a person asks for: see testing/deciding.py
    applies: bool = False  # its batch deletes what a person has approved
    base: int = 0
    todo: tuple[int, ...] | None = None


class World(NamedTuple):
    """Everything there is."""

    sources: tuple[int, int]  # how many rows each source of its own has
    table: tuple[int, int]  # of each line
    tables: tuple[tuple[Commit, ...], ...]
    control: tuple[Control, ...]
    log: tuple[tuple[Ending, ...], ...]
    staged: frozenset[tuple[int, int]]  # run, line
    runners: tuple[Runner, ...]
    next_run: int
    crashes: int
    again: int
    grows: int
    fenced: frozenset[tuple[int, int]] = frozenset()  # run, line
    foreign: int = 0  # how often another writer may commit
    decided: tuple[
        tuple[str, int], ...
    ] = ()  # what a person has decided on the held delete, and the run
    undoing: tuple[int, ...] | None = (
        None  # the lines that an undo of the first run has set out to take back
    )


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
        return goes(w, i, r._replace(at="describe", seen=w.control[r.line], found=None))

    def _describe(self, w: World, i: int, r: Runner) -> World:
        """What does the table hold that the record does not know, and the record that the history does not?"""
        seen = r.seen
        mine = newest(w, r.line) if "own_source" in self.rules else newest_of_table(w, r.line)
        if mine and "recover" in self.rules and mine.number > seen.known:
            return goes(w, i, r._replace(at="put", found=mine))
        if seen.last and "heal" in self.rules and not _logged(w, r.line, seen.last):
            return goes(w, i, r._replace(at="log"))
        last = newest_of_table(w, r.line)
        number = (last.number if last else 0) + 1
        if "number_of_the_table" not in self.rules:
            number = len([c for c in commits_of(w, r.line) if c.line == r.line]) + 1
        return goes(w, i, r._replace(at="announce", number=number))

    def _announce(self, w: World, i: int, r: Runner) -> World:
        """A label for people: nothing depends on it."""
        told = w.control[r.line]._replace(running=r.run)
        return goes(_with(w, "control", r.line, told), i, r._replace(at="read"))

    def _read(self, w: World, i: int, r: Runner) -> World:
        there = rows_of(w, 0) if r.line and w.table == CHAIN else source_rows(w, r.line)
        new = tuple(sorted(x for x in there if x > r.seen.mark))
        return goes(w, i, r._replace(at="stage", rows=new, mark=max((*new, r.seen.mark))))

    def _stage(self, w: World, i: int, r: Runner) -> World:
        w = w._replace(staged=w.staged | {(r.run, r.line)})
        return goes(w, i, r._replace(at="commit" if commits(r) else "put"))

    def _commit(self, w: World, i: int, r: Runner) -> World:
        last = newest_of_table(w, r.line)
        if "token" in self.rules and last and last.number >= r.number:
            return goes(w, i, r._replace(at="read_back")) if self.skips else self._lost(w, i, r)
        made = Commit(r.number, r.run, r.line, r.mark, r.rows, _does(r))
        w = _with(w, "tables", w.table[r.line], (*commits_of(w, r.line), made))
        return goes(w, i, r._replace(at="read_back"))

    def _read_back(self, w: World, i: int, r: Runner) -> World:
        there = [c for c in commits_of(w, r.line) if (c.number, c.run) == (r.number, r.run)]
        if "read_back" in self.rules and not any(c.line == r.line for c in there):
            return self._lost(w, i, r)
        return goes(w, i, r._replace(at="put"))

    def _lost(self, w: World, i: int, r: Runner) -> World:
        """Another runner has this number: it has done the same, or it has fed the table from its other source."""
        theirs = [c for c in commits_of(w, r.line) if c.number >= r.number and c.line == r.line]
        if theirs or r.does == "undo" or "again" not in self.rules:
            return stops(w, i, r)
        w = w._replace(staged=w.staged - {(r.run, r.line)})
        return goes(w, i, r._replace(at="look", rows=()))

    def _put(self, w: World, i: int, r: Runner) -> World:
        """The record of a commit goes forward; without one, the record looked at is replaced or none."""
        now = w.control[r.line]
        if r.found or commits(r):
            made = r.found or Commit(r.number, r.run, r.line, r.mark, r.rows, _does(r))
            if made.number <= now.known and "forward" in self.rules:
                return goes(w, i, r._replace(at="log"))
            ending = Ending(made.run, made.mark, True, made.does)
            new = Control(now.revision + 1, made.number, made.mark, ending)
        else:
            if now.revision != r.seen.revision and "compare_and_set" in self.rules:
                return stops(w, i, r)
            ending = Ending(r.run, r.mark, False, r.does)
            new = Control(r.seen.revision + 1, r.seen.known, r.mark, ending)
        return goes(_with(w, "control", r.line, new), i, r._replace(at="log"))

    def _log(self, w: World, i: int, r: Runner) -> World:
        """What was found is logged for its run, and looked at again; else a runner logs its own batch."""
        mine = _ending(r)
        there = w.log[r.line]
        if not _logged(w, r.line, mine):
            w = _with(w, "log", r.line, (*there, mine))
        return goes(w, i, r._replace(at="sweep" if mine.run == r.run else "look"))

    def _sweep(self, w: World, i: int, r: Runner) -> World:
        """Its own files, and those of the dead."""
        alive = {x.run for x in w.runners if x.at not in ("done", "dead")}
        kept = frozenset(s for s in w.staged if s[0] in alive and s != (r.run, r.line))
        w = w._replace(staged=kept)
        return goes(
            w, i, Runner(r.run, r.line + 1) if r.line + 1 < LINES else r._replace(at="done")
        )


def _ending(r: Runner) -> Ending:
    """What a runner has to log: what it found in the table or in the record, or its own batch."""
    if r.found:
        return Ending(r.found.run, r.found.mark, True, r.found.does)
    if r.number == 0 and r.seen.last:  # it has not begun a batch of its own
        return r.seen.last
    return Ending(r.run, r.mark, commits(r), _does(r))


def _does(r: Runner) -> str:
    return "approve" if r.applies else r.does


def _logged(w: World, line: int, ending: Ending) -> bool:
    return any((e.run, e.data) == (ending.run, ending.data) for e in w.log[line])


def commits_of(w: World, line: int) -> tuple[Commit, ...]:
    """The commits of the table of a line."""
    return w.tables[w.table[line]]


def newest_of_table(w: World, line: int) -> Commit | None:
    """The newest commit of ours to the table of a line."""
    return max((c for c in commits_of(w, line) if c.run != FOREIGN), default=None)


def newest(w: World, line: int) -> Commit | None:
    """The newest commit of ours from the source of a line."""
    mine = (c for c in commits_of(w, line) if c.run != FOREIGN and c.line == line)
    return max(mine, default=None)


def commits(r: Runner) -> bool:
    """Does its batch change the table? What a person takes back or approves does."""
    return bool(r.rows) or r.does == "undo" or r.applies


def source_rows(w: World, line: int) -> tuple[int, ...]:
    """The rows of a source: its own, so that two sources of one table have none in common."""
    return tuple(10 * line + n for n in range(1, w.sources[line] + 1))


def rows_of(w: World, table: int) -> tuple[int, ...]:
    """The rows of a table; an undo puts it back to before everything."""
    rows: tuple[int, ...] = ()
    for commit in w.tables[table]:
        rows = () if commit.does == "undo" else rows + commit.rows
    return rows


def goes(w: World, i: int, r: Runner) -> World:
    return w._replace(runners=(*w.runners[:i], r, *w.runners[i + 1 :]))


def _with(w: World, field: str, at: int, value: object) -> World:
    old = getattr(w, field)
    changed: dict[str, Any] = {field: (*old[:at], value, *old[at + 1 :])}
    return w._replace(**changed)


def stops(w: World, i: int, r: Runner) -> World:
    """It stops, with its descendants, and takes its files along."""
    w = w._replace(fenced=w.fenced | {(r.run, r.line)}, staged=w.staged - {(r.run, r.line)})
    return goes(w, i, r._replace(at="done"))


def start(
    crashes: int = 0,
    again: int = 0,
    does: tuple[str, str] = ("run", "run"),
    table: tuple[int, int] = CHAIN,
) -> World:
    """Two runners before an empty lake and sources of one row; `again` more runs may follow when one has ended.

    With those, and for what a person asks for, a first run has already been: what matters there is who comes second,
    not who comes first.
    """
    runners = (Runner(2, does=does[0]), Runner(3, does=does[1]))
    empty: tuple[tuple[Commit, ...], ...] = ((), ())
    first = World(
        (1, 1), table, empty, (Control(),) * 2, ((), ()), frozenset(), runners, 4, crashes, again, 1
    )
    if not again and does == ("run", "run"):
        return first
    w = first._replace(runners=(Runner(FIRST),))
    while (after := Protocol().step(w, 0)) is not None:
        w = after
    return w._replace(runners=runners)


def moves(protocol: Protocol, w: World) -> Iterator[tuple[str, World]]:
    """Whatever can happen next."""
    for i, r in enumerate(w.runners):
        after = protocol.step(w, i)
        if after is not None:
            yield f"{r.does} {r.run}, line {r.line}: {r.at}", after
            if w.crashes:
                dead = goes(w, i, r._replace(at="dead"))
                yield (
                    f"{r.does} {r.run} dies before {r.at} of line {r.line}",
                    dead._replace(crashes=w.crashes - 1),
                )
        elif r.at == "dead" or w.again:
            left = w.again if r.at == "dead" else w.again - 1
            for does in sorted({"run", r.does}):  # a person may ask again, or leave it
                new = goes(w, i, Runner(w.next_run, does=does))._replace(next_run=w.next_run + 1)
                yield f"{does} {w.next_run} starts after {r.does} {r.run}", new._replace(again=left)
    if w.grows:
        for line in range(LINES) if w.table == SHARED else (0,):
            grown = tuple(n + (line == k) for k, n in enumerate(w.sources))
            yield f"source {line} grows", _grown(w, grown)
    for table in sorted(set(w.table)) if w.foreign else ():
        theirs = w.tables[table][-1]._replace(run=FOREIGN, rows=(), does="run")
        yield (
            "another writer commits",
            _with(w, "tables", table, (*w.tables[table], theirs))._replace(foreign=0),
        )


def _grown(w: World, sources: tuple[int, ...]) -> World:
    return w._replace(sources=(sources[0], sources[1]), grows=w.grows - 1)


def wrong(w: World) -> str | None:
    """What must never be, at any moment."""
    for table in sorted(set(w.table)):
        rows = rows_of(w, table)
        if len(rows) != len(set(rows)):
            return f"table {table}: a row is there twice: {rows}"
    for line in range(LINES):
        losers = {run for run, n in w.fenced if n == line}
        mine = [c for c in commits_of(w, line) if c.line == line]
        if guilty := losers & {c.run for c in mine}:
            return f"line {line}: run {min(guilty)} was told that it has written nothing, and has"
        for run in losers:
            others = any(c.run != run for c in mine) or any(e.run != run for e in w.log[line])
            if not others and w.control[line].last is None:
                return f"line {line}: run {run} was told that another did it, and none did"
        if len({(e.run, e.data) for e in w.log[line]}) != len(w.log[line]):
            return f"line {line}: a batch is told twice: {w.log[line]}"
    return None


def stepped_back(before: World, after: World) -> str | None:
    """A record only ever goes forward."""
    for line, (old, new) in enumerate(zip(before.control, after.control, strict=True)):
        made = newest(after, line)
        undone = made is not None and made.does == "undo" and made.number == new.known > old.known
        back = new.revision < old.revision or new.known < old.known
        if back or (new.mark < old.mark and not undone):
            return f"line {line}: the record went from {old} back to {new}"
    return None


def wrong_in_the_end(protocol: Protocol, w: World) -> str | None:
    """After everybody has stopped, and three undisturbed runs: nothing lost, and the records agree with the tables."""
    for _ in range(3):  # the first may only finish records, of one line and then of the next
        w = w._replace(runners=(Runner(w.next_run),), next_run=w.next_run + 1, crashes=0, again=0)
        while (after := protocol.step(w, 0)) is not None:
            w = after
    if found := wrong(w) or protocol.wrong_besides(w, over=True):
        return found
    for line in range(LINES):
        there = source_rows(w, 0 if w.table == CHAIN else line)
        rows = [x for x in sorted(rows_of(w, w.table[line])) if w.table == CHAIN or x // 10 == line]
        if tuple(rows) != there:
            return f"line {line}: the table has {rows}, the source {there}"
        made = {c.run for c in commits_of(w, line) if c.run != FOREIGN and c.line == line}
        logged = [e.run for e in w.log[line] if e.data]
        if sorted(logged) != sorted(made):
            return f"line {line}: the history tells of {sorted(logged)}, the table of {made}"
        if w.control[line].mark != max(there) or w.control[line].running:
            return f"line {line}: the record says {w.control[line]}"
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
