"""Each command on a project that is right: what it prints, what it counts, what it leaves alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import FAILING, Call, add

NODES = ["bronze_customers", "bronze_orders", "silver_customers", "silver_orders", "gold_revenue"]
RESULT_KEYS = [
    "name", "status", "rows_read", "inserted", "updated", "deleted", "reopened", "held", "version", "seconds",
    "warnings", "error",
]  # fmt: skip


def test_init_writes_a_project_that_runs_twice(cli: Call, shop: Path) -> None:
    assert cli("validate", "--project-dir", "shop").code == 0
    first = cli("run", "--project-dir", "shop", "--json")
    assert first.code == 0
    assert [n["status"] for n in first.json["nodes"]] == ["success"] * 5
    second = cli("run", "--project-dir", "shop", "--json").json
    assert [n["status"] for n in second["nodes"]] == ["success"] * 2 + ["unchanged"] * 3


def test_init_here_or_where_told(cli: Call, tmp_path: Path) -> None:
    assert cli("init").code == 0
    answer = cli("init", "deep/down", "--json")
    assert answer.json["files"] == [
        f"deep/down/{f}" for f in ("strandline.yaml", "landing/customers.csv", "landing/orders.csv")
    ]
    assert cli("init", "--project-dir", "other").code == 0
    assert (tmp_path / "other/strandline.yaml").is_file()
    assert (tmp_path / "strandline.yaml").is_file()


def test_init_overwrites_nothing(cli: Call, tmp_path: Path) -> None:
    mine = tmp_path / "landing" / "orders.csv"
    mine.parent.mkdir()
    mine.write_text("mine")
    answer = cli("init")
    assert answer.code == 2
    assert "landing/orders.csv is there already" in answer.err
    assert mine.read_text() == "mine"
    assert not (tmp_path / "strandline.yaml").exists()


def test_run_json_has_the_promised_shape(cli: Call, shop: Path) -> None:
    answer = cli("run", "--project-dir", "shop", "--json").json
    assert list(answer) == ["run_id", "status", "nodes"]
    assert answer["status"] == "success"
    assert sorted(n["name"] for n in answer["nodes"]) == sorted(NODES)
    assert all(list(n) == RESULT_KEYS for n in answer["nodes"])


def test_the_summary_adds_up(cli: Call, shop: Path) -> None:
    add(shop, FAILING)
    answer = cli("run", "--project-dir", "shop")
    assert answer.code == 1
    assert "7 nodes: 5 succeeded, 1 failed, 1 skipped in " in answer.out
    assert "rows: 35 read, 26 inserted, 0 updated, 0 deleted" in answer.out
    assert "✗ gold_wrong" in answer.out
    assert "    → did you mean `amount`?" in answer.out
    assert "– gold_after" in answer.out


def test_quiet_prints_failures_only(cli: Call, shop: Path) -> None:
    calm = cli("run", "--project-dir", "shop", "--quiet")
    assert (calm.code, calm.out, calm.err) == (0, "", "")
    add(shop, FAILING)
    failed = cli("run", "--project-dir", "shop", "--quiet", "--select", "gold_wrong+")
    assert failed.code == 1
    assert failed.out.splitlines()[0].split() == ["✗", "gold_wrong", "failed"]
    assert "gold_after" not in failed.out
    assert cli("validate", "--project-dir", "nowhere", "--quiet").err


def test_plan_counts_and_writes_nothing(cli: Call, shop: Path) -> None:
    before = sorted(shop.rglob("*"))
    answer = cli("plan", "--project-dir", "shop")
    assert answer.code == 0
    assert (
        "A run would insert 26, update 0 and delete 0 rows in 5 of 5 nodes. Nothing was written."
        in answer.out
    )
    planned = cli("plan", "--project-dir", "shop", "--json").json
    assert all(list(n)[: len(RESULT_KEYS)] == RESULT_KEYS for n in planned["nodes"])
    assert sorted(shop.rglob("*")) == before
    run = cli("run", "--project-dir", "shop", "--json").json
    counts = [
        {k: n[k] for k in ("name", "status", "rows_read", "inserted", "updated", "deleted")}
        for n in run["nodes"]
    ]
    assert counts == [{k: n[k] for k in counts[0]} for n in planned["nodes"]]


def test_plan_says_what_could_not_be_planned(cli: Call, shop: Path) -> None:
    add(shop, FAILING)
    answer = cli("plan", "--project-dir", "shop")
    assert answer.code == 1
    assert "2 nodes could not be planned. Nothing was written." in answer.out


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["+silver_orders"], ["bronze_orders", "silver_orders"]),
        (["silver_orders+"], ["silver_orders", "gold_revenue"]),
        (["tag:bronze", "gold_revenue"], ["bronze_customers", "bronze_orders", "gold_revenue"]),
        (
            ["tag:bronze,gold_revenue bronze_orders"],
            ["bronze_customers", "bronze_orders", "gold_revenue"],
        ),
    ],
)
def test_selection(cli: Call, shop: Path, patterns: list[str], expected: list[str]) -> None:
    options = [word for p in patterns for word in ("--select", p)]
    listed = cli("ls", "--project-dir", "shop", "--json", *options).json["nodes"]
    assert [n["name"] for n in listed] == expected


def test_ls_lists_what_nodes_read_and_write(cli: Call, shop: Path) -> None:
    silver = cli("ls", "--project-dir", "shop", "--json", "--select", "silver_orders").json[
        "nodes"
    ][0]
    assert silver == {
        "name": "silver_orders", "tags": ["silver"], "reads": ["bronze.orders"], "writes": "silver.orders",
        "mode": "upsert", "keys": ["order_id"], "parents": ["bronze_orders"],
    }  # fmt: skip
    lines = cli("ls", "--project-dir", "shop").out.splitlines()
    assert [line.split()[0] for line in lines] == ["node", *NODES]


def test_status_tells_how_nodes_stand(cli: Call, shop: Path) -> None:
    add(shop, FAILING)
    never = cli("status", "--project-dir", "shop", "--json").json["nodes"]
    assert {n["status"] for n in never} == {None}
    cli("run", "--project-dir", "shop")
    nodes = {n["name"]: n for n in cli("status", "--project-dir", "shop", "--json").json["nodes"]}
    assert nodes["gold_revenue"]["status"] == "SUCCESS"
    assert [s["table"] for s in nodes["gold_revenue"]["sources"]] == [
        "silver.customers",
        "silver.orders",
    ]
    assert nodes["gold_wrong"]["status"] == "FAILED"
    assert nodes["gold_after"]["status"] is None
    answer = cli("status", "--project-dir", "shop")
    assert answer.code == 0
    assert "if this batch landed, it finishes the record, else it does it again" in answer.out
    assert "nothing of this batch was written" not in answer.out
    assert "never ran" in answer.out


def test_status_explains_a_batch_that_never_ended(cli: Call, shop: Path) -> None:
    from dataclasses import replace

    import strandline

    cli("run", "--project-dir", "shop")
    store = strandline.load(shop).store
    rows = [r for r in store.states() if r.node == "gold_revenue"]
    begun = {"batch_id": "gold_revenue/2", "batch_status": "RUNNING", "batch_completed_at": None}
    assert store.put([replace(r, **begun) for r in rows], rows[0].revision)
    assert "at work now, or killed" in cli("status", "--project-dir", "shop").out


def test_status_remembers_nodes_that_left(cli: Call, shop: Path) -> None:
    cli("run", "--project-dir", "shop")
    file = shop / "strandline.yaml"
    file.write_text(file.read_text().replace("name: gold_revenue", "name: gold_income"))
    answer = cli("status", "--project-dir", "shop")
    assert "gold_income" in answer.out
    assert "no longer in the project" in answer.out


@pytest.mark.parametrize("status", ["RUNNING", "FAILED"])
def test_status_promises_no_run_of_a_node_that_left(cli: Call, shop: Path, status: str) -> None:
    from dataclasses import replace

    import strandline

    cli("run", "--project-dir", "shop")
    store = strandline.load(shop).store
    begun = {"batch_id": "gold_revenue/2", "batch_status": status, "batch_completed_at": None}
    rows = [r for r in store.states() if r.node == "gold_revenue"]
    assert store.put([replace(r, **begun) for r in rows], rows[0].revision)
    file = shop / "strandline.yaml"
    there = file.read_text()
    file.write_text(there.replace("name: gold_revenue", "name: gold_income"))
    said = " ".join(cli("status", "--project-dir", "shop").out.split())
    assert said.count("no longer in the project") == 1
    assert "bring it back under that name and run it once" in said
    assert "the next run" not in said
    file.write_text(there)
    assert cli("run", "--project-dir", "shop", "--select", "gold_revenue").code == 0
    states = {
        n["name"]: n["status"]
        for n in cli("status", "--project-dir", "shop", "--json").json["nodes"]
    }
    assert states["gold_revenue"] == "SUCCESS"  # as it was promised


def test_history_newest_first(cli: Call, shop: Path) -> None:
    assert "no batch yet" in cli("history", "--project-dir", "shop").out
    cli("run", "--project-dir", "shop")
    cli("run", "--project-dir", "shop")
    every = cli("history", "--project-dir", "shop", "--json").json["batches"]
    assert len(every) == 10
    assert [b["started_at"] for b in every] == sorted(
        (b["started_at"] for b in every), reverse=True
    )
    assert every[0]["coverage"]["kind"] == "full"
    assert every[0]["warnings"] == []
    one = cli("history", "--project-dir", "shop", "--json", "--node", "silver_orders").json[
        "batches"
    ]
    assert [(b["node"], b["batch"]) for b in one] == [("silver_orders", 2), ("silver_orders", 1)]
    few = cli("history", "--project-dir", "shop", "--limit", "3").out
    assert "the newest 3 of 10 batches" in few


@pytest.mark.parametrize("command", ["validate", "status", "history", "ls"])
def test_an_answer_is_given_once(cli: Call, shop: Path, command: str) -> None:
    answer = cli(command, "--project-dir", "shop", "--json")
    assert isinstance(answer.json, dict)
    assert answer.err == ""


def test_json_is_all_there_is_on_stdout(cli: Call, shop: Path) -> None:
    (shop / "talkative.py").write_text(
        "def step(frame):\n    print('hello from a step')\n    return frame\n"
    )
    add(
        shop,
        """
  - name: gold_talk
    read: {connection: silver, table: orders}
    transform: {steps: [{operation: python, params: {function: talkative.step, engine: pandas}}]}
    write: {connection: gold, table: talk, mode: overwrite}
""",
    )
    answer = cli("run", "--project-dir", "shop", "--json")
    assert json.loads(answer.out)["status"] == "success"
    assert "hello from a step" in answer.err
    assert "✓ gold_talk" in answer.err


def test_engine_can_be_overridden(cli: Call, shop: Path) -> None:
    file = shop / "strandline.yaml"
    file.write_text(file.read_text().replace("engine: local", "engine: spark"))
    assert cli("run", "--project-dir", "shop", "--engine", "pandas").code == 0
    assert cli("plan", "--project-dir", "shop", "--engine", "pandas", "--quiet").code == 0


def test_a_history_that_was_lost_is_not_called_empty(cli: Call, shop: Path) -> None:
    where = ("--project-dir", "shop")
    cli("run", *where)
    assert cli("status", *where, "--json").json["incomplete"] == []
    assert cli("history", *where, "--json").json["incomplete"] == []
    shutil.rmtree(shop / "lake" / "bronze" / "_strandline" / "etl_runs")
    told = cli("history", *where)
    assert "no batch yet" not in told.out
    assert "the history is incomplete: etl_runs lacks what etl_control knows of" in told.out
    assert "gold_revenue (batch 1)" in cli("status", *where).out
    assert sorted(cli("history", *where, "--json").json["incomplete"]) == sorted(NODES)
    cli("run", *where)
    assert cli("status", *where, "--json").json["incomplete"] == []


def test_a_first_run_that_is_an_error_goes_on_with_first(cli: Call, shop: Path) -> None:
    node = """
  - name: silver_watched
    read: {connection: files, path: customers.csv}
    transform:
      steps:
        - {operation: detect_deletes, params: {mode: snapshot_diff, keys: [customer_id], on_first_run: error}}
    write: {connection: silver, table: watched, mode: upsert, keys: [customer_id]}
"""
    add(shop, node)
    only = ["run", "--project-dir", "shop", "--select", "silver_watched"]
    failed = cli(*only)
    assert failed.code == 1
    assert (
        "→ load it once as the first snapshot: strandline run --first --select silver_watched"
        in failed.out
    )
    assert not (shop / "lake" / "silver" / "watched").exists()
    assert cli(*only, "--first", "--plan", "p").code == 2
    assert cli(*only, "--first").code == 0
    assert cli(*only).code == 0
