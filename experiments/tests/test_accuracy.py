"""The accuracy study: cohorts are as they say, and all parts of it work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyclinic.ehr.encoding import encode
from polyclinic.experiments import Asked
from polyclinic_studies.accuracy import cohorts
from polyclinic_studies.accuracy.study import SETS, judge, pooled, run


@pytest.mark.parametrize("name", ["rare", "common"])
def test_a_cohort_has_its_patients_rate_and_sites(name: str) -> None:
    dataset = getattr(cohorts, f"{name}_3")
    records, cohort = dataset.load(), {"rare": cohorts.RARE, "common": cohorts.COMMON}[name]
    assert len(records) == cohort.patients and set(records["hospital"]) == set(dataset.natural_sites)
    assert records["died"].mean() == pytest.approx(cohort.rate, abs=0.015)
    assert np.nanmax(np.abs(encode(records, dataset.schema).x)) <= 1.0
    by_site = records.groupby("hospital")["died"].mean()
    assert by_site.max() > 1.5 * by_site.min()


def test_the_judge_knows_a_true_model_and_one_that_is_too_extreme() -> None:
    rng = np.random.default_rng(0)
    logit = rng.normal(-1.0, 1.5, 40_000)
    y = (rng.random(len(logit)) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    true, extreme = (1 / (1 + np.exp(-scale * logit)) for scale in (1.0, 2.0))
    figures = [judge(y, np.stack([1 - risk, risk], axis=1)) for risk in (true, extreme)]
    assert figures[0]["slope"] == pytest.approx(1.0, abs=0.05) and figures[1]["slope"] == pytest.approx(0.5, abs=0.03)
    assert abs(figures[0]["off"]) < 0.01 and figures[0]["auroc"] == pytest.approx(figures[1]["auroc"])


@pytest.mark.slow
def test_the_short_form_runs_all_parts(tmp_path: Path) -> None:
    findings = run(Asked(tmp_path, quick=True), lambda line: None)
    assert findings.results["rows"]["breast-cancer"]["newton, no DP"][0]["auroc"] > 0.95
    assert "Calibration slope" in findings.tables


def test_a_pooled_model_is_scikit_learns() -> None:
    assert pooled(SETS["breast-cancer"](0))["auroc"] > 0.97
