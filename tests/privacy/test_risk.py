"""Risk in plain numbers: the Gaussian's closed form, randomised response, and a simulated attacker."""

from __future__ import annotations

import math

import dp_accounting as dpa
import numpy as np
import pytest
from scipy.stats import norm

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import dpsgd_event, gaussian_event
from polyclinic.privacy.accounting.risk import Risk, risk, worst
from polyclinic.privacy.events import approximate_event, pure_event


@pytest.mark.parametrize("mu", [0.05, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_risk_of_a_gaussian_is_its_closed_form(mu, relation):
    noise = (2 if relation == "replace-one" else 1) / mu
    found = risk(gaussian_event(noise), relation)
    power = norm.cdf(norm.ppf(0.01) + mu)
    assert found.advantage == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-3)
    assert found.tpr_at_1_percent_fpr == pytest.approx(power, rel=1e-3)
    assert found.advantage >= (2 * norm.cdf(mu / 2) - 1) * (1 - 1e-9)
    assert found.tpr_at_1_percent_fpr >= power * (1 - 1e-9)


@pytest.mark.parametrize("eps", [0.1, 1.0, 5.0])
def test_risk_of_a_pure_release_is_that_of_randomised_response(eps):
    truth = 1 / (1 + math.exp(-eps))
    found = risk(pure_event(eps))
    assert found.advantage == pytest.approx(2 * truth - 1, rel=1e-3)
    # The attacker's best curve is (0, 0), (1 - truth, truth), (1, 1).
    expected = 0.01 * math.exp(eps) if 1 - truth >= 0.01 else truth + (0.01 - (1 - truth)) * math.exp(-eps)
    assert found.tpr_at_1_percent_fpr == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize(("eps", "delta"), [(0.5, 1e-3), (2.0, 0.1), (0.0, 0.3)])
def test_risk_of_an_epsilon_and_a_delta_is_their_trade_off(eps, delta):
    """Kairouz, Oh and Viswanath 2017: whatever is so private, this is the most that an attacker finds."""
    found = risk(approximate_event(eps, delta))
    advantage = (math.expm1(eps) + 2 * delta) / (math.exp(eps) + 1)
    power = min(math.exp(eps) * 0.01 + delta, 1 - math.exp(-eps) * (1 - delta - 0.01))
    assert advantage * (1 - 1e-9) <= found.advantage <= advantage * 1.001 + 1e-5
    assert power * (1 - 1e-9) <= found.tpr_at_1_percent_fpr <= power * 1.001 + 1e-5


def test_a_release_with_a_large_delta_of_its_own_is_not_taken_for_certainty():
    """Objective perturbation's charge: its delta is far above the usual 1e-5."""
    one = risk(approximate_event(1.5, 9e-4))
    both = risk(dpa.ComposedDpEvent([approximate_event(1.5, 9e-4), gaussian_event(5000.0)]))
    assert one.advantage <= both.advantage < 0.64 and both.tpr_at_1_percent_fpr < 0.05
    assert risk(dpa.SelfComposedDpEvent(approximate_event(0.1, 0.4), 9)).advantage > 0.989


def test_what_hardly_ever_happens_needs_no_grid():
    found = risk(dpsgd_event(1e-8, 1.0, 10))
    assert 0 < found.advantage <= 1e-5 and 0.01 < found.tpr_at_1_percent_fpr <= 0.01 + 1e-5


def test_the_worst_of_several_is_the_worst_in_both_numbers():
    assert worst([Risk(0.2, 0.05), Risk(0.1, 0.09)]) == Risk(0.2, 0.09)


def test_both_directions_count():
    """The attacker may hold either neighbour for the null; the likelihood ratio of one sampled Gaussian tells both."""
    rate, noise = 0.5, 0.6
    draws = np.random.default_rng(7).normal(0, noise, 400_000)
    member = draws + (np.random.default_rng(8).random(draws.size) < rate)

    def power(null, other, sign):
        threshold = np.quantile(sign * null, 0.99)
        return float(np.mean(sign * other > threshold))

    found = risk(dpsgd_event(rate, noise, 1)).tpr_at_1_percent_fpr
    best = max(power(draws, member, 1), power(member, draws, -1))
    assert found == pytest.approx(best, abs=0.01) and found >= best - 0.005


def test_more_releases_risk_more_and_none_risk_nothing():
    once, often = risk(dpsgd_event(0.1, 1.0, 10)), risk(dpsgd_event(0.1, 1.0, 100))
    assert 0 < once.advantage < often.advantage < 1
    assert 0.01 < once.tpr_at_1_percent_fpr < often.tpr_at_1_percent_fpr < 1
    assert risk(dpa.NoOpDpEvent()) == Risk(0.0, 0.01)
    for exposed in (dpa.NonPrivateDpEvent(), gaussian_event(0.01)):
        found = risk(exposed)
        assert found.advantage == pytest.approx(1.0) and found.tpr_at_1_percent_fpr == pytest.approx(1.0)


def test_risk_of_ten_million_steps_is_found():
    found = risk(dpsgd_event(0.001, 2.0, 10_000_000))
    mu = 1.685  # the limit of many small steps
    assert found.advantage == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=0.02)
    assert found.tpr_at_1_percent_fpr == pytest.approx(norm.cdf(norm.ppf(0.01) + mu), rel=0.03)


@pytest.mark.parametrize(("noise", "steps"), [(1e-5, 150), (1.0, 10**9), (100.0, 10**9)])
def test_where_no_privacy_is_left_the_risk_is_certainty_at_once(noise, steps):
    """The losses of such steps would not fit into memory."""
    assert risk(dpsgd_event(0.1, noise, steps)) == Risk(1.0, 1.0)


def test_what_cannot_be_accounted_has_no_risk_either():
    with pytest.raises(ConfigError, match="replace-one"):
        risk(dpa.RandomizedResponseDpEvent(0.5, 2))
