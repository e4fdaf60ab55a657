"""Databases: the same shard from PostgreSQL and SQLite as from a file, read only, and no secret or cell in any message."""

from __future__ import annotations

import json
import logging
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import build_shard, read_shard
from polyclinic.ehr.sources import Place, as_chunks, typed_records
from polyclinic.ehr.sources.sql import Database, sql
from polyclinic.errors import ConfigError, DataError, PolyclinicError
from polyclinic.plugins import open_source
from tests.ehr.sources.postgres import PASSWORD, Server, running_server

CANARY = "canary-4711"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as found:
        yield found


@pytest.fixture
def many(records: pd.DataFrame) -> pd.DataFrame:
    tables = [records.assign(id=[f"p{copy}-{row}" for row in range(12)]) for copy in range(5)]
    return pd.concat(tables, ignore_index=True)


@pytest.fixture
def file(many: pd.DataFrame, tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "clinic.db") as connection:
        many.to_sql("visits", connection, index=False)
    connection.close()
    return tmp_path


def _sqlite(folder: Path, query: str = "select * from visits", **options: str) -> Place:
    return Place("sqlite:///clinic.db", folder, {"query": query, **options})


def _equal(found: object, expected: object) -> None:
    for name in ("x", "y", "patient", "is_test"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_sqlite_gives_the_shard_of_the_same_records(schema: Schema, many: pd.DataFrame, file: Path) -> None:
    options = {"query": "select * from visits"}
    _equal(read_shard(open_source("sqlite:///clinic.db", file, options, schema), schema, "north"),
           build_shard(many, schema, "north"))  # fmt: skip


def test_postgresql_gives_the_shard_of_the_same_records(
    schema: Schema, many: pd.DataFrame, server: Server, tmp_path: Path
) -> None:
    from sqlalchemy import create_engine, make_url

    engine = create_engine(make_url(server.url).set(drivername="postgresql+psycopg", password=PASSWORD))
    many.to_sql("visits", engine, index=False, if_exists="replace")
    engine.dispose()
    (tmp_path / "cohort.sql").write_text("select * from visits -- 'a:b' and 100%\n")
    options = {"query-file": "cohort.sql", "password-file": str(server.password_file)}
    _equal(read_shard(open_source(server.url, tmp_path, options, schema), schema, "north"),
           build_shard(many, schema, "north"))  # fmt: skip


def test_the_types_of_a_database_read_as_the_schema_says(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLINIC_PASSWORD", PASSWORD)
    schema = Schema(
        name="types",
        unit="record",
        columns=(
            Column(name="n", kind="continuous", bounds=(0, 10), nullable=True),
            Column(name="i", kind="integer", bounds=(0, 10), nullable=True),
            Column(name="b", kind="binary"),
            Column(name="c", kind="categorical", categories=("1", "2")),
            Column(name="seen", kind="categorical", role="time"),
            Column(name="died", kind="binary", role="label"),
        ),
    )
    query = """select * from (values
        (2.50::numeric, 3, true, 1.0::numeric, date '2020-01-31', 0), (null, null, false, 2, null, 1)
        ) as t(n, i, b, c, seen, died)"""
    place = Place(server.url, Path(), {"query": query, "password-env": "CLINIC_PASSWORD"})
    (chunk,) = sql(place, schema)
    assert chunk.records["n"].tolist() == [Decimal("2.50"), None]
    (again,) = open_source(server.url, Path(), place.options, schema)
    table = typed_records(again, schema)
    assert table["n"].tolist()[0] == 2.5 and table["c"].tolist() == ["1", "2"] and table["b"].tolist() == [1, 0]
    assert table["seen"].tolist() == ["2020-01-31", None] and table["i"].isna().tolist() == [False, True]


def test_only_so_many_rows_come_at_once_and_errors_count_over_all(server: Server, schema: Schema) -> None:
    place = Place(server.url, options={"password-file": str(server.password_file)})
    frames = list(Database.at(place).results("select i from generate_series(1, 2500) as t(i)", rows=1000))
    assert [len(frame) for frame in frames] == [1000, 1000, 500]
    assert pd.concat(frames)["i"].tolist() == list(range(1, 2501))


def test_a_bad_cell_names_its_row_in_the_whole_result(schema: Schema, many: pd.DataFrame, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "clinic.db") as connection:
        bad = many.assign(age=[CANARY if row == 40 else 50 for row in range(60)])
        bad.to_sql("visits", connection, index=False)
    connection.close()
    frames = Database.at(_sqlite(tmp_path)).results("select * from visits", rows=7)
    with pytest.raises(DataError, match="column 'age', data row 41: .*not a number") as caught:
        read_shard(as_chunks(frames, "clinic"), schema, "north")
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("select * from nowhere", "SQLSTATE 42P01"),
        ("selec", "the query is wrong"),
        (f"select '{CANARY}'::integer", "cannot convert"),
        ("select 1/0", "cannot convert"),
        ("create table stolen as select 1", "only reading is allowed|wrong"),
        ("select nextval('s')", "only reading is allowed"),
        ("select 1 as id", "columns 'ward', 'age'.* are missing"),
        ("select 1 as age, 2 as age", "column"),
    ],
)
def test_a_query_that_fails_is_one_sentence_without_cells(
    server: Server, schema: Schema, query: str, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.execute("create sequence if not exists s")
    caplog.set_level(logging.DEBUG)
    place = Place(server.url, options={"query": query, "password-file": str(server.password_file)})
    with pytest.raises(DataError, match=sentence) as caught:
        list(sql(place, schema))
    said = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert CANARY not in str(caught.value) and PASSWORD not in said and "\n" not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_credentials_never_show(
    server: Server, schema: Schema, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    (tmp_path / "secret").write_text(f"{PASSWORD}-wrong\n")
    (tmp_path / "right").write_text(f"{PASSWORD}\n")
    wrong = Place(server.url, tmp_path, {"query": "select 1", "password-file": "secret"})
    with pytest.raises(DataError, match="postgresql database 'postgres'") as caught:
        list(sql(wrong, schema))
    right = Database.at(Place(server.url, tmp_path, {"query": "select 1", "password-file": "right"}))
    assert PASSWORD not in f"{caught.value} {wrong!r} {right!r} {caplog.text}"


@pytest.mark.parametrize(
    ("url", "options", "sentence"),
    [
        ("postgresql://me:hunter2@db/x", {"query": "q"}, "holds a password"),
        ("postgresql://me@db/x?password=hunter2", {"query": "q"}, "holds a password"),
        ("postgresql://me@db/x", {}, "exactly one of the keys 'query'"),
        ("postgresql://me@db/x", {"query": "q", "quary": "q"}, "Did you mean 'query'"),
        ("postgresql://me@db/x", {"query": "q", "password-env": "NOT_SET_HERE"}, "'NOT_SET_HERE'.* is not set"),
        ("postgresql://me@db/x", {"query": "q", "password-file": "none"}, "none: the file cannot be read"),
        ("postgresql://me@db/x", {"query-file": "none"}, "none: the file cannot be read"),
        ("nosuch://me@db/x", {"query": "q"}, "driver is not installed"),
        ("://", {"query": "q"}, "URL cannot be read"),
        ("sqlite:///none.db", {"query": "q"}, "none.db: there is no such SQLite database"),
    ],
)
def test_a_hospital_file_that_is_wrong_is_told_so(
    url: str, options: dict[str, str], sentence: str, schema: Schema, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, DataError), match=sentence) as caught:
        list(open_source(url, tmp_path, options, schema))
    assert "hunter2" not in str(caught.value)


def test_a_server_that_is_not_there_is_told_so(schema: Schema, tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="no psycopg here: install polyclinic[postgresql]")
    with pytest.raises(DataError, match="cannot be reached"):
        list(open_source(f"postgresql://owner@/x?host={tmp_path}", tmp_path, {"query": "select 1"}, schema))


def test_an_empty_result_and_a_damaged_file_are_refused(schema: Schema, file: Path) -> None:
    with pytest.raises(DataError, match="there are no records"):
        read_shard(sql(_sqlite(file, "select * from visits where 0"), schema), schema, "north")
    with pytest.raises(DataError, match="columns 'id', 'ward'.* are missing"):
        read_shard(sql(_sqlite(file, "select 1 where 0"), schema), schema, "north")
    (file / "clinic.db").write_bytes(b"not a database" * 100)
    with pytest.raises(PolyclinicError, match="sqlite database 'clinic.db'"):
        read_shard(sql(_sqlite(file), schema), schema, "north")


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("select idd from visits", "the query is wrong, names what is not there"),
        ("select id from visitss", "the query is wrong, names what is not there"),
        ("delete from visits", "only reading is allowed"),
        ("select 1; select 2", "the query fails"),
    ],
)
def test_a_query_that_fails_in_sqlite_is_told_from_a_file_that_does(
    query: str, sentence: str, schema: Schema, file: Path
) -> None:
    with pytest.raises(DataError, match=sentence):
        list(sql(_sqlite(file, query), schema))
    (file / "clinic.db").write_bytes(b"not a database" * 100)
    with pytest.raises(DataError, match="no SQLite database"):
        list(sql(_sqlite(file), schema))


def test_a_sqlite_file_is_not_written(schema: Schema, file: Path) -> None:
    before = (file / "clinic.db").read_bytes()
    with pytest.raises(DataError):
        list(sql(_sqlite(file, "delete from visits returning id"), schema))
    assert (file / "clinic.db").read_bytes() == before


@pytest.mark.slow
def test_a_million_rows_are_read_and_trained_on_in_two_gigabytes(server: Server, tmp_path: Path) -> None:
    from tests.ehr.sources.million import SCHEMA

    cells = ["i as id", *(f"case when (i + {k}) % 7 = 0 and {k} % 2 = 0 then null else random() * 100 end as lab{k}"
                          for k in range(18))]  # fmt: skip
    cells += [f"(random() * 50)::integer as count{k}" for k in range(4)] + [
        f"(i + {k}) % 2 as flag{k}" for k in range(3)
    ]
    cells += [f"substr('abcd', 1 + (i + {k}) % 4, 1) as ward{k}" for k in range(3)]
    server.execute("drop table if exists visits", f"create table visits as select {', '.join(cells)}, i % 2 as died "
                   "from generate_series(1, 1000000) as t(i)")  # fmt: skip
    SCHEMA.to_toml(tmp_path / "schema.toml")
    (tmp_path / "hospital.toml").write_text(
        f'site = "n"\ndata = "{server.url}"\nschema = "schema.toml"\nhome = "home"\n[source]\nquery = "select * from visits"\n'
        f'password-file = "{server.password_file}"\n[policy]\nbudget = 3.0\ndelta = 1e-8\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.ehr.sources.million", tmp_path / "hospital.toml"],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found["steps"] == RunConfig().training.local_steps and found["peak_bytes"] < 2e9
