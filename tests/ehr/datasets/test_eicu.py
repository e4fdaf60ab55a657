"""The eICU demo: our join of the original tables against another one, published totals, regions, impossible cells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from polyclinic.ehr.datasets import builtin, eicu, load_shards
from polyclinic.errors import DataError

EICU = builtin()["eicu-demo"]


def test_our_join_gives_the_values_of_an_independent_one(eicu_files: Path) -> None:
    derived = pd.read_csv(eicu_files / "derived" / "stays.csv.gz").set_index("patientunitstayid")
    ours = eicu.stays(*eicu.FILES.get().values()).set_index("patientunitstayid")
    assert ours.index.equals(derived.index)
    shared = sorted((set(ours.columns) & set(derived.columns)) | {"died"})
    assert len(shared) == 52
    for name in shared:
        expected = derived["hosp_mortality" if name == "died" else name]
        if pd.api.types.is_numeric_dtype(expected):
            assert np.array_equal(ours[name].astype(float), expected.astype(float), equal_nan=True), name
        else:
            pd.testing.assert_series_equal(ours[name].astype(object), expected.astype(object), check_names=False)


def test_the_table_has_the_published_totals(eicu_files: Path) -> None:
    records = EICU.load()
    assert len(records) == EICU.rows == 2492 and records["patient"].nunique() == EICU.patients
    assert records["died"].sum() == 212
    assert set(records["site"]) == set(EICU.natural_sites) and len(EICU.natural_sites) == 186
    stays = {"Midwest": 792, "South": 733, "West": 601, "unknown": 209, "Northeast": 157}
    assert records["region"].value_counts().to_dict() == stays
    records["patient"] = None
    assert EICU.load()["patient"].notna().all(), "callers must not change the cached table"


def test_regions_are_sites_and_a_patient_of_two_hospitals_is_at_one(eicu_files: Path) -> None:
    shards = load_shards(EICU, 0, "column:region", 0, 1.0)
    assert [(s.site, s.patients) for s in shards] == [
        ("Midwest", 603), ("Northeast", 127), ("South", 533), ("West", 382), ("unknown", 175),
    ]  # fmt: skip
    records = EICU.load()
    assert (records.groupby("patient")["site"].nunique() == 2).sum() == 19
    assert sum(s.patients for s in load_shards(EICU, 186, "natural", 0, 1.0)) == EICU.patients
    pooled = load_shards(EICU, 0, "natural+pool:10", 0, 1.0)
    assert {s.site for s in pooled} > {"other"} and all(s.patients >= 10 for s in pooled)


def test_impossible_cells_are_missing_and_extreme_ones_are_cut(eicu_files: Path) -> None:
    raw = eicu.stays(*eicu.FILES.get().values())
    raw, records = raw[raw["died"].notna()].reset_index(drop=True), EICU.load()
    assert raw["admissionheight"].min() < 1 and records["admissionheight"].min() >= 120
    assert raw["creatinine"].max() > 20 and records["creatinine"].max() == 6
    assert records["creatinine"].isna().sum() == raw["creatinine"].isna().sum()
    assert records["age_years"].max() == 90 and records["electivesurgery"].isna().sum() == raw["aids"].isna().sum()


def test_the_diagnosis_is_grouped_by_the_first_pattern_that_fits(eicu_files: Path) -> None:
    groups = EICU.load()["diagnosis"]
    assert groups.value_counts()[["after-surgery", "sepsis", "ketoacidosis", "arrest"]].tolist() == [339, 280, 103, 70]
    assert groups.eq("unknown").sum() == 387 and groups.eq("other").sum() == 693


def test_absent_files_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCLINIC_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if eicu.FILES.place() is not None:
        pytest.skip("the files lie in this machine's download cache, which XDG_CACHE_HOME does not move")
    with pytest.raises(DataError, match=r"datasets fetch eicu-demo.*subfolder eicu_demo_2.0.1 holds patient.csv.gz"):
        eicu.FILES.fetch("http://127.0.0.1:9/", tmp_path / "none")
