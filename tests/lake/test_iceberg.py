"""Iceberg behind the door, on the local engine: what a table is, how a commit lands, what is refused by name."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFileContent
from pyiceberg.transforms import BucketTransform, TruncateTransform
from pyiceberg.types import LongType, StringType
from tests.lab import Lab, MemoryStore

from strandline.errors import CommitConflict, ConfigError, StrandlineError, TableError
from strandline.lake import commit_of, commits, describe, format_of, last_batch
from strandline.lake.iceberg import log
from strandline.plan.inputs import table_of
from strandline.plan.job import Job
from strandline.run.runner import Runner
from strandline.testing.frames import assert_same, read_table
from strandline.testing.oracle import Frame
from strandline.testing.projects import LAKE, make_project
from strandline.types import Column, Table, Token

COLUMNS = [("id", "bigint"), ("name", "string")]


@pytest.fixture(autouse=True)
def iceberg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LAKE, "iceberg")


def frame(*pairs: tuple[int | None, str | None]) -> Frame:
    return Frame(COLUMNS, [{"id": i, "name": n} for i, n in pairs])


class World(Lab):
    """A lab whose table can be looked at and changed by PyIceberg alone."""

    @property
    def place(self) -> Table:
        return table_of(self.project.config, "lake", "t")

    @property
    def ice(self) -> Any:
        uri = f"sqlite:///{self.folder / 'lake' / 'ice.db'}"
        return load_catalog("lake", type="sql", uri=uri).load_table("lake.t")

    def state(self) -> Any:
        found = describe(self.place, "strandline/test/n")
        assert found is not None
        return found

    def rows(self) -> set[tuple[Any, ...]]:
        return {(r["id"], r["name"]) for r in read_table(self.folder / "lake" / "t").rows}

    def at(self, version: int) -> int:
        from strandline.engine.base import LakeSource

        with self.platform.workspace("look") as engine:
            from sqlglot import exp

            relation = engine.scan(LakeSource(self.place, version)).relation
            counted = exp.select(exp.Count(this=exp.Star())).from_(exp.to_identifier(relation.name))
            return int(engine.fetch(counted)[0][0])


@pytest.fixture
def world(tmp_path: Path, pandas_platform: Any) -> Any:
    def make(**write: Any) -> World:
        upsert = {"mode": "upsert", "keys": ["id"]}
        return World(tmp_path, pandas_platform, write if "mode" in write else {**upsert, **write})

    return make


# --- what a table is -----------------------------------------------------------------------------------------


def test_to_look_at_a_table_makes_nothing(world: Any) -> None:
    w = world()
    assert describe(w.place) is None
    assert not (w.folder / "lake").exists()


def test_a_batch_is_one_snapshot_with_its_token(world: Any) -> None:
    w = world()
    w.run(frame((1, "a"), (2, "b")))
    w.run(frame((2, "bb"), (3, "c")))
    second, first = w.ice.metadata.snapshots[::-1]
    assert (second.parent_snapshot_id, first.parent_snapshot_id) == (first.snapshot_id, None)
    assert w.state().version == second.snapshot_id
    assert w.rows() == {(1, "a"), (2, "bb"), (3, "c")}
    found = commits(w.place)
    assert [c.version for c in found] == [first.snapshot_id, second.snapshot_id]
    assert found[1].parent == found[0].version
    assert last_batch(w.place) == found[1]
    token = Token("test", "n", found[1].batch, found[1].run_id, found[1].number)
    assert commit_of(w.place, token) == found[1]


def test_rows_are_deleted_by_position(world: Any) -> None:
    """An update leaves the files of before, and adds one file of deletes."""
    w = world()
    w.run(frame(*((i, f"n{i}") for i in range(100))))
    w.run(frame((7, "other")))
    head = w.ice.metadata.current_snapshot()
    entries = [e for m in head.manifests(w.ice.io) for e in m.fetch_manifest_entry(w.ice.io)]
    kinds = sorted((e.data_file.content.name, e.data_file.record_count) for e in entries)
    assert kinds == [("DATA", 1), ("DATA", 100), ("POSITION_DELETES", 1)]
    assert len(w.rows()) == 100


def test_the_token_survives_its_snapshot(world: Any) -> None:
    w = world()
    w.run(frame((1, "a")))
    w.run(frame((1, "b")))
    ice = w.ice
    ice.maintenance.expire_snapshots().by_id(ice.metadata.snapshots[0].snapshot_id).commit()
    number = w.state().commit.number
    with w.ice.transaction() as tx:
        tx.append(pa.table({"id": [9], "name": ["x"]}))
    ice = w.ice
    ice.maintenance.expire_snapshots().by_id(ice.metadata.snapshots[0].snapshot_id).commit()
    assert [s.snapshot_id for s in w.ice.metadata.snapshots] == [w.state().version]
    assert w.state().commit.number == number
    assert len(commits(w.place)) == 1


def test_roles_of_columns_survive_a_rename(world: Any) -> None:
    w = world(mode="scd2", keys=["id"])
    w.run(frame((1, "a")))
    with w.ice.update_schema() as update:
        update.rename_column("_is_current", "now")
    assert w.state().roles["is_current"] == "now"


# --- versions ------------------------------------------------------------------------------------------------


def test_an_older_version_is_read_in_its_columns(world: Any) -> None:
    w = world()
    w.run(frame((1, "a"), (2, "b")))
    before = w.state().version
    w.run(Frame([*COLUMNS, ("more", "int")], [{"id": 3, "name": "c", "more": 1}]))
    then = format_of(w.place).at(w.place, before)
    assert then is not None
    assert "more" not in then.schema
    assert "more" in w.state().schema
    assert (w.at(before), w.at(w.state().version)) == (2, 3)


def test_a_rollback_is_no_part_of_the_history(world: Any) -> None:
    w = world()
    w.run(frame((1, "a")))
    kept = w.state().version
    w.run(frame((2, "b")))
    gone = w.state().version
    with w.ice.manage_snapshots() as manage:
        manage.rollback_to_snapshot(kept)
    lake = format_of(w.place)
    assert w.state().version == kept
    assert lake.since(w.place, gone) is None
    assert lake.since(w.place, kept) == []
    assert [c.version for c in commits(w.place)] == [kept]
    assert lake.moved(w.place, gone, kept)
    w.run(frame((3, "c")))  # its number is not taken: those only go up
    assert w.rows() == {(1, "a"), (3, "c")}


def test_an_expired_version_is_not_read(world: Any) -> None:
    w = world()
    w.run(frame((1, "a")))
    old = w.state().version
    w.run(frame((2, "b")))
    w.ice.maintenance.expire_snapshots().by_id(old).commit()
    lake = format_of(w.place)
    assert lake.unreadable(w.place, old) == f"version {old} is expired"
    assert lake.at(w.place, old) is None
    assert lake.gap(w.place, old, w.state().version, vectors=False)
    assert lake.rows_at(w.place, old, {"id": 1}) is None


def test_a_version_whose_files_are_gone_is_unreadable(world: Any) -> None:
    w = world()
    w.run(frame((1, "a")))
    for file in (w.folder / "lake" / "ice").rglob("*.parquet"):
        file.unlink()
    why = format_of(w.place).unreadable(w.place, w.state().version)
    assert why is not None
    assert "1 of the 1 files" in why


def test_single_rows_as_they_were(world: Any) -> None:
    w = world()
    w.run(frame((1, "a"), (None, "n")))
    old = w.state().version
    w.run(frame((1, "b")))
    rows = format_of(w.place).rows_at
    assert [r["name"] for r in rows(w.place, old, {"id": 1}) or ()] == ["a"]
    assert [r["name"] for r in rows(w.place, w.state().version, {"id": 1}) or ()] == ["b"]
    assert [r["name"] for r in rows(w.place, old, {"id": None}) or ()] == ["n"]
    assert rows(w.place, old, {"id": 7}) == []


# --- commits that lose ---------------------------------------------------------------------------------------


def files_of(w: World) -> set[Path]:
    return {
        p for p in (w.folder / "lake" / "ice").rglob("*") if p.is_file() and p.suffix != ".json"
    }


def test_a_commit_between_the_look_and_ours_is_refused(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loser removes the files that it wrote, and no other."""
    from strandline.lake.iceberg.commit import Draft

    w, kept = world(), []
    w.run(frame((1, "a")))
    real = Draft.commit

    def beside(self: Draft, *args: Any, **how: Any) -> int:
        monkeypatch.setattr(Draft, "commit", real)
        w.ice.append(pa.table({"id": [9], "name": ["x"]}))
        kept.append(files_of(w) - {Path(p.removeprefix("file://")) for p in self._written})
        return real(self, *args, **how)

    monkeypatch.setattr(Draft, "commit", beside)
    with pytest.raises(CommitConflict, match="another writer committed at the same moment"):
        w.run(frame((1, "b")))
    assert files_of(w) == kept[0]
    assert w.rows() == {(1, "a"), (9, "x")}
    w.again()
    assert w.rows() == {(1, "b"), (9, "x")}


def test_a_lost_answer_is_looked_up_in_the_table(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    w, real = world(), SqlCatalog.commit_table
    w.run(frame((1, "a")))

    def lands_and_says_nothing(*args: Any) -> Any:
        real(*args)
        raise sqlalchemy.exc.OperationalError("the server is gone", {}, Exception())

    monkeypatch.setattr(SqlCatalog, "commit_table", lands_and_says_nothing)
    assert w.run(frame((1, "b"))).counts.updated == 1
    assert w.rows() == {(1, "b")}


def test_an_unknown_outcome_removes_nothing(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    w = world()
    w.run(frame((1, "a")))
    before = files_of(w)

    def says_nothing(*args: Any) -> Any:
        raise sqlalchemy.exc.OperationalError("the server is gone", {}, Exception())

    monkeypatch.setattr(SqlCatalog, "commit_table", says_nothing)
    with pytest.raises(TableError, match="its catalog `lake`"):
        w.run(frame((1, "b")))
    assert files_of(w) > before
    assert w.rows() == {(1, "a")}


def test_two_first_commits_make_one_table(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from strandline.lake.iceberg.commit import Draft

    w, real = world(), Draft.commit

    def second(self: Draft, *args: Any, **how: Any) -> int:
        monkeypatch.setattr(Draft, "commit", real)
        Runner(MemoryStore(), "other").run(
            Job(w.project.config, w.project.config.config.nodes[0], w.clock), engine
        )
        return real(self, *args, **how)

    with w.platform.workspace("other") as engine:
        monkeypatch.setattr(Draft, "commit", second)
        with pytest.raises(StrandlineError):
            w.run(frame((1, "a")))
    assert w.rows() == {(1, "a")}
    assert len(w.ice.metadata.snapshots) == 1


def test_many_small_manifests_become_one(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from strandline.lake.iceberg import commit

    monkeypatch.setattr(commit, "MANY", 3)
    w = world()
    w.run(frame(*((i, "a") for i in range(10))))
    first = w.state().version
    for i in range(9):
        w.run(frame((i, f"b{i}"), (100 + i, "new")))
    assert w.rows() == {
        *((i, f"b{i}") for i in range(9)),
        (9, "a"),
        *((100 + i, "new") for i in range(9)),
    }
    manifests = w.ice.metadata.current_snapshot().manifests(w.ice.io)
    assert len(manifests) <= 6
    assert w.at(first) == 10
    assert format_of(w.place).unreadable(w.place, w.state().version) is None
    assert w.ice.scan().to_arrow().num_rows == 19


# --- tables of others ----------------------------------------------------------------------------------------


def made_by_another(w: World, schema: pa.Schema, **properties: str) -> Any:
    (w.folder / "lake").mkdir(exist_ok=True)
    uri, store = f"sqlite:///{w.folder / 'lake' / 'ice.db'}", f"file://{w.folder / 'lake' / 'ice'}"
    catalog = load_catalog("lake", type="sql", uri=uri, warehouse=store)
    catalog.create_namespace_if_not_exists("lake")
    return catalog.create_table("lake.t", schema=schema, properties=properties)


def test_an_empty_table_of_another_writer_is_filled(world: Any) -> None:
    w = world()
    made_by_another(w, pa.schema([("id", pa.int64()), ("name", pa.string())]))
    assert w.state().version == log.EMPTY
    assert w.at(log.EMPTY) == 0
    w.run(frame((1, "a")))
    assert w.rows() == {(1, "a")}


def test_partitions_that_changed_have_deletes_of_their_own(world: Any) -> None:
    """One file of deletes per partition spec and partition: Spark would read others only there."""
    w = world()
    ice = made_by_another(w, pa.schema([("id", pa.int64()), ("name", pa.string())]))
    ice.append(pa.table({"id": [1, 2], "name": ["a", "b"]}))
    with w.ice.update_spec() as update:
        update.add_identity("name")
    w.ice.append(pa.table({"id": [3, 4, 5], "name": ["a", "b", "b"]}))
    w.run(frame((1, "x"), (3, "x"), (4, "x"), (5, "x")))
    assert w.rows() == {(1, "x"), (2, "b"), (3, "x"), (4, "x"), (5, "x")}
    head = w.ice.metadata.current_snapshot()
    deletes = [
        (e.data_file.spec_id, tuple(e.data_file.partition._data), e.data_file.record_count)
        for m in head.manifests(w.ice.io)
        for e in m.fetch_manifest_entry(w.ice.io)
        if e.data_file.content is DataFileContent.POSITION_DELETES
    ]
    assert sorted(deletes, key=repr) == [(0, (), 1), (1, ("a",), 1), (1, ("b",), 2)]


@pytest.mark.parametrize("transform", [BucketTransform(4), TruncateTransform(5)], ids=str)
def test_a_table_partitioned_by_a_transform(world: Any, transform: Any) -> None:
    w = world()
    made_by_another(w, pa.schema([("id", pa.int64()), ("name", pa.string())]))
    with w.ice.update_spec() as update:
        update.add_field("id", transform, "part")
    w.run(frame(*((i, "a") for i in range(20))))
    w.run(frame(*((i, "b") for i in range(0, 20, 3))))
    assert w.rows() == {(i, "a" if i % 3 else "b") for i in range(20)}


def test_columns_that_were_renamed_or_widened_are_read_by_their_numbers(world: Any) -> None:
    w = world()
    ice = made_by_another(w, pa.schema([("id", pa.int32()), ("old name", pa.string())]))
    ice.append(pa.table({"id": pa.array([1], pa.int32()), "old name": ["a"]}))
    with w.ice.update_schema() as update:
        update.rename_column("old name", "name")
        update.update_column("id", LongType())
    w.run(frame((2, "b")))
    assert w.rows() == {(1, "a"), (2, "b")}
    w.run(frame((1, "aa")))
    assert w.rows() == {(1, "aa"), (2, "b")}


def test_a_dropped_column_that_returns_is_another_one(world: Any) -> None:
    w = world()
    ice = made_by_another(w, pa.schema([("id", pa.int64()), ("name", pa.string())]))
    ice.append(pa.table({"id": [1], "name": ["a"]}))
    with w.ice.update_schema() as update:
        update.delete_column("name")
    with w.ice.update_schema() as update:
        update.add_column("name", StringType())
    w.run(frame((2, "b")))
    assert w.rows() == {(1, None), (2, "b")}


def test_other_format_versions_are_read_and_not_written(world: Any) -> None:
    w = world()
    made_by_another(
        w, pa.schema([("id", pa.int64()), ("name", pa.string())]), **{"format-version": "1"}
    )
    w.ice.append(pa.table({"id": [1], "name": ["a"]}))
    with pytest.raises(TableError, match="format version 1"):
        w.run(frame((1, "b")))
    assert w.rows() == {(1, "a")}


def test_a_commit_of_another_writer_is_seen_in_the_feed(world: Any) -> None:
    """What differs between two snapshots, over rewrites and deletes of any writer."""
    from sqlglot import exp

    from strandline.engine.base import FeedSource

    w = world(row_hash=False)
    w.run(frame((1, "a"), (2, "b"), (3, "c")))
    start = w.state().version
    w.ice.append(pa.table({"id": [4], "name": ["d"]}))
    with w.ice.transaction() as tx:  # PyIceberg writes the file anew without the row
        tx.set_properties({"write.delete.mode": "copy-on-write"})
    w.ice.delete(EqualTo("id", 2))
    w.run(frame((3, "cc")))
    with w.platform.workspace("look") as engine:
        state = w.state()
        source = FeedSource(w.place, start, state.version, state.schema)
        relation = engine.scan(source).relation
        tree = exp.select(*(exp.column(c) for c in ("id", "name", "_change_type"))).from_(
            exp.to_identifier(relation.name)
        )
        told = engine.fetch(tree)
    signs = {"insert": 1, "delete": -1}
    net: dict[tuple[Any, Any], int] = {}
    for id_, name, change in told:
        net[id_, name] = net.get((id_, name), 0) + signs[change]
    assert {k: v for k, v in net.items() if v} == {
        (4, "d"): 1,
        (2, "b"): -1,
        (3, "c"): -1,
        (3, "cc"): 1,
    }


# --- what is refused, and what is kept -------------------------------------------------------------------------


def test_small_whole_numbers_are_kept_as_int(world: Any) -> None:
    w = world()
    batch = Frame([("id", "smallint"), ("n", "tinyint")], [{"id": 1, "n": 2}])
    w.run(batch)
    assert [c.type for c in w.state().schema][:2] == ["int", "int"]
    assert w.again().status == "unchanged"
    w.run(Frame([("id", "smallint"), ("n", "tinyint")], [{"id": 1, "n": 3}]))
    assert [r["n"] for r in read_table(w.folder / "lake" / "t").rows] == [3]


def test_a_partition_may_be_an_empty_batch(world: Any) -> None:
    w = world(mode="overwrite", partition_by=["name"])
    w.run(frame((1, "a"), (2, None), (3, "ä/b c")))
    assert w.rows() == {(1, "a"), (2, None), (3, "ä/b c")}
    w.run(frame())
    assert w.rows() == set()
    w.run(frame((4, "d")))
    assert_same(w.table(), frame((4, "d")))


def test_nested_rows_come_back_as_they_were(world: Any) -> None:
    w = world()
    type_ = "struct<a:int,b:array<string>,m:map<string,decimal(9,2)>>"
    value = {"a": 1, "b": ["x", None], "m": [("k", Decimal("1.50"))]}
    w.run(Frame([("id", "bigint"), ("s", type_)], [{"id": 1, "s": value}, {"id": 2, "s": None}]))
    w.run(Frame([("id", "bigint"), ("s", type_)], [{"id": 2, "s": value}]))
    assert [r["s"] for r in read_table(w.folder / "lake" / "t").rows] == [value, value]


def test_equality_deletes_are_refused_by_name(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyiceberg.table.snapshots import Summary

    from strandline.lake.iceberg import past

    w = world()
    w.run(frame((1, "a")))
    entry = next(past.live_files(w.ice, w.ice.metadata.current_snapshot()))
    entry[0] = DataFileContent.EQUALITY_DELETES
    monkeypatch.setattr(past, "live_files", lambda *_: iter([entry]))
    real = Summary.__getitem__
    monkeypatch.setattr(
        Summary, "__getitem__", lambda s, k: "1" if k == "total-equality-deletes" else real(s, k)
    )
    with pytest.raises(TableError, match="equality deletes"):
        w.run(frame((1, "b")))


# --- the project file ------------------------------------------------------------------------------------------


def load_with(folder: Path, catalog: dict[str, Any], **more: Any) -> Any:
    lake = {"type": "lake", "format": "iceberg", "catalog": catalog, **more}
    return make_project(folder, [], connections={"lake": lake})


@pytest.mark.parametrize(
    ("catalog", "told"),
    [
        ({"type": "hadoop", "warehouse": "w"}, "a hadoop catalog cannot be used"),
        ({"type": "hive"}, "unknown type of catalog `hive`"),
        ({"type": "sql", "warehouse": "w"}, "needs `uri`"),
        ({"type": "sql", "uri": "sqlite:///x.db"}, "needs `warehouse`"),
        ({"type": "sql", "uri": "mysql://h/db", "warehouse": "w"}, "a SQLite file or a PostgreSQL"),
        ({"type": "rest"}, "needs `uri`"),
        ({"type": "rest", "uri": "http://x", "user": "u"}, "has no `user`"),
        (
            {"type": "rest", "uri": "http://x", "properties": {"credential": "a:b"}},
            "a secret is written here in clear",
        ),
        (
            {"type": "sql", "uri": "postgresql://u:pw@h/db", "warehouse": "w"},
            "a secret is written here in clear",
        ),
        ({"type": "glue", "properties": {"glue.region": "${envs:X}"}}, "unknown kind of reference"),
    ],
)
def test_mistakes_of_a_catalog(tmp_path: Path, catalog: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_with(tmp_path, catalog)
    assert told in str(caught.value)
    assert "pw@" not in str(caught.value)


def test_names_default_to_the_connection(tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": "sqlite:///a/ice.db", "warehouse": "w"}
    place = table_of(load_with(tmp_path, catalog).config, "lake", "t")
    assert place.name == ("lake", "t")
    assert place.catalog is not None
    assert place.catalog.name == "lake"
    given = place.catalog.properties()
    assert given["uri"] == f"sqlite:///{tmp_path / 'a' / 'ice.db'}"
    assert given["warehouse"] == f"file://{tmp_path / 'w'}"
    other = load_with(tmp_path, {**catalog, "name": "c"}, schema="sales.eu").config
    place = table_of(other, "lake", "t")
    assert (place.name, place.catalog and place.catalog.name) == (("sales", "eu", "t"), "c")


def test_secrets_of_a_catalog_are_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ICE_PASSWORD", "s3cr/t@x")
    uri = "postgresql://127.0.0.1:1/none"
    catalog = {
        "type": "sql", "uri": uri, "user": "u", "password": "${env:ICE_PASSWORD}", "warehouse": "w",
    }  # fmt: skip
    place = table_of(load_with(tmp_path, catalog).config, "lake", "t")
    assert "s3cr" not in repr(place)
    with pytest.raises(TableError, match="cannot be asked") as caught:
        describe(place)
    text = f"{caught.value} {caught.value.hint} {caught.value.__cause__}"
    assert "s3cr" not in text
    assert "127.0.0.1:1/none" in text


def test_control_tables_lie_beside_the_warehouse(tmp_path: Path, pandas_platform: Any) -> None:
    catalog = {"type": "sql", "uri": "sqlite:///x/ice.db", "warehouse": "x/house"}
    project = load_with(tmp_path, catalog)
    assert project.store.folder == tmp_path / "x" / "_strandline"


def test_a_table_name_that_a_catalog_would_split_is_refused(tmp_path: Path) -> None:
    node = {
        "name": "n",
        "read": {"connection": "files", "path": "a.csv"},
        "write": {"connection": "lake", "table": "a.b", "mode": "append"},
    }
    with pytest.raises(ConfigError, match="catalogs take for something else"):
        make_project(tmp_path, [node])


def test_the_note_of_a_commit_is_readable_by_anyone(world: Any) -> None:
    w = world()
    w.run(frame((1, "a")))
    head = w.ice.metadata.current_snapshot()
    note = json.loads(head.summary.additional_properties["strandline"])["strandline"]
    assert note["app_id"] == "strandline/test/n"
    assert json.loads(w.ice.properties["strandline.txn.strandline/test/n"])["number"] == 1


# --- columns come with the rows --------------------------------------------------------------------------------


def test_new_and_wider_columns_come_in_the_snapshot_of_the_rows(world: Any) -> None:
    w = world()
    narrow = [("id", "int"), ("x", "float"), ("d", "decimal(6,2)")]
    w.run(Frame(narrow, [{"id": 1, "x": 1.5, "d": Decimal("1.25")}]))
    wide = [("id", "bigint"), ("x", "double"), ("d", "decimal(10,2)"), ("more", "string")]
    big = {"id": 2**40, "x": 0.1, "d": Decimal("12345678.50"), "more": "m"}
    w.run(Frame(wide, [big]))
    state = w.state()
    assert {c.name: c.type for c in state.schema if c.name in dict(wide)} == dict(wide)
    assert len(w.ice.metadata.snapshots) == 2
    found = sorted(read_table(w.folder / "lake" / "t").rows, key=lambda r: r["id"])
    assert [(r["id"], r["x"], r["d"], r["more"]) for r in found] == [
        (1, 1.5, Decimal("1.25"), None),
        (2**40, 0.1, Decimal("12345678.50"), "m"),
    ]
    with w.platform.workspace("look"):
        assert w.at(state.version) == 2


def test_columns_are_added_without_rows(world: Any) -> None:
    w = world()
    w.run(frame((1, "a")))
    before = w.state()
    format_of(w.place).add_columns(w.place, [Column("more", "decimal(10,2)")])
    now = w.state()
    assert (now.version, now.schema.get("more")) == (
        before.version,
        Column("more", "decimal(10,2)"),
    )
    assert w.at(now.version) == 1


def test_fields_come_inside_of_structs(world: Any) -> None:
    w = world()
    w.run(Frame([("id", "bigint"), ("s", "struct<a:int>")], [{"id": 1, "s": {"a": 1}}]))
    more = [("id", "bigint"), ("s", "struct<a:bigint,b:string>")]
    w.run(Frame(more, [{"id": 2, "s": {"a": 2**40, "b": "x"}}]))
    w.run(Frame(more, [{"id": 1, "s": {"a": 1, "b": "y"}}]))
    found = sorted(read_table(w.folder / "lake" / "t").rows, key=lambda r: r["id"])
    assert [r["s"] for r in found] == [{"a": 1, "b": "y"}, {"a": 2**40, "b": "x"}]


@pytest.mark.parametrize(
    ("stored", "come", "value"),
    [
        ("decimal(6,2)", "decimal(8,4)", Decimal("1.2345")),
        ("date", "timestamp", datetime(2024, 1, 1, tzinfo=UTC)),
        ("bigint", "decimal(20,2)", Decimal("1.25")),
        ("bigint", "string", "x"),
    ],
)
def test_what_cannot_be_widened_is_refused_by_name(
    world: Any, stored: str, come: str, value: Any
) -> None:
    w = world()
    w.run(Frame([("id", "bigint"), ("v", stored)], [{"id": 1, "v": None}]))
    with pytest.raises(
        TableError, match=f"column `v` is {re.escape(stored)} in the table"
    ) as caught:
        w.run(Frame([("id", "bigint"), ("v", come)], [{"id": 2, "v": value}]))
    assert "Iceberg" in str(caught.value)
    assert [s.schema_id for s in w.ice.metadata.snapshots] == [0]


def test_a_delete_flag_comes_to_a_table_that_was_there(world: Any) -> None:
    w = world()
    ice = made_by_another(w, pa.schema([("id", pa.int64()), ("name", pa.string())]))
    ice.append(pa.table({"id": [1, 2], "name": ["a", "b"]}))
    w = World(
        w.folder, w.platform, {"mode": "upsert", "keys": ["id"], "delete_when": "name = 'gone'"}
    )
    w.run(frame((2, "gone")))
    flags = {r["id"]: r["_is_deleted"] for r in read_table(w.folder / "lake" / "t").rows}
    assert flags == {1: False, 2: True}


def test_a_catalog_in_postgresql(
    tmp_path: Path, postgres_url: str, pandas_platform: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password is a reference; the table is there under the same name for everybody who asks the catalog."""
    url = sqlalchemy.make_url(postgres_url)
    monkeypatch.setenv("ICE_PASSWORD", str(url.password))
    catalog = {
        "type": "sql",
        "uri": f"postgresql://{url.host}:{url.port}/{url.database}",
        "user": url.username,
        "password": "${env:ICE_PASSWORD}",
        "warehouse": "house",
    }
    lake = {
        "type": "lake",
        "format": "iceberg",
        "catalog": catalog,
        "schema": tmp_path.name.replace("-", "_"),
    }
    node = {
        "name": "n",
        "read": {"connection": "files", "path": "a.csv", "schema": {"id": "bigint"}},
        "write": {"connection": "lake", "table": "t", "mode": "upsert", "keys": ["id"]},
    }
    project = make_project(tmp_path, [node], connections={"lake": lake})
    for text in ("id,name\n1,a\n2,b\n", "id,name\n1,a\n2,bb\n"):
        (tmp_path / "landing" / "a.csv").write_text(text)
        assert project.run(platform=pandas_platform).exit_code == 0
    place = table_of(project.config, "lake", "t")
    assert len(commits(place)) == 2
    state = describe(place)
    assert state is not None
    assert [r["name"] for r in format_of(place).rows_at(place, state.version, {"id": 2}) or ()] == [
        "bb"
    ]
