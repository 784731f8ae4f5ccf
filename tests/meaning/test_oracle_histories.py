"""The oracle of histories against cases computed by hand: the seeds' examples and the traps in them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from strandline.testing.histories import (
    Counts,
    Ran,
    Refused,
    Rules,
    State,
    append_new,
    by_arrival,
    by_snapshot,
    by_source,
    by_window,
    lower_bound,
    next_mark,
    read_since,
    reject,
    step,
)
from strandline.testing.oracle import Frame

COLUMNS = [("id", "bigint"), ("v", "string")]
T1, T2, T3, T4, T5 = (datetime(2024, 6, day, tzinfo=UTC) for day in range(1, 6))
TIMES = [T1, T2, T3, T4, T5]


def frame(*rows, columns=COLUMNS):
    return Frame(columns, [dict(zip([n for n, _ in columns], row, strict=True)) for row in rows])


def ran(result):
    assert isinstance(result, Ran), result
    return result


def snapshots(rules, *sources, start=State()):  # noqa: B008
    """One run per full snapshot."""
    results, state = [], start
    for number, source in enumerate(sources, start=1):
        result = step(
            state,
            source,
            by_snapshot(source, rules.keys, number, state.snapshot),
            rules,
            TIMES[number - 1],
        )
        results.append(result)
        if isinstance(result, Ran):
            state = State(**{**vars(result.state), "snapshot": number})
    return results


def flags(result):
    """Per key: deleted, and when last written."""
    return {row["id"]: (row["_is_deleted"], row["_last_seen"]) for row in ran(result).table.rows}


def ids(result):
    return sorted(row["id"] for row in ran(result).table.rows)


ID = Rules(["id"])
ANY = Rules(["id"], max_delete_percent=None)
HARD = Rules(["id"], deletes="hard", max_delete_percent=None)
SCD2 = Rules(["id"], mode="scd2", max_delete_percent=None)


# --- seed 001: a window ------------------------------------------------------------------------------------

ORDERS = [("id", "bigint"), ("modified", "date")]


def day(n):
    return date(2024, 6, n)


def orders(fourth, rules=ANY):
    """The seed's three runs: the first reads 1, 2, 3; the second 2, 3, 4; the third 2, 3."""
    slices = [
        frame((1, day(1)), (2, day(1)), (3, day(1)), columns=ORDERS),
        frame((2, day(15)), (3, day(15)), (4, fourth), columns=ORDERS),
        frame((2, day(20)), (3, day(20)), columns=ORDERS),
    ]
    state, results = State(), []
    for slice_, now in zip(slices, TIMES, strict=False):
        evidence = by_window(slice_, ["id"], "modified", lower_bound(state.mark))
        result = ran(step(state, slice_, evidence, rules, now))
        state = State(**{**vars(result.state), "mark": next_mark(state.mark, slice_, "modified")})
        results.append(result)
    return results


def test_seed_001_order_4_on_the_bound_is_deleted_in_run_3():
    first, second, third = orders(day(15))
    assert first.counts == Counts(inserted=3)
    assert second.counts == Counts(inserted=1, updated=2, deleted=1)
    assert flags(second) == {1: (True, T2), 2: (False, T2), 3: (False, T2), 4: (False, T2)}
    assert third.counts == Counts(updated=2, deleted=1)
    assert flags(third) == {1: (True, T2), 2: (False, T3), 3: (False, T3), 4: (True, T3)}
    assert {r["id"]: r["modified"] for r in third.table.rows} == {
        1: day(1),
        2: day(20),
        3: day(20),
        4: day(15),
    }


def test_seed_001_order_4_below_the_bound_stays():
    _, _, third = orders(day(10))
    assert third.counts == Counts(updated=2)
    assert flags(third)[4] == (False, T2)


def test_seed_001_in_history_closes_the_version():
    *_, third = orders(day(15), SCD2)
    (four,) = [r for r in third.table.rows if r["id"] == 4]
    assert four == {
        "id": 4, "modified": day(15), "_valid_from": T2, "_valid_to": T3, "_is_current": False, "_is_deleted": True,
        "_last_seen": T3,
    }  # fmt: skip
    assert third.counts == Counts(updated=2, deleted=1)
    assert [r["_valid_from"] for r in third.table.rows if r["id"] == 2 and r["_is_current"]] == [T3]


def window(stored, slice_, low, partition_by=(), columns=ORDERS):
    table = ran(
        step(
            State(),
            frame(*stored, columns=columns),
            by_arrival(frame(columns=columns), ["id"]),
            ANY,
            T1,
        )
    )
    read = frame(*slice_, columns=columns)
    return ran(
        step(table.state, read, by_window(read, ["id"], "modified", low, partition_by), ANY, T2)
    )


def test_a_window_has_both_its_bounds_and_no_null():
    stored = [(1, day(1)), (2, day(2)), (3, day(3)), (4, day(4)), (5, None)]
    assert window(stored, [(9, day(3))], day(2)).counts == Counts(inserted=1, deleted=2)


@pytest.mark.parametrize(
    ("slice_", "low"), [([], day(1)), ([(9, None)], day(1)), ([(9, day(9))], None)]
)
def test_no_window_infers_nothing(slice_, low):
    """An empty slice, a slice of NULL marks, no previous mark."""
    assert window([(1, day(1)), (2, day(2))], slice_, low).counts == Counts(inserted=len(slice_))


def test_x36_partitions_narrow_the_candidates_and_not_the_match():
    columns = [*ORDERS, ("region", "string")]
    stored = [(1, day(2), "EMEA"), (2, day(2), "EMEA"), (3, day(2), "APAC"), (4, day(2), None)]
    after = window(stored, [(1, day(2), "APAC")], day(1), ["region"], columns)
    assert after.counts == Counts(
        updated=1, deleted=1
    )  # 1 moved; 3 is gone; of EMEA and NULL nothing is known
    assert {r["id"]: (r["region"], r["_is_deleted"]) for r in after.table.rows} == {
        1: ("APAC", False), 2: ("EMEA", False), 3: ("APAC", True), 4: (None, False),
    }  # fmt: skip


# --- seed 000: snapshots and the live source ---------------------------------------------------------------


def test_the_first_snapshot_infers_nothing_or_is_refused():
    there = ran(step(State(), frame((1, "a"), (2, "a")), by_arrival(frame(), ["id"]), ID, T1)).state
    result = snapshots(ID, frame((1, "a")), start=there)[0]
    assert ran(result).counts == Counts()
    strict = Rules(["id"], on_first_run="error")
    assert snapshots(strict, frame((1, "a")), start=there) == [Refused("first run")]


def test_x1_the_newest_snapshot_is_compared_with_the_table():
    _, second = snapshots(ANY, frame((1, "a"), (2, "a")), frame((1, "a")))
    assert ran(second).counts == Counts(deleted=1)
    assert flags(second) == {1: (False, T1), 2: (True, T2)}


def test_hard_deletes_leave_no_row_and_no_flag():
    _, second, third = snapshots(
        HARD, frame((1, "a"), (2, "a")), frame((1, "a")), frame((1, "a"), (2, "a"))
    )
    assert ran(second).counts == Counts(deleted=1)
    assert ids(second) == [1]
    assert ran(second).table.columns == COLUMNS
    assert ran(third).counts == Counts(inserted=1)


def test_x4_a_condition_holds_back_neither_a_delete_nor_a_return():
    never = Rules(["id"], condition=lambda new, old: False, max_delete_percent=None)
    both, one = frame((1, "a"), (2, "a")), frame((1, "b"))
    _, second, third = snapshots(never, both, one, both)
    assert ran(second).counts == Counts(deleted=1)
    assert ran(third).counts == Counts(reopened=1)


def test_x5_the_same_snapshot_again_is_no_news():
    rules = Rules(["id"], confirm_runs=2, max_delete_percent=None)
    first, second = snapshots(rules, frame((1, "a"), (2, "a")), frame((1, "a")))
    assert ran(second).counts == Counts()
    again = by_snapshot(frame((1, "a")), ["id"], 2, 2)
    third = ran(step(ran(second).state, frame((1, "a")), again, rules, T3))
    assert third.counts == Counts()
    fourth = ran(
        step(third.state, frame((1, "a")), by_snapshot(frame((1, "a")), ["id"], 3, 2), rules, T4)
    )
    assert fourth.counts == Counts(deleted=1)
    assert ran(first).commits


def test_a_return_in_between_starts_the_count_again():
    rules = Rules(["id"], confirm_runs=2, max_delete_percent=None)
    both, one = frame((1, "a"), (2, "a")), frame((1, "a"))
    results = snapshots(rules, both, one, both, one, one)
    assert [ran(r).counts.deleted for r in results] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("answer", "counts"), [("hold", Counts(held=2)), ("apply", Counts(deleted=2)), ("error", None)]
)
def test_x6_an_empty_source_has_its_own_verdict(answer, counts):
    rules = Rules(["id"], on_empty_source=answer, max_delete_percent=None)
    _, second = snapshots(rules, frame((1, "a"), (2, "a")), frame())
    assert (
        second == Refused("empty", [(1,), (2,)]) if counts is None else ran(second).counts == counts
    )


def test_an_empty_source_over_an_empty_table_is_nothing():
    results = snapshots(Rules(["id"], on_empty_source="error"), frame(), frame())
    assert [ran(r).counts for r in results] == [Counts(), Counts()]
    assert [ran(r).commits for r in results] == [True, False]


def test_x7_deletes_are_counted_once():
    four = [(n, "a") for n in range(1, 5)]
    rules = Rules(["id"], max_delete_percent=40.0, on_threshold_breach="error")
    results = snapshots(rules, frame(*four), frame(*four[1:]), frame(*four[2:]))
    assert [ran(r).counts.deleted for r in results] == [0, 1, 1]  # 25 %, then 1 of 3; never 2 of 4


@pytest.mark.parametrize(
    ("limit", "refused"), [(None, False), (0.0, True), (49.9, True), (50.0, False)]
)
def test_x8_null_is_off_zero_tolerates_none_and_the_limit_itself_is_fine(limit, refused):
    rules = Rules(["id"], max_delete_percent=limit, on_threshold_breach="error")
    _, second = snapshots(rules, frame((1, "a"), (2, "a")), frame((1, "a")))
    assert (
        second == Refused("threshold", [(2,)])
        if refused
        else ran(second).counts == Counts(deleted=1)
    )


@pytest.mark.parametrize(
    ("answer", "counts"),
    [
        ("warn", Counts(inserted=1, deleted=2)),
        ("skip", Counts(inserted=1)),
        ("hold", Counts(inserted=1, held=2)),
    ],
)
def test_a_breach_stops_the_deletes_only(answer, counts):
    rules = Rules(["id"], max_delete_count=1, max_delete_percent=None, on_threshold_breach=answer)
    _, second = snapshots(rules, frame((1, "a"), (2, "a"), (3, "a")), frame((1, "a"), (9, "a")))
    assert ran(second).counts == counts
    assert ran(second).breached


def test_holds_stay_are_counted_and_fall_when_the_key_is_seen():
    rules = Rules(["id"], max_delete_percent=50.0, on_threshold_breach="hold")
    some = [(n, "a") for n in range(1, 5)]
    many = [(n, "a") for n in range(10, 30)]
    results = snapshots(
        rules,
        frame(*some),
        frame(some[0]),
        frame(some[0], *many),
        frame(*some[:2], *many),
        frame(*some, *many),
    )
    assert [ran(r).counts.held for r in results] == [0, 3, 3, 2, 0]
    assert [ran(r).counts.deleted for r in results] == [0] * 5
    assert [ran(r).status for r in results] == ["success", "held", "held", "held", "unchanged"]


def test_a_rejected_key_is_left_in_peace_until_it_is_seen():
    rules = Rules(["id"], max_delete_percent=0, on_threshold_breach="hold")
    both, one = frame((1, "a"), (2, "a")), frame((1, "a"))
    _, second = snapshots(rules, both, one)
    state = reject(ran(second).state, [(2,)])
    held = []
    for number, source in enumerate([one, both, one], start=3):
        result = ran(
            step(state, source, by_snapshot(source, ["id"], number, number - 1), rules, T5)
        )
        state = result.state
        held.append(result.counts.held)
    assert held == [0, 0, 1]


def test_x11_an_outdated_row_of_the_slice_revives_nothing():
    """Bronze still has the row; the live source does not."""
    slice_ = frame((1, "a"), (2, "a"))
    first = ran(step(State(), slice_, by_source(slice_.rows, ["id"]), ANY, T1))
    second = ran(step(first.state, slice_, by_source([{"id": 1}], ["id"]), ANY, T2))
    third = ran(
        step(second.state, frame((1, "a"), (2, "b")), by_source([{"id": 1}], ["id"]), ANY, T3)
    )
    assert (second.counts, third.counts) == (Counts(deleted=1), Counts())
    assert flags(third)[2] == (True, T2)


def test_x12_x33_what_returns_unchanged_is_revived():
    both, one = frame((1, "a"), (2, "a")), frame((1, "a"))
    third = snapshots(ANY, both, one, both)[2]
    assert ran(third).counts == Counts(reopened=1)
    assert flags(third) == {1: (False, T1), 2: (False, T3)}


def test_x12_in_history_a_return_is_a_new_version():
    both, one = frame((1, "a"), (2, "a")), frame((1, "a"))
    third = ran(snapshots(SCD2, both, one, both)[2])
    assert third.counts == Counts(reopened=1)
    versions = [
        (r["_valid_from"], r["_valid_to"], r["_is_current"], r["_is_deleted"])
        for r in third.table.rows
        if r["id"] == 2
    ]
    assert versions == [(T1, T2, False, True), (T3, None, True, False)]


def test_x13_null_keys_match_and_are_never_found_missing():
    rules = Rules(["id", "v"], max_delete_percent=None)
    stored = frame((None, "a"), (1, None), (1, "a"))
    _, second, third = snapshots(rules, stored, frame((2, "b")), stored)
    assert ran(second).counts == Counts(inserted=1, deleted=1)
    assert ran(third).counts == Counts(deleted=1, reopened=1)


def test_x16_the_keys_asked_for_are_those_of_the_table():
    """An incremental slice carries one row, and the table has three."""
    full = frame((1, "a"), (2, "a"), (3, "a"))
    first = ran(step(State(), full, by_source(full.rows, ["id"]), ANY, T1))
    second = ran(
        step(first.state, frame((3, "b")), by_source([{"id": 1}, {"id": 3}], ["id"]), ANY, T2)
    )
    assert second.counts == Counts(updated=1, deleted=1)
    third = ran(
        step(second.state, frame(), by_source([{"id": 1}, {"id": 2}, {"id": 3}], ["id"]), ANY, T3)
    )
    assert third.counts == Counts(reopened=1)  # with its stored values: the slice does not carry it
    assert {r["id"]: r["v"] for r in third.table.rows} == {1: "a", 2: "a", 3: "b"}


@pytest.mark.parametrize(("rules", "stored"), [(ANY, {1: False, 2: True}), (HARD, {1: None})])
def test_what_came_and_went_between_two_runs(rules, stored):
    """A slice key that neither the live source nor the table has: flagged when soft, left out when hard."""
    slice_ = frame((1, "a"), (2, "a"))
    first = ran(step(State(), slice_, by_source([{"id": 1}], ["id"]), rules, T1))
    assert {r["id"]: r.get("_is_deleted") for r in first.table.rows} == stored
    assert first.counts == Counts(inserted=len(stored))


def test_x35_a_flag_that_is_null_is_a_living_row():
    columns = [*COLUMNS, ("_is_deleted", "boolean"), ("_last_seen", "timestamp")]
    state = State(frame((1, "a", None, T1), (2, "a", False, T1), columns=columns))
    result = ran(step(state, frame(), by_source([{"id": 2}], ["id"]), ANY, T2))
    assert result.counts == Counts(deleted=1)
    assert flags(result) == {1: (True, T2), 2: (False, T1)}


def test_a_filter_limits_what_is_in_question_and_what_it_is_a_part_of():
    rules = Rules(
        ["id"],
        scope=lambda row: row["v"] == "x",
        max_delete_percent=50.0,
        on_threshold_breach="error",
    )
    first = frame((1, "x"), (2, "x"), (3, "y"), (4, "y"), (5, None))
    assert ran(snapshots(rules, first, frame((1, "x")))[1]).counts == Counts(deleted=1)
    assert snapshots(rules, first, frame((3, "y")))[1] == Refused("threshold", [(1,), (2,)])


# --- history -----------------------------------------------------------------------------------------------


def test_a_change_closes_and_opens():
    _, second, third = snapshots(SCD2, frame((1, "a")), frame((1, "b")), frame((1, "b")))
    assert ran(second).counts == Counts(updated=1)
    assert ran(second).table.rows == [
        {"id": 1, "v": "a", "_valid_from": T1, "_valid_to": T2, "_is_current": False, "_is_deleted": False,
         "_last_seen": T2},
        {"id": 1, "v": "b", "_valid_from": T2, "_valid_to": None, "_is_current": True, "_is_deleted": False,
         "_last_seen": T2},
    ]  # fmt: skip
    assert ran(third).status == "unchanged"


def test_a_hard_delete_takes_every_version():
    hard = Rules(["id"], mode="scd2", deletes="hard", max_delete_percent=None)
    *_, third = snapshots(
        hard, frame((1, "a"), (2, "a")), frame((1, "b"), (2, "a")), frame((2, "a"))
    )
    assert ran(third).counts == Counts(deleted=1)
    assert ids(third) == [2]


def test_duplicates_are_refused():
    assert snapshots(ID, frame((1, "a"), (1, "b"))) == [Refused("duplicates", [(1,)])]


# --- incremental append ------------------------------------------------------------------------------------

MARKED = [("id", "bigint"), ("m", "bigint")]


def test_a_stateful_read_has_its_lower_bound_and_the_rows_without_a_mark():
    source = frame((1, 1), (2, 2), (3, 3), (4, None), columns=MARKED)
    assert [r["id"] for r in read_since(source, "m", lower_bound(3, 1)).rows] == [2, 3, 4]
    assert len(read_since(source, "m", lower_bound(None, 1)).rows) == 4


def test_the_mark_never_goes_back():
    assert next_mark(5, frame((1, 3), (2, None), columns=MARKED), "m") == 5
    assert next_mark(5, frame((1, 7), columns=MARKED), "m") == 7
    assert next_mark(None, frame((1, None), columns=MARKED), "m") is None
    assert lower_bound(datetime(2024, 6, 2, tzinfo=UTC), timedelta(days=1)) == T1


def test_what_is_read_again_does_not_come_twice():
    target = frame((1, 1), (2, 2), (2, 2), (3, None), columns=MARKED)
    slice_ = frame((2, 2), (2, 2), (2, 2), (3, None), (1, 5), columns=MARKED)
    outcome = append_new(target, slice_, "m", 2)
    assert outcome.inserted == 2  # the third copy of (2, 2), and (1, 5)
    assert append_new(outcome.after, slice_, "m", 2).inserted == 0


def test_a_row_below_the_range_is_not_compared():
    target = frame((1, 1), columns=MARKED)
    assert append_new(target, frame((1, 1), columns=MARKED), "m", 2).inserted == 1
