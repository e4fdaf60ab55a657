"""The MIMIC-III demo: the public vocabulary against the dictionary, counts, and trajectories against the raw events."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from polyclinic.ehr.datasets import builtin, load_shards, mimic

CODES, VITALS = builtin()["mimic-demo"], builtin()["mimic-demo-vitals"]


def test_the_vocabulary_is_the_dictionarys_and_not_the_patients(mimic_files: Path) -> None:
    dictionary = pd.read_csv(mimic_files / "D_ICD_DIAGNOSES.csv.gz", dtype=str)["icd9_code"]
    assert list(mimic.CODES) == sorted(set(mimic.category(dictionary))) and len(mimic.CODES) == 1234
    found = set(";".join(CODES.load()["diagnoses"]).split(";"))
    assert len(found) == 275 and found < set(mimic.CODES)


def test_codes_are_cut_to_their_category() -> None:
    codes = pd.Series(["42823", "V1582", "E8809", "0389", "E849"])
    assert mimic.category(codes).tolist() == ["428", "V15", "E880", "038", "E849"]


def test_heart_failure_is_the_publications_codes() -> None:
    codes = pd.Series(
        ["4280", "42843", "40291", "40200", "40401", "40493", "40402", "40290", "40492", "4029", "V4281", "427"]
    )
    found = codes[codes.str.match(mimic.DIAGNOSES["heart_failure"])]
    assert found.tolist() == ["4280", "42843", "40291", "40401", "40493"]


def test_one_row_a_patient_with_all_admissions_codes(mimic_files: Path) -> None:
    records = CODES.load().set_index("patient")
    raw = pd.read_csv(mimic_files / "DIAGNOSES_ICD.csv.gz", dtype=str).dropna(subset=["icd9_code"])
    assert len(records) == records.index.nunique() == 100
    for patient, rows in raw.groupby("subject_id"):
        expected = {code[:4] if code.startswith("E") else code[:3] for code in rows["icd9_code"]}
        assert set(records.loc[patient, "diagnoses"].split(";")) == expected
    shards = load_shards(CODES, 0, "column:care_unit", 0, 1.0)
    assert [s.site for s in shards] == ["CCU", "CSRU", "MICU", "SICU", "TSICU"]
    assert shards[0].x.shape[1] == 1234 and sum(float(s.x.sum()) for s in shards) == 1330


def test_the_first_five_measurements_are_the_earliest_valid_ones(mimic_files: Path) -> None:
    records = VITALS.load()
    assert len(records) == VITALS.rows and records["patient"].nunique() == VITALS.patients
    assert records["heart_failure"].sum() == 40
    names = ["row_id", "subject_id", "hadm_id", "itemid", "charttime", "valuenum", "error"]
    events = pd.read_csv(mimic_files / "CHARTEVENTS.csv.gz", usecols=names)
    admissions = iter(sorted(events.loc[events["hadm_id"].notna(), ["subject_id", "hadm_id"]].astype(int)
                             .drop_duplicates().itertuples(index=False)))  # fmt: skip
    checked = 0
    for row, (patient, admission) in zip(
        records.sort_values("patient", kind="stable").head(12).itertuples(), admissions, strict=False
    ):
        while str(patient) != row.patient:
            patient, admission = next(admissions)
        for column, items in zip(mimic.SCHEMA_VITALS.features[:3], mimic.VITALS.values(), strict=False):
            name, (low, high) = column.name, column.bounds or (0.0, 0.0)
            rows = events[(events["hadm_id"] == admission) & events["itemid"].isin(items) & (events["error"] != 1)]
            rows = rows[rows["valuenum"].between(low, high)].sort_values(["charttime", "row_id"])
            expected = rows["valuenum"].head(5).tolist()
            cells = [getattr(row, f"{name}_{step:02d}") for step in range(5)]
            assert np.array_equal([c for c in cells if not np.isnan(c)], expected), (admission, name)
            checked += len(expected)
    assert checked > 100
