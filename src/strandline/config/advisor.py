"""Which ways of finding deletes cannot be right where they stand, and what to use instead.

Absence is evidence only in a full extract, in a window that was read again, or in the live source. A node that
has none of these would delete rows that are there, or never find one that is gone: both are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from strandline.config.connections import LakeConnection, SqlConnection
from strandline.config.deletes import DeleteDetectionConfig, DeleteDetectionMode
from strandline.config.expectation_advice import quarantining
from strandline.config.extract_advice import extract_advice
from strandline.config.feed_advice import detection_advice, feed_advice
from strandline.config.missed_advice import missed_advice
from strandline.config.parts import KINDS, NodeParts, Parts, connection_of
from strandline.config.positions import Loc, Mistake
from strandline.config.queries import SqlError, check_filter
from strandline.config.reads import ReadConfig
from strandline.config.resolve import PlaceError, place
from strandline.config.view_advice import view_advice
from strandline.config.writes import FORGETS, SOFT_INSTEAD, WriteConfig

STEP = "detect_deletes"
_METADATA = ("_extracted_at", "_source_file", "_source_connection", "_source_table", "_batch_id")
_KEEP_KEYS = {
    "deduplicate", "rename", "cast", "derive", "select", "drop", "generate_surrogate_key", "hash_columns",
}  # fmt: skip
"""Steps after which every key is still there; any other may leave rows out, and that too is a way to lose them."""
_WHY = {
    "append": "mode: append never updates or deletes a row of its table",
    "overwrite": "mode: overwrite mirrors its read: what is not read is gone anyway",
}


@dataclass(frozen=True)
class _Finder:
    """A node that looks for deletes: by a step, by `settings.delete_missing`, or by both."""

    node: NodeParts
    write: WriteConfig
    at: Loc
    """The params of the step, else the settings."""
    step: DeleteDetectionConfig | None

    @property
    def mode(self) -> DeleteDetectionMode:
        return self.step.mode if self.step else DeleteDetectionMode.WATERMARK_WINDOW

    @property
    def name(self) -> str:
        return f"mode: {self.mode}" if self.step else "`delete_missing`"

    @property
    def loc(self) -> Loc:
        return (*self.at, "mode" if self.step else "delete_missing")


def advice(parts: Parts) -> Iterator[Mistake]:
    """Everything about deletes that cannot be right, in all nodes."""
    lineage = _Lineage(parts)
    for node in parts.nodes:
        yield from view_advice(parts, node, lineage.writer)
        yield from feed_advice(parts, node)
        if not node.whole or node.write is None:
            continue  # what is wrong with it is told already, and the rest may follow from that
        yield from _strategy_mistakes(node, node.write)
        steps = _steps(node)
        if steps is None:
            continue
        yield from _twice_mistakes(node, steps)
        for finder in _finders(node, node.write, steps):
            yield from _write_mistakes(finder)
            yield from _flag_mistakes(finder)
            yield from _mode_mistakes(parts, lineage, finder)


def _steps(node: NodeParts) -> list[tuple[Loc, DeleteDetectionConfig]] | None:
    """The steps that look for deletes, with the place of their params; None when one is told to be wrong."""
    found = []
    for loc, step in node.steps:
        if step.operation != STEP:
            continue
        try:
            params = DeleteDetectionConfig.model_validate(step.params)
        except ValidationError:
            return None
        if params.mode is not DeleteDetectionMode.NONE:
            found.append(((*loc, "params"), params))
    return found


def _finders(
    node: NodeParts, write: WriteConfig, steps: list[tuple[Loc, DeleteDetectionConfig]]
) -> Iterator[_Finder]:
    if steps:
        yield _Finder(node, write, *steps[0])
    elif node.settings.delete_missing:
        yield _Finder(node, write, (*node.loc, "settings"), None)


# --- the node as such ------------------------------------------------------------------------------------------------


def _strategy_mistakes(node: NodeParts, write: WriteConfig) -> Iterator[Mistake]:
    if not write.keyed and write.delete_strategy in ("soft", "hard"):
        message = f"`delete_strategy: {write.delete_strategy}` cannot be done: {_WHY[write.mode]}"
        hint = "remove it, or use mode: upsert or scd2"
        yield Mistake((*node.loc, "write", "delete_strategy"), message, hint)


def _twice_mistakes(
    node: NodeParts, steps: list[tuple[Loc, DeleteDetectionConfig]]
) -> Iterator[Mistake]:
    for at, _ in steps[1:]:
        message = f"a second `{STEP}` step: a node finds deletes in one way"
        yield Mistake((*at[:-1], "operation"), message, "keep one of them")
    if (
        steps
        and node.settings.delete_missing
        and steps[0][1].mode is not DeleteDetectionMode.WATERMARK_WINDOW
    ):
        yield Mistake(
            (*node.loc, "settings", "delete_missing"),
            f"`delete_missing` finds deletes by a watermark's window, and the step by {steps[0][1].mode}",
            "keep one of them; only a step with mode: watermark_window may stand beside it and bring the limits",
        )


# --- what becomes of the deletes -------------------------------------------------------------------------------------


def _write_mistakes(finder: _Finder) -> Iterator[Mistake]:
    write, step = finder.write, finder.step
    if not write.keyed:
        if write.delete_strategy != "ignore":
            message = f"{finder.name} finds deletes that cannot be applied, soft or hard: {_WHY[write.mode]}"
            hint = "write with mode: upsert or scd2, or say delete_strategy: ignore"
            if finder.node.origin.targets > 1:  # the other targets may well want the deletes
                hint = f"use two nodes, one of them for `{write.table}`; or say delete_strategy: ignore at this target"
            yield Mistake(finder.loc, message, hint)
        return
    if step and {k.casefold() for k in step.keys} != {k.casefold() for k in write.keys}:
        yield Mistake(
            (*finder.at, "keys"),
            f"the keys are {_listed(step.keys)}, and the table's are {_listed(write.keys)}: "
            "a delete must name one row of the table",
            f"write keys: [{', '.join(write.keys)}]",
        )
    removes = step is not None and step.soft_delete_col is None and write.delete_strategy is None
    if removes and write.mode == "upsert" and write.sequence_by is not None:
        yield Mistake((*finder.node.loc, "write", "sequence_by"), FORGETS, SOFT_INSTEAD)


def _flag_mistakes(finder: _Finder) -> Iterator[Mistake]:
    """The column that marks a row as deleted: wanted or not, and called like no other."""
    write, step = finder.write, finder.step
    named = step is not None and "soft_delete_col" in step.model_fields_set
    own = step.soft_delete_col if step and named else None
    loc: Loc = (*finder.at, "soft_delete_col") if named else (*finder.node.loc, "write", "keys")
    if named and own is None and write.delete_strategy == "soft":
        message = (
            "`soft_delete_col: null` removes deleted rows, and `delete_strategy: soft` keeps them"
        )
        yield Mistake(loc, message, "name the column, or use delete_strategy: hard")
    if own and write.delete_strategy == "hard":
        message = (
            f"`delete_strategy: hard` removes deleted rows, so none is left to be marked in `{own}`"
        )
        yield Mistake(loc, message, "remove `soft_delete_col`, or use delete_strategy: soft")
    if not write.keyed or write.delete_strategy in ("hard", "ignore") or (named and own is None):
        return
    roles = write.system_columns.names()
    flag = own or roles["deleted"]
    if (
        own
        and write.system_columns.deleted
        and write.system_columns.deleted.casefold() != own.casefold()
    ):
        message = f"the flag is called `{own}` here and `{write.system_columns.deleted}` in `system_columns`"
        yield Mistake(loc, message, "give it one name")
    others = [name for role, name in roles.items() if role != "deleted"] + list(_METADATA)
    if flag.casefold() in {k.casefold() for k in write.keys}:
        yield Mistake(
            loc,
            f"`{flag}` is a key of the table and cannot mark its deleted rows",
            "choose another name",
        )
    elif own and flag.casefold() in {name.casefold() for name in others}:
        yield Mistake(loc, f"`{flag}` is the name of another system column", "choose another name")


# --- whether the evidence is there -----------------------------------------------------------------------------------


def _mode_mistakes(parts: Parts, lineage: _Lineage, finder: _Finder) -> Iterator[Mistake]:
    step = finder.step
    if step and step.target_filter is not None:
        try:
            check_filter(step.target_filter)
        except SqlError as error:
            yield Mistake((*finder.at, "target_filter"), error.message, error.hint)
    fed = list(detection_advice(finder.node, finder.loc, finder.mode))
    yield from fed
    if fed or finder.mode is DeleteDetectionMode.FEED:
        return
    if len(finder.node.reads) != 1:
        if step is None and finder.node.reads:
            message = f"`delete_missing` looks at the window of one read, and this node has {len(finder.node.reads)}"
            yield Mistake(
                finder.loc, message, "find the deletes in a node that reads the source alone"
            )
        return
    if finder.mode is DeleteDetectionMode.WATERMARK_WINDOW:
        yield from _window_mistakes(parts, lineage, finder)
    elif step and step.mode is DeleteDetectionMode.SQL_COMPARE:
        yield from _compare_mistakes(parts, finder.at, step)
        yield from missed_advice(parts, finder.node, finder.at, step, lineage.writer)
    elif step and step.snapshot_column is None:
        yield from _snapshot_mistakes(parts, lineage, finder)


def _snapshot_mistakes(parts: Parts, lineage: _Lineage, finder: _Finder) -> Iterator[Mistake]:
    ((_, read),) = finder.node.reads
    if read.limited:
        message = (
            f"mode: snapshot_diff needs a full extract, and this read is limited by `{_limit(read)}`: "
            "rows that were not read would count as deleted"
        )
        yield Mistake(finder.loc, message, f"{_compare(parts, read)}, or mode: watermark_window")
        return
    if limited := lineage.limited(read):
        node, upstream = limited
        message = (
            f"mode: snapshot_diff needs full extracts, and `{read.table}` is fed by node `{node.name}`, whose read is "
            f"limited by `{_limit(upstream)}`: rows that were not read would count as deleted"
        )
        hint = f"{_compare(parts, upstream)}, or mode: watermark_window in a node that reads the source itself"
        yield Mistake(finder.loc, message, hint)
        return
    if hiding := lineage.hiding(read):
        message = (
            f"mode: snapshot_diff needs full extracts, and node `{hiding.name}` puts rows of `{read.table}` into "
            "quarantine: they would count as deleted"
        )
        hint = "put that check into this node: a row that it puts aside there does not count as deleted"
        yield Mistake(finder.loc, message, hint)
        return
    if several := list(extract_advice(finder.loc, read, lineage.writer)):
        yield from several
        return
    writer = lineage.writer(read)
    if (
        writer and writer.write and writer.write.keyed
    ):  # an append keeps its extracts apart by batch
        yield from _never_mistakes(parts, finder, read, writer)


def _window_mistakes(parts: Parts, lineage: _Lineage, finder: _Finder) -> Iterator[Mistake]:
    ((loc, read),) = finder.node.reads
    if not read.limited:
        message = f"{finder.name} looks for rows missing from the window of a watermark, and this read has none"
        hint = "add `incremental` or `watermark` to the read, or use mode: snapshot_diff for a full extract"
        yield Mistake(finder.loc, message, hint)
        return
    if read.incremental and read.incremental.column is None:
        message = (
            f"{finder.name} needs a window of values, and this read goes by the time its files were written, "
            "which no row carries"
        )
        yield Mistake(finder.loc, message, "name a `column` in `incremental`")
    yield from _bound_mistakes(finder, loc, read)
    writer = lineage.writer(read)
    if writer and writer.write and writer.write.mode != "overwrite":
        yield from _never_mistakes(parts, finder, read, writer)


def _bound_mistakes(finder: _Finder, loc: Loc, read: ReadConfig) -> Iterator[Mistake]:
    from strandline.sql.bounded import raises_bound  # here and not above: it brings sqlglot

    for index, mark in enumerate(read.watermark):
        at = (*loc, "watermark", index, "expression")
        try:
            raised = raises_bound(mark.expression)
        except SqlError as error:
            yield Mistake(at, error.message, error.hint)
            continue
        if raised:
            yield Mistake(
                at,
                f"`{mark.expression}` reads from above the last value, so {finder.name} would look at a window with a "
                "hole: rows that were not read would count as deleted",
                "start at the last value or below it, for example date_sub('${last_value}', 7)",
            )


def _compare_mistakes(parts: Parts, at: Loc, step: DeleteDetectionConfig) -> Iterator[Mistake]:
    name, loc = step.source_connection or "", (*at, "source_connection")
    found = connection_of(parts, loc, name)
    if isinstance(found, Mistake):
        yield found
    elif found is not None and not isinstance(found, SqlConnection):
        message = f"mode: sql_compare asks a database, and `{name}` is {KINDS[type(found)]}"
        yield Mistake(loc, message, f"name one with type: sql{_examples(parts)}")
    elif found is not None and found.staging:
        message = f"`{name}` is a staging database: staging tables may be empty between loads, and all would be deleted"
        yield Mistake(loc, message, f"name the database that is the authority{_examples(parts)}")
    for key in ("source_table", "source_query"):
        text = getattr(step, key)
        if text is not None and not text.strip(" \t\r\n;"):
            yield Mistake((*at, key), "this may not be empty")
        elif key == "source_table" and any(ord(char) < 32 for char in text or ""):
            yield Mistake((*at, key), "the name holds a control character")


def _never_mistakes(
    parts: Parts, finder: _Finder, read: ReadConfig, writer: NodeParts
) -> Iterator[Mistake]:
    """What is read is all there, always: nothing can be missing from it."""
    if _loses_rows(writer) or not _keeps_keys(finder.node):
        return
    mode = writer.write.mode if writer.write else ""
    message = (
        f"{finder.name} would never find anything: `{read.table}` is written by node `{writer.name}` with mode: {mode}"
        f"{'' if mode == 'append' else ' and without finding deletes'}, so it never loses a row"
    )
    other = (
        "read the source itself"
        if mode == "append"
        else f"add a `{STEP}` step to node `{writer.name}`"
    )
    yield Mistake(finder.loc, message, f"{_compare(parts, read)}, or {other}")


# --- where rows come from --------------------------------------------------------------------------------------------


class _Lineage:
    """Who writes the lake table that a read names."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._writers: dict[str, NodeParts] = {}
        for node in parts.nodes:
            if node.write and (location := self._location(node.write.connection, node.write.table)):
                self._writers.setdefault(location, node)

    def writer(self, read: ReadConfig) -> NodeParts | None:
        """The node that writes what is read here, if it is one of the project."""
        location = self._location(read.connection, read.table)
        return self._writers.get(location) if location else None

    def limited(self, read: ReadConfig) -> tuple[NodeParts, ReadConfig] | None:
        """The nearest limited read among those that feed a table, with its node."""
        pending, seen = [read], set()
        while pending:
            node = self.writer(pending.pop(0))
            if node is None or node.loc in seen:
                continue
            seen.add(node.loc)
            for _, upstream in node.reads:
                if upstream.limited or (upstream.feed and node.write and not node.write.keyed):
                    return node, upstream
                pending.append(upstream)
        return None

    def hiding(self, read: ReadConfig) -> NodeParts | None:
        """The nearest node before a read that puts rows aside, so that its table lacks them."""
        pending, seen = [read], set()
        while pending:
            node = self.writer(pending.pop(0))
            if node is None or node.loc in seen or node.write is None or node.write.keyed:
                continue  # a table with keys keeps the last good row
            if quarantining(node.steps):
                return node
            seen.add(node.loc)
            pending += [upstream for _, upstream in node.reads]
        return None

    def _location(self, connection: str, table: str | None) -> str | None:
        lake = self._parts.connections.get(connection)
        if not isinstance(lake, LakeConnection) or table is None:
            return None
        try:
            return place(lake, table, self._parts.root).casefold()
        except PlaceError:
            return None


def _loses_rows(writer: NodeParts) -> bool:
    """Does its table lose rows, as far as can be told?"""
    if not writer.whole:
        return True  # nobody knows
    if writer.write and writer.write.delete_strategy == "ignore":
        return False
    if writer.write and writer.write.delete_when is not None:
        return True
    steps = _steps(writer)
    fed = any(read.feed for _, read in writer.reads)
    return steps is None or bool(steps) or writer.settings.delete_missing or fed


def _keeps_keys(node: NodeParts) -> bool:
    """Do the steps before the detection, or all of them, leave every key there?"""
    operations = [step.operation for _, step in node.steps]
    before = operations[: operations.index(STEP)] if STEP in operations else operations
    return set(before) <= _KEEP_KEYS and (STEP in operations or node.sql is None)


# --- words -----------------------------------------------------------------------------------------------------------


def _limit(read: ReadConfig) -> str:
    return "cdc_strategy: cdf" if read.feed else "incremental" if read.incremental else "watermark"


def _compare(parts: Parts, read: ReadConfig) -> str:
    """`use mode: sql_compare`, with the database to ask if there is one: that of the read first."""
    names = _databases(parts)
    name = read.connection if read.connection in names else next(iter(names), None)
    return (
        f"use mode: sql_compare with source_connection: {name}" if name else "use mode: sql_compare"
    )


def _databases(parts: Parts) -> list[str]:
    return [
        name
        for name, c in parts.connections.items()
        if isinstance(c, SqlConnection) and not c.staging
    ]


def _examples(parts: Parts) -> str:
    names = _databases(parts)
    return f": {' or '.join(f'`{name}`' for name in names)}" if names else ""


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
