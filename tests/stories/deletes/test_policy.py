"""The project's policy for deletes: the default of every node that infers them from outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strandline.cli.main import main
from strandline.errors import ConfigError
from strandline.plan.policy import detection_of, mass_deletes
from strandline.project import StrandlineProject
from strandline.testing.frames import read_table
from strandline.testing.projects import execute, make_project

POLICY = {"max_delete_percent": 5, "on_threshold_breach": "hold"}
BRONZE = {
    "name": "bronze",
    "read": {"connection": "erp", "table": "c"},
    "write": {"connection": "lake", "table": "bronze", "mode": "append"},
}
ELSEWHERE = {"connection": "other", "table": "t", "alias": "x", "cdc_strategy": "cdf"}


def step(**params: Any) -> dict[str, Any]:
    return {"steps": [{"operation": "detect_deletes", "params": {"keys": ["id"], **params}}]}


def node(name: str, **more: Any) -> dict[str, Any]:
    read = {} if "sources" in more else {"read": {"connection": "lake", "table": "bronze"}}
    return {
        "name": name,
        **read,
        "write": {"connection": "lake", "table": name, "mode": "upsert", "keys": ["id"]},
        **more,
    }


def project(folder: Path, nodes: list[dict[str, Any]], **more: Any) -> StrandlineProject:
    connections = {
        "erp": {"type": "sql", "url": "sqlite:///erp.db"},
        "other": {"type": "lake", "path": "other"},
    }
    return make_project(folder, nodes, connections=connections, **more)


WINDOW = {"connection": "erp", "table": "c", "incremental": {"mode": "stateful", "column": "at"}}
SILVER = node("silver", transform=step(mode="snapshot_diff"))
OWN = {"connection": "lake", "table": "silver", "alias": "s", "cdc_strategy": "cdf"}
JOINED = "SELECT s.id FROM s JOIN x ON x.id = s.id"

# the node, the project's policy, and what holds: percent, count, on breach, runs
CASES: dict[str, tuple[dict[str, Any], dict[str, Any] | None, tuple[Any, ...]]] = {
    "nothing said": (SILVER, None, (50, None, "warn", 1)),
    "the project's": (SILVER, POLICY, (5, None, "hold", 1)),
    "all of it": (
        SILVER,
        {"max_delete_percent": None, "max_delete_count": 9, "on_threshold_breach": "skip", "confirm_runs": 2},
        (None, 9, "skip", 2),
    ),
    "the step says otherwise": (
        node("silver", transform=step(mode="snapshot_diff", max_delete_percent=30)), POLICY, (30, None, "hold", 1),
    ),
    "a window without a step": (
        {**node("silver", settings={"delete_missing": True}), "read": WINDOW}, POLICY, (5, None, "hold", 1),
    ),
    "a live source": (
        node("silver", transform=step(mode="sql_compare", source_connection="erp", source_table="c")),
        POLICY,
        (5, None, "hold", 1),
    ),
    "a feed of a table of ours": (
        node("dim", sources=[OWN], transformation_sql="SELECT s.id FROM s"), POLICY, (50, None, "warn", 1),
    ),
    "a feed of a table of ours, with a step": (
        node("dim", sources=[OWN], transform=step(mode="feed", on_threshold_breach="error")),
        POLICY,
        (50, None, "error", 1),
    ),
    "a feed of a table of others": (
        node("dim", sources=[ELSEWHERE], transformation_sql="SELECT x.id FROM x"), POLICY, (5, None, "hold", 1),
    ),
    "a feed keeps what it skips": (
        node("dim", sources=[ELSEWHERE], transformation_sql="SELECT x.id FROM x"),
        {"on_threshold_breach": "skip", "confirm_runs": 3},
        (50, None, "hold", 1),
    ),
    "computed from a database too": (
        node("dim", sources=[OWN, {"connection": "erp", "table": "c", "alias": "x"}], transformation_sql=JOINED),
        POLICY,
        (5, None, "hold", 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("made", "policy", "expected"), CASES.values(), ids=CASES)
def test_which_limits_hold(
    tmp_path: Path, made: Any, policy: Any, expected: tuple[Any, ...]
) -> None:
    nodes = [BRONZE, made] if made["name"] == "silver" else [BRONZE, SILVER, made]
    found = project(tmp_path, nodes, **({"deletes": policy} if policy else {}))
    config = detection_of(found.config, found.config.config.nodes[-1])
    assert config is not None
    limits = (
        config.max_delete_percent,
        config.max_delete_count,
        config.on_threshold_breach,
        config.confirm_runs,
    )
    assert limits == expected


def test_a_wrong_policy_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        project(tmp_path, [BRONZE], deletes={"on_threshold_breach": "holdd", "keys": ["id"]})
    assert [(p.key, p.hint) for p in error.value.problems] == [
        ("deletes.on_threshold_breach", "did you mean `hold`?"),
        (
            "deletes.keys",
            "known keys are max_delete_percent, max_delete_count, on_threshold_breach, on_empty_source, confirm_runs",
        ),
    ]


def test_validate_names_the_nodes_that_would_apply_a_mass_delete(
    tmp_path: Path, capsys: Any
) -> None:
    others = node("others", sources=[ELSEWHERE], transformation_sql="SELECT x.id FROM x")
    dim = node("dim", sources=[OWN], transformation_sql="SELECT s.id FROM s")
    open_ = node(
        "open",
        transform=step(mode="snapshot_diff", max_delete_percent=None, on_threshold_breach="hold"),
    )
    held = node("held", transform=step(mode="snapshot_diff", on_threshold_breach="hold"))
    ignored = node("ignored", transform=step(mode="snapshot_diff"))
    ignored["write"] = {**ignored["write"], "delete_strategy": "ignore"}
    nodes = [BRONZE, SILVER, dim, others, open_, held, ignored]
    assert [f.node for f in mass_deletes(project(tmp_path, nodes, deletes=POLICY).config)] == [
        "open"
    ]
    found = list(mass_deletes(project(tmp_path, nodes).config))
    assert [(f.node, f.message) for f in found] == [
        (
            "silver",
            "a mass delete (more than 50% of the living rows) would be applied with a warning only",
        ),
        (
            "others",
            "a mass delete (more than 50% of the living rows) would be applied with a warning only",
        ),
        ("open", "a mass delete would be applied without a word, because it has no limit"),
    ]
    lines = (tmp_path / "strandline.yaml").read_text().splitlines()
    assert [lines[f.line - 1].strip() for f in found] == [
        "- operation: detect_deletes", "- name: others", "- operation: detect_deletes",
    ]  # fmt: skip
    for options in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["validate", "--project-dir", str(tmp_path), *options])
        assert not ended.value.code
    told, _, facts = capsys.readouterr().out.partition("\n{")
    assert f"! strandline.yaml:{found[0].line}: silver: a mass delete (more" in told
    assert (
        told.count("add deletes: {max_delete_percent: 5, on_threshold_breach: hold} to the project")
        == 1
    )
    assert [w["node"] for w in json.loads("{" + facts)["warnings"]] == ["silver", "others", "open"]


TEN = (
    "CREATE TABLE c (id INTEGER)",
    f"INSERT INTO c VALUES {', '.join(f'({i})' for i in range(10))}",
)


@pytest.mark.long_on_spark
def test_a_mass_delete_is_held_by_the_project_and_passed_on_once_it_is_approved(
    tmp_path: Path, platform: Any
) -> None:
    execute(tmp_path / "erp.db", *TEN)
    dim = node("dim", sources=[OWN], transformation_sql="SELECT s.id FROM s")
    shop = project(tmp_path, [BRONZE, SILVER, dim], deletes=POLICY)
    shop.run(platform=platform, check=True)
    execute(tmp_path / "erp.db", "DELETE FROM c WHERE id < 8")
    held = shop.run(platform=platform, check=True)
    assert [(n.name, n.status, n.held) for n in held.nodes][1:] == [
        ("silver", "held", 8),
        ("dim", "unchanged", 0),
    ]
    assert held.exit_code == 3
    shop.approve(held.run_id, platform=platform, check=True)
    passed = shop.run("dim", platform=platform, check=True).nodes[
        0
    ]  # its source was judged: it is not held again
    assert (passed.status, passed.deleted, passed.held) == ("success", 8, 0)
    assert {
        r["id"] for r in read_table(tmp_path / "lake" / "dim").rows if not r["_is_deleted"]
    } == {8, 9}


def test_another_policy_judges_anew(tmp_path: Path, pandas_platform: Any) -> None:
    """Although nothing has come since."""
    execute(tmp_path / "erp.db", *TEN)
    strict = project(
        tmp_path, [BRONZE, SILVER], deletes={"max_delete_count": 0, "on_threshold_breach": "skip"}
    )
    strict.run(platform=pandas_platform, check=True)
    execute(tmp_path / "erp.db", "DELETE FROM c WHERE id < 2")
    strict.run(platform=pandas_platform, check=True)
    assert strict.run("silver", platform=pandas_platform).nodes[0].deleted == 0
    lenient = project(
        tmp_path, [BRONZE, SILVER], deletes={"max_delete_count": 2, "on_threshold_breach": "skip"}
    )
    assert lenient.run("silver", platform=pandas_platform).nodes[0].deleted == 2
