"""Simulated vital signs and heart failure: the published counts, signs that correlate, a task that is not trivial."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from polyclinic.ehr.datasets import load_shards, mimic
from polyclinic.ehr.encoding import encode
from polyclinic.errors import ConfigError
from polyclinic.plugins import dataset_named
from polyclinic_studies.datasets import mimic_hf

HF = dataset_named("mimic-hf")
TABLE = HF.load()


def test_the_published_counts_and_no_missing_cell() -> None:
    assert len(TABLE) == 8260 and TABLE["heart_failure"].sum() == 2110
    encoded = encode(TABLE, mimic_hf.SCHEMA)
    assert encoded.x.shape == (8260, 45) and not np.isnan(encoded.x).any() and np.abs(encoded.x).max() <= 1.0
    assert mimic_hf.generate_mimic_hf(3, 826, 5)["heart_failure"].sum() == 211


@pytest.mark.parametrize("seed", [0, 1])
def test_the_signs_tell_the_diagnosis_but_not_well(seed: int) -> None:
    encoded = encode(mimic_hf.generate_mimic_hf(5, 30000, seed), mimic_hf.SCHEMA)
    assert encoded.y is not None
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(encoded.x[:7500], encoded.y[:7500])
    assert 0.78 < roc_auc_score(encoded.y[7500:], model.decision_function(encoded.x[7500:])) < 0.84
    alone = [roc_auc_score(encoded.y, column) for column in encoded.x.T]
    assert max(max(alone), 1 - min(alone)) < 0.74, "no sign alone"


def test_signs_correlate_over_time_and_with_each_other() -> None:
    related = TABLE[[f"{name}_00" for name in mimic_hf.VITALS]].corr()
    related.index = related.columns = pd.Index(mimic_hf.VITALS)
    assert related.loc["arterial_mean", "arterial_diastolic"] > 0.6 and related.loc["respiratory_rate", "spo2"] < -0.2
    steps = TABLE[[f"arterial_systolic_{step:02d}" for step in range(5)]].corr().to_numpy()
    assert steps[0, 1] > steps[0, 4] + 0.03 and steps[0, 4] > 0.5


def test_a_cuff_reads_the_pressure_of_the_line_with_errors_of_its_own() -> None:
    assert list(mimic_hf.VITALS) == list(mimic.VITALS), "the nine signs of the demo, which are the publication's"
    for name, (apart, between, within) in mimic_hf.CUFF.items():
        cuff, line = (
            TABLE[[f"{place}_{name}_{step:02d}" for step in range(5)]].to_numpy() for place in ("cuff", "arterial")
        )
        error = cuff - line
        assert error.mean() == pytest.approx(apart, abs=0.5)
        assert error.std() == pytest.approx(np.hypot(between, within), rel=0.05)
        assert 0.8 < np.corrcoef(cuff[:, 0], line[:, 0])[0, 1] < 0.95


def test_atrial_fibrillation_makes_the_heart_rate_unsteady() -> None:
    spread = TABLE[[f"heart_rate_{step:02d}" for step in range(5)]].std(axis=1)
    by_label = spread.groupby(TABLE["heart_failure"]).mean()
    assert by_label[1] > 1.2 * by_label[0]


def test_the_schemas_scale_is_near_the_records() -> None:
    for column in mimic_hf.SCHEMA.features:
        cells = TABLE[list(column.record_names)].to_numpy()
        assert column.centre is not None and column.spread is not None
        assert abs(cells.mean() - column.centre) < 0.6 * column.spread, column.name
        assert 0.45 < cells.std() / column.spread < 1.5, column.name


@pytest.mark.parametrize(("sites", "patients"), [(1, 1), (3, 4), (7, 50), (40, 1000)])
def test_sizes_are_exact_and_the_same_for_the_same_arguments(sites: int, patients: int) -> None:
    table = mimic_hf.generate_mimic_hf(sites, patients, 2)
    assert len(table) == patients == table["patient"].nunique() and table["site"].nunique() == sites
    pd.testing.assert_frame_equal(table, mimic_hf.generate_mimic_hf(sites, patients, 2))


def test_any_number_of_hospitals_that_differ() -> None:
    assert [shard.site for shard in load_shards(HF, 0, "natural", 0, 1.0)] == list(HF.natural_sites)
    table = mimic_hf.generate_mimic_hf(20, 20000, 0)
    assert np.ptp(table.groupby("site")["arterial_diastolic_00"].mean()) > 4.0
    for sites, patients, seed in ((0, 10, 0), (11, 10, 0), (2, 10, -1)):
        with pytest.raises(ConfigError):
            mimic_hf.generate_mimic_hf(sites, patients, seed)
