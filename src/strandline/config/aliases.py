"""Names in front of columns that no source, table or struct of a node's SQL can have."""

from __future__ import annotations

import re
from collections.abc import Iterator

from strandline.config.connections import FilesConnection, SqlConnection
from strandline.config.expectation_advice import texts_of
from strandline.config.parts import NodeParts, Parts
from strandline.config.positions import Loc, Mistake
from strandline.config.queries import SqlError, parse_select, unknown_qualifiers, unknown_tables
from strandline.config.reads import ReadConfig

_NESTS = re.compile(r"(?i)struct|map|json|xml|variant")
_PLAIN_STEPS = {
    "deduplicate", "detect_deletes", "generate_surrogate_key", "filter", "rename", "cast", "derive", "select", "drop",
    "sql", "hash_columns", "validate",
}  # fmt: skip


def sql_mistakes(parts: Parts, node: NodeParts) -> Iterator[Mistake]:
    """What a node's SQL names that is not there: its own, and that of its `sql` steps."""
    if node.sql is not None:
        yield from _mistakes(parts, node, (*node.loc, "transformation_sql"), node.sql, node.aliases)
    for loc, step in node.steps:
        query = step.params.get("query") if step.operation == "sql" else None
        if isinstance(query, str):
            yield from _mistakes(parts, node, (*loc, "params", "query"), query, ["source"])
    if (parts.engine or parts.raw.get("engine", "spark")) != "spark":
        yield from _unknown_functions(node)


def _unknown_functions(node: NodeParts) -> Iterator[Mistake]:
    """Functions and clauses that the local engine does not have, each once."""
    from strandline.errors import TransformError
    from strandline.sql.portable import parse
    from strandline.sql.tested import untested

    for loc, sql in _texts(node):
        try:
            found = dict(untested(parse(sql, "sql")))
        except (TransformError, RecursionError):  # it cannot be read, which is told elsewhere
            continue
        yield from (Mistake(loc, message, hint) for message, hint in found.items())


def _texts(node: NodeParts) -> Iterator[tuple[Loc, str]]:
    """All SQL of a node that an engine runs."""
    if node.sql is not None:
        yield (*node.loc, "transformation_sql"), node.sql
    for loc, step in node.steps:
        match step.operation, step.params:
            case "sql", {"query": str(sql)}:
                yield (*loc, "params", "query"), sql
            case "validate", {"expectations": list(expectations)}:
                for at, name, sql in texts_of(expectations):
                    yield (*loc, "params", "expectations", at, name), sql
            case "filter", {"condition": str(sql)}:
                yield (*loc, "params", "condition"), sql
            case "derive", {"columns": dict(columns)}:
                for name, sql in columns.items():
                    if isinstance(sql, str):
                        yield (*loc, "params", "columns", name), sql


def _mistakes(
    parts: Parts, node: NodeParts, loc: Loc, sql: str, aliases: list[str]
) -> Iterator[Mistake]:
    try:
        parse_select(sql)
    except SqlError as error:
        if loc[-1] == "query":  # of a node's own SQL the model tells it
            yield Mistake(loc, error.message, error.hint)
        return
    found = list(unknown_tables(sql, aliases))
    if not found and not _nests(parts, node, set()):
        found = list(unknown_qualifiers(parse_select(sql), aliases))
    yield from (Mistake(loc, mistake.message, mistake.hint) for mistake in found)


def _nests(parts: Parts, node: NodeParts, seen: set[Loc]) -> bool:
    """May a column of its rows be a struct or a map? Then `a.b` may be a part of it, and `a` no table."""
    if node.loc in seen:
        return False
    seen.add(node.loc)
    steps = [step for _, step in node.steps]
    texts = [node.sql or "", *(str(step.params) for step in steps)]
    own = any(step.operation not in _PLAIN_STEPS for step in steps) or any(
        map(_NESTS.search, texts)
    )
    return own or not node.whole or any(_read_nests(parts, read, seen) for _, read in node.reads)


def _read_nests(parts: Parts, read: ReadConfig, seen: set[Loc]) -> bool:
    connection = parts.connections.get(read.connection)
    if isinstance(connection, SqlConnection):
        return False
    if isinstance(connection, FilesConnection):
        return read.file_format != "csv"
    writers = [
        n
        for n in parts.nodes
        if n.write and (n.write.connection, n.write.table) == (read.connection, read.table)
    ]
    return not writers or any(_nests(parts, writer, seen) for writer in writers)
