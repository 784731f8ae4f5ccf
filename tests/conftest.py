"""The engines as one fixture: whatever takes `platform` runs on each of them, the quick one first."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

from strandline.engine.base import Platform
from strandline.engine.local.workspace import LocalPlatform
from strandline.engine.memory import MemoryPlatform
from strandline.lake import register
from strandline.testing.memory_format import MEMORY
from strandline.testing.projects import LAKE, LAKES, make_project

ENGINES = ["pandas", pytest.param("spark", marks=pytest.mark.spark)]

# The same examples on every run, so that a red test stays red; `soak` looks for new ones.
_COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("ci", derandomize=True, database=None, print_blob=False, **_COMMON)
settings.register_profile("soak", **_COMMON)
settings.register_profile(
    "quick", parent=settings.get_profile("ci"), phases=[Phase.explicit, Phase.generate]
)  # no shrinking
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.hookimpl(tryfirst=True)  # before -m chooses by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests on Spark to the end, and mark those as long that `make test` runs on the local engine only."""
    items.sort(key=lambda item: item.get_closest_marker("spark") is not None)
    for item in items:
        if item.get_closest_marker("spark") and item.get_closest_marker("long_on_spark"):
            item.add_marker(pytest.mark.long)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A story that says so is told on a lake of each table format."""
    if metafunc.definition.get_closest_marker("lakes"):
        metafunc.parametrize("lake_format", list(LAKES), indirect=True)


@pytest.fixture(autouse=True)
def lake_format(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The table format of the lakes that `make_project` makes."""
    if name := getattr(request, "param", None):
        monkeypatch.setenv(LAKE, name)
    return name


@pytest.fixture(params=ENGINES)
def engine_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def platform(engine_name: str, request: pytest.FixtureRequest) -> Platform:
    return request.getfixturevalue(f"{engine_name}_platform")


@pytest.fixture(scope="session")
def pandas_platform() -> Platform:
    return LocalPlatform()


@pytest.fixture(scope="session")
def memory_platform() -> Platform:
    """Tables in memory: for what a feature means, whatever its tables are kept in."""
    register(MEMORY)
    return MemoryPlatform()


@pytest.fixture(scope="session")
def spark_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """One Spark session for all tests."""
    from strandline.engine.spark.jars import ICEBERG
    from strandline.engine.spark.session import SparkPlatform

    folder = tmp_path_factory.mktemp("spark")
    settings_ = {
        "spark.sql.shuffle.partitions": 2,
        "spark.ui.enabled": False,
        "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",  # the other tests run beside these, on the same cores
    }
    config = {"master": "local[2]", "config": settings_, "packages": [ICEBERG]}
    platform = SparkPlatform.start(make_project(folder, [], engine="spark", spark=config).config)
    yield platform
    platform.close()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A real PostgreSQL of our own, on loopback, for all tests that ask."""
    from tests.postgres import postgres

    with postgres() as url:
        yield url
