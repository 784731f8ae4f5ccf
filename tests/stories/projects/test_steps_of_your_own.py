"""Functions and steps that users bring: the `python` step, and the registry."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ConfigDict

from strandline.errors import ConfigError, TransformError
from strandline.sql.expr import col, lit, named, select, table
from strandline.testing.frames import read_table
from strandline.testing.projects import make_project
from strandline.transform import registry

CODE = """
def on_pandas(frame, add):
    frame["n"] = frame["n"] + add
    return frame

def on_spark(frame, add):
    return frame.withColumn("n", frame["n"] + add)

def nothing(frame):
    return None
"""


def project(folder, steps, name="own_steps"):
    (folder / "landing").mkdir(exist_ok=True)
    (folder / "landing" / "a.csv").write_text("id,n\n1,10\n2,\n")
    (folder / f"{name}.py").write_text(CODE)
    node = {
        "name": "n",
        "read": {"connection": "files", "path": "a.csv", "schema": {"n": "bigint"}},
        "transform": {"steps": steps},
        "write": {"connection": "lake", "table": "t", "mode": "overwrite"},
    }
    return make_project(folder, [node])


def python(function, engine, **params):
    return {
        "operation": "python",
        "params": {"function": function, "engine": engine, "params": params},
    }


def test_a_function_of_the_project(tmp_path, engine_name, platform, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = f"own_steps_{engine_name}"
    steps = [python(f"{module}.on_{engine_name}", engine_name, add=5)]
    project(tmp_path, steps, module).run(platform=platform, check=True)
    table = read_table(tmp_path / "lake" / "t")
    assert table.columns == [("id", "string"), ("n", "bigint")]
    assert sorted((r["id"], r["n"]) for r in table.rows) == [("1", 15), ("2", None)]


@pytest.mark.parametrize(
    ("function", "engine", "message"),
    [
        ("own_bad.nothing", "pandas", "returned NoneType, expected a pandas DataFrame"),
        ("own_bad.gone", "pandas", "cannot import own_bad.gone"),
        ("not_there.at_all", "pandas", "cannot import not_there.at_all"),
        ("own_bad.on_spark", "spark", "is written for engine: spark"),
    ],
)
def test_a_function_that_cannot_be_used(
    tmp_path, pandas_platform, monkeypatch, function, engine, message
):
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TransformError, match=message):
        project(tmp_path, [python(function, engine)], "own_bad").run(
            platform=pandas_platform, check=True
        )


class StampParams(BaseModel):
    """What the step takes."""

    model_config = ConfigDict(extra="forbid")
    column: str


def test_a_step_that_somebody_else_registers(tmp_path, platform, monkeypatch):
    registry.names()  # the built-in ones are there first
    monkeypatch.setattr(registry, "_steps", dict(registry._steps))

    @registry.transform("stamp", category="columns", param_model=StampParams)
    def stamp(context, params):
        kept = [col(c) for c in context.rows.schema.names]
        return context.with_rows(
            select(*kept, named(lit("x"), params.column)).from_(table(context.rows.name))
        )

    steps = [{"operation": "stamp", "params": {"column": "mark"}}]
    project(tmp_path, steps).run(platform=platform, check=True)
    assert {r["mark"] for r in read_table(tmp_path / "lake" / "t").rows} == {"x"}
    with pytest.raises(ConfigError, match="unknown key `colum`"):
        project(tmp_path, [{"operation": "stamp", "params": {"colum": "mark"}}])


@pytest.mark.spark
def test_an_active_session_is_reused_and_left_alone(tmp_path, spark_platform):
    from strandline.engine.spark.session import SparkPlatform

    spark_platform.session.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        taken = SparkPlatform.start(
            project(tmp_path, [{"operation": "drop", "params": {"columns": ["n"]}}]).config
        )
        assert taken.session is spark_platform.session
        with taken.workspace("n") as engine:
            assert (
                engine.session.conf.get("spark.sql.session.timeZone") == "UTC"
            )  # the meaning of our SQL
        taken.close()
        assert spark_platform.session.range(3).count() == 3  # still there
        assert spark_platform.session.conf.get("spark.sql.session.timeZone") == "America/New_York"
    finally:
        spark_platform.session.conf.set("spark.sql.session.timeZone", "UTC")
