"""Who is told what happens while it happens."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.result import NodeResult


class Observer:
    """Told what happens while it happens; the command line draws it, the default keeps silent."""

    def started(self, name: str) -> None:
        """A node begins."""

    def finished(self, result: NodeResult) -> None:
        """A node has ended, one way or another; told again when it is taken back."""

    def engine_ready(self) -> None:
        """The engine has started."""

    def chosen(self, names: Sequence[str]) -> None:
        """These nodes will be worked on, where that was not known before."""
