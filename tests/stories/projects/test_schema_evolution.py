"""A table never loses a column: what becomes of its columns and rows, batch by batch, on both engines."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from tests.lab import for_all, lab

from strandline.errors import StrandlineError, TableError
from strandline.lake import describe
from strandline.testing import oracle, shapes
from strandline.testing.frames import assert_same, read_table
from strandline.testing.oracle import Columns, Frame, Outcome
from strandline.testing.projects import make_project
from strandline.types import Table

UPSERT = {"mode": "upsert", "keys": ["k"]}


def frame(columns: dict[str, str], *rows: tuple[Any, ...]) -> Frame:
    return Frame([*columns.items()], [dict(zip(columns, row, strict=True)) for row in rows])


def log_of(at: Any) -> list[list[str]]:
    """The kinds of actions of each commit that says more than which features of the protocol the table needs."""
    folder = at.folder / "lake" / "t" / "_delta_log"
    texts = [f.read_text().splitlines() for f in sorted(folder.glob("*.json"))]
    kinds = [[next(iter(json.loads(line))) for line in lines] for lines in texts]
    return [k for k in kinds if set(k) != {"commitInfo", "protocol"}]


def ids_of(at: Any) -> set[str]:
    """The ids that a table ever had."""
    logs = sorted((at.folder / "lake" / "t" / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for f in logs for line in f.read_text().splitlines()]
    return {a["metaData"]["id"] for a in actions if "metaData" in a}


# --- cycles ------------------------------------------------------------------------------------------------

NAMES = ["a", "b", "c", "d"]
VALUES = {
    "int": [None, 1, -7],
    "bigint": [None, 1, 2**40],
    "decimal(12,2)": [None, Decimal("1.00"), Decimal("0.25")],
    "date": [None, date(2024, 2, 29)],
    "timestamp": [None, datetime(2024, 2, 29, tzinfo=UTC), datetime(2024, 3, 1, 1, tzinfo=UTC)],
    "string": [None, "", "x"],
    "struct<x:int>": [None, {"x": 1}, {"x": None}],
    "struct<y:string,x:bigint>": [None, {"y": "q", "x": 2**40}],
    "array<struct<x:int>>": [None, [], [{"x": 1}, None]],
    "array<struct<x:int,z:string>>": [None, [{"x": 2, "z": "w"}]],
    "map<string,int>": [None, [("p", 1)]],
    "map<string,bigint>": [None, [("p", 2**40)]],
}
KIN = [
    ["int", "bigint", "decimal(12,2)"],
    ["date", "timestamp"],
    ["string"],
    ["struct<x:int>", "struct<y:string,x:bigint>"],
    ["array<struct<x:int>>", "array<struct<x:int,z:string>>"],
    ["map<string,int>", "map<string,bigint>"],
]


@st.composite
def cycles(draw: DrawFn) -> list[Frame]:
    """[k, a, b] → [k, a, c] → [k, a, d] and longer, each column with types that meet in one."""
    kinds = {name: draw(st.sampled_from(KIN)) for name in NAMES}
    found = []
    for _ in range(draw(st.integers(2, 4))):
        names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
        columns: Columns = [("k", draw(st.sampled_from(["int", "bigint"])))]
        columns += [(n, draw(st.sampled_from(kinds[n]))) for n in names]
        keys = draw(st.lists(st.integers(1, 4), max_size=3, unique=True))
        rows = [
            {"k": k} | {n: draw(st.sampled_from(VALUES[t])) for n, t in columns[1:]} for k in keys
        ]
        found.append(Frame(columns, rows))
    return found


def meets(table: Frame | None, batch: Frame) -> bool:
    try:
        shapes.union(table.columns if table else None, batch.columns)
    except shapes.Unfit:
        return False
    return True


@pytest.mark.parametrize("mode", ["append", "upsert", "overwrite"])
def test_a_cycle_of_columns_ends_as_the_oracle_says(
    engine_name: str, platform: Any, mode: str
) -> None:
    write = {"mode": mode, **({"keys": ["k"], "row_hash": False} if mode == "upsert" else {})}
    no_maps = (engine_name, mode) == ("spark", "upsert")  # which cannot compare them

    @for_all(engine_name, cycles(), share=0.6)
    def _(batches: list[Frame]) -> None:
        with lab(platform, write) as at:
            table: Frame | None = None
            for batch in batches:
                maps = no_maps and any("map" in t for _, t in batch.columns)
                if maps or not meets(table, batch):
                    continue
                result, before = at.run(batch), table
                expected = {
                    "append": oracle.append,
                    "overwrite": oracle.overwrite,
                    "upsert": lambda t, s: oracle.upsert(t, s, ["k"]),
                }[mode](table, batch)
                assert isinstance(expected, Outcome)
                table = expected.after
                assert_same(at.table(), table)
                assert (result.version is not None) == expected.commits
                assert (
                    before is None
                    or [n for n, _ in table.columns][: len(before.columns)] == before.names
                )
            assert len(ids_of(at)) <= 1  # another id would be another table


# --- widening ----------------------------------------------------------------------------------------------

WIDER = [
    ("int", 1, "bigint", 2**40),
    ("float", 0.5, "double", 0.1),
    ("decimal(5,2)", Decimal("1.50"), "decimal(12,4)", Decimal("1.2345")),
    ("int", 1, "decimal(12,2)", Decimal("0.25")),
    ("date", date(2024, 2, 29), "timestamp", datetime(2024, 2, 29, 1, tzinfo=UTC)),
    ("date", date(2024, 2, 29), "timestamp_ntz", datetime(2024, 2, 29, 1)),
]


@pytest.mark.parametrize(("narrow", "old", "wide", "new"), WIDER)
@pytest.mark.parametrize("mode", ["upsert", "scd2"])
@pytest.mark.long_on_spark
def test_a_widened_row_is_not_a_changed_row(
    platform: Any, mode: str, narrow: str, old: Any, wide: str, new: Any
) -> None:
    """The same value in the wider type changes nothing; the column widens in the commit of the rows."""
    same = shapes.reshaped(old, narrow, wide)
    with lab(platform, {"mode": mode, "keys": ["k"]}) as at:
        at.run(frame({"k": "int", "v": narrow}, (1, old), (2, old)))
        result = at.run(frame({"k": "int", "v": wide}, (1, same), (2, same), (3, new)))
        assert (result.inserted, result.updated, result.deleted) == (1, 0, 0)
        assert len(log_of(at)) == 2
        table = at.table()
        assert dict(table.columns)["v"] == wide
        assert sorted((r["k"], r["v"]) for r in table.rows) == [(1, same), (2, same), (3, new)]
        assert at.again().status == "unchanged"
        back = at.run(frame({"k": "int", "v": narrow}, (1, old), (2, old)))  # narrower simply fits
        assert back.counts.written == 0
        assert dict(at.table().columns)["v"] == wide


@pytest.mark.long_on_spark
@pytest.mark.parametrize("mode", ["upsert", "scd2"])
def test_keys_widen_too(platform: Any, mode: str) -> None:
    with lab(platform, {"mode": mode, "keys": ["k"]}) as at:
        at.run(frame({"k": "int", "v": "string"}, (1, "a"), (2, "b")))
        result = at.run(
            frame(
                {"k": "decimal(20,1)", "v": "string"}, (Decimal("1.0"), "a"), (Decimal("2.5"), "c")
            )
        )
        assert (result.inserted, result.updated) == (1, 0)
        assert dict(at.table().columns)["k"] == "decimal(20,1)"
        assert at.again().status == "unchanged"


@pytest.mark.long_on_spark
def test_a_history_in_business_time_widens_with_its_events(platform: Any) -> None:
    write = {"mode": "scd2", "keys": ["k"], "effective_at": "e"}
    first = {"k": "int", "v": "int", "e": "timestamp"}
    at1, at2 = (datetime(2024, 1, d, tzinfo=UTC) for d in (1, 2))
    with lab(platform, write) as at:
        at.run(frame(first, (1, 1, at1), (2, 1, at1)))
        wide = {"k": "bigint", "v": "decimal(12,2)", "e": "timestamp", "n": "string"}
        rows = [(1, Decimal("1.00"), at1, None), (1, Decimal("2.50"), at2, "x")]
        result = at.run(frame(wide, *rows))
        assert (result.inserted, result.updated) == (0, 1)
        events = read_table(at.folder / "lake" / "t__events")
        assert len(events.rows) == 3  # the replayed one is the one that is there
        assert dict(events.columns)["v"] == "decimal(12,2)"
        shown = sorted((r["k"], r["v"], r["_is_current"]) for r in at.table().rows)
        assert shown == [(1, 1, False), (1, Decimal("2.50"), True), (2, 1, True)]
        assert at.again().status == "unchanged"


@pytest.mark.long_on_spark
def test_a_partition_column_widens(platform: Any) -> None:
    with lab(platform, {**UPSERT, "partition_by": ["p"]}) as at:
        at.run(frame({"k": "int", "p": "int"}, (1, 1), (2, 2)))
        at.run(frame({"k": "int", "p": "bigint", "n": "int"}, (1, 1, None), (3, 2**40, 5)))
        state = describe(Table("t", str(at.folder / "lake" / "t")))
        assert state is not None
        assert state.partition_by == ("p",)
        assert at.table().columns[:2] == [("k", "int"), ("p", "bigint")]
        assert sorted(r["p"] for r in at.table().rows) == [1, 2, 2**40]


@pytest.mark.long_on_spark
def test_a_watermark_widens_with_its_column(tmp_path: Any, platform: Any) -> None:
    from strandline.testing.frames import write_parquet

    read = {
        "connection": "files",
        "path": "t.parquet",
        "incremental": {"mode": "stateful", "column": "n"},
    }
    node = {
        "name": "n",
        "read": read,
        "write": {"connection": "lake", "table": "t", "mode": "append"},
    }
    project = make_project(tmp_path, [node])
    batches: dict[str, list[Any]] = {
        "int": [1, 2],
        "bigint": [2, 2**40],
        "decimal(20,1)": [Decimal(2**40), Decimal("9999999999999.5")],
    }
    for type_, values in batches.items():
        write_parquet(
            tmp_path / "landing" / "t.parquet", Frame([("n", type_)], [{"n": v} for v in values])
        )
        assert project.run(platform=platform, check=True).nodes[0].status == "success"
    found = sorted(r["n"] for r in read_table(tmp_path / "lake" / "t").rows)
    assert found == [1, 2, 2**40, Decimal("9999999999999.5")]


# --- what may become of a table ----------------------------------------------------------------------------


@pytest.mark.long_on_spark
def test_strict_and_off_for_a_node_or_one_of_its_targets(platform: Any) -> None:
    with lab(platform, UPSERT, schema_evolution="strict") as at:
        at.run(frame({"k": "int", "v": "int"}, (1, 1)))
        with pytest.raises(TableError, match=r"`w` \(int\) is new; `v` is gone"):
            at.run(frame({"k": "int", "w": "int"}, (1, 1)))
        assert at.table().names == ["k", "v", "_row_hash"]
    with lab(platform, {**UPSERT, "schema_evolution": "off"}, schema_evolution="strict") as at:
        at.run(frame({"k": "int", "v": "int"}, (1, 1)))
        result = at.run(frame({"k": "int", "w": "int"}, (1, 1), (2, 2)))
        assert (result.inserted, result.updated) == (1, 0)
        assert "lacks `w`" in result.warnings[0]
        assert at.table().names == ["k", "v", "_row_hash"]


def test_what_cannot_be_widened_writes_nothing(platform: Any) -> None:
    with lab(platform, UPSERT) as at:
        at.run(frame({"k": "int", "v": "int"}, (1, 1)))
        at.run(frame({"k": "int"}, (1,)))
        with pytest.raises(StrandlineError) as error:  # a column that returns with another type
            at.run(frame({"k": "int", "v": "string", "n": "int"}, (1, "x", 1)))
        assert "column `v` is int in the table, but the rows bring string" in error.value.message
        assert "v_string" in str(error.value.hint)
        assert at.table().names == ["k", "v", "_row_hash"]
        assert len(log_of(at)) == 1


@pytest.mark.long_on_spark
@pytest.mark.parametrize("relax", [False, True])
def test_a_not_null_column_that_vanished(platform: Any, relax: bool) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    with lab(platform, {"mode": "append", "relax_not_null": relax}) as at:
        fields = [pa.field("k", pa.int32()), pa.field("n", pa.int32(), nullable=False)]
        write_deltalake(
            at.folder / "lake" / "t", pa.table({"k": [1], "n": [1]}, schema=pa.schema(fields))
        )
        if not relax:
            with pytest.raises(TableError, match=r"column `n` is NOT NULL in the table") as error:
                at.run(frame({"k": "int"}, (2,)))
            assert "relax_not_null: true" in str(error.value.hint)
            assert DeltaTable(at.folder / "lake" / "t").version() == 0
            return
        at.run(frame({"k": "int"}, (2,)))
        assert_same(at.table(), frame({"k": "int", "n": "int"}, (1, 1), (2, None)))
        at.run(frame({"k": "int"}, (3,)))
        assert len(log_of(at)) == 3


@pytest.mark.long_on_spark
def test_a_refused_batch_leaves_the_columns_as_they_were(tmp_path: Any, platform: Any) -> None:
    """Deletes that are refused, or held with nothing else to write, bring no column either."""
    from strandline.testing.frames import write_parquet

    def project(breach: str) -> Any:
        params = {
            "mode": "snapshot_diff",
            "keys": ["k"],
            "max_delete_percent": 10,
            "on_threshold_breach": breach,
        }
        bronze = {
            "name": "b",
            "read": {"connection": "files", "path": "t.parquet"},
            "write": {"connection": "lake", "table": "b", "mode": "append"},
        }
        silver = {
            "name": "s",
            "read": {"connection": "lake", "table": "b"},
            "transform": {"steps": [{"operation": "detect_deletes", "params": params}]},
            "write": {"connection": "lake", "table": "s", "mode": "upsert", "keys": ["k"]},
        }
        return make_project(tmp_path, [bronze, silver])

    def lands(*rows: tuple[Any, ...], **more: str) -> None:
        batch = frame({"k": "int", **more}, *rows)
        write_parquet(tmp_path / "landing" / "t.parquet", batch)

    lands((1,), (2,), (3,))
    project("hold").run(platform=platform, check=True)
    before = read_table(tmp_path / "lake" / "s").columns
    lands((1, None), n="int")
    assert project("error").run(platform=platform).nodes[1].status == "failed"
    assert read_table(tmp_path / "lake" / "s").columns == before
    assert project("hold").run(platform=platform).nodes[1].status == "held"
    assert read_table(tmp_path / "lake" / "s").columns == before
    lands((1, 7), (2, None), (3, None), n="int")
    assert project("hold").run(platform=platform).nodes[1].status == "success"
    assert dict(read_table(tmp_path / "lake" / "s").columns)["n"] == "int"


@pytest.mark.long_on_spark
def test_a_plan_shows_what_becomes_of_the_columns(tmp_path: Any, pandas_platform: Any) -> None:
    from strandline.testing.frames import write_parquet

    node = {
        "name": "n",
        "read": {"connection": "files", "path": "t.parquet"},
        "write": {"connection": "lake", "table": "t", "mode": "append"},
    }
    project = make_project(tmp_path, [node])
    write_parquet(tmp_path / "landing" / "t.parquet", frame({"k": "int"}, (1,)))
    project.run(platform=pandas_platform, check=True)
    write_parquet(
        tmp_path / "landing" / "t.parquet", frame({"k": "bigint", "n": "string"}, (2**40, "x"))
    )
    shown = project.plan(platform=pandas_platform, out=tmp_path / "p").as_dict()["nodes"][0][
        "schema_changes"
    ]
    assert shown == [
        {"change": "add_column", "column": "n", "type": "string", "role": None},
        {"change": "widen", "path": "k", "old": "int", "new": "bigint"},
    ]
    assert read_table(tmp_path / "lake" / "t").columns == [("k", "int")]
    project.follow(tmp_path / "p", platform=pandas_platform, check=True)
    expected = frame({"k": "bigint", "n": "string"}, (1, None), (2**40, "x"))
    assert_same(read_table(tmp_path / "lake" / "t"), expected)


@pytest.mark.long_on_spark
def test_undo_takes_back_rows_and_leaves_columns_and_types(tmp_path: Any, platform: Any) -> None:
    from strandline.testing.frames import write_parquet

    node = {
        "name": "n",
        "read": {"connection": "files", "path": "t.parquet"},
        "write": {"connection": "lake", "table": "t", "mode": "upsert", "keys": ["k"]},
    }
    project = make_project(tmp_path, [node])
    old, new = (
        {"k": "int", "s": "struct<a:int>"},
        {"k": "decimal(12,1)", "s": "struct<b:int,a:bigint>"},
    )
    write_parquet(tmp_path / "landing" / "t.parquet", frame(old, (1, {"a": 1})))
    project.run(platform=platform, check=True)
    write_parquet(
        tmp_path / "landing" / "t.parquet", frame(new, (Decimal("1.0"), {"b": 2, "a": 2**40}))
    )
    run = project.run(platform=platform, check=True)
    project.undo(run.run_id, platform=platform)
    table = read_table(tmp_path / "lake" / "t")
    assert table.columns == [
        ("k", "decimal(12,1)"),
        ("s", "struct<a:bigint,b:int>"),
        ("_row_hash", "bigint"),
    ]
    assert [(r["k"], r["s"]) for r in table.rows] == [(Decimal("1.0"), {"a": 1, "b": None})]
    write_parquet(tmp_path / "landing" / "t.parquet", frame(old, (1, {"a": 1})))
    assert project.run(platform=platform, check=True).nodes[0].status == "unchanged"
