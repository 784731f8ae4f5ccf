"""Errors with the file and line of the key that they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from strandline.config.load import Project
from strandline.config.resolve import secret_values
from strandline.errors import ConfigError, StrandlineError, UsageError
from strandline.result import NodeResult
from strandline.words import redact


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
