"""Mappings: renamed, converted, recoded and lacking columns read as the schema's; every mistake named with key and line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import create_engine

from polyclinic.client.home.hospital import _real_hospital
from polyclinic.ehr.encoding import decode
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import read_shard
from polyclinic.ehr.sources.columns import (
    SUBSTANCES,
    UNITS,
    ColumnMapping,
    apply_mapping,
    conversion,
    map_columns,
    own_schema,
)
from polyclinic.ehr.sources.files import file_chunks
from polyclinic.errors import ConfigError, DataError, PolyclinicError

SCHEMA = Schema.from_dict(
    {
        "name": "clinic",
        "columns": [
            {"name": "id", "kind": "integer", "role": "patient_id"},
            {"name": "age", "kind": "integer", "bounds": [0, 120], "unit": "years"},
            {"name": "chol", "kind": "continuous", "bounds": [0, 20], "unit": "mmol/L", "nullable": True},
            {"name": "temp", "kind": "trajectory", "steps": 2, "bounds": [25, 45], "unit": "degC", "nullable": True},
            {"name": "sex", "kind": "categorical", "categories": ["female", "male"], "nullable": True},
            {"name": "smoker", "kind": "binary", "nullable": True},
            {"name": "codes", "kind": "code_set", "categories": ["I10", "E11"]},
            {"name": "arm", "kind": "categorical", "categories": ["a", "b"]},
            {"name": "died", "kind": "binary", "role": "label"},
        ],
    }
)
MAPPING = """
[columns.id]
from = "MRN"
[columns.age]
from = "age_months"
factor = 0.0833333333
[columns.chol]
from = "CHOL"
unit = "mg/dL"
substance = "cholesterol"
[columns.temp]
from = "T"
unit = "degF"
[columns.sex]
values = { M = "male", F = "female", U = "" }
[columns.smoker]
missing = true
[columns.codes]
from = "dx"
values = { "401.9" = "I10", "250.00" = "E11", "799" = "" }
[columns.arm]
default = "b"
[columns.died]
from = "outcome"
values = { alive = "0", dead = "1" }
"""
ROWS = """MRN,age_months,CHOL,T_00,T_01,sex,dx,outcome,other
7,480,193.3,98.6,,M,401.9;250.00,alive,x
8,490,,104,95,U,799,dead,x
9,600,386.65,100,100,F,,alive,x
10,720,200,100,99,female,I10;401.9,dead,x
"""


def mapping_of(folder: Path, text: str = MAPPING) -> ColumnMapping:
    (folder / "mapping.toml").write_text(text)
    return ColumnMapping.read(folder / "mapping.toml", SCHEMA)


def read(folder: Path, mapping: ColumnMapping, rows: str = ROWS, at_once: int = 3) -> pd.DataFrame:
    (folder / "records.csv").write_text(rows)
    chunks = file_chunks(folder / "records.csv", own_schema(mapping, SCHEMA), at_once)
    return pd.concat([chunk.records for chunk in map_columns(chunks, mapping, SCHEMA)], ignore_index=True)


def test_own_columns_become_the_schemas(tmp_path: Path) -> None:
    found = read(tmp_path, mapping_of(tmp_path))
    assert found.columns.tolist() == [name for column in SCHEMA.columns for name in column.record_names]
    assert found["id"].tolist() == ["7", "8", "9", "10"] and found["age"].tolist() == [40, 41, 50, 60]
    assert found["chol"].astype(float).tolist() == pytest.approx([5.0, np.nan, 10.0, 5.173], abs=2e-3, nan_ok=True)
    assert found["temp_00"].astype(float).tolist() == pytest.approx([37, 40, 37.78, 37.78], abs=0.01)
    assert found["temp_01"].isna().tolist() == [True, False, False, False]
    assert found["sex"].tolist() == ["male", None, "female", "female"]
    assert found["smoker"].isna().all() and found["arm"].tolist() == ["b"] * 4
    assert found["codes"].tolist() == ["I10;E11", None, None, "I10"] and found["died"].tolist() == ["0", "1", "0", "1"]


def test_mapped_records_are_a_shard_of_the_schema(tmp_path: Path) -> None:
    mapping = mapping_of(tmp_path)
    lines = [ROWS.splitlines()[0]]
    lines += [f"{n},{480 + n},193.3,98.6,99,{'MF'[n % 2]},401.9,{('alive', 'dead')[n % 2]},x" for n in range(40)]
    (tmp_path / "records.csv").write_text("\n".join(lines))
    chunks = file_chunks(tmp_path / "records.csv", own_schema(mapping, SCHEMA), 7)
    shard = read_shard(map_columns(chunks, mapping, SCHEMA), SCHEMA, "here")
    back = decode(shard.x, SCHEMA)
    assert back["chol"].tolist() == pytest.approx([193.3 / 38.665] * 40) and set(back["sex"]) == {"male", "female"}
    assert back["smoker"].isna().all() and shard.patients == 40


def test_a_cell_that_does_not_fit_is_refused_by_row_and_never_shown(tmp_path: Path) -> None:
    mapping = mapping_of(tmp_path)
    for bad, words in (("4711", "outside the public bounds"), ("secret", "not a number")):
        (tmp_path / "records.csv").write_text(ROWS.replace("386.65", bad))
        chunks = file_chunks(tmp_path / "records.csv", own_schema(mapping, SCHEMA), 2)
        with pytest.raises(DataError, match=f"'chol', data row 3: the cell is {words}") as refused:
            read_shard(map_columns(chunks, mapping, SCHEMA), SCHEMA, "here")
        assert bad not in str(refused.value)


def test_cells_of_any_type_convert(tmp_path: Path) -> None:
    mapping = ColumnMapping.model_validate({"columns": {"age": {"factor": 2}, "died": {"values": {"5": "1"}}}})
    frame = pd.DataFrame({name: [1, 2] for column in SCHEMA.columns for name in column.record_names})
    for ages in (pd.array([20, None], dtype="Int64"), np.array(["20", None]), np.array([20.0, np.nan]), [20, None]):
        found = apply_mapping(frame.assign(age=ages, died=[5, 0]), mapping, SCHEMA)
        assert float(found["age"][0]) == 40 and pd.isna(found["age"][1]) and found["died"].tolist() == ["1", "0"]


def test_a_value_that_looks_missing_can_be_recoded(tmp_path: Path) -> None:
    mapping = mapping_of(tmp_path, MAPPING.replace('U = ""', 'NA = "female"'))
    assert read(tmp_path, mapping, ROWS.replace(",U,", ",NA,"))["sex"].tolist() == [
        "male",
        "female",
        "female",
        "female",
    ]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[columns.agee]\n", 1, "no such column. Did you mean 'age'?"),
        ("[columns.age]\n# months\nform = 'x'\n", 3, "'columns.age.form': there is no such key.* Did you mean 'from'"),
        ("[columns.age]\nfactor = 'x'\n", 2, "must be a number"),
        ("[columns.age]\nfactor = 0\n", 2, "the factor is 0"),
        ("[columns.chol]\nunit = 'mg/dL'\n", 2, "only for a known substance"),
        ("[columns.chol]\nunit = 'mg/dL'\nsubstance = 'colesterol'\n", 2, "Did you mean 'cholesterol'"),
        ("[columns.chol]\nunit = 'mg per dL'\n", 2, "is not known"),
        ("[columns.temp]\nunit = 'kg'\n", 2, "neither becomes the other"),
        ("[columns.age]\nmissing = true\n", 2, "not nullable"),
        ("[columns.died]\ndefault = '1'\n", 2, "label of every row"),
        ("[columns.smoker]\nmissing = true\ndefault = '1'\n", 3, "not both"),
        ("[columns.smoker]\nfrom = 'x'\nmissing = true\n", 3, "no other key"),
        ("[columns.sex]\nfactor = 2\n", 2, "only numbers convert"),
        ("[columns.age]\nvalues = { a = 'b' }\n", 2, "only categories are recoded"),
        ("[columns.sex]\nvalues = { M = 'man' }\n", 2, "'man' is no category"),
        ("[columns.chol]\nunit = 'g/L'\nfactor = 2\n", 2, "not both"),
        ("[columns.age]\nfrom = x\n", 2, "not valid TOML"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        mapping_of(tmp_path, text)
    assert f"line {line}" in str(refused.value) and "\n" not in str(refused.value)


def test_two_columns_of_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="own column 'age' twice"):
        mapping_of(tmp_path, "[columns.smoker]\nfrom = 'age'\n")


@pytest.mark.parametrize(
    ("value", "unit", "into", "substance", "expected"),
    [
        (200, "mg/dL", "mmol/L", "cholesterol", 5.17), (150, "mg/dL", "mmol/L", "triglycerides", 1.69),
        (100, "mg/dL", "mmol/L", "glucose", 5.55), (1.0, "mg/dL", "umol/L", "creatinine", 88.4),
        (1.0, "mg/dL", "µmol/L", "bilirubin", 17.1), (10, "mg/dL", "mmol/L", "calcium", 2.5),
        (14, "mg/dL", "mmol/L", "urea nitrogen", 5.0), (5.17, "mmol/L", "mg/dL", "cholesterol", 200),
        (98.6, "°F", "degC", "", 37.0), (310.15, "K", "C", "", 37.0), (120, "mmHg", "kPa", "", 16.0),
        (150, "lb", "kg", "", 68.04), (70, "in", "cm", "", 177.8), (13.5, "g/dL", "g/L", "", 135), (36, "h", "days", "", 1.5),
    ],
)  # fmt: skip
def test_units_convert_as_the_tables_of_laboratories_say(
    value: float, unit: str, into: str, substance: str, expected: float
) -> None:
    factor, offset = conversion(unit, into, substance)
    assert value * factor + offset == pytest.approx(expected, rel=3e-3)
    back, shift = conversion(into, unit, substance)
    assert (value * factor + offset) * back + shift == pytest.approx(value)


def test_every_unit_and_substance_converts_into_itself() -> None:
    assert all(conversion(unit, unit) == pytest.approx((1.0, 0.0)) for unit in UNITS)
    assert all(conversion("g/L", "mol/L", name)[0] == pytest.approx(1 / mass) for name, mass in SUBSTANCES.items())


def test_a_real_hospital_reads_through_its_mapping(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mapping_of(tmp_path)
    SCHEMA.to_toml(tmp_path / "schema.toml")
    rows = pd.DataFrame(
        {"MRN": range(60), "age_months": 480, "CHOL": 193.3, "T_00": 98.6, "T_01": 99.0, "sex": ["M", "F"] * 30, "dx": "401.9",
         "outcome": ["alive", "alive", "dead"] * 20}
    )  # fmt: skip
    rows.to_csv(tmp_path / "records.csv", index=False)
    with create_engine(f"sqlite:///{tmp_path / 'records.db'}").connect() as connection:
        rows.to_sql("records", connection, index=False)
        connection.commit()
    shards = []
    for data, source in (
        ("records.csv", ""),
        ("sqlite:///records.db", 'source = { query = "SELECT * FROM records" }\n'),
    ):
        (tmp_path / "hospital.toml").write_text(
            f'site = "north"\ndata = "{data}"\n{source}schema = "schema.toml"\nmapping = "mapping.toml"\nhome = "home"\n'
            "[policy]\nbudget = 1.0\ndelta = 1e-3\n"
        )
        shards.append(_real_hospital(tmp_path / "hospital.toml").shard())
    assert np.array_equal(shards[0].x, shards[1].x, equal_nan=True) and shards[0].y.sum() == 20
    (tmp_path / "mapping.toml").write_text("[columns.agee]\n")
    with pytest.raises(PolyclinicError, match="mapping or cohort cannot be used"):
        _real_hospital(tmp_path / "hospital.toml")
    assert "mapping.toml, line 1, key 'columns.agee'" in caplog.text
