"""CSV, JSON and Parquet: NULL is not '', columns go by their names, and bad lines are named."""

from __future__ import annotations

import gzip
import io
import json
import os
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlglot import exp

from strandline.engine.base import FileSource
from strandline.engine.sources.files import listed
from strandline.errors import CastError, ReadError, StrandlineError
from strandline.lake.delta.log import open_table
from strandline.sql.expr import rows_of
from strandline.testing.frames import read_table
from strandline.testing.projects import make_project
from strandline.types import Table


def land(tmp_path, **files):
    for name, content in files.items():
        path = (
            tmp_path
            / "landing"
            / name.replace("__", "/").replace("_csv", ".csv").replace("_json", ".json")
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def run(tmp_path, platform, read, **write):
    node = {
        "name": "n",
        "read": {"connection": "files", **read},
        "write": {"connection": "lake", "table": "t", "mode": "overwrite", **write},
    }
    make_project(tmp_path, [node]).run(platform=platform, check=True)
    return read_table(tmp_path / "lake" / "t")


def rows(table, *names):
    return sorted((tuple(r[n] for n in names) for r in table.rows), key=repr)


def test_null_is_not_the_empty_string(tmp_path, platform):
    land(
        tmp_path,
        a_csv='id,name\n1,""\n2,\n3,"a ""quoted"", b"\n4," x "\n5,"two\nlines"\n6,back\\slash\n',
    )
    table = run(tmp_path, platform, {"path": "a.csv"})
    assert rows(table, "id", "name") == [
        ("1", ""),
        ("2", None),
        ("3", 'a "quoted", b'),
        ("4", " x "),
        ("5", "two\nlines"),
        ("6", "back\\slash"),
    ]


def test_options_and_schema(tmp_path, platform):
    land(tmp_path, a_csv="1;n/a;2.50;2024-02-29;yes\n2;x;;;\n")
    read = {
        "path": "a.csv",
        "options": {"delimiter": ";", "header": False, "null_value": "n/a"},
        "schema": {"_c0": "bigint", "_c2": "decimal(8,2)", "_c3": "date", "_c4": "boolean"},
    }
    table = run(tmp_path, platform, read)
    assert rows(table, "_c0", "_c1", "_c2", "_c3", "_c4") == [
        (1, None, Decimal("2.50"), date(2024, 2, 29), True),
        (2, "x", None, None, None),
    ]


def test_a_glob_reads_by_column_name_and_tells_the_file(tmp_path, platform):
    land(
        tmp_path,
        a_csv="\ufeffid,name\n1,one\n",
        **{"sub dir__b+ü %_csv": "NAME,id,extra\ntwo,2,E\n", "empty_csv": ""},
    )
    table = run(tmp_path, platform, {"path": "**/*.csv"}, add_metadata=True)
    assert rows(table, "id", "name", "extra", "_source_file", "_source_connection") == [
        ("1", "one", None, "a.csv", "files"),
        ("2", "two", "E", "sub dir/b+ü %.csv", "files"),
    ]
    assert "_source_table" not in dict(table.columns)


@pytest.mark.parametrize("ending", ["csv", "json", "parquet"])
def test_a_file_whose_name_looks_like_a_pattern_is_read_once(tmp_path, platform, ending):
    """`report[1].csv` is what a browser calls a second download."""
    names = ["report[1]", "report1", "a*b", "aXb", "a?b", "a{b}", "ab", "a\\b"]
    (tmp_path / "landing").mkdir()
    for name in names:
        path = tmp_path / "landing" / f"{name}.{ending}"
        if ending == "parquet":
            pq.write_table(pa.table({"name": [name]}), path)
        else:
            path.write_text(f"name\n{name}\n" if ending == "csv" else json.dumps({"name": name}))
    table = run(tmp_path, platform, {"path": f"*.{ending}"}, add_metadata=True)
    expected = [(n, f"{n}.{ending}") for n in names]
    assert rows(table, "name", "_source_file") == sorted(expected, key=repr)


@pytest.mark.long_on_spark
@pytest.mark.parametrize("ending", ["csv", "json", "parquet"])
def test_a_column_without_a_name_is_refused(tmp_path, platform, ending):
    (tmp_path / "landing").mkdir()
    path = tmp_path / "landing" / f"a.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["id", ""]), path)
    else:
        path.write_text("id,\n1,2\n" if ending == "csv" else '{"":2,"id":1}\n')
    with pytest.raises(StrandlineError, match=r"column [12] has no name"):
        run(tmp_path, platform, {"path": path.name})


def test_json_lines(tmp_path, platform):
    land(
        tmp_path,
        a_json='{"id":1,"v":1.5,"s":{"a":1,"b":["x"]},"n":null}\n{"id":2,"v":2,"t":"é","s":null}\n',
    )
    table = run(tmp_path, platform, {"path": "a.json"})
    assert dict(table.columns) == {
        "id": "bigint", "s": "struct<a:bigint,b:array<string>>", "t": "string", "v": "double",
    }  # fmt: skip
    assert rows(table, "id", "v", "t", "s") == [
        (1, 1.5, None, {"a": 1, "b": ["x"]}),
        (2, 2.0, "é", None),
    ]


def test_parquet_keeps_its_types_and_unites_columns(tmp_path, platform):
    (tmp_path / "landing").mkdir()
    pq.write_table(pa.table({"id": pa.array([1], pa.int32())}), tmp_path / "landing" / "a.parquet")
    pq.write_table(
        pa.table({"id": pa.array([2], pa.int32()), "x": pa.array([Decimal("1.10")])}),
        tmp_path / "landing" / "b.parquet",
    )
    table = run(tmp_path, platform, {"path": "*.parquet"})
    assert dict(table.columns) == {"id": "int", "x": "decimal(3,2)"}
    assert rows(table, "id", "x") == [(1, None), (2, Decimal("1.10"))]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("id,name\n1,a\n2,b,c\n", 3),
        ("id,name\n1,a\n2\n", 3),
        ('id,name\n1,"two\nlines"\n3,c,d\n', 4),
    ],
)
def test_an_unreadable_line_is_named(tmp_path, platform, content, line):
    land(tmp_path, a_csv=content)
    with pytest.raises(ReadError, match=rf"a\.csv, line {line}: unreadable CSV"):
        run(tmp_path, platform, {"path": "a.csv"})
    assert open_table(Table("t", str(tmp_path / "lake" / "t"))) is None


def test_a_value_that_does_not_fit_its_schema(tmp_path, platform):
    land(tmp_path, a_csv="id,at\n1,2024-02-30\n")
    with pytest.raises(CastError, match="column `at`: the value '2024-02-30' is not a date"):
        run(tmp_path, platform, {"path": "a.csv", "schema": {"at": "date"}})


def test_no_file(tmp_path, platform):
    with pytest.raises(ReadError, match=r"no file matches `x/\*\.csv`"):
        run(tmp_path, platform, {"path": "x/*.csv"})


@pytest.mark.long_on_spark
def test_names_that_differ_only_in_case(tmp_path, platform):
    land(tmp_path, a_csv="id,Id\n1,2\n")
    with pytest.raises(Exception, match="differ only in case") as caught:
        run(tmp_path, platform, {"path": "a.csv"})
    assert caught.value.exit_code == 1


# --- by modification time ----------------------------------------------------------------------------------

NOON = datetime(2024, 6, 15, 12, tzinfo=UTC)


def landed(folder, name, content, at):
    """A file that was written at a time, exact to the microsecond."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    nanos = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000
    os.utime(path, ns=(nanos, nanos))
    return path


def scanned(platform, source):
    """The columns, the rows and the number of rows read."""
    with platform.workspace("n") as engine:
        scan = engine.scan(source)
        staged = engine.stage(rows_of(scan.relation), {"n": exp.Count(this=exp.Star())}, None)
        found = sorted(engine.fetch(rows_of(staged.relation)), key=repr)
        assert staged.measures["n"] == len(found)
        return scan.relation.schema.names, found, scan.rows_read()


def parquet(**columns):
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


FORMATS = {
    "csv": ("id,name\n1,a\n", "id,name\n2,b\n", "2"),
    "json": ('{"id": 1, "name": "a"}\n', '{"id": 2, "name": "b"}\n', 2),
    "parquet": (parquet(id=[1], name=["a"]), parquet(id=[2], name=["b"]), 2),
}


@pytest.mark.parametrize("format_", FORMATS)
def test_only_files_since_a_time_are_read(tmp_path, platform, format_):
    old, new, two = FORMATS[format_]
    micro = timedelta(microseconds=1)
    landed(tmp_path, f"a.{format_}", old, NOON - micro)
    landed(tmp_path, f"b.{format_}", new, NOON)
    source = FileSource(tmp_path, f"*.{format_}", format_, file_column="_source_file", since=NOON)
    names, found, count = scanned(platform, source)
    assert (names, found, count) == (
        ["id", "name", "_source_file"],
        [(two, "b", f"b.{format_}")],
        1,
    )
    assert max(f.modified for f in listed(source)) == NOON
    assert scanned(platform, replace(source, since=NOON + micro)) == (names, [], 0)
    assert len(scanned(platform, replace(source, since=NOON - micro))[1]) == 2


def test_the_newest_file_says_the_columns_whatever_its_name(tmp_path, pandas_platform):
    landed(tmp_path, "b [1].csv", "id,name\n1,a\n", NOON)
    source = FileSource(tmp_path, "*.csv", "csv", since=NOON + timedelta(hours=1))
    assert scanned(pandas_platform, source) == (["id", "name"], [], 0)


@pytest.mark.long_on_spark
def test_an_empty_new_file_is_a_quiet_day(tmp_path, platform):
    landed(tmp_path, "a.csv", "id,name\n1,a\n", NOON)
    landed(tmp_path, "b.csv", "", NOON + timedelta(hours=1))
    source = FileSource(tmp_path, "*.csv", "csv", since=NOON + timedelta(minutes=1))
    assert scanned(platform, source) == (["id", "name"], [], 0)


@pytest.mark.long_on_spark
def test_no_file_at_all_stays_an_error(tmp_path, platform):
    source = FileSource(tmp_path, "*.csv", "csv", since=NOON)
    assert listed(source) == []
    assert listed(replace(source, pattern="a.csv")) == []
    with pytest.raises(ReadError, match="no file matches"):
        scanned(platform, source)


@pytest.mark.long_on_spark
def test_only_a_bad_line_of_what_was_read_is_named(tmp_path, platform):
    landed(tmp_path, "a.csv", "id,name\n1,a,x\n", NOON - timedelta(hours=1))
    landed(tmp_path, "b.csv", "id,name\n1,a,x\n", NOON)
    with pytest.raises(ReadError, match=r"b\.csv, line 2"):
        scanned(platform, FileSource(tmp_path, "*.csv", "csv", since=NOON))


def several(tmp_path, platform, reads):
    """One node per read, each into a table of its name; returns their results by name."""
    nodes = [
        {"name": name, "read": {"connection": "files", **read},
         "write": {"connection": "lake", "table": name, "mode": "overwrite", "add_metadata": {"source_file": True}}}
        for name, read in reads.items()
    ]  # fmt: skip
    return {n.name: n for n in make_project(tmp_path, nodes).run(platform=platform).nodes}


def test_files_in_other_encodings(tmp_path, platform):
    text = 'id;name\n1;Zürich\n2;"ein\r\nBären;platz"\n'
    land(
        tmp_path,
        **{
            "west__a_csv": text.encode("latin-1"),
            "west__sub__b_csv.gz": gzip.compress("id;name\n3;Köln\n".encode("latin-1")),
            "wide_csv": text.replace(";", ",").replace("Bären,", "Bären").encode("utf-16"),
            "small_csv.gz": gzip.compress("id,name\n1,Zürich\n".encode()),
            "yen_csv": "id,name\n1,東京\n".encode("shift_jis"),
        },
    )
    found = several(
        tmp_path,
        platform,
        {
            "west": {
                "path": "west/**/*",
                "format": "csv",
                "options": {"delimiter": ";", "encoding": "latin-1"},
            },
            "wide": {"path": "wide.csv", "options": {"encoding": "utf-16"}},
            "small": {"path": "small.csv.gz"},
            "yen": {"path": "yen.csv", "options": {"encoding": "shift_jis"}},
        },
    )
    assert [n.error for n in found.values()] == [None] * 4
    tables = {
        name: rows(read_table(tmp_path / "lake" / name), "id", "name", "_source_file")
        for name in found
    }
    assert tables["west"] == [
        ("1", "Zürich", "west/a.csv"),
        ("2", "ein\r\nBären;platz", "west/a.csv"),
        ("3", "Köln", "west/sub/b.csv.gz"),
    ]
    assert tables["wide"] == [("1", "Zürich", "wide.csv"), ("2", "ein\r\nBärenplatz", "wide.csv")]
    assert tables["small"] == [("1", "Zürich", "small.csv.gz")]
    assert tables["yen"] == [("1", "東京", "yen.csv")]


def test_a_file_that_is_not_what_the_read_says_is_named_with_the_option_to_set(tmp_path, platform):
    long = "id,name\n" + "1,abcdefghij\n" * 20_000
    land(
        tmp_path,
        early_csv="id,name\n1,Zürich\n".encode("latin-1"),
        late_csv=(long + "2,Zürich\n").encode("latin-1"),
        wide_csv="id,name\n1,Zürich\n".encode("utf-16"),
        bare_csv="id,name\n1,Zürich\n".encode("utf-16-le"),
        wrong_csv=b"id,name\n1,\x81\n",
        semicolon_csv="id;name\n1;x\n",
        tab_csv="id\tname\n1\tx\n",
    )
    reads = {n: {"path": f"{n}.csv"} for n in ("early", "late", "wide", "bare", "semicolon", "tab")}
    found = several(
        tmp_path,
        platform,
        {**reads, "wrong": {"path": "wrong.csv", "options": {"encoding": "cp1252"}}},
    )
    assert all(n.status == "failed" for n in found.values())
    told = {name: (n.error["message"], n.error["hint"]) for name, n in found.items()}
    other = "add options: {encoding: …} to the read, for example latin-1 (Western Europe), cp1252 (Windows) or utf-16"
    assert told == {
        "early": ("early.csv, line 2: this is not UTF-8 text: found the byte 0xfc", other),
        "late": ("late.csv, line 20002: this is not UTF-8 text: found the byte 0xfc", other),
        "wide": (
            "wide.csv, line 1: this is not UTF-8 text: found NUL bytes or a mark of UTF-16",
            "the file begins as UTF-16 does: add options: {encoding: utf-16} to the read",
        ),
        "bare": (
            "bare.csv, line 1: this is not UTF-8 text: found NUL bytes or a mark of UTF-16",
            "the file begins as UTF-16 does: add options: {encoding: utf-16-le} to the read",
        ),
        "wrong": (
            "wrong.csv, line 2: this is not cp1252 text: found the byte 0x81",
            "correct options: {encoding: cp1252}; without it files are read as UTF-8",
        ),
        "semicolon": (
            "semicolon.csv, line 1: the header has no `,`, so it is one column: `id;name`",
            'add options: {delimiter: ";"} to the read',
        ),
        "tab": (
            "tab.csv, line 1: the header has no `,`, so it is one column: `id\tname`",
            'add options: {delimiter: "\\t"} to the read',
        ),
    }


@pytest.mark.parametrize(
    "damaged",
    [lambda b: b[: len(b) // 2], lambda b: b"not an archive", lambda b: b[:-9] + b"123456789"],
)
def test_a_damaged_archive(tmp_path, pandas_platform, damaged):
    text = "id,name\n" + "".join(f"{i},name {i * i}\n" for i in range(2000))
    land(tmp_path, **{"a_csv.gz": damaged(gzip.compress(text.encode("latin-1")))})
    found = several(tmp_path, pandas_platform, {
        "plain": {"path": "a.csv.gz"}, "west": {"path": "a.csv.gz", "options": {"encoding": "latin-1"}},
    })  # fmt: skip
    for node in found.values():
        assert node.error["code"] == "read", node.error
        assert "`a.csv.gz` cannot be decompressed" in node.error["message"]


def test_files_by_their_time_in_another_encoding(tmp_path, pandas_platform):
    """A run that finds no new file knows the columns all the same."""
    land(tmp_path, a_csv="id,name\n1,Zürich\n".encode("latin-1"))
    read = {
        "path": "*.csv",
        "options": {"encoding": "latin-1"},
        "incremental": {"mode": "stateful"},
    }
    for expected in ("success", "unchanged"):
        assert several(tmp_path, pandas_platform, {"t": read})["t"].status == expected
    land(tmp_path, b_csv="id,name\n2,Köln\n".encode("latin-1"))
    assert several(tmp_path, pandas_platform, {"t": read})["t"].inserted == 1
