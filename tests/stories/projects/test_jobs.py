"""How many Spark jobs a node may take: what costs a fraction of a second each, unseen, adds up over many nodes."""

from __future__ import annotations

import pytest

from strandline.testing.projects import make_project

pytestmark = pytest.mark.spark
# as many as they take today (Spark 4.1, Delta 4.4): fewer is fine, more needs a reason
LOAD, CHANGED, AGAIN, FIRST_APPEND, NEXT_APPEND = 3, 24, 9, 2, 5
UPSERT = {"connection": "lake", "table": "silver", "mode": "upsert", "keys": ["id"]}


@pytest.fixture
def jobs(spark_platform):
    """Counts the jobs of what it calls."""
    status = spark_platform.session.sparkContext._jsc.sc().statusStore()

    def count(work):
        before = status.jobsList(None).size()
        result = work()
        return status.jobsList(None).size() - before, result

    return count


def project(folder):
    read = {"connection": "files", "path": "rows.csv", "schema": {"id": "bigint"}}
    return make_project(
        folder,
        [
            {
                "name": "bronze",
                "read": read,
                "write": {"connection": "lake", "table": "bronze", "mode": "append"},
            },
            {"name": "silver", "read": read, "write": UPSERT},
            {
                "name": "copy",
                "read": {"connection": "lake", "table": "bronze"},
                "write": {**UPSERT, "table": "copy"},
            },
        ],
    )


def land(folder, rows):
    (folder / "landing").mkdir(exist_ok=True)
    (folder / "landing" / "rows.csv").write_text("id,v\n" + "".join(f"{i},{v}\n" for i, v in rows))


def run(folder, platform, node, status):
    def work():
        found = project(folder).run([node], platform=platform, check=True).nodes[0]
        assert found.status == status
        return found

    return work


def test_upsert(tmp_path, spark_platform, jobs):
    land(tmp_path, [(i, "a") for i in range(50)])
    first, _ = jobs(run(tmp_path, spark_platform, "silver", "success"))
    land(tmp_path, [(i, "a" if i % 10 else "b") for i in range(60)])
    changed, node = jobs(run(tmp_path, spark_platform, "silver", "success"))
    assert (node.inserted, node.updated) == (10, 5)
    again, _ = jobs(run(tmp_path, spark_platform, "silver", "unchanged"))
    assert first <= LOAD
    assert changed <= CHANGED
    assert again <= AGAIN


def test_append(tmp_path, spark_platform, jobs):
    land(tmp_path, [(i, "a") for i in range(50)])
    first, _ = jobs(run(tmp_path, spark_platform, "bronze", "success"))
    second, _ = jobs(run(tmp_path, spark_platform, "bronze", "success"))
    assert first <= FIRST_APPEND
    assert second <= NEXT_APPEND


def test_nothing_new_takes_none(tmp_path, spark_platform, jobs):
    land(tmp_path, [(i, "a") for i in range(50)])
    run(tmp_path, spark_platform, "bronze", "success")()
    run(tmp_path, spark_platform, "copy", "success")()
    taken, _ = jobs(run(tmp_path, spark_platform, "copy", "unchanged"))
    assert taken == 0
