"""`graph`, `compile`, `schema`, `doctor`: look without running."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def strandline(*args, cwd):
    command = [sys.executable, "-m", "strandline", *args]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("look")
    assert strandline("init", ".", cwd=folder).returncode == 0
    return folder


def test_graph(shop):
    names = json.loads(strandline("ls", "--json", cwd=shop).stdout)["nodes"]
    drawn = strandline("graph", cwd=shop).stdout
    assert all(n["name"] in drawn for n in names)
    facts = json.loads(strandline("graph", "--json", cwd=shop).stdout)
    assert {tuple(e) for e in facts["edges"]} == {
        (p, n["name"]) for n in names for p in n["parents"]
    }
    mermaid = strandline("graph", "--mermaid", cwd=shop).stdout.splitlines()
    assert mermaid[0] == "flowchart LR"
    assert sum("-->" in line for line in mermaid) == len(facts["edges"])


def test_compile_shows_sql_and_writes_nothing(shop):
    first = next(
        n["name"] for n in json.loads(strandline("ls", "--json", cwd=shop).stdout)["nodes"]
    )
    done = strandline("compile", first, "--engine", "pandas", cwd=shop)
    assert done.returncode == 0, done.stderr
    assert "SELECT" in done.stdout
    assert "_action" in done.stdout
    assert not list(Path(shop).rglob("_delta_log"))
    wrong = strandline("compile", first[:-1], "--engine", "pandas", cwd=shop)
    assert wrong.returncode == 2
    assert first in wrong.stderr


def test_schema_knows_every_step(shop):
    from strandline.transform import registry

    schema = json.loads(strandline("schema", cwd=shop).stdout)
    steps = schema["$defs"]["StepConfig"]["oneOf"]
    assert [s["properties"]["operation"]["const"] for s in steps] == registry.names()
    assert "nodes" in schema["properties"]


def test_doctor_names_what_is_wrong_and_how_to_mend_it(shop, tmp_path):
    well = json.loads(strandline("doctor", "--engine", "pandas", "--json", cwd=shop).stdout)
    assert well["ok"], well
    (tmp_path / "strandline.yaml").write_text(
        "project: p\nengine: pandas\nconnections:\n  erp: {type: sql, url: 'sqlite:///gone.db'}\n"
        "  files: {type: files, path: nowhere}\n  lake: {type: lake, path: lake}\nnodes: []\n"
    )
    done = strandline("doctor", "--json", cwd=tmp_path)
    assert done.returncode == 1
    bad = {c["name"]: c for c in json.loads(done.stdout)["checks"] if not c["ok"]}
    assert set(bad) == {"connection erp", "connection files"}
    assert "there is no SQLite file gone.db" in bad["connection erp"]["found"]
    assert all(c["fix"] for c in bad.values())


def test_doctor_without_a_project_looks_at_the_machine(tmp_path):
    done = strandline("doctor", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    checks = {c["name"]: c["found"] for c in json.loads(done.stdout)["checks"]}
    assert "there is none in" in checks["project"]
    assert "memory" in checks
    gone = strandline("doctor", "--project-dir", str(tmp_path / "nowhere"), cwd=tmp_path)
    assert gone.returncode == 2
    assert "there is no folder" in gone.stderr
