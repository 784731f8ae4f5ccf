"""The options that commands share. Nothing here may import more than typer: `--help` waits for it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

HERE = Path()


class EngineName(StrEnum):
    """The engines to choose from."""

    SPARK = "spark"
    LOCAL = "local"
    PANDAS = "pandas"  # another word for it


ProjectDir = Annotated[
    Path, typer.Option("--project-dir", metavar="DIR", help="The folder of strandline.yaml.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Print data to stdout as JSON; talk goes to stderr.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print failures only.")]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Show the log while it is written, and a traceback when something goes wrong.",
    ),
]
Engine = Annotated[
    EngineName | None,
    typer.Option(
        "--engine", help="Run on this engine, whatever the project says.", show_default=False
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="NODES",
        help="Only these nodes: name, +name (and what it needs), name+ (and what needs it), tag:x. May be repeated.",
        show_default=False,
    ),
]
Threads = Annotated[
    int,
    typer.Option("--threads", metavar="N", min=1, help="How many nodes may run at the same time."),
]
