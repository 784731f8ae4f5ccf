"""What exactly-once costs: a recovery against an ordinary run, and tokens and records as a share of a run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.ours import Ours
from strandline import failpoints
from strandline.control.store import DeltaStore
from strandline.lake.delta import log as delta_log

RECOVERY, SHARE = 1.2, 0.05  # what they may cost at most
_RECORDS = ("control", "ended", "put", "log", "log_changes", "notebook")


def measure(ours: Ours, rounds: int) -> dict[str, Any]:
    """Seconds of an upsert, of the run after one that died behind its commit, and after one that died before it."""
    normal, after, before, shares = [], [], [], []
    ours.reset("upsert")
    ours.run()  # warms up
    turns: list[tuple[str, list[float]]] = [
        ("", normal),
        ("commit.after", after),
        ("commit.before", before),
    ]
    for round_ in range(rounds):
        for point, found in [
            *turns[round_ % 3 :],
            *turns[: round_ % 3],
        ]:  # nobody always comes after the same one
            ours.reset("upsert")
            if point:
                with failpoints.armed(f"{point}:raise"):
                    ours.project.run(platform=ours.platform)
                found.append(_timed(ours))
            else:
                with _clocked() as spent:
                    found.append(_timed(ours))
                shares.append(sum(spent) / found[-1])
    usual, landed, redone = (statistics.median(s) for s in (normal, after, before))
    return {
        "normal_s": usual,
        "recovery_s": landed,
        "redone_s": redone,
        "recovery_ratio": max(landed, redone) / usual,
        "records_share": statistics.median(shares),
        "limits": {"recovery_ratio": RECOVERY, "records_share": SHARE},
    }


def _timed(ours: Ours) -> float:
    began = time.monotonic()
    ours.run()
    return time.monotonic() - began


@contextmanager
def _clocked() -> Iterator[list[float]]:
    """The seconds that go into records, and into looking for tokens, while something runs."""
    spent: list[float] = []

    def clocked(call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            began = time.monotonic()
            try:
                return call(*args, **options)
            finally:
                spent.append(time.monotonic() - began)

        return timed

    kept = {name: getattr(DeltaStore, name) for name in _RECORDS}
    look = delta_log.newest_commit
    for name, call in kept.items():
        setattr(DeltaStore, name, clocked(call))
    delta_log.newest_commit = clocked(look)
    try:
        yield spent
    finally:
        for name, call in kept.items():
            setattr(DeltaStore, name, call)
        delta_log.newest_commit = look


def markdown(title: str, found: dict[str, Any]) -> str:
    ratio, share = found["recovery_ratio"], 100 * found["records_share"]
    return (
        f"{title}: {found['normal_s']:.2f} s; after a death behind the commit {found['recovery_s']:.2f} s, before it "
        f"{found['redone_s']:.2f} s ({ratio:.2f} ×, at most {RECOVERY}); "
        f"tokens and records {share:.1f} % of the run (at most {100 * SHARE:.0f} %)\n"
    )
