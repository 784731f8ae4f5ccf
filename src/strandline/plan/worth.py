"""Where following a table's changes would read far less than reading it in full does."""

from __future__ import annotations

from strandline.config.deletes import DeleteDetectionMode
from strandline.config.load import Project
from strandline.config.model import NodeConfig
from strandline.plan.inputs import Input, inputs, is_lake
from strandline.plan.job import Job
from strandline.plan.policy import detection_of

ROWS, BYTES = 1_000_000, 2**30


def could_follow(project: Project, node: NodeConfig) -> list[Input]:
    """The lake tables that a node reads in full and could follow instead."""
    config = detection_of(project, node)
    if node.write.mode == "overwrite" or (config and config.mode is not DeleteDetectionMode.FEED):
        return []
    return [
        i
        for i in inputs(node)
        if is_lake(project, i.read)
        and i.read.feed is None
        and i.read.triggers
        and not i.read.limited
    ]


def worth(label: str, rows: int | None, size: int | None) -> str | None:
    """What to say of a table of that size; None when it is small enough to be read in full."""
    if (rows or 0) < ROWS and (size or 0) < BYTES:
        return None
    found = [f"{rows:,} rows"] if rows else []
    found += [f"{size / 2**30:.1f} GB"] if size else []
    return (
        f"{label} is read in full ({', '.join(found)}): cdc_strategy: cdf, or incremental: {{mode: cdf}}, "
        "would read only what changed"
    )


def feed_worth(job: Job, rows_read: int | None) -> str | None:
    """The same after a run, which knows how many rows it read."""
    candidates = could_follow(job.project, job.node)
    return (
        worth(candidates[0].label, rows_read, None)
        if len(candidates) == len(job.inputs) == 1
        else None
    )
