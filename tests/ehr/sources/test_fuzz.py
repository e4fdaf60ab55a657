"""Whatever a file or database holds, it loads, or is refused by one sentence that quotes no cell; nothing hangs."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
from datetime import datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from polyclinic.ehr.sources import Place
from tests.ehr.sources.fuzz import KINDS, SECONDS, attempt, records, resources, write

FAST, SLOW = 40, 1600
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}

#: Cells of any type that a database or a Parquet column can hold, some of them nearly right.
cells = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=12), st.binary(max_size=6),
    st.sampled_from(["canary-4711", "1", "0", "50", "male", "I10", "I10;;E11", " 1 ", "1e3", "nan", "-0", "NA", "?", "١"]),
)  # fmt: skip
ROWS = 6
edits = st.lists(st.tuples(st.integers(0, ROWS - 1), st.sampled_from(list(records(1).columns)), cells), max_size=3)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(["canary-4711", "age"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(
        ["code", "coding", "value", "reference", "id", "valueQuantity", "unit", "status"]), inner, max_size=3)),
    max_leaves=6,
)  # fmt: skip
elements = st.dictionaries(
    st.sampled_from(["id", "subject", "code", "valueQuantity", "effectiveDateTime", "status", "component", "gender",
                     "deceasedBoolean", "valueString", "period", "resourceType"]), values, max_size=4)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [FAST, pytest.param(SLOW, marks=pytest.mark.slow)])
def test_mutated_bytes_load_or_are_refused(kind: str, count: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.ehr.sources.fuzz", kind, "0", str(count)], capture_output=True, text=True,
        timeout=60 + count * SECONDS / 10,
    )  # fmt: skip
    last = done.stderr.strip().splitlines()[-1:]
    assert done.returncode == 0, f"{kind}: the reader ended the process ({done.returncode}) near {last}"
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert found["loaded"] + found["refused"] == count and found["loaded"] and found["refused"]


def _edited(found: list[tuple[int, str, Any]]) -> pd.DataFrame:
    table = records(ROWS).astype(object)
    for row, column, cell in found:
        table.at[row, column] = cell
    return table


def _sql(table: pd.DataFrame) -> str:
    with tempfile.TemporaryDirectory() as name:
        with sqlite3.connect(Path(name) / "a.sqlite") as connection:
            connection.execute("create table t (id, age, crp, sex, codes, note, died)")
            connection.executemany("insert into t values (?, ?, ?, ?, ?, ?, ?)", table.values.tolist())
        connection.close()
        return attempt("sql", Place("sqlite:///a.sqlite", Path(name), {"query": "select * from t"}))


def _csv(table: pd.DataFrame) -> str:
    with tempfile.TemporaryDirectory() as name:
        table.to_csv(Path(name) / "a.csv", index=False, errors="surrogatepass")
        return attempt("files", Place("a.csv", Path(name)))


def _fhir(found: list[tuple[str, int, dict[str, Any]]]) -> str:
    with tempfile.TemporaryDirectory() as name:
        _, source, place = write("ndjson", Path(name), records(4))
        lines = {kind: text.splitlines() for kind, text in resources(records(4)).items()}
        for kind, at, change in found:
            resource = json.loads(lines[kind][at % len(lines[kind])])
            lines[kind][at % len(lines[kind])] = json.dumps(resource | change)
        for kind, some in lines.items():
            (Path(name) / f"{kind}.ndjson").write_text("\n".join(some))
        return attempt(source, place)


changes = st.lists(
    st.tuples(st.sampled_from(["Patient", "Observation", "Condition"]), st.integers(0, 9), elements), max_size=4
)


@settings(max_examples=40, **QUIET)
@given(edits, changes)
def test_any_cells_and_any_json_load_or_are_refused(found: list[Any], changed: list[Any]) -> None:
    assert {_sql(_edited(found)), _csv(_edited(found)), _fhir(changed)} <= {"loaded", "refused"}


@pytest.mark.slow
@settings(max_examples=700, **QUIET)
@given(edits, changes)
def test_two_thousand_more_of_any_cells_and_any_json(found: list[Any], changed: list[Any]) -> None:
    assert {_sql(_edited(found)), _csv(_edited(found)), _fhir(changed)} <= {"loaded", "refused"}


ARRAYS = [
    pa.array(["canary-4711", None] * 3), pa.array([b"canary-4711", b"\xff"] * 3), pa.array([[1], []] * 3),
    pa.array([{"canary": 4711}, None] * 3), pa.array([datetime(4711, 1, 1)] * 6), pa.array([Decimal("47.11")] * 6),
    pa.array(["male", "canary"] * 3).dictionary_encode(), pa.array([True, None] * 3), pa.nulls(6),
    pa.array([timedelta(4711)] * 6), pa.array([2**63 - 1, None] * 3), pa.array([2**64 - 1] * 6, pa.uint64()),
    pa.array([1, 2] * 3, pa.float16()), pa.array([float("inf"), float("nan")] * 3), pa.array([time(1), None] * 3),
    pc.cast(pa.array([b"canary-4711\xff", b"1"] * 3), options=pc.CastOptions(pa.string(), allow_invalid_utf8=True)),
    pa.array([1, 0] * 3, pa.int8()), pa.array([[("canary", 4711)]] * 6, pa.map_(pa.string(), pa.int64())),
]  # fmt: skip


@pytest.mark.parametrize("column", records(1).columns)
def test_a_parquet_column_of_any_type_loads_or_is_refused(column: str, tmp_path: Path) -> None:
    seen = set()
    for array in ARRAYS:
        table = pa.Table.from_pandas(records(6))
        table = table.set_column(table.column_names.index(column), column, array)
        parquet.write_table(table, tmp_path / "a.parquet")
        seen.add(attempt("files", Place("a.parquet", tmp_path)))
    assert seen <= {"loaded", "refused"} and ("loaded" in seen or column == "died")
