"""Missed keys as a batch records them, and the extra rows that a later read takes for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

from strandline.config.deletes import DeleteDetectionConfig, DeleteDetectionMode
from strandline.config.key_columns import source_columns, up_to_detection
from strandline.engine.base import Engine, LakeSource
from strandline.guard.policy import detection_of
from strandline.job import Job
from strandline.journal import log
from strandline.plan.ingest import askers, steps_of
from strandline.plan.reading import table_of
from strandline.sql.expr import all_of, any_of, col, lit, select, table
from strandline.sql.hash import key_hash
from strandline.sql.portable import family
from strandline.sql.values import from_text, to_text
from strandline.types import Column, Schema
from strandline.words import plural

MISSED = "missed"  # in a batch's coverage: the keys that it found to be missed
_DIGITS = 16  # of the hash that tells keys of several columns apart


@dataclass(frozen=True)
class MissedKeys:
    """The keys that one batch found to be missed, as texts; none when there were too many."""

    number: int
    columns: tuple[Column, ...]
    keys: tuple[tuple[str, ...], ...] = ()
    hashes: tuple[str, ...] = ()  # of keys of several columns

    @classmethod
    def of(cls, coverage: Mapping[str, Any]) -> MissedKeys | None:
        """Those that a batch has recorded."""
        found = coverage.get(MISSED)
        if found is None:
            return None
        columns = tuple(Column(name, type_) for name, type_ in found["columns"])
        return cls(found["number"], columns, tuple(map(tuple, found["keys"])), tuple(found["hashes"]))

    def as_json(self) -> dict[str, Any]:
        """The record; `of` gives the same again."""
        columns = [[c.name, c.type] for c in self.columns]
        return {"number": self.number, "columns": columns, "keys": self.keys, "hashes": self.hashes}

    def again(self, before: MissedKeys | None) -> MissedKeys:
        """Those that the batch before had found too."""
        if before is None or before.columns != self.columns:
            return replace(self, number=0, keys=(), hashes=())
        if not self.keys:
            return self if not before.keys else replace(self, number=0)
        both = set(self.keys) & set(before.keys)
        return self.only(both)

    def only(self, keys: set[tuple[str, ...]]) -> MissedKeys:
        """Some of them."""
        hashes = self.hashes or ("",) * len(self.keys)
        left = [(key, hash_) for key, hash_ in zip(self.keys, hashes, strict=True) if key in keys]
        told = tuple(hash_ for _, hash_ in left) if self.hashes else ()
        return replace(self, number=len(left), keys=tuple(key for key, _ in left), hashes=told)

    def among(self, columns: Sequence[Column]) -> exp.Expr:
        """The condition that a row has one of these keys in these columns.

        For keys of several columns the values of each column are what a database can look for, and the hash is exact.
        """
        parts: list[exp.Expr] = []
        for index, (mine, column) in enumerate(zip(self.columns, columns, strict=True)):
            texts = sorted({key[index] for key in self.keys})
            parts.append(exp.In(this=col(column.name), expressions=[_literal(t, mine.type) for t in texts]))
        if self.hashes:
            parts.append(exp.In(this=short_hash(columns), expressions=[lit(h) for h in self.hashes]))
        return exp.Paren(this=all_of(parts))


def short_hash(columns: Sequence[Column]) -> exp.Expr:
    """What tells keys of several columns apart in the records."""
    whole = key_hash(columns, where="missed_rows")
    return exp.Substring(this=whole, start=exp.Literal.number(1), length=exp.Literal.number(_DIGITS))


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
        if kinds != [family(c.type) for c in self.missed.columns]:
            log.warning("%s: missed_rows: the keys that node `%s` misses are not in this source", node, self.asker)
            return None
        return self.missed.among(columns)


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
    missed = MissedKeys.of(job.past.memory)
    if missed is None or config is None or not _reads(config, missed):
        return None
    names = source_columns(up_to_detection(steps_of(job.node)), config.keys)
    return _wanted(missed, names, job.node.name)


def _asked(job: Job, engine: Engine) -> Iterator[Wanted | None]:
    """What the nodes that read this node's table miss, without what the table has by now."""
    for other in askers(job.project, job.node):
        config = detection_of(job.project, other)
        feed = job.past.feed(table_of(job.project, other.write.connection, other.write.table))
        missed = MissedKeys.of(feed.coverage) if feed else None
        if missed is None or config is None or not _reads(config, missed) or job.node.transformation_sql:
            continue
        stored = [n for n in source_columns(up_to_detection(steps_of(other)), config.keys) if n is not None]
        if len(stored) < len(config.keys):
            continue
        if not job.node.write.keyed:
            missed = missed.only(set(missed.keys) - _there(job, engine, missed, stored))
        yield _wanted(missed, source_columns(steps_of(job.node), stored), other.name)


def _reads(config: DeleteDetectionConfig, missed: MissedKeys) -> bool:
    """Are the rows of these keys to be read, and are they still the keys of the node?"""
    same = [c.fold for c in missed.columns] == [k.casefold() for k in config.keys]
    return config.mode is DeleteDetectionMode.SQL_COMPARE and config.missed_rows == "read" and same


def _wanted(missed: MissedKeys, names: Sequence[str | None], asker: str) -> Wanted | None:
    known = tuple(name for name in names if name is not None)
    return Wanted(missed, known, asker) if len(known) == len(names) else None


def _there(job: Job, engine: Engine, missed: MissedKeys, names: Sequence[str]) -> set[tuple[str, ...]]:
    """Those keys that the node's table has: an append would bring their rows a second time."""
    state = engine.describe(job.target)
    columns = [c for name in names if state and (c := state.schema.get(name))]
    if state is None or not missed.keys or len(columns) < len(names):
        return set()
    rows = engine.scan(LakeSource(job.target, state.version)).relation
    tree = select(*(col(c.name) for c in columns)).distinct().from_(table(rows.name)).where(missed.among(columns))
    return {tuple(map(to_text, key)) for key in engine.fetch(tree)}
