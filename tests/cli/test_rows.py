"""`show`, `holds` and `quarantine`: what they print, as a table, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call

from strandline.testing.projects import execute, make_project


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Customers of which one has no proper address, and deletes that are held."""
    with sqlite3.connect(tmp_path / "erp.db") as database:
        database.execute("CREATE TABLE c (id INTEGER, email TEXT)")
        rows = [(i, f"{i}@x") for i in range(1, 5)]
        database.executemany("INSERT INTO c VALUES (?, ?)", [*rows, (9, "bad")])
    check = {"check": "regex", "column": "email", "pattern": "@", "severity": "quarantine"}
    limits = {"max_delete_percent": 10, "on_threshold_breach": "hold"}
    steps = [
        {"operation": "validate", "params": {"expectations": [check]}},
        {
            "operation": "detect_deletes",
            "params": {"mode": "snapshot_diff", "keys": ["id"], **limits},
        },
    ]
    node = {
        "name": "customers",
        "read": {"connection": "erp", "table": "c"},
        "transform": {"steps": steps},
        "write": {"connection": "lake", "table": "t", "mode": "upsert", "keys": ["id"]},
    }
    reader = {
        "name": "ids",
        "read": {"connection": "lake", "table": "t"},
        "transformation_sql": "SELECT id FROM source",
        "write": {"connection": "lake", "table": "ids", "mode": "overwrite"},
    }
    erp = {"type": "sql", "url": "sqlite:///erp.db"}
    make_project(tmp_path, [node, reader], connections={"erp": erp})
    return tmp_path


def hold(cli: Call, shop: Path) -> str:
    cli("run")
    execute(shop / "erp.db", "DELETE FROM c WHERE id IN (2, 3)")
    answer = cli("run", "--json")
    assert answer.code == 3
    return str(answer.json["run_id"])


def table(out: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(out)))


def test_show(cli: Call, shop: Path) -> None:
    assert "there is no table lake.t yet" in cli("show", "customers").err
    cli("run")
    answer = cli("show", "customers", "--where", "id > 2", "--json").json
    assert [r["id"] for r in answer["rows"]] == [3, 4]
    assert answer["table"] == "lake.t"
    assert "_row_hash" not in [c["name"] for c in answer["columns"]]
    assert [r["email"] for r in table(cli("show", "lake.t", "--csv").out)] == [
        "1@x",
        "2@x",
        "3@x",
        "4@x",
    ]
    few = cli("show", "customers", "--limit", "1")
    assert "1@x" in few.out
    assert "--limit shows more" in few.err + few.out
    assert cli("show", "customers", "--where", "nothing = 1").code == 1
    assert "did you mean" in cli("show", "custmers").err


def test_show_at_a_run_and_with_deleted_rows(cli: Call, shop: Path) -> None:
    run = cli("run", "--json").json["run_id"]
    execute(shop / "erp.db", "DELETE FROM c WHERE id = 2", "INSERT INTO c VALUES (5, '5@x')")
    held = cli("run", "--json").json["run_id"]
    cli("approve", held)
    now = [r["id"] for r in cli("show", "customers", "--json").json["rows"]]
    assert now == [1, 3, 4, 5]
    assert [r["id"] for r in cli("show", "customers", "--deleted", "--json").json["rows"]] == [
        1,
        2,
        3,
        4,
        5,
    ]
    assert [r["id"] for r in cli("show", "customers", "--at", run, "--json").json["rows"]] == [
        1,
        2,
        3,
        4,
    ]
    assert [
        r["id"] for r in cli("show", "customers", "--at", "latest", "--json").json["rows"]
    ] == now
    assert cli("show", "customers", "--at", "never").code == 2


def test_holds_show_rows_evidence_and_since_when(cli: Call, shop: Path) -> None:
    assert "no deletes are held" in cli("holds").out
    run = hold(cli, shop)
    found = cli("holds", run[:12], "--json") if False else cli("holds", run, "--json")
    holds = found.json["holds"]
    assert [(h["key"], h["row"]["email"]) for h in holds] == [
        ({"id": 2}, "2@x"),
        ({"id": 3}, "3@x"),
    ]
    assert all("absent from the newest snapshot" in h["evidence"] for h in holds)
    since = holds[0]["since"]
    cli("run")
    assert cli("holds", "--json").json["holds"][0]["since"] == since
    assert [r["email"] for r in table(cli("holds", "--csv").out)] == ["2@x", "3@x"]
    assert "2@x" in cli("holds", "--node", "customers").out
    assert cli("holds", "--node", "nobody").code == 2


def test_some_held_deletes_are_approved(cli: Call, shop: Path) -> None:
    run = hold(cli, shop)
    (shop / "keys.csv").write_text("id\n2\n")
    answer = cli("approve", run, "--node", "customers", "--keys", "keys.csv", "--json")
    assert answer.json["nodes"][0]["deleted"] == 1
    assert [h["key"] for h in cli("holds", "--json").json["holds"]] == [{"id": 3}]
    assert [r["id"] for r in cli("show", "customers", "--json").json["rows"]] == [1, 3, 4]


def test_some_held_deletes_are_rejected(cli: Call, shop: Path) -> None:
    run = hold(cli, shop)
    (shop / "keys.csv").write_text("id\n2\n")
    assert cli("reject", run, "--keys", "keys.csv").code == 0
    assert [h["key"] for h in cli("holds", "--json").json["holds"]] == [{"id": 3}]
    (shop / "keys.csv").write_text("id\n7\n")
    assert cli("reject", run, "--keys", "keys.csv").code == 2
    assert cli("approve", run, "--node", "ids").code == 2


def test_what_depends_on_an_approved_node_is_named(cli: Call, shop: Path) -> None:
    run = hold(cli, shop)
    answer = cli("approve", run)
    assert "ids" in answer.out + answer.err


def test_quarantine_list_and_release(cli: Call, shop: Path) -> None:
    assert "no row is in quarantine" in cli("quarantine", "list").out
    ran = cli("run", "--json").json["nodes"][0]
    assert ran["quarantined"] == 1
    found: dict[str, Any] = cli("quarantine", "list", "--json").json["nodes"][0]
    assert (found["node"], found["table"]) == ("customers", "lake.t__quarantine")
    assert [(r["id"], r["email"], r["_reasons"]) for r in found["rows"]] == [
        (9, "bad", "regex(email)")
    ]
    assert table(cli("quarantine", "list", "customers", "--csv").out)[0]["email"] == "bad"
    config = (shop / "strandline.yaml").read_text().replace("pattern: '@'", "pattern: bad|@")
    (shop / "strandline.yaml").write_text(config)
    (shop / "keys.csv").write_text("id\n9\n")
    answer = cli("quarantine", "release", "customers", "--keys", "keys.csv", "--json")
    assert (answer.code, answer.json["nodes"][0]["inserted"]) == (0, 1)
    assert "no row is in quarantine" in cli("quarantine", "list").out
    assert cli("quarantine", "release", "customers").code in (1, 2)
    assert "1 in quarantine" in cli("history").out
