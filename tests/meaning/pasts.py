"""A source table with a past, the pipeline that follows it, and what the oracle expects of every run."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Literal

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from tests.lab import MemoryStore, configured, forget, stored

from strandline.config.model import NodeConfig
from strandline.control.ledger import Store
from strandline.control.store import DeltaStore
from strandline.engine.base import Platform
from strandline.engine.memory import MemoryPlatform
from strandline.plan.job import Job
from strandline.result import NodeResult
from strandline.run.runner import Runner
from strandline.testing import histories, oracle
from strandline.testing.histories import Evidence, Ran, Refused, Rules, State
from strandline.testing.oracle import Frame, Row
from strandline.testing.projects import make_project
from strandline.types import Clock

BRONZE, SILVER = "bronze", "silver"
Detect = Literal["none", "snapshot_diff", "sql_compare", "watermark_window"]


# --- what can be drawn -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """How a source becomes a table: through a Bronze table or straight, read in full or from a mark on."""

    detect: Detect
    mode: Literal["upsert", "scd2"] = "upsert"
    bronze: bool = False
    stateful: bool = False

    def __str__(self) -> str:
        way = ("bronze_" if self.bronze else "direct_") + ("stateful" if self.stateful else "full")
        return f"{self.mode}-{self.detect}-{way}"


@dataclass(frozen=True)
class Run:
    """The source as it is before a run, and the nodes that run then."""

    source: list[Row]
    nodes: Sequence[str]
    looks: bool = True  # is the detection of deletes switched on?


@dataclass(frozen=True)
class Past:
    """A pipeline and the runs it lives through."""

    shape: Shape
    keys: list[str]
    mark: Literal["bigint", "timestamp_ntz"]
    lag: int | None
    initial: bool  # does the first read begin at a bound of the configuration's?
    deletes: Literal["none", "soft", "hard"]
    partition_by: list[str]
    limits: Mapping[str, Any]
    sequence: bool  # do marks also say which of two rows is newer?
    variant: bool  # where the configuration has two words for one thing, the other one
    off: Literal["removed", "none", "ignore"]  # how the detection of deletes is switched off
    runs: list[Run]

    @property
    def columns(self) -> oracle.Columns:
        return [
            ("k1", "bigint"),
            ("k2", "string"),
            ("p", "string"),
            ("m", self.mark),
            ("v", "bigint"),
        ]

    def marked(self, number: int) -> Any:
        """A number as a mark."""
        return number if self.mark == "bigint" else datetime(2024, 6, 1) + timedelta(days=number)


BOTH = [BRONZE, SILVER]
ORDERS = [BOTH, BOTH, BOTH, [BRONZE], [SILVER], [BRONZE, SILVER, SILVER], [BRONZE, BRONZE, SILVER]]
INITIAL = -1  # some of the first rows lie below it
KINDS = {"put": 4, "drop": 9, "touch": 4, "back": 12, "move": 2, "again": 2, "prune": 1, "clear": 1}


def limits(dice: Random) -> dict[str, Any]:
    """How deletes are judged: as by default, not at all, or strictly."""
    chance = dice.random()
    if chance < 0.4:
        return {} if chance < 0.2 else {"max_delete_percent": None}
    return {
        "max_delete_percent": dice.choice([25.0, 0.0, 50.0, None, None]),
        "max_delete_count": dice.choice([None, None, 0, 1, 2]),
        "on_threshold_breach": dice.choice(["hold", "hold", "skip", "error", "warn"]),
        "on_empty_source": dice.choice(["hold", "apply", "error"]),
        "confirm_runs": dice.choice([1, 1, 1, 2, 3]),
        "target_filter": dice.choice([None, None, None, "p = 'x'"]),
    }


@st.composite
def pasts(draw: DrawFn, shape: Shape) -> Past:
    """3 to 6 runs over a source that grows, changes, loses rows and gets them back.

    One number decides everything but how many runs there are: Hypothesis would rather draw the same few small tables,
    and shortening a past is what helps to understand it.
    """
    dice = Random(draw(st.integers(0, 2**40)))
    past = Past(
        shape,
        keys=dice.choice([["k1"], ["k1", "k2"]]),
        mark=dice.choice(["bigint", "timestamp_ntz"]),
        lag=dice.choice([None, 0, 2, 4, 6]) if shape.stateful else None,
        initial=shape.stateful and dice.choice([False, False, True]),
        deletes="none" if shape.detect == "none" else dice.choice(["soft", "soft", "hard"]),
        partition_by=dice.choice([[], ["p"]]),
        limits=limits(dice) if shape.detect != "none" else {},
        sequence=dice.choice([False, False, True]),
        variant=dice.choice([False, True]),
        off=dice.choice(["removed", "none", "ignore"]),
        runs=[],
    )
    if (
        shape.mode == "scd2" or past.deletes == "hard"
    ):  # a removed row forgets its sequence, a version by time has none
        past = replace(past, sequence=False)
    switching = shape.detect != "none" and dice.random() < 0.4
    if switching:
        past = replace(past, deletes="soft", limits={"max_delete_percent": None})
    source = Source(past, dice)
    for number in range(draw(st.sampled_from([4, 3, 5, 6]))):
        source.edit(number)
        if (
            switching and number == 1
        ):  # a row that is flagged before nothing looks for deletes any more
            source.drop()
        order = dice.choice(ORDERS) if shape.bronze and number else BOTH
        looks = not switching or number < 2 or dice.random() < 0.4
        past.runs.append(Run(list(source.rows), order if shape.bronze else [SILVER], looks))
    return past


class Source:
    """The source table while its past is made up."""

    def __init__(self, past: Past, dice: Random) -> None:
        self.past, self.dice = past, dice
        self.rows: list[Row] = []
        self.gone: list[Row] = []

    def edit(self, number: int) -> None:
        """What happens to it before a run; first it is filled, or is empty once in a while."""
        if number == 0:
            for _ in range(self.dice.choice([0, 3, 4, 5, 6, 6])):
                self._put(self._row(0))
            return
        for kind in self.dice.choices(
            list(KINDS), list(KINDS.values()), k=self.dice.choice([0, 1, 2, 3, 3, 4])
        ):
            if kind == "put":
                self._put(self._row(number))
            elif kind == "back":
                self._put(self.dice.choice(self.gone or [self._row(number)]))
            elif kind == "clear":
                self._remove(self.rows)
            elif self.rows:
                self._change(kind, self.dice.choice(self.rows), self._row(number))

    def drop(self) -> None:
        if self.rows:
            self._change("drop", self.dice.choice(self.rows), {})

    def _change(self, kind: str, old: Row, new: Row) -> None:
        match kind:
            case "drop":
                self._remove([old])
            case "prune":
                self._remove([row for row in self.rows if row is not old])
            case "touch":
                self._put({**old, "m": new["m"], "v": new["v"]})
            case "move":
                self._put({**old, "p": new["p"], "m": new["m"]})
            case "again" if self.past.shape.bronze:  # the same key twice; a `deduplicate` decides
                self.rows.append({**old, "m": new["m"], "v": new["v"]} if new["v"] else dict(old))

    def _row(self, number: int) -> Row:
        """A row whose mark lies around the number of the run: new, on the bound, late, or unknown."""
        pick = self.dice.choice
        shift = pick([0, 0, 1, 1, -1, -2, -4, None])
        m = None if shift is None else self.past.marked(2 * number + shift)
        k1, k2 = pick([1, 2, 3, 4, 5, 1, 2, 3, None]), pick(["a", "a", "a", "b", None])
        return {"k1": k1, "k2": k2, "p": pick(["x", "x", "y", None]), "m": m, "v": pick([0, 1, 2])}

    def _put(self, row: Row) -> None:
        key = oracle.key_of(row, self.past.keys)
        self.rows = [r for r in self.rows if oracle.key_of(r, self.past.keys) != key]
        self.rows.append(row)

    def _remove(self, rows: Sequence[Row]) -> None:
        self.gone = [*rows, *self.gone]
        self.rows = [r for r in self.rows if not any(r is other for other in rows)]


# --- the project -------------------------------------------------------------------------------------------


def nodes_of(past: Past, *, looks: bool = True) -> list[dict[str, Any]]:
    """The nodes in YAML's words."""
    shape = past.shape
    read: dict[str, Any] = {"connection": "erp", "table": "t"}
    if shape.stateful:
        read["incremental"] = {"mode": "stateful", "column": "m", **_lag(past), **_initial(past)}
    write: dict[str, Any] = {
        "connection": "lake",
        "table": SILVER,
        "mode": shape.mode,
        "keys": past.keys,
    }
    if past.partition_by:
        write["partition_by"] = past.partition_by
    if past.sequence:
        write["sequence_by"] = "m"
    silver: dict[str, Any] = {"name": SILVER, "read": read, "write": write}
    steps = _detect(past, silver) if looks else _switched_off(past, silver)
    if not shape.bronze:
        return [silver | ({"transform": {"steps": steps}} if steps else {})]
    silver["read"] = {"connection": "lake", "table": BRONZE}
    newest = {
        "operation": "deduplicate",
        "params": {"keys": past.keys, "order_by": "_extracted_at DESC"},
    }
    kept = {
        "connection": "lake",
        "table": BRONZE,
        "mode": "append",
        "add_metadata": {"extracted_at": True},
    }
    return [
        {"name": BRONZE, "read": read, "write": kept},
        {**silver, "transform": {"steps": [newest, *steps]}},
    ]


def _lag(past: Past) -> dict[str, Any]:
    if past.lag is None:
        return {}
    return {"watermark_lag": past.lag if past.mark == "bigint" else f"{past.lag}d"}


def _initial(past: Past) -> dict[str, Any]:
    return {"initial_value": str(past.marked(INITIAL))} if past.initial else {}


def _detect(past: Past, node: dict[str, Any]) -> list[dict[str, Any]]:
    """The step that finds deletes; the two ways to say `hard`, and the two ways to ask for a window."""
    shape, hard = past.shape, past.deletes == "hard"
    if shape.detect == "none":
        return []
    by_setting = shape.detect == "watermark_window" and past.variant and not past.limits
    if hard and (past.variant or by_setting):
        node["write"]["delete_strategy"] = "hard"
    if by_setting:
        node["settings"] = {"delete_missing": True}
        return []
    params: dict[str, Any] = {"mode": shape.detect, "keys": past.keys, **past.limits}
    if hard and not past.variant:
        params["soft_delete_col"] = None
    if shape.detect == "sql_compare":
        params |= {"source_connection": "erp", "source_table": "t"}
    return [{"operation": "detect_deletes", "params": params}]


def _switched_off(past: Past, node: dict[str, Any]) -> list[dict[str, Any]]:
    """The same node, which no longer looks for deletes."""
    if past.off == "removed":
        return []
    steps = _detect(past, node)
    if past.off == "ignore":
        node["write"]["delete_strategy"] = "ignore"
        return [
            {**s, "params": {k: v for k, v in s["params"].items() if k != "soft_delete_col"}}
            for s in steps
        ]
    node["write"].pop("delete_strategy", None)
    node["settings"] = {"delete_missing": False}
    return [{**s, "params": {"mode": "none"}} for s in steps]


class World:
    """A project over a SQLite source, in a folder of its own."""

    def __init__(
        self, folder: Path, platform: Platform, past: Past, *, recorded: bool = False
    ) -> None:
        self.folder, self.platform = folder, platform
        self.clock = Clock(datetime(2024, 10, 27, 0, 30, 0, 1, tzinfo=UTC))
        erp = {"type": "sql", "url": "sqlite:///erp.db"}
        self.projects = {
            looks: make_project(folder, nodes_of(past, looks=looks), connections={"erp": erp})
            for looks in {True, all(run.looks for run in past.runs)}
        }
        self.store: Store = (
            DeltaStore(folder / "lake" / "_strandline")
            if recorded
            else MemoryStore(folder / "notes", in_memory=isinstance(platform, MemoryPlatform))
        )
        self._database = sqlite3.connect(folder / "erp.db", isolation_level=None)
        self._database.execute("PRAGMA synchronous = OFF")
        mark = "INTEGER" if past.mark == "bigint" else "TIMESTAMP"
        self._database.execute(f"CREATE TABLE t (k1 INTEGER, k2 TEXT, p TEXT, m {mark}, v INTEGER)")
        self._runs = 0

    def change(self, rows: Sequence[Row]) -> None:
        """The source as it is from now on."""
        values = [
            tuple(str(x) if isinstance(x, datetime) else x for x in row.values()) for row in rows
        ]
        self._database.execute("BEGIN")
        self._database.execute("DELETE FROM t")
        self._database.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", values)
        self._database.execute("COMMIT")

    def run(self, name: str, *, looks: bool = True) -> NodeResult:
        """One run of one node, an hour later; raises what goes wrong."""
        self._runs += 1
        self.clock = Clock(self.clock.now + timedelta(hours=1))
        self.config = configured(self.platform, self.projects[looks])
        node = next(n for n in self.config.config.nodes if n.name == name)
        return run_node(self, node, f"run{self._runs}")

    def table(self, name: str) -> Frame:
        """A table without what the oracle does not know: the row hash and the numbers of batches."""
        found = stored(self.platform, self.folder, name)
        return oracle.drop(found, ["_row_hash", "_batch_id"])

    def close(self) -> None:
        self._database.close()


def run_node(world: World, node: NodeConfig, run_id: str) -> NodeResult:
    """The one place that knows how a node is run."""
    job = Job(world.config, node, world.clock)
    with world.platform.workspace(node.name) as engine:
        return Runner(world.store, run_id).run(job, engine)


@contextmanager
def world(platform: Platform, past: Past, *, recorded: bool = False) -> Iterator[World]:
    """A world that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="strandline-past-"))
    made = World(folder, platform, past, recorded=recorded)
    try:
        yield made
    finally:
        made.close()
        forget(folder)


# --- what is expected --------------------------------------------------------------------------------------


@dataclass
class Expected:
    """The same past in the oracle."""

    past: Past
    source: Frame = field(init=False)
    bronze: Frame | None = None
    snapshots: list[Frame] = field(default_factory=list)  # of the full reads into Bronze
    mark: Any = None  # of Bronze
    silver: State = field(default_factory=State)
    taken: int = 0  # how many rows of Bronze the last run of Silver saw

    def change(self, rows: Sequence[Row]) -> None:
        self.source = Frame(self.past.columns, list(rows))

    @property
    def rules(self) -> Rules:
        limits = dict(self.past.limits)
        only_x = limits.pop("target_filter", None) is not None
        scope = (lambda row: row["p"] == "x") if only_x else (lambda _: True)
        sequence = "m" if self.past.sequence else None
        return Rules(
            self.past.keys,
            self.past.shape.mode,
            self.past.deletes,
            sequence=sequence,
            scope=scope,
            **limits,
        )

    def run(self, name: str, now: datetime, *, looks: bool = True) -> Ran | Refused:
        return (
            self._bronze(now)
            if name == BRONZE
            else self._silver(now, self.past.shape.detect if looks else "none")
        )

    def _bronze(self, now: datetime) -> Ran:
        if self.past.shape.stateful:
            low = self._low(self.mark)
            read = histories.read_since(self.source, "m", low)
            outcome = histories.append_new(self.bronze, self._stamped(read, now), "m", low)
            self.mark = histories.next_mark(self.mark, read, "m")
        else:
            self.snapshots.append(self._stamped(self.source, now))
            outcome = oracle.append(self.bronze, self.snapshots[-1])
        created, self.bronze = self.bronze is None, outcome.after
        return Ran(State(outcome.after), histories.Counts(inserted=outcome.inserted), created)

    def _silver(self, now: datetime, detect: Detect) -> Ran | Refused:
        slice_ = self._slice(detect)
        result = histories.step(
            self.silver, slice_, self._evidence(slice_, detect), self.rules, now
        )
        if isinstance(result, Ran):
            direct = self.past.shape.stateful and not self.past.shape.bronze
            mark = histories.next_mark(self.silver.mark, slice_, "m") if direct else None
            snapshot = self._snapshot(now) if detect == "snapshot_diff" else None
            self.silver = replace(result.state, mark=mark, snapshot=snapshot)
            self.taken = len(self.bronze.rows) if self.bronze else 0
        return result

    def _slice(self, detect: Detect) -> Frame:
        """What Silver reads; of a table of snapshots the newest only, where deletes are found by them."""
        if not self.past.shape.bronze:
            source = self.source
            return (
                histories.read_since(source, "m", self._low(self.silver.mark))
                if self.past.shape.stateful
                else source
            )
        assert self.bronze is not None
        read = self.snapshots[-1] if detect == "snapshot_diff" else self.bronze
        return oracle.deduplicate(read, self.past.keys, [("_extracted_at", "desc")])

    def _evidence(self, slice_: Frame, detect: Detect) -> Evidence:
        keys, last = self.past.keys, self.silver
        match detect:
            case "snapshot_diff":
                return histories.by_snapshot(slice_, keys, self._snapshot(None), last.snapshot)
            case "sql_compare":
                return histories.by_source(self.source.rows, keys)
            case "watermark_window":
                low, first = self._low(last.mark), last.mark is None
                return histories.by_window(
                    slice_, keys, "m", low, self.past.partition_by, first=first
                )
        came = Frame(self.bronze.columns, self.bronze.rows[self.taken :]) if self.bronze else slice_
        return histories.by_arrival(came, keys)

    def _snapshot(self, now: datetime | None) -> Any:
        """The name of the newest snapshot: the number of the Bronze batch, or this very run."""
        return len(self.snapshots) if self.past.shape.bronze else ("run", now)

    def _low(self, mark: Any) -> Any:
        lag = self.past.lag
        if mark is None and self.past.initial:
            return self.past.marked(INITIAL)
        if lag is None or self.past.mark == "bigint":
            return histories.lower_bound(mark, lag)
        return histories.lower_bound(mark, timedelta(days=lag))

    @staticmethod
    def _stamped(read: Frame, now: datetime) -> Frame:
        return oracle.with_metadata(read, {"_extracted_at": now})
