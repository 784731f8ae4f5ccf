"""What a feature means is asked in memory; the local engine, which evaluates alike, has the rest in `make long`."""

from __future__ import annotations

import pytest

IN_MEMORY = [
    "memory",
    pytest.param("pandas", marks=pytest.mark.long),
    pytest.param("spark", marks=pytest.mark.spark),
]


@pytest.fixture(params=IN_MEMORY)
def engine_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)
