# ruff: noqa: E501 – one line per case reads as a table
"""A node with several targets: a node for each, and every mistake where somebody wrote it."""

from __future__ import annotations

import pytest
from tests.unit.config.conftest import GOOD, Problems, Write

from strandline.config.load import load_project
from strandline.config.schema import json_schema
from strandline.errors import ConfigError
from strandline.plan.graph import build

UPSERT = "    write: {connection: silver, table: customers, mode: upsert, keys: [customer_id]}\n"
FIRST = "{connection: silver, table: customers, mode: upsert, keys: [customer_id]}"
SECOND = "{connection: silver, table: archive, mode: append}"
STEP = "transform: {steps: [{operation: detect_deletes, params: {mode: snapshot_diff, keys: [customer_id]}}]}"
NODE = "nodes[silver_customers]"
AFTER = """\
  - name: gold
    read: {connection: silver, table: archive}
    write: {connection: silver, table: gold, mode: overwrite}
"""


def several(*targets: str, before: str = "", after: str = "") -> str:
    """The right project; its last node, from line 15 on, has these targets, each on a line of its own."""
    assert GOOD.endswith(UPSERT)
    lines = "".join(f"      - {t}\n" for t in targets)
    return GOOD.removesuffix(UPSERT) + before + "    write:\n" + lines + after


# targets, line, key, message, hint
MISTAKES: dict[str, tuple[tuple[str, ...], int, str, str, str | None]] = {
    "bad literal": ((FIRST, SECOND.replace("append", "apend")), 17, "write[1].mode", "expected one of `append`", "did you mean `append`?"),
    "bad literal, alone": ((SECOND.replace("append", "apend"),), 16, "write[0].mode", "expected one of `append`", "did you mean `append`?"),
    "missing": ((FIRST, "{connection: silver, mode: append}"), 17, "write[1].table", "`table` is missing", None),
    "unknown key": ((FIRST, SECOND.replace("mode", "mood: x, mode")), 17, "write[1].mood", "unknown key `mood`", "did you mean `mode`?"),
    "between the keys": ((FIRST, SECOND.replace("append", "upsert")), 17, "write[1].keys", "mode: upsert needs keys: [...]", None),
    "with the read": ((FIRST, SECOND.replace("append", "append, keys: [a]")), 17, "write[1].keys", "`keys` does nothing with mode: append and a full read", None),
    "no map": ((FIRST, "archive"), 17, "write[1]", "expected a map, found 'archive' (text)", None),
    "connection": ((FIRST, SECOND.replace("silver", "slver")), 17, "write[1].connection", "unknown connection `slver`", "did you mean `silver`?"),
    "no lake": ((FIRST, SECOND.replace("silver", "files")), 17, "write[1].connection", "a write needs a lake connection", None),
    "twice": ((FIRST, FIRST), 17, "write[1].table", "also written by node `silver_customers`", None),
    "another's": ((FIRST, SECOND.replace("silver, table: archive", "bronze, table: customers")), 17, "write[1].table", "also written by node `bronze_customers`", None),
    "inside": ((FIRST, SECOND.replace("archive", "customers/archive")), 17, "write[1].table", "lies inside the table of node `silver_customers`", None),
    "outside": ((FIRST, SECOND.replace("archive", "../archive")), 17, "write[1].table", "leaves its connection's path", None),
    "names": ((FIRST, SECOND, SECOND.replace("silver", "bronze")), 18, "write[2].table", "another node is called `silver_customers.archive` too", "rename one"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_in_a_target_is_told_where_it_stands(problems: Problems, case: str) -> None:
    targets, line, key, message, hint = MISTAKES[case]
    (problem,) = problems(several(*targets))
    assert (problem.file, problem.line, problem.key) == ("strandline.yaml", line, f"{NODE}.{key}")
    assert message in problem.message
    assert hint is None or hint in (problem.hint or "")


def test_a_mistake_in_an_included_target_is_told_where_it_stands(problems: Problems) -> None:
    main, _, node = several(FIRST, SECOND.replace("append", "apend")).partition(
        "  - name: silver_customers"
    )
    (problem,) = problems(
        f"include: [more.yaml]\n{main}", more=f"nodes:\n  - name: silver_customers{node}"
    )
    assert (problem.file, problem.line, problem.key) == ("more.yaml", 7, f"{NODE}.write[1].mode")


def test_an_empty_list_is_a_mistake(problems: Problems) -> None:
    (problem,) = problems(several().replace("    write:\n", "    write: []\n"))
    assert (problem.line, problem.key) == (15, f"{NODE}.write")
    assert problem.message == "an empty list: the rows of this node would go nowhere"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("customer_id, name FROM source", "customer_id, name FROM sorce", "the SQL reads `sorce`"),
        (
            "read: {connection: bronze, table: customers}",
            "read: {connection: brnze, table: c}",
            "unknown connection",
        ),
        ("name: silver_customers", "name: silver customers", "expected letters, digits"),
        ("- name: silver_customers\n    read", "- read", "`name` is missing"),
        ("    write:\n", "    tag: [x]\n    write:\n", "unknown key `tag`"),
    ],
)
def test_a_mistake_that_targets_share_is_told_once(
    problems: Problems, old: str, new: str, message: str
) -> None:
    text = several(FIRST, SECOND)
    assert text.count(old) == 1
    (problem,) = problems(text.replace(old, new))
    assert message in problem.message


def test_a_node_called_like_a_target_is_refused(problems: Problems) -> None:
    clash = AFTER.replace("name: gold", "name: silver_customers.archive")
    (problem,) = problems(several(FIRST, SECOND, after=clash))
    assert (problem.line, problem.key) == (18, "nodes[silver_customers.archive].name")
    assert "another node is called `silver_customers.archive` too" in problem.message


def test_deletes_that_one_target_cannot_apply_want_two_nodes(problems: Problems) -> None:
    (problem,) = problems(several(FIRST, SECOND, before=f"    {STEP}\n"))
    assert (problem.line, problem.key) == (15, f"{NODE}.transform.steps[0].params.mode")
    assert "mode: append never updates or deletes a row" in problem.message
    assert "use two nodes, one of them for `archive`" in (problem.hint or "")
    ignoring = SECOND.replace("append", "append, delete_strategy: ignore")
    assert not problems(several(FIRST, ignoring, before=f"    {STEP}\n"))


def test_a_list_of_one_is_a_map(write: Write) -> None:
    alone = load_project(write(several(FIRST)))
    assert (alone.config, alone.digest, dict(alone.groups)) == (*_map(write), {})


def _map(write: Write) -> tuple[object, str]:
    project = load_project(write(GOOD))
    return project.config, project.digest


def test_each_target_is_a_node_of_its_own(write: Write) -> None:
    project = load_project(
        write(several(FIRST, SECOND, "{connection: silver, table: by day/all, mode: overwrite}"))
    )
    _, *members = project.config.nodes
    names = ("silver_customers", "silver_customers.archive", "silver_customers.by_day_all")
    assert tuple(n.name for n in members) == names
    assert [n.write.mode for n in members] == ["upsert", "append", "overwrite"]
    assert {n.transformation_sql for n in members} == {"SELECT customer_id, name FROM source"}
    assert project.groups == {"silver_customers": names}


def test_whoever_waits_for_one_target_waits_for_all(write: Write) -> None:
    graph = build(load_project(write(several(FIRST, SECOND, after=AFTER))))
    members = ("silver_customers", "silver_customers.archive")
    assert graph.order == ("bronze_customers", *members, "gold")
    assert graph.parents["gold"] == set(members)
    assert graph.parents[members[1]] == {"bronze_customers", members[0]}
    assert graph.select(["silver_customers"]) == members
    assert graph.select(["silver_customers.archive"]) == members[1:]
    assert graph.select(["silver_customers+"]) == (*members, "gold")
    assert graph.select(["+silver_customers"]) == ("bronze_customers", *members)
    waits = AFTER.replace("silver, table: archive", "bronze, table: other").replace(
        "name: gold", "name: gold\n    depends_on: [silver_customers]"
    )
    graph = build(load_project(write(several(FIRST, SECOND, after=waits))))
    assert graph.parents["gold"] == set(members)


def test_a_node_that_reads_one_of_its_targets_waits_for_itself(write: Write) -> None:
    text = several(FIRST, SECOND).replace(
        "read: {connection: bronze, table", "read: {connection: silver, table"
    )
    with pytest.raises(ConfigError, match="these nodes wait for each other") as refused:
        build(load_project(write(text)))
    assert refused.value.problems[0].line == 12


def test_editors_know_both_shapes() -> None:
    write = json_schema()["$defs"]["NodeConfig"]["properties"]["write"]
    one, several_ = write["anyOf"]
    assert one == {"$ref": "#/$defs/WriteConfig"}
    assert several_ == {"type": "array", "items": one, "minItems": 1}
