"""Iceberg catalogs of the project file: which there are, and what PyIceberg and Spark need to open them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from strandline.config import urls
from strandline.config.base import Model, Text
from strandline.config.positions import Mistake

if TYPE_CHECKING:
    from strandline.config.connections import LakeConnection

KINDS_OF_CATALOG = ("sql", "rest", "glue")
_SECRET_KEY = re.compile(r"(?i)pass|pwd|secret|token|credential|access-key")
_NEEDS = {"sql": ("uri", "warehouse"), "rest": ("uri",), "glue": ()}
_HADOOP = "a hadoop catalog cannot be used: PyIceberg does not write to one"


class CatalogConfig(Model):
    """The Iceberg catalog in which the tables of a connection are found.

    **Business problem:** an Iceberg table is what its catalog says it is, and Spark and Python must ask the same one.
    **Solution:** `type: sql` (a SQLite file or a PostgreSQL database), `rest`, or `glue`. `name` is the catalog's name
    on both engines, by default that of the connection. `properties` are handed on as they are; one that holds a
    secret is a reference. A SQLite file and a warehouse folder are found from the project's folder.

    ```yaml
    connections:
      gold:
        type: lake
        format: iceberg
        catalog: {type: sql, uri: "sqlite:///lake/ice.db", warehouse: lake/ice}
      shared:
        type: lake
        format: iceberg
        schema: sales
        catalog: {type: rest, uri: "https://catalog.shop/api", properties: {credential: "${env:ICE_CREDENTIAL}"}}
    ```
    """

    type: Text
    name: Text | None = None
    uri: Text | None = None
    user: str | None = None
    password: str | None = Field(default=None, repr=False)
    warehouse: Text | None = None
    properties: dict[str, str] = Field(default_factory=dict, repr=False)

    def mistakes(self) -> Iterator[Mistake]:
        if self.type not in KINDS_OF_CATALOG:
            message = _HADOOP if self.type == "hadoop" else f"unknown type of catalog `{self.type}`"
            yield Mistake(("type",), message, f"use one of {', '.join(KINDS_OF_CATALOG)}")
            return
        for key in _NEEDS[self.type]:
            if getattr(self, key) is None:
                yield Mistake((), f"a catalog of type {self.type} needs `{key}`", f"add {key}:")
        if self.type != "sql":
            for key in ("user", "password"):
                if getattr(self, key) is not None:
                    hint = "put what the catalog asks for into properties:, for example credential:"
                    yield Mistake((key,), f"a catalog of type {self.type} has no `{key}`", hint)
        elif (
            self.uri
            and "${" not in self.uri
            and not re.match(r"(sqlite|postgres(ql)?)\b", self.uri)
        ):
            hint = "for example sqlite:///lake/ice.db or postgresql://host/db"
            yield Mistake(
                ("uri",), "a catalog of type sql is a SQLite file or a PostgreSQL database", hint
            )

    def texts(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """The texts that may hold references to secrets, each with its key."""
        for key in ("uri", "user", "password"):
            if (text := getattr(self, key)) is not None:
                yield (key,), text
        for key, text in self.properties.items():
            yield ("properties", key), text

    def secrets_in_clear(self) -> Iterator[Mistake]:
        """What is written in clear, and must be a reference."""
        hint = "put it into an environment variable and write ${env:NAME}"
        message = "a secret is written here in clear. Secrets never in files"
        if self.password and "${" not in self.password:
            yield Mistake(("password",), message, hint)
        if self.uri and urls.literal_password(self.uri):
            yield Mistake(("uri",), message, hint)
        for key, text in self.properties.items():
            if _SECRET_KEY.search(key) and text and "${" not in text:
                yield Mistake(("properties", key), message, hint)


def catalog_place(connection: LakeConnection, root: Path) -> str:
    """What tells a catalog from others, without anything secret: its database or server, its warehouse, its name."""
    catalog = connection.catalog
    assert catalog is not None
    uri = re.sub("//[^/@]*@", "//", str(_sqlite_uri(catalog, root) or catalog.uri or catalog.type))
    return f"{uri.partition('?')[0]}#{catalog.name or ''}"


def pyiceberg_properties(
    catalog: CatalogConfig, root: Path, values: Mapping[str, str]
) -> dict[str, str]:
    """What PyIceberg opens the catalog with; `values` are its texts with their secrets."""
    found = {"type": catalog.type, **_given(values)}
    if catalog.type == "sql":
        database = urls.parse(values["uri"]).with_login(values.get("user"), values.get("password"))
        url = urls.to_sqlalchemy(urls.absolute(database, root))
        found["uri"] = url.render_as_string(hide_password=False)
    elif "uri" in values:
        found["uri"] = values["uri"]
    if catalog.warehouse:
        found["warehouse"] = warehouse(catalog, root)
    return found


def spark_properties(
    catalog: CatalogConfig, root: Path, values: Mapping[str, str]
) -> dict[str, str]:
    """What Spark opens the same catalog with. Nothing is cached: else a session misses the commits of others."""
    found = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        "cache-enabled": "false",
        **_given(values),
    }
    if catalog.type == "sql":
        database = urls.parse(values["uri"]).with_login(values.get("user"), values.get("password"))
        found |= {"type": "jdbc", "uri": urls.to_jdbc(urls.absolute(database, root))}
        found |= {"jdbc.schema-version": "V1"}
        login = {"jdbc.user": database.user, "jdbc.password": database.password}
        found |= {key: value for key, value in login.items() if value is not None}
    else:
        found |= {"type": catalog.type}
        found |= {"uri": values["uri"]} if "uri" in values else {}
    if catalog.warehouse:
        found["warehouse"] = warehouse(catalog, root)
    return found


def _given(values: Mapping[str, str]) -> dict[str, str]:
    start = "properties."
    return {
        key.removeprefix(start): value for key, value in values.items() if key.startswith(start)
    }


def warehouse(catalog: CatalogConfig, root: Path) -> str:
    """Where new tables lie; a folder is found from the project's folder, any other place is as it is written."""
    path = catalog.warehouse or ""
    if catalog.type != "sql" or re.match(
        r"^[A-Za-z][A-Za-z0-9+.-]+://", path.removeprefix("file://")
    ):
        return path
    return "file://" + os.path.normpath(root / Path(path.removeprefix("file://")).expanduser())


def _sqlite_uri(catalog: CatalogConfig, root: Path) -> str | None:
    uri = catalog.uri or ""
    if not uri.startswith("sqlite:"):
        return None
    return f"sqlite:{urls.absolute(urls.parse(uri), root).name}"
