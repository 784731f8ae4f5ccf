"""Where a node's failure becomes its result: it must not stop the others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from strandline.config.load import Project
from strandline.errors import StrandlineError, faults_told
from strandline.journal import log
from strandline.plan.lines import failed
from strandline.result import NodeResult


@contextmanager
def boundary(
    project: Project, name: str, errors: list[StrandlineError]
) -> Iterator[list[NodeResult]]:
    """Collects the result of a node; when something goes wrong inside, that is it, and the error is kept."""
    results: list[NodeResult] = []
    began = time.monotonic()
    try:
        with faults_told():
            yield results
    except StrandlineError as e:
        log.error("%s failed", name, exc_info=e)
        errors.append(e)
        results.append(
            replace(failed(project, name, errors[-1]), seconds=round(time.monotonic() - began, 3))
        )
