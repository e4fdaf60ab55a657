"""The EHR experiment: its judges on known answers, its releases against each other, and its quick form."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.errors import ConfigError, DataError
from polyclinic.evaluation.synthetic.classifiers import fowlkes_mallows_cutoff
from polyclinic.experiments import Asked, reproduce
from polyclinic.privacy.accounting import calibrate_noise_multiplier, epsilon
from polyclinic_studies.ehr_flow import published as ehr_published
from polyclinic_studies.ehr_flow import real as ehr_real
from polyclinic_studies.ehr_flow.cohort import COLUMNS, cohort
from polyclinic_studies.ehr_flow.judges import held_out, imputed, learned, scored, taught, together
from polyclinic_studies.ehr_flow.release import (
    HIGH,
    LOW,
    FlowSettings,
    drawn,
    flows,
    flows_by_shared_noise,
    moments,
    moved,
    scaled,
    values,
)

SMALL = FlowSettings(steps=3)


def table(n: int = 30) -> np.ndarray:
    return scaled(cohort(n, seed=5).records[list(COLUMNS)].to_numpy(dtype=float))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.integers(-6, 6)), min_size=2, max_size=25))
def test_no_cut_off_is_better_than_the_one_found(rows: list[tuple[bool, int]]) -> None:
    y, score = np.array([one[0] for one in rows]), np.array([one[1] for one in rows], dtype=float)
    if y.all() or not y.any():
        with pytest.raises(ConfigError, match="both classes"):
            fowlkes_mallows_cutoff(y, score)
        return

    def index(cut: float) -> float:
        called = score > cut
        return float((y & called).sum() / np.sqrt(max(called.sum(), 1) * y.sum()))

    found = fowlkes_mallows_cutoff(y, score)
    assert index(found) == pytest.approx(max(index(cut) for cut in np.arange(-6.5, 7)))
    assert found not in score


def test_judges_give_what_is_known() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    exact, noise = 10 * x[:, 0], rng.normal(size=300)
    good = taught((x[:200], exact[:200]), [(x[200:], exact[200:])], 0.0, 20)[0]
    none = taught((x[:200], 10 * noise[:200]), [(x[200:], exact[200:])], 0.0, 20)[0]
    assert good.accuracy > 0.9 > 0.7 > none.accuracy and good.error < 10 < none.error
    score = scored(np.array([True] * 15 + [False] * 5), np.arange(20.0))
    assert (score.accuracy, score.error) == (0.75, 9.5)
    assert score.error_variance == pytest.approx(np.var(np.arange(20), ddof=1) / 20)
    rubin = together([[score, score], [score, score]])
    assert rubin["error"] == 9.5 and rubin["error_se"] == pytest.approx(score.error_variance**0.5)


def test_patients_teach_more_than_others_do() -> None:
    made = cohort()
    sets = imputed(made.records, 2, 0, iterations=2)
    known = ~np.isnan(made.records[list(COLUMNS)].to_numpy(dtype=float))
    np.testing.assert_allclose(sets[0][known], made.measured[known], atol=1e-9)
    assert not np.array_equal(sets[0], sets[1])
    seen = held_out(made, 2, 0, iterations=2)
    score = learned(sets[0][:64], [seen[0][64:]], 10)[0]
    shuffled = sets[0][:64].copy()
    shuffled[:, -3:-1] = shuffled[::-1, -3:-1]
    assert score.accuracy > 0.8 and score.error < learned(shuffled, [seen[0][64:]], 10)[0].error


def test_nothing_of_the_outcome_goes_into_held_out_patients_predictors() -> None:
    made = cohort(40, seed=3)
    far = replace(made, records=made.records.assign(dpap=made.records["spap"] * 0 + 79.0))
    before, after = (held_out(one, 2, 0, iterations=2) for one in (made, far))
    np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(before[0][:, -3:-1], made.measured[:, -3:-1])
    assert not np.isnan(before[0]).any() and not np.array_equal(before[0], before[1])


def test_flows_at_once_are_those_alone_and_each_has_noise_of_its_own() -> None:
    u = table()
    both = flows([[u], [u]], SMALL, 2.0, seed=1)
    alone = flows([[u]], SMALL, 2.0, seed=1)[0]
    points = drawn(alone, 5, np.random.default_rng(0))
    np.testing.assert_allclose(drawn(both[0], 5, np.random.default_rng(0)), points, atol=1e-5)
    assert not np.allclose(drawn(both[1], 5, np.random.default_rng(0)), points, atol=1e-3)


def test_one_hospital_in_secure_sums_is_training_on_the_spot_without_noise() -> None:
    u = np.nan_to_num(table())  # where no cell is missing no draws differ
    tiny = 1e-9
    whole = flows([[u]], SMALL, tiny, seed=1)[0]
    for hospitals in (1, 3):
        parts = [np.ascontiguousarray(part) for part in np.array_split(u, hospitals)]
        summed = flows_by_shared_noise([parts], SMALL, tiny, seed=1)[0]
        for name, value in whole.state_dict().items():
            np.testing.assert_allclose(summed.state_dict()[name].numpy(), value.numpy(), atol=2e-3)


def test_rows_see_no_other_patient_and_keep_bounds() -> None:
    records = cohort(20, seed=5).records[list(COLUMNS)].to_numpy(dtype=float)
    np.testing.assert_array_equal(scaled(records)[:7], scaled(records[:7]))
    np.testing.assert_array_equal(np.isnan(scaled(records)), np.isnan(records))
    far = values(np.full((2, 19), 100.0))
    assert (far == HIGH).all() and (values(-100 * np.ones((2, 19))) == LOW).all()
    assert (values(np.full((2, 19), 100.0), truncate=False) > HIGH).all()
    with pytest.raises(DataError, match="diverged"):
        values(np.full((1, 19), np.nan))


def test_moments_are_the_patients_without_noise_and_shared_noise_is_less() -> None:
    u = table(400)
    parts = [np.ascontiguousarray(part) for part in np.array_split(u, 4)]
    near = moments(parts, 1e-6, np.random.default_rng(0), rows=4000)
    u = np.nan_to_num(u)
    np.testing.assert_allclose(near.mean(0), u.mean(0), atol=0.15)
    off = {
        shared: np.mean([
            abs(moments(parts, 3.0, np.random.default_rng(seed), shared, 500).mean(0) - u.mean(0)).mean() for seed in range(4)
        ])
        for shared in (True, False)
    }  # fmt: skip
    assert off[True] < off[False]


def test_a_flow_is_charged_for_all_its_steps() -> None:
    noise = calibrate_noise_multiplier(4.0, 1e-3, SMALL.event)
    assert 3.9 < epsilon(SMALL.event(noise), 1e-3) <= 4.0
    assert epsilon(FlowSettings(steps=30).event(noise), 1e-3) > 8.0


def test_nothing_is_promised_of_the_published_form() -> None:
    module = ehr_published.trained(
        np.nan_to_num(table()), ehr_published.PublishedSettings(steps=2, blocks=2, hidden=8), 7.36, 0
    )
    found = moved(module, np.nan_to_num(table()), 10.0)
    assert found["wrong"] > 2
    for level in ehr_published.NOISE:
        assert ehr_published.holds(level, found).startswith("no guarantee: batch norm")
    assert "the paper claims μ = 1.49, ε = 4 at δ = .01" in ehr_published.holds(4.0, found)
    assert np.isfinite(drawn(module, 5, np.random.default_rng(0))).all()


def test_the_region_that_is_held_out_trains_nobody() -> None:
    assert "not there" in ehr_real.real_table([])
    if not ehr_real.DATASET.available():
        pytest.skip("the eICU demo's files are not here")
    train, test = ehr_real.records(False), ehr_real.records(True)
    assert not set(train["patient"]) & set(test["patient"]) and len(train) == ehr_real.DATASET.patients
    assert set(test["site"]) == {ehr_real.HELD_OUT} and set(train["site"]) == set(ehr_real.REGIONS)
    np.testing.assert_array_equal(train["high"], train["creatinine"] > ehr_real.ABOVE)


@pytest.mark.parametrize("asked", [{"methods": ("flow",)}, {"hospitals": 33}, {"preset": "paper", "hospitals": 2}])
def test_what_it_does_not_take_is_refused(asked: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no methods|enough for 32|has no hospitals"):
        reproduce("ehr-flow", Asked(tmp_path, **asked), lambda line: None)


@pytest.mark.slow
def test_the_quick_form(tmp_path: Path) -> None:
    told = reproduce("ehr-flow", Asked(tmp_path, quick=True), lambda line: None)
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert {"results.json", "table.md", "config.toml", "utility.svg", "marginals.svg"} <= {
        p.name for p in tmp_path.iterdir()
    }
    assert len(found["rows"]) == 12 and all(0 <= row["accuracy"][0] <= 1 for row in found["rows"])
    assert found["batch norm"]["without"]["wrong"] <= 1 + 1e-6 < found["batch norm"]["with batch norm"]["wrong"]
    assert told["targets"] and all(target["met"] is None for target in told["targets"])
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "parts").iterdir()}
    reproduce("ehr-flow", Asked(tmp_path, quick=True), lambda line: None)
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "parts").iterdir()}


@pytest.mark.slow
def test_the_quick_published_form_says_no_guarantee(tmp_path: Path) -> None:
    told = reproduce("ehr-flow", Asked(tmp_path, preset="paper", quick=True), lambda line: None)
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert told["targets"] == [] and found["preset"] == "paper"
    rows = [row for row in found["rows"] if row["arm"] != "original"]
    assert [row["epsilon"] for row in rows] == [None, 4.0]
    assert all(row["holds"].startswith("no guarantee") and row["moved"]["wrong"] > 2 for row in rows)
    assert found["config"]["guarantee"].startswith("no guarantee") and "realised" in found["config"]["guarantee"]
    lines = [line for line in (tmp_path / "table.md").read_text("utf-8").splitlines() if "| flow, as published" in line]
    assert len(lines) == 2 and all("no guarantee" in line for line in lines)
