# ruff: noqa: E501 – one line per case reads as a table
"""One change to a right project, one problem: message, line, key and hint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.config.conftest import Problems, Write, changed

READ = "read: {connection: erp, table: customers}"
READ_LAKE = "read: {connection: bronze, table: customers}"
APPEND = "write: {connection: bronze, table: customers, mode: append, add_metadata: true}"
UPSERT = "write: {connection: silver, table: customers, mode: upsert, keys: [customer_id]}"
SQL = "SELECT customer_id, name FROM source"
BRONZE, SILVER = "nodes[bronze_customers]", "nodes[silver_customers]"

# what to change, to what, line, key, message, hint
MODEL: dict[str, tuple[str, str, int, str, str, str | None]] = {
    "unknown key": (READ, "read: {connection: erp, table: t, formt: sql}", 10, f"{BRONZE}.read.formt", "unknown key `formt`", "did you mean `format`?"),
    "unknown key, none near": ("engine: pandas", "zzz: 1", 2, "zzz", "unknown key `zzz`", "known keys are project, engine"),
    "alias of a field": (READ, "read: {connection: files, path: a.csv, schema_: {a: int}}", 10, f"{BRONZE}.read.schema_", "unknown key `schema_`", "`schema`"),
    "wrong type": ("keys: [customer_id]", "keys: customer_id", 15, f"{SILVER}.write.keys", "expected a list of strings, found 'customer_id' (text)", None),
    "nothing": ("keys: [customer_id]", "keys: null", 15, f"{SILVER}.write.keys", "expected a list of strings, found nothing", None),
    "a number for a text": ("table: customers, mode: append", "table: 2024, mode: append", 11, f"{BRONZE}.write.table", "expected text, found 2024 (a whole number)", 'put it in quotes: "2024"'),
    "a map for a flag": ("add_metadata: true", "add_metadata: maybe", 11, f"{BRONZE}.write.add_metadata", "expected true or false or a map, found 'maybe' (text)", None),
    "key of metadata": ("add_metadata: true", "add_metadata: {extracted: true}", 11, f"{BRONZE}.write.add_metadata.extracted", "unknown key `extracted`", "did you mean `extracted_at`?"),
    "missing": (APPEND, "tags: []", 9, f"{BRONZE}.write", "`write` is missing", None),
    "bad literal": ("mode: append", "mode: apend", 11, f"{BRONZE}.write.mode", "expected one of `append`, `overwrite`, `upsert`, `scd2`, found 'apend' (text)", "did you mean `append`?"),
    "bad engine": ("engine: pandas", "engine: polars", 2, "engine", "expected one of `spark`, `local`, found 'polars' (text)", None),
    "bad connection type": ("{type: files, path: landing}", "{type: file, path: landing}", 5, "connections.files.type", "expected one of `sql`, `files`, `lake`, found 'file' (text)", "did you mean `files`?"),
    "no connection type": ("{type: files, path: landing}", "{path: landing}", 5, "connections.files.type", "`type` is missing", "it is one of `sql`, `files`, `lake`"),
    "key of a connection": ("{type: files, path: landing}", "{type: files, pth: landing, path: x}", 5, "connections.files.pth", "unknown key `pth`", "did you mean `path`?"),
    "project name": ("project: shop", "project: my shop", 1, "project", "expected letters, digits, `_` and `-`, found 'my shop' (text)", None),
    "node name": ("name: bronze_customers", "name: a/b", 9, "nodes[a/b].name", "expected letters, digits, `_`, `-` and `.`, found 'a/b' (text)", None),
    "empty text": ("table: customers, mode: append", 'table: "", mode: append', 11, f"{BRONZE}.write.table", "this may not be empty", None),
    "spark config": ("engine: pandas", "spark: {config: {a: [1]}}", 2, "spark.config.a", "expected text or a whole number or a number or true or false, found a list", None),
    # reads
    "nothing to read": (READ, "read: {connection: erp}", 10, f"{BRONZE}.read", "one of `table`, `query` and `path` is missing", None),
    "two things to read": (READ, "read: {connection: erp, table: a, query: select 1}", 10, f"{BRONZE}.read.query", "`query` and `table` exclude each other", "exactly one"),
    "sql with a path": (READ, "read: {connection: erp, format: sql, path: a.csv}", 10, f"{BRONZE}.read.format", "`format: sql` reads a `table` or a `query`", None),
    "csv with a table": (READ, "read: {connection: files, format: csv, table: a}", 10, f"{BRONZE}.read.format", "`format: csv` reads a `path`, not a `table`", None),
    "schema of parquet": (READ, "read: {connection: files, path: a.parquet, schema: {a: int}}", 10, f"{BRONZE}.read.schema", "`schema` is for csv and json files only", "`cast` step"),
    "no such type": (READ, "read: {connection: files, path: a.csv, schema: {a: bigintt}}", 10, f"{BRONZE}.read.schema.a", "`bigintt` is not a type of Spark", "`bigint`"),
    "type of another database": (READ, "read: {connection: files, path: a.csv, schema: {a: uuid}}", 10, f"{BRONZE}.read.schema.a", "`uuid` is not a type of Spark", "types are boolean, tinyint"),
    "unbalanced type": (READ, 'read: {connection: files, path: a.csv, schema: {a: "decimal(10"}}', 10, f"{BRONZE}.read.schema.a", "`decimal(10` is not a type", None),
    "too many digits": (READ, 'read: {connection: files, path: a.csv, schema: {a: "decimal(39,2)"}}', 10, f"{BRONZE}.read.schema.a", "a decimal has 1 to 38 digits", None),
    "nested type in csv": (READ, 'read: {connection: files, path: a.csv, schema: {a: "array<int>"}}', 10, f"{BRONZE}.read.schema.a", "a csv column cannot be `array<int>`", None),
    "schema names": (READ, "read: {connection: files, path: a.csv, schema: {a: int, A: int}}", 10, f"{BRONZE}.read.schema.A", "column `A` is given twice", None),
    "options of json": (READ, "read: {connection: files, path: a.json, options: {header: true}}", 10, f"{BRONZE}.read.options", "`options` are for csv files only", None),
    "delimiter": (READ, 'read: {connection: files, path: a.csv, options: {delimiter: "||"}}', 10, f"{BRONZE}.read.options.delimiter", "expected one character, found '||'", None),
    "encoding": (READ, "read: {connection: files, path: a.csv, options: {encoding: latin1x}}", 10, f"{BRONZE}.read.options.encoding", "there is no encoding `latin1x`", "did you mean `latin-1`?"),
    "one of a pair": (READ, "read: {connection: erp, table: a, num_partitions: 4}", 10, f"{BRONZE}.read.num_partitions", "`num_partitions` needs `partition_column` too", None),
    "no partitions": (READ, "read: {connection: erp, table: a, partition_column: a, num_partitions: 0}", 10, f"{BRONZE}.read.num_partitions", "expected greater than or equal to 1, found 0", None),
    "partitions of files": (READ, "read: {connection: files, path: a.csv, partition_column: a, num_partitions: 2}", 10, f"{BRONZE}.read.partition_column", "for tables and queries of a database only", None),
    # writes
    "upsert without keys": (", keys: [customer_id]", "", 15, f"{SILVER}.write.keys", "mode: upsert needs keys: [...]", None),
    "append with keys": ("add_metadata: true", "keys: [a]", 11, f"{BRONZE}.write.keys", "`keys` does nothing with mode: append", "mode: upsert"),
    "append with a condition": ("add_metadata: true", "update_condition: source.a > target.a", 11, f"{BRONZE}.write.update_condition", "`update_condition` does nothing with mode: append", None),
    "append with row_hash": ("add_metadata: true", "row_hash: false", 11, f"{BRONZE}.write.row_hash", "`row_hash` does nothing", None),
    "condition on a bare column": ("keys: [customer_id]", "keys: [a], update_condition: amount > target.amount", 15, f"{SILVER}.write.update_condition", "`amount` is neither a source. nor a target. column", "source.amount"),
    "condition on another table": ("keys: [customer_id]", "keys: [a], update_condition: s.amount > 1", 15, f"{SILVER}.write.update_condition", "`s.amount` is neither", None),
    "condition with a query": ("keys: [customer_id]", "keys: [a], update_condition: exists(select 1)", 15, f"{SILVER}.write.update_condition", "a condition compares two rows", None),
    "condition that is none": ("keys: [customer_id]", 'keys: [a], update_condition: "source.a >"', 15, f"{SILVER}.write.update_condition", "this condition cannot be read", None),
    "keys repeat": ("keys: [customer_id]", "keys: [id, ID]", 15, f"{SILVER}.write.keys[1]", "column `ID` stands twice in `keys`", None),
    "partitions repeat": ("add_metadata: true", "partition_by: [a, b, A]", 11, f"{BRONZE}.write.partition_by[2]", "column `A` stands twice in `partition_by`", None),
    # nodes
    "read and sources": (READ, READ + "\n    sources: [{connection: erp, table: a, alias: a}]", 11, f"{BRONZE}.sources", "`read` and `sources` exclude each other", None),
    "neither": (READ, "tags: [a]", 9, BRONZE, "one of `read` and `sources` is missing", None),
    "sources without SQL": (READ, "sources: [{connection: erp, table: a, alias: a}, {connection: erp, table: b, alias: b}]", 10, f"{BRONZE}.sources", "several sources need a `transformation_sql`", None),
    "alias twice": (READ, "sources: [{connection: erp, table: a, alias: a}, {connection: erp, table: b, alias: A}]\n    transformation_sql: SELECT 1 AS x", 10, f"{BRONZE}.sources[1].alias", "alias `A` stands twice", None),
    "alias that is none": (READ, 'sources: [{connection: erp, table: a, alias: "a b"}]', 10, f"{BRONZE}.sources[0].alias", "expected a letter or `_`", None),
    "steps over two sources": (READ, "sources: [{connection: erp, table: a, alias: a}, {connection: erp, table: b, alias: b}]\n    transformation_sql: SELECT * FROM a JOIN b\n    transform:\n      steps: [{operation: drop, params: {columns: [a]}}]", 13, f"{BRONZE}.transform.steps", "steps work on one source, and this node has 2", "upstream node"),
    # SQL
    "SQL that is none": (SQL, "SELECT * FRO source", 14, f"{SILVER}.transformation_sql", "this SQL cannot be read", None),
    "two statements": (SQL, "SELECT 1; SELECT 2", 14, f"{SILVER}.transformation_sql", "expected one SELECT statement, found 2", None),
    "no SELECT": (SQL, "DELETE FROM source", 14, f"{SILVER}.transformation_sql", "expected one SELECT statement, found DELETE", None),
    "no source of ours": (SQL, "SELECT c.customer_id FROM source", 14, f"{SILVER}.transformation_sql", "`c.customer_id`: `c` is not one of the sources: `source`", "write source.customer_id"),
    "nearly a source": (SQL, "SELECT s.x FROM (SELECT sorce.x FROM source) s", 14, f"{SILVER}.transformation_sql", "`sorce.x`: `sorce` is not one of the sources: `source`", "did you mean `source`?"),
    "no table in a step": ("transformation_sql: " + SQL, "transform: {steps: [{operation: sql, params: {query: SELECT 1 FROM customers}}]}", 14, f"{SILVER}.transform.steps[0].params.query", "the SQL reads `customers`, which is not one of its sources: `source`", "write FROM source"),
    "no SQL in a step": ("transformation_sql: " + SQL, "transform: {steps: [{operation: sql, params: {query: SELECT FROM}}]}", 14, f"{SILVER}.transform.steps[0].params.query", "this SQL cannot be read", None),
    "a source that is not read": (READ_LAKE + "\n    transformation_sql: " + SQL, "sources: [{connection: bronze, table: customers, alias: a}, {connection: erp, table: x, alias: b}]\n    transformation_sql: SELECT a.customer_id, b.name FROM a", 14, f"{SILVER}.transformation_sql", "`b.name`: the SQL does not read `b`", "JOIN b ON"),
    "no table of ours": (SQL, "SELECT * FROM sorce", 14, f"{SILVER}.transformation_sql", "the SQL reads `sorce`, which is not one of its sources: `source`", "did you mean `source`?"),
    "a qualified table": (SQL, "SELECT * FROM db.source", 14, f"{SILVER}.transformation_sql", "the SQL reads `db.source`", None),
    "a path": (SQL, "SELECT * FROM delta.`/etc/x`", 14, f"{SILVER}.transformation_sql", "the SQL reads `delta.`/etc/x``", None),
    "a table by function": (SQL, "SELECT * FROM identifier('db.t')", 14, f"{SILVER}.transformation_sql", "it may read only its sources", None),
    "a subquery": (SQL, "SELECT * FROM source WHERE id IN (SELECT id FROM other)", 14, f"{SILVER}.transformation_sql", "the SQL reads `other`", None),
    "another scope's CTE": (SQL, "SELECT * FROM (WITH a AS (SELECT 1) SELECT * FROM a) CROSS JOIN a", 14, f"{SILVER}.transformation_sql", "the SQL reads `a`", None),
    "very deep SQL": (SQL, "SELECT " + "(" * 3000 + "1" + ")" * 3000, 14, f"{SILVER}.transformation_sql", "this SQL ", None),
}  # fmt: skip

CROSS: dict[str, tuple[str, str, int, str, str, str | None]] = {
    "unknown connection": (READ, "read: {connection: erpp, table: customers}", 10, f"{BRONZE}.read.connection", "unknown connection `erpp`", "did you mean `erp`?"),
    "unknown connection to write": (UPSERT, UPSERT.replace("silver", "slver"), 15, f"{SILVER}.write.connection", "unknown connection `slver`", "did you mean `silver`?"),
    "write to a database": (UPSERT, UPSERT.replace("silver", "erp"), 15, f"{SILVER}.write.connection", "a write needs a lake connection, and `erp` is a database", "type: lake"),
    "write to files": (UPSERT, UPSERT.replace("silver", "files"), 15, f"{SILVER}.write.connection", "`files` is a folder of files", None),
    "path of a database": (READ, "read: {connection: erp, path: a.csv}", 10, f"{BRONZE}.read.path", "`erp` is a database: give `table` or `query`, not `path`", None),
    "table of files": (READ, "read: {connection: files, table: a}", 10, f"{BRONZE}.read.table", "`files` is a folder of files: give `path`, not `table`", None),
    "query of a lake": (READ_LAKE, "read: {connection: bronze, query: select 1}", 13, f"{SILVER}.read.query", "`bronze` is a lake: give `table`, not `query`", None),
    "format of a lake": (READ_LAKE, "read: {connection: bronze, table: a, format: sql}", 13, f"{SILVER}.read.format", "a lake connection brings its own format", None),
    "partitions of a lake": (READ_LAKE, "read: {connection: bronze, table: a, partition_column: a, num_partitions: 2}", 13, f"{SILVER}.read.partition_column", "for tables and queries of a database only", None),
    "files without a format": (READ, "read: {connection: files, path: a.dat}", 10, f"{BRONZE}.read.path", "`format` is missing, and the name does not tell it", "csv, json or parquet"),
    "node twice": ("name: silver_customers", "name: Bronze_customers", 12, "nodes[Bronze_customers].name", "another node is called `bronze_customers` too", None),
    "table twice": (UPSERT, UPSERT.replace("silver", "bronze"), 15, f"{SILVER}.write.table", "also written by node `bronze_customers`", None),
    "table inside a table": (UPSERT, UPSERT.replace("silver, table: customers", "bronze, table: customers/x"), 15, f"{SILVER}.write.table", "lies inside the table of node `bronze_customers`", None),
    "table around a table": ("path: lake/silver", "path: lake/bronze/customers", 15, f"{SILVER}.write.table", "lies inside the table of node `bronze_customers`", None),
    "a lake below #": ("path: lake/silver", "path: 'lake/a#b'", 7, "connections.silver.path", "lake/a#b`, and table formats take `#` in a name", "move the project"),
    "a lake below %": ("path: lake/silver", "path: 'lake/a%20b'", 7, "connections.silver.path", "lake/a%20b`, and table formats take `%20` in a name", "another folder"),
    "a lake below ?": ("path: lake/silver", "path: 'lake/a?b'", 7, "connections.silver.path", "lake/a?b`, and table formats take `?` in a name", "another folder"),
    "a lake below ^": ("path: lake/silver", "path: 'lake/a^b'", 7, "connections.silver.path", "table formats take `^` in a name", "another folder"),
    "a lake below |": ("path: lake/silver", "path: 'lake/a|b'", 7, "connections.silver.path", "table formats take `|` in a name", "another folder"),
    "a lake below a backslash": ("path: lake/silver", "path: 'lake/a\\b'", 7, "connections.silver.path", "table formats take `\\` in a name", "another folder"),
    "a lake below a tab": ("path: lake/silver", 'path: "lake/a\\tb"', 7, "connections.silver.path", "lake/a\\tb`, and table formats take `\\t` in a name", "another folder"),
    "a remote lake": ("path: lake/silver", "path: s3://me:hunter2@bucket/silver", 7, "connections.silver.path", "`s3://bucket/silver` is not a folder of this machine, and strandline cannot work with object stores yet", "give the path of a folder"),
    "a remote folder": ("path: landing", "path: 'abfss://box@account.dfs.example/in'", 5, "connections.files.path", "`abfss://box@account.dfs.example/in` is not a folder of this machine", None),
    "a folder that executors may not see": ("engine: pandas", "spark: {master: 'spark://host:7077'}", 6, "connections.bronze.path", "`lake/bronze` is a folder of this machine; executors of Spark master spark://host:7077 may not see it", "add shared: true"),
    "files that executors may not see": ("engine: pandas", "spark: {config: {spark.master: yarn}}", 5, "connections.files.path", "executors of Spark master yarn may not see it", "add shared: true"),
    "depends on nobody": (READ, READ + "\n    depends_on: [silver_custmers]", 11, f"{BRONZE}.depends_on[0]", "unknown node `silver_custmers`", "did you mean `silver_customers`"),
    "control connection": ("engine: pandas", "control: {connection: brnze}", 2, "control.connection", "unknown connection `brnze`", "did you mean `bronze`?"),
    "control in a database": ("engine: pandas", "control: {connection: erp}", 2, "control.connection", "the control tables need a lake connection", None),
    "control outside": ("engine: pandas", "control: {schema: ../x}", 2, "control.schema", "the schema leaves its connection's path", None),
    "control table written": ("table: customers, mode: append", "table: _strandline/x, mode: append", 11, f"{BRONZE}.write.table", "reserved for the control tables", None),
    "control folder written": ("table: customers, mode: append", "table: _Strandline, mode: append", 11, f"{BRONZE}.write.table", "reserved for the control tables", None),
    # secrets
    "password": ('url: "sqlite:///shop.db"', 'url: "sqlite:///shop.db", password: hunter2', 4, "connections.erp.password", "Secrets never in files", "${env:ERP_PASSWORD}"),
    "password in the URL": ('"sqlite:///shop.db"', '"postgresql://etl:hunter2@db/shop"', 4, "connections.erp.url", "Secrets never in files", "${env:ERP_PASSWORD}"),
    "password with an @": ('"sqlite:///shop.db"', '"postgresql://etl:hunter2@x@db/shop"', 4, "connections.erp.url", "Secrets never in files", None),
    "password in the query": ('"sqlite:///shop.db"', '"postgresql://db/shop?user=a&password=hunter2"', 4, "connections.erp.url", "Secrets never in files", None),
    "password in a JDBC URL": ('"sqlite:///shop.db"', '"jdbc:sqlserver://db;databaseName=a;Password=hunter2"', 4, "connections.erp.url", "Secrets never in files", None),
    "password for Oracle": ('"sqlite:///shop.db"', '"jdbc:oracle:thin:etl/hunter2@//db:1521/x"', 4, "connections.erp.url", "Secrets never in files", None),
    "unknown scheme": ('url: "sqlite:///shop.db"', 'url: "sqlite:///shop.db", password: "${vault:PW}"', 4, "connections.erp.password", "unknown kind of reference `${vault:PW}`", "${env:PW}"),
    "no scheme": ('url: "sqlite:///shop.db"', 'url: "sqlite:///shop.db", password: "${PW}"', 4, "connections.erp.password", "`${PW}` is not a reference", "write ${env:PW}"),
    "not closed": ('url: "sqlite:///shop.db"', 'url: "sqlite:///shop.db", password: "${env:PW"', 4, "connections.erp.password", "not closed", None),
    "secret in a path": ("path: landing", 'path: "${env:LANDING}"', 5, "connections.files.path", "a secret reference cannot be used in `path`", "{{ env('NAME') }}"),
    "secret in the SQL": (SQL, "SELECT '${env:PW}' AS x FROM source", 14, f"{SILVER}.transformation_sql", "secrets can be used in connections and in spark.config only", None),
    "login of a file": ('url: "sqlite:///shop.db"', 'url: "sqlite:///shop.db", user: etl', 4, "connections.erp.user", "a SQLite file has no users", "remove"),
    "no URL": ('"sqlite:///shop.db"', "shop.db", 4, "connections.erp.url", "this is not the URL of a database", "sqlite:///shop.db"),
    "no JDBC URL": ('url: "sqlite:///shop.db"', 'url: "sqlite:///shop.db", jdbc_url: "sqlite:x"', 4, "connections.erp.jdbc_url", "a JDBC URL starts with `jdbc:`", None),
}  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "message", "hint"), (MODEL | CROSS).values(), ids=MODEL | CROSS
)
def test_one_mistake(
    problems: Problems, old: str, new: str, line: int, key: str, message: str, hint: str | None
) -> None:
    found = problems(changed(old, new))
    first = next((p for p in found if p.key == key and message in p.message), None)
    assert first, f"not among {[str(p) for p in found]}"
    assert (first.file, first.line) == ("strandline.yaml", line)
    assert hint is None or hint in (first.hint or "")
    assert "hunter2" not in str([str(p) for p in found])


FINE = {
    "WITH": (SQL, "WITH a AS (SELECT * FROM source), b AS (SELECT * FROM a) SELECT * FROM b"),
    "UNION": (SQL, "SELECT 1 AS x FROM source UNION ALL SELECT 2 FROM Source"),
    "struct field in a condition": ("keys: [customer_id]", "keys: [a], update_condition: source.a.b <=> target.`a`.b"),
    "inferred csv": (READ, 'read: {connection: files, path: "in/*.csv.gz", schema: {a: "decimal(10, 2)"}, options: {delimiter: "\\t"}}'),
    "inferred json": (READ, 'read: {connection: files, path: a.jsonl, schema: {a: "array<struct<b:int,`c d`:string>>"}}'),
    "a folder of files": (READ, "read: {connection: files, path: ., format: parquet}"),
    "partitions": (READ, "read: {connection: erp, table: a, partition_column: id, num_partitions: 4}"),
    "one source, steps": (READ_LAKE, "sources: [{connection: bronze, table: c, alias: source}]\n    transform: {steps: [{operation: drop, params: {columns: [a]}}]}"),
    "references": ('"sqlite:///shop.db"', '"postgresql://${env:U}:${env:P}@db/shop?password=${env:P}", user: "${env:U}"'),
    "secret for Spark": ("engine: pandas", 'spark: {config: {spark.hadoop.fs.s3a.secret.key: "${env:S3}"}}'),
    "a lake below 100 %": ("path: lake/silver", "path: 'lake/100% {b} <ü&*>'"),
    "a path as a URL": ("path: lake/silver", "path: file:///tmp/lake/silver"),
    "a master of this machine": ("engine: pandas", "spark: {master: 'local-cluster[1,1,512]'}"),
    "a master that is not used": ("engine: pandas", "engine: pandas\nspark: {master: 'spark://host:7077'}"),
    "a part of a struct": (READ, 'read: {connection: files, path: a.json}\n    transformation_sql: SELECT address.city FROM source'),
    "a part of a struct, further up": (READ, "read: {connection: files, path: a.parquet}\n    transform: {steps: [{operation: sql, params: {query: SELECT a.b.c FROM source AS x}}]}"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), FINE.values(), ids=FINE)
def test_what_is_fine(problems: Problems, old: str, new: str) -> None:
    assert problems(changed(old, new)) == []


FINE_ON_SPARK = {
    "row functions": (SQL, "SELECT * FROM range(3) CROSS JOIN source LATERAL VIEW explode(tags) t AS tag;"),
    "names of other tables": (SQL, "WITH a AS (SELECT source.x FROM source) SELECT b.x, t.col, a.x FROM a JOIN (SELECT 1 AS x) b ON b.x = a.x LATERAL VIEW explode(array(1)) t AS col WHERE EXISTS (SELECT 1 FROM source z WHERE z.x = a.x)"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), FINE_ON_SPARK.values(), ids=FINE_ON_SPARK)
def test_what_is_fine_on_spark(problems: Problems, old: str, new: str) -> None:
    """The local engine has no such clauses, and `validate` says so there."""
    text = changed(old, new)
    assert problems(text.replace("engine: pandas", "engine: spark")) == []
    assert any("explode" in p.message.lower() for p in problems(text))


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../x",
        "a/../../x",
        "/etc/x",
        "~/x",
        "C:/x",
        "C:x",
        "..\\x",
        "a\\b",
        "s3://b/x",
        "a\\0b",
        "a\\nb",
        "",
        "link",
        "link/x",
    ],
)
@pytest.mark.parametrize(
    "old", ["table: customers, mode: append", "{connection: bronze, table: customers}", READ]
)
def test_no_name_leaves_its_connection(
    problems: Problems, write: Write, tmp_path_factory: pytest.TempPathFactory, old: str, name: str
) -> None:
    text = (
        '"'
        + (name if name.startswith("a\\") and name != "a\\b" else name.replace("\\", "\\\\"))
        + '"'
    )
    for folder in ("lake/bronze", "landing"):
        (write() / folder).mkdir(parents=True, exist_ok=True)
        Path(folder, "link").symlink_to(tmp_path_factory.mktemp("outside"))
    new = (
        f"read: {{connection: files, format: csv, path: {text}}}"
        if old == READ
        else old.replace("customers", text)
    )
    (found,) = problems(changed(old, new))
    assert found.line in (10, 11, 13)
    assert str(found.key).endswith((".table", ".path"))


@pytest.mark.parametrize(
    "name",
    [
        ".",
        "a//b",
        "*",
        "a:b",
        "_delta_log",
        "a/_delta_log",
        " a",
        "a%20b",
        "a#b",
        "a?b",
        "a^b",
        "a|b",
    ],
)
def test_names_that_are_no_table(problems: Problems, name: str) -> None:
    (found,) = problems(changed("table: customers, mode: append", f'table: "{name}", mode: append'))
    assert found.key == f"{BRONZE}.write.table"


STEPS = {
    "unknown": ("- operation: deduplicat", 17, "operation", "unknown operation `deduplicat`", "did you mean `deduplicate`?"),
    "unknown param": ("- operation: drop\n          params:\n            columns: [a]\n            colums: [b]", 20, "params.colums", "unknown key `colums`", "did you mean `columns`?"),
    "wrong param": ("- operation: drop\n          params:\n            columns: a", 19, "params.columns", "expected a list of strings, found 'a' (text)", None),
    "missing param": ("- operation: drop", 17, "params.columns", "`columns` is missing", None),
    "no operation": ("- params: {}", 17, "operation", "`operation` is missing", None),
}  # fmt: skip


@pytest.mark.parametrize(("step", "line", "key", "message", "hint"), STEPS.values(), ids=STEPS)
def test_steps(
    problems: Problems, step: str, line: int, key: str, message: str, hint: str | None
) -> None:
    (found,) = problems(changed(SQL, f"{SQL}\n    transform:\n      steps:\n        {step}"))
    assert (found.line, found.key) == (line, f"{SILVER}.transform.steps[0].{key}")
    assert message in found.message
    assert hint is None or found.hint == hint


def test_secrets_are_in_no_text(problems: Problems, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ERP_PASSWORD", "hunter2")
    for text in (
        "password: \"{{ env('ERP_PASSWORD') }}\"",
        "password: [hunter2]",
        "password: {a: hunter2}",
        'driver: "{{ env(\'ERP_PASSWORD\') }}", jdbc_url: "hunter2"',
        "type: \"{{ env('ERP_PASSWORD') }}\"",
        "\"{{ env('ERP_PASSWORD') }}\": 1, x: \"{{ env('ERP_PASSWORD') + 1 }}\"",
        "user: [hunter2], jdbc_url: 7",
    ):
        fields = text if "type:" in text else f"type: sql, {text}"
        found = problems(
            changed(
                'type: sql, url: "sqlite:///shop.db"',
                f'{fields}, url: "postgresql://a:hunter2@h/d"',
            )
        )
        assert found
        assert "hunter2" not in "".join(str(p) for p in found), text
    found = problems(changed("mode: append", "mode: \"{{ env('ERP_PASSWORD') }}\""))
    assert "'***'" in found[0].message
    assert os.environ["ERP_PASSWORD"] not in str(found)
