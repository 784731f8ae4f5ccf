"""Delta tables that others have renamed or widened columns of: read right, and refused where they cannot be written."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.engine.base import LakeSource
from strandline.errors import TableError
from strandline.lake import format_of
from strandline.sql.expr import rows_of
from strandline.testing.frames import write_parquet
from strandline.testing.oracle import Frame
from strandline.testing.projects import make_project
from strandline.types import Table


def column(name: str, type_: str, **noted: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, "nullable": True, "metadata": noted}


MAPPING = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
FEATURES = {
    "readerFeatures": ["typeWidening"],
    "writerFeatures": ["typeWidening", "changeDataFeed"],
}


def physical(id_: int, name: str) -> dict[str, Any]:
    return {"delta.columnMapping.id": id_, "delta.columnMapping.physicalName": name}


def made(root: Path, kind: str) -> Path:
    """A table as Spark leaves it behind: `v` was renamed to `w`, or became a bigint."""
    ints = pa.array([1], pa.int32())
    if kind == "renamed":
        fields = [
            column("k", "integer", **physical(1, "col-1")),
            column("w", "long", **physical(2, "v")),
        ]
        files = [
            pa.table({"col-1": ints, "v": [7]}),
            pa.table({"col-1": pa.array([2], pa.int32()), "v": [8]}),
        ]
        protocol, conf = {"minReaderVersion": 2, "minWriterVersion": 5}, MAPPING
    else:
        change = [{"fromType": "integer", "toType": "long"}]
        fields = [column("k", "integer"), column("w", "long", **{"delta.typeChanges": change})]
        files = [pa.table({"k": ints, "w": pa.array([7], pa.int32())})]
        files.append(pa.table({"k": pa.array([2], pa.int32()), "w": [8]}))
        protocol, conf = (
            {"minReaderVersion": 3, "minWriterVersion": 7, **FEATURES},
            {"delta.enableTypeWidening": "true"},
        )
    (root / "_delta_log").mkdir(parents=True)
    schema = json.dumps({"type": "struct", "fields": fields})
    meta = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
    }
    conf = {**conf, "delta.enableChangeDataFeed": "true"}
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": 1700000000000, "operation": "WRITE"}}
    ]
    actions += [
        {"protocol": protocol},
        {"metaData": {**meta, "partitionColumns": [], "configuration": conf, "createdTime": 0}},
    ]
    for number, rows in enumerate(files):
        file = root / f"{number}.parquet"
        pq.write_table(rows, file)
        facts = {
            "path": file.name,
            "partitionValues": {},
            "size": file.stat().st_size,
            "modificationTime": 0,
        }
        actions.append({"add": {**facts, "dataChange": True}})
    (root / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))
    return root


@pytest.mark.parametrize("kind", ["renamed", "widened"])
def test_they_are_read_as_they_are(tmp_path: Path, platform: Any, kind: str) -> None:
    place = Table("t", str(made(tmp_path / "t", kind)))
    with platform.workspace("n") as engine:
        relation = engine.scan(LakeSource(place, 0)).relation
        assert [(c.name, c.type) for c in relation.schema] == [("k", "int"), ("w", "bigint")]
        assert sorted(engine.fetch(rows_of(relation))) == [(1, 7), (2, 8)]


def test_the_feed_of_mapped_columns_is_not_read_from_its_files(tmp_path: Path) -> None:
    place = Table("t", str(made(tmp_path / "t", "renamed")))
    told = format_of(place).gap(place, 0, 0, vectors=False)
    assert told is not None
    assert "column mapping" in told


@pytest.mark.parametrize("kind", ["renamed", "widened"])
def test_the_local_engine_refuses_to_write_them(
    tmp_path: Path, pandas_platform: Any, kind: str
) -> None:
    log = made(tmp_path / "lake" / "t", kind) / "_delta_log"
    write_parquet(
        tmp_path / "landing" / "t.parquet",
        Frame([("k", "int"), ("w", "bigint")], [{"k": 3, "w": 9}]),
    )
    node = {
        "name": "n",
        "read": {"connection": "files", "path": "t.parquet"},
        "write": {"connection": "lake", "table": "t", "mode": "append"},
    }
    with pytest.raises(TableError, match=r"lake\.t uses (column mapping|type widening)") as error:
        make_project(tmp_path, [node]).run(platform=pandas_platform, check=True)
    assert "engine: spark" in str(error.value.hint)
    assert len(list(log.iterdir())) == 1
