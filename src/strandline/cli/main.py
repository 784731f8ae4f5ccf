"""The command `strandline`: an interrupt is heard from the first moment on, then the commands are imported."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from strandline.cli.interrupt import Interrupt


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line; ends with SystemExit."""
    given = list(sys.argv[1:] if args is None else args)
    with Interrupt(given):
        _prepare_streams()
        _quiet_libraries()
        from strandline.cli.app import answer
        from strandline.cli.talk import flushed

        code = answer(given)
        code = code if flushed() else code or 1
    sys.exit(code)


def _prepare_streams() -> None:
    """Speak in any encoding, and even to nobody."""
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 – closed by the caller (`>&-`)
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a ✓ on a terminal that knows ASCII only


def _quiet_libraries() -> None:
    """Warnings of libraries are for us, not for users, unless asked for with -W or PYTHONWARNINGS."""
    if not sys.warnoptions:
        import warnings

        warnings.simplefilter("ignore")


if __name__ == "__main__":
    main()
