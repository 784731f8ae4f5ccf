"""What a project's names stand for: secrets, places in a connection, database URLs. Secrets are resolved only here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from strandline.config import urls
from strandline.config.connections import FilesConnection, LakeConnection, SqlConnection
from strandline.config.model import ControlConfig, ProjectConfig
from strandline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

    from strandline.config.load import Project

ETL_SCHEMA = "STRANDLINE_ETL_SCHEMA"
"""The environment variable that says where the control tables are, for projects and hand-written jobs alike."""

REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
SECRET_FIELDS = ("url", "user", "password", "jdbc_url")
_REMOTE = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://|^dbfs:/")
_GLOB = re.compile(r"[*?\[\]{}]")
# What the Delta libraries cut off, unescape or take for a separator, so that they fail or write into another folder.
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
    path = connection.path.removeprefix("file://")
    if _REMOTE.match(path):
        return path.rstrip("/")
    return os.path.normpath(root / Path(path).expanduser())


def remote(connection: FilesConnection | LakeConnection) -> str | None:
    """The path of a connection that is no folder of this machine, without a login; None when it is one."""
    return (
        re.sub("//[^/@]*:[^/@]*@", "//", connection.path)
        if _REMOTE.match(base(connection, Path()))
        else None
    )


def unseen(connections: Mapping[str, object], master: str) -> Iterator[tuple[str, str, str]]:
    """The connections whose folder the executors of a Spark master may not see, each with what to say and to do."""
    if master.startswith("local"):
        return
    for name, connection in connections.items():
        if isinstance(connection, FilesConnection | LakeConnection) and not connection.shared:
            message = (
                f"`{connection.path}` is a folder of this machine; "
                f"executors of Spark master {master} may not see it"
            )
            hint = "if every executor sees the folder under this path, add shared: true; else use a local master"
            yield name, message, hint


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


def folder_given(told: str) -> str | None:
    """The folder that `STRANDLINE_ETL_SCHEMA` gives; None for a plain name, which is a schema of the Spark catalog."""
    return os.path.abspath(Path(told).expanduser()) if "/" in told or told.startswith("~") else None  # noqa: PTH100


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
    lake = lakes.get(control.connection) if control.connection else next(iter(lakes.values()), None)
    return place(lake, control.schema_, root) if lake else str(root / ".strandline")


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
    user, password = _login(connection, key)
    return database_of(connection, root, key=key).with_login(user, password)


def database_of(connection: SqlConnection, root: Path, *, key: str) -> urls.Database:
    """The parts of a connection's URL, a file's path absolute."""
    text = connection.url
    if REFERENCE.fullmatch(text):
        text = resolve_secrets(text, key=f"{key}.url")
    else:  # inside a URL a value is quoted: a password may hold @ and /
        text = REFERENCE.sub(
            lambda match: quote(_environment(match[1], f"{key}.url"), safe=""), text
        )
    try:
        database = urls.parse(text)
    except urls.UrlError as error:
        raise ConfigError(
            Problem(str(error), key=f"{key}.url", hint="for example postgresql://host/db")
        ) from error
    return urls.absolute(database, root)


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
