"""`doctor`: is this machine fit for this project?"""

from __future__ import annotations

from strandline.cli.options import HERE, Debug, Engine, Json, ProjectDir, Quiet
from strandline.cli.talk import Talk


def doctor(
    project_dir: ProjectDir = HERE,
    engine: Engine = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Check Java, jars, versions, memory, connections and control tables; say how to mend what is wrong."""
    with Talk(json, quiet, debug).guard() as talk:
        from dataclasses import asdict

        from strandline.engine.doctor import examine

        project = talk.load(project_dir, engine)
        checks = []
        for check in examine(project.config, project.engine_name):
            checks.append(check)
            sign = talk.paint("✓", "green") if check.ok else talk.paint("✗", "red")
            talk.answer(f"{sign} {check.name:<22} {check.found}", failure=not check.ok)
            if check.fix and not check.ok:
                talk.answer(f"    → {check.fix}", failure=True)
        well = all(c.ok for c in checks)
        talk.data({"ok": well, "checks": [asdict(c) for c in checks]})
        return 0 if well else 1
