"""Metadata columns are known by their role: they travel with it, and a column that only has the name is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.shop import Shop

from strandline.errors import StrandlineError
from strandline.lake.delta.log import describe
from strandline.testing.projects import make_project
from strandline.types import Clock, Table

NEWEST = {"operation": "deduplicate", "params": {"keys": ["id"], "order_by": "_extracted_at DESC"}}
NO_ORDER = {"operation": "deduplicate", "params": {"keys": ["id"]}}
TWO = ["bronze", "silver"]
ALL = {"_extracted_at", "_source_connection", "_source_table"}


class Layers(Shop):
    """A database, a Bronze that appends what it reads, a Silver over it and a Gold over that."""

    def __init__(self, folder, platform):
        super().__init__(folder, platform)
        self.now = datetime(2024, 3, 31, tzinfo=UTC)

    def written(self, *, add_metadata=True, steps=(NEWEST,)):
        def node(name, read, mode, **more):
            write = {"connection": "lake", "table": name, "mode": mode, **more.pop("write", {})}
            return {"name": name, "read": read, "write": write, **more}

        keyed = {"keys": ["id"], "row_hash": False}
        nodes = [
            node(
                "bronze",
                {"connection": "erp", "table": "t"},
                "append",
                write={"add_metadata": add_metadata},
            ),
            node("silver", {"connection": "lake", "table": "bronze"}, "upsert", write=keyed),
            node("gold", {"connection": "lake", "table": "silver"}, "upsert", write=keyed),
        ]
        nodes[1]["transform"] = {"steps": list(steps)}
        return self.declare(*nodes).project

    def run(self, *, select=None, **how):
        self.now += timedelta(days=1)
        found = self.written(**how).run(
            select, platform=self.platform, clock=Clock(self.now), check=True
        )
        return {n.name: (n.inserted, n.updated) for n in found.nodes}

    def table(self, name):
        return {row["id"]: row for row in self.stored(name)}

    def state(self, name):
        return describe(Table(name, self.place(name)))

    def filled(self):
        self.sql("CREATE TABLE t (id INTEGER, v TEXT)", "INSERT INTO t VALUES (1, 'a'), (2, 'a')")
        return self


@pytest.fixture
def shop(tmp_path, platform):
    return Layers(tmp_path, platform).filled()


@pytest.fixture
def local(tmp_path, pandas_platform):
    return Layers(tmp_path, pandas_platform).filled()


def test_metadata_is_known_by_its_role_and_is_no_change(shop):
    """Added to tables that are there, it is marked; what comes again with other metadata is the same row."""
    shop.run(select=TWO, add_metadata=False, steps=[NO_ORDER])
    shop.sql("UPDATE t SET v = 'b' WHERE id = 2")
    assert shop.run(select=TWO) == {"bronze": (2, 0), "silver": (0, 1)}
    assert [shop.state(t).metadata for t in TWO] == [ALL, ALL]
    rows = shop.table("silver")
    assert (rows[1]["_extracted_at"], rows[1]["_source_table"]) == (
        None,
        None,
    )  # as it was when it last changed
    assert (rows[2]["_extracted_at"], rows[2]["_source_table"]) == (shop.now, "t")


def test_metadata_travels_on(local):
    planned = local.written().plan(platform=local.platform)
    assert [n.status for n in planned.nodes] == ["success"] * 3
    local.run()
    first = local.now
    assert local.run() == {"bronze": (2, 0), "silver": (0, 0), "gold": (0, 0)}
    assert [local.state(t).metadata for t in ("bronze", "silver", "gold")] == [ALL] * 3
    assert {row["_extracted_at"] for row in local.table("gold").values()} == {first}


@pytest.mark.parametrize("add_metadata", [True, False])
@pytest.mark.parametrize("name", ["_extracted_at", "_BATCH_ID", "_source_file", "_source_table"])
def test_a_column_of_that_name_is_refused(tmp_path, pandas_platform, name, add_metadata):
    shop = Layers(tmp_path, pandas_platform)
    shop.sql(f"CREATE TABLE t (id INTEGER, {name} TEXT)", "INSERT INTO t VALUES (1, 'mine')")
    with pytest.raises(StrandlineError) as refused:
        shop.run(add_metadata=add_metadata)
    assert (
        f"bronze: the rows bring a column `{name}` of their own (from erp.t)"
        in refused.value.message
    )
    assert f"`{name[1:].lower()}`" in refused.value.hint
    assert not (tmp_path / "lake" / "bronze").exists()


def test_under_another_name_it_is_a_column_like_any_other(local):
    local.sql("ALTER TABLE t ADD COLUMN _extracted_at TEXT", "UPDATE t SET _extracted_at = 'early'")
    node = {
        "name": "n",
        "read": {"connection": "erp", "table": "t"},
        "transform": {
            "steps": [
                {"operation": "rename", "params": {"columns": {"_extracted_at": "extracted_at"}}}
            ]
        },
        "write": {
            "connection": "lake",
            "table": "n",
            "mode": "upsert",
            "keys": ["id"],
            "add_metadata": True,
        },
    }
    erp = {"erp": {"type": "sql", "url": "sqlite:///erp.db"}}
    project = make_project(local.folder, [node], connections=erp)
    project.run(platform=local.platform, check=True)
    local.sql("UPDATE t SET _extracted_at = 'late' WHERE id = 1")
    assert project.run(platform=local.platform, check=True).nodes[0].updated == 1
    row = local.table("n")[1]
    assert (row["extracted_at"], isinstance(row["_extracted_at"], datetime)) == ("late", True)


@pytest.mark.parametrize(
    ("name", "text"),
    [("t.csv", "id,_source_file\n1,mine\n"), ("t.json", '{"id": 1, "_source_file": "mine"}\n')],
)
@pytest.mark.long_on_spark
def test_files_with_a_column_of_that_name_are_refused(tmp_path, platform, name, text):
    node = {
        "name": "n",
        "read": {"connection": "files", "path": name},
        "write": {"connection": "lake", "table": "n", "mode": "append", "add_metadata": True},
    }
    project = make_project(tmp_path, [node])
    (tmp_path / "landing" / name).write_text(text)
    with pytest.raises(
        StrandlineError, match="the files have a column `_source_file` of their own"
    ):
        project.run(platform=platform, check=True)


def test_a_table_of_somebody_else_keeps_its_own_column(tmp_path, pandas_platform):
    shop = Layers(tmp_path, pandas_platform)
    shop.sql("CREATE TABLE t (id INTEGER, v TEXT)")
    theirs = pa.table(
        {
            "id": pa.array([1], pa.int64()),
            "_extracted_at": pa.array([1], pa.timestamp("us", tz="UTC")),
        }
    )
    write_deltalake(tmp_path / "lake" / "bronze", theirs)
    with pytest.raises(
        StrandlineError, match=r"lake\.bronze has a column `_extracted_at` of its own"
    ):
        shop.run()
    with pytest.raises(
        StrandlineError, match=r"column `_extracted_at` of their own \(from lake\.bronze\)"
    ):
        shop.run(select="silver")
    assert DeltaTable(tmp_path / "lake" / "bronze").version() == 0
