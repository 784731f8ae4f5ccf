"""What a batch is about to do to single rows, and what it notes of them: the rows of `etl_changes`.

They are written before the table's commit and count once the batch is recorded: a runner that dies in between leaves
notes that nobody reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sqlglot import exp

from strandline.batch.compare import Outcome
from strandline.batch.read import lake_of
from strandline.config.deletes import DeleteDetectionMode
from strandline.control.ledger import ChangeRow
from strandline.engine.base import Engine
from strandline.plan.job import Job
from strandline.sql.expr import any_of, col, is_null, named, negate, one_of, select, table
from strandline.sql.values import spelled_bytes
from strandline.strategy.changes import ACTION
from strandline.strategy.question import GONE, NOTE, STREAK, key_hash_of

ANNOUNCED = "announced by the source"
_LOUD = ("delete", "reopen", "revive")
_QUIET = ("insert", "update", "amend", "recall", "bury")


def change_rows(job: Job, engine: Engine, outcome: Outcome) -> list[ChangeRow]:
    """The rows to record, as the node's `change_log` wants it; notes that later runs need are always there."""
    question, decided = outcome.made.question, outcome.decided
    if question is None or decided is None or not _anything(job, outcome):
        return []
    keys = question.keys
    if any(_unhashable(c.type) for c in keys):
        return []
    wanted = [negate(is_null(col(NOTE)))]
    wanted += [one_of(col(ACTION), _LOUD if job.node.change_log != "all" else (*_LOUD, *_QUIET))]
    columns = [col(c.name) for c in keys]
    tree = select(
        *columns, named(key_hash_of(keys), "h"), col(GONE), col(ACTION), col(NOTE), col(STREAK)
    )
    found = engine.fetch(tree.from_(table(decided.name)).where(any_of(wanted)))
    rows, names, why = [], [c.name for c in keys], evidence(job, outcome)
    label, mode, at = job.target.label, mode_of(job, outcome), job.at
    for *values, hashed, gone, action, note, streak in found:
        key = json.dumps(
            dict(zip(names, values, strict=True)), default=_spelled, ensure_ascii=False
        )
        absent = ANNOUNCED if gone and outcome.slice.followed is None else why
        for verb, reason, times in _entries(job, outcome, absent, action, note, streak):
            rows.append(
                ChangeRow(
                    run_id="",  # whoever commits it says: a plan may wait for another run
                    project=job.project.config.project,
                    node=job.node.name,
                    batch=job.batch,
                    target_table=label,
                    verb=verb,
                    mode=mode,
                    reason=reason,
                    key=key,
                    key_hash=hashed,
                    streak=times,
                    at=at,
                    table_id="",
                    source=job.source,
                )
            )
    return rows


def _spelled(value: Any) -> str:
    return spelled_bytes(bytes(value)) if isinstance(value, bytes | bytearray) else str(value)


def _unhashable(type_: str) -> bool:
    from strandline.sql.hash import hashable
    from strandline.types import Column

    return not hashable(Column("k", type_))


def _anything(job: Job, outcome: Outcome) -> bool:
    if outcome.verdict and outcome.verdict.kind == "refuse":
        return False
    m = outcome.measured
    noted = any(m.get(n) for n in ("deleted", "reopened", "seen", "missing", "approved"))
    return bool(
        noted
        or (job.node.change_log == "all" and outcome.changes.counts and outcome.changes.counts.any)
    )


def _entries(
    job: Job, outcome: Outcome, absent: str, action: str, note: str | None, streak: Any
) -> Iterator[tuple[str, str, int | None]]:
    """What is recorded of one row: verb, reason, and for how many runs it has been missing."""
    verdict, log = outcome.verdict, job.node.change_log
    config, finding = job.detection, outcome.made.finding
    if note == "seen":
        yield "seen", "the key was seen again", None
    if note == "missing" and config and finding:
        times = int(streak or 0) + (1 if finding.absence.fresh else 0)
        yield "missing", f"{absent}; missing {times} of {config.confirm_runs} times running", times
    if action == "delete":
        if note == "approved":
            yield "delete", f"{absent}; approved by a person", None
        elif verdict and verdict.kind == "hold":
            yield "hold", f"{absent}; {verdict.reason}", None
        elif (verdict is None or verdict.applied) and (
            log != "none" or (config and config.confirm_runs > 1)
        ):
            yield "delete", absent, None  # where runs are counted, also to end the count
    elif action in ("reopen", "revive") and log != "none":
        yield "reopen", "seen again after it had been deleted", None
    elif log == "all" and action in _QUIET:
        yield (
            {"bury": "insert", "amend": "update", "recall": "update"}.get(action, action),
            absent if action == "bury" else "read from the source",
            None,
        )


def mode_of(job: Job, outcome: Outcome) -> str | None:
    """By which evidence deletes were found."""
    config, followed = job.detection, outcome.slice.followed
    if (
        config
        and config.mode is DeleteDetectionMode.FEED
        and followed
        and followed.how == "recompute"
    ):
        return "recompute"
    return str(config.mode) if config else None


def evidence(job: Job, outcome: Outcome) -> str:
    """Why a row is thought to be gone, in words."""
    config = job.detection
    match config.mode if config else None:
        case DeleteDetectionMode.SNAPSHOT_DIFF:
            return "absent from the newest snapshot"
        case DeleteDetectionMode.SQL_COMPARE:
            return "absent from the live source"
        case DeleteDetectionMode.WATERMARK_WINDOW:
            bounds = ", ".join(
                f"{lo} <= {n} <= {hi}" for n, (lo, hi) in outcome.slice.window.items()
            )
            return f"absent from the window [{bounds}]"
        case DeleteDetectionMode.FEED if mode_of(job, outcome) == "recompute":
            return "absent from the result, which was computed again as a whole"
        case DeleteDetectionMode.FEED:
            return f"gone from {_followed(job, outcome)}, as the change feed says"
    return ANNOUNCED


def _followed(job: Job, outcome: Outcome) -> str:
    """The sources that were followed, with their versions; a planned one has none yet."""
    told = outcome.slice.followed.told if outcome.slice.followed else ""
    planned = [
        i.label for i in job.inputs if i.read.feed and lake_of(job, i).location in job.planned
    ]
    return ", ".join(filter(None, (told, *planned))) or "its source"


def sample_deletes(engine: Engine, outcome: Outcome, limit: int = 5) -> list[dict[str, Any]]:
    """The first few keys that would be deleted."""
    question, decided = outcome.made.question, outcome.decided
    if question is None or decided is None or not outcome.measured.get("deleted"):
        return []
    names = [c.name for c in question.keys]
    order = [exp.Ordered(this=col(n)) for n in names]
    tree = (
        select(*map(col, names)).from_(table(decided.name)).where(one_of(col(ACTION), ("delete",)))
    )
    return [
        dict(zip(names, row, strict=True))
        for row in engine.fetch(tree.order_by(*order).limit(limit))
    ]
