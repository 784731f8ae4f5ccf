"""Connections of the project file: databases, folders of files, and the lake."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from strandline.config.base import Model, Text


class SqlConnection(Model):
    """A database to read from.

    **Business problem:** the rows live in an ERP or a shop database, and its password must not live in a file.
    **Solution:** a SQLAlchemy or JDBC URL; user and password are references, resolved when the connection opens.
    `jdbc_url` replaces the JDBC URL that Spark would derive, `driver` its JDBC class. `staging: true` marks a database
    that may be empty between two loads: what is absent there is not deleted. How far a table was read belongs to host
    and database; `identity: erp` pins it, so that a database that moves to another host is read on from there.

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
    identity: Text | None = None


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
    identity: Text | None = None


class LakeConnection(Model):
    """A folder of lake tables: written by nodes, read by others.

    **Business problem:** Bronze, Silver and Gold belong in places of their own.
    **Solution:** one connection per layer; table `customers` is the folder `customers` below its path. With a Spark
    master that is not local, `shared: true` says that every executor sees the folder under this path.

    ```yaml
    connections:
      bronze: {type: lake, format: delta, path: lake/bronze}
      silver: {type: lake, path: /mnt/lake/silver, shared: true}
    ```
    """

    type: Literal["lake"]
    format: Literal["delta"] = "delta"
    path: Text
    shared: bool = False
    identity: Text | None = None


Connection = Annotated[
    SqlConnection | FilesConnection | LakeConnection, Field(discriminator="type")
]
