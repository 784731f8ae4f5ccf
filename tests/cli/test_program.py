"""strandline as a program: its start, pipes, terminals, Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.conftest import ENVIRONMENT, Call, add

from strandline import __version__
from strandline.cli.interrupt import what_next

HEAVY = (
    "pyspark",
    "duckdb",
    "deltalake",
    "pyarrow",
    "pandas",
    "sqlalchemy",
    "sqlglot",
    "jinja2",
    "rich",
)
NAP = """
  - name: gold_nap
    read: {connection: files, path: customers.csv}
    transform: {steps: [{operation: python, params: {function: slow.nap, engine: pandas}}]}
    write: {connection: gold, table: nap, mode: overwrite}
"""


@pytest.mark.parametrize(
    "args", [["--help"], ["--version"], ["run", "--help"], ["demo", "--help"], []]
)
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    code = (
        "import sys\nfrom strandline.cli.main import main\n"
        f"try: main({args!r})\nexcept SystemExit as e: assert not e.code\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT
    )
    assert done.stderr.strip() == "[]"
    assert "strandline" in done.stdout


def test_the_models_that_python_code_names_are_offered() -> None:
    import strandline
    import strandline.config
    from strandline.config.deletes import DeleteDetectionConfig, DeleteDetectionMode
    from strandline.config.writes import WriteMetadataConfig

    for model in (DeleteDetectionConfig, DeleteDetectionMode, WriteMetadataConfig):
        assert (
            getattr(strandline, model.__name__)
            is getattr(strandline.config, model.__name__)
            is model
        )
    for module in (strandline, strandline.config):
        with pytest.raises(AttributeError):
            _ = module.NoSuchName


def test_the_first_help_does_not_even_import_pydantic() -> None:
    code = "import sys, atexit\natexit.register(lambda: print('pydantic' in sys.modules, file=sys.stderr))\n"
    code += "from strandline.cli.main import main\nmain(['--help'])"  # further ones do: typer checks values with it
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT
    )
    assert done.stderr.strip() == "False"


def test_version(program: Call) -> None:
    assert program("--version").out == f"strandline {__version__}\n"


def test_without_a_terminal_there_are_no_colours(program: Call, shop: Path) -> None:
    for command in ("plan", "run", "status", "history", "ls", "validate"):
        answer = program(command, "--project-dir", "shop")
        assert answer.code == 0
        assert "\x1b" not in answer.out + answer.err
        assert "\r" not in answer.out


def test_json_is_clean_at_the_level_of_the_file(program: Call, shop: Path) -> None:
    (shop / "loud.py").write_text(
        "import os\ndef step(frame):\n    os.write(1, b'straight to stdout')\n    return frame\n"
    )
    add(shop, NAP.replace("slow.nap", "loud.step"))
    answer = program("run", "--project-dir", "shop", "--json", "--select", "gold_nap")
    assert json.loads(answer.out)["status"] == "success"
    assert "straight to stdout" in answer.err


def test_a_reader_that_leaves_is_not_an_error(program: Call, shop: Path) -> None:
    answer = program(shell="run --project-dir shop | true; echo ${PIPESTATUS[0]}")
    assert (answer.out, answer.err) == ("0\n", "")
    answer = program(shell="history --project-dir shop --json | head -1; echo ${PIPESTATUS[0]}")
    assert (answer.out, answer.err) == ("{\n0\n", "")
    answer = program(shell="ls --project-dir shop >&-; echo $?")
    assert (answer.out, answer.err) == ("0\n", "")


def test_a_terminal_that_knows_ascii_only(program: Call, shop: Path) -> None:
    answer = program("run", "--project-dir", "shop", PYTHONIOENCODING="ascii")
    assert answer.code == 0
    assert "? bronze_customers" in answer.out


def _on_a_terminal(args: list[str], cwd: Path, **environment: str) -> tuple[int, str]:
    """Run it on a terminal of 80 columns; returns the exit code and all it wrote there."""
    ours, theirs = pty.openpty()
    env = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "80", "LINES": "24", **environment}
    if "NO_COLOR" not in environment:
        env.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "strandline", *args], stdout=theirs, stderr=theirs, cwd=cwd, env=env
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        written += piece
    os.close(ours)
    return process.wait(timeout=60), written.decode()


def test_on_a_terminal_it_is_drawn_live_and_in_colour(shop: Path) -> None:
    code, written = _on_a_terminal(["run"], shop)
    assert code == 0
    assert "\x1b[32m✓" in written
    assert "running" in written
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")  # the cursor is back


@pytest.mark.long
def test_no_color_is_honoured(shop: Path) -> None:
    code, written = _on_a_terminal(["run"], shop, NO_COLOR="1")
    assert code == 0
    assert "✓ bronze_customers" in written
    assert not any(f"\x1b[{n}m" in written for n in (1, 2, 31, 32, 33, 36))


@pytest.mark.long
def test_80_columns_are_enough(shop: Path) -> None:
    long = "gold_" + "long_" * 12 + "name"
    add(
        shop,
        NAP.replace("gold_nap", long).replace(
            "transform: {steps: [{operation: python, params: {function: slow.nap, engine: pandas}}]}",
            "",
        ),
    )
    for command in ("run", "status", "history", "ls"):
        code, written = _on_a_terminal([command], shop, NO_COLOR="1", TERM="xterm")
        assert code == 0
        ended = [line.rsplit("\x1b", 1)[-1] for line in written.replace("\r", "\n").split("\n")]
        assert max(len(line) for line in ended) <= 80 + 3  # what is left of an escape sequence


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_ctrl_c_ends_at_once(shop: Path, options: tuple[str, ...]) -> None:
    started = shop / "started"
    (shop / "slow.py").write_text(
        "import pathlib, time\n"
        f"def nap(frame):\n    pathlib.Path({str(started)!r}).touch()\n    time.sleep(60)\n    return frame\n"
    )
    add(shop, NAP)
    process = subprocess.Popen(
        [sys.executable, "-m", "strandline", "run", "--select", "gold_nap", *options],
        cwd=shop, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    while not started.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("interrupted")
    assert "Traceback" not in err
    if options:
        assert json.loads(out)["error"]["code"] == "interrupted"


def test_ctrl_c_is_heard_while_the_commands_are_still_imported(shop: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "class Impatient:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Impatient())\n"
        "from strandline.cli.main import main\nmain(['run', '--json'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    assert done.returncode == 130
    assert json.loads(done.stdout)["error"]["code"] == "interrupted"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["run", "--json"], "the next run finds out"),
        (["retry"], "the next run finds out"),
        (["run", "--plan", "p"], "make a new one"),
        (
            ["undo", "--project-dir", "shop", "r1", "--json"],
            "before anything else runs: strandline undo r1",
        ),
        (["undo"], "strandline undo RUN"),
        (["approve", "r1"], "still held"),
        (["reject", "r1"], "still held"),
    ],
)
def test_an_interrupt_says_what_becomes_of_what_was_begun(given: list[str], told: str) -> None:
    assert told in (what_next(given) or "")


@pytest.mark.parametrize(
    "given", [[], ["--help"], ["status"], ["plan"], ["undo", "r1", "--dry-run"]]
)
def test_an_interrupt_of_what_writes_nothing_promises_nothing(given: list[str]) -> None:
    assert what_next(given) is None


@pytest.mark.parametrize("command", ["status --json", "status", "run", "--help"])
def test_a_stream_that_takes_no_more_is_told_at_the_end(
    program: Call, shop: Path, command: str
) -> None:
    where = "" if command == "--help" else " --project-dir shop"
    answer = program(shell=f"{command}{where} >/dev/full")
    assert answer.code == 1
    assert (
        answer.err
        == "error: standard output cannot be written, and is incomplete: No space left on device\n"
    )
    if command == "run":
        assert (
            len(program("history", "--project-dir", "shop", "--json").json["batches"]) == 5
        )  # it went on


def test_data_survives_a_stream_that_knows_ascii_only(program: Call, shop: Path) -> None:
    yaml = shop / "strandline.yaml"
    yaml.write_text(
        yaml.read_text(encoding="utf-8").replace("tags: [gold]", "tags: [Łódź]"), encoding="utf-8"
    )
    for encoding in ("ascii", "latin-1", "utf-8"):
        answer = program("ls", "--project-dir", "shop", "--json", PYTHONIOENCODING=encoding)
        assert answer.json["nodes"][-1]["tags"] == ["Łódź"]


def test_what_a_library_prints_by_itself_is_in_the_log(program: Call, shop: Path) -> None:
    (shop / "breaking.py").write_text(
        "import deltalake, pyarrow, sys\ndef step(frame):\n    print('a word of ours', file=sys.stderr)\n"
        "    deltalake.write_deltalake('a^b', pyarrow.table({'id': [1]}))\n"  # deltalake panics
    )
    add(shop, NAP.replace("slow.nap", "breaking.step"))
    command = ("run", "--project-dir", "shop", "--select", "gold_nap")
    for options in ((), ("--json",)):
        answer = program(*command, *options)
        assert answer.code == 1
        assert "panicked" not in answer.out + answer.err
        assert "a word of ours" in answer.err
    assert "panicked" in program(*command, "--debug").err
    newest = max((shop / ".strandline" / "logs").iterdir(), key=lambda file: file.stat().st_mtime)
    logs = [
        file.read_text() for file in (shop / ".strandline" / "logs").iterdir() if file != newest
    ]
    assert all("panicked" in text for text in logs)


def test_an_undo_is_drawn_while_it_works(program: Call, shop: Path) -> None:
    run = program("run", "--project-dir", "shop", "--json").json["run_id"]
    code, written = _on_a_terminal(["undo", run], shop, NO_COLOR="1")
    assert code == 0
    assert "of 5 done, 1 running" in written
    assert f"run {run} is undone" in written
