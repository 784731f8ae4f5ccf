"""What one map cannot know: whether connections, nodes, tables and steps fit each other. All mistakes at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from pydantic import ValidationError

from strandline.config.advisor import advice
from strandline.config.aliases import sql_mistakes
from strandline.config.catalogs import CatalogConfig
from strandline.config.connections import FilesConnection, LakeConnection, SqlConnection
from strandline.config.expectation_advice import expectation_advice, quarantining
from strandline.config.messages import mistakes_of
from strandline.config.parts import KINDS, AnyConnection, NodeParts, Parts, connection_of
from strandline.config.positions import Loc, Mistake
from strandline.config.reads import ReadConfig
from strandline.config.resolve import (
    REFERENCE,
    SECRET_FIELDS,
    PlaceError,
    bad_references,
    control_location,
    in_folder,
    odd_folder,
    place,
    remote,
    unseen,
)
from strandline.config.star_check import star_mistakes
from strandline.config.urls import literal_password
from strandline.config.writes import EVENTS, QUARANTINE
from strandline.errors import did_you_mean

_URL = re.compile(r"^[A-Za-z]\w*(\+\w+)?://|^jdbc:\w+:")


def check(parts: Parts) -> Iterator[Mistake]:
    """Everything wrong between the parts of a project."""
    yield from _connection_mistakes(parts.raw)
    yield from _folder_mistakes(parts)
    yield from _catalog_mistakes(parts)
    yield from _stray_references(parts.raw)
    yield from _control_mistakes(parts)
    yield from _name_mistakes(parts)
    yield from _table_mistakes(parts)
    for node in parts.nodes:
        for loc, read in node.reads:
            yield from _read_mistakes(parts, loc, read)
        yield from _step_mistakes(node)
        yield from expectation_advice(parts, node)
        yield from sql_mistakes(parts, node)
        yield from star_mistakes(parts, node)
    yield from advice(parts)


# --- connections and secrets -----------------------------------------------------------------------------------------


def _connection_mistakes(raw: dict[str, Any]) -> Iterator[Mistake]:
    connections = raw.get("connections")
    for name, connection in connections.items() if isinstance(connections, dict) else ():
        for key, text in connection.items() if isinstance(connection, dict) else ():
            loc: Loc = ("connections", name, key)
            if not isinstance(text, str):
                continue
            if key in SECRET_FIELDS:
                yield from (Mistake(loc, message, hint) for message, hint in bad_references(text))
                yield from _secret_mistakes(loc, name, key, text)
            elif "${" in text:
                hint = f"`{key}` is no secret: write {{{{ env('NAME') }}}}"
                yield Mistake(loc, f"a secret reference cannot be used in `{key}`", hint)
            if key in ("user", "password") and re.match(
                "(jdbc:)?sqlite:", str(connection.get("url"))
            ):
                yield Mistake(loc, "a SQLite file has no users and passwords", f"remove `{key}`")


def _catalog_mistakes(parts: Parts) -> Iterator[Mistake]:
    """Secrets of catalogs in clear, references that are none, and two catalogs of one name that are not the same."""
    first: dict[str, tuple[str, CatalogConfig]] = {}
    for name, connection in parts.connections.items():
        if not isinstance(connection, LakeConnection) or connection.catalog is None:
            continue
        loc: Loc = ("connections", name, "catalog")
        for at, text in connection.catalog.texts():
            for message, hint in bad_references(text):
                yield Mistake((*loc, *at), message, hint)
        clear = connection.catalog.secrets_in_clear()
        yield from (Mistake((*loc, *m.loc), m.message, m.hint) for m in clear)
        called = str(connection.catalog.name or name)
        other, config = first.setdefault(called, (name, connection.catalog))
        if config != connection.catalog:
            message = f"connection `{other}` has another catalog of the name `{called}`"
            yield Mistake((*loc, "name"), message, "give one of them another name:")


def _folder_mistakes(parts: Parts) -> Iterator[Mistake]:
    folders = {n: c for n, c in parts.connections.items() if in_folder(c)}
    for name, connection in folders.items():
        if path := remote(connection):
            message = f"`{path}` is not a folder of this machine, and strandline cannot work with object stores yet"
            yield Mistake(("connections", name, "path"), message, "give the path of a folder")
    here = {n: c for n, c in folders.items() if not remote(c)}
    for name, message, hint in unseen(here, _master(parts)):
        yield Mistake(("connections", name, "path"), message, hint)
    for name, connection in folders.items():
        if isinstance(connection, LakeConnection) and (found := odd_folder(connection, parts.root)):
            folder, odd = found
            yield Mistake(
                ("connections", name, "path"),
                f"tables would lie below `{folder}`, and table formats take `{odd}` in a name for something else",
                "give the path of another folder, or move the project",
            )


def _master(parts: Parts) -> str:
    """The Spark master that a run would use; local on the local engine."""
    spark = parts.raw.get("spark")
    if (parts.engine or parts.raw.get("engine", "spark")) != "spark" or not isinstance(spark, dict):
        return "local"
    settings = spark.get("config")
    given = settings.get("spark.master") if isinstance(settings, dict) else None
    return str(given or spark.get("master") or "local")


def _secret_mistakes(loc: Loc, name: str, key: str, text: str) -> Iterator[Mistake]:
    variable = re.sub(r"\W", "_", f"{name}_PASSWORD").upper()
    if (key == "password" and text and "${" not in text) or (
        key.endswith("url") and literal_password(text)
    ):
        yield Mistake(
            loc,
            "a password is written here in clear. Secrets never in files",
            f"put it into an environment variable and write password: ${{env:{variable}}}",
        )
    elif key == "url" and not REFERENCE.fullmatch(text) and not _URL.match(text):
        yield Mistake(
            loc,
            "this is not the URL of a database",
            "for example postgresql://host/db or sqlite:///shop.db",
        )
    elif key == "jdbc_url" and not REFERENCE.fullmatch(text) and not text.startswith("jdbc:"):
        yield Mistake(
            loc, "a JDBC URL starts with `jdbc:`", "for example jdbc:postgresql://host/db"
        )


def _stray_references(raw: dict[str, Any]) -> Iterator[Mistake]:
    """Secrets outside of connections: Spark itself would put `${env:…}` of a SQL text in clear into its plans."""
    places = {
        key: value for key, value in raw.items() if key not in ("connections", "vars", "spark")
    }
    for loc, text in _texts(places, ()):
        if REFERENCE.search(text):
            yield Mistake(
                loc,
                "secrets can be used in connections and in spark.config only",
                "for a value that is no secret write {{ env('NAME') }}",
            )


def _texts(value: Any, loc: Loc) -> Iterator[tuple[Loc, str]]:
    if isinstance(value, str):
        yield loc, value
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield from _texts(inner, (*loc, key))


def _control_mistakes(parts: Parts) -> Iterator[Mistake]:
    if parts.control and parts.control.connection:
        found = connection_of(parts, ("control", "connection"), parts.control.connection)
        if isinstance(found, Mistake):
            yield found
        elif found and not isinstance(found, LakeConnection):
            yield _wrong_kind(
                ("control", "connection"),
                parts.control.connection,
                found,
                "the control tables need",
            )
    try:
        control_location(parts.connections, parts.control, parts.root)
    except PlaceError as error:
        yield Mistake(("control", "schema"), f"the schema {error}")


def _wrong_kind(loc: Loc, name: str, found: AnyConnection, who: str) -> Mistake:
    return Mistake(
        loc,
        f"{who} a lake connection, and `{name}` is {KINDS[type(found)]}",
        "name one with type: lake",
    )


# --- nodes and tables ------------------------------------------------------------------------------------------------


def _name_mistakes(parts: Parts) -> Iterator[Mistake]:
    first: dict[str, NodeParts] = {}
    for node in parts.nodes:
        other = first.setdefault(node.name.casefold(), node) if node.name else node
        if other is not node:
            made = node.origin.target or other.origin.target
            hint = (
                "after the first, each target of a node is a node `name.table`; rename one of them"
                if made
                else None
            )
            yield Mistake((*node.loc, "name"), f"another node is called `{other.name}` too", hint)
    names = {node.name for node in parts.nodes if node.name}
    for node in parts.nodes:
        for index, name in enumerate(node.depends_on):
            if name not in names and parts.complete:
                yield Mistake(
                    (*node.loc, "depends_on", index),
                    f"unknown node `{name}`",
                    did_you_mean(name, sorted(names)),
                )


def _table_mistakes(parts: Parts) -> Iterator[Mistake]:
    """Each table has one writer, lies in its connection, and not inside another table or the control tables."""
    try:
        control = PurePosixPath(
            control_location(parts.connections, parts.control, parts.root).casefold()
        )
    except PlaceError:
        control = None  # told by _control_mistakes
    written = _Written(control)
    for node in parts.nodes:
        if not node.write:
            continue
        loc = (*node.loc, "write")
        found = connection_of(parts, (*loc, "connection"), node.write.connection)
        if isinstance(found, Mistake):
            yield found
        elif isinstance(found, LakeConnection):
            outside = list(_place_mistakes(parts, (*loc, "table"), found, node.write.table))
            yield from outside or written.add(
                (*loc, "table"), place(found, node.write.table, parts.root), node.name
            )
            if node.write.effective_at and not outside:
                beside = place(found, node.write.table + EVENTS, parts.root)
                yield from written.add((*loc, "effective_at"), beside, node.name)
            if not outside and (at := quarantining(node.steps)):
                beside = place(found, node.write.table + QUARANTINE, parts.root)
                yield from written.add(at, beside, node.name)
        elif found:
            yield _wrong_kind((*loc, "connection"), node.write.connection, found, "a write needs")


class _Written:
    """The tables written so far, and the folders they lie in."""

    def __init__(self, control: PurePosixPath | None) -> None:
        self._control = control
        self._tables: dict[PurePosixPath, str] = {}
        self._around: dict[PurePosixPath, str] = {}

    def add(self, loc: Loc, location: str, node: str | None) -> Iterator[Mistake]:
        table = PurePosixPath(
            location.casefold()
        )  # some file systems do not tell Customers from customers
        control = self._control
        if control and (table.is_relative_to(control) or control.is_relative_to(table)):
            hint = "choose another table, or another control: {schema: …}"
            yield Mistake(loc, "this place is reserved for the control tables", hint)
        if other := self._tables.get(table):
            yield Mistake(
                loc,
                f"also written by node `{other}`",
                "let one node write the table: unite the sources by its transformation_sql",
            )
        for folder in table.parents:
            if other := self._tables.get(folder):
                yield Mistake(
                    loc,
                    f"lies inside the table of node `{other}`",
                    "give each table a folder of its own",
                )
        if other := self._around.get(table):
            yield Mistake(
                loc,
                f"the table of node `{other}` lies inside this one",
                "give each table a folder of its own",
            )
        name = node or "without a name"
        self._tables.setdefault(table, name)
        for folder in table.parents:
            self._around.setdefault(folder, name)


# --- reads -----------------------------------------------------------------------------------------------------------


def _read_mistakes(parts: Parts, loc: Loc, read: ReadConfig) -> Iterator[Mistake]:
    found = connection_of(parts, (*loc, "connection"), read.connection)
    if isinstance(found, Mistake):
        yield found
        return
    if found is None:
        return
    allowed = {
        SqlConnection: ("table", "query"),
        FilesConnection: ("path",),
        LakeConnection: ("table",),
    }[type(found)]
    given = next(
        (key for key in ("table", "query", "path") if getattr(read, key) is not None), None
    )
    if given is None:
        return  # told by the model already
    if given not in allowed:
        wanted = " or ".join(f"`{key}`" for key in allowed)
        yield Mistake(
            (*loc, given),
            f"`{read.connection}` is {KINDS[type(found)]}: give {wanted}, not `{given}`",
        )
        return
    yield from _fit_mistakes(loc, read, found)
    if not isinstance(found, SqlConnection):
        yield from _place_mistakes(parts, (*loc, given), found, getattr(read, given))
    elif any(ord(char) < 32 for char in read.table or ""):
        yield Mistake((*loc, "table"), "the name holds a control character")


def _fit_mistakes(loc: Loc, read: ReadConfig, connection: AnyConnection) -> Iterator[Mistake]:
    if isinstance(connection, LakeConnection) and read.format:
        yield Mistake(
            (*loc, "format"), "a lake connection brings its own format", "remove `format`"
        )
    if isinstance(connection, FilesConnection) and read.file_format is None:
        message = "`format` is missing, and the name does not tell it"
        yield Mistake((*loc, "path"), message, "add format: csv, json or parquet")
    for key in ("partition_column", "num_partitions"):
        if getattr(read, key) is not None and not isinstance(connection, SqlConnection):
            yield Mistake((*loc, key), f"`{key}` is for tables and queries of a database only")


def _place_mistakes(
    parts: Parts, loc: Loc, connection: FilesConnection | LakeConnection, name: str
) -> Iterator[Mistake]:
    try:
        place(connection, name, parts.root, pattern=isinstance(connection, FilesConnection))
    except PlaceError as error:
        yield Mistake(loc, f"{name!r} {error}", "give a name below the connection's path")


# --- steps -----------------------------------------------------------------------------------------------------------


def _step_mistakes(node: NodeParts) -> Iterator[Mistake]:
    if not node.steps:
        return
    # Here and not above: the registry brings the steps of installed plug-ins, which not every command needs.
    from strandline.transform import registry

    for loc, config in node.steps:
        step = registry.get(config.operation)
        if step is None:
            names = registry.names()
            hint = did_you_mean(config.operation, names) or f"operations are {', '.join(names)}"
            yield Mistake((*loc, "operation"), f"unknown operation `{config.operation}`", hint)
            continue
        try:
            step.param_model.model_validate(config.params)
        except ValidationError as error:
            yield from mistakes_of(error, step.param_model, config.params, (*loc, "params"))
