"""Which versions a load reads, decided before Spark is asked."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from strandline.control.loads import LoadRow
from strandline.errors import UsageError
from strandline.loader import DeltaLoader, DeltaLoadOptions, delivery
from strandline.types import Schema, Table, TableState

NOW = datetime(2024, 6, 1, tzinfo=UTC)
LAKE = Table("silver.customers", "/lake/customers")


def read(monkeypatch, consumed, version, *, table_id="t", **options):
    monkeypatch.setattr(delivery, "whole", lambda *_: "whole")
    monkeypatch.setattr(delivery, "since", lambda *_: "changes")
    last = consumed is not None and LoadRow(
        "l", LAKE.location, "nightly", "t", None, consumed, True, False, NOW, NOW
    )
    loader = DeltaLoader(LAKE.label, DeltaLoadOptions("CDF", "nightly", options))
    state = TableState(version, Schema(()), table_id=table_id)
    return loader._read(SimpleNamespace(engine=None), LAKE, state, last or None, [])


def test_an_older_version_than_the_consumed_one_is_not_delivered(monkeypatch):
    with pytest.raises(
        UsageError, match=r"to_commit_version 3 lies before .* version 5 was consumed already"
    ):
        read(monkeypatch, 5, 3, to_commit_version=3)


def test_a_range_that_ends_before_it_begins(monkeypatch):
    with pytest.raises(
        UsageError, match=r"to_commit_version 3 lies before .* from_commit_version is 7"
    ):
        read(monkeypatch, None, 3, from_commit_version=7, to_commit_version=3)


def test_ranges_that_can_be_read(monkeypatch):
    assert read(monkeypatch, 5, 5, to_commit_version=5) == (5, "changes")
    assert read(monkeypatch, 5, 7, to_commit_version=7) == (5, "changes")
    assert read(monkeypatch, 5, 3, to_commit_version=3, table_id="made anew") == (None, "whole")
