"""Simulated intensive care: the known ceiling, correlated signs, informative gaps, hospitals that differ."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from polyclinic.ehr.datasets import builtin, load_shards
from polyclinic.ehr.datasets.icu import SCHEMA, TRAITS, WEIGHTS, auroc_ceiling, generate_icu, simulate_icu
from polyclinic.ehr.encoding import encode
from polyclinic.errors import ConfigError

ICU = builtin()["icu"]


def test_the_true_risk_reaches_the_ceiling_and_the_records_do_not() -> None:
    table, risk = simulate_icu(60, 60000, 3)
    assert auroc_ceiling() == pytest.approx(0.8728, abs=1e-4)
    assert roc_auc_score(table["died"], risk) == pytest.approx(auroc_ceiling(), abs=0.006)
    assert table["died"].mean() == pytest.approx(risk.mean(), abs=0.005)
    encoded = encode(table, SCHEMA)
    x = np.nan_to_num(StandardScaler().fit_transform(encoded.x))
    model = LogisticRegression(max_iter=1000).fit(x[::2], encoded.y[::2])
    learned = roc_auc_score(encoded.y[1::2], model.predict_proba(x[1::2])[:, 1])
    assert 0.80 < learned < auroc_ceiling() - 0.03


def test_a_trait_moves_several_signs() -> None:
    table = generate_icu(10, 20000, 0)
    related = table[["heart_rate_00", "mean_pressure_00", "respiratory_rate_00", "spo2_00", "lactate"]].corr()
    assert related.loc["heart_rate_00", "mean_pressure_00"] < -0.25
    assert related.loc["respiratory_rate_00", "spo2_00"] < -0.25
    assert related.loc["heart_rate_00", "lactate"] > 0.2
    steps = table[[f"heart_rate_{step:02d}" for step in range(6)]].corr().to_numpy()
    assert steps[0, 1] > steps[0, 5] > 0.7, "a patient's own level stays"
    assert len(TRAITS) == len(WEIGHTS)


def test_laboratory_values_are_missing_less_often_of_the_sicker() -> None:
    table, risk = simulate_icu(10, 20000, 0)
    sick = risk > np.quantile(risk, 0.75)
    for name in ("lactate", "creatinine", "white_cells", "bilirubin"):
        assert table[name].isna()[sick].mean() < table[name].isna()[~sick].mean() - 0.15
    assert abs(table["spo2_03"].isna()[sick].mean() - table["spo2_03"].isna()[~sick].mean()) < 0.02


def test_hospitals_differ() -> None:
    table = generate_icu(30, 30000, 0)
    by_site = table.groupby("site")
    assert (
        np.ptp(by_site["mean_pressure_00"].mean()) > 4
        and np.ptp(by_site["lactate"].apply(lambda c: c.isna().mean())) > 0.2
    )
    assert np.ptp(by_site["died"].mean()) > 0.06 and np.ptp(by_site.size()) > 500


@pytest.mark.parametrize(("sites", "patients"), [(1, 1), (3, 4), (7, 50), (40, 1000)])
def test_sizes_are_exact_and_records_fit_the_schema(sites: int, patients: int) -> None:
    table = generate_icu(sites, patients, 2)
    assert len(table) == patients == table["patient"].nunique() and table["site"].nunique() == sites
    encoded = encode(table, SCHEMA)
    assert np.nanmax(np.abs(encoded.x)) <= 1.0
    pd.testing.assert_frame_equal(table, generate_icu(sites, patients, 2))


def test_any_number_of_hospitals_and_refusals() -> None:
    shards = load_shards(ICU, 0, "natural", 0, 1.0)
    assert [s.site for s in shards] == list(ICU.natural_sites) and sum(s.patients for s in shards) == 2000
    assert len(load_shards(ICU, 21, "natural", 0, 1.0)) == 21
    assert not generate_icu(2, 50, 0).equals(generate_icu(2, 50, 1))
    for sites, patients, seed in ((0, 10, 0), (11, 10, 0), (2, 10, -1)):
        with pytest.raises(ConfigError):
            generate_icu(sites, patients, seed)
