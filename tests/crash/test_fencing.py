"""Several runners of one project: for each node one wins, the others have written nothing, and say who holds it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.crashing import Runs, agrees, at
from tests.effort import SOAK

from strandline import failpoints
from strandline.control.fence import counting
from strandline.errors import Fenced, UsageError
from strandline.plan.job import Job
from strandline.project import StrandlineProject
from strandline.run.retry import Retry
from strandline.run.runner import Runner
from strandline.testing.frames import read_table
from strandline.testing.projects import make_project
from strandline.types import Clock

INTERLEAVINGS = 200 if SOAK else 16
ROUNDS = 25 if SOAK else 2
LAKE = {"connection": "lake"}


def project(folder: Path, share: Path | None = None) -> StrandlineProject:
    """A log of a file, and what is newest in it; `share`: where files, tables and records are, if not here."""
    read = {"connection": "files", "path": "*.csv", "schema": {"id": "bigint", "u": "bigint"}}
    newest = {"operation": "deduplicate", "params": {"keys": ["id"], "order_by": "u DESC"}}
    nodes = [
        {
            "name": "a",
            "read": {**read, "incremental": {"mode": "stateful", "column": "u"}},
            "write": {**LAKE, "table": "a", "mode": "append"},
        },
        {
            "name": "b",
            "read": {**LAKE, "table": "a"},
            "transform": {"steps": [newest]},
            "write": {**LAKE, "table": "b", "mode": "upsert", "keys": ["id"]},
        },
    ]
    places = {"files": "landing", "lake": "lake"}
    shared = {n: {"type": n, "path": str(share / p)} for n, p in places.items()} if share else {}
    return make_project(folder, nodes, connections=shared)


def land(folder: Path, batch: int) -> None:
    """Two new rows and a newer one of an old key; a file is there at once or not at all."""
    rows = "".join(f"{i},{batch}\n" for i in (0, 2 * batch - 1, 2 * batch))
    partial = folder / f"{batch}.part"
    partial.write_text("id,u\n" + rows)
    partial.replace(folder / "landing" / f"{batch}.csv")


def check(folder: Path, batches: int, losers: dict[tuple[str, str], str]) -> None:
    """Everything once, the records agree, and whoever lost has written nothing."""
    told = Counter((i, u) for u in range(1, batches + 1) for i in (0, 2 * u - 1, 2 * u))
    assert Counter((r["id"], r["u"]) for r in read_table(folder / "lake" / "a").rows) == told
    newest = {i: max(u for j, u in told if j == i) for i, _ in told}
    found = [(r["id"], r["u"]) for r in read_table(folder / "lake" / "b").rows]
    assert sorted(found) == sorted(newest.items())
    agrees(folder, ("a", "b"))
    alive = counting(project(folder).store.runs())
    for (run, node), message in losers.items():
        assert not [x for x in alive if x[:2] == (run, node)]
        assert "has done this batch" in message
        assert run not in message


class Turns:
    """Lets one of two threads go at a time; at each point the dice decide who goes on."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.dice, self.folder = random.Random(seed), folder
        self.changed = threading.Condition()
        self.waiting = [0, 1]
        self.turn = self.dice.choice(self.waiting)
        self.grows_in = self.dice.randrange(60)

    def __call__(self, name: str, node: str | None) -> None:
        me = threading.current_thread().name
        if me in ("0", "1"):
            with self.changed:
                self._roll()
                assert self.changed.wait_for(lambda: self.turn == int(me), timeout=60), (
                    f"stuck at {name} of {node}"
                )

    def _roll(self) -> None:
        self.grows_in -= 1
        if self.grows_in == 0:
            land(self.folder, 2)
        if self.waiting:
            # long runs of one and quick changes alike: a runner may sleep through a whole run of the other
            self.turn = (
                self.turn
                if self.turn in self.waiting and self.dice.random() < 0.6
                else self.dice.choice(self.waiting)
            )
        self.changed.notify_all()

    @contextmanager
    def taking_part(self) -> Any:
        me = int(threading.current_thread().name)
        with self.changed:
            assert self.changed.wait_for(lambda: self.turn == me, timeout=60)
        try:
            yield
        finally:
            with self.changed:
                self.waiting.remove(me)
                self._roll()


def run_by_hand(loaded: StrandlineProject, platform: Any, run_id: str, hour: int) -> dict[str, Any]:
    """Both nodes in this thread, one after the other; what each ended with."""
    runner, ended = Runner(loaded.store, run_id), {}
    for node in loaded.config.config.nodes:
        try:
            with platform.workspace(node.name) as engine:
                ended[node.name] = runner.run(
                    Job(loaded.config, node, Clock(at(hour))), engine
                ).status
        except Fenced as e:
            ended[node.name] = e
            break
    return ended


@pytest.mark.parametrize("seed", range(INTERLEAVINGS))
def test_two_runners_in_turns(tmp_path: Path, pandas_platform: Any, seed: int) -> None:
    project(tmp_path)
    land(tmp_path, 1)
    if seed % 2:  # on tables that are there, or on none
        project(tmp_path).run(platform=pandas_platform, check=True)
        land(tmp_path, 2)
    turns, ended = Turns(seed, tmp_path), {}

    def work(number: int) -> None:
        with turns.taking_part():
            ended[f"run{number}"] = run_by_hand(
                project_of[number], pandas_platform, f"run{number}", 2
            )

    project_of = [project(tmp_path) for _ in range(2)]
    with failpoints.armed(turns):
        threads = [threading.Thread(target=work, args=(n,), name=str(n)) for n in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(timeout=120)
    assert sorted(ended) == ["run0", "run1"], "a runner ended with something else than a result"
    losers = {
        (run, n): str(e)
        for run, nodes in ended.items()
        for n, e in nodes.items()
        if isinstance(e, Fenced)
    }
    assert max(Counter(node for _, node in losers).values(), default=0) < 2  # of two, one wins
    land(tmp_path, 2)
    for _ in range(2):
        assert project(tmp_path).run(platform=pandas_platform, threads=1).exit_code == 0
    check(tmp_path, 2, losers)


def test_eight_runners_at_once(tmp_path: Path, pandas_platform: Any) -> None:
    project(tmp_path)
    results: list[Any] = []

    def work(loaded: StrandlineProject, together: threading.Barrier) -> None:
        together.wait(timeout=60)
        results.append(loaded.run(platform=pandas_platform, threads=1, retry=Retry(attempts=1)))

    for batch in range(1, ROUNDS + 1):
        land(tmp_path, batch)
        together = threading.Barrier(8)
        threads = [
            threading.Thread(target=work, args=(project(tmp_path), together)) for _ in range(8)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    ended = Counter(n.status for r in results for n in r.nodes)
    assert sum(ended.values()) == 16 * ROUNDS
    assert set(ended) <= {"success", "unchanged", "fenced", "skipped"}, [
        n.error for r in results for n in r.nodes
    ]
    losers = {
        (r.run_id, n.name): n.error["message"]
        for r in results
        for n in r.nodes
        if n.status == "fenced"
    }
    assert losers
    for _ in range(2):
        assert project(tmp_path).run(platform=pandas_platform).exit_code == 0
    check(tmp_path, ROUNDS, losers)


def at_once(runs: Runs, *orders: dict[str, Any]) -> dict[tuple[str, str], str]:
    """Start `strandline run` in as many processes; of each node one has won, and the losers are returned."""
    ended = [e.result for e in runs.ask(*({"do": "command", **o} for o in orders))]
    nodes = [(r, n) for r in ended for n in r["nodes"]]
    assert len(nodes) == 2 * len(orders), ended
    assert {n["status"] for _, n in nodes} <= {"success", "unchanged", "fenced", "skipped"}, ended
    for name in (
        "a",
        "b",
    ):  # whoever finds the winner's commit before its record finishes that, and tells so
        won = {n["version"] for _, n in nodes if n["name"] == name and n["status"] == "success"}
        assert len(won) == 1, ended
    for result in ended:
        lost = any(n["status"] == "fenced" for n in result["nodes"])
        assert result["exit_code"] == (4 if lost else 0), result
    return {
        (r["run_id"], n["name"]): n["error"]["message"] for r, n in nodes if n["status"] == "fenced"
    }


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    with Runs() as started:
        yield started


@pytest.mark.long
def test_processes_at_once(tmp_path: Path, runs: Runs) -> None:
    project(tmp_path)
    losers, rounds = {}, [2 + n % 7 for n in range(ROUNDS)] if SOAK else [2, 5, 8]
    for batch, processes in enumerate(rounds, 1):
        land(tmp_path, batch)
        losers |= at_once(runs, *[{"folder": str(tmp_path)}] * processes)
    assert losers
    check(tmp_path, len(rounds), losers)
    print(f"{sum(rounds)} processes in {len(rounds)} rounds, {len(losers)} lost")  # noqa: T201 – told by `make soak`


def test_two_machines_that_share_the_storage(tmp_path: Path, runs: Runs) -> None:
    """Each has its own copy of the project; the files, the lake and with it the records are the same folder."""
    losers: dict[tuple[str, str], str] = {}
    project(tmp_path)
    machines = [{"folder": str(tmp_path / name), "machine": name} for name in ("one", "two")]
    for machine in machines:
        project(Path(machine["folder"]), share=tmp_path)
    for batch in range(1, 1 + (ROUNDS if SOAK else 2)):
        land(tmp_path, batch)
        losers |= at_once(runs, *machines * 2)
    check(tmp_path, batch, losers)


@pytest.mark.parametrize("point", ["commit.before", "commit.after", "log.after"])
def test_what_one_machine_left_the_other_finishes(tmp_path: Path, runs: Runs, point: str) -> None:
    """Nobody can see whether a process of another machine is alive; nobody has to."""
    project(tmp_path)
    for name in ("one", "two"):
        project(tmp_path / name, share=tmp_path)
    land(tmp_path, 1)
    assert runs.run(tmp_path / "one", 1, f"{point}@a:kill", machine="one").killed
    for hour in (2, 3):  # an append that has landed is only recorded by the first
        land(tmp_path, 2)
        assert runs.run(tmp_path / "two", hour, machine="two").result["status"] == "success"
    check(tmp_path, 2, {})


@pytest.mark.parametrize(
    "point", ["running.before", "commit.before@a", "log.before@a", "put.before@b"]
)
def test_a_runner_that_was_stopped_and_wakes_up_late(
    tmp_path: Path, pandas_platform: Any, point: str
) -> None:
    project(tmp_path)
    land(tmp_path, 1)
    environment = {**os.environ, "STRANDLINE_TESTING": "1", "STRANDLINE_FAULT": f"{point}:pause"}
    command = [sys.executable, "-m", "strandline", "run", "--json", "--project-dir", str(tmp_path)]
    sleeper = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _, status = os.waitpid(sleeper.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    winner = project(tmp_path).run(platform=pandas_platform, check=True)
    land(tmp_path, 2)
    project(tmp_path).run(platform=pandas_platform, check=True)  # and one more, while it sleeps
    os.kill(sleeper.pid, signal.SIGCONT)
    out, err = sleeper.communicate(timeout=120)
    result = json.loads(out)
    late = {n["name"]: n for n in result["nodes"]}
    if point in (
        "log.before@a",
        "put.before@b",
    ):  # it had landed, and others have finished its record by now
        assert late["a"]["status"] == "success", err
        assert sleeper.returncode in (0, 4)
    else:
        assert sleeper.returncode == 4, err
        assert late["a"]["status"] == "fenced"
        assert (
            winner.run_id in late["a"]["error"]["message"]
            or "has done this batch" in late["a"]["error"]["message"]
        )
        assert late["b"]["status"] == "skipped"
    assert project(tmp_path).run(platform=pandas_platform).exit_code == 0
    check(tmp_path, 2, {})


@pytest.mark.parametrize("node", ["a", "b"])
def test_a_runner_knows_its_commit_when_others_have_come_after_it(
    tmp_path: Path, pandas_platform: Any, node: str
) -> None:
    loaded, others = project(tmp_path), []
    land(tmp_path, 1)

    def overtaken(name: str, at: str | None) -> None:
        if (name, at) == ("commit.after", node) and not others:
            others.append(node)
            land(tmp_path, 2)
            for _ in range(2):  # an append that has landed is only recorded by the first
                assert project(tmp_path).run(platform=pandas_platform, threads=1).exit_code == 0

    with failpoints.armed(overtaken):
        result = loaded.run(platform=pandas_platform, threads=1)
    assert result.exit_code == 0
    found = next(n for n in result.nodes if n.name == node)
    assert (found.status, found.inserted, found.version) == ("success", 3, 0)
    check(tmp_path, 2, {})


def test_faults_are_for_test_builds_only(tmp_path: Path) -> None:
    project(tmp_path)
    land(tmp_path, 1)
    environment = {**os.environ, "STRANDLINE_FAULT": "run.start:kill"}
    environment.pop("STRANDLINE_TESTING", None)
    command = [sys.executable, "-m", "strandline", "run", "--quiet", "--project-dir", str(tmp_path)]
    assert (
        subprocess.run(command, env=environment, check=False, capture_output=True).returncode == 0
    )


@pytest.mark.parametrize(
    "fault", ["nowhere:kill", "commit.after", "commit.after:kil", "commit.after#0:kill"]
)
def test_a_fault_that_cannot_come_is_refused(fault: str) -> None:
    with pytest.raises(UsageError, match="expected POINT"):
        failpoints.parse(fault)


def test_a_point_that_is_not_there_is_a_wrong_usage_that_names_those_that_are(
    tmp_path: Path,
) -> None:
    project(tmp_path)
    environment = {**os.environ, "STRANDLINE_TESTING": "1", "STRANDLINE_FAULT": "comit.after:kill"}
    command = [sys.executable, "-m", "strandline", "run", "--json", "--project-dir", str(tmp_path)]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    error = json.loads(done.stdout)["error"]
    assert (error["code"], "comit.after:kill" in error["message"]) == ("usage", True)
    assert set(failpoints.POINTS) <= set(error["hint"].replace(",", "").split())
