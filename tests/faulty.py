"""A source that goes wrong: a table of customers in a database, what faults make of it, and pipelines that read it."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import sqlalchemy

from strandline.engine.base import Platform
from strandline.result import NodeResult, RunResult
from strandline.testing.frames import read_table
from strandline.testing.projects import make_project

Mode = Literal["snapshot_diff", "sql_compare", "sql_compare, keys only", "watermark_window"]
Limits = Literal["strict", "defaults"]
MODES: tuple[Mode, ...] = (
    "snapshot_diff",
    "sql_compare",
    "sql_compare, keys only",
    "watermark_window",
)
LIMITS: dict[Limits, dict[str, Any]] = {
    "strict": {"max_delete_percent": 5, "on_threshold_breach": "hold", "confirm_runs": 2},
    "defaults": {},
}


# --- the table and its past --------------------------------------------------------------------------------

COLUMNS = {"id": "BIGINT", "name": "TEXT", "city": "TEXT", "updated_at": "TIMESTAMP"}
Rows = dict[int, tuple[Any, ...]]  # by id: name, city, day of the last update


def _with(rows: Rows, changed: Mapping[int, tuple[str, int]]) -> Rows:
    return {**rows, **{i: (name, f"c{i % 3}", day) for i, (name, day) in changed.items()}}


FIRST = _with({}, {i: (f"n{i}", i) for i in range(1, 41)})
SECOND = _with(
    FIRST, {30: ("new", 44), 31: ("new", 44), **{i: (f"n{i}", i) for i in range(41, 45)}}
)
TRUE = _with(SECOND, {32: ("new", 45), 45: ("n45", 45)})  # while the fault lasts
GONE = (7, 26)  # really deleted before the fault is mended
KNOWABLE: dict[Mode, tuple[int, ...]] = {
    mode: (26,) if mode == "watermark_window" else GONE for mode in MODES
}
MENDED = {i: row for i, row in _with(TRUE, {33: ("new", 46)}).items() if i not in GONE}


@dataclass(frozen=True)
class Shown:
    """What a reader finds in the table."""

    columns: Mapping[str, str]
    rows: list[tuple[Any, ...]]


def shown(rows: Rows) -> Shown:
    start = datetime(2024, 6, 1)
    return Shown(
        COLUMNS,
        [(i, n, c, str(start + timedelta(days=day))) for i, (n, c, day) in sorted(rows.items())],
    )


# --- what can go wrong -------------------------------------------------------------------------------------

_STALLS = "pg_sleep(5) IS NOT NULL"
_DIES = "pg_terminate_backend(pg_backend_pid())"


@dataclass(frozen=True)
class Fault:
    """What becomes of the table; on PostgreSQL what ends a statement after its first 60 000 rows."""

    title: str
    table: Callable[[Shown], Shown | None] = lambda true: true
    true: Rows | None = None  # what is true meanwhile, where it differs
    ends: str | None = None
    refused: bool = False


def _column(change: Mapping[str, str | None]) -> Callable[[Shown], Shown]:
    """Rename columns, or drop them."""

    def changed(true: Shown) -> Shown:
        kept = [(i, change.get(name, name)) for i, name in enumerate(true.columns)]
        types = list(true.columns.values())
        return Shown(
            {n: types[i] for i, n in kept if n},
            [tuple(r[i] for i, n in kept if n) for r in true.rows],
        )

    return changed


def _texts(true: Shown) -> Shown:
    return Shown({**true.columns, "id": "TEXT"}, [(f"{r[0]:03}", *r[1:]) for r in true.rows])


BACK = _with(
    TRUE, dict.fromkeys(range(20, 24), ("back", 2))
)  # changed, and stamped by a clock that is weeks behind
FAULTS = {
    "empty": Fault("empty table", lambda true: replace(true, rows=[])),
    "reloading": Fault(
        "in the middle of a reload: the first third is there",
        lambda t: replace(t, rows=t.rows[:15]),
    ),
    "half": Fault("every second row gone", lambda true: replace(true, rows=true.rows[1::2])),
    "dropped": Fault("a column dropped", _column({"city": None})),
    "replaced": Fault("a column replaced by another", _column({"city": "town"})),
    "keyless": Fault("key column missing", _column({"id": "customer_no"})),
    "texts": Fault("key type changed: 7 is now '007'", _texts),
    "timeout": Fault("statement timed out in the middle of reading", ends=_STALLS),
    "killed": Fault("connection lost in the middle of reading", ends=_DIES),
    "refused": Fault("connection refused", refused=True),
    "replica": Fault("replica that is behind", lambda _: shown(FIRST)),
    "twice": Fault(
        "a page delivered twice", lambda t: replace(t, rows=[*t.rows, *t.rows[9:14], *t.rows[-5:]])
    ),
    "clock": Fault("clock going back: changed rows get old watermarks", true=BACK),
    "renamed": Fault("table renamed", lambda _: None),
}


# --- databases ---------------------------------------------------------------------------------------------


class Database:
    """Holds the table, in SQLite or PostgreSQL; strandline reads it as a user of its own."""

    def __init__(self, url: str) -> None:
        self._engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
        self._postgres = self._engine.dialect.name == "postgresql"
        self._do(["CREATE ROLE reader LOGIN PASSWORD 'reads'"] if self._postgres else [])

    def _do(self, statements: list[str], rows: list[dict[str, Any]] | None = None) -> None:
        with self._engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
            if rows:
                names = list(rows[0])
                values = ", ".join(f":{n}" for n in names)
                connection.execute(
                    sqlalchemy.text(
                        f"INSERT INTO customers ({', '.join(names)}) VALUES ({values})"
                    ),
                    rows,
                )

    def show(self, table: Shown | None) -> None:
        """From now on this is what a reader finds; None: the table has another name."""
        if table is None:
            return self._do(["ALTER TABLE customers RENAME TO clients"])
        columns = ", ".join(f"{n} {t}" for n, t in table.columns.items())
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        grants = (
            ["GRANT SELECT ON customers TO reader", "ALTER ROLE reader RESET ALL"]
            if self._postgres
            else []
        )
        return self._do([*self._drops(), f"CREATE TABLE customers ({columns})", *grants], rows)

    def end_reads(self, condition: str) -> None:
        """From now on a statement gets 60 000 rows and then ends badly (PostgreSQL)."""
        names = ", ".join(COLUMNS)
        many = "SELECT 1000 + g, 'x', 'x', timestamp '2024-07-20' FROM generate_series(1, 60000) g"
        last = f"SELECT 999, 'x', 'x', timestamp '2024-07-20' FROM generate_series(1, 1) g WHERE {condition}"
        view = f"SELECT {names} FROM customers_all UNION ALL {many} UNION ALL {last}"
        self._do(
            [
                "ALTER TABLE customers RENAME TO customers_all",
                f"CREATE VIEW customers ({names}) AS {view}",
                "GRANT SELECT ON customers TO reader",
                *(
                    ["ALTER ROLE reader SET statement_timeout = '400ms'"]
                    if condition == _STALLS
                    else []
                ),
            ]
        )

    def _drops(self) -> list[str]:
        if not self._postgres:
            return ["DROP TABLE IF EXISTS customers", "DROP TABLE IF EXISTS clients"]
        view = sqlalchemy.inspect(self._engine).get_view_names()
        return [
            f"DROP {'VIEW' if view else 'TABLE'} IF EXISTS customers",
            "DROP TABLE IF EXISTS customers_all, clients",
        ]

    def close(self) -> None:
        if self._postgres:
            self._do([*self._drops(), "DROP ROLE reader"])
        self._engine.dispose()


@contextmanager
def closed_port() -> Iterator[str]:
    """A URL where nobody answers: its port is bound and not listening."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"postgresql://127.0.0.1:{taken.getsockname()[1]}/shop"


# --- pipelines ---------------------------------------------------------------------------------------------


def nodes_of(mode: Mode, limits: Limits, *, keyed: bool = True) -> list[dict[str, Any]]:
    """Bronze and Silver, or for a window one node that reads the source itself; `keyed`: Bronze knows its keys."""
    live = {"source_connection": "live", "source_table": "customers"}
    compare = mode.startswith("sql_compare")
    detect = {
        "mode": mode.partition(",")[0],
        "keys": ["id"],
        **(live if compare else {}),
        **LIMITS[limits],
    }
    find = {"operation": "detect_deletes", "params": detect}
    source: dict[str, Any] = {"connection": "erp", "table": "customers"}
    silver = {"connection": "lake", "table": "silver", "mode": "upsert", "keys": ["id"]}
    silver |= {"sequence_by": "updated_at"} if limits == "strict" else {}
    since = {"mode": "stateful", "column": "updated_at"}
    if mode == "watermark_window":
        read = {**source, "incremental": {**since, "watermark_lag": "30d"}}
        return [{"name": "silver", "read": read, "transform": {"steps": [find]}, "write": silver}]
    read = {**source, "incremental": {**since, "watermark_lag": "2d"}} if compare else source
    newest = {"keys": ["id"], "order_by": "_extracted_at DESC, updated_at DESC"}
    steps = [{"operation": "deduplicate", "params": newest}, find]
    bronze = {
        "connection": "lake",
        "table": "bronze",
        "mode": "append",
        "add_metadata": {"extracted_at": True},
    }
    bronze |= {"keys": ["id"]} if keyed and compare else {}
    return [
        {"name": "bronze", "read": read, "write": bronze},
        {
            "name": "silver",
            "read": {"connection": "lake", "table": "bronze"},
            "transform": {"steps": steps},
            "write": silver,
        },
    ]


class World:
    """A pipeline over its databases: one that is loaded, and one that is asked for its keys."""

    def __init__(
        self,
        folder: Path,
        platform: Platform,
        mode: Mode,
        limits: Limits,
        server: str | None,
        **how: bool,
    ) -> None:
        self.folder, self.platform, self.nodes = folder, platform, nodes_of(mode, limits, **how)
        self.keys_only, self.server = mode.endswith("keys only"), server
        self._sqlite = Database(f"sqlite:///{folder / 'erp.db'}")
        self._other = Database(server or f"sqlite:///{folder / 'live.db'}")

    def mend(self, rows: Rows) -> None:
        for database in (self._sqlite, self._other):
            database.show(shown(rows))

    def hurt(self, fault: Fault) -> None:
        """Both see the fault, or only the one that is asked for keys."""
        true = shown(fault.true or TRUE)
        self._sqlite.show(
            true if self.keys_only or fault.ends or fault.refused else fault.table(true)
        )
        self._other.show(true if fault.ends or fault.refused else fault.table(true))
        if fault.ends:
            self._other.end_reads(fault.ends)

    def run(self, refused: str | None = None) -> RunResult:
        other = self._login() if self.server else {"url": "sqlite:///live.db"}
        if refused:
            other = {"url": refused, "user": "reader"}
        # a server holds the table for both: what is read from SQLite is what no fault touches
        healthy = {"url": "sqlite:///erp.db"}
        erp = healthy if self.keys_only or not (self.server or refused) else other
        connections = {"erp": {"type": "sql", **erp}, "live": {"type": "sql", **other}}
        return make_project(
            self.folder, self.nodes, connections=connections, retry={"wait": 0.01}
        ).run(platform=self.platform, threads=1)

    def _login(self) -> dict[str, str]:
        url = sqlalchemy.make_url(self.server or "")
        where = f"postgresql://{url.host}:{url.port}/{url.database}"
        return {"url": where, "user": "reader", "password": "${env:STRANDLINE_TEST_PASSWORD}"}

    def rows(self, *, deleted: bool = False) -> dict[Any, tuple[Any, ...]]:
        """Silver's living or deleted rows, by id."""
        rows = read_table(self.folder / "lake" / "silver").rows
        found = [tuple(r[c] for c in COLUMNS) for r in rows if r["_is_deleted"] is deleted]
        assert len({r[0] for r in found}) == len(found)
        return {r[0]: (*r[1:3], (r[3] - datetime(2024, 6, 1)).days) for r in found}

    def noted(self, run_id: str) -> Counter[str]:
        """How many rows a run noted, by verb."""
        changes = self.folder / "lake" / "_strandline" / "etl_changes"
        rows = read_table(changes).rows if changes.exists() else []
        return Counter(r["verb"] for r in rows if r["run_id"] == run_id and r["node"] == "silver")

    def held_keys(self) -> set[int]:
        """The keys whose newest note is a hold."""
        changes = self.folder / "lake" / "_strandline" / "etl_changes"
        rows = read_table(changes).rows if changes.exists() else []
        last = {
            json.loads(r["key"])["id"]: r["verb"] for r in sorted(rows, key=lambda r: r["batch"])
        }
        return {key for key, verb in last.items() if verb == "hold"}

    def close(self) -> None:
        self._sqlite.close()
        self._other.close()


# --- one cell ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """What becomes of a fault in one mode under one set of limits."""

    first: str  # the verdict of the first run that meets the fault
    second: str  # and of the next
    wrong: int = 0  # living rows of the true source that are deleted in the end
    taken: int = 0  # of two true changes, how many arrived meanwhile
    spoilt: int = 0  # living rows with a name or a city that had been right and is not now
    missed: int = 0  # of the rows that were stamped by a wrong clock, how many have not arrived
    held: int = 0  # really deleted rows that still wait for a person after two good runs; the others are deleted
    stuck: int = 0  # living rows that are still not as in the source
    stray: int = 0  # living rows that the source never had


def verdict(world: World, result: RunResult) -> str:
    """What a run made of its deletes, in a few words."""
    bad = [n for n in result.nodes if n.status == "failed"]
    if bad:
        assert bad[0].error is not None
        _well_told(bad[0].error)
        return f"failed: {bad[0].error['code']}"
    node: NodeResult = result.nodes[-1]
    parts = [f"{node.held} held"] if node.held else []
    if missing := world.noted(result.run_id)["missing"]:
        parts.append(f"{missing} missing once")
    if node.deleted:
        warned = any("Delete detection" in w for w in node.warnings)
        parts.append(f"{node.deleted} deleted{' with a warning' if warned else ''}")
    return ", ".join(parts) or "no deletes"


def _well_told(error: Mapping[str, Any]) -> None:
    text = f"{error['message']} {error['hint']}"
    assert not any(
        word in text
        for word in ("Traceback", "internal error", "py4j", "org.apache", "sqlalchemy", "\n")
    )
    assert (
        error["hint"] or "there are: " in error["message"]
    )  # nothing is near, and all that is there is told


def live_through(
    folder: Path,
    platform: Platform,
    fault: Fault,
    mode: Mode,
    limits: Limits,
    server: str | None,
    **how: bool,
) -> Cell:
    """A good run, two that meet the fault, two after it is mended; and the end must be right."""
    with closing(
        World(folder, platform, mode, limits, server if fault.ends else None, **how)
    ) as world:
        for rows in (FIRST, SECOND) if fault is FAULTS["replica"] else (SECOND,):
            world.mend(rows)
            assert verdict(world, world.run()) == "no deletes"
            assert world.rows() == rows
        world.hurt(fault)
        if fault.refused:
            with closed_port() as url:
                verdicts = [verdict(world, world.run(url)) for _ in range(2)]
        else:
            verdicts = [verdict(world, world.run()) for _ in range(2)]
        cell = _harm(world, fault, verdicts)
        world.mend(MENDED)
        last = [world.run() for _ in range(2)]
        assert all(n.status in ("success", "unchanged", "held") for r in last for n in r.nodes), (
            last
        )
        return _healed(world, cell, mode, last[-1].nodes[-1])


def _harm(world: World, fault: Fault, verdicts: list[str]) -> Cell:
    true, now = fault.true or TRUE, world.rows()
    if all(v.startswith("failed") for v in verdicts):
        assert now == SECOND  # nothing was written
    wrong = len(set(world.rows(deleted=True)) & set(true))
    taken = sum(i in now and now[i][0] == true[i][0] for i in (32, 45))
    spoilt = sum(_spoilt(SECOND[i], true[i], now[i]) for i in SECOND if i in now)
    missed = sum(row != TRUE.get(i) and i in now and now[i] != row for i, row in true.items())
    return Cell(verdicts[0], verdicts[1], wrong, taken, spoilt, missed)


def _spoilt(before: tuple[Any, ...], true: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    """Was a name or a city right, and is it no longer? A change that has not arrived yet spoils nothing."""
    return any(b == t != n for b, t, n in list(zip(before, true, now, strict=True))[:2])


def _healed(world: World, cell: Cell, mode: Mode, last: NodeResult) -> Cell:
    """The rows are those of the source; what is really gone is deleted, held, or outside of what the mode can see."""
    now, held = world.rows(), world.held_keys()
    assert set(MENDED) <= set(now)
    assert set(now) & set(GONE) == held | (set(GONE) - set(KNOWABLE[mode]))
    assert last.held == len(held)
    stuck = sum(now[i] != row for i, row in MENDED.items())
    return replace(cell, held=len(held), stuck=stuck, stray=len(set(now) - set(MENDED) - set(GONE)))
