"""Several targets of one node: written together, taken back together; nothing lost, nothing twice."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake
from tests.crashing import Runs, agrees

from strandline import failpoints
from strandline.control.fence import counting
from strandline.project import StrandlineProject
from strandline.run.retry import Retry
from strandline.testing.frames import arrow, read_table
from strandline.testing.oracle import Frame
from strandline.testing.projects import execute, make_project

LAKE = {"connection": "lake"}
LOG = {**LAKE, "table": "log", "mode": "append"}
SILVER = {**LAKE, "table": "silver", "mode": "upsert", "keys": ["id"]}
COPY = {**LAKE, "table": "copy", "mode": "overwrite"}
GOLD = {
    "name": "gold",
    "read": {**LAKE, "table": "log"},
    "transformation_sql": "SELECT count(*) AS n FROM source",
    "write": {**LAKE, "table": "gold", "mode": "overwrite"},
}
ONCE = Retry(attempts=1)
TWICE = "INSERT INTO c VALUES (1, 'again', 2)"  # a log takes it; a table by its keys cannot
MENDED = "DELETE FROM c WHERE name = 'again'"
NEW = "INSERT INTO c VALUES (3, 'three', 2)"


class Shop:
    """A database, and one node that keeps a log of it and what is true now."""

    def __init__(
        self, folder: Path, platform: Any, *targets: dict[str, Any], more: tuple[Any, ...] = ()
    ) -> None:
        self.folder, self.platform, self.targets, self.more = (
            folder,
            platform,
            targets or (LOG, SILVER),
            more,
        )
        self.sql("CREATE TABLE c (id INTEGER, name TEXT, u INTEGER)")
        self.sql("INSERT INTO c VALUES (1, 'one', 1), (2, 'two', 1)")

    def sql(self, *statements: str) -> None:
        execute(self.folder / "erp.db", *statements)

    @property
    def project(self) -> StrandlineProject:
        read = {
            "connection": "erp",
            "table": "c",
            "incremental": {"mode": "stateful", "column": "u"},
        }
        nodes = [{"name": "n", "read": read, "write": list(self.targets)}, *self.more]
        return make_project(
            self.folder, nodes, connections={"erp": {"type": "sql", "url": "sqlite:///erp.db"}}
        )

    def run(self, **how: Any) -> Any:
        return self.project.run(platform=self.platform, retry=ONCE, **how)

    def rows(self, table: str) -> Counter[tuple[int, str]]:
        return Counter((r["id"], r["name"]) for r in read_table(self.folder / "lake" / table).rows)

    def source(self) -> Counter[tuple[int, str]]:
        import sqlite3
        from contextlib import closing

        with closing(sqlite3.connect(self.folder / "erp.db")) as database:
            return Counter(database.execute("SELECT id, name FROM c").fetchall())

    def mark(self, node: str) -> str | None:
        (row,) = [r for r in self.project.store.states() if r.node == node]
        marks = row.covered.as_dict().get("marks", {})
        return marks["u"][0] if marks else None


def statuses(result: Any) -> dict[str, str]:
    return {n.name: n.status for n in result.nodes}


def error(result: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(n for n in result.nodes if n.name == name).error
    return found


@pytest.fixture
def shop(tmp_path: Path, pandas_platform: Any) -> Shop:
    return Shop(tmp_path, pandas_platform)


# --- written together, and taken back together --------------------------------------------------------------


def test_every_target_is_kept_true_to_the_source(tmp_path: Path, platform: Any) -> None:
    shop = Shop(tmp_path, platform)
    assert statuses(shop.run()) == {"n": "success", "n.silver": "success"}
    assert shop.rows("log") == shop.rows("silver") == shop.source()
    assert statuses(shop.run()) == {"n": "unchanged", "n.silver": "unchanged"}
    shop.sql(NEW, "UPDATE c SET name = 'ONE', u = 2 WHERE id = 1")
    assert statuses(shop.run()) == {"n": "success", "n.silver": "success"}
    assert shop.rows("silver") == shop.source()
    assert shop.rows("log") == shop.source() + Counter([(1, "one")])
    agrees(tmp_path, ("log", "silver"))


@pytest.mark.long_on_spark
def test_one_target_fails_and_the_other_is_taken_back(tmp_path: Path, platform: Any) -> None:
    shop = Shop(tmp_path, platform)
    shop.run(check=True)
    shop.sql(NEW, TWICE, "INSERT INTO c VALUES (1, 'again', 2)")
    result = shop.run()
    assert (statuses(result), result.status, result.exit_code) == (
        {"n": "failed", "n.silver": "failed"},
        "failed",
        1,
    )
    assert error(result, "n")["code"] == "taken_back"
    assert error(result, "n")["message"].startswith(
        "taken back, because `n.silver` failed: 1 key of (id)"
    )
    assert shop.rows("log") == shop.rows("silver") == Counter([(1, "one"), (2, "two")])
    assert shop.mark("n") == "1"
    shop.sql(MENDED)
    assert statuses(shop.run()) == {"n": "success", "n.silver": "success"}
    assert shop.rows("log") == shop.rows("silver") == shop.source()


def test_in_the_first_run_too(shop: Shop) -> None:
    shop.sql(TWICE)
    assert set(statuses(shop.run()).values()) == {"failed"}
    assert not shop.rows("log")
    assert shop.mark("n") is None
    shop.sql(MENDED)
    shop.run(check=True)
    assert shop.rows("log") == shop.rows("silver") == shop.source()


def test_of_three_those_before_it_are_taken_back_and_those_after_it_wait(
    tmp_path: Path, pandas_platform: Any
) -> None:
    shop = Shop(tmp_path, pandas_platform, LOG, COPY, SILVER, {**COPY, "table": "last"})
    shop.run(check=True)
    copied = shop.rows("copy")
    shop.sql(NEW, TWICE)
    result = shop.run(threads=4)
    assert statuses(result) == {
        "n": "failed",
        "n.copy": "failed",
        "n.silver": "failed",
        "n.last": "skipped",
    }
    assert [error(result, n)["code"] for n in ("n", "n.copy")] == ["taken_back"] * 2
    assert shop.rows("log") == shop.rows("copy") == shop.rows("last") == copied
    assert statuses(shop.project.run("n.last", platform=shop.platform)) == {"n.last": "success"}


def test_when_the_first_fails_nothing_is_to_be_taken_back(
    tmp_path: Path, pandas_platform: Any
) -> None:
    shop = Shop(tmp_path, pandas_platform, SILVER, LOG)
    shop.sql(TWICE)
    result = shop.run()
    assert statuses(result) == {"n": "failed", "n.log": "skipped"}
    assert error(result, "n")["code"] == "duplicate_keys"
    assert {r.status for r in shop.project.store.runs()} == {"failed"}


def test_a_target_that_had_nothing_to_do_is_left_alone(shop: Shop) -> None:
    shop.run(check=True)
    shutil.rmtree(shop.folder / "lake" / "silver")
    (shop.folder / "lake" / "silver").mkdir()
    (shop.folder / "lake" / "silver" / "somebody.txt").write_text("no table")
    with failpoints.armed("commit.before@n.silver:raise"):
        assert statuses(shop.run()) == {"n": "unchanged", "n.silver": "failed"}
    assert not [r for r in shop.project.store.runs() if r.takes_back]


def test_a_batch_that_landed_and_could_not_be_recorded_goes_back_with_the_others(
    shop: Shop,
) -> None:
    shop.run(check=True)
    before = shop.rows("log")
    shop.sql(NEW)
    with failpoints.armed("log.before@n.silver:raise"):
        result = shop.run()
    assert [error(result, n)["code"] for n in ("n", "n.silver")] == ["taken_back", "node"]
    assert shop.rows("log") == shop.rows("silver") == before
    assert statuses(shop.project.retry(platform=shop.platform)) == {
        "n": "success",
        "n.silver": "success",
    }
    assert shop.rows("log") == shop.rows("silver") == shop.source()
    agrees(shop.folder, ("log", "silver"))


def test_what_cannot_be_taken_back_is_told(shop: Shop) -> None:
    shop.run(check=True)
    shop.sql(NEW)

    once = failpoints.parse("log.before@n.silver:raise")

    def broken(point: str, node: str | None) -> None:
        once(point, node)
        if point == "undo.before":
            raise failpoints.InjectedFault(f"fault injected at {point}")

    with failpoints.armed(broken):
        result = shop.run()
    assert statuses(result) == {"n": "failed", "n.silver": "failed"}
    assert error(result, "n")["code"] == "revert_refused"
    assert "fault injected at undo.before" in error(result, "n")["message"]
    assert "is not taken back" in result.nodes[1].warnings[0]
    assert "fault injected at log.before" in error(result, "n.silver")["message"]
    assert shop.rows("log") == shop.rows("silver") == shop.source()
    assert statuses(shop.run()) == {"n": "unchanged", "n.silver": "unchanged"}


def test_nobody_builds_on_what_is_taken_back(tmp_path: Path, pandas_platform: Any) -> None:
    shop = Shop(tmp_path, pandas_platform, more=(GOLD,))
    shop.run(check=True)
    shop.sql(NEW, TWICE)
    result = shop.run(threads=4)
    assert statuses(result) == {"n": "failed", "n.silver": "failed", "gold": "skipped"}
    assert read_table(tmp_path / "lake" / "gold").rows == [{"n": 2}]
    shop.sql(MENDED)
    assert statuses(shop.run()) == {"n": "success", "n.silver": "success", "gold": "success"}
    assert read_table(tmp_path / "lake" / "gold").rows == [{"n": 3}]


def test_targets_may_change_their_order_and_others_may_join(shop: Shop) -> None:
    shop.run(check=True)
    shop.targets = (COPY, SILVER, LOG)
    assert statuses(shop.run()) == {"n": "success", "n.silver": "unchanged", "n.log": "unchanged"}
    shop.sql(NEW)
    shop.run(check=True)
    assert shop.rows("log") == shop.rows("silver") == shop.source()


# --- what is in the way -------------------------------------------------------------------------------------


def test_what_somebody_else_wrote_meanwhile_is_not_taken_back(shop: Shop) -> None:
    shop.run(check=True)
    shop.sql(NEW, TWICE)

    def stranger(point: str, node: str | None) -> None:
        if (point, node) == ("node.start", "n.silver"):
            log = shop.folder / "lake" / "log"
            frame = read_table(log)
            theirs = Frame(frame.columns, [{**frame.rows[0], "id": 9, "name": "theirs"}])
            write_deltalake(log, arrow(theirs), mode="append")

    with failpoints.armed(stranger):
        result = shop.run()
    assert statuses(result) == {"n": "failed", "n.silver": "failed"}
    told = error(result, "n")
    assert told["code"] == "revert_refused"
    assert "`n.silver` failed" in told["message"]
    assert "lake.log" in told["message"]
    assert "is another writer's" in told["message"]
    assert shop.rows("log") == shop.source() + Counter([(9, "theirs")])


def test_what_another_runner_wrote_takes_nothing_back(shop: Shop) -> None:
    """The other one has written the second target on top of our first: both are wanted."""
    shop.run(check=True)
    shop.sql(NEW)
    others = []

    def overtaking(point: str, node: str | None) -> None:
        if (point, node) == ("commit.before", "n.silver") and not others:
            others.append(None)
            others.append(shop.run())

    with failpoints.armed(overtaking):
        result = shop.run()
    assert statuses(others[1]) == {"n": "unchanged", "n.silver": "success"}
    assert (statuses(result), result.exit_code) == ({"n": "success", "n.silver": "fenced"}, 4)
    assert shop.rows("log") == shop.rows("silver") == shop.source()
    agrees(shop.folder, ("log", "silver"))


# --- killed -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    with Runs() as started:
        yield started


@pytest.mark.parametrize(
    "fault",
    [
        "commit.after@n",
        "log.after@n",
        "checkpoint.after@n",
        "running.after@n.silver",
        "commit.after@n.silver",
    ],
)
def test_a_run_killed_between_two_targets_is_finished_by_the_next(
    shop: Shop, runs: Runs, fault: str
) -> None:
    shop.run(check=True)
    shop.sql(NEW)
    assert runs.run(shop.folder, 1, f"{fault}:kill").killed
    again = runs.run(shop.folder, 2)
    assert set(again.statuses()) <= {"success", "unchanged"}
    assert shop.rows("log") == shop.rows("silver") == shop.source()
    agrees(shop.folder, ("log", "silver"))


@pytest.mark.parametrize(
    "fault",
    ["undo.before@n", "commit.before@n#2", "commit.after@n#2", "log.after@n#2", "undo.after@n"],
)
@pytest.mark.long
def test_a_taking_back_that_is_killed_loses_nothing(shop: Shop, runs: Runs, fault: str) -> None:
    shop.run(check=True)
    shop.sql(NEW, TWICE)
    assert runs.run(shop.folder, 1, f"{fault}:kill").killed
    shop.sql(MENDED)
    left = runs.run(shop.folder, 2, do="retry")
    assert left.statuses()[-1] == "success"
    runs.run(shop.folder, 3)
    # Where the first target was not taken back yet, the log keeps what it read: a log never takes a row back by itself.
    kept = Counter([(1, "again")]) if fault in ("undo.before@n", "commit.before@n#2") else Counter()
    assert shop.rows("log") == shop.source() + kept
    assert shop.rows("silver") == shop.source()
    agrees(shop.folder, ("log", "silver"))


# --- afterwards ---------------------------------------------------------------------------------------------


def test_undo_takes_back_every_target_of_a_run(shop: Shop) -> None:
    shop.run(check=True)
    before = shop.rows("log")
    shop.sql(NEW)
    run = shop.run(check=True).run_id
    result = shop.project.undo(run, platform=shop.platform)
    assert [(n.name, n.deleted) for n in result.nodes] == [("n.silver", 1), ("n", 1)]
    assert shop.rows("log") == shop.rows("silver") == before
    shop.run(check=True)
    assert shop.rows("log") == shop.rows("silver") == shop.source()


def test_a_run_that_was_taken_back_cannot_be_undone_again(shop: Shop) -> None:
    shop.run(check=True)
    shop.sql(TWICE)
    run = shop.run().run_id
    with pytest.raises(Exception, match="is already undone, by run"):
        shop.project.undo(run, platform=shop.platform)
    assert not [x for x in counting(shop.project.store.runs()) if x[0] == run]


@pytest.mark.long
def test_retry_runs_every_target_again(shop: Shop) -> None:
    shop.targets, shop.more = (LOG, SILVER, COPY), (GOLD,)
    shop.run(check=True)
    shop.sql(NEW, TWICE)
    shop.run()
    shop.sql(MENDED)
    result = shop.project.retry(platform=shop.platform)
    assert result is not None
    assert set(statuses(result)) == {"n", "n.silver", "n.copy", "gold"}
    assert result.exit_code == 0
    assert shop.rows("log") == shop.rows("silver") == shop.source()
    assert shop.project.retry(platform=shop.platform) is None


def test_the_command_line_tells_of_each_target(shop: Shop, runs: Runs) -> None:
    assert shop.project.graph.order == ("n", "n.silver")
    shop.sql(TWICE)
    told = runs.ask({"folder": str(shop.folder), "do": "command"})[0].result
    assert (told["exit_code"], told["status"]) == (1, "failed")
    assert [(n["name"], n["status"], n["error"]["code"]) for n in told["nodes"]] == [
        ("n", "failed", "taken_back"),
        ("n.silver", "failed", "duplicate_keys"),
    ]


def test_retry_leaves_a_target_alone_that_a_killed_run_had_written(shop: Shop, runs: Runs) -> None:
    assert shop.project.graph.order == ("n", "n.silver")
    assert runs.run(shop.folder, 1, "node.start@n.silver:kill").killed
    assert statuses(shop.project.retry(platform=shop.platform)) == {"n.silver": "success"}


def test_a_plan_that_fails_in_one_target_is_taken_back_too(shop: Shop) -> None:
    shop.run(check=True)
    before = shop.rows("log")
    shop.sql(NEW)
    plan = shop.folder / "plan.zip"
    planned = shop.project.plan(platform=shop.platform, out=plan)
    assert [(n.name, n.inserted) for n in planned.nodes] == [("n", 1), ("n.silver", 1)]
    with failpoints.armed("commit.before@n.silver:raise"):
        result = shop.project.follow(plan, platform=shop.platform)
    assert [error(result, n)["code"] for n in ("n", "n.silver")] == ["taken_back", "node"]
    assert shop.rows("log") == shop.rows("silver") == before
    shop.project.plan(platform=shop.platform, out=plan)
    assert statuses(shop.project.follow(plan, platform=shop.platform)) == {
        "n": "success",
        "n.silver": "success",
    }
    assert shop.rows("log") == shop.rows("silver") == shop.source()


def test_each_target_holds_and_is_approved_by_itself(tmp_path: Path, pandas_platform: Any) -> None:
    look = {
        "mode": "snapshot_diff",
        "keys": ["id"],
        "max_delete_percent": 0,
        "on_threshold_breach": "hold",
    }
    node = {
        "name": "n",
        "read": {"connection": "files", "path": "rows.csv"},
        "transform": {"steps": [{"operation": "detect_deletes", "params": look}]},
        "write": [
            SILVER,
            {**SILVER, "table": "history", "mode": "scd2"},
            {**LOG, "delete_strategy": "ignore"},
        ],
    }
    project = make_project(tmp_path, [node])
    (tmp_path / "landing" / "rows.csv").write_text("id,name\n1,one\n2,two\n")
    project.run(platform=pandas_platform, check=True)
    (tmp_path / "landing" / "rows.csv").write_text("id,name\n1,one\n")
    held = project.run(platform=pandas_platform)
    assert statuses(held) == {"n": "held", "n.history": "held", "n.log": "success"}
    approved = project.approve(held.run_id, platform=pandas_platform)
    assert statuses(approved) == {
        "n": "success",
        "n.history": "success",
    }  # the log is not appended to once more
    assert len(read_table(tmp_path / "lake" / "log").rows) == 3
    assert [e.event for e in project.explain("n.history", {"id": "2"}).events][-1] == "deleted"
