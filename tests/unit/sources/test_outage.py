"""Databases' faults are told apart by class and code: what passes by itself is tried again, a mistake is not."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace

import psycopg
import pytest
from psycopg import errors as pg
from py4j.protocol import Py4JError
from sqlalchemy.exc import DisconnectionError, InterfaceError, OperationalError, ProgrammingError

from strandline.engine.sources.sql import translate
from strandline.engine.spark.failures import _translate
from strandline.errors import SourceDown
from strandline.testing.projects import make_project

ENDPOINT = SimpleNamespace(name="erp", url=SimpleNamespace(password=None, username="etl"))


def told(error):
    found = translate(error, ENDPOINT)
    return found.retryable, found.message.removeprefix("connection `erp`: ").split(":")[0]


def wrapped(driver, class_=OperationalError, **more):
    return class_("SELECT", {}, driver, **more)


DOWN, BUSY = (True, "the database cannot be reached"), (True, "the database is busy")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (wrapped(psycopg.OperationalError("SSL SYSCALL error: EOF detected")), DOWN),
        (
            wrapped(
                psycopg.OperationalError(
                    "could not receive data from server: Connection reset by peer"
                )
            ),
            DOWN,
        ),
        (wrapped(psycopg.OperationalError("server closed the connection unexpectedly")), DOWN),
        (wrapped(psycopg.OperationalError("Verbindungsaufbau abgelehnt")), DOWN),
        (wrapped(psycopg.OperationalError("FATAL:  the database system is starting up")), DOWN),
        (wrapped(psycopg.InterfaceError("gone"), InterfaceError), DOWN),
        (wrapped(pg.AdminShutdown("x")), DOWN),
        (wrapped(pg.TooManyConnections("x")), DOWN),
        (wrapped(pg.QueryCanceled("x")), DOWN),
        (wrapped(pg.SerializationFailure("x")), BUSY),
        (wrapped(pg.DeadlockDetected("x")), BUSY),
        (wrapped(ConnectionResetError("x"), ProgrammingError, connection_invalidated=True), DOWN),
        (wrapped(Exception(2013, "Lost connection to MySQL server during query")), DOWN),
        (wrapped(Exception("08S01", "[08S01] link failure")), DOWN),
        (DisconnectionError("x"), DOWN),
        (TimeoutError("x"), DOWN),
    ],
    ids=str,
)
def test_what_passes_by_itself_is_tried_again(error, expected):
    assert told(error) == expected


@pytest.mark.parametrize(
    "error",
    [
        wrapped(pg.UndefinedColumn("column closed_at does not exist"), ProgrammingError),
        wrapped(pg.InsufficientPrivilege("connection refused"), ProgrammingError),
        wrapped(psycopg.OperationalError('FATAL:  database "timeout" does not exist')),
        wrapped(Exception(1054, "Unknown column 'closed_at' in 'field list'")),
        wrapped(Exception("42S22", "[42S22] Invalid column name 'timeout'")),
    ],
    ids=str,
)
def test_a_mistake_is_not(error):
    retryable, said = told(error)
    assert not retryable
    assert "reached" not in said


def test_a_user_refused_by_code():
    assert told(wrapped(pg.InvalidPassword("x"))) == (
        False,
        "the database refused user `etl`",
    )


def test_sqlite_tells_by_its_code(tmp_path):
    file = tmp_path / "shop.db"
    holder, other = sqlite3.connect(file), sqlite3.connect(file, timeout=0)
    holder.execute("CREATE TABLE c (id INTEGER)")
    for sql, expected in (
        ("SELECT closed_at FROM c", (False, "no such column")),
        ("SELECT * FROM c", BUSY),
    ):
        holder.execute("BEGIN EXCLUSIVE") if expected == BUSY else None
        with pytest.raises(sqlite3.OperationalError) as e:
            other.execute(sql)
        assert told(wrapped(e.value)) == expected
    holder.close()
    other.close()
    with pytest.raises(sqlite3.OperationalError) as e:
        sqlite3.connect(tmp_path / "no" / "such.db")
    assert told(wrapped(e.value)) == DOWN


def test_a_column_that_is_not_there_is_asked_for_once(tmp_path, pandas_platform, caplog):
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.execute("CREATE TABLE c (id INTEGER)")
    connection.close()
    node = {
        "name": "n",
        "read": {"connection": "erp", "query": "SELECT id, closed_at FROM c"},
        "write": {"connection": "lake", "table": "t", "mode": "append"},
    }
    project = make_project(
        tmp_path, [node], connections={"erp": {"type": "sql", "url": "sqlite:///shop.db"}}
    )
    error = project.run(platform=pandas_platform).nodes[0].error
    assert error["code"] == "read"
    assert "no such column: closed_at" in error["message"]
    assert "attempt" not in caplog.text


def java(*classes, state=None, code=0, cause=None):
    """A throwable as py4j shows it."""
    chain = None
    for name in reversed(classes):
        chain = SimpleNamespace(getName=lambda n=name: n, getSuperclass=lambda c=chain: c)
    return SimpleNamespace(
        getClass=lambda: chain,
        getCause=lambda: cause,
        getSQLState=lambda: state,
        getErrorCode=lambda: code,
    )


SQL = ("java.sql.SQLException", "java.lang.Exception")
POSTGRES = ("org.postgresql.util.PSQLException", *SQL)
SPARK = ("org.apache.spark.SparkException", "java.lang.Exception")


@pytest.mark.parametrize(
    ("thrown", "down"),
    [
        (java(*SPARK, cause=java(*POSTGRES, state="57P01")), True),
        (java(*POSTGRES, state="40001"), True),
        (java(*POSTGRES, state="42703"), False),
        (java("java.sql.SQLNonTransientConnectionException", *SQL), True),
        (java(*SPARK, cause=java("java.net.ConnectException", "java.net.SocketException")), True),
        (java("org.sqlite.SQLiteException", *SQL, code=5), True),
        (java("org.sqlite.SQLiteException", *SQL, code=1), False),
        (java(*SPARK), True),
    ],
)
def test_spark_tells_by_what_java_threw(thrown, down):
    error = Py4JError("x")
    error.java_exception = thrown
    text = "the column `connection was refused` is not there"  # read only where Java has neither state nor class
    assert isinstance(_translate(error, text, "n", []), SourceDown) is down
