"""`status` and `history`: what the control tables say."""

from __future__ import annotations

import json as json_
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.options import HERE, Debug, Json, ProjectDir, Quiet
from strandline.cli.talk import Talk
from strandline.cli.text import COLOURS, SIGNS, count, indented, instant, table
from strandline.errors import UsageError, did_you_mean
from strandline.words import plural

if TYPE_CHECKING:
    from strandline.control.ledger import ControlRow, RunRow
    from strandline.project import StrandlineProject

_EVERY = 2**62
_MEANING = {
    "RUNNING": "at work now, or killed before it could say so; the next run looks into the table and finishes "
    "the record or does the batch again (an undo is asked for again)",
    "FAILED": "the next run looks into the table: if this batch landed, it finishes the record, else it does it again",
}
_GONE = {
    "RUNNING": "its runner died, or is at work; the node is no longer in the project, so no run finishes the record: "
    "bring it back under that name and run it once",
    "FAILED": "the node is no longer in the project, so no run finds out whether this batch landed: "
    "bring it back under that name and run it once",
}
_UNDO_FAILED = "nothing of this batch was written; it was to undo run {0}, which no run does: strandline undo {0}"


def status(
    project_dir: ProjectDir = HERE, json: Json = False, quiet: Quiet = False, debug: Debug = False
) -> int:
    """Show how each node stands, and what to make of it."""
    with Talk(json, quiet, debug).guard() as talk:
        project = talk.load(project_dir)
        nodes = _states(project)
        rows = [
            (n["name"], n["status"].lower() if n["status"] else "never ran", str(n["batch"] or "–"),
             instant(n["updated_at"]), count(n["rows_read"]), count(n["rows_written"]))
            for n in nodes
        ]  # fmt: skip
        headers = ("node", "status", "batch", "since", "read", "written")
        head, *lines = table(headers, rows, right=(2, 4, 5), flexible=(0,), width=talk.width)
        talk.answer(talk.paint(head, "dim"))
        for node, line in zip(nodes, lines, strict=True):
            failed = node["status"] == "FAILED"
            colour = {"FAILED": "red", "HELD": "yellow"}.get(node["status"])
            talk.answer(talk.paint(line, colour) if colour else line, failure=failed)
            for note in _notes(node):
                for text in indented(note, talk.width):
                    talk.answer(text, failure=failed)
        half = project.half_undone()
        for undo in half:
            talk.answer(f"\n{undo}", failure=True)
            talk.answer(f"    → {undo.hint}", failure=True)
        left = _tell_left(talk, project)
        gone = _tell_lost(talk, project)
        facts = {"half_undone": [asdict(undo) for undo in half], "left": left, "incomplete": gone}
        talk.data({"project": project.config.config.project, "nodes": nodes, **facts})
        return 0


def _tell_left(talk: Talk, project: StrandlineProject) -> list[dict[str, Any]]:
    """Say what the last run left, which `retry` runs, and what older runs left, which it does not."""
    runs = project.leftovers()
    found = [left for left in runs if left.nodes]
    for left in found:
        retried = left is runs[0] and not left.run.plan
        talk.answer(f"\nrun {left.run.run_id} left: {', '.join(left.nodes)}", failure=True)
        talk.answer(f"    → {'strandline retry' if retried else left.hint}", failure=True)
    return [{"run_id": left.run.run_id, "nodes": list(left.nodes)} for left in found]


def _tell_lost(talk: Talk, project: StrandlineProject) -> list[str]:
    """Say of which nodes the history was lost, wholly or in part."""
    from strandline.control.gaps import lost

    control = project.store.all_control()  # before the history: who is at work writes that first
    gone = lost(control, project.store.all_runs())
    if gone:
        nodes = ", ".join(f"{node} (batch {batch})" for node, batch in gone.items())
        told = f"the history is incomplete: etl_runs lacks what etl_control knows of {nodes}"
        talk.answer(f"\n{told}; it was removed, or put back from an older copy", failure=True)
    return list(gone)


def _states(project: StrandlineProject) -> list[dict[str, Any]]:
    """The state of each node of the project in order, then of those that the records still know."""
    rows: dict[str, list[ControlRow]] = {}
    for row in project.store.all_control():
        rows.setdefault(row.node, []).append(row)
    gone = sorted(rows.keys() - set(project.graph.order))
    states = [
        _state(name, rows.get(name, []), known=name not in gone)
        for name in (*project.graph.order, *gone)
    ]
    mended: dict[str, RunRow] = {}
    failed: dict[str, RunRow] = {}
    for batch in project.store.runs():  # the newest first
        if batch.recovery:
            mended.setdefault(batch.node, batch)
        if batch.status == "failed":
            failed.setdefault(batch.node, batch)
    held = {name: dict(Counter(r.run_id for r in rows)) for name, rows in project.holds().items()}
    return [
        {
            **s,
            "status": "HELD" if s["status"] == "SUCCESS" and held.get(s["name"]) else s["status"],
            "meaning": _meaning(s, failed.get(s["name"])),
            "recovery": _recovery(s, mended.get(s["name"])),
            "holds": held.get(s["name"], {}),
        }
        for s in states
    ]


def _meaning(state: dict[str, Any], failed: RunRow | None) -> str | None:
    if (
        state["status"] == "FAILED"
        and failed
        and failed.batch == state["batch"]
        and failed.takes_back
    ):
        return _UNDO_FAILED.format(failed.takes_back)
    return (_MEANING if state["in_project"] else _GONE).get(state["status"])


def _recovery(state: dict[str, Any], batch: RunRow | None) -> dict[str, Any] | None:
    """What the newest batch, or the one before it, found of a runner that had died, and did about it."""
    if batch is None or batch.batch < (state["batch"] or 0) - 1:
        return None
    return {
        "at": batch.completed_at,
        "run_id": batch.run_id,
        "batch": batch.batch,
        "done": batch.recovery,
    }


def _state(name: str, rows: Sequence[ControlRow], *, known: bool) -> dict[str, Any]:
    # A node has one row per source it ever read; the newest batch is its state.
    newest = max(rows, key=lambda r: r.updated_at, default=None)
    current = sorted(
        (r for r in rows if newest and r.batch_id == newest.batch_id), key=lambda r: r.source_table
    )
    return {
        "name": name,
        "in_project": known,
        "status": newest.batch_status if newest else None,
        "batch": newest.revision + (newest.batch_status != "SUCCESS") if newest else None,
        "target": newest.target_table if newest else None,
        "started_at": newest.batch_started_at if newest else None,
        "completed_at": newest.batch_completed_at if newest else None,
        "updated_at": newest.updated_at if newest else None,
        "rows_read": newest.rows_read if newest else None,
        "rows_written": newest.rows_written if newest else None,
        "error": newest.error_message if newest else None,
        "sources": [
            {"table": r.source_table, "version": r.last_processed_version} for r in current
        ],
    }


def _notes(node: dict[str, Any]) -> list[str]:
    mended = node["recovery"] and node["recovery"]["done"]
    held = [
        f"{plural(n, 'delete')} held by run {run_id}: strandline approve {run_id}, or reject {run_id}"
        for run_id, n in node["holds"].items()
    ]
    gone = None if node["in_project"] or node["meaning"] else "no longer in the project"
    return [n for n in (node["error"], node["meaning"], mended, *held, gone) if n]


def history(
    project_dir: ProjectDir = HERE,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="How many batches.")
    ] = 20,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NAME", help="Of this node only.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """List the newest batches, the newest first."""
    with Talk(json, quiet, debug).guard() as talk:
        project = talk.load(project_dir)
        every = project.store.runs(_EVERY)
        found = [r for r in every if node in (None, r.node)]
        if node is not None and not found:
            _refuse_unknown(node, {*project.graph.order, *(r.node for r in every)})
        _print_batches(
            talk,
            found[:limit],
            {(r.takes_back, r.node): r.run_id for r in every if r.recorded and r.takes_back},
        )
        gone = _tell_lost(talk, project)
        if not found and not gone:
            talk.answer("no batch yet: `strandline run` makes the first")
        elif len(found) > limit:
            talk.answer(
                f"the newest {limit:,} of {plural(len(found), 'batch', 'batches')}; --limit shows more"
            )
        talk.data({"batches": [_batch(r) for r in found[:limit]], "incomplete": gone})
        return 0


def _refuse_unknown(node: str, known: set[str]) -> None:
    if node not in known:
        raise UsageError(
            f"--node: nothing is called `{node}`",
            hint=did_you_mean(node, known) or f"there are: {', '.join(sorted(known))}",
        )


def _print_batches(
    talk: Talk, batches: Sequence[RunRow], undone: Mapping[tuple[str | None, str], str]
) -> None:
    """One line each, with its run, which begins with the time; below it the error, or what takes back what."""
    rows = [
        (SIGNS.get(r.status, "?"), r.run_id, r.node, str(r.batch), count(r.rows_read), count(r.inserted),
         count(r.updated), count(r.deleted), f"{r.seconds:.2f}")
        for r in batches
    ]  # fmt: skip
    headers = ("", "run", "node", "#", "read", "insert", "update", "delete", "sec")
    head, *lines = table(headers, rows, right=range(3, 9), flexible=(2,), width=talk.width)
    if batches:
        talk.answer(talk.paint(head, "dim"))
    for batch, line in zip(batches, lines, strict=True):
        failed = batch.status == "failed"
        talk.answer(
            talk.paint(line[:1], COLOURS.get(batch.status, "dim")) + line[1:], failure=failed
        )
        back = batch.takes_back and f"takes back run {batch.takes_back}"
        by = undone.get((batch.run_id, batch.node)) if batch.recorded else None
        held = f"{count(batch.held)} held" if batch.held else None
        for note in filter(None, (batch.error, held, back, by and f"taken back by run {by}")):
            for text in indented(note, talk.width):
                talk.answer(text, failure=failed)


def _batch(row: RunRow) -> dict[str, Any]:
    """A batch as recorded; the parts that are stored as JSON are opened."""
    values = {**vars(row), "coverage": row.coverage.as_dict()}
    for key in ("warnings", "metrics"):
        values[key] = json_.loads(values[key]) if values[key] else None
    return values
