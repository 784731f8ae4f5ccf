"""A table keeps its keys: what was one row of each key would be several of another."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.shop import Shop

from strandline.errors import TableError

COLUMNS = [("id", "bigint"), ("region", "string"), ("v", "string"), ("at", "timestamp")]
MODES = {
    "upsert": {"mode": "upsert"},
    "scd2": {"mode": "scd2"},
    "events": {"mode": "scd2", "effective_at": "at"},
}


class Keyed(Shop):
    """One file of rows, and a table of them."""

    day = 0

    def run(self, write, keys, *rows, table="t"):
        self.day += 1
        at = datetime(2024, 6, self.day, tzinfo=UTC)
        self.put("x", COLUMNS, *((*row, at) for row in rows))
        node = {
            "name": "n",
            "read": {"connection": "files", "path": "x.parquet"},
            "write": {"connection": "lake", "table": table, "keys": keys, **write},
        }
        return self.declare(node).only()

    def rows(self, table="t"):
        return sorted((r["id"], r["region"], r["v"]) for r in self.stored(table))


@pytest.fixture
def shop(tmp_path, pandas_platform):
    return Keyed(tmp_path, pandas_platform)


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
