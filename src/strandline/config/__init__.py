"""The project file: read, rendered, checked. `load.load_project` is the way in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["DeleteDetectionConfig", "DeleteDetectionMode", "WriteMetadataConfig"]

if TYPE_CHECKING:
    from strandline.config.deletes import DeleteDetectionConfig, DeleteDetectionMode
    from strandline.config.writes import WriteMetadataConfig


def __getattr__(name: str) -> Any:
    """The models that Python code names, imported when they are asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'strandline.config' has no attribute {name!r}")
    from strandline.config import deletes, writes

    return getattr(writes if name == "WriteMetadataConfig" else deletes, name)
