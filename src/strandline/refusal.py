"""What the operating system refuses: no room, no permission. Libraries tell of it in texts of their own."""

from __future__ import annotations

import errno
import os

from strandline.errors import SystemRefused

_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "let this user read and write there"),
}


def advice(error: BaseException) -> tuple[str, str] | None:
    """What was refused and what to do about it, as far as an error tells; None when it was something else."""
    text, number = str(error), getattr(error, "errno", None)
    for code, todo in _ADVICE.items():
        if code == number or any(
            t in text for t in (os.strerror(code), f"os error {code})", f"code: {code},")
        ):
            return os.strerror(code)[0].lower() + os.strerror(code)[1:], todo
    return None


def refused(
    where: str, error: BaseException, then: str = "nothing was written"
) -> SystemRefused | None:
    """The error of a table or a file that could not be read or written; None when nothing was refused."""
    found = advice(error)
    if found is None:
        return None
    reason, todo = found
    return SystemRefused(f"{where}: {reason}; {then}", hint=f"{todo}, and run again")
