"""Connections of the project file: databases, folders of files, and the lake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from strandline.config.base import Model, Text
from strandline.config.catalogs import CatalogConfig
from strandline.config.positions import Mistake


class SqlConnection(Model):
    """A database to read from.

    **Business problem:** the rows live in an ERP or a shop database, and its password must not live in a file.
    **Solution:** a SQLAlchemy or JDBC URL; user and password are references, resolved when the connection opens.
    `jdbc_url` replaces the JDBC URL that Spark would derive, `driver` its JDBC class. `staging: true` marks a database
    that may be empty between two loads: what is absent there is not deleted.

    ```yaml
    connections:
      erp: {type: sql, url: "postgresql://db/shop", user: etl, password: "${env:ERP_PASSWORD}"}
    ```
    """

    type: Literal["sql"]
    url: Text
    user: str | None = None
    password: str | None = Field(default=None, repr=False)
    jdbc_url: Text | None = None
    driver: Text | None = None
    staging: bool = False


class FilesConnection(Model):
    """A folder of files to read from.

    **Business problem:** partners drop CSV, JSON or Parquet files.
    **Solution:** name the folder once; nodes read files or patterns below it and nothing outside it. With a Spark
    master that is not local, `shared: true` says that every executor sees the folder under this path.

    ```yaml
    connections:
      files: {type: files, path: landing}
    ```
    """

    type: Literal["files"]
    path: Text
    shared: bool = False


class LakeConnection(Model):
    """A place of lake tables: written by nodes, read by others.

    **Business problem:** Bronze, Silver and Gold belong in places of their own.
    **Solution:** one connection per layer; table `customers` is the folder `customers` below its path. With a Spark
    master that is not local, `shared: true` says that every executor sees the folder under this path. Tables of
    `format: iceberg` are found by their names in a `catalog`; `schema` is their namespace there, by default the
    connection's name.

    ```yaml
    connections:
      bronze: {type: lake, format: delta, path: lake/bronze}
      silver: {type: lake, path: /mnt/lake/silver, shared: true}
      gold: {type: lake, format: iceberg, catalog: {type: sql, uri: "sqlite:///lake/ice.db", warehouse: lake/ice}}
    ```
    """

    type: Literal["lake"]
    format: Literal["delta", "iceberg"] = "delta"
    path: Text | None = None
    shared: bool = False
    catalog: CatalogConfig | None = None
    schema_: Text | None = Field(default=None, alias="schema")

    def mistakes(self) -> Iterator[Mistake]:
        if self.format != "iceberg":
            if self.path is None:
                yield Mistake((), "a lake of Delta tables needs `path`", "add path: lake/name")
            for key, given in (("catalog", self.catalog), ("schema", self.schema_)):
                if given is not None:
                    yield Mistake((key,), f"`{key}` is for format: iceberg", f"remove `{key}`")
            return
        if self.catalog is None:
            hint = 'add catalog: {type: sql, uri: "sqlite:///lake/ice.db", warehouse: lake/ice}'
            yield Mistake((), "a lake of Iceberg tables needs `catalog`", hint)
        if self.path is not None:
            yield Mistake(("path",), "Iceberg tables lie where their catalog says", "remove `path`")

    def called(self, name: str) -> LakeConnection:
        """The same connection, with the names of its catalog and namespace: by default its own."""
        if self.catalog is None:
            return self
        catalog = self.catalog.model_copy(update={"name": self.catalog.name or name})
        return self.model_copy(update={"catalog": catalog, "schema_": self.schema_ or name})


Connection = Annotated[
    SqlConnection | FilesConnection | LakeConnection, Field(discriminator="type")
]
