"""strandline keeps lakehouse tables true to sources that never say what they deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "DeleteDetectionConfig",
    "DeleteDetectionMode",
    "WriteMetadataConfig",
    "__version__",
    "load",
]

if TYPE_CHECKING:
    from strandline.config import DeleteDetectionConfig, DeleteDetectionMode, WriteMetadataConfig
    from strandline.project import load


def __getattr__(name: str) -> Any:
    """What the package offers, imported only when asked for: the command line must answer `--help` at once."""
    if name not in __all__:
        raise AttributeError(f"module 'strandline' has no attribute {name!r}")
    if name == "load":
        from strandline.project import load

        return load
    from strandline import config

    return getattr(config, name)
