"""How much is tried: `make test` sets a part of the examples, `make long` all, `make soak` many times as many."""

from __future__ import annotations

import os

EXAMPLES = float(os.environ.get("STRANDLINE_EXAMPLES", "1"))
SOAK = EXAMPLES > 1
