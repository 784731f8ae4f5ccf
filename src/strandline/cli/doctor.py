"""`doctor`: is this machine fit for this project?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.cli.options import HERE, Debug, Engine, Json, ProjectDir, Quiet
from strandline.cli.talk import Talk

if TYPE_CHECKING:
    from strandline.report.doctor import Check


def doctor(
    project_dir: ProjectDir = HERE,
    engine: Engine = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Check Java, jars, versions, memory, connections and control tables; say how to mend what is wrong.

    Where there is no project, only the machine is looked at.
    """
    with Talk(json, quiet, debug).guard() as talk:
        from dataclasses import asdict

        checks = []
        for check in _without_project(project_dir, engine) or _of_project(
            talk, project_dir, engine
        ):
            checks.append(check)
            sign = talk.paint("✓", "green") if check.ok else talk.paint("✗", "red")
            talk.answer(f"{sign} {check.name:<22} {check.found}", failure=not check.ok)
            if check.fix and not check.ok:
                talk.answer(f"    → {check.fix}", failure=True)
        well = all(c.ok for c in checks)
        talk.data({"ok": well, "checks": [asdict(c) for c in checks]})
        return 0 if well else 1


def _of_project(talk: Talk, project_dir: Path, engine: str | None) -> Iterator[Check]:
    from strandline.report.doctor import examine

    project = talk.load(project_dir, engine)
    yield from examine(project.config, project.engine_name)


def _without_project(project_dir: Path, engine: str | None) -> Iterator[Check] | None:
    """The checks where there is no project yet; None where there is one, or something that was meant as one."""
    if not project_dir.is_dir() or any(
        (project_dir / f"strandline.{end}").exists() for end in ("yaml", "yml")
    ):
        return None
    from strandline.report.doctor import Check, machine

    more = "" if engine else "; --engine spark looks at Java and jars too"
    found = f"there is none in {project_dir.absolute()}: only the machine was looked at{more}"
    return itertools.chain(machine(engine or "local"), [Check("project", True, found)])
