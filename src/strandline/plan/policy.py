"""Which limits hold for the deletes of a node: those of its step, else of the project, else the built-in ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from strandline.config.deletes import DeleteDetectionConfig, DeleteDetectionMode
from strandline.config.load import Project
from strandline.config.model import NodeConfig
from strandline.config.positions import Loc
from strandline.config.reads import ReadConfig
from strandline.plan.inputs import inputs, is_lake, table_of
from strandline.words import plural

STEP = "detect_deletes"
_HOLD = (
    "hold such deletes for a person: add deletes: {max_delete_percent: 5, on_threshold_breach: hold} to the project, "
    "or these limits to the step"
)


@dataclass(frozen=True)
class MassDelete:
    """A node that would apply a mass delete: what it says of it, and what to set instead."""

    node: str
    message: str
    file: str
    line: int
    hint: str = _HOLD


def detection_of(project: Project, node: NodeConfig) -> DeleteDetectionConfig | None:
    """How a node looks for deletes: by its step, a feed, or `settings.delete_missing`; None when it does not."""
    found = _own(node)
    if found is None:
        return None
    _, params = found
    mode = DeleteDetectionMode(params["mode"])
    return DeleteDetectionConfig(**{**_policy(project, node, mode), **params})


def combines(node: NodeConfig) -> bool:
    """Is its table what a query makes of several whole sources? Then a row that the query no longer gives is gone."""
    reads = [read for _, read in node.reads()]
    return node.write.keyed and len(reads) > 1 and not any(read.limited for read in reads)


def mass_deletes(project: Project) -> Iterator[MassDelete]:
    """The nodes that would apply a mass delete, with a warning or without one."""
    for node in project.config.nodes:
        found, config = _own(node), detection_of(project, node)
        if found is None or config is None or not _outside(project, node, config.mode):
            continue
        percent, count = config.max_delete_percent, config.max_delete_count
        unlimited = (percent is None or percent >= 100) and count is None
        if not unlimited and config.on_threshold_breach != "warn":
            continue
        limits = (
            [f"more than {percent:g}% of the living rows"]
            if percent is not None and percent < 100
            else []
        )
        limits += [f"more than {plural(count, 'row')}"] if count is not None else []
        how = "without a word, because it has no limit" if unlimited else "with a warning only"
        what = f" ({' or '.join(limits)})" if limits else ""
        yield MassDelete(
            node.name,
            f"a mass delete{what} would be applied {how}",
            *project.place(node.name, found[0]),
        )


def _own(node: NodeConfig) -> tuple[Loc, dict[str, Any]] | None:
    """What a node itself says of finding deletes, and where; None when it looks for none."""
    if node.write.delete_strategy == "ignore":
        return None
    for index, step in enumerate(node.transform.steps if node.transform else []):
        if step.operation == STEP and step.params.get("mode", "none") != "none":
            return ("transform", "steps", index), dict(step.params)
    if node.write.keyed and (any(read.feed for _, read in node.reads()) or combines(node)):
        return (), {"mode": DeleteDetectionMode.FEED, "keys": node.write.keys}
    if node.settings.delete_missing:
        return ("settings",), {
            "mode": DeleteDetectionMode.WATERMARK_WINDOW,
            "keys": node.write.keys,
        }
    return None


def _policy(project: Project, node: NodeConfig, mode: DeleteDetectionMode) -> dict[str, Any]:
    """What the project's `deletes:` says for a node that infers deletes from outside."""
    deletes = project.config.deletes
    if deletes is None or not _outside(project, node, mode):
        return {}
    given = {key: getattr(deletes, key) for key in deletes.model_fields_set}
    if (
        mode is DeleteDetectionMode.FEED
    ):  # it says once that a row is gone: what is not applied must be kept
        given.pop("confirm_runs", None)
        if given.get("on_threshold_breach") == "skip":
            given["on_threshold_breach"] = "hold"
    return given


def _outside(project: Project, node: NodeConfig, mode: DeleteDetectionMode) -> bool:
    """Does it infer deletes from outside? A feed of tables that this project writes brings deletes judged before."""
    if mode is not DeleteDetectionMode.FEED:
        return True
    return not all(_written(project, i.read) for i in inputs(node))


def _written(project: Project, read: ReadConfig) -> bool:
    """Is it a lake table that a node of the project writes, by whatever connection?"""
    if not is_lake(project, read):
        return False
    writes = [n.write for n in project.config.nodes]
    if any((w.connection, w.table) == (read.connection, read.table) for w in writes):
        return True
    place = table_of(project, read.connection, read.table or "").location
    return any(table_of(project, w.connection, w.table).location == place for w in writes)
