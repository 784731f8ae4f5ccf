"""Reading databases: one statement, built once, read by either engine.

The statement casts in the database whatever a driver would garble (SQLite's loosely typed values, PostgreSQL's
exotic types) to text, and the engine casts it back with errors that name column and value. So both engines see
the same rows, whatever their drivers do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import sqlalchemy
import sqlglot
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlglot import TokenType, exp
from sqlglot.errors import TokenError

from strandline.config.urls import DIALECTS
from strandline.engine.base import SqlEndpoint, SqlSource
from strandline.engine.sources import postgres
from strandline.engine.sources.outage import kind_of
from strandline.engine.sources.wire import WireColumn, refuse_unheld
from strandline.errors import (
    EngineError,
    ReadError,
    SourceDown,
    StrandlineError,
    UnknownColumn,
    did_you_mean,
)
from strandline.plan.pushdown import pushed
from strandline.sql import key_runs
from strandline.sql.expr import case, col, eq, ident, lit, named, select
from strandline.types import Column, Schema
from strandline.words import redact

PART = "_strandline_part"


@dataclass(frozen=True)
class SqlRead:
    """A statement ready to run, and what its columns mean."""

    statement: str
    columns: list[WireColumn]
    bounds: list[str]  # predicates over PART, one per partition


def plan_read(source: SqlSource, *, partitioned: bool) -> SqlRead:
    """Look at the table or query and write the statement that reads it."""
    with opened(source.endpoint) as connection:
        dialect = DIALECTS.get(connection.dialect.name, "")
        origin = _origin(connection, source)
        every = _columns(connection, source, origin, dialect)
        wanted = {c.casefold() for c in source.columns or ()}
        # with a name among them that is not there, all are read: whoever asks for it will say so, and needs the others
        known = wanted <= {c.name.casefold() for c in every}
        columns = [c for c in every if c.name.casefold() in wanted] if wanted and known else every
        refuse_unheld(columns, source.label)
        alone = columns[0] if source.runs and len(columns) == 1 else None
        if alone and key_runs.pays(connection, origin, alone.name, alone.type, dialect):
            return _runs(origin, alone, dialect)
        tree = select(*(named(c.expression, c.name) for c in columns))
        bounds: list[str] = []
        if partitioned and source.partition_column and source.num_partitions:
            part = _find(source.partition_column, [c.name for c in every], source)
            bounds = _bounds(connection, origin, part, source.num_partitions, dialect)
            tree = tree.select(named(col(part, "q"), PART), copy=False)
        tree = tree.from_(origin)
        for predicate in _pushed(connection, source, every, dialect):
            tree = tree.where(predicate)
        return SqlRead(tree.sql(dialect=dialect), columns, bounds)


def _runs(origin: exp.Expr, key: WireColumn, dialect: str) -> SqlRead:
    """The keys as the ends of their runs."""
    statement = key_runs.runs(origin, key.name, dialect).sql(dialect=dialect)
    ends = [WireColumn(n, key.type, key.wire, col(n)) for n in (key_runs.LOW, key_runs.HIGH)]
    return SqlRead(statement, ends, [])


def _pushed(
    connection: sqlalchemy.Connection, source: SqlSource, columns: list[WireColumn], dialect: str
) -> list[exp.Expr]:
    """The filters that this database may apply for us, over its own columns."""
    given = [
        *source.where,
        *(
            source.hints(Schema(tuple(Column(c.name, c.type) for c in columns)))
            if source.hints
            else ()
        ),
    ]
    if not given:
        return []
    by_name = {c.name.casefold(): c for c in columns}
    unicode = _sorts_unicode(connection, dialect)
    types = {n: c.type if unicode or c.type != "string" else "" for n, c in by_name.items()}

    def bind(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column):
            return node
        found = by_name[node.name.casefold()]
        # what PostgreSQL casts on the way (rounds, unpads) is compared as it arrives
        return (
            (found.filtered or found.expression).copy()
            if dialect == "postgres"
            else col(found.name, "q")
        )

    return [
        p.transform(bind) for where in given if (p := pushed(where, types, dialect)) is not None
    ]


def _sorts_unicode(connection: sqlalchemy.Connection, dialect: str) -> bool:
    """Is the order of bytes that of code points? Databases in another encoding than UTF-8 may sort differently."""
    question = {"postgres": "SHOW server_encoding", "sqlite": "PRAGMA encoding"}.get(dialect)
    return question is None or str(connection.exec_driver_sql(question).scalar()).upper() in (
        "UTF8",
        "UTF-8",
    )


@contextmanager
def opened(endpoint: SqlEndpoint) -> Iterator[sqlalchemy.Connection]:
    """A connection; whatever goes wrong with it becomes one of our errors, without its secrets."""
    try:
        engine = sqlalchemy.create_engine(
            endpoint.url, poolclass=sqlalchemy.NullPool, **_arguments(endpoint)
        )
        with engine.connect() as connection:
            yield connection
    except StrandlineError:
        raise
    except (NoSuchModuleError, ModuleNotFoundError) as e:
        raise EngineError(
            f"connection `{endpoint.name}`: no Python driver for this database: {e}",
            hint="for PostgreSQL: pip install 'strandline[postgres]'",
        ) from e
    except (SQLAlchemyError, ConnectionError, TimeoutError) as e:
        raise translate(e, endpoint) from e


def _arguments(endpoint: SqlEndpoint) -> dict[str, Any]:
    if endpoint.url.get_backend_name() == "postgresql":
        return {"connect_args": {"connect_timeout": 15, "options": "-c timezone=UTC"}}
    if endpoint.url.get_backend_name() == "sqlite":
        # mode=ro: a missing file is an error, not a new empty database
        database = endpoint.url.database or ""
        return {"creator": lambda: _open_sqlite(database, endpoint.name)}
    return {}


def _open_sqlite(database: str, name: str) -> Any:
    import sqlite3

    file = Path(database)
    if not file.is_file():
        raise ReadError(
            f"connection `{name}`: there is no SQLite file {file.name}",
            hint=f"looked for it at {database}; relative paths start at the folder of strandline.yaml",
        )
    return sqlite3.connect(
        f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=30, check_same_thread=False
    )


def translate(error: SQLAlchemyError | OSError, endpoint: SqlEndpoint) -> StrandlineError:
    """A driver's error in our words; passwords never pass."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    if refused := postgres.refused_value(str(cause)):
        return refused
    secrets = [s for s in (endpoint.url.password,) if s]
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    text = redact(lines[0] if lines else type(cause).__name__, [str(s) for s in secrets])
    where = f"connection `{endpoint.name}`"
    match kind_of(error):
        case "refused":
            user = endpoint.url.username or "?"
            return ReadError(
                f"{where}: the database refused user `{user}`: wrong user or password",
                hint="check user: and the environment variable that password: refers to",
            )
        case "down":
            return SourceDown(
                f"{where}: the database cannot be reached: {text}",
                hint="check that it runs, and url:",
            )
        case "busy":
            return SourceDown(
                f"{where}: the database is busy: {text}",
                hint="somebody else holds a lock; run again",
            )
    return ReadError(
        f"{where}: {text}",
        hint="the database itself said so; check the table, the query and its rights",
    )


# --- where the rows come from ------------------------------------------------------------------------------


def _origin(connection: sqlalchemy.Connection, source: SqlSource) -> exp.Expr:
    """The FROM of the statement, under the alias q."""
    if source.query is not None:
        text = _bare(source.query, DIALECTS.get(connection.dialect.name, ""))
        _probe(connection, text)
        return exp.Subquery(this=exp.Var(this=text), alias=exp.TableAlias(this=ident("q")))
    schema, name = _real_table(connection, source)
    return exp.Table(
        this=ident(name),
        db=ident(schema) if schema else None,
        alias=exp.TableAlias(this=ident("q")),
    )


def _bare(query: str, dialect: str) -> str:
    """A query without what stands behind it, semicolons and comments: one to the end of its line would go on."""
    try:
        tokens = sqlglot.tokenize(query, read=dialect)
    except TokenError:  # the database says what is wrong with it
        return query
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    return query[: tokens[-1].end + 1].strip() if tokens else query


def _probe(connection: sqlalchemy.Connection, query: str) -> None:
    """A query must stand as a sub-select; the database says at once what is wrong with it."""
    connection.exec_driver_sql(f"SELECT * FROM ({query}) q WHERE 1 = 0").close()


def _real_table(connection: sqlalchemy.Connection, source: SqlSource) -> tuple[str | None, str]:
    """The table's exact name: as written, or the only one that differs by case alone."""
    schema, _, name = (source.table or "").rpartition(".")
    inspector = sqlalchemy.inspect(connection)
    if schema and schema not in (schemas := inspector.get_schema_names()):
        near = [s for s in schemas if s.casefold() == schema.casefold()]
        if len(near) != 1:
            raise ReadError(
                f"connection `{source.endpoint.name}`: there is no schema `{schema}`",
                hint=did_you_mean(schema, schemas) or f"there are: {', '.join(schemas)}",
            )
        schema = near[0]
    there = [*inspector.get_table_names(schema or None), *inspector.get_view_names(schema or None)]
    there += (
        inspector.get_materialized_view_names(schema or None)
        if connection.dialect.name == "postgresql"
        else []
    )
    near = [t for t in there if t == name] or [t for t in there if t.casefold() == name.casefold()]
    if len(near) != 1:
        raise ReadError(
            f"connection `{source.endpoint.name}`: there is no table `{source.table}`",
            hint=did_you_mean(name, there)
            or f"there are: {', '.join(sorted(there)[:10]) or 'none'}",
        )
    return schema or None, near[0]


# --- what the columns are ----------------------------------------------------------------------------------


def _columns(
    connection: sqlalchemy.Connection, source: SqlSource, origin: exp.Expr, dialect: str
) -> list[WireColumn]:
    if dialect == "sqlite":
        return [_sqlite_column(n, t) for n, t in _sqlite_types(connection, origin)]
    if dialect == "postgres":
        return postgres.columns(connection, origin)
    if source.table is None:
        raise ReadError(
            f"connection `{source.endpoint.name}`: queries are read from SQLite and PostgreSQL only",
            hint="create a view for the query and read it with table:",
        )
    schema, name = _real_table(connection, source)
    found = sqlalchemy.inspect(connection).get_columns(name, schema)
    return [_generic_column(str(c["name"]), c["type"]) for c in found]


def _sqlite_types(connection: sqlalchemy.Connection, origin: exp.Expr) -> list[tuple[str, str]]:
    """Declared types; a query's columns keep those of the tables they come from."""
    body = select(exp.Star()).from_(origin).sql(dialect="sqlite")
    connection.exec_driver_sql("DROP VIEW IF EXISTS temp._strandline_probe")
    connection.exec_driver_sql(f"CREATE TEMP VIEW _strandline_probe AS {body}")
    rows = connection.exec_driver_sql("PRAGMA temp.table_info(_strandline_probe)").all()
    typed: list[tuple[str, str]] = []
    for row in rows:
        name, declared = _sqlite_name(str(row[1]), [n for n, _ in typed]), str(row[2] or "").upper()
        typed.append((name, declared or _sqlite_storage(connection, name)))
    return typed


def _sqlite_name(name: str, before: list[str]) -> str:
    """The name that a query gave: of two columns that are called alike, SQLite calls the second one `a:1`."""
    bare = re.sub(r":\d+$", "", name)
    return bare if bare.casefold() in {n.casefold() for n in before} else name


def _sqlite_storage(connection: sqlalchemy.Connection, name: str) -> str:
    """An expression has no declared type: what its values are stored as decides."""
    column = ident(name).sql(dialect="sqlite")
    found = connection.exec_driver_sql(
        f"SELECT DISTINCT typeof({column}) FROM _strandline_probe"
    ).scalars()
    kinds = {str(k) for k in found} - {"null"}
    if kinds == {"integer"}:
        return "INTEGER"
    if kinds and kinds <= {"integer", "real"}:
        return "REAL"
    return "BLOB" if kinds == {"blob"} else "TEXT"


def _sqlite_column(name: str, declared: str) -> WireColumn:
    """SQLite's columns hold anything: all but blobs travel as text and are checked on arrival."""
    type_ = _sqlite_type(declared)
    value = col(name, "q")
    if type_ == "binary":
        return WireColumn(name, type_, "binary", value)
    text: exp.Expr = exp.Cast(this=value, to=exp.DataType.build("text"))
    if type_ == "double":  # CAST keeps 15 digits only
        exact = exp.Anonymous(this="printf", expressions=[lit("%!.17g"), value.copy()])
        kind = exp.Anonymous(this="typeof", expressions=[value.copy()])
        text = case((eq(kind, lit("real")), exact), default=text)
    return WireColumn(name, type_, "string", text)


def _sqlite_type(declared: str) -> str:
    precise = re.fullmatch(r"(?:DECIMAL|NUMERIC)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", declared)
    if precise:
        return f"decimal({precise[1]},{precise[2] or 0})"
    rules = (
        (r"^(DECIMAL|NUMERIC)", "decimal(38,18)"),
        (r"TIMESTAMP.*(WITH TIME ZONE|TZ)", "timestamp"),
        (r"^(DATETIME|TIMESTAMP)", "timestamp_ntz"),
        (r"^DATE", "date"),
        (r"^BOOL", "boolean"),
        (r"INT", "bigint"),
        (r"CHAR|CLOB|TEXT|JSON|UUID|TIME", "string"),
        (r"BLOB|BINARY", "binary"),
        (r"REAL|FLOA|DOUB", "double"),
    )
    return next((type_ for pattern, type_ in rules if re.search(pattern, declared)), "string")


def _generic_column(name: str, type_: Any) -> WireColumn:
    """Any other database, through SQLAlchemy's generic types."""
    generic = type(type_.as_generic(allow_nulltype=True)).__name__
    spark = {
        "Integer": "int", "SmallInteger": "smallint", "BigInteger": "bigint", "Float": "double", "Double": "double",
        "Boolean": "boolean", "Date": "date", "LargeBinary": "binary", "String": "string", "Text": "string",
        "Unicode": "string", "UnicodeText": "string",
    }.get(generic)  # fmt: skip
    if generic == "DateTime":
        spark = "timestamp" if getattr(type_, "timezone", False) else "timestamp_ntz"
    if generic == "Numeric":
        precision = getattr(type_, "precision", None) or 38
        spark = f"decimal({precision},{getattr(type_, 'scale', None) or (18 if precision == 38 else 0)})"
    value = col(name, "q")
    if spark is None:
        return WireColumn(
            name, "string", "string", exp.Cast(this=value, to=exp.DataType.build("varchar(4000)"))
        )
    return WireColumn(name, spark, spark, value)


# --- partitions --------------------------------------------------------------------------------------------


def _find(name: str, known: list[str], source: SqlSource) -> str:
    found = next((k for k in known if k.casefold() == name.casefold()), None)
    if found is None:
        raise UnknownColumn(name, known, where=f"{source.label}, partition_column")
    return found


def _bounds(
    connection: sqlalchemy.Connection, origin: exp.Expr, column: str, parts: int, dialect: str
) -> list[str]:
    """Predicates that split a numeric, date or timestamp column into even ranges; together they cover every row."""
    from datetime import date, datetime
    from decimal import Decimal

    value = col(column, "q")
    tree = select(exp.Min(this=value), exp.Max(this=value.copy())).from_(origin)
    low, high = connection.exec_driver_sql(tree.sql(dialect=dialect)).one()
    if low is None or low == high or parts == 1:
        return []
    if isinstance(low, str):  # SQLite keeps dates as text, which sorts as they do
        low, high = datetime.fromisoformat(low), datetime.fromisoformat(high)
        low, high = (low.date(), high.date()) if len(str(low)) == 10 else (low, high)
    if not isinstance(low, int | float | Decimal | date | datetime):
        raise ReadError(
            f"partition_column `{column}` holds {type(low).__name__} values",
            hint="choose a numeric or date column",
        )
    step = (high - low) / parts
    cuts = [low + step * i for i in range(1, parts)]
    cuts = sorted({int(c) for c in cuts} if isinstance(low, int) else set(cuts))
    return _ranges([_cut(c) for c in cuts], dialect)


def _cut(value: Any) -> exp.Expr:
    from datetime import date, datetime

    if isinstance(value, datetime):
        return lit(value.isoformat(sep=" "))
    return lit(value.isoformat()) if isinstance(value, date) else exp.Literal.number(str(value))


def _ranges(cuts: list[exp.Expr], dialect: str) -> list[str]:
    part = col(PART)
    first = exp.or_(exp.LT(this=part, expression=cuts[0]), exp.Is(this=part, expression=exp.null()))
    middle = [
        exp.and_(exp.GTE(this=part, expression=a), exp.LT(this=part, expression=b))
        for a, b in pairwise(cuts)
    ]
    last = exp.GTE(this=part, expression=cuts[-1])
    return [tree.sql(dialect=dialect) for tree in (first, *middle, last)]
