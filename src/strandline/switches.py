"""What seed 003 calls resilience is on; an environment variable turns a part of it off."""

from __future__ import annotations

import os
from typing import Literal

Switch = Literal["CHECKPOINTS", "METRICS", "STAGING_CLEANUP"]


def enabled(switch: Switch) -> bool:
    """Not when STRANDLINE_ENABLE_… says 0."""
    return os.environ.get(f"STRANDLINE_ENABLE_{switch}", "1").strip().lower() not in (
        "0",
        "false",
        "off",
        "no",
    )
