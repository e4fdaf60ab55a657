"""A shard read in chunks of any size is, bit for bit, the shard of all rows read at once."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import build_shard, check_chunks, check_records, read_shard
from polyclinic.ehr.sources import Chunk, Place, as_chunks, read_records
from polyclinic.ehr.sources.files import file_chunks
from polyclinic.ehr.sources.sql import Database
from polyclinic.errors import ConfigError, DataError
from polyclinic.plugins import open_source, plugins

_HOLES = ("chol", "smoker", "ecg", "stage", "sbp_00", "sbp_01")


def _table(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "id": rng.integers(0, max(1, rows // 2), rows) + 2**53,
            "ward": rng.choice(["north", "south"], rows),
            "age": rng.integers(0, 121, rows),
            "chol": rng.random(rows) * 700,
            "male": rng.random(rows) < 0.5,
            "smoker": rng.choice(["no", "yes"], rows),
            "pain": rng.choice(["none", "typical", "atypical"], rows),
            "ecg": rng.choice(["normal", "abnormal"], rows),
            "stage": rng.choice(["I", "II", "III", "IV"], rows),
            "codes": rng.choice(["", "I10", "E11;N18"], rows),
            **{f"sbp_0{step}": rng.integers(60, 241, rows).astype(float) for step in range(3)},
            "died": rng.integers(0, 2, rows),
        }
    )
    for name in _HOLES:
        table[name] = table[name].astype(object).where(rng.random(rows) < 0.6, None)
    return table


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 60),
    chunk=st.integers(1, 70),
    form=st.sampled_from(["csv", "parquet", "sql"]),
)
def test_the_size_of_chunks_changes_nothing(schema: Schema, seed: int, rows: int, chunk: int, form: str) -> None:
    table = _table(rows, seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if form == "sql":
            with sqlite3.connect(folder / "a.db") as connection:
                table.to_sql("t", connection, index=False)
            connection.close()
            frames = Database.at(Place("sqlite:///a.db", folder)).results("select * from t", chunk)
            found = check_chunks(as_chunks(frames, "a"), schema, "a")
            whole = check_records(pd.read_sql("select * from t", f"sqlite:///{folder}/a.db"), schema, "a")
        else:
            table.to_csv(folder / "a.csv", index=False)
            table.convert_dtypes().to_parquet(folder / "a.parquet")
            found = check_chunks(file_chunks(folder / f"a.{form}", schema, chunk), schema, "a")
            whole = check_records(read_records(folder / f"a.{form}", schema), schema, "a")
    assert found.x.tobytes() == whole.x.tobytes() and found.y.tobytes() == whole.y.tobytes()
    assert found.ids is not None and whole.ids is not None and found.ids.tolist() == whole.ids.tolist()
    assert found.x.tobytes() == check_records(table, schema, "a").x.tobytes()


def test_a_shard_in_chunks_is_the_shard(schema: Schema, tmp_path: Path) -> None:
    table = _table(500, 1)
    table.to_csv(tmp_path / "a.csv", index=False)
    found = read_shard(file_chunks(tmp_path / "a.csv", schema, 33), schema, "north")
    expected = build_shard(table, schema, "north")
    assert found.digest == expected.digest and found.site == "north"


def test_rows_of_errors_count_over_the_file_and_not_the_chunk(schema: Schema, tmp_path: Path) -> None:
    table = _table(100, 2).astype({"age": object})
    table.loc[77, "age"] = "canary"
    table.to_csv(tmp_path / "b.csv", index=False)
    _table(50, 3).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(DataError, match=r"b.csv: column 'age', data row 78: the cell is not a number") as caught:
        read_shard(file_chunks(tmp_path, schema, 10), schema, "north")
    assert "canary" not in str(caught.value)


def test_no_rows_are_refused(schema: Schema, tmp_path: Path) -> None:
    _table(5, 0).iloc[:0].to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(DataError, match="there are no records"):
        read_shard(file_chunks(tmp_path / "a.csv", schema), schema, "north")


def test_a_source_of_another_package_is_found_by_its_name(
    schema: Schema, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "warehouse.py").write_text(
        "import pandas as pd\nfrom polyclinic.ehr.sources import as_chunks\n"
        "def read(place, schema):\n"
        "    if place.text == 'broken':\n        raise RuntimeError('canary')\n"
        "    place.allow('size')\n"
        "    return [1] if place.text == 'odd' else as_chunks([pd.read_csv(place.folder / place.text)], place.text)\n"
    )
    info = tmp_path / "warehouse-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: warehouse\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[polyclinic.sources]\nwarehouse = warehouse:read\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    table = _table(40, 4)
    table.to_csv(tmp_path / "t.csv", index=False)
    found = read_shard(open_source("warehouse:t.csv", tmp_path, {"size": "1"}, schema), schema, "north")
    assert found.digest == build_shard(table, schema, "north").digest
    named = list(open_source("polyclinic.ehr.sources.files:files:t.csv", tmp_path, {}, schema))
    assert read_shard(named, schema, "north").digest == found.digest, "package.module:Name:PLACE names the same"
    assert ("sources", "warehouse") in {(plugin.group, plugin.name) for plugin in plugins()}
    with pytest.raises(DataError, match="source 'warehouse' failed .RuntimeError.") as caught:
        list(open_source("warehouse:broken", tmp_path, {}, schema))
    assert "canary" not in str(caught.value)
    with pytest.raises(DataError, match="gives int where it must give chunks"):
        list(open_source("warehouse:odd", tmp_path, {}, schema))
    with pytest.raises(ConfigError, match="has the key 'sice'.*Did you mean 'size'"):
        list(open_source("warehouse:t.csv", tmp_path, {"sice": "1"}, schema))


def test_a_chunk_knows_where_it_began() -> None:
    chunks = list(as_chunks([pd.DataFrame({"a": [1, 2]}), pd.DataFrame({"a": [3]})], "s"))
    assert [(chunk.source, chunk.start, len(chunk.records)) for chunk in chunks] == [("s", 0, 2), ("s", 2, 1)]
    assert isinstance(chunks[0], Chunk)
