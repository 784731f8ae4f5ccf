"""What Spark observed on the way, without waiting for ever for what it did not look at."""

from __future__ import annotations

import time
from typing import Any

from pyspark.sql import Observation

_PATIENCE = 10.0  # seconds; the figures of a finished write are there within milliseconds


def observed(seen: Observation) -> dict[str, Any] | None:
    """The figures of the action that has ended; None when Spark saw none.

    `Observation.get` waits until an action reports, and some never do: rows fetched as Arrow, or a plan in which Spark
    saw that nothing can come.
    """
    inner = seen._jo  # noqa: SLF001 – the only way to ask without waiting for ever
    if inner is None:
        return None
    deadline = time.monotonic() + _PATIENCE
    while not inner.getRowOrEmpty().isDefined():  # waits a tenth of a second itself
        if time.monotonic() > deadline:
            return None
    return dict(seen.get)
