"""What was noted of single keys – held, rejected, missing once – outlives runs that do not look, and other names."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from strandline import failpoints
from strandline.errors import CommitConflict, ReadError, StrandlineError, UndoRefused
from strandline.testing.frames import read_table
from strandline.testing.projects import execute, make_project

LAKE = {"connection": "lake"}
HOLD = {"max_delete_percent": 15, "on_threshold_breach": "hold"}


class Shop:
    """A source table, and a node over it that is declared anew for each run."""

    def __init__(self, folder: Path, platform: Any) -> None:
        self.folder, self.platform = folder, platform
        self.erp("CREATE TABLE c (id INTEGER, k TEXT, day TEXT, v TEXT)")

    def erp(self, *statements: str) -> None:
        execute(self.folder / "erp.db", *statements)

    def has(self, *ids: int, day: str = "2024-06-01", v: str = "a") -> None:
        """The source holds exactly these rows now."""
        self.erp(
            "DELETE FROM c", *(f"INSERT INTO c VALUES ({i}, 'x', '{day}', '{v}')" for i in ids)
        )

    def run(self, *nodes: dict[str, Any], **more: Any) -> Any:
        connections = {
            "erp": {"type": "sql", "url": "sqlite:///erp.db"},
            **more.pop("connections", {}),
        }
        self.project = make_project(self.folder, nodes, connections=connections, **more)
        self.last = self.project.run(platform=self.platform, check=True)
        return self.last.nodes[-1]

    def gone(self) -> list[int]:
        return sorted(
            r["id"] for r in read_table(self.folder / "lake" / "t").rows if r.get("_is_deleted")
        )


@pytest.fixture
def shop(tmp_path: Path, pandas_platform: Any) -> Shop:
    return Shop(tmp_path, pandas_platform)


def looking(
    mode: str = "snapshot_diff", name: str = "n", keys: tuple[str, ...] = ("id",), **params: Any
) -> Any:
    live = {"source_connection": "erp", "source_table": "c"} if mode == "sql_compare" else {}
    detect = {
        "operation": "detect_deletes",
        "params": {"mode": mode, "keys": list(keys), **live, **params},
    }
    return {
        "name": name,
        "read": {"connection": "erp", "table": "c"},
        "transform": {"steps": [detect]},
        "write": {**LAKE, "table": "t", "mode": "upsert", "keys": list(keys)},
    }


def blind(node: Any) -> Any:
    return {**node, "write": {**node["write"], "delete_strategy": "ignore"}}


@pytest.mark.parametrize("mode", ["snapshot_diff", "sql_compare"])
def test_a_hold_stays_while_nobody_looks(shop: Shop, mode: str) -> None:
    node = looking(mode, **HOLD)
    shop.has(*range(10))
    shop.run(node)
    shop.has(*range(2, 10))
    assert shop.run(node).held == 2
    shop.has(*range(1, 10))
    assert shop.run(node).held == 1  # 1 is back
    waiting = shop.run(blind(node))
    assert (waiting.held, shop.last.exit_code) == (1, 3)
    assert (shop.run(node).held, shop.run(node).held) == (
        1,
        1,
    )  # one of ten is below the limit, and held all the same
    assert shop.gone() == []


@pytest.mark.parametrize("mode", ["snapshot_diff", "sql_compare"])
def test_a_rejection_stays_while_nobody_looks(shop: Shop, mode: str) -> None:
    shop.has(*range(10))
    shop.run(looking(mode, **HOLD))
    shop.has(*range(2, 10))
    shop.run(looking(mode, **HOLD))
    shop.project.reject(shop.last.run_id)
    shop.run(blind(looking(mode, **HOLD)))
    for _ in range(2):
        shop.run(looking(mode, **HOLD | {"max_delete_percent": 50}))
        assert shop.gone() == []


def test_missing_twice_running_is_not_missing_once_and_once_again(shop: Shop) -> None:
    """An older extract in between is refused: it says nothing, and ends nothing."""
    node = looking(snapshot_column="day", confirm_runs=2)
    for day, ids in (
        (10, range(1, 7)),
        (11, range(2, 7)),
        (9, range(1, 7)),
        (12, range(1, 7)),
        (13, range(1, 6)),
    ):
        shop.has(*ids, day=f"2024-06-{day:02}")
        shop.run(node)
    shop.has(*range(2, 7), day="2024-06-14")
    shop.run(node)
    assert shop.gone() == []
    shop.has(*range(2, 7), day="2024-06-15")
    shop.run(node)
    assert shop.gone() == [1]


def test_a_streak_ends_when_the_key_is_back_after_a_run_that_did_not_look(shop: Shop) -> None:
    node = looking("sql_compare", confirm_runs=2)
    for ids, this in (
        (range(1, 7), node),
        (range(2, 7), node),  # 1 is missing
        (range(1, 7), blind(node)),
        (range(1, 6), node),  # 6 is missing
        (range(2, 7), node),  # 1 is missing again, for the first time
    ):
        shop.has(*ids)
        shop.run(this)
    assert shop.gone() == []


@pytest.mark.parametrize("decided", ["held", "rejected"])
def test_keys_in_another_order_and_a_node_of_another_name_keep_them(
    shop: Shop, decided: str
) -> None:
    shop.has(*range(10))
    shop.run(looking(keys=("id", "k"), **HOLD | {"max_delete_percent": 5}))
    shop.has(*range(1, 10))
    assert shop.run(looking(keys=("id", "k"), **HOLD | {"max_delete_percent": 5})).held == 1
    if decided == "rejected":
        shop.project.reject(shop.last.run_id)
    for keys, name in (
        (("k", "id"), "n"),
        (("id", "k"), "n"),
        (("k", "id"), "m"),
        (("k", "id"), "m"),
    ):
        result = shop.run(looking(keys=keys, name=name, **HOLD | {"max_delete_percent": 50}))
        assert (result.held, shop.gone()) == (int(decided == "held"), [])
    shop.has(*range(10))
    assert shop.run(looking(keys=("k", "id"), name="m", **HOLD)).held == 0
    shop.has(*range(1, 10))
    shop.run(looking(keys=("k", "id"), name="m", **HOLD))
    assert shop.gone() == [0]  # seen since, and missing anew


def test_the_holds_of_a_node_that_was_renamed_can_be_decided(shop: Shop) -> None:
    shop.has(*range(10))
    shop.run(looking(**HOLD | {"max_delete_percent": 5}))
    shop.has(*range(1, 10))
    shop.run(looking(**HOLD | {"max_delete_percent": 5}))
    held = shop.last.run_id
    shop.run(looking(name="m", **HOLD | {"max_delete_percent": 5}))
    assert {n: len(rows) for n, rows in shop.project.holds().items()} == {"m": 1}
    approved = shop.project.approve(held, platform=shop.platform, check=True)
    assert [(n.name, n.deleted) for n in approved.nodes] == [("m", 1)]
    assert shop.gone() == [0]


def test_a_rejection_stays_under_all_names_of_the_project_and_the_connection(shop: Shop) -> None:
    lakes = {
        "connections": {"store": {"type": "lake", "path": "lake"}},
        "control": {"connection": "lake"},
    }
    shop.has(*range(10))
    shop.run(looking(**HOLD), project="a")
    shop.has(*range(2, 10))
    assert shop.run(looking(**HOLD), project="b").held == 2
    shop.project.reject(shop.last.run_id)
    lax = looking(**HOLD | {"max_delete_percent": 50})
    shop.run(lax, project="a")
    for _ in range(2):
        shop.run({**lax, "write": {**lax["write"], "connection": "store"}}, project="a", **lakes)
    assert shop.gone() == []


def test_a_decision_under_other_names_of_project_and_connection_counts(shop: Shop) -> None:
    lakes = {
        "connections": {"store": {"type": "lake", "path": "lake"}},
        "control": {"connection": "lake"},
    }
    shop.has(*range(10))
    shop.run(looking(**HOLD), project="a")
    shop.has(*range(2, 10))
    held = shop.run(looking(**HOLD), project="a")
    node = looking(**HOLD | {"max_delete_percent": 50})
    node["write"]["connection"] = "store"
    assert (held.held, shop.run(node, project="b", **lakes).held) == (2, 2)
    shop.project.reject(next(iter(shop.project.holds()["n"])).run_id)
    assert [shop.run(node, project="b", **lakes).held for _ in range(2)] == [0, 0]
    assert shop.gone() == []


def test_an_undo_under_another_name_of_the_project_keeps_older_holds(shop: Shop) -> None:
    node = looking(max_delete_count=0, on_threshold_breach="hold")
    for ids, project in ((range(10), "a"), (range(1, 10), "a"), (range(2, 10), "b")):
        shop.has(*ids)
        held = shop.run(node, project=project).held
    assert held == 2
    shop.project.undo(shop.last.run_id, platform=shop.platform)
    assert shop.run(node, project="b").held == 2


def test_what_was_noted_of_a_table_does_not_pass_to_one_that_is_made_anew(shop: Shop) -> None:
    node = looking(confirm_runs=2)
    shop.has(*range(10))
    shop.run(node)
    shop.has(*range(1, 10))
    shop.run(node)  # 0 is missing
    shutil.rmtree(shop.folder / "lake" / "t")
    for ids in (
        range(10),
        range(10),
        (0, *range(2, 10)),
        range(2, 10),
    ):  # 1 is missing twice, 0 once
        shop.has(*ids)
        shop.run(node)
    assert shop.gone() == [1]


def test_holds_of_a_table_that_is_gone_end_with_it(shop: Shop) -> None:
    shop.has(*range(10))
    shop.run(looking(**HOLD))
    shop.has(*range(2, 10))
    shop.run(looking(**HOLD))
    shutil.rmtree(shop.folder / "lake" / "t")
    shop.has(*range(10))
    assert shop.run(looking(**HOLD)).held == 0
    assert shop.project.holds() == {}


def test_a_consumer_in_another_project_that_only_holds_is_in_the_way_of_an_undo(shop: Shop) -> None:
    mirror = bronze("overwrite")
    holding = {
        **looking(max_delete_count=0, on_threshold_breach="hold"),
        "read": {**LAKE, "table": "b"},
    }
    shop.has(1, 2, 3)
    shop.run(mirror, project="one")
    shop.run(holding, project="two")
    shop.has(1, 2)
    shop.run(mirror, project="one")
    made, first = shop.last.run_id, shop.project
    assert shop.run(holding, project="two").held == 1
    with pytest.raises(UndoRefused, match="consumed version"):
        first.undo(made, platform=shop.platform)


def test_an_empty_extract_is_no_newer_one(shop: Shop) -> None:
    node = looking(snapshot_column="day")
    shop.has(1, 2, 3, day="2024-06-01", v="new")
    shop.run(node)
    shop.erp("DELETE FROM c")
    assert shop.run(node).held == 3
    shop.has(1, 2, day="2024-05-01", v="old")
    assert any("is older than" in w for w in shop.run(node).warnings)
    assert {r["v"] for r in read_table(shop.folder / "lake" / "t").rows} == {"new"}


# --- a Bronze that another project file fills ----------------------------------------------------------------


def bronze(mode: str, **read: Any) -> dict[str, Any]:
    reading = {"connection": "erp", "table": "c", **read}
    write = {**LAKE, "table": "b", "mode": mode, "add_metadata": {"extracted_at": True}}
    return {"name": "b", "read": reading, "write": write}


def silver(**params: Any) -> dict[str, Any]:
    node = looking(**params)
    newest = {
        "operation": "deduplicate",
        "params": {"keys": ["id"], "order_by": "_extracted_at DESC"},
    }
    steps = [newest, *node["transform"]["steps"]]
    return {**node, "read": {**LAKE, "table": "b"}, "transform": {"steps": steps}}


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_another_project_read_in_part_is_no_snapshot(shop: Shop, elsewhere: bool) -> None:
    """The records say so; where they are others, the table itself."""
    apart = {
        "control": {"connection": "notes"},
        "connections": {"notes": {"type": "lake", "path": "notes"}},
    }
    mine: dict[str, Any] = apart if elsewhere else {}
    marked = bronze("overwrite", incremental={"mode": "stateful", "column": "id"})
    shop.has(1, 2, 3)
    shop.run(marked)
    for _ in range(2):
        with pytest.raises(ReadError, match="was read incrementally"):
            shop.run(silver(), **mine)
        shop.has(1, 2, 3, 4)
        shop.run(marked)


def test_extracts_that_another_project_appends_are_told_apart_or_refused(shop: Shop) -> None:
    shop.has(1, 2, 3)
    shop.run(bronze("append"))
    with pytest.raises(ReadError, match="which rows belong to its newest snapshot") as refused:
        shop.run(silver())
    assert "snapshot_column" in str(refused.value.hint)
    newest = silver(snapshot_column="_extracted_at")
    shop.run(newest)
    shop.has(2, 3)
    shop.run(bronze("append"))
    shop.run(newest)
    assert shop.gone() == [1]


def test_extracts_carry_their_batch_once_somebody_compared_them(shop: Shop) -> None:
    """Both nodes in one project, and then in two."""
    shop.has(1, 2, 3)
    shop.run(bronze("append"), silver())
    shop.has(2, 3)
    shop.run(bronze("append"))
    shop.run(silver())
    assert shop.gone() == [1]


# --- a batch that is tried again ---------------------------------------------------------------------------


def again(shop: Shop, node: Any, *ids: int) -> Any:
    """A run whose first attempt fails right before its commit; for the second one the source holds these rows."""
    passed = []

    def fails_once(name: str, _node: str | None) -> None:
        if name == "commit.before" and not passed:
            passed.append(name)
            shop.has(*ids, v="b")
            raise CommitConflict("somebody else committed at the same moment")

    with failpoints.armed(fails_once):
        found = shop.run(node, retry={"attempts": 2, "wait": 0.0})
    assert passed
    return found


def test_what_a_failed_attempt_missed_is_not_missed_by_its_retry(shop: Shop) -> None:
    """With `confirm_runs: 2` a key that was seen by what landed is deleted after two more runs without it, not one."""
    node = looking(max_delete_percent=None, confirm_runs=2)
    shop.has(*range(6))
    shop.run(node)
    shop.has(*range(4), v="b")  # 4 and 5 are missing, and 5 only for a moment
    assert again(shop, node, 0, 1, 2, 3, 5).deleted == 0
    shop.has(*range(4), v="b")
    assert shop.run(node).deleted == 1
    assert shop.gone() == [4]
    assert shop.run(node).deleted == 1
    assert shop.gone() == [4, 5]


@pytest.mark.parametrize("back", [(4,), (4, 5)], ids=["some", "all"])
def test_what_a_failed_attempt_held_is_not_held_by_its_retry(
    shop: Shop, back: tuple[int, ...]
) -> None:
    """Its notes go, also when the second attempt has nothing to note."""
    node = {**looking(max_delete_percent=10, on_threshold_breach="hold"), "change_log": "deletes"}
    shop.has(*range(6))
    shop.run(node)
    shop.has(*range(4), v="b")
    assert again(shop, node, *range(4), *back).held == 2 - len(back)
    held = [row.key for rows in shop.project.holds().values() for row in rows]
    assert held == ['{"id": 5}'][: 2 - len(back)]


# --- a decision beside a run -------------------------------------------------------------------------------


def two_held(shop: Shop) -> dict[str, Any]:
    """A node whose last run holds the deletes of 0 and 1."""
    node = looking(max_delete_percent=5, on_threshold_breach="hold")
    for first in (0, 2):
        shop.has(*range(first, 10))
        shop.run(node)
    return node


@pytest.mark.parametrize("dies", [False, True], ids=["lives", "dies"])
def test_a_rejection_stays_beside_a_run_that_commits_at_the_same_time(
    shop: Shop, dies: bool
) -> None:
    """The run could not see the rejection: that is a note of its own, and stays."""
    node, passed = two_held(shop), list[Any]()
    holder = shop.last.run_id

    def rejected(name: str, _node: str | None) -> None:
        if name == "commit.before" and not passed:
            passed.append(shop.project.reject(holder).exit_code)
        if name == "log.before" and dies and passed == [0]:
            passed.append(name)
            raise failpoints.InjectedFault(name)

    shop.has(*range(1, 10), v="b")  # 1 is back, and seen by what lands; 0 is not
    with failpoints.armed(rejected), suppress(StrandlineError):
        shop.run(node)
    assert passed[0] == 0
    assert shop.run(node).held == 0
    assert shop.project.holds() == {}
    told = {
        (row.verb, row.key): row.reason
        for row in shop.project.store.changes()
        if row.verb in ("seen", "reject")
    }
    rejections = [("reject", '{"id": 0}'), ("reject", '{"id": 1}')]
    assert sorted(told) == [*rejections, ("seen", '{"id": 1}')]
    assert f"held by run {holder}" in told["reject", '{"id": 0}']
    shop.has(*range(2, 10), v="c")
    assert shop.run(node).held == 1  # 1 was seen since: its delete is held anew; 0 stays silent
    assert shop.gone() == []


def test_undoing_a_run_beside_a_rejection_leaves_that_as_it_is(shop: Shop) -> None:
    node, passed = two_held(shop), list[Any]()
    holder = shop.last.run_id

    def rejected(name: str, _node: str | None) -> None:
        if name == "commit.before" and not passed:
            passed.append(shop.project.reject(holder).exit_code)

    shop.has(*range(2, 10), v="b")
    with failpoints.armed(rejected):
        shop.run(node)
    shop.project.undo(shop.last.run_id, platform=shop.platform)
    assert (shop.project.holds(), shop.run(node).held) == ({}, 0)


def test_an_approval_ends_with_its_table(shop: Shop) -> None:
    two_held(shop)
    with failpoints.armed("commit.before:raise"):
        shop.project.approve(shop.last.run_id, platform=shop.platform)
    shutil.rmtree(shop.folder / "lake" / "t")
    shop.project.retry(platform=shop.platform)
    assert (shop.project.holds(), shop.gone()) == ({}, [])  # made anew, and nothing is held of it
