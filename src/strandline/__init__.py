"""strandline keeps lakehouse tables true to sources that never say what they deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "load"]

if TYPE_CHECKING:
    from strandline.project import load


def __getattr__(name: str) -> Any:
    """`strandline.load`, imported only when asked for: the command line must answer `--help` at once."""
    if name == "load":
        from strandline.project import load

        return load
    raise AttributeError(f"module 'strandline' has no attribute {name!r}")
