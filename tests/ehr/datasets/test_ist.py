"""The International Stroke Trial: published totals, no column of what came later, hospitals by size, refusals."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from polyclinic.ehr import feature_names
from polyclinic.ehr.datasets import Dataset, builtin, ist, load_shards
from polyclinic.errors import ConfigError, DataError

IST, DEATH = builtin()["ist"], builtin()["ist-death-14"]
COPY = ist.FILES.copies[ist.PUBLISHED][0]
#: What was known at randomisation, and the treatment drawn (Sandercock et al. 2011, table 2).
BASELINE = {
    "rdelay", "rconsc", "sex", "age", "rsleep", "ratrial", "rct", "rvisinf", "rhep24", "rasp3", "rsbp", "stype",
    "rxasp", "rxhep", *(f"rdef{i}" for i in range(1, 9)),
}  # fmt: skip


@pytest.mark.parametrize("dataset", [IST, DEATH], ids=lambda d: d.name)
def test_features_are_baseline_columns_and_never_an_outcome(dataset: Dataset) -> None:
    assert {column.name for column in dataset.schema.features} == BASELINE
    read = {column.name for column in dataset.schema.columns}
    later = {dataset.schema.label.name} | ({"stroke_at_14"} if dataset is DEATH else set())
    assert read == BASELINE | {"patient", "site", "country", "randomised"} | later
    assert len(feature_names(dataset.schema)) == 38


def test_no_feature_tells_the_outcome(ist_files: Path) -> None:
    for dataset in (IST, DEATH):
        shards = load_shards(dataset, 20, "natural", 0, 1.0)
        x, y = np.concatenate([s.x for s in shards]), np.concatenate([s.y for s in shards])
        alone = [roc_auc_score(y, column) for column in np.nan_to_num(x).T]
        assert max(max(alone), 1 - min(alone)) < 0.72, "no single baseline column comes near to knowing"


def test_the_table_has_the_published_totals(ist_files: Path) -> None:
    six_months, fortnight = IST.load(), DEATH.load()
    assert len(six_months) == IST.rows == 7884 + 4241 + 3864 + 3296
    assert six_months["dead_or_dependent"].sum() == 7884 + 4241
    assert len(fortnight) == DEATH.rows == fortnight["patient"].nunique() == 19435
    assert fortnight["dead_at_14"].sum() == 1781
    # Recurrent strokes, ischaemic or of unknown type (IST 1997, table 3): 2.8 % of those with aspirin, 3.9 % of those without.
    assert fortnight.groupby("rxasp")["stroke_at_14"].sum().to_dict() == {"Y": 275, "N": 378}
    assert fortnight["site"].nunique() == 466 and fortnight["country"].nunique() == 36
    assert fortnight["rxasp"].value_counts().to_dict() == {"Y": 9720, "N": 9715}
    assert fortnight["rxhep"].value_counts().to_dict() == {"N": 9718, "L": 4861, "M": 4611 + 245}
    assert fortnight["ratrial"].isna().sum() == fortnight["rasp3"].isna().sum() == 984
    assert fortnight["randomised"].min() == "1991-01" and fortnight["randomised"].max() == "1996-05"
    assert fortnight.loc[fortnight["ratrial"].isna(), "randomised"].max() <= "1993-03", "the pilot phase came first"
    six_months["patient"] = None
    assert IST.load()["patient"].notna().all(), "callers must not change the cached table"


def test_hospitals_come_by_size(ist_files: Path) -> None:
    size = DEATH.load()["site"].value_counts()
    assert len(DEATH.natural_sites) == 466
    assert list(DEATH.natural_sites) == sorted(size.index, key=lambda site: (-size[site], site))
    known = set(IST.load()["site"])
    assert list(IST.natural_sites) == [site for site in DEATH.natural_sites if site in known] and len(known) == 464
    shards = load_shards(IST, 0, "natural", 0, 1.0)
    assert {s.site for s in shards} == set(IST.natural_sites[:20])
    assert sum(s.patients for s in shards) == 4792
    assert 0.24 < sum(s.test.patients for s in shards) / 4792 < 0.27
    assert [s.site for s in load_shards(DEATH, 3, "natural", 0, 1.0)] == sorted(DEATH.natural_sites[:3])


@pytest.mark.parametrize("dataset", [IST, DEATH], ids=lambda d: d.name)
def test_every_hospital_can_take_part(ist_files: Path, dataset: Dataset) -> None:
    hospitals = len(dataset.natural_sites)
    shards = load_shards(dataset, hospitals, "natural", 0, 1.0)
    assert len(shards) == hospitals and sum(s.patients for s in shards) == dataset.patients
    lone = [s for s in shards if s.patients == 1]
    assert len(lone) in (13, 14) and all(s.train.patients == 1 and s.test.patients == 0 for s in lone)
    assert all(s.train.patients >= 1 and s.test.patients >= 1 for s in shards if s.patients > 1)
    assert len(load_shards(dataset, 0, "column:country", 0, 1.0)) == 36
    with pytest.raises(ConfigError, match=f"has {hospitals} hospitals"):
        load_shards(dataset, hospitals + 1, "natural", 0, 1.0)


def test_pooled_logistic_regression_has_the_known_auroc(ist_files: Path) -> None:
    def auroc(dataset: Dataset, sites: int) -> float:
        shards = load_shards(dataset, sites, "natural", 0, 1.0)
        train, test = [s.train for s in shards], [s.test for s in shards]
        x, y = np.nan_to_num(np.concatenate([r.x for r in train])), np.concatenate([r.y for r in train])
        x_test, y_test = np.nan_to_num(np.concatenate([r.x for r in test])), np.concatenate([r.y for r in test])
        model = LogisticRegression(max_iter=2000, C=10).fit(x, y)
        return float(roc_auc_score(y_test, model.predict_proba(x_test)[:, 1]))

    assert 0.765 < auroc(IST, 20) < 0.80, "0.784 over random splits, with a standard deviation of 0.011"
    assert 0.78 < auroc(IST, 464) < 0.81
    assert 0.78 < auroc(DEATH, 466) < 0.83


def test_the_published_file_reads_as_the_copy_does(
    ist_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = IST.load()
    (tmp_path / "ist").mkdir()
    published = tmp_path / "ist" / ist.PUBLISHED
    published.write_bytes(gzip.decompress((ist_files / COPY).read_bytes()))
    monkeypatch.setenv("POLYCLINIC_DATA", str(tmp_path))
    assert IST.available() and IST.fetch is not None and IST.fetch() == published.parent
    pd.testing.assert_frame_equal(IST.load(), expected)
    published.write_text("HOSPNUM,COUNTRY\n1,UK\n", encoding="utf-8")
    ist._parse.cache_clear()
    with pytest.raises(DataError, match="not the published table of 19435 rows"):
        IST.load()


def test_a_damaged_copy_is_refused(ist_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ist").mkdir()
    (tmp_path / "ist" / COPY).write_bytes((ist_files / COPY).read_bytes() + b"\n")
    monkeypatch.setenv("POLYCLINIC_DATA", str(tmp_path))
    with pytest.raises(DataError, match="SHA-256 differs"):
        IST.load()


def test_an_absent_table_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCLINIC_DATA", str(tmp_path))
    assert not IST.available() and not DEATH.available()
    for ask in (ist.FILES.fetch, IST.load, lambda: load_shards(DEATH, 0, "natural", 0, 1.0)):
        with pytest.raises(DataError, match=r"download IST_corrected.csv from https://doi.org/10.7488/ds/104"):
            ask()
