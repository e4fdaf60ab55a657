"""Calibration on the safe side and close to its target, and plans of whole runs."""

from __future__ import annotations

import math

import dp_accounting as dpa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import calibrate_noise_multiplier, dpsgd_event, epsilon, gaussian_event, plan
from polyclinic.privacy.events import merge_events


@settings(max_examples=30, derandomize=True)
@given(
    target=st.floats(math.log(1e-3), math.log(20)).map(math.exp),
    rate=st.one_of(st.just(1.0), st.floats(math.log(1e-3), 0).map(math.exp)),
    steps=st.floats(0, math.log(1e4)).map(lambda x: round(math.exp(x))),
    delta=st.floats(math.log(1e-8), math.log(1e-2)).map(math.exp),
    relation=st.sampled_from(["add-remove", "replace-one"]),
    accountant=st.sampled_from(["pld", "rdp"]),
)
def test_calibrated_noise_spends_its_target_and_never_more(target, rate, steps, delta, relation, accountant):
    assume(rate * steps > delta)  # else a patient is hardly ever drawn, and no noise at all spends nothing
    noise = calibrate_noise_multiplier(target, delta, lambda z: dpsgd_event(rate, z, steps), accountant, relation)
    spent = epsilon(dpsgd_event(rate, noise, steps), delta, accountant, relation)
    assert 0.995 * target < spent <= target or (noise <= 0.011 and spent <= target)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("target", [1e-3, 3e-3, 0.03])
def test_very_small_epsilons_can_be_calibrated(target, accountant):
    noise = calibrate_noise_multiplier(target, 1e-5, lambda z: dpsgd_event(0.05, z, 100), accountant)
    assert 0.995 * target < epsilon(dpsgd_event(0.05, noise, 100), 1e-5, accountant) <= target


@pytest.mark.parametrize(("accountant", "expected"), [("pld", 1.403387), ("rdp", 1.498999)])
def test_calibration_reproduces_golden_noise_on_the_safe_side(accountant, expected):
    noise = calibrate_noise_multiplier(2.0, 1e-5, lambda z: dpsgd_event(0.032, z, 313), accountant)
    assert noise == pytest.approx(expected, rel=1.1e-3)
    spent = epsilon(dpsgd_event(0.032, noise, 313), 1e-5, accountant)
    assert 0.98 * 2.0 < spent <= 2.0


@pytest.mark.parametrize(("target", "expected"), [(0.1, 30.749566), (1.0, 3.730632), (5.0, 0.891868)])
@pytest.mark.parametrize(("relation", "factor"), [("add-remove", 1), ("replace-one", 2)])
def test_calibrated_gaussian_matches_the_analytic_sigma(target, expected, relation, factor):
    noise = calibrate_noise_multiplier(target, 1e-5, gaussian_event, "pld", relation)
    assert noise == pytest.approx(factor * expected, rel=2e-3)
    assert epsilon(gaussian_event(noise), 1e-5, "pld", relation) <= target


def test_calibration_refuses_what_no_noise_reaches():
    fixed = gaussian_event(1.0)
    with pytest.raises(ConfigError, match="cannot be reached"):
        calibrate_noise_multiplier(1.0, 1e-5, lambda z: dpa.ComposedDpEvent([fixed, gaussian_event(z)]))
    for target in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="target_epsilon must be positive"):
            calibrate_noise_multiplier(target, 1e-5, gaussian_event)


PLANS = [
    {"epsilon": 3.0, "delta": 1e-5, "training": lambda z: ((dpsgd_event(0.1, z, 100), 1),), "statistics_share": 0.05},
    {"epsilon": 0.5, "delta": 1e-4, "training": lambda z: ((dpsgd_event(0.05, z, 20), 1),), "statistics_share": 0.3},
    {"epsilon": 8.0, "delta": 1e-3, "training": lambda z: ((dpsgd_event(1.0, z, 30), 1),), "statistics_share": 0.1},
]


@pytest.mark.parametrize("values", PLANS)
@pytest.mark.parametrize(
    ("accountant", "relation"), [("pld", "add-remove"), ("pld", "replace-one"), ("rdp", "add-remove")]
)
def test_plan_spends_all_but_a_little_of_its_epsilon(values, relation, accountant):
    made = plan(**values, relation=relation, accountant=accountant)
    spent = epsilon(made.total_event, made.delta, accountant, relation)
    assert 0.98 * made.epsilon < spent <= made.epsilon
    share = epsilon(made.statistics_event, made.delta, accountant, relation)
    assert share <= values["statistics_share"] * made.epsilon
    assert share == pytest.approx(values["statistics_share"] * made.epsilon, rel=0.02)


def test_plan_composes_its_training_and_statistics():
    made = plan(**PLANS[0])
    steps = dpsgd_event(0.1, made.noise_multiplier, 100)
    assert merge_events(made.total_event) == merge_events(dpa.ComposedDpEvent([made.statistics_event, steps]))
    assert made.statement() == {
        "epsilon": 3.0, "delta": 1e-5, "unit": "patient", "relation": "add-remove", "accountant": "pld",
    }  # fmt: skip


def test_plan_without_a_share_releases_no_statistics():
    values = {**PLANS[0], "statistics_share": 0.0}
    made = plan(**values)
    assert made.statistics_noise_multiplier is None
    assert made.statistics_event == dpa.NoOpDpEvent()
    assert made.noise_multiplier < plan(**PLANS[0]).noise_multiplier
    assert 0.98 * made.epsilon < epsilon(made.total_event, made.delta) <= made.epsilon


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epsilon", 0.0), ("epsilon", math.inf), ("delta", 0.0), ("delta", 1.0),
        ("statistics_share", 1.0), ("statistics_share", -0.1),
    ],
)  # fmt: skip
def test_plan_names_the_value_that_is_out_of_range(field, value):
    with pytest.raises(ConfigError, match=field):
        plan(**{**PLANS[0], field: value})
