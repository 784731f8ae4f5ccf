"""append, overwrite and upsert: after any sequence of batches the table, the counts and the commits are the oracle's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from strandline.engine.base import Platform
from strandline.errors import DuplicateKeys
from strandline.result import NodeResult
from strandline.testing import oracle
from strandline.testing.frames import assert_same
from strandline.testing.oracle import Frame, Outcome
from tests.parity.lab import Lab, for_all, lab
from tests.parity.tables import Case, cases


def enriched(batch: Frame, case: Case, at: Lab) -> Frame:
    """The batch with the metadata columns that its write asks for."""
    wanted = case.write.get("add_metadata")
    if not wanted:
        return batch
    values: dict[str, Any] = {"_extracted_at": at.clock.now} if wanted is True else {}
    return oracle.with_metadata(batch, {**values, "_source_connection": "files", "_source_file": at.file})


def with_hashes(frame: Frame) -> Frame:
    """The table as an upsert stores it: with the hash of each row, which stands where the first batch put it."""
    return Frame(
        [*frame.columns, ("_row_hash", "bigint")],
        [{**row, "_row_hash": oracle.row_hash(row, frame.columns)} for row in frame.rows],
    )


def check(result: NodeResult, expected: Outcome, at: Lab, found: Frame, before: int | None) -> None:
    assert_same(found, expected.after)
    counts = (result.inserted, result.updated, result.deleted)
    assert counts == (expected.inserted, expected.updated, expected.deleted)
    assert (result.version is not None) == expected.commits
    assert result.status == ("success" if expected.commits else "unchanged")


def test_append_adds_every_row(engine_name: str, platform: Platform) -> None:
    @for_all(engine_name, cases(keyed=False))
    def _(case: Case) -> None:
        with lab(platform, {"mode": "append", **case.write}) as at:
            table: Frame | None = None
            for batch in case.batches:
                result = at.run(batch)
                expected = oracle.append(table, enriched(batch, case, at))
                check(result, expected, at, at.table(), None)
                table = expected.after


def test_overwrite_replaces_the_table_when_it_differs(engine_name: str, platform: Platform) -> None:
    @for_all(engine_name, cases(keyed=False))
    def _(case: Case) -> None:
        with lab(platform, {"mode": "overwrite", **case.write}) as at:
            table: Frame | None = None
            for batch in case.batches:
                result = at.run(batch)
                expected = oracle.overwrite(table, enriched(batch, case, at))
                check(result, expected, at, at.table(), None)
                table = expected.after
            assert at.again().version is None


@st.composite
def upserts(draw: DrawFn, *, unique: bool = True) -> Case:
    case = draw(cases(keyed=True, unique=unique, varied=unique))
    case.write.update(mode="upsert", keys=case.keys, row_hash=draw(st.booleans()))
    return case


def test_upsert_keeps_one_row_per_key(engine_name: str, platform: Platform) -> None:
    @for_all(engine_name, upserts())
    def _(case: Case) -> None:
        with lab(platform, case.write) as at:
            table: Frame | None = None
            for batch in case.batches:
                result = at.run(batch)
                expected = oracle.upsert(table, enriched(batch, case, at), case.keys)
                assert isinstance(expected, Outcome)
                check(result, expected, at, visible(at, expected.after, case), None)
                table = expected.after
            assert at.again().version is None


def visible(at: Lab, expected: Frame, case: Case) -> Frame:
    """The table without `_row_hash`, which is checked here."""
    found = at.table()
    if not case.write["row_hash"]:
        return found
    assert ("_row_hash", "bigint") in found.columns
    shown = oracle.drop(found, ["_row_hash"])
    for row in found.rows:
        assert row["_row_hash"] == oracle.row_hash(row, shown.columns)
    return shown


def test_upsert_refuses_duplicate_keys(engine_name: str, platform: Platform) -> None:
    @for_all(engine_name, upserts(unique=False), share=0.6)
    def _(case: Case) -> None:
        with lab(platform, case.write) as at:
            table: Frame | None = None
            for batch in case.batches:
                keys = [str(batch.find(k)) for k in case.keys]
                twice = oracle.duplicates(batch.rows, keys)
                if twice is None:
                    at.run(batch)
                    after = oracle.upsert(table, enriched(batch, case, at), case.keys)
                    assert isinstance(after, Outcome)
                    table = after.after
                    continue
                with pytest.raises(DuplicateKeys) as refused:
                    at.run(batch)
                assert refused.value.count == len(twice.keys)
                for sample in refused.value.samples:
                    assert tuple(map(oracle.comparable, sample)) in twice.keys
                if table is not None:
                    assert_same(visible(at, table, case), table)
