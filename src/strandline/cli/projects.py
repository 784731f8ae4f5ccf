"""`init`, `validate` and `ls`: the project as it is written."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.options import HERE, Debug, Json, ProjectDir, Quiet, Select
from strandline.cli.talk import Talk
from strandline.cli.text import table
from strandline.errors import Problem, UsageError
from strandline.words import plural

if TYPE_CHECKING:
    from strandline.project import StrandlineProject

_FILES = ("strandline.yaml", "landing/customers.csv", "landing/orders.csv")


def init(
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]", help="Where to write it; here if not given.", show_default=False
        ),
    ] = None,
    project_dir: ProjectDir = HERE,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Write a small commented project that runs as it is.

    Never overwrites a file.
    """
    with Talk(json, quiet, debug).guard() as talk:
        folder = project_dir / directory if directory else project_dir
        files = _written(folder)
        for file in files:
            talk.answer(f"wrote {file}")
        where = "" if folder == HERE else f" --project-dir {shlex.quote(str(folder))}"
        talk.answer("\nNext:")
        talk.answer(f"  strandline plan{where}    what a run would do")
        talk.answer(f"  strandline run{where}     do it; change a line in landing/ and run again")
        talk.data({"dir": str(folder), "files": [str(f) for f in files]})
        return 0


def _written(folder: Path) -> list[Path]:
    from importlib.resources import files

    there = [name for name in _FILES if (folder / name).exists() or (folder / name).is_symlink()]
    if there:
        raise UsageError(
            [
                Problem(f"{folder / name} is there already", hint="choose another folder")
                for name in there
            ]
        )
    template = files("strandline.cli") / "templates"
    for name in _FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("x", encoding="utf-8", newline="\n") as file:
            file.write((template / name).read_text(encoding="utf-8"))
    return [folder / name for name in _FILES]


def validate(
    project_dir: ProjectDir = HERE, json: Json = False, quiet: Quiet = False, debug: Debug = False
) -> int:
    """Tell every mistake in the project file, and which nodes would apply a mass delete; open no connection."""
    with Talk(json, quiet, debug).guard() as talk:
        from dataclasses import asdict

        from strandline.plan.policy import mass_deletes

        project = talk.load(project_dir)
        config = project.config.config
        nodes, connections = (
            plural(len(config.nodes), "node"),
            plural(len(config.connections), "connection"),
        )
        talk.answer(
            f"{talk.paint('✓', 'green')} {config.project}: {nodes}, {connections}, no mistakes"
        )
        warnings = list(mass_deletes(project.config))
        for found in warnings:
            where = f"{found.file}:{found.line}: {found.node}"
            talk.answer(f"{talk.paint('!', 'yellow')} {where}: {found.message}")
        for hint in dict.fromkeys(found.hint for found in warnings):
            talk.answer(f"    → {hint}")
        talk.data(
            {
                "valid": True,
                "project": config.project,
                "file": str(project.config.file),
                "engine": project.engine_name,
                "connections": list(config.connections),
                "nodes": list(project.graph.order),
                "warnings": [asdict(found) for found in warnings],
            }
        )
        return 0


def ls(
    project_dir: ProjectDir = HERE,
    select: Select = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """List the nodes in order: what they read and write."""
    with Talk(json, quiet, debug).guard() as talk:
        project = talk.load(project_dir)
        nodes = [_listed(project, name) for name in project.graph.select(select or [])]
        rows = [
            (
                n["name"],
                " ".join(n["reads"]),
                n["writes"],
                n["mode"],
                " ".join(n["tags"]),
                " ".join(n["parents"]),
            )
            for n in nodes
        ]
        headers = ("node", "reads", "writes", "mode", "tags", "after")
        for line in table(headers, rows, flexible=(0, 1, 2, 4, 5), width=talk.width):
            talk.answer(line)
        talk.data({"nodes": nodes})
        return 0


def _listed(project: StrandlineProject, name: str) -> dict[str, Any]:
    from strandline.plan.inputs import inputs

    node = next(n for n in project.config.config.nodes if n.name == name)
    return {
        "name": name,
        "tags": sorted(node.tags),
        "reads": [i.label for i in inputs(node)],
        "writes": f"{node.write.connection}.{node.write.table}",
        "mode": node.write.mode,
        "keys": list(node.write.keys),
        "parents": sorted(project.graph.parents[name]),
    }
