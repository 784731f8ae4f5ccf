"""What goes wrong is told in words and in JSON, with the right exit code, and never with a traceback."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from tests.cli.conftest import Call

import strandline

COMMANDS = ["validate", "plan", "run", "status", "history", "ls"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_broken_project_is_told_with_file_and_line(cli: Call, shop: Path, command: str) -> None:
    file = shop / "strandline.yaml"
    file.write_text(file.read_text().replace("mode: overwrite", "mode: overwite"))
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if "overwite" in text)
    answer = cli(command, "--project-dir", "shop")
    assert answer.code == 2
    assert answer.out == ""
    assert f"shop/strandline.yaml:{line}: " in answer.err
    error = cli(command, "--project-dir", "shop", "--json")
    assert error.code == 2
    assert (error.json["error"]["file"], error.json["error"]["line"]) == (
        "shop/strandline.yaml",
        line,
    )


def test_every_mistake_at_once(cli: Call, shop: Path) -> None:
    file = shop / "strandline.yaml"
    file.write_text(file.read_text().replace("tags: [bronze]", "tag: [bronze]"))
    answer = cli("validate", "--project-dir", "shop")
    assert answer.err.count("error: shop/strandline.yaml:") == 2
    assert answer.err.count("did you mean `tags`?") == 2
    assert "2 mistakes" in answer.err
    assert len(cli("validate", "--project-dir", "shop", "--json").json["error"]["problems"]) == 2


@pytest.mark.parametrize(
    "args",
    [
        ("rnu",),
        ("run", "--thread", "2"),
        ("run", "--threads", "0"),
        ("run", "--threads", "many"),
        ("run", "--engine", "duck"),
        ("history", "--limit", "0"),
        ("ls", "surplus"),
        ("--jsn",),
    ],
)
def test_wrong_usage_is_exit_code_2(cli: Call, args: tuple[str, ...]) -> None:
    answer = cli(*args)
    assert answer.code == 2
    assert answer.out == ""
    assert "--help" in answer.err
    assert "Traceback" not in answer.err
    with_json = cli(*args, "--json")
    assert with_json.code == 2
    assert with_json.json["error"]["code"] == "usage"


@pytest.mark.parametrize("command", ["ls", "plan", "run"])
def test_an_unknown_selection(cli: Call, shop: Path, command: str) -> None:
    answer = cli(command, "--project-dir", "shop", "--select", "silver_order", "--json")
    assert answer.code == 2
    assert answer.json["error"]["code"] == "usage"
    assert "silver_orders" in answer.json["error"]["hint"]


def test_an_unknown_node_in_history(cli: Call, shop: Path) -> None:
    answer = cli("history", "--project-dir", "shop", "--node", "gold_revenu")
    assert answer.code == 2
    assert "did you mean `gold_revenue`?" in answer.err


def test_no_project_here(cli: Call) -> None:
    answer = cli("run")
    assert answer.code == 2
    assert "there is no strandline.yaml" in answer.err
    assert "strandline init" in answer.err


def test_a_bug_is_one_line(cli: Call, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_args: object, **_options: object) -> None:
        raise ZeroDivisionError("what\nnow")

    monkeypatch.setattr("strandline.project.StrandlineProject.run", bug)
    answer = cli("run", "--project-dir", "shop")
    assert answer.code == 1
    assert answer.err == "internal error: ZeroDivisionError: what, run again with --debug\n"
    assert "Traceback" in cli("run", "--project-dir", "shop", "--debug").err
    assert cli("run", "--project-dir", "shop", "--json").json["error"]["code"] == "internal"


def test_a_panic_of_the_table_library_is_an_error_too(
    cli: Call, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panic(*_args: object, **_options: object) -> None:
        write_deltalake(
            shop / "a^b", pa.table({"id": [1]})
        )  # no project may have such a name: deltalake panics

    monkeypatch.setattr("strandline.project.StrandlineProject.run", panic)
    answer = cli("run", "--project-dir", "shop", "--json")
    assert answer.code == 1
    assert answer.json["error"]["code"] == "table"
    assert "Traceback" not in answer.err


def test_a_secret_in_an_unexpected_error_is_not_said(
    cli: Call, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ERP_PASSWORD", "hunter-two")
    file = shop / "strandline.yaml"
    file.write_text(file.read_text().replace("  # erp: {", "  erp: {"))

    def bug(*_args: object, **_options: object) -> None:
        raise ZeroDivisionError("the password is hunter-two")

    monkeypatch.setattr("strandline.project.StrandlineProject.run", bug)
    for options in ((), ("--json",), ("--debug",)):
        answer = cli("run", "--project-dir", "shop", *options)
        assert answer.code == 1
        assert "hunter-two" not in answer.out + answer.err
        assert "***" in answer.err


@pytest.mark.parametrize(
    ("status", "code"), [("held", 3), ("fenced", 4), ("failed", 1), ("unchanged", 0)]
)
def test_exit_codes_follow_the_result(
    cli: Call, shop: Path, monkeypatch: pytest.MonkeyPatch, status: str, code: int
) -> None:
    from strandline.result import NodeResult, RunResult

    result = RunResult("r", "success", [NodeResult("gold_revenue", status)])  # type: ignore[arg-type]
    monkeypatch.setattr("strandline.project.StrandlineProject.run", lambda *_a, **_o: result)
    assert cli("run", "--project-dir", "shop").code == code
    assert cli("run", "--project-dir", "shop", "--json").code == code


def test_what_a_terminal_would_obey_is_not_passed_on(cli: Call, shop: Path) -> None:
    (shop / "landing" / "orders.csv").write_text(
        "order_id,customer_id,amount,ordered_at\n1,1,\x1b[31mten,2024-01-01 00:00:00\n"
    )
    answer = cli("run", "--project-dir", "shop")
    assert answer.code == 1
    assert "ten" in answer.out
    assert "\x1b" not in answer.out + answer.err


def test_init_where_nobody_may_write(cli: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = cli("init", "file/below")
    assert answer.code == 1
    assert answer.err.startswith("error: ")
    assert "Traceback" not in answer.err


FULL = DeltaError("parquet: External: No space left on device (os error 28)")
DENIED = OSError("Generic error\n  ↳ Permission denied (os error 13)")


@pytest.mark.parametrize(
    ("error", "told"), [(FULL, "no space left on device"), (DENIED, "permission denied")]
)
def test_a_table_that_the_system_refuses_to_write_is_told_in_words(
    cli: Call, shop: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    def refuse(*_args: object, **_how: object) -> None:
        raise error

    monkeypatch.setattr("strandline.engine.local.delta.write_deltalake", refuse)
    node = cli("run", "--project-dir", "shop", "--json").json["nodes"][0]
    assert node["error"]["code"] == "system"
    assert node["error"]["message"] == f"bronze.customers: {told}; nothing was written"
    assert "and run again" in node["error"]["hint"]


def test_a_checkpoint_that_cannot_be_written_names_its_file(
    cli: Call, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object, **_how: object) -> None:
        raise OSError(28, "No space left on device")  # without a file, as a write says it

    monkeypatch.setattr("pathlib.Path.write_text", full)
    error = cli("run", "--project-dir", "shop", "--json").json["error"]
    assert error["code"] == "system"
    assert "_checkpoints" in error["message"]
    assert "make room" in error["hint"]


@pytest.mark.parametrize("name", ["etl_control", "etl_runs", "etl_changes"])
def test_a_damaged_control_table_is_no_bug(cli: Call, shop: Path, name: str) -> None:
    from strandline.control.ledger import ChangeRow
    from strandline.types import Token

    cli("run", "--project-dir", "shop")
    store = strandline.load(shop).store
    at = store.runs()[0].completed_at
    store.log_changes(
        Token("p", "n", 1, "r"),
        [ChangeRow("r", "p", "n", 1, "t", "hold", None, "why", "{}", "h", None, at)],
    )
    for file in (store.folder / name / "_delta_log").iterdir():
        file.write_text("garbage") if file.name == f"{0:020d}.json" else file.unlink()
    answer = cli("status", "--project-dir", "shop", "--json")
    assert answer.code == 1
    assert f"the control table {name} in " in answer.json["error"]["message"]
    doctor = cli("doctor", "--project-dir", "shop", "--json")
    bad = [c for c in doctor.json["checks"] if not c["ok"]]
    assert [c["name"] for c in bad] == ["control tables"]
    assert name in bad[0]["found"]


def test_doctor_looks_for_what_may_not_be_written_and_full_disks(
    cli: Call, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("run", "--project-dir", "shop")
    access, usage = os.access, shutil.disk_usage
    monkeypatch.setattr(
        "os.access", lambda path, mode: "etl_runs" not in str(path) and access(path, mode)
    )
    bad = [
        c for c in cli("doctor", "--project-dir", "shop", "--json").json["checks"] if not c["ok"]
    ]
    assert [c["name"] for c in bad] == ["control tables"]
    assert "etl_runs" in bad[0]["found"]
    monkeypatch.setattr("os.access", access)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(path)._replace(free=0))
    bad = [
        c for c in cli("doctor", "--project-dir", "shop", "--json").json["checks"] if not c["ok"]
    ]
    assert {c["fix"] for c in bad} == {"make room"}
    assert "connection silver" in {c["name"] for c in bad}
