"""Source faults × ways of finding deletes: each is tried for real, and docs/source-faults.md says what happened."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from tests.faulty import FAULTS, KNOWABLE, LIMITS, MODES, Cell, Fault, live_through

DOCUMENT = Path(__file__).parents[3] / "docs" / "source-faults.md"
NONE = "no deletes"
SNAPSHOT, COMPARE, KEYS, WINDOW = MODES


def _failed(code):
    return Cell(f"failed: {code}", f"failed: {code}")


def _both(cell):
    return {"strict": cell, "defaults": cell}


def _lost(found, strict, defaults, *, warned=False):
    """Rows are missing: noted and then held, or deleted at once."""
    deleted = f"{found} deleted{' with a warning' if warned else ''}"
    return {
        "strict": Cell(f"{found} missing once", f"{found} held", **strict),
        "defaults": Cell(deleted, NONE, **defaults),
    }


def _late(cells):
    """The same where Bronze has loaded a new row meanwhile, which the second run misses too."""
    strict = cells["strict"]
    return {**cells, "strict": replace(strict, second=f"{strict.second}, 1 missing once")}


QUIET, TAKEN = _both(Cell(NONE, NONE)), _both(Cell(NONE, NONE, taken=2))
EMPTY = {
    "strict": Cell("44 missing once", "44 held", held=2),
    "defaults": Cell("44 held", "44 held", held=2),
}
EMPTY_KEYS = {
    "strict": Cell("44 missing once", "44 held, 1 missing once", taken=1, held=2),
    "defaults": Cell("44 held", "45 held", taken=1, held=2),
}
RELOADING = _lost(29, {"held": 1}, {"wrong": 29}, warned=True)
HALF = _lost(22, {"taken": 1, "held": 1}, {"wrong": 22, "taken": 1})
DOWN = dict.fromkeys(MODES, _both(_failed("source_down")))

CELLS = {
    "empty": {SNAPSHOT: EMPTY, COMPARE: EMPTY, KEYS: EMPTY_KEYS, WINDOW: QUIET},
    "reloading": {
        SNAPSHOT: RELOADING,
        COMPARE: RELOADING,
        KEYS: _late(_lost(29, {"taken": 1, "held": 1}, {"wrong": 30}, warned=True)),
        WINDOW: QUIET,
    },
    "half": {
        SNAPSHOT: HALF,
        COMPARE: HALF,
        KEYS: _late(_lost(22, {"taken": 2, "held": 1}, {"wrong": 23, "taken": 1})),
        WINDOW: _lost(15, {"taken": 1}, {"wrong": 15, "taken": 1}),
    },
    "dropped": dict.fromkeys(MODES, TAKEN),
    "replaced": dict.fromkeys(MODES, TAKEN),
    "keyless": dict.fromkeys(MODES, _both(_failed("unknown_column"))),
    "texts": {**dict.fromkeys(MODES, _both(_failed("table"))), KEYS: TAKEN},
    "timeout": DOWN,
    "killed": DOWN,
    "refused": DOWN,
    "replica": {
        SNAPSHOT: _lost(4, {}, {"wrong": 4, "spoilt": 2}),
        COMPARE: _lost(4, {}, {"wrong": 4}),
        KEYS: _late(_lost(4, {"taken": 2}, {"wrong": 5, "taken": 1})),
        WINDOW: {"strict": Cell(NONE, NONE), "defaults": Cell(NONE, NONE, spoilt=2)},
    },
    "twice": {**dict.fromkeys(MODES, TAKEN), WINDOW: _both(_failed("duplicate_keys"))},
    "clock": {
        SNAPSHOT: {
            "strict": Cell(NONE, NONE, taken=2, missed=4),
            "defaults": Cell(NONE, NONE, taken=2),
        },
        COMPARE: _both(Cell(NONE, NONE, taken=2, missed=4)),
        KEYS: _both(Cell(NONE, NONE, taken=2, missed=4)),
        WINDOW: _lost(4, {"taken": 2, "missed": 4}, {"wrong": 4, "taken": 2}),
    },
    "renamed": dict.fromkeys(MODES, _both(_failed("read"))),
}

FEW = Fault(
    "two rows missing, for as long as runs are counted",
    lambda t: replace(t, rows=[*t.rows[:9], *t.rows[11:]]),
)
BELIEVED = Cell("2 missing once", "2 deleted", wrong=2, taken=2)

ON_SPARK = [
    ("empty", SNAPSHOT, "defaults"),
    pytest.param("half", WINDOW, "strict", marks=pytest.mark.long),
    pytest.param("texts", WINDOW, "strict", marks=pytest.mark.long),
    pytest.param("twice", WINDOW, "defaults", marks=pytest.mark.long),
    pytest.param("keyless", SNAPSHOT, "defaults", marks=pytest.mark.long_on_spark),
    pytest.param("clock", WINDOW, "strict", marks=pytest.mark.long_on_spark),
]


@pytest.fixture(autouse=True)
def _password(monkeypatch):
    monkeypatch.setenv("STRANDLINE_TEST_PASSWORD", "reads")


def cells():
    """Every cell; of the two limits `make test` takes one, and every second cell in which both expect the same."""
    for fault, mode, limits in itertools.product(CELLS, MODES, LIMITS):
        expected = CELLS[fault][mode]
        turn = (
            list(CELLS).index(fault) + MODES.index(mode)
        ) % 2  # each fault is met by two ways with either limits
        differs = expected["defaults"] != expected["strict"]
        soon = limits == list(LIMITS)[turn] if differs else limits == "strict" and turn == 0
        yield pytest.param(fault, mode, limits, marks=[] if soon else pytest.mark.long)


@pytest.mark.parametrize(("fault", "mode", "limits"), list(cells()))
def test_a_fault(tmp_path, pandas_platform, request, fault, mode, limits):
    server = request.getfixturevalue("postgres_url") if FAULTS[fault].ends else None
    found = live_through(tmp_path, pandas_platform, FAULTS[fault], mode, limits, server)
    assert found == CELLS[fault][mode][limits]


@pytest.mark.spark
@pytest.mark.parametrize(("fault", "mode", "limits"), ON_SPARK)
def test_a_fault_on_spark(tmp_path, spark_platform, fault, mode, limits):
    found = live_through(tmp_path, spark_platform, FAULTS[fault], mode, limits, None)
    assert found == CELLS[fault][mode][limits]


def test_strict_limits_never_delete_wrongly_and_spoil_nothing():
    strict = {
        (fault, mode): cells["strict"]
        for fault, modes in CELLS.items()
        for mode, cells in modes.items()
    }
    assert not [
        at for at, cell in strict.items() if cell.wrong or cell.spoilt or cell.stuck or cell.stray
    ]


def test_a_small_loss_that_lasts_is_believed(tmp_path, pandas_platform):
    assert live_through(tmp_path, pandas_platform, FEW, SNAPSHOT, "strict", None) == BELIEVED


def test_keys_that_are_all_null_are_as_little_evidence_as_no_rows(tmp_path, pandas_platform):
    nulls = Fault(
        "every key is NULL",
        lambda true: replace(true, rows=[(None, *row[1:]) for row in true.rows]),
    )
    assert (
        live_through(tmp_path, pandas_platform, nulls, KEYS, "defaults", None)
        == EMPTY_KEYS["defaults"]
    )


def test_the_document_says_what_the_table_says():
    assert DOCUMENT.read_text(encoding="utf-8") == table_markdown()


# --- the document ------------------------------------------------------------------------------------------

HEAD = """# When the source is wrong

What becomes of a Silver table when its source goes wrong, tried for real by
`tests/stories/deletes/test_source_faults.py`, from whose data this page is made. A table of 44 customers is loaded;
then two runs meet the fault, while the true source has one row changed and one added; then the fault is mended, two
rows are really deleted, and two more runs follow.

Ways of finding deletes: `snapshot_diff` over a Bronze table of full extracts; `sql_compare` over a Bronze table fed
from a watermark and written by its keys, where the fault hits both the load and the question for keys, or the
question for keys only; `watermark_window` in a node that reads the source itself, 30 days back.

Each cell: what the first run with the fault did; then the second. **wrong deletes: n** counts rows of the true source
that are marked as deleted (with `sql_compare` also a new row that comes marked); all come back once it is mended.
*n rows spoilt*: a value that had been right is not (NULL, or an older one) until the fault is mended.
*n changes not taken*: rows that really changed, but carry a time that says otherwise: a watermark does not read them,
and `sequence_by` takes them for older ones. *Left for a person*: of the rows really deleted, those that were held
while the fault lasted stay held, because nobody has said yet which absence is real; the others are deleted by the
second run at the latest. A watermark's window knows of one of the two, the other lies before it. *failed*: nothing was
written, and the next good run catches up.
"""
TITLES = {
    "strict": "## With `max_delete_percent: 5`, `on_threshold_breach: hold`, `confirm_runs: 2`\n\n"
    "And with `sequence_by: updated_at`, which says which of two rows is newer: without it a replica that is behind "
    "brings\nolder values back, as the table of the defaults shows.",
    "defaults": "## With the defaults: `max_delete_percent: 50`, `on_threshold_breach: warn`, `confirm_runs: 1`",
}


def _cell(cell, mode):
    text = cell.first if cell.first == cell.second else f"{cell.first}; {cell.second}"
    facts = [f"**wrong deletes: {cell.wrong}**"] if cell.wrong else []
    facts += [f"{_rows(cell.spoilt)} spoilt"] if cell.spoilt else []
    facts += [f"{cell.missed} changes not taken"] if cell.missed else []
    facts += [f"**{_rows(cell.stuck)} spoilt until changed again**"] if cell.stuck else []
    facts += [f"**{_rows(cell.stray)} without a key stays**"] if cell.stray else []
    facts += [f"{cell.held} of {len(KNOWABLE[mode])} left for a person"] if cell.held else []
    return "<br>".join([text, *facts])


def _rows(number):
    return f"{number} row{'s' if number != 1 else ''}"


def table_markdown():
    """The page, from the data above."""
    parts = [HEAD]
    for limits, title in TITLES.items():
        lines = ["| fault | " + " | ".join(MODES) + " |", "|---" * (len(MODES) + 1) + "|"]
        for fault, modes in CELLS.items():
            cells = [_cell(modes[m][limits], m) for m in MODES]
            lines.append(f"| {FAULTS[fault].title} | " + " | ".join(cells) + " |")
        parts.append(f"{title}\n\n" + "\n".join(lines) + "\n")
    parts.append(
        "## What no limit can tell\n\n"
        f"{FEW.title.capitalize()}, and fewer than the limit allows: {BELIEVED.first}; {BELIEVED.second}; "
        f"**wrong deletes: {BELIEVED.wrong}**, also with the strict limits. Nothing tells such a fault from real "
        "deletes; `confirm_runs` must outlast it. The rows come back when they are seen again.\n"
    )
    return "\n".join(parts)
