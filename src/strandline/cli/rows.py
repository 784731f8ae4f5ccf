"""`show`, `holds` and `quarantine`: rows for people to look at, as a table, as CSV or as JSON."""

from __future__ import annotations

import csv as csv_
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.options import HERE, Debug, Engine, Json, ProjectDir, Quiet
from strandline.cli.talk import Talk
from strandline.cli.text import instant, table
from strandline.errors import UsageError
from strandline.words import agree, plural

if TYPE_CHECKING:
    from strandline.run.look import Rows

Csv = Annotated[bool, typer.Option("--csv", help="Print the rows to stdout as CSV.")]
Name = Annotated[
    str, typer.Argument(metavar="NODE|TABLE", help="A node, or a table as CONNECTION.TABLE.")
]
KeysFile = Annotated[
    Path | None,
    typer.Option(
        "--keys",
        metavar="FILE",
        help="Only the rows with these keys: a CSV file whose header names the key columns.",
    ),
]
NodeOption = Annotated[
    str | None, typer.Option("--node", metavar="NODE", help="Only those of this node.")
]
_WIDEST = 40


def show(  # noqa: PLR0913, PLR0917 – one argument for each option
    name: Name,
    project_dir: ProjectDir = HERE,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL", help="Only rows that fulfil a condition."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="How many rows at most.")
    ] = 20,
    deleted: Annotated[
        bool, typer.Option("--deleted", help="Also deleted rows, and all versions of a history.")
    ] = False,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="RUN", help="The table as it was at the end of a run."),
    ] = None,
    engine: Engine = None,
    csv: Csv = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Show rows of a table."""
    with Talk(json, quiet, debug).guard() as talk:
        from strandline.run.look import Asked

        found = talk.load(project_dir, engine or "local").show(
            name, Asked(where, limit, deleted, at)
        )
        _print(talk, found, csv=csv)
        if found.more and not csv:
            talk.say(f"the first {limit:,} rows; --limit shows more")
        talk.data(found.as_dict())
        return 0


def holds(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Only those of this run.")
    ] = None,
    project_dir: ProjectDir = HERE,
    node: NodeOption = None,
    csv: Csv = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Show the deletes that wait for a person: each key with its row, why, and since when."""
    with Talk(json, quiet, debug).guard() as talk:
        found = talk.load(project_dir, "local").held_rows(run, node)
        flat = [
            {
                "node": h.node,
                "run": h.run_id,
                "since": instant(h.since),
                **{str(k): v for k, v in (h.row or h.key).items()},
                "evidence": h.evidence,
            }
            for h in found
        ]
        names = list(dict.fromkeys(n for row in flat for n in row))
        _print_rows(talk, names, flat, csv=csv)
        if not found and not csv:
            talk.answer("no deletes are held")
        talk.data({"holds": [h.as_dict() for h in found]})
        return 0


quarantine = typer.Typer(
    help="Rows that checks have put aside: list them, and put mended ones through their node again."
)


@quarantine.command("list")
def list_(
    node: Annotated[
        str | None, typer.Argument(metavar="NODE", help="Only the rows of this node.")
    ] = None,
    project_dir: ProjectDir = HERE,
    csv: Csv = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """List the rows in quarantine, with their reasons."""
    with Talk(json, quiet, debug).guard() as talk:
        found = talk.load(project_dir, "local").quarantined(node)
        if csv and len(found) > 1:
            raise UsageError(
                "--csv: the rows of several nodes have other columns", hint="name one node"
            )
        for name, rows in found.items():
            n = len(rows.rows)
            if not csv:
                talk.answer(f"{name}: {plural(n, 'row')} in {rows.table}")
            _print(talk, rows, csv=csv)
        if not any(rows.rows for rows in found.values()) and not csv:
            talk.answer("no row is in quarantine")
        talk.data({"nodes": [{"node": n, **rows.as_dict()} for n, rows in found.items()]})
        return 0


@quarantine.command("release")
def release(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node's name.")],
    project_dir: ProjectDir = HERE,
    keys: KeysFile = None,
    engine: Engine = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Put rows in quarantine through their node again; those that pass leave it."""
    with Talk(json, quiet, debug).guard() as talk:
        from strandline.cli.progress import Progress
        from strandline.cli.runs import starting

        project = talk.load(project_dir, engine)
        chosen = keys_in(keys) if keys else None
        with Progress(talk, [node], starting=starting(project)) as progress:
            result = project.release(node, chosen, observer=progress, debug=debug)
        for found in result.nodes:
            if found.error is None:
                left = found.quarantined
                passed = (found.rows_read or 0) - left
                talk.say(
                    f"\n{plural(passed, 'row')} {agree(passed, 'has', 'have')} left the quarantine, "
                    f"{left:,} {agree(left, 'stays', 'stay')}; run {result.run_id}"
                )
        talk.data(result.as_dict())
        return result.exit_code


def keys_in(path: Path) -> list[dict[str, str | None]]:
    """The keys of a CSV file: its header names their columns; an empty field that is not quoted is NULL as `NULL`."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv_.DictReader(file, restkey="", restval=None))
    except OSError as e:
        raise UsageError(f"--keys: {path} cannot be read: {e.strerror}") from e
    if not rows:
        raise UsageError(
            f"--keys: {path} holds no keys", hint="the first line names the columns: customer_id"
        )
    if any("" in row or None in row.values() for row in rows):
        raise UsageError(f"--keys: {path}: not every line has as many fields as the header")
    return [{k: None if v == "NULL" else v for k, v in row.items()} for row in rows]


def _print(talk: Talk, found: Rows, *, csv: bool) -> None:
    _print_rows(talk, found.columns.names, found.rows, csv=csv)


def _print_rows(
    talk: Talk, names: Sequence[str], rows: Sequence[Mapping[str, Any]], *, csv: bool
) -> None:
    """Rows as CSV (NULL is an empty field), or as a table for people."""
    if csv:
        out = io.StringIO()
        writer = csv_.writer(out, lineterminator="\n")
        writer.writerow(names)
        for row in rows:
            writer.writerow(["" if (v := row.get(n)) is None else _text(v) for n in names])
        talk.answer(out.getvalue().removesuffix("\n"))
        return
    if not rows:
        return
    cells = [["NULL" if (v := row.get(n)) is None else _text(v) for n in names] for row in rows]
    cells = [[c if len(c) <= _WIDEST else f"{c[: _WIDEST - 1]}…" for c in row] for row in cells]
    head, *lines = table(names, cells, flexible=range(len(names)), width=talk.width)
    talk.answer(talk.paint(head, "dim"))
    for line in lines:
        talk.answer(line)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat(" ") if hasattr(value, "hour") else str(value)
