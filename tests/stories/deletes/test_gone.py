"""Rows that announce a delete: what `keyed.decide` makes of them, alone and beside evidence of absence."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sqlglot import exp

from strandline.lake.delta.limits import DELTA_LIMITS
from strandline.sql.expr import cast, lit, named, select
from strandline.strategy import decisions
from strandline.strategy.absence import Absence
from strandline.strategy.changes import ACTION
from strandline.strategy.fit import Policy, Stored, fit
from strandline.strategy.keyed import decide
from strandline.strategy.question import ELSE, Keeping, Question
from strandline.types import Snapshot

AT = datetime(2024, 3, 31, 1, tzinfo=UTC)
UPSERT = {"deleted": "_is_deleted", "last_seen": "_last_seen"}
SCD2 = {"valid_from": "_valid_from", "valid_to": "_valid_to", "is_current": "_is_current", **UPSERT}
TYPES = {
    "k": "int",
    "v": "string",
    "gone": "boolean",
    "_is_deleted": "boolean",
    "_is_current": "boolean",
}


def rows(engine, records):
    """A relation of literal rows."""
    tree = None
    for record in records:
        one = select(
            *(named(cast(lit(v), TYPES.get(n, "timestamp")), n) for n, v in record.items())
        )
        tree = one if tree is None else exp.union(tree, one, distinct=False)
    return engine.query(tree)


def stored(k, *, dead=False, history=False):
    row = {"k": k, "v": "old", "_is_deleted": dead, "_last_seen": AT}
    if history:
        row |= {"_valid_from": AT, "_valid_to": AT if dead else None, "_is_current": not dead}
    return row


def fitted(come, target, roles):
    there = Stored(target.schema, tuple(roles.values())) if target else None
    return fit(come.schema.without("gone"), there, "t", Policy(DELTA_LIMITS))


def verbs(engine, slice_, table, *, history=False, absence=None, hard=False):
    """key → (verb when deletes are applied, verb when they are not)"""
    come, target = rows(engine, slice_), rows(engine, table) if table else None
    roles = SCD2 if history else UPSERT
    shape = fitted(come, target, roles)
    keeping = Keeping(("k",), roles, AT, hard=hard)
    found = absence(engine) if absence else None
    q = Question(come, target, shape, keeping, found, stored=roles if target else {}, gone="gone")
    tree = decide(q)
    wanted = [exp.column(n, quoted=True) for n in ("k", ACTION, ELSE)]
    return {k: (a, e) for k, a, e in engine.fetch(select(*wanted).from_(tree.subquery("x")))}


@pytest.mark.parametrize("history", [False, True], ids=["upsert", "scd2"])
@pytest.mark.long_on_spark
def test_a_row_that_says_it_is_gone(platform, history):
    told = ((1, True), (2, True), (3, True), (4, False), (5, None), (6, False))
    slice_ = [{"k": k, "v": "new", "gone": gone} for k, gone in told]
    table = [stored(k, dead=k in (2, 6), history=history) for k in (1, 2, 4, 6)]
    with platform.workspace("n") as engine:
        found = verbs(engine, slice_, table, history=history)
    assert found == {
        1: ("delete", "stay"),  # found and alive
        2: ("stay", "stay"),  # gone already
        3: ("stay", "stay"),  # never there
        4: ("update", "update"),
        5: ("insert", "insert"),  # NULL announces nothing
        6: ("reopen", "reopen"),  # it is back
    }


def test_there_is_no_table_yet(pandas_platform):
    with pandas_platform.workspace("n") as engine:
        found = verbs(
            engine, [{"k": 1, "v": "a", "gone": True}, {"k": 2, "v": "b", "gone": False}], []
        )
    assert found == {1: ("stay", "stay"), 2: ("insert", "insert")}


def test_a_null_key_may_be_announced(pandas_platform):
    with pandas_platform.workspace("n") as engine:
        found = verbs(engine, [{"k": None, "v": "a", "gone": True}], [stored(None)])
    assert found == {None: ("delete", "stay")}


@pytest.mark.parametrize("confirm", [1, 2])
def test_beside_evidence_of_absence(pandas_platform, confirm):
    """Announced deletes wait for no second time and no window, and their rows are no evidence of presence."""
    slice_ = [{"k": 1, "v": "old", "gone": True}, {"k": 2, "v": "old", "gone": True}]

    def absence(engine):
        seen = rows(engine, [{"k": k} for k in (1, 2)])
        return Absence(Snapshot(seen), seen, scope=exp.false(), confirm=confirm)

    with pandas_platform.workspace("n") as engine:
        found = verbs(engine, slice_, [stored(1), stored(2, dead=True), stored(3)], absence=absence)
    assert found == {1: ("delete", "stay"), 2: ("stay", "stay"), 3: ("stay", "stay")}


def test_a_hard_delete_takes_every_version(pandas_platform):
    with pandas_platform.workspace("n") as engine:
        come = rows(engine, [{"k": None, "v": "a", "gone": True}])
        old = {
            **stored(None, history=True),
            "_valid_from": datetime(2020, 1, 1, tzinfo=UTC),
            "_is_current": False,
        }
        target = rows(engine, [old, stored(None, history=True), stored(2, history=True)])
        shape = fitted(come, target, SCD2)
        q = Question(
            come, target, shape, Keeping(("k",), SCD2, AT, hard=True), stored=SCD2, gone="gone"
        )
        decided = engine.query(decide(q))
        additions = engine.query(decisions.additions(decided, q, applied=True))
        gone = engine.fetch(decisions.all_versions(additions, q))
    assert len(gone) == 2
