"""The batches and the records of hand-written jobs; no Spark session is needed for them."""

from __future__ import annotations

import re

import pytest

from strandline.control.store import DeltaStore
from strandline.errors import ConfigError
from strandline.loader import (
    ETLControlManager,
    batch_complete,
    batch_start,
    get_watermark,
    reset_watermark,
)
from strandline.testing.projects import execute, make_project

TARGET, SOURCE = "gold.orders", "silver.orders"


@pytest.fixture
def control(tmp_path, monkeypatch):
    monkeypatch.setenv("STRANDLINE_ETL_SCHEMA", str(tmp_path / "control"))
    return tmp_path / "control"


def test_a_watermark_never_goes_back_by_itself(control, caplog):
    batch_complete(TARGET, SOURCE, 7, rows_read=1, rows_written=1)
    batch_start(TARGET, SOURCE)
    batch_complete(TARGET, SOURCE, 3, rows_read=2, rows_written=2)
    assert get_watermark(TARGET, SOURCE) == 7
    assert "stays at version 7, which is higher than 3" in caplog.text
    (row,) = DeltaStore(control).all_control()
    assert (row.batch_status, row.rows_read) == ("SUCCESS", 2)
    reset_watermark(TARGET, SOURCE)
    assert get_watermark(TARGET, SOURCE) is None
    batch_complete(TARGET, SOURCE, 3, rows_read=2, rows_written=2)
    assert get_watermark(TARGET, SOURCE) == 3


def test_jobs_and_projects_keep_their_records_in_one_place(
    control, tmp_path, monkeypatch, pandas_platform
):
    execute(tmp_path / "erp.db", "CREATE TABLE s (id INTEGER)", "INSERT INTO s VALUES (1)")
    node = {
        "name": "n",
        "read": {"connection": "erp", "table": "s"},
        "write": {"connection": "lake", "table": "c", "mode": "overwrite"},
    }
    erp = {"erp": {"type": "sql", "url": "sqlite:///erp.db"}}
    project = make_project(tmp_path, [node], connections=erp)
    batch_complete(TARGET, SOURCE, 7, rows_read=1, rows_written=1)
    project.run(platform=pandas_platform, check=True)
    assert {r.target_table for r in DeltaStore(control).all_control()} == {TARGET, "lake.c"}
    assert not (tmp_path / "lake" / "_strandline").exists()
    assert get_watermark(TARGET, SOURCE) == 7
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STRANDLINE_ETL_SCHEMA", "./control")
    assert get_watermark(TARGET, SOURCE) == 7
    assert ETLControlManager("control/").get_watermark(TARGET, SOURCE) == 7
    monkeypatch.setenv("STRANDLINE_ETL_SCHEMA", "control")
    with pytest.raises(
        ConfigError, match="`control` of STRANDLINE_ETL_SCHEMA is a name of the Spark catalog"
    ):
        make_project(tmp_path, [node], connections=erp)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("s3://acme/control", "`s3://acme/control` is not a folder of this machine"),
        ("/lake/con#trol", "`/lake/con#trol` holds `#`"),
    ],
)
def test_records_are_kept_in_a_folder_that_can_hold_tables(
    control, tmp_path, monkeypatch, place, why
):
    node = {
        "name": "n",
        "read": {"connection": "files", "path": "a.csv"},
        "write": {"connection": "lake", "table": "c", "mode": "overwrite"},
    }
    monkeypatch.setenv("STRANDLINE_ETL_SCHEMA", place)
    for use in (lambda: make_project(tmp_path, [node]), lambda: get_watermark(TARGET, SOURCE)):
        with pytest.raises(ConfigError, match=re.escape(why)):
            use()
