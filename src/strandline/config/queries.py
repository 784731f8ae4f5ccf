"""Reading the SQL that users write: one SELECT, a condition, a type. Spark's dialect, parsed and never run here.

sqlglot is imported inside the functions, so that `strandline --help` does not pay for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from strandline.errors import did_you_mean

if TYPE_CHECKING:
    from sqlglot import exp

SIMPLE_TYPES = {
    "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "float", "real", "double",
    "decimal", "dec", "numeric", "string", "binary", "date", "timestamp", "timestamp_ltz", "timestamp_ntz",
}  # fmt: skip
NESTED_TYPES = {"array", "map", "struct"}
TYPES_HINT = (
    "types are boolean, tinyint, smallint, int, bigint, float, double, decimal(p,s), string, binary, date, timestamp, "
    "timestamp_ntz, and for json also array<…>, map<…,…>, struct<name:type>"
)
ROW_FUNCTIONS = {
    "range", "explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer", "stack",
    "json_tuple",
}  # fmt: skip
"""Functions that may stand after FROM: they make rows from values and read no table."""


class SqlError(ValueError):
    """The SQL cannot be used; says what was found, and what to write instead."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


@lru_cache(maxsize=1024)
def parse_select(sql: str) -> exp.Query:
    """The tree of one SELECT. It is shared: copy it before changing it."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        parsed = [
            tree
            for tree in sqlglot.parse(sql, dialect="spark")
            if tree and not isinstance(tree, exp.Semicolon)
        ]
    except SqlglotError as error:
        raise SqlError(f"this SQL cannot be read: {_where(error)}") from error
    except RecursionError as error:
        raise SqlError("this SQL is nested too deeply") from error
    if len(parsed) != 1:
        raise SqlError(f"expected one SELECT statement, found {len(parsed)}")
    tree = parsed[0]
    if not isinstance(tree, exp.Query) or tree.find(exp.Into):
        raise SqlError(
            f"expected one SELECT statement, found {tree.key.upper()}",
            "the SQL only makes the rows; `write` says where they go",
        )
    return tree


def unknown_tables(sql: str, aliases: Iterable[str]) -> Iterator[SqlError]:
    """What the SQL reads that is neither one of its sources nor one of its own CTEs."""
    from sqlglot import exp

    known = {alias.casefold(): alias for alias in aliases}
    seen: set[str] = set()
    for table in parse_select(sql).find_all(exp.Table):
        shown = exp.Table(
            this=table.this, db=table.args.get("db"), catalog=table.args.get("catalog")
        ).sql("spark")
        if shown.casefold() in seen:
            continue
        seen.add(shown.casefold())
        if isinstance(table.this, exp.Func):
            if _function_name(table.this) not in ROW_FUNCTIONS:
                yield SqlError(
                    f"the SQL reads `{shown}`, but it may read only its sources: {_listed(known.values())}"
                )
        elif table.db or (table.name.casefold() not in known and not _is_cte(table)):
            yield SqlError(
                f"the SQL reads `{shown}`, which is not one of its sources: {_listed(known.values())}",
                did_you_mean(table.name, known.values())
                or f"write FROM {next(iter(known.values()))}",
            )


def unknown_qualifiers(
    tree: exp.Expr, sources: Iterable[str], columns: Iterable[str] = ()
) -> Iterator[SqlError]:
    """Names in front of columns that no table of the SQL has, nor, as a struct, one of the `columns`."""
    from sqlglot import exp

    known = {name.casefold() for name in columns}
    for part in tree.find_all(exp.Table, exp.CTE, exp.Subquery, exp.Alias, exp.TableAlias):
        known |= {part.alias_or_name.casefold(), part.name.casefold()}
        known |= {column.name.casefold() for column in part.args.get("columns") or ()}
    known |= {
        name.name.casefold() for part in tree.find_all(exp.Lambda) for name in part.expressions
    }
    listed, seen = list(sources), set[str]()
    for column in tree.find_all(exp.Column):
        name = column.parts[0].name
        if len(column.parts) == 1 or name.casefold() in known | seen:
            continue
        seen.add(name.casefold())
        if name.casefold() in (source.casefold() for source in listed):
            yield SqlError(
                f"`{column.sql('spark')}`: the SQL does not read `{name}`",
                f"add it with JOIN {name} ON …",
            )
            continue
        message = f"`{column.sql('spark')}`: `{name}` is not one of the sources: {_listed(listed)}"
        yield SqlError(message, did_you_mean(name, listed) or f"write {listed[0]}.{column.name}")


def check_condition(sql: str) -> None:
    """Refuse an update_condition that is no condition over `source.` and `target.` columns."""
    from sqlglot import exp

    tree = _condition(sql, "a condition compares two rows")
    for column in tree.find_all(exp.Column):
        first = column.parts[0].name
        if len(column.parts) == 1 or first.casefold() not in ("source", "target"):
            raise SqlError(
                f"`{column.sql('spark')}` is neither a source. nor a target. column",
                f"write source.{column.name} for the new row, target.{column.name} for the stored one",
            )


def check_filter(sql: str) -> None:
    """Refuse a target_filter that is no condition over the table's own columns, bare or as `target.` columns."""
    from sqlglot import exp

    tree = _condition(sql, "a filter looks at one row of the table")
    if isinstance(tree, exp.Literal | exp.Command):
        raise SqlError(
            f"expected a condition, found `{sql.strip()}`", "for example region = 'EMEA'"
        )
    for column in tree.find_all(exp.Column):
        if column.parts[0].name.casefold() == "source" and len(column.parts) > 1:
            hint = f"write {column.name}, the column of the table"
            raise SqlError(
                f"`{column.sql('spark')}` is a column of the new rows, and a deleted row has none",
                hint,
            )


def check_row(sql: str) -> None:
    """Refuse a delete_when that is no condition over the columns of one new row."""
    from sqlglot import exp

    tree = _condition(sql, "a condition looks at one new row")
    if isinstance(tree, exp.Literal | exp.Command):
        raise SqlError(f"expected a condition, found `{sql.strip()}`", "for example op = 'D'")
    for column in tree.find_all(exp.Column):
        if len(column.parts) > 1:
            message = (
                f"`{column.sql('spark')}` names a table, and the condition looks at one new row"
            )
            raise SqlError(message, f"write {column.name}")


def _condition(sql: str, what: str) -> exp.Expr:
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        tree = exp.maybe_parse(sql, into=exp.Condition, dialect="spark")
    except SqlglotError as error:
        raise SqlError(f"this condition cannot be read: {_where(error)}") from error
    except RecursionError as error:
        raise SqlError("this condition is nested too deeply") from error
    if refused := tree.find(exp.Query, exp.AggFunc, exp.Window, exp.Star):
        raise SqlError(f"{what}; `{refused.sql('spark')}` looks at others")
    return tree


def check_type(text: str, *, nested: bool) -> None:
    """Refuse what is not a type of Spark; `nested` allows array, map and struct."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    # sqlglot also takes other databases' names (text, uuid, datetime), which Spark does not know: the words decide.
    words = re.findall(r"[A-Za-z_]\w*(?!\w|\s*:)", re.sub(r"`[^`]*`\s*:", "", text))
    known = SIMPLE_TYPES | NESTED_TYPES
    for word in words:
        if word.casefold() not in known:
            raise SqlError(
                f"`{text}` is not a type of Spark", did_you_mean(word, sorted(known)) or TYPES_HINT
            )
    try:
        tree = exp.DataType.build(text, dialect="spark") if _balanced(text) else None
    except (SqlglotError, RecursionError):
        tree = None
    if not words or not isinstance(tree, exp.DataType):
        raise SqlError(f"`{text}` is not a type of Spark", TYPES_HINT)
    if not nested and words[0].casefold() in NESTED_TYPES:
        raise SqlError(
            f"a csv column cannot be `{text}`",
            "read it as string, and parse it in a step or in SQL",
        )
    for precision, scale in re.findall(r"\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", text):
        if not 1 <= int(precision) <= 38 or int(scale or 0) > int(precision):
            raise SqlError(f"`{text}`: a decimal has 1 to 38 digits, its scale at most as many")


def _where(error: Exception) -> str:
    for detail in getattr(error, "errors", None) or []:
        if description := detail.get("description"):
            text = re.sub(r"<class '[\w.]*?(\w+)'>", r"\1", description).rstrip(".")
            near = detail.get("highlight")
            at = (
                f" (line {detail['line']}, column {detail['col']} of the SQL)"
                if detail.get("line")
                else ""
            )
            return f"{text}{f' near `{near}`' if near else ''}{at}"
    return re.sub(r"\x1b\[\d+m", "", str(error)).splitlines()[0].split(" into <class")[0]


def _function_name(function: exp.Func) -> str:
    from sqlglot import exp

    return (
        function.name if isinstance(function, exp.Anonymous) else function.sql_name()
    ).casefold()


def tables_read(sql: str, dialect: str) -> list[str]:
    """The tables that a query of a database reads, without its CTEs; none when it cannot be read."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        tree = sqlglot.parse_one(sql, dialect=dialect)
    except (SqlglotError, RecursionError):  # the database has the last word on its own SQL
        return []
    tables = (t for t in tree.find_all(exp.Table, bfs=False) if t.name and not _is_cte(t))
    return list(dict.fromkeys(".".join(part.name for part in t.parts) for t in tables))


def _is_cte(table: exp.Table) -> bool:
    from sqlglot import exp

    scope = table.find_ancestor(exp.Query)
    while scope is not None:
        if any(cte.alias.casefold() == table.name.casefold() for cte in scope.ctes):
            return True
        scope = scope.find_ancestor(exp.Query)
    return False


def _balanced(text: str) -> bool:
    bare = re.sub(r"`[^`]*`", "", text)
    return all(bare.count(a) == bare.count(b) for a, b in ("()", "<>")) and "`" not in bare


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"
