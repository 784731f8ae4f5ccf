"""Deletes by absence need a snapshot, a window or live keys: the type checker refuses an increment."""

from __future__ import annotations

from pathlib import Path

from mypy import api

JOB = """
from strandline.strategy.absence import Absence
from strandline.types import Increment, Relation, Schema, Snapshot

rows = Relation("extract", Schema(()))
whole = Absence(Snapshot(rows), seen=None, scope=None)
part = Absence(Increment(rows), seen=None, scope=None)
"""


def test_the_type_checker_refuses_deletes_by_absence_over_an_increment(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text(JOB, encoding="utf-8")
    said, trouble, code = api.run(
        ["--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path), str(file)]
    )
    assert (code, trouble) == (1, "")
    assert [line.split(": ", 1)[0].rpartition(":")[2] for line in said.splitlines()[:-1]] == ["7"]
    assert 'incompatible type "Increment"' in said
