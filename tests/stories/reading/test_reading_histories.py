"""Gold over `scd2`: a history is read as its living rows, as if it were an `upsert`, unless more is asked for."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.shop import Shop

from strandline.errors import ConfigError, ReadError, TableError, UnknownColumn


def silver(mode, name=None):
    step = {"mode": "snapshot_diff", "keys": ["id"], "max_delete_percent": None}
    return {
        "name": name or mode,
        "read": {"connection": "erp", "table": "c"},
        "transform": {"steps": [{"operation": "detect_deletes", "params": step}]},
        "write": {"connection": "lake", "table": name or mode, "mode": mode, "keys": ["id"]},
    }


def gold(name, sql, table="scd2", keys=(), *, cdf=False, **read):
    source = {
        "connection": "lake",
        "table": table,
        "alias": "s",
        **({"cdc_strategy": "cdf"} if cdf else {}),
        **read,
    }
    write = {"connection": "lake", "table": name, "mode": "upsert" if keys else "overwrite"}
    node = {
        "name": name,
        "sources": [source],
        "write": write | ({"keys": list(keys)} if keys else {}),
    }
    return node | ({"transformation_sql": sql} if sql else {})


class Customers(Shop):
    """Customers that come, change and go; tables made of them."""

    run = Shop.foreseen

    def __init__(self, folder, platform):
        super().__init__(folder, platform)
        self.sql(
            "CREATE TABLE c (id INTEGER, town TEXT)",
            "INSERT INTO c VALUES " + ", ".join(f"({i}, 'a')" for i in range(1, 8)),
        )

    def rows(self, name, *columns):
        """The living rows of a table."""
        found = [r for r in self.stored(name) if not (r.get("_is_deleted") and "_last_seen" in r)]
        hidden = ("_is_deleted", "_last_seen", "_row_hash")
        names = columns or [n for n in self.table(name).names if n not in hidden]
        return sorted((tuple(r[n] for n in names) for r in found), key=repr)


@pytest.fixture
def shop(tmp_path, platform):
    return Customers(tmp_path, platform)


@pytest.fixture
def quick(tmp_path, pandas_platform):
    return Customers(tmp_path, pandas_platform)


COUNT = "SELECT 1 AS k, count(*) AS n FROM s"
TOTALS = "SELECT town, count(*) AS n, sum(id) AS ids FROM s GROUP BY town"
TOTALS_OF_ALL = (
    "SELECT town, count(*) AS n, sum(id) AS ids, max(_is_deleted) AS gone FROM s GROUP BY town"
)
SINCE = "SELECT id, town, _valid_from AS since, _valid_to AS until, _is_deleted AS gone FROM s"


@pytest.mark.lakes
@pytest.mark.long_on_spark
def test_gold_says_what_it_says_over_an_upsert(shop):
    """The README's case: most customers are deleted, then they return. In full, by the feed, and the whole history."""
    every = {"cdf": True, "versions": "all", "primary_keys": ["id", "_valid_from"]}
    shop.declare(
        silver("scd2"),
        gold("n", COUNT),
        gold("copy", None, keys=["id"], cdf=True, primary_keys=["id"]),
        gold(
            "last",
            "SELECT id, _is_deleted AS gone FROM s",
            keys=["id"],
            cdf=True,
            include_deleted=True,
        ),
        gold("history", SINCE, keys=["id", "since"], **every),
    )
    shop.run()
    assert (shop.rows("n"), shop.rows("copy")) == ([(1, 7)], [(i, "a") for i in range(1, 8)])
    shop.sql("DELETE FROM c WHERE id > 2", "UPDATE c SET town = 'b' WHERE id = 2")
    assert shop.run()["copy"].deleted == 5
    assert (shop.rows("n"), shop.rows("copy")) == ([(1, 2)], [(1, "a"), (2, "b")])
    assert shop.rows("last") == [(i, i > 2) for i in range(1, 8)]
    shop.sql(*(f"INSERT INTO c VALUES ({i}, 'a')" for i in range(3, 8)))
    shop.run()
    assert (shop.rows("n"), shop.rows("copy")) == (
        [(1, 7)],
        [(i, "b" if i == 2 else "a") for i in range(1, 8)],
    )
    assert shop.rows("last") == [(i, False) for i in range(1, 8)]
    kept = ("id", "town", "_valid_from", "_valid_to", "_is_deleted")
    stored = sorted((tuple(r[n] for n in kept) for r in shop.table("scd2").rows), key=repr)
    assert shop.rows("history") == stored
    assert len(stored) == 13


def test_any_past_of_a_history_reads_as_that_of_an_upsert(quick):
    """Generated changes; after each of them every way to read the one equals the same way to read the other."""
    ways = {
        "all": (TOTALS_OF_ALL, {"include_deleted": True}),
        "fed": (TOTALS, {"cdf": True}),
        "fed_all": (TOTALS_OF_ALL, {"cdf": True, "include_deleted": True}),
    }
    golds = [
        gold(f"{mode}_{way}", sql, mode, ["town"], **how)
        for mode in ("scd2", "upsert")
        for way, (sql, how) in ways.items()
    ]
    quick.declare(silver("scd2"), silver("upsert"), *golds)
    dice = random.Random(7)
    for _ in range(3):
        quick.run()
        for way in ways:
            assert quick.rows(f"scd2_{way}") == quick.rows(f"upsert_{way}"), way
        for i in dice.sample(range(1, 8), 4):
            quick.sql(f"DELETE FROM c WHERE id = {i}")
            if dice.random() < 0.5:
                quick.sql(f"INSERT INTO c VALUES ({i}, '{dice.choice('abc')}')")


def test_another_choice_of_versions_computes_everything_again(quick):
    node = gold(
        "t",
        "SELECT id, count(*) AS n FROM s GROUP BY id",
        keys=["id"],
        cdf=True,
        primary_keys=["id", "_valid_from"],
    )

    def choose(**read):
        quick.declare(silver("scd2"), {**node, "sources": [{**node["sources"][0], **read}]})
        return quick.run()["t"]

    choose(versions="current")
    quick.sql("DELETE FROM c WHERE id > 2", "UPDATE c SET town = 'b' WHERE id = 2")
    choose(versions="current")
    assert quick.rows("t") == [(1, 1), (2, 1)]
    again = "everything is computed again: the node's sources, steps, SQL, keys or rules of writing are other ones"
    assert choose(versions="all").warnings[0].startswith(again)
    assert quick.rows("t") == [(1, 1), (2, 2), *((i, 1) for i in range(3, 8))]
    assert choose(versions="current").deleted == 5
    assert choose(versions="current").status == "unchanged"


def test_a_column_of_ours_is_an_ordinary_one_where_it_is_named(quick):
    """By SQL, by a step, by the keys; and by one alias of several."""
    step = {
        "operation": "filter",
        "params": {"condition": "_valid_from IS NOT NULL AND NOT _is_current"},
    }
    read = {"connection": "lake", "table": "scd2", "versions": "all"}
    closed = {"name": "closed", "read": read, "transform": {"steps": [step]}}
    keyed = {
        "name": "keyed",
        "read": read,
        "transform": {"steps": [{"operation": "drop", "params": {"columns": ["_is_deleted"]}}]},
    }
    two = gold(
        "two",
        "SELECT a.id, a._valid_from AS since FROM s AS a JOIN u ON a.id = u.id",
        versions="all",
    )
    two["sources"].append({"connection": "lake", "table": "scd2", "alias": "u"})
    quick.declare(
        silver("scd2"),
        two,
        {**closed, "write": {"connection": "lake", "table": "closed", "mode": "overwrite"}},
        {
            **keyed,
            "write": {
                "connection": "lake",
                "table": "keyed",
                "mode": "upsert",
                "keys": ["id", "_valid_from"],
            },
        },
    )
    quick.run()
    quick.sql("UPDATE c SET town = 'b' WHERE id = 2", "DELETE FROM c WHERE id = 1")
    quick.run()
    assert quick.table("closed").names == [
        "id",
        "town",
        "_valid_from",
        "_is_current",
        "_is_deleted",
    ]
    assert quick.rows("closed", "id", "_is_deleted") == [(1, True), (2, False)]
    assert len(quick.rows("keyed")) == 8
    assert (
        len(quick.rows("two")) == 7
    )  # two versions of 2, none of 1, which the other source does not have


UNSAID = (
    "`_valid_from` tells when a version is valid, and the read of `scd2` does not say which versions it wants: "
    "node `scd2` writes it with mode: scd2"
)


@pytest.mark.parametrize(
    ("node", "where", "message"),
    [
        (gold("t", SINCE), "nodes[t].transformation_sql", UNSAID),
        (gold("t", "SELECT id FROM s WHERE _is_current"), "nodes[t].transformation_sql", "`_is_current` tells when"),
        ({**gold("t", None), "transform": {"steps": [{"operation": "drop", "params": {"columns": ["_VALID_TO"]}}]}},
         "nodes[t].transform.steps[0].params", "`_valid_to` tells when"),
        (gold("t", None, keys=["id", "_valid_from"]), "nodes[t].write.keys", "`_valid_from` tells when"),
        (gold("t", COUNT, keys=["k"], cdf=True, versions="all", primary_keys=["id"]),
         "nodes[t].sources[0].primary_keys",
         "with `versions: all` a key has several rows: primary_keys must include the valid-from column `_valid_from`"),
        ({**gold("t", COUNT), "sources": [{"connection": "erp", "table": "c", "alias": "s", "versions": "all"}]},
         "nodes[t].sources[0].versions", "`versions` does nothing here: `erp` is a database"),
    ],
)  # fmt: skip
def test_what_does_not_say_which_versions_it_wants_is_refused(quick, node, where, message):
    with pytest.raises(ConfigError) as refused:
        quick.declare(silver("scd2"), node)
    told = str(refused.value)
    assert where in told
    assert message in told
    assert "versions: all" in told or "primary_keys" in told or "remove it" in told


def test_tables_that_no_node_writes_are_known_by_their_own_roles(quick):
    quick.declare(silver("scd2")).run()
    quick.declare(gold("n", COUNT), gold("t", SINCE))
    quick.run("n")
    with pytest.raises(
        ReadError, match=r"`_valid_from` tells when a version of lake\.scd2 is valid"
    ) as refused:
        quick.run("t")
    assert "versions: all" in str(refused.value.hint)
    quick.declare(gold("t", COUNT, keys=["k"], cdf=True, versions="all", primary_keys=["id"]))
    with pytest.raises(
        ReadError, match="primary_keys must include the valid-from column `_valid_from`"
    ):
        quick.run()
    quick.declare(gold("t", COUNT, include_deleted=True)).run()  # its keys are in the records
    assert quick.rows("t") == quick.rows("n") == [(1, 7)]


def test_deleted_rows_carry_their_flag_and_a_table_has_one_of_that_name(quick):
    quick.declare(
        silver("upsert"), gold("t", None, "upsert", ["id"], cdf=True, include_deleted=True)
    )
    with pytest.raises(
        TableError, match="the rows bring a column `_is_deleted`, which strandline keeps for itself"
    ):
        quick.run()


T1, T2 = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 2, 1, tzinfo=UTC)
STORES = {
    "id": [1, 1, 2, 3], "town": ["a", "b", "c", "d"], "active": [False, True, False, True],
    "gone": [False, False, True, False], "since": [T1, T2, T1, T1],
}  # fmt: skip
NAMES = {"is_current": "active", "deleted": "gone", "valid_from": "since"}


def test_a_table_of_others_is_read_whole_unless_the_read_names_its_columns(quick):
    write_deltalake(str(quick.folder / "lake" / "stores"), pa.table(STORES))

    def read(name="t", **how):
        quick.declare(gold(name, None, "stores", **how)).run()
        return quick.rows(name)

    assert len(read("whole")) == 4
    assert read(system_columns=NAMES) == [(1, "b"), (3, "d")]
    assert [r[0] for r in read("every", system_columns=NAMES, versions="all")] == [1, 1, 2, 3]
    assert quick.table("every").names == ["id", "town", "gone"]
    with pytest.raises(UnknownColumn, match=r"lake\.stores: system_columns, valid_to"):
        read(system_columns={**NAMES, "valid_to": "until"})
    with pytest.raises(ReadError, match="there is neither `_is_deleted` nor `_is_current`"):
        read(system_columns={"valid_from": "since"})
    with pytest.raises(ReadError, match="`town` has type string, and a flag is a boolean"):
        read(system_columns={"is_current": "town"})
    with pytest.raises(ReadError, match=r"it is not known of lake\.stores what its keys are"):
        read(system_columns=NAMES, include_deleted=True)


def test_the_feed_of_a_table_of_others_follows_the_same_rows(quick):
    place = str(quick.folder / "lake" / "stores")
    write_deltalake(place, pa.table(STORES), configuration={"delta.enableChangeDataFeed": "true"})
    feed = {"cdf": True, "primary_keys": ["id"], "system_columns": NAMES}
    quick.declare(
        gold("t", "SELECT id, town FROM s", "stores", ["id"], **feed),
        gold(
            "u",
            "SELECT id, town, gone AS away FROM s",
            "stores",
            ["id"],
            **feed,
            include_deleted=True,
        ),
    )
    quick.run()
    assert quick.rows("u", "id", "away") == [(1, False), (2, True), (3, False)]
    DeltaTable(place).update(updates={"active": "false", "gone": "true"}, predicate="id = 3")
    new = {"id": [2], "town": ["C"], "active": [True], "gone": [False], "since": [T2]}
    write_deltalake(place, pa.table(new), mode="append")
    quick.run()
    assert quick.rows("t") == [(1, "b"), (2, "C")]
    assert quick.rows("u", "id", "town", "away") == [
        (1, "b", False),
        (2, "C", False),
        (3, "d", True),
    ]


def test_a_table_that_says_itself_what_its_columns_are_is_not_told_otherwise(quick):
    quick.declare(silver("scd2"), gold("t", COUNT, system_columns={"preset": "dlf"}))
    with pytest.raises(
        ReadError, match="the table itself says that `_row_hash` is its column for `row_hash`"
    ):
        quick.run()
