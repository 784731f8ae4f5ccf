"""What kind of fault a database reports: by its class and code; by its words only where it has neither."""

from __future__ import annotations

import re
import sqlite3
from typing import Literal

from sqlalchemy.exc import (
    DBAPIError,
    DisconnectionError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
)

Kind = Literal["down", "busy", "refused", "mistake"]

_STATES: tuple[tuple[str, Kind], ...] = (
    (r"08...|57P0[1235]|57014|53...|HYT0[01]", "down"),
    (r"40001|40P01|55P03", "busy"),
    (r"28...", "refused"),
)
_SQLITE: dict[int, Kind] = {
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_LOCKED: "busy",
    sqlite3.SQLITE_PROTOCOL: "busy",
    sqlite3.SQLITE_CANTOPEN: "down",
    sqlite3.SQLITE_IOERR: "down",
}
_MYSQL: dict[int, Kind] = {
    1040: "down",
    1053: "down",
    1205: "busy",
    1213: "busy",
    1044: "refused",
    1045: "refused",
}


def kind_of(error: SQLAlchemyError | OSError) -> Kind:
    """Is a database down, busy, refusing the user, or is the question wrong?"""
    if isinstance(error, OSError | DisconnectionError):
        return "down"
    driver = error.orig if isinstance(error, DBAPIError) else None
    if driver is None:
        return "mistake"
    coded = of_state(_state(driver)) or _of_number(driver)
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return "busy" if coded == "busy" else "down"
    if coded:
        return coded
    if isinstance(driver.__cause__, ConnectionError | TimeoutError):
        return "down"
    return (
        _of_words(str(driver))
        if isinstance(error, OperationalError | InterfaceError)
        else "mistake"
    )


def of_state(state: str | None) -> Kind | None:
    """What an SQLSTATE stands for; None where there is none."""
    if not state:
        return None
    return next((kind for pattern, kind in _STATES if re.fullmatch(pattern, state)), "mistake")


def of_sqlite(code: int) -> Kind:
    """What a result code of SQLite stands for; extended codes hold the plain one in their lowest byte."""
    return _SQLITE.get(code & 0xFF, "mistake")


def _state(driver: BaseException) -> str | None:
    """The driver's SQLSTATE; ODBC drivers have it as their first argument."""
    first = driver.args[0] if driver.args else None
    odbc = first if isinstance(first, str) and re.fullmatch(r"[0-9A-Z]{5}", first) else None
    return getattr(driver, "sqlstate", None) or getattr(driver, "pgcode", None) or odbc


def _of_number(driver: BaseException) -> Kind | None:
    if isinstance(driver, sqlite3.Error):
        return of_sqlite(getattr(driver, "sqlite_errorcode", sqlite3.SQLITE_ERROR))
    number = driver.args[0] if driver.args else None
    if not isinstance(number, int):
        return None
    return (
        "down" if 2000 <= number < 2100 else _MYSQL.get(number, "mistake")
    )  # 20xx: the client, not the server


def _of_words(text: str) -> Kind:
    """While it connects, libpq gives no code: what the server answers is FATAL, all else is no answer."""
    if re.search(r"(?i)password authentication failed|access denied|no password supplied", text):
        return "refused"
    passing = r"(?i)starting up|shutting down|recovery|too many|connection slots|terminating"
    return "mistake" if "FATAL:" in text and not re.search(passing, text) else "down"
