"""`undo` and `retry` from the command line."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.conftest import FAILING, Call, add

import strandline

SHOP = ("--project-dir", "shop")


def test_a_run_is_taken_back(cli: Call, shop: Path) -> None:
    first = cli("run", *SHOP, "--json").json["run_id"]
    dry = cli("undo", first, *SHOP, "--dry-run", "--json")
    assert dry.code == 0
    assert (dry.json["undone"], dry.json["dry_run"], dry.json["status"]) == (first, True, "success")
    assert all(n["version"] is None and n["deleted"] for n in dry.json["nodes"])
    assert "nothing was written" in cli("undo", first, *SHOP, "--dry-run").out

    orders = shop / "landing" / "orders.csv"
    orders.write_text(orders.read_text().replace("1,", "1001,", 1) + "")
    second = cli("run", *SHOP, "--json").json["run_id"]
    refused = cli("undo", first, *SHOP, "--json")
    assert refused.code == 2
    assert refused.json["error"]["code"] == "undo_refused"
    assert any(second in text for text in refused.json["error"]["obstacles"])
    assert second in cli("undo", first, *SHOP).err

    assert cli("undo", "latest", *SHOP, "--dry-run", "--json").json["undone"] == second
    undone = cli("undo", second[-8:], *SHOP, "--json")
    assert (undone.code, undone.json["undone"]) == (0, second)
    assert list(undone.json) == ["run_id", "status", "nodes", "undone", "dry_run", "held"]
    again = cli("undo", second, *SHOP)
    assert again.code == 2
    assert f"is already undone, by run {undone.json['run_id']}" in again.err
    history = cli("history", *SHOP).out
    assert all(run in history for run in (first, second))
    assert f"    taken back by run {undone.json['run_id']}" in history.splitlines()
    assert f"    takes back run {second}" in history.splitlines()
    told = cli("undo", first, *SHOP).out
    assert f"run {first} is undone" in told
    assert cli("undo", "nothing", *SHOP, "--json").json["error"]["code"] == "usage"


def test_only_what_failed_is_tried_again(cli: Call, shop: Path) -> None:
    assert "nothing to retry" in cli("retry", *SHOP).out
    add(shop, FAILING)
    assert cli("run", *SHOP).code == 1
    file = shop / "strandline.yaml"
    file.write_text(file.read_text().replace("amout", "amount"))
    again = cli("retry", *SHOP, "--json")
    assert again.code == 0
    assert [(n["name"], n["status"]) for n in again.json["nodes"]] == [
        ("gold_wrong", "success"),
        ("gold_after", "success"),
    ]
    nothing = cli("retry", *SHOP, "--json")
    assert (nothing.code, nothing.json) == (0, {"run_id": None, "status": "success", "nodes": []})


def test_status_and_history_tell_of_a_recovery(cli: Call, shop: Path) -> None:
    from strandline import failpoints

    with failpoints.armed("log.before@silver_orders:raise"):
        assert cli("run", *SHOP).code == 1
    assert cli("run", *SHOP).code == 0
    states = {n["name"]: n for n in cli("status", *SHOP, "--json").json["nodes"]}
    text = "finished the record of batch 1, which had landed before its runner died"
    assert states["silver_orders"]["recovery"]["done"] == text
    assert states["bronze_orders"]["recovery"] is None
    assert text in " ".join(cli("status", *SHOP).out.split())
    batches = cli("history", *SHOP, "--node", "silver_orders", "--json").json["batches"]
    assert any(b["recovery"] == text for b in batches)
    assert all(isinstance(b["metrics"], dict) for b in batches)


def test_status_says_that_a_failed_undo_is_asked_for_again(cli: Call, shop: Path) -> None:
    from strandline import failpoints

    first = cli("run", *SHOP, "--json").json["run_id"]
    with failpoints.armed("commit.before@silver_orders:raise"):
        assert cli("undo", first, *SHOP).code == 1
    states = {n["name"]: n for n in cli("status", *SHOP, "--json").json["nodes"]}
    assert states["silver_orders"]["status"] == "FAILED"
    assert f"strandline undo {first}" in states["silver_orders"]["meaning"]
    assert "the next run does it again" not in states["silver_orders"]["meaning"]
    assert cli("undo", first, *SHOP).code == 0
    assert all(
        n["status"] == "SUCCESS" and not n["meaning"]
        for n in cli("status", *SHOP, "--json").json["nodes"]
    )


def test_an_undo_that_was_left_half_way_is_told_until_it_is_finished(cli: Call, shop: Path) -> None:
    from strandline import failpoints

    first = cli("run", *SHOP, "--json").json["run_id"]
    assert cli("status", *SHOP, "--json").json["half_undone"] == []
    with failpoints.armed("undo.after@silver_orders:raise"):
        assert cli("undo", first, *SHOP).code == 1
    (half,) = cli("status", *SHOP, "--json").json["half_undone"]
    assert half["run_id"] == first
    assert half["left"] == ["silver_customers", "bronze_orders", "bronze_customers"]
    assert f"strandline undo {first}" in cli("status", *SHOP).out
    stopped = cli("retry", *SHOP, "--json")
    assert stopped.code == 2
    assert f"strandline undo {first}" in stopped.json["error"]["hint"]
    assert cli("undo", first, *SHOP).code == 0
    assert cli("status", *SHOP, "--json").json["half_undone"] == []
    assert cli("retry", *SHOP).code == 0


def test_a_run_that_went_on_ends_a_half_undo(cli: Call, shop: Path) -> None:
    from strandline import failpoints

    first = cli("run", *SHOP, "--json").json["run_id"]
    with failpoints.armed("undo.after@silver_orders:raise"):
        cli("undo", first, *SHOP)
    assert cli("run", *SHOP).code == 0
    assert cli("status", *SHOP, "--json").json["half_undone"] == []
    assert cli("retry", *SHOP).code == 0


def test_targets_that_a_run_takes_back_itself_are_no_half_undo(cli: Call, shop: Path) -> None:
    from strandline import failpoints

    add(
        shop,
        """
  - name: gold_twice
    read: {connection: silver, table: orders}
    write:
      - {connection: gold, table: one, mode: overwrite}
      - {connection: gold, table: two, mode: overwrite}
""",
    )
    with failpoints.armed("commit.before@gold_twice.two:raise"):
        assert cli("run", *SHOP).code == 1
    assert any(b["takes_back"] for b in cli("history", *SHOP, "--json").json["batches"])
    assert cli("status", *SHOP, "--json").json["half_undone"] == []
    assert cli("retry", *SHOP).code == 0


@pytest.fixture
def held(cli: Call, shop: Path) -> str:
    """A shop in which a run holds a delete of `silver_customers`; returns that run."""
    assert cli("run", *SHOP).code == 0
    customers = shop / "landing" / "customers.csv"
    customers.write_text("".join(customers.read_text().splitlines(keepends=True)[:-1]))
    answer = cli("run", *SHOP, "--json")
    assert answer.code == 3
    return str(answer.json["run_id"])


def test_an_undo_tells_of_the_holds_that_go_with_it(cli: Call, held: str) -> None:
    assert cli("undo", held, *SHOP, "--dry-run", "--json").json["held"] == {"silver_customers": 1}
    assert (
        "1 held delete of silver_customers would go with it"
        in cli("undo", held, *SHOP, "--dry-run").out
    )
    assert "    1 held" in cli("history", *SHOP).out.splitlines()
    undone = cli("undo", held, *SHOP)
    assert "1 held delete of silver_customers is gone with it" in undone.out
    assert all(not n["holds"] for n in cli("status", *SHOP, "--json").json["nodes"])


def test_what_is_held_ends_with_its_table(cli: Call, shop: Path, held: str) -> None:
    shutil.rmtree(shop / "lake" / "silver" / "customers")
    refused = cli("approve", held, *SHOP)
    assert refused.code == 2
    assert "the table silver.customers is gone, and what is held ends with it" in refused.err
    assert not (shop / "lake" / "silver" / "customers").exists()


def test_an_approval_that_fails_says_that_they_are_still_held(cli: Call, held: str) -> None:
    from strandline import failpoints

    with failpoints.armed("commit.before@silver_customers:raise"):
        failed = cli("approve", held, *SHOP)
    assert failed.code == 1
    assert f"1 delete still held by run {held}" in failed.out
    assert "applied" not in failed.out


def test_a_retry_tells_of_held_deletes_as_a_run_does(cli: Call, held: str) -> None:
    from strandline import failpoints

    with failpoints.armed("judged@silver_customers:raise"):
        assert cli("run", *SHOP).code == 1
    again = cli("retry", *SHOP)
    assert again.code == 3
    assert f"strandline approve {held}" in again.out


def test_nothing_to_retry_says_why(cli: Call, shop: Path) -> None:
    assert "nothing to retry: no run yet" in cli("retry", *SHOP).out
    run = cli("run", *SHOP, "--json").json["run_id"]
    assert f"nothing to retry: run {run} came to its end" in cli("retry", *SHOP).out


def test_status_names_what_older_runs_left(cli: Call, shop: Path) -> None:
    add(shop, FAILING)
    run = cli("run", *SHOP, "--json").json["run_id"]
    nodes = ["gold_wrong", "gold_after"]
    assert cli("status", *SHOP, "--json").json["left"] == [{"run_id": run, "nodes": nodes}]
    assert "strandline retry" in cli("status", *SHOP).out
    assert cli("run", *SHOP, "--select", "bronze_orders").code == 0
    assert cli("status", *SHOP, "--json").json["left"] == [{"run_id": run, "nodes": nodes}]
    assert 'strandline run --select "gold_wrong+, gold_after+"' in cli("status", *SHOP).out
    assert "nothing to retry" in cli("retry", *SHOP).out


def test_a_run_that_does_not_exist_is_undone_without_a_trace(cli: Call, shop: Path) -> None:
    from strandline import failpoints

    with failpoints.armed("log.before@bronze_orders:raise"):
        cli("run", *SHOP)
    records = shop / "lake" / "bronze" / "_strandline"
    before = sorted(p for p in records.rglob("*.json"))
    answer = cli("undo", "nope", *SHOP)
    assert answer.code == 2
    assert "there is no run `nope`" in answer.err
    assert sorted(p for p in records.rglob("*.json")) == before


def test_a_failed_node_says_how_long_it_took(cli: Call, shop: Path) -> None:
    from strandline import failpoints

    with failpoints.armed("commit.before@gold_revenue:raise"):
        nodes = {n["name"]: n for n in cli("run", *SHOP, "--json").json["nodes"]}
    assert nodes["gold_revenue"]["status"] == "failed"
    assert nodes["gold_revenue"]["seconds"] > 0


def test_commands_that_are_suggested_can_be_pasted(cli: Call, shop: Path) -> None:
    assert "strandline plan --project-dir 'a b'" in cli("init", "a b").out
    assert (
        "strandline run --plan 'p l.plan'"
        in cli("plan", "--project-dir", "a b", "--out", "p l.plan").out
    )
    folder = cli("run", *SHOP, "--plan", "shop", "--json")
    assert (folder.code, folder.json["error"]["code"]) == (2, "usage")
    assert "is a folder" in folder.json["error"]["message"]


def test_a_remark_is_not_named_as_the_newest_run(cli: Call, shop: Path) -> None:
    from strandline.control.undo import takings
    from strandline.errors import UsageError

    run = cli("run", *SHOP, "--json").json["run_id"]
    rows = strandline.load(shop).store.runs()
    remark = replace(rows[0], run_id="mender", status="recovered")
    with pytest.raises(UsageError) as told:
        takings([remark, *rows], "nope", set())
    assert told.value.problems[0].hint == f"the newest is {run}"
