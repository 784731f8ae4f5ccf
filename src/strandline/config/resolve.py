"""What a project's names stand for: secrets, places in a connection, database URLs. Secrets are resolved only here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard
from urllib.parse import quote

from strandline.config import urls
from strandline.config.catalogs import (
    catalog_place,
    pyiceberg_properties,
    spark_properties,
    warehouse,
)
from strandline.config.connections import FilesConnection, LakeConnection, SqlConnection
from strandline.config.model import ControlConfig, ProjectConfig
from strandline.errors import ConfigError, Problem
from strandline.types import Catalog, Table

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

    from strandline.config.catalogs import CatalogConfig
    from strandline.config.load import Project

ETL_SCHEMA = "STRANDLINE_ETL_SCHEMA"
"""The environment variable that says where the control tables are, for projects and hand-written jobs alike."""

REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
SECRET_FIELDS = ("url", "user", "password", "jdbc_url")
_REMOTE = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://|^dbfs:/")
_GLOB = re.compile(r"[*?\[\]{}]")
# What the Delta libraries cut off, unescape or take for a separator, so that they fail or write into another folder.
_CATALOG_ODD = re.compile(r"[./`]")
_ODD = re.compile(r"[\x00-\x1f\x7f#?^|\[\]\\]|%[0-9A-Fa-f]{2}")


class PlaceError(ValueError):
    """A table or path that is not below its connection's path."""


@dataclass(frozen=True)
class JdbcTarget:
    """What Spark needs to open a database. Its text never shows secrets."""

    url: str = field(repr=False)
    user: str | None = field(repr=False)
    password: str | None = field(repr=False)
    driver: str | None


# --- secrets ---------------------------------------------------------------------------------------------------------


def resolve_secrets(text: str, *, key: str) -> str:
    """The text with each `${env:NAME}` replaced; `key` is named when one is not set."""

    def value(match: re.Match[str]) -> str:
        return _environment(match[1], key)

    return REFERENCE.sub(value, text)


def bad_references(text: str) -> Iterator[tuple[str, str]]:
    """What is wrong with the `${…}` in a text, each with a hint. Shows the reference, never what surrounds it."""
    for match in re.finditer(r"\$\{([^{}]*)(\}?)", REFERENCE.sub("", text)):
        inside, closed = match[1], match[2]
        name = inside.partition(":")[2] or inside
        hint = (
            f"write ${{env:{name}}}" if re.fullmatch(r"[A-Za-z_]\w*", name) else "write ${env:NAME}"
        )
        if not closed:
            yield "a reference `${` is not closed", "write ${env:NAME}"
        elif ":" in inside and not inside.startswith("env:"):
            yield f"unknown kind of reference `${{{inside}}}`; only `env` is known", hint
        else:
            yield f"`${{{inside}}}` is not a reference", hint


def secret_values(config: ProjectConfig) -> list[str]:
    """The values of all references of a project that are set now: what `redact` must never let through."""
    texts = [str(value) for value in config.spark.config.values()]
    for connection in config.connections.values():
        texts += [str(getattr(connection, name, None) or "") for name in SECRET_FIELDS]
        if isinstance(connection, LakeConnection) and connection.catalog:
            texts += [text for _, text in connection.catalog.texts()]
    names = {match[1] for text in texts for match in REFERENCE.finditer(text)}
    return [os.environ[name] for name in sorted(names) if os.environ.get(name)]


def _environment(name: str, key: str) -> str:
    if name not in os.environ:
        hint = f"export {name}=… before the run"
        raise ConfigError(
            Problem(f"the environment variable `{name}` is not set", key=key, hint=hint)
        )
    return os.environ[name]


# --- places ----------------------------------------------------------------------------------------------------------


def base(connection: FilesConnection | LakeConnection, root: Path) -> str:
    """The absolute path (or URL) of a connection; relative paths start at the project's folder."""
    path = str(connection.path).removeprefix("file://")
    if _REMOTE.match(path):
        return path.rstrip("/")
    return os.path.normpath(root / Path(path).expanduser())


def remote(connection: FilesConnection | LakeConnection) -> str | None:
    """The path of a connection that is no folder of this machine, without a login; None when it is one."""
    return (
        re.sub("//[^/@]*:[^/@]*@", "//", str(connection.path))
        if _REMOTE.match(base(connection, Path()))
        else None
    )


def unseen(connections: Mapping[str, object], master: str) -> Iterator[tuple[str, str, str]]:
    """The connections whose folder the executors of a Spark master may not see, each with what to say and to do."""
    if master.startswith("local"):
        return
    for name, connection in connections.items():
        if in_folder(connection) and not connection.shared:
            message = (
                f"`{connection.path}` is a folder of this machine; "
                f"executors of Spark master {master} may not see it"
            )
            hint = "if every executor sees the folder under this path, add shared: true; else use a local master"
            yield name, message, hint


def in_folder(connection: object) -> TypeGuard[FilesConnection | LakeConnection]:
    """Tell whether what a connection names lies in a folder of its own; Iceberg tables lie where their catalog says."""
    return isinstance(connection, FilesConnection) or (
        isinstance(connection, LakeConnection) and connection.catalog is None
    )


def odd_folder(connection: LakeConnection, root: Path) -> tuple[str, str] | None:
    """Where the tables of a lake lie, and what of that name no table format can be trusted with; both can be shown."""
    start = base(connection, root)
    if _REMOTE.match(start):
        return None
    found = next((f for part in Path(start).parts[1:] if (f := _ODD.search(part))), None)
    return (_shown(start), _shown(found[0])) if found else None


def _shown(name: str) -> str:
    """A name with its control characters spelled out."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in name)


def place(
    connection: FilesConnection | LakeConnection, name: str, root: Path, *, pattern: bool = False
) -> str:
    """Where a table or path of a connection is. `pattern` allows `*.csv` and the folder itself."""
    _refuse_name(name, pattern=pattern)
    if isinstance(connection, LakeConnection) and connection.catalog is not None:
        if _CATALOG_ODD.search(name):
            raise PlaceError(
                "holds one of the characters . / `, which catalogs take for something else"
            )
        return f"iceberg:{catalog_place(connection, root)}/{connection.schema_}/{name}"
    start = base(connection, root)
    if _REMOTE.match(start):
        return f"{start}/{name.strip('/')}"
    target = os.path.normpath(Path(start, name))
    fixed = Path(start)
    for part in Path(name).parts:
        if _GLOB.search(part):
            break
        fixed /= part
    # Links are followed as far as they exist: a link inside the folder may point outside it.
    if not fixed.resolve().is_relative_to(Path(start).resolve()):
        raise PlaceError("follows a link that leaves its connection's path")
    return target


def locate(project: Project, connection_name: str, name: str) -> str:
    """The absolute location of a table (lake) or of a path or pattern (files) of a connection."""
    connection = project.config.connections.get(connection_name)
    if not isinstance(connection, FilesConnection | LakeConnection):
        raise ConfigError(f"`{connection_name}` is not a connection with a path")
    try:
        return place(
            connection, name, project.root, pattern=isinstance(connection, FilesConnection)
        )
    except PlaceError as error:
        raise ConfigError(f"`{name}` of connection `{connection_name}` {error}") from error


def table_in_catalog(project: Project, connection_name: str, name: str) -> Table | None:
    """The table of a connection whose tables are found by their names in a catalog; None for one of folders."""
    connection = project.config.connections.get(connection_name)
    if not isinstance(connection, LakeConnection) or connection.catalog is None:
        return None
    config, key = connection.catalog, f"connections.{connection_name}.catalog"
    catalog = Catalog(
        str(config.name),
        catalog_place(connection, project.root),
        lambda: pyiceberg_properties(config, project.root, _catalog_values(config, key)),
        lambda: spark_properties(config, project.root, _catalog_values(config, key)),
    )
    label, location = f"{connection_name}.{name}", locate(project, connection_name, name)
    namespace = tuple(str(connection.schema_).split("."))
    return Table(label, location, "iceberg", catalog, (*namespace, name))


def has_catalog(project: Project) -> bool:
    """Tell whether tables of a project are found in an Iceberg catalog."""
    lakes = (c for c in project.config.connections.values() if isinstance(c, LakeConnection))
    return any(lake.catalog is not None for lake in lakes)


def _catalog_values(config: CatalogConfig, key: str) -> dict[str, str]:
    """The texts of a catalog with their secrets; inside a URL a secret is quoted."""
    found = {}
    for loc, text in config.texts():
        at = ".".join((key, *loc))
        whole = loc != ("uri",) or REFERENCE.fullmatch(text)
        found[".".join(loc)] = resolve_secrets(text, key=at) if whole else _quoted(text, at)
    return found


def _quoted(text: str, key: str) -> str:
    """A URL with its references replaced: a password may hold @ and /."""
    return REFERENCE.sub(lambda match: quote(_environment(match[1], key), safe=""), text)


def folder_given(told: str) -> str | None:
    """The folder that `STRANDLINE_ETL_SCHEMA` gives; None for a plain name, which is a schema of the Spark catalog."""
    if _REMOTE.match(told):
        raise PlaceError(
            f"`{told}` is not a folder of this machine, and control tables cannot be in an object store yet: "
            "give the path of a folder"
        )
    if "/" not in told and not told.startswith("~"):
        return None
    folder = os.path.abspath(Path(told).expanduser())  # noqa: PTH100
    if odd := _ODD.search(folder):
        raise PlaceError(
            f"`{_shown(folder)}` holds `{_shown(odd[0])}`, which tables take for something else"
        )
    return folder


def control_location(
    connections: Mapping[str, object], control: ControlConfig | None, root: Path
) -> str:
    """The folder of the control tables: of the environment, the connection named, the first lake, or the project."""
    if told := os.environ.get(ETL_SCHEMA):
        if folder := folder_given(told):
            return folder
        raise PlaceError(
            f"`{told}` of {ETL_SCHEMA} is a name of the Spark catalog, which a project does not ask: "
            f"give the folder, as in {ETL_SCHEMA}=/lake/{told}, or remove it and say control: {{schema: {told}}}"
        )
    control = control or ControlConfig()
    lakes = {name: c for name, c in connections.items() if isinstance(c, LakeConnection)}
    lake = lakes.get(control.connection) if control.connection else _first_lake(lakes.values())
    if lake is None:
        return str(root / ".strandline")
    if lake.catalog is None:
        return place(lake, control.schema_, root)
    folder = warehouse(lake.catalog, root).removeprefix("file://")
    if not folder or _REMOTE.match(folder):
        raise PlaceError(
            "has no folder beside this catalog's warehouse: name a lake of Delta tables in control: {connection: …}"
        )
    return str(Path(folder).parent / control.schema_)


def _first_lake(lakes: Iterable[LakeConnection]) -> LakeConnection | None:
    """The first lake of Delta tables, else the first of any."""
    return min(lakes, key=lambda lake: lake.catalog is not None, default=None)


def _refuse_name(name: str, *, pattern: bool) -> None:
    parts = name.split("/")
    if any(ord(char) < 32 or ord(char) == 127 for char in name):
        raise PlaceError("holds a control character")
    if (
        name.startswith(("/", "\\", "~"))
        or re.match(r"^[A-Za-z]:", name)
        or _REMOTE.match(name)
        or ".." in parts
    ):
        raise PlaceError("leaves its connection's path")
    if "\\" in name:
        raise PlaceError("holds a backslash; folders are separated by `/`")
    if pattern:
        return
    if _GLOB.search(name) or ":" in name:
        raise PlaceError("holds one of the characters * ? [ ] { } :")
    if odd := _ODD.search(name):
        raise PlaceError(f"holds {odd[0]}, which table formats take for something else")
    if any(part in ("", ".", "_delta_log") or part != part.strip() for part in parts):
        raise PlaceError("is not the name of a table")


# --- databases -------------------------------------------------------------------------------------------------------


def sqlalchemy_url(connection: SqlConnection, root: Path, *, key: str = "connections") -> URL:
    """The SQLAlchemy URL of a database, with its secrets: for opening it, never for showing it."""
    return urls.to_sqlalchemy(_database(connection, root, key))


def jdbc(connection: SqlConnection, root: Path, *, key: str = "connections") -> JdbcTarget:
    """What Spark opens the database with: `jdbc_url` when given, else derived from `url`."""
    user, password = _login(connection, key)
    if connection.jdbc_url:
        url = resolve_secrets(connection.jdbc_url, key=f"{key}.jdbc_url")
        return JdbcTarget(url, user, password, connection.driver or urls.jdbc_driver(url))
    database = _database(connection, root, key)
    try:
        url = urls.to_jdbc(database)
    except urls.UrlError as error:
        raise ConfigError(
            Problem(str(error), key=f"{key}.url", hint="give jdbc_url and driver")
        ) from error
    return JdbcTarget(
        url, database.user, database.password, connection.driver or urls.jdbc_driver(url)
    )


def _database(connection: SqlConnection, root: Path, key: str) -> urls.Database:
    at, whole = f"{key}.url", REFERENCE.fullmatch(connection.url)
    text = resolve_secrets(connection.url, key=at) if whole else _quoted(connection.url, at)
    try:
        database = urls.parse(text)
    except urls.UrlError as error:
        raise ConfigError(
            Problem(str(error), key=f"{key}.url", hint="for example postgresql://host/db")
        ) from error
    user, password = _login(connection, key)
    return urls.absolute(database.with_login(user, password), root)


def _login(connection: SqlConnection, key: str) -> tuple[str | None, str | None]:
    user = (
        resolve_secrets(connection.user, key=f"{key}.user") if connection.user is not None else None
    )
    password = (
        resolve_secrets(connection.password, key=f"{key}.password")
        if connection.password is not None
        else None
    )
    return user, password
