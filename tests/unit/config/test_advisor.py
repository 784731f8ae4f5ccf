# ruff: noqa: E501 – one line per case reads as a table
"""Ways of finding deletes that cannot be right: message, line, key and hint of each. And those that are."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.unit.config.conftest import Problems

from strandline.config.deletes import DeleteDetectionConfig
from strandline.config.load import load_project
from strandline.sql.bounded import raises_bound
from strandline.transform import registry
from strandline.transform.registry import Detection, EngineContext

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("0[1-6]-*/strandline.yaml"))

RIGHT = """\
project: shop
engine: pandas
connections:
  erp: {type: sql, url: "sqlite:///shop.db"}
  stage: {type: sql, url: "sqlite:///stage.db", staging: true}
  files: {type: files, path: landing}
  bronze: {type: lake, path: lake/bronze}
  silver: {type: lake, path: lake/silver}
nodes:
  - name: bronze
    read: {connection: erp, table: customers}
    write: {connection: bronze, table: customers, mode: append}
  - name: silver
    settings: {delete_missing: false}
    read: {connection: bronze, table: customers}
    transform:
      steps:
        - operation: detect_deletes
          params: {mode: snapshot_diff, keys: [customer_id]}
    write: {connection: silver, table: customers, mode: upsert, keys: [customer_id]}
  - name: gold
    read: {connection: silver, table: customers}
    transform:
      steps:
        - operation: drop
          params: {columns: [a]}
    write: {connection: silver, table: gold, mode: overwrite}
"""
STEP, PARAMS = "nodes[silver].transform.steps[0]", "nodes[silver].transform.steps[0].params"
SETTINGS = "nodes[silver].settings.delete_missing"
ON, OFF = "settings: {delete_missing: true}", "- {operation: drop, params: {columns: [a]}}"
WINDOW = "params: {mode: watermark_window, keys: [customer_id]}"
COMPARE = "params: {mode: sql_compare, keys: [customer_id], source_connection: erp, source_table: customers}"
MARK = "incremental: {mode: stateful, column: updated_at, watermark_lag: 2h}"
LIMITED = f"read: {{connection: erp, table: customers, {MARK}}}"
UPSERT = "write: {connection: silver, table: customers, mode: upsert, keys: [customer_id]}"
NO_STEP = {18: OFF, 19: ""}
GOLD_DIFF = {25: "- operation: detect_deletes", 26: "params: {mode: snapshot_diff, keys: [customer_id]}",
             27: "write: {connection: silver, table: gold, mode: upsert, keys: [customer_id]}"}  # fmt: skip
GOLD_MODE = "nodes[gold].transform.steps[0].params.mode"


def with_lines(lines: dict[int, str]) -> str:
    """The right project with some lines changed; they keep their indent, and an empty one stays empty."""
    text = RIGHT.splitlines()
    for number, line in lines.items():
        old = text[number - 1]
        text[number - 1] = old[: len(old) - len(old.lstrip())] + line
    return "\n".join(text) + "\n"


def read(rest: str) -> str:
    return f"read: {{connection: erp, table: customers, {rest}}}"


def params(rest: str, mode: str = "snapshot_diff", keys: str = "customer_id") -> str:
    return f"params: {{mode: {mode}, keys: [{keys}], {rest}}}"


def target(rest: str, mode: str = "upsert", keys: str = "customer_id") -> str:
    return f"write: {{connection: silver, table: customers, mode: {mode}, {f'keys: [{keys}], ' if keys else ''}{rest}}}"


Case = tuple[dict[int, str], int, str, str, str | None]

# what to change in which line; then line, key, message, hint
SEED: dict[str, Case] = {
    "unknown mode": ({19: "params: {mode: snapshot, keys: [customer_id]}"}, 19, f"{PARAMS}.mode", "Unknown delete detection mode: snapshot", "did you mean `snapshot_diff`?"),
    "unknown mode, none near": ({19: "params: {mode: 7, keys: [customer_id]}"}, 19, f"{PARAMS}.mode", "Unknown delete detection mode: 7", "modes are none, snapshot_diff, sql_compare, watermark_window"),
    "no mode": ({19: "params: {mode: null, keys: [customer_id]}"}, 19, f"{PARAMS}.mode", "expected one of `none`, `snapshot_diff`, `sql_compare`, `watermark_window`, `feed`, found nothing", None),
    "no keys": ({19: "params: {mode: snapshot_diff}"}, 19, f"{PARAMS}.keys", "delete_detection: 'keys' required for mode='snapshot_diff'", None),
    "no source connection": ({19: params("source_table: a", "sql_compare")}, 19, f"{PARAMS}.source_connection", "delete_detection: 'source_connection' required for sql_compare", None),
    "no source table": ({19: params("source_connection: erp", "sql_compare")}, 19, f"{PARAMS}.source_table", "delete_detection: 'source_table' or 'source_query' required", None),
}  # fmt: skip

SNAPSHOT: dict[str, Case] = {
    "own read limited": ({15: LIMITED}, 19, f"{PARAMS}.mode", "mode: snapshot_diff needs a full extract, and this read is limited by `incremental`: rows that were not read would count as deleted", "use mode: sql_compare with source_connection: erp, or mode: watermark_window"),
    "own read by watermark": ({15: read("watermark: [{column_name: a}]")}, 19, f"{PARAMS}.mode", "this read is limited by `watermark`", None),
    "no database to ask": ({4: "erp: {type: files, path: x}", 11: "read: {connection: files, path: a.csv}", 15: f"read: {{connection: bronze, table: customers, {MARK}}}"}, 19, f"{PARAMS}.mode", "limited by `incremental`", "use mode: sql_compare, or mode: watermark_window"),
    "fed by a limited read": ({11: LIMITED}, 19, f"{PARAMS}.mode", "mode: snapshot_diff needs full extracts, and `customers` is fed by node `bronze`, whose read is limited by `incremental`", "use mode: sql_compare with source_connection: erp, or mode: watermark_window in a node that reads the source itself"),
    "fed by one further up": ({11: LIMITED, **NO_STEP, 20: target("row_hash: true"), **GOLD_DIFF}, 26, GOLD_MODE, "`customers` is fed by node `bronze`, whose read is limited", None),
    "fed by one through sql_compare": ({11: LIMITED, 19: COMPARE, **GOLD_DIFF}, 26, GOLD_MODE, "`customers` is fed by node `bronze`, whose read is limited", None),
    "from an upsert that loses nothing": ({**NO_STEP, **GOLD_DIFF}, 26, GOLD_MODE, "mode: snapshot_diff would never find anything: `customers` is written by node `silver` with mode: upsert and without finding deletes, so it never loses a row", "use mode: sql_compare with source_connection: erp, or add a `detect_deletes` step to node `silver`"),
    "from an scd2 that loses nothing": ({**NO_STEP, 20: target("row_hash: true", "scd2"), **GOLD_DIFF}, 26, GOLD_MODE, "by node `silver` with mode: scd2 and without finding deletes", None),
    "from one that ignores what it finds": ({20: target("delete_strategy: ignore"), **GOLD_DIFF}, 26, GOLD_MODE, "so it never loses a row", None),
}  # fmt: skip

WINDOWS: dict[str, Case] = {
    "full read": ({19: WINDOW}, 19, f"{PARAMS}.mode", "mode: watermark_window looks for rows missing from the window of a watermark, and this read has none", "add `incremental` or `watermark` to the read, or use mode: snapshot_diff for a full extract"),
    "delete_missing, full read": ({14: ON, **NO_STEP}, 14, SETTINGS, "`delete_missing` looks for rows missing from the window of a watermark, and this read has none", "`watermark`"),
    "both, full read": ({14: ON, 19: WINDOW}, 19, f"{PARAMS}.mode", "this read has none", None),
    "by the time of files": ({15: 'read: {connection: files, path: "*.csv", incremental: {mode: stateful}}', 19: WINDOW}, 19, f"{PARAMS}.mode", "this read goes by the time its files were written, which no row carries", "name a `column` in `incremental`"),
    "raised bound": ({15: read("watermark: [{column_name: a}, {column_name: b, expression: \"date_add('${last_value}', 1)\"}]"), 19: WINDOW}, 15, "nodes[silver].read.watermark[1].expression", "`date_add('${last_value}', 1)` reads from above the last value, so mode: watermark_window would look at a window with a hole", "start at the last value or below it, for example date_sub('${last_value}', 7)"),
    "from an append": ({15: f"read: {{connection: bronze, table: customers, {MARK}}}", 19: WINDOW}, 19, f"{PARAMS}.mode", "mode: watermark_window would never find anything: `customers` is written by node `bronze` with mode: append, so it never loses a row", "use mode: sql_compare with source_connection: erp, or read the source itself"),
    "several sources": ({14: ON, 15: "sources: [{connection: bronze, table: customers, alias: a}, {connection: erp, table: b, alias: b}]", 16: "transformation_sql: SELECT a.customer_id FROM a JOIN b ON a.x = b.x", 17: "", 18: "", 19: ""}, 14, SETTINGS, "`delete_missing` looks at the window of one read, and this node has 2", "find the deletes in a node that reads the source alone"),
}  # fmt: skip

COMPARES: dict[str, Case] = {
    "staging": ({19: COMPARE.replace("erp", "stage")}, 19, f"{PARAMS}.source_connection", "`stage` is a staging database: staging tables may be empty between loads", "name the database that is the authority: `erp`"),
    "a lake": ({19: COMPARE.replace("erp", "silver")}, 19, f"{PARAMS}.source_connection", "mode: sql_compare asks a database, and `silver` is a lake", "name one with type: sql: `erp`"),
    "files": ({19: COMPARE.replace("erp", "files")}, 19, f"{PARAMS}.source_connection", "`files` is a folder of files", None),
    "unknown": ({19: COMPARE.replace("erp", "erpp")}, 19, f"{PARAMS}.source_connection", "unknown connection `erpp`", "did you mean `erp`?"),
    "blank table": ({19: params('source_connection: erp, source_table: " "', "sql_compare")}, 19, f"{PARAMS}.source_table", "this may not be empty", None),
    "blank query": ({19: params('source_connection: erp, source_query: " ; "', "sql_compare")}, 19, f"{PARAMS}.source_query", "this may not be empty", None),
    "odd table": ({19: params('source_connection: erp, source_table: "a\\nb"', "sql_compare")}, 19, f"{PARAMS}.source_table", "the name holds a control character", None),
}  # fmt: skip

WRITES: dict[str, Case] = {
    "append": ({20: target("row_hash: true", "append", "").replace(", row_hash: true", "")}, 19, f"{PARAMS}.mode", "mode: snapshot_diff finds deletes that cannot be applied, soft or hard: mode: append never updates or deletes a row of its table", "write with mode: upsert or scd2, or say delete_strategy: ignore"),
    "overwrite": ({19: params("soft_delete_col: null"), 20: "write: {connection: silver, table: customers, mode: overwrite}"}, 19, f"{PARAMS}.mode", "soft or hard: mode: overwrite mirrors its read", "delete_strategy: ignore"),
    "append, delete_missing": ({14: ON, 15: LIMITED, **NO_STEP, 20: "write: {connection: silver, table: customers, mode: append}"}, 14, SETTINGS, "`delete_missing` finds deletes that cannot be applied", None),
    "strategy of append": ({12: "write: {connection: bronze, table: customers, mode: append, delete_strategy: soft}"}, 12, "nodes[bronze].write.delete_strategy", "`delete_strategy: soft` cannot be done: mode: append never updates", "remove it, or use mode: upsert or scd2"),
    "strategy of overwrite": ({27: "write: {connection: silver, table: gold, mode: overwrite, delete_strategy: hard}"}, 27, "nodes[gold].write.delete_strategy", "`delete_strategy: hard` cannot be done: mode: overwrite mirrors", None),
    "hard with a flag": ({19: params("soft_delete_col: gone"), 20: target("delete_strategy: hard")}, 19, f"{PARAMS}.soft_delete_col", "`delete_strategy: hard` removes deleted rows, so none is left to be marked in `gone`", "remove `soft_delete_col`, or use delete_strategy: soft"),
    "soft without a flag": ({19: params("soft_delete_col: null"), 20: target("delete_strategy: soft")}, 19, f"{PARAMS}.soft_delete_col", "`soft_delete_col: null` removes deleted rows, and `delete_strategy: soft` keeps them", "name the column, or use delete_strategy: hard"),
    "flag is a key": ({19: params("soft_delete_col: Customer_ID")}, 19, f"{PARAMS}.soft_delete_col", "`Customer_ID` is a key of the table", "choose another name"),
    "flag of the preset is a key": ({14: ON, 15: LIMITED, **NO_STEP, 20: target("system_columns: {deleted: k}", keys="k")}, 20, "nodes[silver].write.keys", "`k` is a key of the table", None),
    "flag is a system column": ({19: params("soft_delete_col: dlf_lastseen"), 20: target("system_columns: {preset: dlf}")}, 19, f"{PARAMS}.soft_delete_col", "`dlf_lastseen` is the name of another system column", "choose another name"),
    "flag is a metadata column": ({19: params("soft_delete_col: _extracted_at")}, 19, f"{PARAMS}.soft_delete_col", "`_extracted_at` is the name of another system column", None),
    "flag has two names": ({19: params("soft_delete_col: gone"), 20: target("system_columns: {deleted: away}")}, 19, f"{PARAMS}.soft_delete_col", "the flag is called `gone` here and `away` in `system_columns`", "give it one name"),
    "other keys": ({20: target("row_hash: true", keys="customer_id, region")}, 19, f"{PARAMS}.keys", "the keys are `customer_id`, and the table's are `customer_id`, `region`: a delete must name one row of the table", "write keys: [customer_id, region]"),
    "more keys": ({19: "params: {mode: snapshot_diff, keys: [customer_id, region]}"}, 19, f"{PARAMS}.keys", "a delete must name one row", None),
}  # fmt: skip

REST: dict[str, Case] = {
    "first run of a comparison": ({19: params("source_connection: erp, source_table: customers, on_first_run: error", "sql_compare")}, 19, f"{PARAMS}.on_first_run", "`on_first_run: error` does nothing with mode: sql_compare", "it is for mode: snapshot_diff"),
    "first run of a window": ({15: LIMITED, 19: params("on_first_run: error", "watermark_window")}, 19, f"{PARAMS}.on_first_run", "`on_first_run: error` does nothing with mode: watermark_window", "it is for mode: snapshot_diff"),
    "a flag for a share": ({19: params("max_delete_percent: true")}, 19, f"{PARAMS}.max_delete_percent", "expected a number, found true", None),
    "a flag for a count": ({19: params("max_delete_count: false")}, 19, f"{PARAMS}.max_delete_count", "expected a whole number, found false", None),
    "a flag for a gap": ({15: LIMITED, 19: params("max_window_gap: true", "watermark_window")}, 19, f"{PARAMS}.max_window_gap", "found true", None),
    "a flag for a lag": ({15: read("incremental: {mode: stateful, column: a, watermark_lag: true}")}, 15, "nodes[silver].read.incremental.watermark_lag", "found true", None),
    "two steps": ({18: "- {operation: detect_deletes, params: {mode: snapshot_diff, keys: [customer_id]}}", 19: "", 17: "steps:\n        - {operation: detect_deletes, params: {mode: snapshot_diff, keys: [customer_id]}}"}, 19, "nodes[silver].transform.steps[1].operation", "a second `detect_deletes` step: a node finds deletes in one way", "keep one of them"),
    "step and setting": ({14: ON, 15: LIMITED, 19: COMPARE}, 14, SETTINGS, "`delete_missing` finds deletes by a watermark's window, and the step by sql_compare", "only a step with mode: watermark_window may stand beside it"),
    "filter that is none": ({19: params('target_filter: "region ="')}, 19, f"{PARAMS}.target_filter", "this condition cannot be read", None),
    "filter over other rows": ({19: params('target_filter: "id IN (SELECT 1)"')}, 19, f"{PARAMS}.target_filter", "a filter looks at one row of the table", None),
    "filter over the source": ({19: params("target_filter: source.region = 'EMEA'")}, 19, f"{PARAMS}.target_filter", "`source.region` is a column of the new rows", "write region"),
    "filter that is a text": ({19: params("target_filter: \"'EMEA'\"")}, 19, f"{PARAMS}.target_filter", "expected a condition, found `'EMEA'`", None),
    "include_deleted of a database": ({11: read("include_deleted: true")}, 11, "nodes[bronze].read.include_deleted", "`include_deleted` does nothing here: `erp` is a database", "it is for lake tables with a delete flag; remove it"),
    "include_deleted of files": ({11: "read: {connection: files, path: a.csv, include_deleted: true}"}, 11, "nodes[bronze].read.include_deleted", "`files` is a folder of files", None),
}  # fmt: skip
CASES = {
    f"{group}: {name}": case
    for group, cases in {"seed": SEED, "snapshot": SNAPSHOT, "window": WINDOWS, "compare": COMPARES, "write": WRITES, "rest": REST}.items()
    for name, case in cases.items()
}  # fmt: skip


@pytest.mark.parametrize(("lines", "line", "key", "message", "hint"), CASES.values(), ids=CASES)
def test_refused(
    problems: Problems, lines: dict[int, str], line: int, key: str, message: str, hint: str | None
) -> None:
    (found,) = problems(with_lines(lines))
    assert (found.file, found.line, found.key) == ("strandline.yaml", line, key)
    assert message in found.message
    assert hint is None or hint in (found.hint or "")


FINE: dict[str, dict[int, str]] = {
    "full extracts": {},
    "snapshot_column of a limited read": {15: LIMITED, 19: params("snapshot_column: day")},
    "snapshot_column of a limited Bronze": {11: LIMITED, 19: params("snapshot_column: day")},
    "snapshot_diff after one that finds deletes": GOLD_DIFF,
    "snapshot_diff of rows that a filter leaves out": {**NO_STEP, 24: "steps:\n        - {operation: filter, params: {condition: active}}", **GOLD_DIFF},
    "snapshot_diff of a table of others": {15: "read: {connection: bronze, table: theirs}"},
    "snapshot_diff of a staging database": {15: "read: {connection: stage, table: customers}"},
    "sql_compare of a limited Bronze": {11: LIMITED, 19: COMPARE},
    "sql_compare by a query, which wins over the table": {19: COMPARE.replace("}", ", source_query: select customer_id from t with (nolock)}")},
    "window": {15: LIMITED, 19: WINDOW},
    "rolling window": {15: read("incremental: {mode: rolling_window, column: d, lookback: 7d}"), 19: WINDOW},
    "window of a lowered bound": {15: read("watermark: [{column_name: a, expression: \"date_sub('${last_value}', 7)\"}]"), 14: ON, **NO_STEP},
    "step and setting by the window": {14: ON, 15: LIMITED, 19: WINDOW},
    "setting with one source": {14: ON, 15: f"sources: [{{connection: erp, table: customers, alias: c, {MARK}}}]", **NO_STEP},
    "raised bound, and no deletes": {11: read("watermark: [{column_name: a, expression: \"date_add('${last_value}', 1)\"}]"), **NO_STEP},
    "mode none beside the setting": {14: ON, 15: LIMITED, 19: "params: {mode: none}"},
    "ignored by an append": {20: "write: {connection: silver, table: customers, mode: append, delete_strategy: ignore}"},
    "hard, the flag left as it is": {20: target("delete_strategy: hard")},
    "hard twice": {19: params("soft_delete_col: null"), 20: target("delete_strategy: hard")},
    "keys in another order and case": {19: params("soft_delete_col: gone", keys="B, a"), 20: target("row_hash: true", keys="A, b")},
    "flag named once, over a preset": {19: params("soft_delete_col: gone"), 20: target("system_columns: {preset: dlf}")},
    "filter": {19: params("target_filter: \"region = 'EMEA' AND target.active\"")},
    "include_deleted of a lake": {22: "read: {connection: silver, table: customers, include_deleted: true}"},
    "change_log of an append": {14: "change_log: all", **NO_STEP, 20: "write: {connection: silver, table: customers, mode: append}"},
    "nodes in a ring are not walked forever": {11: "read: {connection: silver, table: customers}"},
}  # fmt: skip


@pytest.mark.parametrize("lines", FINE.values(), ids=FINE)
def test_what_is_fine(problems: Problems, lines: dict[int, str]) -> None:
    assert problems(with_lines(lines)) == []


BROKEN: dict[str, dict[int, str]] = {
    "a limit that cannot be read": {15: read("incremental: {mode: statefull, column: a}"), 19: WINDOW},
    "keys that cannot be read": {20: target("row_hash: true", keys="").replace("row_hash", "keys: customer_id, row_hash")},
    "a connection that cannot be read": {4: "erp: {type: sql}", 19: COMPARE},
    "an upstream that cannot be read": {19: "params: {mode: snapshot_dif, keys: [customer_id]}", **GOLD_DIFF},
    "an upstream write that cannot be read": {20: target("row_hash: 7"), **GOLD_DIFF},
}  # fmt: skip


@pytest.mark.parametrize("lines", BROKEN.values(), ids=BROKEN)
def test_a_mistake_brings_no_advice_that_follows_from_it(
    problems: Problems, lines: dict[int, str]
) -> None:
    assert len(problems(with_lines(lines))) == 1


def test_a_mistake_elsewhere_hides_no_advice(problems: Problems) -> None:
    found = problems(
        with_lines({11: LIMITED, 2: "engine: polars", 13: "- name: silver\n    tags: 7"})
    )
    assert {p.key for p in found} == {"engine", "nodes[silver].tags", f"{PARAMS}.mode"}


# --- the examples of the original ------------------------------------------------------------------------------------


def test_there_are_six_examples() -> None:
    assert [file.parent.name[:2] for file in EXAMPLES] == ["01", "02", "03", "04", "05", "06"]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.parent.name)
def test_examples_are_right(file: Path, problems: Problems) -> None:
    load_project(file)
    text = file.read_text()
    for table in ("Customers", "Products", "Orders"):
        text = text.replace(f"table: {table} ", f"table: dbo.{table} ")
    assert "dbo.C" in text or "dbo.P" in text or "dbo.O" in text
    assert problems(text) == []


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.parent.name)
def test_examples_find_their_tables(file: Path, tmp_path: Path) -> None:
    import sqlite3

    make = runpy.run_path(str(file.parents[1] / "make_source.py"))["make"]
    for day, keys in ((1, [1, 2, 3, 4, 5]), (2, [1, 2, 3, 5, 6])):
        make(tmp_path, day)
        database = sqlite3.connect(tmp_path / "source.db")
        for _, read in (r for node in load_project(file).config.nodes for r in node.reads()):
            if read.format == "sql":
                assert [
                    r[0] for r in database.execute(f"SELECT * FROM {read.table} ORDER BY 1")
                ] == keys
        database.close()


# --- the step and the bound ------------------------------------------------------------------------------------------


def test_the_step_remembers_how_and_where() -> None:
    step = registry.get("detect_deletes")
    assert step is not None
    assert (step.category, step.param_model) == ("transformer", DeleteDetectionConfig)
    context = EngineContext(engine=None, rows=object())  # type: ignore[arg-type]  # neither is touched
    assert step.run(context, DeleteDetectionConfig()) is context
    chosen = DeleteDetectionConfig(mode="snapshot_diff", keys=["a"])
    assert step.run(context, chosen).detection == Detection(chosen, context.rows)


def test_an_unknown_mode_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="Unknown delete detection mode: x") as caught:
        DeleteDetectionConfig(mode="x")
    assert isinstance(caught.value, ValidationError)


@pytest.mark.parametrize(
    ("expression", "raises"),
    [
        ("'${last_value}'", False),
        ("date_sub('${last_value}', 7)", False),
        ("date_add('${last_value}', 7)", True),
        ("date_add('${last_value}', -7)", False),
        ("'${last_value}' + 1", True),
        ("'${last_value}' - 1", False),
    ],
)
def test_bounds_that_rise(expression: str, raises: bool) -> None:
    assert raises_bound(expression) is raises
