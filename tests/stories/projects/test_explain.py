"""The story of a row is true: also after an undo, and however its key is spelled."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import pytest
from tests.shop import Shop

from strandline.cli.main import main
from strandline.errors import ReadError, UsageError

NUMBERS = [("id", "bigint"), ("v", "string")]


class Told(Shop):
    """A file of rows, and a table whose deletes are found by comparing snapshots."""

    def __init__(self, folder, platform, columns=NUMBERS, mode="upsert", **limits):
        super().__init__(folder, platform)
        self.columns = columns
        step = {
            "operation": "detect_deletes",
            "params": {"mode": "snapshot_diff", "keys": ["id"], **limits},
        }
        self.declare(
            {
                "name": "n",
                "read": {"connection": "files", "path": "x.parquet"},
                "transform": {"steps": [step]},
                "write": {"connection": "lake", "table": "t", "mode": mode, "keys": ["id"]},
            }
        )

    def run(self, *rows):
        self.put("x", self.columns, *rows)
        return super().run().run_id

    def undo(self, run_id):
        return super().undo(run_id).run_id

    def tell(self, key):
        return self.project.explain("n", {"id": key}).events


@pytest.mark.lakes
@pytest.mark.parametrize("mode", ["upsert", "scd2"])
def test_an_undo_counts_a_row_that_is_changed_back_once(tmp_path, pandas_platform, mode, capsys):
    shop = Told(tmp_path, pandas_platform, mode=mode)
    shop.run((1, "a"), (2, "b"), (3, "c"))
    gone = shop.run((2, "b"), (3, "C"), (4, "d"))  # flagged, unchanged, updated, inserted
    with pytest.raises(SystemExit):
        main(["undo", gone, "--dry-run", "--project-dir", str(tmp_path)])
    extra = (
        "1 row gone" if mode == "upsert" else "2 rows gone"
    )  # a history has one more version of what was updated
    assert f"  2 rows changed back, {extra}\n" in capsys.readouterr().out
    node = shop.project.undo(gone, platform=pandas_platform).nodes[0]
    assert (node.inserted, node.updated, node.deleted) == (0, 2, int(extra[0]))
    assert shop.project.store.runs()[0].updated == 2


HOLD = {"max_delete_count": 0, "on_threshold_breach": "hold"}


@pytest.mark.parametrize("mode", ["upsert", "scd2"])
def test_an_undone_delete_is_told_with_its_reason_and_the_undo_as_one(
    tmp_path, pandas_platform, mode, capsys
):
    shop = Told(tmp_path, pandas_platform, mode=mode)
    shop.run((1, "a"), (2, "b"), (3, "c"))
    gone = shop.run((2, "B"), (3, "c"))
    back = shop.undo(gone)
    inserted, deleted, undone = shop.tell("1")
    assert (inserted.event, inserted.undone_by) == ("inserted", None)
    assert (deleted.event, deleted.reason, deleted.mode, deleted.undone_by) == (
        "deleted",
        "absent from the newest snapshot",
        "snapshot_diff",
        back,
    )
    assert (undone.event, undone.reason, undone.run_id, undone.mode) == (
        "undone",
        f"run {gone} was undone",
        back,
        None,
    )
    assert [(e.event, e.undone_by) for e in shop.tell("2")] == [
        ("inserted", None),
        ("changed", back),
        ("undone", None),
    ]
    assert [e.event for e in shop.tell("3")] == ["inserted"]
    again = shop.run((2, "b"), (3, "c"))
    assert [(e.event, e.run_id, e.undone_by) for e in shop.tell("1")][-1] == (
        "deleted",
        again,
        None,
    )
    with pytest.raises(SystemExit):
        main(["explain", "n", "--key", "id=1", "--project-dir", str(tmp_path)])
    told = " ".join(capsys.readouterr().out.split())
    assert (
        f"deleted: absent from the newest snapshot (snapshot_diff), run {gone}, undone by run {back}"
        in told
    )


def test_an_undone_first_run_and_an_undone_hold(tmp_path, pandas_platform):
    shop = Told(tmp_path, pandas_platform, **HOLD)
    first = shop.run((1, "a"), (2, "b"))
    held = shop.run((2, "b"))
    back = shop.undo(held)
    assert [(e.event, e.undone_by) for e in shop.tell("1")] == [("inserted", None), ("held", back)]
    back = shop.undo(first)
    assert [(e.event, e.run_id) for e in shop.tell("2")] == [("inserted", first), ("undone", back)]


def at(text):
    return datetime.fromisoformat(text)


SPELLED = {
    "bigint": (2, 3, ["2", "+2", "002"], ["2.0", "x", "9999999999999999999"]),
    "decimal(10,2)": (
        Decimal("2.50"),
        Decimal(3),
        ["2.5", "2.50", "02.500"],
        ["2.505", "x", "1e1"],
    ),
    "decimal(38,18)": (Decimal("2.500000000000000001"), Decimal(3), ["2.500000000000000001"], []),
    "boolean": (True, False, ["true", "TRUE", "1", "yes"], ["2"]),
    "date": (date(2024, 1, 1), date(2024, 1, 2), ["2024-01-01"], ["2024-02-30"]),
    "timestamp": (
        at("2024-01-01T00:00:00.5+00:00"),
        at("2024-01-02T00:00:00+00:00"),
        ["2024-01-01 00:00:00.5", "2024-01-01T00:00:00.500Z", "2024-01-01 02:00:00.5+02:00"],
        ["noon"],
    ),
    "timestamp_ntz": (
        at("1500-01-01T00:00:00"),
        at("2024-01-02T00:00:00"),
        ["1500-01-01", "1500-01-01T00:00"],
        [],
    ),
    "string": ("2.50", "3", ["2.50"], []),
    "binary": (b"\xff\x00", b"b", ["0xff00", "0xFF00"], ["0xff0"]),
}


def test_bytes_that_are_text_may_be_given_as_text(tmp_path, pandas_platform):
    shop = Told(tmp_path, pandas_platform, [("id", "binary"), ("v", "string")], **HOLD)
    shop.run((b"a\xc3\xbc", "a"), (b"b", "b"))
    shop.run((b"b", "b"))
    for text in ("aü", "0x61c3bc"):
        assert [e.event for e in shop.tell(text)] == ["inserted", "held"]


@pytest.mark.parametrize("type_", SPELLED)
def test_a_key_is_a_value_however_it_is_spelled(tmp_path, pandas_platform, type_):
    one, other, same, wrong = SPELLED[type_]
    shop = Told(tmp_path, pandas_platform, [("id", type_), ("v", "string")], **HOLD)
    shop.run((one, "a"), (other, "b"))
    shop.run((other, "b"))
    for key in (one, *same):  # from Python, a value of Python
        assert [e.event for e in shop.tell(key)] == ["inserted", "held"], key
    for text in wrong:
        with pytest.raises(UsageError, match=r"the key id=.* is not a"):
            shop.tell(text)


def test_a_row_whose_files_are_gone_is_not_said_to_have_never_been_there(
    tmp_path, pandas_platform, capsys
):
    shop = Told(tmp_path, pandas_platform)
    shop.run((1, "a"), (2, "b"))
    table = tmp_path / "lake" / "t"
    first = set(table.glob("*.parquet"))
    shop.run((1, "A"), (2, "b"))
    for file in first:
        file.unlink()
    assert [e.event for e in shop.tell("1")] == ["unknown"]  # an older version
    for file in table.glob("*.parquet"):
        file.unlink()
    with pytest.raises(
        ReadError, match=r"1 of the 1 files of version 1 are gone.* and it is the newest"
    ):
        shop.tell("1")
    with pytest.raises(SystemExit) as ended:
        main(["explain", "n", "--key", "id=1", "--project-dir", str(tmp_path)])
    assert ended.value.code == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "cannot be told" in told.err
