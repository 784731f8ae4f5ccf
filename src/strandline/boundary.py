"""Where a node's failure becomes its result: it must not stop the others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from strandline.config.load import Project
from strandline.config.resolve import redact, secret_values
from strandline.errors import ConfigError, StrandlineError, UsageError, internal, panics_told
from strandline.journal import log
from strandline.result import NodeResult


@contextmanager
def boundary(
    project: Project, name: str, errors: list[StrandlineError]
) -> Iterator[list[NodeResult]]:
    """Collects the result of a node; when something goes wrong inside, that is it, and the error is kept."""
    results: list[NodeResult] = []
    began = time.monotonic()
    try:
        with panics_told():
            yield results
    except Exception as e:  # noqa: BLE001 – even a fault of ours; its trace goes to the log
        log.error("%s failed", name, exc_info=e)
        errors.append(e if isinstance(e, StrandlineError) else internal(e))
        results.append(
            replace(failed(project, name, errors[-1]), seconds=round(time.monotonic() - began, 3))
        )


@contextmanager
def placed(project: Project, name: str) -> Iterator[None]:
    """Errors raised inside carry the line of the node in the project's files."""
    try:
        yield
    except UsageError:  # it is about the command line
        raise
    except StrandlineError as e:
        place(project, name, e)
        raise


def place(project: Project, name: str, error: StrandlineError) -> StrandlineError:
    """The error with the file and line of the key that it belongs to, else of its node."""
    if error.file is None:
        error.file, error.line = project.place(name, error.loc)
        key = error.problems[0].key if isinstance(error, ConfigError) else None
        if key and key.startswith("connections."):
            error.file, error.line = project.positions.place(tuple(key.split(".")))
    return error


def failed(project: Project, name: str, error: StrandlineError) -> NodeResult:
    """The result of a node that failed."""
    place(project, name, error)
    secrets = secret_values(project.config)
    facts = {k: redact(v, secrets) if isinstance(v, str) else v for k, v in error.as_dict().items()}
    return NodeResult(name, "fenced" if error.exit_code == 4 else "failed", error=facts)
