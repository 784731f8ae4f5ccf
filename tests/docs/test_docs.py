"""What the pages on deletes show can be run: every project in them loads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import strandline
from strandline.plan.policy import mass_deletes

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    "ingestion-correctness.md",
    "cookbook-deletes.md",
    "how-history-works.md",
    "change-feeds.md",
    "gold.md",
    "quarantine.md",
]
CONNECTIONS = {
    "erp": {"type": "sql", "url": "sqlite:///source.db"},
    "files": {"type": "files", "path": "landing"},
    "bronze": {"type": "lake", "path": "lake/bronze"},
    "silver": {"type": "lake", "path": "lake/silver"},
    "gold": {"type": "lake", "path": "lake/gold"},
}


def blocks():
    """Every YAML block with nodes, named by its page and the heading above it."""
    for page in PAGES:
        text = (DOCS / page).read_text(encoding="utf-8")
        for found in re.finditer(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            if "nodes:" in found[1]:
                heading = re.findall(r"^#+ (.*)$", text[: found.start()], re.MULTILINE)[-1]
                yield pytest.param(found[1], id=f"{page}: {heading}")


@pytest.mark.parametrize("block", list(blocks()))
def test_a_project_on_the_page_is_valid(tmp_path, block):
    shown = yaml.safe_load(block)
    assert set(shown) == {"nodes"}
    policy = (DOCS / "cookbook-deletes.md").read_text(encoding="utf-8")
    (deletes,) = re.findall(r"^deletes: .*$", policy, re.MULTILINE)
    head = yaml.safe_dump({"project": "page", "engine": "pandas", "connections": CONNECTIONS})
    (tmp_path / "strandline.yaml").write_text(f"{head}{deletes}\n{block}", encoding="utf-8")
    project = strandline.load(tmp_path)
    assert [n.name for n in project.config.config.nodes] == [n["name"] for n in shown["nodes"]]
    assert not list(mass_deletes(project.config))


TEMPLATES = sorted((Path(strandline.__file__).parent / "cli" / "templates").glob("*.yaml"))
EXAMPLES = sorted((DOCS.parent / "examples").glob("*/strandline.yaml"))


@pytest.mark.parametrize(
    "file",
    [*TEMPLATES, *EXAMPLES, DOCS.parent / "README.md"],
    ids=lambda f: f"{f.parent.name}/{f.name}",
)
def test_whatever_is_shown_holds_a_mass_delete(tmp_path, file):
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        (text,) = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "strandline.yaml").write_text(text, encoding="utf-8")
    project = strandline.load(tmp_path)
    assert not list(mass_deletes(project.config))
    assert project.config.config.deletes or file.parent.name in ("03-no-detection", "05-threshold")


def test_there_is_something_to_try():
    assert len(list(blocks())) >= 7


@pytest.mark.parametrize(
    "page",
    [*(DOCS / p for p in PAGES), DOCS / "decisions/0005-deletes.md", DOCS.parent / "README.md"],
)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), target
