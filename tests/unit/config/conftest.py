"""A small right project, and a way to say what is wrong with a changed one."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.config.load import load_project
from strandline.errors import ConfigError, Problem

GOOD = """\
project: shop
engine: pandas
connections:
  erp: {type: sql, url: "sqlite:///shop.db"}
  files: {type: files, path: landing}
  bronze: {type: lake, path: lake/bronze}
  silver: {type: lake, path: lake/silver}
nodes:
  - name: bronze_customers
    read: {connection: erp, table: customers}
    write: {connection: bronze, table: customers, mode: append, add_metadata: true}
  - name: silver_customers
    read: {connection: bronze, table: customers}
    transformation_sql: SELECT customer_id, name FROM source
    write: {connection: silver, table: customers, mode: upsert, keys: [customer_id]}
"""

Write = Callable[..., Path]
Problems = Callable[..., list[Problem]]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write files into the project's folder, and stand in it."""
    monkeypatch.chdir(tmp_path)

    def write_files(main: str | bytes = GOOD, **files: str) -> Path:
        for name, text in {"strandline": main, **files}.items():
            path = tmp_path / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
        return tmp_path

    return write_files


@pytest.fixture
def problems(write: Write) -> Problems:
    """The problems of a project; none when it loads."""

    def found(main: str | bytes = GOOD, **files: str) -> list[Problem]:
        try:
            load_project(write(main, **files))
        except ConfigError as error:
            return error.problems
        return []

    return found


def changed(old: str, new: str) -> str:
    """The right project with one text changed."""
    assert GOOD.count(old) == 1, f"{old!r} stands {GOOD.count(old)} times"
    return GOOD.replace(old, new)
