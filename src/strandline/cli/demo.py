"""`demo`: a shop database, a day of changes, a load that stops half-way, and what the tables say about it."""

from __future__ import annotations

import shlex
import shutil
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.options import HERE, Debug, EngineName, Json, ProjectDir, Quiet
from strandline.cli.talk import Talk
from strandline.cli.text import clean, duration
from strandline.errors import UsageError
from strandline.words import plural

if TYPE_CHECKING:
    from strandline.cli.demo_data import SourceChanges
    from strandline.engine.base import Platform
    from strandline.project import StrandlineProject
    from strandline.result import RunResult

_MARKER = ".made-by-strandline-demo"
_OURS = ("strandline.yaml", "shop.db", "shop.whole", "lake")


def demo(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            help="Where the demo lives; .demo if not given.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        EngineName | None,
        typer.Option(
            "--engine",
            help="Run on this engine; on Spark if not given and if it is installed.",
            show_default=False,
        ),
    ] = None,
    project_dir: ProjectDir = HERE,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Run a made-up shop to Gold, change it, run again.

    The folder is made anew at each start, if a demo made it.
    """
    with Talk(json, quiet, debug).guard() as talk:
        from strandline.cli import demo_data
        from strandline.engine import spark_installed

        if engine is None and not spark_installed():
            talk.say(
                "Spark is not installed (pip install 'strandline[spark]'): the demo runs on the local engine."
            )
            engine = EngineName.LOCAL
        engine = engine or EngineName.SPARK
        home = project_dir / (folder or ".demo")
        _prepare(home, engine)
        rows = demo_data.create(home / "shop.db")
        talk.say(
            f"A shop in {home / 'shop.db'}: {', '.join(f'{n:,} {table}' for table, n in rows.items())}."
        )
        project = talk.load(home, engine)
        with closing(_started(talk, project)) as platform:
            first = _run(talk, project, platform, "First run")
            if first.exit_code:
                talk.data({"dir": str(home), "rows": rows, "runs": [first.as_dict()]})
                return first.exit_code
            changes = demo_data.change(home / "shop.db")
            talk.say(f"\n{_told(changes)}")
            second = _run(talk, project, platform, "Second run")
            told: dict[str, Any] = {}
            if not second.exit_code:
                told = _afterwards(talk, project, platform, first, second, changes)
            runs = [first, second, *told.pop("runs", [])]
        if not second.exit_code:
            talk.say(f"\nLook around: strandline status --project-dir {shlex.quote(str(home))}")
        talk.data(
            {
                "dir": str(home),
                "rows": rows,
                "source_changes": _counts(changes),
                "runs": [r.as_dict() for r in runs],
                **told,
            }
        )
        return second.exit_code


def _afterwards(
    talk: Talk,
    project: StrandlineProject,
    platform: Platform,
    first: RunResult,
    second: RunResult,
    changes: SourceChanges,
) -> dict[str, Any]:
    """What changed, what was deleted and why, and a mass delete that is held and rejected."""
    from strandline.cli.holds import tell

    looks = _looks(project, platform, first, second, changes)
    left = _left(project, platform, changes.deleted_ids)
    _show(talk, looks, changes, left)
    story = project.explain("silver_customers", {"customer_id": str(changes.deleted_ids[0])})
    if not talk.quiet:
        tell(talk, story)
    third, rejected = _accident(talk, project, platform)
    return {
        "runs": [third],
        "changed_rows": [asdict(look) for look in looks],
        "deleted_at_source_still_in_silver": left,
        "explained": story.as_dict(),
        "rejected": rejected.as_dict() if rejected else None,
    }


def _accident(
    talk: Talk, project: StrandlineProject, platform: Platform
) -> tuple[RunResult, RunResult | None]:
    """Half of the customers are missing, because a load stopped half-way; nothing is deleted."""
    from strandline.cli import demo_data

    with demo_data.accident(project.config.root / "shop.db") as lost:
        talk.say(f"\nA load of the shop stops half-way: {lost:,} customers are missing.")
        third = _run(talk, project, platform, "Third run", "+silver_customers")
    if third.exit_code != 3:
        return third, None
    talk.say(f"A person looks at it, and rejects: strandline reject {third.run_id}")
    rejected = project.reject(third.run_id)
    for node in rejected.nodes:
        talk.say(f"  {node.name}: {node.warnings[0]}; no customer was deleted")
    return third, rejected


# --- the folder and the runs ---------------------------------------------------------------------------------


def _prepare(home: Path, engine: EngineName) -> None:
    """An empty demo in its folder. Only what a demo made is removed, and only from a folder that a demo made."""
    from importlib.resources import files

    if (
        home.exists()
        and not (home / _MARKER).is_file()
        and (not home.is_dir() or any(home.iterdir()))
    ):
        raise UsageError(
            f"{home} was not made by `strandline demo`", hint="choose an empty folder with --dir"
        )
    home.mkdir(parents=True, exist_ok=True)
    (home / _MARKER).touch()
    for name in _OURS:
        old = home / name
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink(missing_ok=True)
    text = (files("strandline.cli") / "templates" / "demo.yaml").read_text(encoding="utf-8")
    text = text.replace("engine: spark ", f"engine: {engine} ").replace(
        "--project-dir .", f"--project-dir {home}"
    )
    (home / "strandline.yaml").write_text(text, encoding="utf-8")


def _started(talk: Talk, project: StrandlineProject) -> Platform:
    """One engine for both runs."""
    from strandline.cli.progress import Progress
    from strandline.cli.runs import starting
    from strandline.engine import connect

    with Progress(talk, [], starting=starting(project)):
        return connect(project.engine_name, project.config)


def _run(
    talk: Talk,
    project: StrandlineProject,
    platform: Platform,
    title: str,
    select: str | None = None,
) -> RunResult:
    from strandline.cli.progress import Progress, summary

    talk.say(f"\n{talk.paint(title, 'bold')}")
    began = time.monotonic()
    with Progress(talk, project.graph.select([select] if select else [])) as progress:
        result = project.run(select, observer=progress, platform=platform)
    nodes, rows = summary(result.nodes)
    talk.say(f"{nodes} in {duration(time.monotonic() - began)}")
    talk.say(f"rows: {rows}")
    return result


# --- what the tables say -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """One row of a table as it was after the first run and after the second."""

    table: str
    key: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def _looks(
    project: StrandlineProject,
    platform: Platform,
    first: RunResult,
    second: RunResult,
    changes: SourceChanges,
) -> list[Look]:
    """A customer who moved, the revenue of one whose order was corrected, and of the country somebody moved to."""
    with platform.workspace("look") as engine:
        view = _View(project, engine, first, second)
        moved = view.look("silver_customers", "customer_id", changes.updated_ids[0])
        bought = view.look("gold_customer_revenue", "customer_id", changes.order_customers[0])
        country = (moved.after or {}).get("country")
        return [
            moved,
            bought,
            *([view.look("gold_country_revenue", "country", country)] if country else []),
        ]


class _View:
    """Rows of the demo's tables, as they were after each run."""

    def __init__(
        self, project: StrandlineProject, engine: Any, first: RunResult, second: RunResult
    ) -> None:
        self.project, self.engine = project, engine
        self.before = {n.name: n.version for n in first.nodes}
        self.after = {
            n.name: n.version if n.version is not None else self.before[n.name]
            for n in second.nodes
        }

    def look(self, node: str, key: str, value: Any) -> Look:
        write = next(n.write for n in self.project.config.config.nodes if n.name == node)
        before, after = (
            self._row(write, versions[node], key, value) for versions in (self.before, self.after)
        )
        return Look(f"{write.connection}.{write.table}", {key: value}, before, after)

    def _row(self, write: Any, version: int | None, key: str, value: Any) -> dict[str, Any] | None:
        from strandline.engine.base import LakeSource
        from strandline.lake import describe
        from strandline.plan.inputs import table_of
        from strandline.sql.expr import col, eq, lit, rows_of

        table = table_of(self.project.config, write.connection, write.table)
        state = describe(table)
        if version is None or state is None:
            return None
        rows = self.engine.scan(LakeSource(table, version, state.system)).relation
        found = self.engine.fetch(rows_of(rows).where(eq(col(key), lit(value))))
        return dict(zip(rows.schema.names, found[0], strict=True)) if found else None


def _left(project: StrandlineProject, platform: Platform, deleted: tuple[int, ...]) -> int:
    """How many of the customers that the shop deleted are still alive in Silver."""
    from strandline.engine.base import LakeSource
    from strandline.lake import describe
    from strandline.plan.inputs import table_of
    from strandline.sql.expr import any_of, col, count_where, eq, lit, named, select, table
    from strandline.strategy.changes import living

    silver = table_of(project.config, "silver", "customers")
    with platform.workspace("look") as engine:
        state = describe(silver)
        if state is None:
            return 0
        rows = engine.scan(LakeSource(silver, state.version, where=living(state.roles))).relation
        gone = any_of(eq(col("customer_id"), lit(n)) for n in deleted)
        return int(
            engine.fetch(select(named(count_where(gone), "n")).from_(table(rows.name)))[0][0]
        )


# --- in words --------------------------------------------------------------------------------------------------


def _counts(changes: SourceChanges) -> dict[str, int]:
    return {
        "customers_updated": changes.customers_updated,
        "customers_inserted": changes.customers_inserted,
        "customers_deleted": changes.customers_deleted,
        "orders_updated": changes.orders_updated,
    }


def _told(c: SourceChanges) -> str:
    return (
        f"A day passes in the shop: {plural(c.customers_updated, 'customer')} changed, {c.customers_inserted:,} added, "
        f"{c.customers_deleted:,} deleted;\n{plural(c.orders_updated, 'order')} corrected."
    )


def _show(talk: Talk, looks: list[Look], changes: SourceChanges, left: int | None) -> None:
    if looks:
        talk.say(f"\n{talk.paint('What changed, for example', 'bold')}")
    for look in looks:
        key = ", ".join(f"{k} = {v}" for k, v in look.key.items())
        talk.say(f"  {look.table}, {key}")
        for line in _differences(look):
            talk.say(f"    {line}")
    if left is not None:
        talk.say(f"\n{talk.paint('What the source deleted', 'bold')}")
        talk.say(
            f"  {plural(changes.customers_deleted, 'customer')} deleted in the shop, "
            f"{left:,} of them still alive in silver.customers. Why, for one of them:"
        )


def _differences(look: Look) -> list[str]:
    if look.before is None or look.after is None:
        return ["is new" if look.before is None else "is gone"]
    columns = [
        k for k in look.after if not k.startswith("_")
    ]  # when and whence a row came is not what changed
    changed = {
        k: (look.before.get(k), look.after[k])
        for k in columns
        if look.before.get(k) != look.after[k]
    }
    wide = max(map(len, changed), default=0)
    return [
        f"{name.ljust(wide)}  {_value(old)} → {_value(new)}" for name, (old, new) in changed.items()
    ]


def _value(value: Any) -> str:
    from decimal import Decimal

    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return f"{value:,}"
    return "NULL" if value is None else clean(str(value))
