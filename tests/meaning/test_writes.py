"""append, overwrite and upsert: after any batches the table, the counts and the commits are the oracle's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from tests.lab import Lab, everywhere, for_all, lab
from tests.meaning.tables import Case, cases

from strandline.engine.base import Platform
from strandline.errors import DuplicateKeys, TableError, TransformError
from strandline.result import NodeResult
from strandline.testing import oracle
from strandline.testing.frames import assert_same
from strandline.testing.oracle import Frame, Outcome


def enriched(batch: Frame, case: Case, at: Lab) -> Frame:
    """The batch with the metadata columns that its write asks for."""
    wanted = case.write.get("add_metadata")
    if not wanted:
        return batch
    values: dict[str, Any] = {"_extracted_at": at.clock.now} if wanted is True else {}
    return oracle.with_metadata(
        batch, {**values, "_source_connection": "files", "_source_file": at.file}
    )


def check(result: NodeResult, expected: Outcome, found: Frame) -> None:
    assert_same(found, expected.after)
    counts = (result.inserted, result.updated, result.deleted)
    assert counts == (expected.inserted, expected.updated, expected.deleted)
    assert (result.version is not None) == expected.commits
    assert result.status == ("success" if expected.commits else "unchanged")


@everywhere
@pytest.mark.long_on_spark
def test_append_adds_every_row(engine_name: str, platform: Platform) -> None:
    @for_all(engine_name, cases(keyed=False))
    def _(case: Case) -> None:
        with lab(platform, {"mode": "append", **case.write}) as at:
            table: Frame | None = None
            for batch in case.batches:
                result = at.run(batch)
                expected = oracle.append(table, enriched(batch, case, at))
                check(result, expected, at.table())
                table = expected.after


@everywhere
@pytest.mark.long_on_spark
def test_overwrite_replaces_the_table_when_it_differs(engine_name: str, platform: Platform) -> None:
    @for_all(engine_name, cases(keyed=False))
    def _(case: Case) -> None:
        with lab(platform, {"mode": "overwrite", **case.write}) as at:
            table: Frame | None = None
            for batch in case.batches:
                result = at.run(batch)
                expected = oracle.overwrite(table, enriched(batch, case, at))
                check(result, expected, at.table())
                table = expected.after
            assert at.again().version is None


@st.composite
def upserts(draw: DrawFn, *, unique: bool = True) -> Case:
    case = draw(cases(keyed=True, unique=unique, varied=unique))
    case.write.update(mode="upsert", keys=case.keys, row_hash=draw(st.booleans()))
    return case


@everywhere
def test_upsert_keeps_one_row_per_key(engine_name: str, platform: Platform) -> None:
    @for_all(engine_name, upserts())
    def _(case: Case) -> None:
        with lab(platform, case.write) as at:
            table: Frame | None = None
            for batch in case.batches:
                result = at.run(batch)
                expected = oracle.upsert(table, enriched(batch, case, at), case.keys)
                assert isinstance(expected, Outcome)
                check(result, expected, visible(at, case))
                table = expected.after
            assert at.again().version is None


def visible(at: Lab, case: Case) -> Frame:
    """The table without `_row_hash`, which is checked here."""
    found = at.table()
    if not case.write["row_hash"]:
        return found
    assert ("_row_hash", "bigint") in found.columns
    shown = oracle.drop(found, ["_row_hash"])
    for row in found.rows:
        assert row["_row_hash"] == oracle.row_hash(row, shown.columns)
    return shown


def test_delete_insert_replaces_all_rows_of_a_key(engine_name: str, platform: Platform) -> None:
    @for_all(engine_name, cases(keyed=True, unique=False))
    def _(case: Case) -> None:
        with lab(platform, {**case.write, "mode": "delete_insert", "keys": case.keys}) as at:
            table: Frame | None = None
            for batch in case.batches:
                result = at.run(batch)
                expected = oracle.delete_insert(table, enriched(batch, case, at), case.keys)
                check(result, expected, at.table())
                table = expected.after
            assert at.again().version is None


@pytest.mark.long_on_spark
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
                    assert_same(visible(at, case), table)


# --- update_condition --------------------------------------------------------------------------------------


def greater(new: Any, old: Any) -> bool | None:
    return None if new is None or old is None else new > old


CONDITIONS = {
    "source.v > target.v": lambda new, old: greater(new["v"], old["v"]),
    "NOT (source.v <=> target.v)": lambda new, old: not oracle.same(new["v"], old["v"]),
    "source.v <> target.v": lambda new, old: (
        None if new["v"] is None or old["v"] is None else new["v"] != old["v"]
    ),
    "source.v IS NULL OR target.w = 'a'": lambda new, old: (
        True if new["v"] is None else None if old["w"] is None else old["w"] == "a"
    ),
}


@st.composite
def conditional(draw: DrawFn) -> tuple[str, list[Frame]]:
    """Batches over k, v and w; v may appear only later."""
    row = st.fixed_dictionaries(
        {
            "k": st.sampled_from([None, 0, 1, 2]),
            "v": st.sampled_from([None, 1, 2, 3]),
            "w": st.sampled_from([None, "", "a", "b"]),
        }
    )
    columns = [("k", "int"), ("v", "bigint"), ("w", "string")]
    batches = []
    for number in range(draw(st.integers(1, 4))):
        rows = draw(st.lists(row, max_size=6, unique_by=lambda r: r["k"]))
        late = number == 0 and draw(st.booleans())
        batches.append(oracle.drop(Frame(columns, rows), ["v"] if late else []))
    return draw(st.sampled_from(sorted(CONDITIONS))), batches


@pytest.mark.parametrize("row_hash", [True, pytest.param(False, marks=pytest.mark.long_on_spark)])
def test_update_condition_holds_back_updates_only(
    engine_name: str, platform: Platform, row_hash: bool
) -> None:
    @for_all(engine_name, conditional(), share=0.5)
    def _(case: tuple[str, list[Frame]]) -> None:
        sql, batches = case
        write = {"mode": "upsert", "keys": ["k"], "update_condition": sql, "row_hash": row_hash}
        with lab(platform, write) as at:
            table: Frame | None = None
            for batch in batches:
                result = at.run(batch)
                expected = oracle.upsert(table, batch, ["k"], CONDITIONS[sql])
                assert isinstance(expected, Outcome)
                check(result, expected, visible(at, Case(["k"], [], write)))
                table = expected.after


# --- what a table cannot hold ------------------------------------------------------------------------------


FORBIDDEN = ["a,b", "a;b", "a{b", "a}b", "a(b", "a)b", "a\tb", "a\nb", "a=b"]


@pytest.mark.parametrize(
    "name", ["first name", *(pytest.param(n, marks=pytest.mark.long_on_spark) for n in FORBIDDEN)]
)
def test_names_that_delta_cannot_hold_are_refused(platform: Platform, name: str) -> None:
    """Spark writes no such column without column mapping: both engines refuse it, by name and before they write."""
    with lab(platform, {"mode": "append"}) as at:
        with pytest.raises(TableError) as refused:
            at.run(Frame([(name, "int")], [{name: 1}]))
        assert name in refused.value.message
        assert not (at.folder / "lake" / "t").exists()


def test_an_empty_text_cannot_be_a_partition(platform: Platform) -> None:
    """Delta reads an empty partition value as NULL: a row would come back changed."""
    with (
        lab(platform, {"mode": "append", "partition_by": ["p"]}) as at,
        pytest.raises(TableError, match="`p`"),
    ):
        at.run(Frame([("p", "string"), ("v", "int")], [{"p": "", "v": 1}]))


@pytest.mark.long_on_spark
def test_a_table_needs_a_column_besides_its_partitions(platform: Platform) -> None:
    with (
        lab(platform, {"mode": "append", "partition_by": ["p"]}) as at,
        pytest.raises(TransformError, match="besides"),
    ):
        at.run(Frame([("p", "string")], [{"p": "a"}]))
