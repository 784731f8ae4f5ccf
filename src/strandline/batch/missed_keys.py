"""Missed keys as a batch records them, and the extra rows that a later read takes for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from strandline.config.deletes import DeleteDetectionConfig, DeleteDetectionMode
from strandline.config.key_columns import source_columns, up_to_detection
from strandline.control.coverage import MissedKeys
from strandline.engine.base import Engine, LakeSource
from strandline.journal import log
from strandline.lake import describe
from strandline.plan.ingest import askers, steps_of
from strandline.plan.inputs import table_of
from strandline.plan.job import Job
from strandline.plan.policy import detection_of
from strandline.sql.expr import all_of, any_of, col, lit, select, table
from strandline.sql.hash import key_hash
from strandline.sql.portable import family
from strandline.sql.values import from_text, to_text
from strandline.types import Column, Schema
from strandline.words import plural

_DIGITS = 16  # of the hash that tells keys of several columns apart


def among(missed: MissedKeys, columns: Sequence[Column]) -> exp.Expr:
    """The condition that a row has one of the missed keys in these columns.

    For keys of several columns the values of each column are what a database can look for, and the hash is exact.
    """
    parts: list[exp.Expr] = []
    for index, ((_, type_), column) in enumerate(zip(missed.columns, columns, strict=True)):
        texts = sorted({key[index] for key in missed.keys})
        parts.append(exp.In(this=col(column.name), expressions=[_literal(t, type_) for t in texts]))
    if missed.hashes:
        parts.append(exp.In(this=short_hash(columns), expressions=[lit(h) for h in missed.hashes]))
    return exp.Paren(this=all_of(parts))


def short_hash(columns: Sequence[Column]) -> exp.Expr:
    """What tells keys of several columns apart in the records."""
    whole = key_hash(columns, where="missed_rows")
    return exp.Substring(
        this=whole, start=exp.Literal.number(1), length=exp.Literal.number(_DIGITS)
    )


def _literal(text: str, type_: str) -> exp.Expr:
    return lit(from_text(text, type_))


# --- the extra rows of a read ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """The keys whose rows a node is to read, wherever the watermark stands."""

    missed: MissedKeys
    names: tuple[str, ...]  # the columns of the source that hold them
    asker: str

    def condition(self, schema: Schema, node: str) -> exp.Expr | None:
        """The condition over the source's columns; None when it holds other keys than those that are missed."""
        columns = [c for name in self.names if (c := schema.get(name))]
        kinds = [family(c.type) for c in columns]
        if kinds != [family(type_) for _, type_ in self.missed.columns]:
            log.warning(
                "%s: missed_rows: the keys that node `%s` misses are not in this source",
                node,
                self.asker,
            )
            return None
        return among(self.missed, columns)


@dataclass(frozen=True)
class Extra:
    """All that a node is to read beside its watermark."""

    node: str
    wanted: tuple[Wanted, ...] = ()

    def condition(self, schema: Schema) -> exp.Expr | None:
        """The condition that a row is wanted, over the source's columns; None when none is."""
        parts = [c for w in self.wanted if (c := w.condition(schema, self.node)) is not None]
        return any_of(parts) if parts else None


def extra_rows(job: Job, engine: Engine) -> Extra:
    """The missed rows that this batch is to read: those of its own table, and those of nodes that read its table."""
    found = [w for w in (_own(job), *_asked(job, engine)) if w is not None and w.missed.keys]
    for one in found:
        text = "%s: %s of node `%s` that the watermark has passed over: asked for by key"
        log.info(text, job.node.name, plural(one.missed.number, "missed key"), one.asker)
    return Extra(job.node.name, tuple(found))


def _own(job: Job) -> Wanted | None:
    config = job.detection
    missed = job.past.memory.missed
    if missed is None or config is None or not _reads(config, missed):
        return None
    names = source_columns(up_to_detection(steps_of(job.node)), config.keys)
    return _wanted(missed, names, job.node.name)


def _asked(job: Job, engine: Engine) -> Iterator[Wanted | None]:
    """What the nodes that read this node's table miss, without what the table has by now."""
    for other in askers(job.project, job.node):
        config = detection_of(job.project, other)
        feed = job.past.feed(table_of(job.project, other.write.connection, other.write.table))
        missed = feed.coverage.missed if feed else None
        if (
            missed is None
            or config is None
            or not _reads(config, missed)
            or job.node.transformation_sql
        ):
            continue
        stored = [
            n
            for n in source_columns(up_to_detection(steps_of(other)), config.keys)
            if n is not None
        ]
        if len(stored) < len(config.keys):
            continue
        if not job.node.write.keyed:
            missed = missed.only(set(missed.keys) - _there(job, engine, missed, stored))
        yield _wanted(missed, source_columns(steps_of(job.node), stored), other.name)


def _reads(config: DeleteDetectionConfig, missed: MissedKeys) -> bool:
    """Are the rows of these keys to be read, and are they still the keys of the node?"""
    same = [name.casefold() for name, _ in missed.columns] == [k.casefold() for k in config.keys]
    return config.mode is DeleteDetectionMode.SQL_COMPARE and config.missed_rows == "read" and same


def _wanted(missed: MissedKeys, names: Sequence[str | None], asker: str) -> Wanted | None:
    known = tuple(name for name in names if name is not None)
    return Wanted(missed, known, asker) if len(known) == len(names) else None


def _there(
    job: Job, engine: Engine, missed: MissedKeys, names: Sequence[str]
) -> set[tuple[str, ...]]:
    """Those keys that the node's table has: an append would bring their rows a second time."""
    state = describe(job.target)
    columns = [c for name in names if state and (c := state.schema.get(name))]
    if state is None or not missed.keys or len(columns) < len(names):
        return set()
    rows = engine.scan(LakeSource(job.target, state.version)).relation
    tree = (
        select(*(col(c.name) for c in columns))
        .distinct()
        .from_(table(rows.name))
        .where(among(missed, columns))
    )
    return {tuple(map(to_text, key)) for key in engine.fetch(tree)}
