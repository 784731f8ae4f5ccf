"""A throw-away PostgreSQL on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

PASSWORD = "tide"


def _binaries(home: Path) -> Path:
    """The system's PostgreSQL, or the one pgserver carries (copied when we are root: another user must reach it)."""
    installed = [Path(p).resolve().parent for p in [shutil.which("initdb")] if p]
    installed += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in installed:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    spec = find_spec("pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("PostgreSQL not found: run make setup")
    bundled = Path(spec.submodule_search_locations[0])
    if os.geteuid() == 0:
        for part in (
            "pgserver",
            "pgserver.libs",
        ):  # the binaries look for their libraries beside the package
            if (bundled.parent / part).exists():
                shutil.copytree(bundled.parent / part, home / part, symlinks=True)
        bundled = home / "pgserver"
    return bundled / "pginstall" / "bin"


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _wait(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and server.poll() is None:
        # postmaster.pid gets the word "ready" when connections are accepted
        pid_file = log.parent / "data" / "postmaster.pid"
        if pid_file.exists() and "ready" in pid_file.read_text():
            return
        time.sleep(0.05)
    raise RuntimeError(f"PostgreSQL did not start on port {port}:\n{log.read_text()[-2000:]}")


@contextmanager
def postgres() -> Iterator[str]:
    """Yields the URL of a fresh server; stops it and removes its files afterwards."""
    home = Path(tempfile.mkdtemp(prefix="strandline-pg-"))
    # PostgreSQL refuses to run as root: become nobody, who owns the folder. No shell, no su, no new system user.
    who = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
    server = None
    try:
        bin_ = _binaries(home)
        (home / "password").write_text(PASSWORD)
        if who:
            home.chmod(0o755)
            shutil.chown(home, "nobody", "nogroup")
            shutil.chown(home / "password", "nobody", "nogroup")
        env = {"PATH": os.environ.get("PATH", ""), "HOME": str(home), "LC_ALL": "C", "TZ": "UTC"}
        run = {"cwd": home, "env": env, **who}
        subprocess.run(
            [
                bin_ / "initdb",
                "-D",
                home / "data",
                "-U",
                "strandline",
                "--pwfile",
                home / "password",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ],
            check=True,
            capture_output=True,
            **run,
        )
        port, log = _free_port(), home / "log"
        with log.open("wb") as out:
            server = subprocess.Popen(
                [
                    bin_ / "postgres",
                    "-D",
                    home / "data",
                    "-h",
                    "127.0.0.1",
                    "-p",
                    str(port),
                    "-k",
                    "",
                    "-c",
                    "fsync=off",
                    "-c",
                    "synchronous_commit=off",
                    "-c",
                    "full_page_writes=off",
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                **run,
            )
        _wait(server, port, log)
        yield f"postgresql+psycopg://strandline:{PASSWORD}@127.0.0.1:{port}/postgres"
    finally:
        if server is not None:
            server.send_signal(2)  # SIGINT: fast shutdown, open sessions are ended
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        shutil.rmtree(home, ignore_errors=True)
