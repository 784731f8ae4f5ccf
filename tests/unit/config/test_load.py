# ruff: noqa: E501 – one line per case reads as a table
"""YAML, includes, positions: each mistake is told with its file, line and key, all of them at once."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from tests.unit.config.conftest import GOOD, Problems, Write, changed

from strandline.config.load import load_project
from strandline.errors import ConfigError


def test_a_right_project_loads(write: Write) -> None:
    folder = write()
    project = load_project(folder)
    assert project == load_project(folder / "strandline.yaml") == load_project(str(folder))
    assert project.root == folder
    assert project.file == folder / "strandline.yaml"
    assert [node.name for node in project.config.nodes] == ["bronze_customers", "silver_customers"]
    assert project.config.nodes[0].write.metadata().source_table
    assert not project.config.nodes[1].write.metadata().extracted_at
    assert len(project.digest) == 64


def test_the_digest_follows_the_config_and_not_the_secret(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = changed(
        'url: "sqlite:///shop.db"', 'url: "postgresql://db/shop", password: "${env:PW}"'
    )
    monkeypatch.setenv("PW", "first")
    first = load_project(write(secret)).digest
    monkeypatch.setenv("PW", "second")
    assert load_project(write("# a comment\n" + secret)).digest == first
    assert load_project(write()).digest != first


@pytest.mark.parametrize("name", ["nowhere", "nowhere/strandline.yaml", "."])
def test_a_missing_project_says_how_to_start(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"there is no") as caught:
        load_project(tmp_path / name)
    assert "strandline init" in str(caught.value.problems[0].hint)


YAML_MISTAKES = {
    "empty": ("", 1, "the file is empty"),
    "comments only": ("# nothing\n", 1, "the file is empty"),
    "a list": ("- a\n", 1, "expected a map of keys"),
    "a tab": ("project: x\nnodes:\n\t- a\n", 3, "this is not YAML: a tab indents this line"),
    "an open quote": (
        'project: "x\n',
        1,
        "this is not YAML: the quote that begins here is not closed",
    ),
    "an open list": (
        "project: x\nnodes: [\n  {a: 1}\n",
        2,
        "this is not YAML: the `[` that begins here is not closed",
    ),
    "an open map": (
        "project: x\nspark: {a: 1\nnodes: []\n",
        2,
        "this is not YAML: the `{` that begins here is not",
    ),
    "no colon": (
        "project: x\nspark\nnodes: []\n",
        2,
        "this is not YAML: this line is no `key: value`",
    ),
    "a second colon": (
        "project: x\nengine: a: b\n",
        2,
        "this is not YAML: the value holds a colon",
    ),
    "a strange character": (
        "project: @x\n",
        1,
        "this is not YAML: a value cannot begin with this character",
    ),
    "a deeper line": (
        "nodes:\n  - name: x\n     read: {a: b}\n",
        3,
        "this is not YAML: this line is indented deeper",
    ),
    "two documents": (
        "project: x\n---\nproject: y\n",
        2,
        "expected one document, found a second one",
    ),
    "a key twice": (
        "project: x\nengine: spark\nproject: y\nnodes: []\n",
        3,
        "the key `project` stands twice, first in line 1",
    ),
    "a tag": ("project: !!python/name:os.system x\nnodes: []\n", 1, "the YAML tag"),
    "a custom tag": ("project: x\nnodes: !env []\n", 2, "the YAML tag `!env` is not allowed"),
    "a number as key": ("project: x\nvars:\n  1: a\nnodes: []\n", 3, "the key `1` is not a text"),
    "a yes as key": ("project: x\nvars:\n  on: a\nnodes: []\n", 3, "the key `on` is not a text"),
    "no quotes": ("project: {{ var('x') }}\nnodes: []\n", 1, "expected a text as key"),
    "no such date": (
        "project: x\nvars: {a: 2020-13-45}\nnodes: []\n",
        2,
        "'2020-13-45' looks like a timestamp",
    ),
    "an alias to itself": ("project: x\nnodes: &a [*a]\n", 2, "`*a` refers to itself"),
    "a control character": (
        'project: x\nengine: "\x01"\n',
        2,
        "the file holds a control character",
    ),
    "latin-1": (b"project: x\nengine: \xe4\n", 2, "the file is not UTF-8 text"),
    "too large": ("#" * 2_000_001, 1, "the file is larger than"),
    "too deep": ("a: " + "[" * 5000, 1, "nested more than"),
    "merge of a list": ("project: x\nspark:\n  <<: [1]\nnodes: []\n", 3, "`<<` takes a map"),
}


@pytest.mark.parametrize(("text", "line", "message"), YAML_MISTAKES.values(), ids=YAML_MISTAKES)
def test_yaml_mistakes(problems: Problems, text: str | bytes, line: int, message: str) -> None:
    found = next(p for p in problems(text) if message in p.message)
    assert (found.file, found.line) == ("strandline.yaml", line)


BOMBS = {
    "laughs": "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)),
    "a long text": f"a: &a {'x' * 900_000}\nb: [{'*a, ' * 20}]\n",
    "a chain": "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 3000)),
    "maps": "a0: &a0 {k: v}\n"
    + "".join(f"a{i}: &a{i} {{p: *a{i - 1}, q: *a{i - 1}}}\n" for i in range(1, 40)),
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_bombs_are_refused_at_once(problems: Problems, text: str) -> None:
    start = time.process_time()
    (found,) = problems(text)
    assert time.process_time() - start < 2  # unrolled, it would be hours
    assert "stands for more than" in found.message or "nested more than" in found.message


def test_merge_keys_and_anchors(write: Write) -> None:
    text = GOOD.replace(
        "{connection: bronze, table: customers, mode: append, add_metadata: true}",
        "&w {connection: bronze, table: customers, mode: append}",
    )
    text += "  - name: more\n    read: {connection: bronze, table: customers}\n    write: {<<: *w, table: more}\n"
    assert load_project(write(text)).config.nodes[2].write.table == "more"


# --- includes --------------------------------------------------------------------------------------------------------

INCLUDING = GOOD.replace("nodes:\n", "include: [nodes/*.yaml]\nnodes:\n")


def test_included_nodes_keep_their_file_and_line(problems: Problems) -> None:
    more = "vars: {a: 1}\nnodes:\n  - name: one\n    read: {connection: erp, table: t}\n    write:\n      connection: bronze\n      table: one\n      mode: upsert\n      keys: [a, A]\n"
    (found,) = problems(INCLUDING, nodes__more=more)
    assert (found.file, found.line, found.key) == ("nodes/more.yaml", 9, "nodes[one].write.keys[1]")


def test_positions_take_an_index_or_a_name(write: Write) -> None:
    more = "nodes:\n  - name: one\n    read: {connection: erp, table: t}\n    write: {connection: bronze, table: one, mode: append}\n"
    positions = load_project(write(INCLUDING, nodes__more=more)).positions
    for node in (2, "one"):
        problem = positions.problem(("nodes", node, "write", "mode"), "wrong", "mend it")
        assert str(problem) == "nodes/more.yaml:4: nodes[one].write.mode: wrong\n    → mend it"
    assert positions.problem((), "all wrong").line == 1


def test_files_are_named_from_the_project_when_it_is_elsewhere(
    problems: Problems,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    write: Write,
) -> None:
    folder = write(INCLUDING, nodes__more="nodes: 3\n")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    with pytest.raises(ConfigError) as caught:
        load_project(folder)
    assert caught.value.problems[0].file == "nodes/more.yaml"


INCLUDE_MISTAKES = {
    "no match": (["nodes/*.yml"], {}, "strandline.yaml", "no file matches `nodes/*.yml`"),
    "above": (["../*.yaml"], {}, "strandline.yaml", "leaves the project's folder"),
    "absolute": (["/etc/*.yaml"], {}, "strandline.yaml", "leaves the project's folder"),
    "no pattern": ([""], {}, "strandline.yaml", "not a pattern"),
    "another key": (["more.yaml"], {"more": "\nengine: spark\n"}, "more.yaml", "unknown key `engine`: an included file"),
    "not a list": (["more.yaml"], {"more": "\nnodes: abc\n"}, "more.yaml", "expected a list of maps, found 'abc' (text)"),
    "not YAML": (["more.yaml"], {"more": "\nnodes: [\n"}, "more.yaml", "this is not YAML"),
    "a name twice": (["more.yaml"], {"more": "\nconnections: {erp: {type: files, path: x}}\n"}, "more.yaml", "connection `erp` is declared in strandline.yaml:5 already"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("patterns", "files", "file", "message"), INCLUDE_MISTAKES.values(), ids=INCLUDE_MISTAKES
)
def test_include_mistakes(
    problems: Problems, patterns: list[str], files: dict[str, str], file: str, message: str
) -> None:
    found = next(
        p for p in problems(f"include: {patterns}\n{GOOD}", **files) if message in p.message
    )
    assert found.file == file
    assert found.line in ((1,) if file == "strandline.yaml" else (2, 3))


def test_an_include_does_not_follow_links_out(
    problems: Problems, tmp_path_factory: pytest.TempPathFactory, write: Write
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "more.yaml"
    outside.write_text("nodes: []\n")
    (write() / "link.yaml").symlink_to(outside)
    assert "is a link that leaves" in problems(f"include: [link.yaml]\n{GOOD}")[0].message


def test_all_mistakes_of_all_files_come_at_once(problems: Problems) -> None:
    main = INCLUDING.replace("engine: pandas", "engine: panda").replace(
        "mode: append", "mode: apend"
    )
    found = problems(
        main,
        nodes__a="nodes:\n  - name: a\n    read: {connection: erpp, tabel: t}\n    write: {connection: bronze, table: ../a, mode: upsert}\n",
        nodes__b="nodes: [\n",
        nodes__c="nodes:\n  - {name: bronze_customers}\n",
    )
    assert [(p.file, p.line, p.key) for p in found] == [
        ("strandline.yaml", 2, "engine"),
        ("strandline.yaml", 12, "nodes[bronze_customers].write.mode"),
        ("nodes/a.yaml", 3, "nodes[a].read.tabel"),
        ("nodes/a.yaml", 4, "nodes[a].write.keys"),
        ("nodes/a.yaml", 4, "nodes[a].write.table"),
        ("nodes/b.yaml", 2, None),
        ("nodes/c.yaml", 2, "nodes[bronze_customers].write"),
        ("nodes/c.yaml", 2, "nodes[bronze_customers].name"),
    ]


def test_an_unreadable_file_makes_no_false_alarms(problems: Problems) -> None:
    main = changed("read: {connection: erp,", "depends_on: [in_b]\n    read: {connection: in_b,")
    assert len(problems(f"include: [b.yaml]\n{main}", b="connections: [\n")) == 1


def test_the_work_of_loading_grows_with_the_project_and_no_faster(write: Write) -> None:
    node = "  - name: n{0}\n    read: {{connection: bronze, table: customers}}\n    transformation_sql: SELECT a FROM source\n    write: {{connection: silver, table: t{0}, mode: append}}\n"

    def calls(nodes: int) -> int:
        folder = write(GOOD + "".join(node.format(i) for i in range(nodes)))
        load_project(folder)  # what is imported or compiled once is not counted
        counted = 0

        def count(_frame: object, event: str, _arg: object) -> None:
            nonlocal counted
            counted += event == "call"

        sys.setprofile(count)
        try:
            assert len(load_project(folder).config.nodes) == nodes + 2
        finally:
            sys.setprofile(None)
        return counted

    assert calls(80) < 12 * calls(8)


def test_bad_indentation_shows_the_lines(write: Write, problems: Problems) -> None:
    text = """\
project: shop
connections:
  erp:
    type: sql
    password: hunter2
   url: postgresql://etl:hunter2@db/shop
nodes: []
"""
    (found,) = problems(text)
    assert (found.line, found.message) == (
        6,
        "this is not YAML: the indentation of this line fits no line above it",
    )
    assert str(found).splitlines()[1:] == [
        "    3 |   erp:",
        "    4 |     type: sql",
        "    5 |     password: ***",
        "    6 |    url: ***",
        "      |    ^",
        "    → give it the indentation of the keys, or of the `-`, that it belongs to",
    ]
