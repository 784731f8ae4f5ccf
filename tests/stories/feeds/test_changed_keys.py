"""A table keeps its keys: what was one row of each key would be several of another."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from strandline.errors import TableError
from strandline.testing.frames import read_table, write_parquet
from strandline.testing.oracle import Frame
from strandline.testing.projects import make_project

COLUMNS = [("id", "bigint"), ("region", "string"), ("v", "string"), ("at", "timestamp")]
MODES = {
    "upsert": {"mode": "upsert"},
    "scd2": {"mode": "scd2"},
    "events": {"mode": "scd2", "effective_at": "at"},
}


class Shop:
    """One file of rows, and a table of them."""

    def __init__(self, folder, platform):
        self.folder, self.platform, self.day = folder, platform, 0

    def run(self, write, keys, *rows, table="t"):
        self.day += 1
        at = datetime(2024, 6, self.day, tzinfo=UTC)
        names = [n for n, _ in COLUMNS]
        frame = Frame(COLUMNS, [dict(zip(names, (*row, at), strict=True)) for row in rows])
        write_parquet(self.folder / "landing" / "x.parquet", frame)
        node = {
            "name": "n",
            "read": {"connection": "files", "path": "x.parquet"},
            "write": {"connection": "lake", "table": table, "keys": keys, **write},
        }
        self.project = make_project(self.folder, [node])
        return self.project.run(platform=self.platform, check=True).nodes[0]

    def rows(self, table="t"):
        return sorted(
            (r["id"], r["region"], r["v"]) for r in read_table(self.folder / "lake" / table).rows
        )


@pytest.fixture
def shop(tmp_path, pandas_platform):
    return Shop(tmp_path, pandas_platform)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("keys", [["id"], ["region", "v"]])
def test_other_keys_are_refused_before_anything_is_written(shop, mode, keys):
    write = MODES[mode]
    shop.run(write, ["id", "region"], (1, "e", "a"), (1, "w", "b"))
    for _ in range(2):  # a failed batch forgets nothing
        with pytest.raises(TableError) as refused:
            shop.run(write, keys, (1, "w", "c"))
        assert "was written with keys (id, region)" in refused.value.message
        assert f"write.keys is ({', '.join(keys)}) now" in refused.value.message
        assert "set write.keys back" in refused.value.hint
    assert shop.rows() == [(1, "e", "a"), (1, "w", "b")]
    assert shop.run(write, ["id", "region"], (1, "w", "c")).updated == 1


@pytest.mark.parametrize("mode", MODES)
def test_keys_in_another_order_or_case_are_the_same(shop, mode):
    shop.run(MODES[mode], ["id", "region"], (1, "e", "a"))
    assert shop.run(MODES[mode], ["Region", "ID"], (1, "e", "b")).updated == 1


@pytest.mark.parametrize("mode", MODES)
def test_another_table_may_have_other_keys(shop, mode):
    shop.run(MODES[mode], ["id", "region"], (1, "e", "a"))
    shop.run(MODES[mode], ["id"], (1, "w", "c"), table="other")
    assert shop.rows("other") == [(1, "w", "c")]
