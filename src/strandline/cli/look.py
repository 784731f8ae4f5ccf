"""`graph`, `compile`, `schema`: look inside a project without running it."""

from __future__ import annotations

from typing import Annotated

import typer

from strandline.cli.options import HERE, Debug, Engine, Json, ProjectDir, Quiet, Select
from strandline.cli.talk import Talk

Mermaid = Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flow chart.")]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="The node's name.")]


def graph(
    project_dir: ProjectDir = HERE,
    select: Select = None,
    mermaid: Mermaid = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Draw which node waits for which."""
    with Talk(json, quiet, debug).guard() as talk:
        from strandline.plan.draw import as_mermaid, as_text

        graph_ = talk.load(project_dir).graph
        chosen = graph_.select(select or [])
        for line in (as_mermaid if mermaid else as_text)(graph_, chosen):
            talk.answer(line)
        edges = [[p, n] for n in chosen for p in sorted(graph_.parents[n]) if p in chosen]
        talk.data({"nodes": list(chosen), "edges": edges})
        return 0


def compile_(
    node: NodeName,
    project_dir: ProjectDir = HERE,
    engine: Engine = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Print the SQL that a node will run; write nothing."""
    with Talk(json, quiet, debug).guard() as talk:
        project = talk.load(project_dir, engine)
        sql = project.compile(node)
        talk.answer(sql)
        talk.data({"node": node, "engine": project.engine_name, "sql": sql})
        return 0


def schema(
    json: Json = True,  # noqa: ARG001 – a schema is JSON, asked for or not
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Print the JSON Schema of strandline.yaml, for editors."""
    with Talk(json=True, quiet=quiet, debug=debug).guard() as talk:
        from strandline.config.schema import json_schema

        talk.data(json_schema())
        return 0
