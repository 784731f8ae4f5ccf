"""Deletes that wait for a person, plans that are kept and followed, and the story of one row."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.shop import ERP, Shop

from strandline.cli.main import main
from strandline.errors import DeleteThresholdExceeded, EmptySource, StalePlan, UsageError
from strandline.result import NodeResult
from strandline.run.observer import Observer
from strandline.testing.frames import read_table
from strandline.testing.projects import make_project

ROWS = [(i, f"name {i}") for i in range(10)]


class TenRows(Shop):
    """A source of ten rows, a Bronze of snapshots, and a Silver that holds more than a fifth of deletes."""

    def __init__(self, folder: Path, platform: Any, mode: str = "upsert", **limits: Any) -> None:
        super().__init__(folder, platform)
        self.sql("CREATE TABLE c (id INTEGER, name TEXT)")
        self.sql(*(f"INSERT INTO c VALUES ({i}, '{name}')" for i, name in ROWS))
        params = {
            "mode": "snapshot_diff",
            "keys": ["id"],
            "max_delete_percent": 20,
            "on_threshold_breach": "hold",
        }
        detect = {"operation": "detect_deletes", "params": params | limits}
        nodes = [
            {
                "name": "bronze",
                "read": {"connection": "erp", "table": "c"},
                "write": {"connection": "lake", "table": "bronze", "mode": "append"},
            },
            {
                "name": "silver",
                "read": {"connection": "lake", "table": "bronze"},
                "transform": {"steps": [detect]},
                "write": {"connection": "lake", "table": "silver", "mode": mode, "keys": ["id"]},
            },
            {
                "name": "gold",
                "read": {"connection": "lake", "table": "silver"},
                "transformation_sql": "SELECT count(*) AS n FROM source",
                "write": {"connection": "lake", "table": "gold", "mode": "overwrite"},
            },
        ]
        self.nodes, self.erp = nodes, ERP["erp"]
        self.declare(*nodes)

    def silver(self, result: Any) -> Any:
        return next(n for n in result.nodes if n.name == "silver")

    def alive(self) -> set[int]:
        return {r for (r,) in self.living("silver", "id")}

    def counted(self) -> int:
        return int(self.stored("gold")[0]["n"])


class Watching(Observer):
    """Remembers which nodes it was told of."""

    def __init__(self) -> None:
        self.told: list[NodeResult] = []

    def finished(self, result: NodeResult) -> None:
        self.told.append(result)


@pytest.fixture
def shop(tmp_path: Path, platform: Any) -> Shop:
    return TenRows(tmp_path, platform)


@pytest.mark.lakes
def test_a_mass_delete_is_held_approved_and_applied(shop: Shop) -> None:
    shop.run()
    shop.sql("DELETE FROM c WHERE id > 5", "UPDATE c SET name = 'new' WHERE id = 1")
    first = shop.run()
    held = shop.silver(first)
    assert (held.status, held.held, held.deleted, held.updated) == ("held", 4, 0, 1)
    assert first.exit_code == 3
    assert shop.alive() == set(range(10))
    assert shop.counted() == 10

    again = shop.silver(shop.run())  # still missing: stays, counted, not held twice
    assert (again.status, again.held) == ("held", 4)
    assert {n: len(rows) for n, rows in shop.project.holds().items()} == {"silver": 4}

    shop.sql("INSERT INTO c VALUES (8, 'back')")
    seen = shop.silver(shop.run())  # seen: its hold is cancelled
    assert (seen.status, seen.held, seen.updated) == ("held", 3, 1)

    approved = shop.project.approve(first.run_id, platform=shop.platform, check=True)
    assert [(n.name, n.deleted, n.held, n.status) for n in approved.nodes] == [
        ("silver", 3, 0, "success")
    ]
    assert shop.alive() == {0, 1, 2, 3, 4, 5, 8}
    assert shop.project.holds() == {}
    assert shop.silver(shop.run()).status == "unchanged"
    assert shop.counted() == 7
    with pytest.raises(UsageError, match="holds no deletes"):
        shop.project.approve(first.run_id, platform=shop.platform)


@pytest.mark.lakes
@pytest.mark.long_on_spark
def test_rejected_deletes_are_silent_until_the_key_is_seen_again(shop: Shop) -> None:
    shop.run()
    shop.sql("DELETE FROM c WHERE id > 5")
    shop.project.reject(shop.run().run_id)
    quiet = shop.run()
    assert (shop.silver(quiet).status, quiet.exit_code) == ("unchanged", 0)
    assert shop.alive() == set(range(10))

    shop.sql("INSERT INTO c VALUES (6, 'name 6')")
    shop.run()  # seen again, and gone once more: that is news
    shop.sql("DELETE FROM c WHERE id = 6")
    assert shop.silver(shop.run()).deleted == 1
    assert shop.alive() == set(range(10)) - {6}


@pytest.mark.lakes
@pytest.mark.long_on_spark
def test_approved_deletes_of_a_history_close_their_versions(tmp_path: Path, platform: Any) -> None:
    shop = TenRows(tmp_path, platform, mode="scd2")
    shop.run()
    shop.sql("DELETE FROM c WHERE id > 5")
    run_id = shop.run().run_id
    shop.project.approve(run_id, platform=platform, check=True)
    rows = {r["id"]: r for r in read_table(tmp_path / "lake" / "silver").rows}
    assert {i for i, r in rows.items() if r["_is_deleted"]} == {6, 7, 8, 9}
    assert all(
        r["_is_current"] == (r["_valid_to"] is None) == (not r["_is_deleted"])
        for r in rows.values()
    )


@pytest.mark.lakes
@pytest.mark.long_on_spark
def test_a_plan_shows_the_deletes_and_is_followed_exactly(shop: Shop) -> None:
    shop.run()
    shop.sql("DELETE FROM c WHERE id = 3", "INSERT INTO c VALUES (10, 'name 10')")
    file = shop.folder / "today.plan"
    plan = shop.project.plan(platform=shop.platform, out=file)
    silver = shop.silver(plan)
    assert (silver.deleted, silver.verdict, silver.delete_percent) == (1, "apply", 10.0)
    assert silver.sample_deletes == [{"id": 3}]
    assert silver.reason == "absent from the newest snapshot"
    assert shop.alive() == set(range(10))

    shop.sql("DELETE FROM c")  # what happens to the source meanwhile is not in the plan
    result = shop.project.follow(file, platform=shop.platform, check=True)
    assert [(n.name, n.inserted, n.deleted) for n in result.nodes] == [
        ("bronze", 10, 0), ("silver", 1, 1), ("gold", 0, 0)
    ]  # fmt: skip
    assert shop.alive() == set(range(11)) - {3}
    with pytest.raises(StalePlan, match="stale plan"):
        shop.project.follow(file, platform=shop.platform)
    empty = shop.silver(shop.run())  # and now the empty source is held, as ever
    assert (empty.held, empty.deleted) == (10, 0)


REFUSED: dict[str, tuple[dict[str, Any], str, int, float, type[DeleteThresholdExceeded], str]] = {
    "too many": (
        {"max_delete_percent": 10, "on_threshold_breach": "error"},
        "DELETE FROM c WHERE id > 7",
        2,
        20.0,
        DeleteThresholdExceeded,
        "20.0% exceeds 10.0%",
    ),
    "no source": (
        {"on_empty_source": "error"},
        "DELETE FROM c",
        10,
        100.0,
        EmptySource,
        "the source came back empty, so 10 of 10 rows of lake.silver would be deleted",
    ),
}


@pytest.mark.long_on_spark
@pytest.mark.parametrize("why", REFUSED)
def test_a_plan_shows_the_deletes_that_a_run_would_refuse(
    tmp_path: Path, platform: Any, why: str
) -> None:
    limits, gone, found, percent, kind, message = REFUSED[why]
    shop = TenRows(tmp_path, platform, **limits)
    shop.run()
    shop.sql("UPDATE c SET name = 'new' WHERE id = 1", gone)
    file = tmp_path / "refused.plan"
    plan = shop.project.plan(platform=platform, out=file)
    silver = shop.silver(plan)
    assert (silver.status, silver.verdict, silver.found_deletes) == ("failed", "refuse", found)
    assert (silver.delete_percent, silver.reason) == (percent, "absent from the newest snapshot")
    assert silver.sample_deletes == [{"id": i} for i in range(10 - found, 10)][:5]
    assert (silver.error["code"], silver.error["message"]) == (kind.code, message)
    assert (silver.inserted, silver.updated, silver.deleted, silver.held) == (0, 0, 0, 0)
    assert ([n.status for n in plan.nodes][1:], plan.exit_code) == (["failed", "skipped"], 1)

    before = read_table(tmp_path / "lake" / "silver").rows
    followed = shop.project.follow(file, platform=platform)  # it ends as the plan has said
    assert [(n.name, n.status) for n in followed.nodes] == [(n.name, n.status) for n in plan.nodes]
    assert shop.silver(followed).error == silver.error
    with pytest.raises(kind) as ended:
        shop.run()
    assert (str(ended.value), ended.value.found, ended.value.percent) == (message, found, percent)
    assert read_table(tmp_path / "lake" / "silver").rows == before
    assert shop.project.holds() == {}
    assert {r.status for r in shop.project.store.runs() if r.node == "silver"} == {
        "success",
        "failed",
    }


def test_refused_deletes_are_told_in_words_and_in_data(
    tmp_path: Path, pandas_platform, capsys
) -> None:
    shop = TenRows(tmp_path, pandas_platform, on_threshold_breach="error")
    shop.run()
    shop.sql("DELETE FROM c WHERE id > 5")

    def plan(*options: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["plan", "--project-dir", str(tmp_path), "--engine", "pandas", *options])
        assert ended.value.code == 1
        return str(capsys.readouterr().out)

    file = str(tmp_path / "kept.plan")
    told = plan("--out", file)
    assert (
        "4 rows (40.0% of the living rows) would be deleted, which is refused: absent from the newest sn"
        in told
    )
    assert "for example id=6; id=7; id=8; id=9" in told
    assert (
        "1 node would fail, because the deletes are refused. 1 node would be skipped. Nothing was written."
        in told
    )
    assert f"Kept in {file}" in told
    silver = json.loads(plan("--json"))["nodes"][1]
    assert (silver["verdict"], silver["found_deletes"], silver["delete_percent"]) == (
        "refuse",
        4,
        40.0,
    )
    assert (silver["sample_deletes"][0], silver["error"]["code"]) == ({"id": 6}, "delete_threshold")


def test_a_plan_is_stale_when_a_table_the_records_or_the_configuration_moved(
    tmp_path: Path, pandas_platform
) -> None:
    shop = TenRows(tmp_path, pandas_platform)
    shop.run()
    file = tmp_path / "a.plan"
    shop.project.plan(platform=pandas_platform, out=file)
    shop.run(select="bronze")
    with pytest.raises(StalePlan, match="batch"):
        shop.project.follow(file, platform=pandas_platform)
    shop.project.plan(select="gold", platform=pandas_platform, out=file)
    shop.sql("UPDATE c SET name = 'x'")
    shop.run(select="+silver")
    with pytest.raises(StalePlan, match=r"lake\.silver was at version \d+, and is at \d+"):
        shop.project.follow(file, platform=pandas_platform)
    shop.project.plan(select="gold", platform=pandas_platform, out=file)
    changed = make_project(tmp_path, [], engine="pandas")
    with pytest.raises(StalePlan, match="configuration"):
        changed.follow(file, platform=pandas_platform)
    file.write_text("no plan")
    with pytest.raises(UsageError, match="is not a plan"):
        shop.project.follow(file, platform=pandas_platform)
    for text in ("[]", "null", "1", "{"):
        with zipfile.ZipFile(file, "w") as plan:
            plan.writestr("plan.json", text)
        with pytest.raises(UsageError, match="is not a plan"):
            shop.project.follow(file, platform=pandas_platform)


@pytest.mark.lakes
def test_a_row_tells_its_story(tmp_path: Path, pandas_platform) -> None:
    shop = TenRows(tmp_path, pandas_platform)
    shop.run()
    shop.sql("UPDATE c SET name = 'changed' WHERE id = 7")
    shop.run()
    shop.sql("DELETE FROM c WHERE id = 7")
    shop.run()
    shop.sql("INSERT INTO c VALUES (7, 'changed')")
    shop.run()
    shop.sql("DELETE FROM c WHERE id > 5")
    held = shop.run()
    shop.project.reject(held.run_id)
    story = shop.project.explain("silver", {"ID": "7"})
    assert [e.event for e in story.events] == [
        "inserted",
        "changed",
        "deleted",
        "revived",
        "held",
        "rejected",
    ]
    assert [e.batch for e in story.events] == [1, 2, 3, 4, 5, 6]
    changed, deleted, hold = story.events[1], story.events[2], story.events[4]
    assert changed.changes["name"] == ("name 7", "changed")
    assert (deleted.mode, deleted.reason) == ("snapshot_diff", "absent from the newest snapshot")
    assert hold.run_id == held.run_id
    assert "40.0% exceeds 20.0%" in hold.reason
    assert [r["name"] for r in story.now] == ["changed"]
    assert json.loads(json.dumps(story.as_dict(), default=str))["events"][0]["event"] == "inserted"
    assert shop.project.explain("silver", {"id": "4711"}).events == []
    with pytest.raises(UsageError, match="the keys of node `silver` are id"):
        shop.project.explain("silver", {"name": "x"})


def test_a_key_that_is_null_has_a_story_too(tmp_path: Path, pandas_platform) -> None:
    shop = TenRows(tmp_path, pandas_platform)
    shop.sql("INSERT INTO c VALUES (NULL, 'nobody')")
    shop.run()
    story = shop.project.explain("silver", {"id": "NULL"})
    assert [(e.event, r["name"]) for e, r in zip(story.events, story.now, strict=True)] == [
        ("inserted", "nobody")
    ]
    assert story.key == {"id": None}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("silver", "--key", "id=abc"), "the key id=abc is not a bigint"),
        (("silver", "--key", "id=1", "--key", "ID=2"), "--key: `ID` is given twice"),
        (("sliver", "--key", "id=1"), "there is no node `sliver`\n    → did you mean `silver`?"),
        (("+silver", "--key", "id=1"), "there is no node `+silver`"),
    ],
)
def test_explain_says_what_is_wrong_with_the_question(
    tmp_path: Path, pandas_platform, capsys, args, message
) -> None:
    TenRows(tmp_path, pandas_platform).run()
    with pytest.raises(SystemExit) as ended:
        main(["explain", *args, "--project-dir", str(tmp_path)])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


KEPT = {"connection": "lake", "table": "silver", "mode": "upsert", "keys": ["id"]}
DETECT = {"mode": "snapshot_diff", "keys": ["id", "name"]}
WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "no step": ({"transform": None}, "node `silver` no longer looks for deletes"),
    "ignored": (
        {"write": KEPT | {"delete_strategy": "ignore"}},
        "node `silver` no longer looks for deletes",
    ),
    "other keys": (
        {
            "write": KEPT | {"keys": ["id", "name"]},
            "transform": {"steps": [{"operation": "detect_deletes", "params": DETECT}]},
        },
        "the keys of node `silver` are (id, name) now, and they are held by (id)",
    ),
    "another table": (
        {"write": KEPT | {"table": "gilded"}},
        "node `silver` writes lake.gilded now, and they are held for lake.silver",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_nobody_looks_for_any_more_cannot_be_approved_but_rejected(
    tmp_path: Path, pandas_platform, way
) -> None:
    changed, why = WAYS[way]
    shop = TenRows(tmp_path, pandas_platform)
    shop.run()
    shop.sql("DELETE FROM c WHERE id > 5")
    held = shop.run().run_id
    bronze, silver, _ = shop.nodes
    node = {k: v for k, v in {**silver, **changed}.items() if v is not None}
    shop.project = make_project(tmp_path, [bronze, node], connections={"erp": shop.erp})
    with pytest.raises(UsageError) as refused:
        shop.project.approve(held, platform=pandas_platform)
    assert why in str(refused.value)
    assert f"strandline reject {held}" in str(refused.value)
    assert len(shop.project.holds()["silver"]) == 4
    shop.project.reject(held)
    assert shop.project.holds() == {}


def two_that_hold(shop: Shop) -> tuple[str, dict[str, Any]]:
    """A run in which Silver and a second node like it hold deletes, and that node."""
    bronze, silver, _ = shop.nodes
    second = silver | {"name": "second", "write": silver["write"] | {"table": "second"}}
    shop.project = make_project(
        shop.folder, [bronze, silver, second], connections={"erp": shop.erp}
    )
    shop.run()
    shop.sql("DELETE FROM c WHERE id > 5")
    return shop.run().run_id, second


def test_what_one_node_no_longer_looks_for_keeps_no_other_from_being_approved(
    tmp_path: Path, pandas_platform
) -> None:
    shop = TenRows(tmp_path, pandas_platform)
    held, second = two_that_hold(shop)
    second.pop("transform")
    shop.project = make_project(tmp_path, [*shop.nodes[:2], second], connections={"erp": shop.erp})
    watch = Watching()
    result = shop.project.approve(held, platform=pandas_platform, observer=watch)
    assert watch.told == result.nodes
    assert [(n.name, n.status, n.deleted) for n in result.nodes] == [
        ("silver", "success", 4),
        ("second", "failed", 0),
    ]
    assert (result.status, result.exit_code) == ("failed", 1)
    assert "no longer looks for deletes" in result.nodes[1].error["message"]
    assert list(shop.project.holds()) == ["second"]
    shop.project.reject(held)
    assert shop.project.holds() == {}


def test_approving_says_why_it_ends_as_it_does(tmp_path: Path, pandas_platform, capsys) -> None:
    shop = TenRows(tmp_path, pandas_platform)
    held, second = two_that_hold(shop)
    ignoring = second | {"write": second["write"] | {"delete_strategy": "ignore"}}
    make_project(tmp_path, [*shop.nodes[:2], ignoring], connections={"erp": shop.erp})
    with pytest.raises(SystemExit) as ended:
        main(["approve", held, "--project-dir", str(tmp_path), "--engine", "pandas"])
    told = capsys.readouterr().out
    assert (ended.value.code, "4 deletes applied" in told) == (1, True)
    assert (
        f"the deletes held by run {held} cannot be approved: node `second` no longer looks for deletes"
        in told
    )
    assert f"strandline reject {held}" in told


def test_holds_of_a_node_that_is_gone_say_so(tmp_path: Path, pandas_platform) -> None:
    shop = TenRows(tmp_path, pandas_platform)
    shop.run()
    shop.sql("DELETE FROM c WHERE id > 5")
    held = shop.run().run_id
    shop.project = make_project(tmp_path, shop.nodes[:1], connections={"erp": shop.erp})
    for decide in (shop.project.approve, shop.project.reject):
        with pytest.raises(UsageError, match="which no node of this project writes now"):
            decide(held)


def test_status_tells_how_many_deletes_are_held(tmp_path: Path, pandas_platform, capsys) -> None:
    shop = TenRows(tmp_path, pandas_platform)
    shop.run()
    shop.sql("DELETE FROM c WHERE id > 5")
    held = shop.run()
    for options in ([], ["--json"]):
        with pytest.raises(SystemExit):
            main(["status", "--project-dir", str(tmp_path), *options])
    text, _, facts = capsys.readouterr().out.partition("{")
    assert (
        " ".join(text.split()).count(f"4 deletes held by run {held.run_id}: strandline approve")
        == 1
    )
    nodes = json.loads("{" + facts)["nodes"]
    assert [n["holds"] for n in nodes] == [{}, {held.run_id: 4}, {}]
    assert [n["status"] for n in nodes] == ["SUCCESS", "HELD", "SUCCESS"]
    assert [line.split()[:2] for line in text.splitlines() if line.startswith("silver")] == [
        ["silver", "held"]
    ]


def test_a_plan_over_open_holds_holds_them(tmp_path: Path, pandas_platform, capsys) -> None:
    shop = TenRows(tmp_path, pandas_platform)
    shop.run()
    shop.sql("DELETE FROM c WHERE id > 5")
    shop.run()
    planned = shop.silver(shop.project.plan(platform=pandas_platform))
    assert (planned.status, planned.verdict, planned.held, planned.deleted) == (
        "held",
        "hold",
        4,
        0,
    )
    shop.sql("DELETE FROM c WHERE id = 5")  # few enough to be applied, beside the others
    planned = shop.silver(shop.project.plan(platform=pandas_platform))
    assert (planned.status, planned.verdict, planned.held, planned.deleted) == (
        "held",
        "hold",
        4,
        1,
    )
    with pytest.raises(SystemExit):
        main(["plan", "--project-dir", str(tmp_path), "--select", "+silver"])
    told = capsys.readouterr().out
    assert (
        "1 row (10.0% of the living rows) would be deleted: absent from the newest snapshot" in told
    )
    assert "4 deletes would be held." in told


def test_a_plan_that_cannot_be_kept_is_told_before_it_is_made(
    tmp_path: Path, pandas_platform
) -> None:
    shop = TenRows(tmp_path, pandas_platform)
    with pytest.raises(UsageError, match=r"nodir/x: there is no folder .*nodir\n"):
        shop.project.plan(platform=pandas_platform, out=tmp_path / "nodir" / "x")
    with pytest.raises(UsageError, match="is a folder"):
        shop.project.plan(platform=pandas_platform, out=tmp_path)


def test_notes_of_a_run_that_died_before_its_record_do_not_count(
    tmp_path: Path, pandas_platform, monkeypatch
) -> None:
    shop = TenRows(tmp_path, pandas_platform)
    shop.run()
    shop.sql("DELETE FROM c WHERE id > 5")
    shop.run(select="bronze")

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("strandline.run.record.Recorder.record", dies)
        with pytest.raises(KeyboardInterrupt):
            shop.run(select="silver")
    assert shop.project.holds() == {}
    result = shop.run(select="silver")
    assert shop.silver(result).held == 4
    assert {r.run_id for r in shop.project.holds()["silver"]} == {result.run_id}
