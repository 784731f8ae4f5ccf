"""The shape of the house: what may import what, and how small the engine's protocol is."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import strandline
from strandline.engine.base import Engine
from strandline.engine.local.workspace import LocalWorkspace
from strandline.engine.spark.workspace import SparkWorkspace

SRC = Path(strandline.__file__).parent
HEAVY = {"pyspark", "duckdb", "deltalake", "py4j", "delta"}


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_only_engines_import_engines():
    for file in SRC.rglob("*.py"):
        inside = file.relative_to(SRC).parts[0] in ("engine", "lake", "testing")
        heavy = {i for i in imports(file) if i.split(".")[0] in HEAVY}
        assert inside or not heavy, f"{file.relative_to(SRC)} imports {heavy}"


def test_meaning_does_not_import_effects():
    for folder in ("sql", "strategy", "schema", "control"):
        for file in (SRC / folder).rglob("*.py"):
            wrong = {
                i
                for i in imports(file)
                if i.startswith(("strandline.engine", "strandline.run", "strandline.cli"))
            }
            assert not wrong, f"{file.relative_to(SRC)} imports {wrong}"


def test_the_engine_has_at_most_seven_verbs():
    verbs = [n for n, v in vars(Engine).items() if callable(v) and not n.startswith("_")]
    assert len(verbs) <= 7, verbs
    for engine in (LocalWorkspace, SparkWorkspace):
        assert all(callable(getattr(engine, v)) for v in verbs)


def test_loading_a_project_starts_no_engine():
    code = "import sys, strandline.config.load, strandline.plan.graph; print([m.split('.')[0] for m in sys.modules])"
    seen = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert not HEAVY & set(ast.literal_eval(seen))


def test_no_function_of_a_history_is_long():
    files = [SRC / "history.py", *(SRC / "strategy").glob("*.py")]
    lengths = {
        f"{file.name}: {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert max(lengths.values()) < 50, max(lengths, key=lambda name: lengths[name])
