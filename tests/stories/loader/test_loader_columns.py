"""Which columns a table has after new rows, for jobs written by hand; nothing is ever dropped."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import StrandlineError
from strandline.loader import (
    evolve,
    final_columns,
    new_columns,
    removed_columns,
    select_columns,
)

NAMES = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4),
    unique_by=str.casefold,
)


def test_what_is_new_and_what_is_gone() -> None:
    assert new_columns(["a", "b", "c"], ["a", "b", "d"]) == ["d"]
    assert removed_columns(["a", "b", "c"], ["a", "b", "d"]) == ["c"]
    assert new_columns(["CustomerID"], ["customerid"]) == []
    assert removed_columns(["CustomerID"], ["customerid"]) == []
    assert final_columns(["a", "b"], ["a", "c"]) == ["a", "b", "c"]
    assert select_columns(["a", "b", "c"], ["a", "c"]) == ['"a"', 'NULL AS "b"', '"c"']


def test_the_worked_example() -> None:
    target, source = ["customerid", "name", "placeholder5"], ["customerid", "name", "placeholder6"]
    assert final_columns(target, source) == [*target, "placeholder6"]
    told = ", ".join(select_columns(target, source))
    assert told == '"customerid", "name", NULL AS "placeholder5", "placeholder6"'


@given(NAMES, NAMES)
def test_the_lists_agree(target: list[str], source: list[str]) -> None:
    final, selected = final_columns(target, source), select_columns(target, source)
    folded = [n.casefold() for n in final]
    assert final[: len(target)] == target
    assert set(folded) == {n.casefold() for n in (*target, *source)}
    assert len(folded) == len(set(folded)) == len(selected)
    padded = [e for e in selected if e.startswith("NULL AS ")]
    assert len(padded) == len(removed_columns(target, source))


def test_columns_are_added_and_never_dropped(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    place = str(tmp_path / "t")
    write_deltalake(place, pa.table({"a": [1], "b": ["x"]}))
    assert evolve(place, [{"name": "c", "type": "DECIMAL(12, 2)"}, {"name": "A", "type": "bigint"}])
    assert not evolve(place, [{"name": "c", "type": "decimal(12,2)"}], drop_columns=[])
    assert evolve(place, [{"name": "d", "type": "timestamp_ntz"}, {"name": "e", "type": "weird"}])
    assert "kept as text" in caplog.text
    types = {f.name: str(f.type) for f in DeltaTable(place).schema().fields}
    assert list(types) == ["a", "b", "c", "d", "e"]
    assert "string" in types["e"]
    with pytest.raises(StrandlineError, match="Column drops not supported: b"):
        evolve(place, [{"name": "z", "type": "int"}], drop_columns=["b"])
    with pytest.raises(StrandlineError, match="column `b` is string"):
        evolve(place, [{"name": "z", "type": "int"}, {"name": "b", "type": "int"}])
    with pytest.raises(StrandlineError, match="in other types: widens `c`"):
        evolve(place, [{"name": "c", "type": "decimal(20,4)"}])
    assert [f.name for f in DeltaTable(place).schema().fields] == list(types)
