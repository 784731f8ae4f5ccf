"""Iceberg catalogs, opened once per process; their errors are told without their secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

import requests
import sqlalchemy
from pyiceberg.catalog import Catalog as IceCatalog
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
)
from pyiceberg.table import Table as IceTable

from strandline.errors import TableError
from strandline.types import Catalog, Table

_SQLITE = "sqlite:///"
_SECRET = re.compile(r"password|secret|token|credential|key|uri$", re.IGNORECASE)
_OPEN: dict[tuple[str, ...], IceCatalog] = {}
_LOCK = Lock()


def opened(table: Table) -> IceTable | None:
    """The table as its catalog has it now; None when the catalog does not know it."""
    catalog = _catalog(table)
    if catalog is None:
        return None
    with told(table), suppress(NoSuchTableError, NoSuchNamespaceError):
        return catalog.load_table(table.name)
    return None


def catalog_for_writing(table: Table) -> IceCatalog:
    """The catalog of a table that is to be made; its folder and the table's namespace are made too."""
    assert table.catalog is not None
    if file := _sqlite_file(table.catalog.properties()):
        file.parent.mkdir(parents=True, exist_ok=True)
    found = _catalog(table, new=True)
    assert found is not None
    namespace = table.name[:-1]
    with told(table):
        if not found.namespace_exists(namespace):
            # by another runner, at the same moment
            with suppress(NamespaceAlreadyExistsError, sqlalchemy.exc.IntegrityError):
                found.create_namespace(namespace)
    return found


def _catalog(table: Table, *, new: bool = False) -> IceCatalog | None:
    """The catalog of a table; None for a SQLite file that is not there: to look at a table must not make one."""
    catalog = table.catalog
    assert catalog is not None, "an Iceberg table has a catalog"
    properties = dict(catalog.properties())
    file = _sqlite_file(properties)
    if file is not None and not file.exists() and not new:
        return None
    inode = str(file.stat().st_ino) if file is not None and file.exists() else ""
    key = (catalog.name, catalog.place, inode, *(f"{k}={v}" for k, v in sorted(properties.items())))
    with _LOCK, told(table):
        if key not in _OPEN:
            try:
                _OPEN[key] = load_catalog(catalog.name, **properties)
            except (
                sqlalchemy.exc.OperationalError
            ):  # another runner made the tables of the catalog meanwhile
                _OPEN[key] = load_catalog(catalog.name, **properties)
        return _OPEN[key]


def _sqlite_file(properties: Mapping[str, str]) -> Path | None:
    uri = properties.get("uri", "")
    return Path(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) else None


@contextmanager
def told(table: Table) -> Iterator[None]:
    """Tell what a catalog answers when it cannot be asked, without its secrets."""
    try:
        yield
    except (
        sqlalchemy.exc.SQLAlchemyError,
        requests.RequestException,
        RESTError,
        ConnectionError,
    ) as e:
        assert table.catalog is not None
        text = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        raise TableError(
            f"{table.label}: its catalog `{table.catalog.name}` ({table.catalog.place}) cannot be asked: "
            f"{shown(text, table.catalog)}",
            hint="check that the catalog runs, and the catalog: of the connection",
        ) from None


def shown(text: str, catalog: Catalog) -> str:
    """A text without the values of properties that may be secret."""
    for key, value in catalog.properties().items():
        if value and _SECRET.search(key):
            text = text.replace(value, "***")
    return text
