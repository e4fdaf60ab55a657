"""Closed forms of composition: golden numbers, the accountants as their oracle, and limits."""

from __future__ import annotations

import math

import dp_accounting as dpa
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants.analysis import gdp as opacus_gdp

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import composition, dpsgd_event, epsilon, gaussian_event
from polyclinic.privacy.events import approximate_event, pure_event, without_replacement_event


def test_composition_reproduces_golden_numbers():
    assert composition.basic(0.1, 1e-8, 100) == pytest.approx((10, 1e-6))
    assert composition.advanced_composition(0.1, 0, 100, 1e-5) == pytest.approx((5.850235, 1e-5), rel=1e-6)
    assert composition.optimal(0.1, 0, 100, 1e-5) == pytest.approx(4.306791, rel=1e-6)


@settings(max_examples=25)
@given(eps=st.floats(0.01, 2), count=st.integers(1, 200), delta=st.floats(0, 1e-9), slack=st.floats(1e-9, 1e-3))
def test_each_form_of_composition_is_above_the_optimal_one(eps, count, delta, slack):
    for form in (composition.advanced_composition, composition.kairouz):
        together, spent = form(eps, delta, count, slack)
        assert composition.optimal(eps, delta, count, spent) <= together * (1 + 1e-9)
    assert composition.kairouz(eps, delta, count, slack)[0] <= composition.basic(eps, delta, count)[0]


@pytest.mark.parametrize(
    ("eps", "delta", "count"), [(0.1, 0.0, 100), (0.5, 1e-8, 40), (2.0, 0.0, 3), (0.02, 0.0, 3000)]
)
def test_optimal_composition_is_the_privacy_loss_distributions(eps, delta, count):
    events = dpa.SelfComposedDpEvent(approximate_event(eps, delta), count)
    found = composition.optimal(eps, delta, count, 1e-5)
    assert found == pytest.approx(epsilon(events, 1e-5), rel=2e-3)
    assert found <= epsilon(events, 1e-5) * (1 + 1e-7)


def test_optimal_composition_at_its_ends():
    assert composition.optimal(0.1, 1e-6, 100, 1e-5) == math.inf
    assert composition.optimal(0.1, 0, 100, 0.999) == 0.0
    assert composition.optimal_delta(0.5, 10, 5.0) == 0.0
    # Total variation of one randomised response.
    assert composition.optimal_delta(1.0, 1, 0.0) == pytest.approx(math.tanh(0.5))


def test_groups_reproduce_golden_numbers():
    assert composition.group(1, 1e-6, 3) == pytest.approx((3, 1.110734e-5), rel=1e-6)
    assert composition.group(0, 1e-6, 3) == pytest.approx((0, 3e-6))
    assert composition.group_zcdp(0.01, 3) == pytest.approx(0.09)
    assert composition.group_gdp(0.5, 3) == pytest.approx(1.5)
    assert composition.gdp_epsilon(1.5, 1e-5) == pytest.approx(7.051413, rel=1e-6)


@pytest.mark.parametrize("sigma", [1.0, 4.0])
def test_a_group_of_two_by_epsilon_and_delta_is_above_that_of_the_gaussian_itself(sigma):
    for delta in (1e-9, 1e-6, 1e-3):
        alone = composition.gdp_epsilon(1 / sigma, delta)
        together, spent = composition.group(alone, delta, 2)
        assert together >= composition.gdp_epsilon(composition.group_gdp(1 / sigma, 2), spent)


def test_zcdp_conversions_reproduce_golden_numbers():
    assert composition.zcdp_epsilon_classic(0.5, 1e-5) == pytest.approx(5.298526, rel=1e-6)
    assert composition.zcdp_epsilon(0.5, 1e-5) == pytest.approx(4.728507, rel=1e-4)
    assert composition.zcdp_epsilon(0.5, 1e-5) <= 4.728507  # real orders, where RDP has a list of them
    assert composition.gdp_epsilon(1.0, 1e-5) == pytest.approx(4.377178, rel=1e-6)
    assert composition.zcdp_epsilon(0.0, 1e-5) == 0.0


@settings(max_examples=50)
@given(rho=st.floats(1e-6, 50), delta=st.floats(1e-12, 0.1))
def test_zcdp_lies_between_the_gaussian_and_the_classic_conversion(rho, delta):
    tight = composition.zcdp_epsilon(rho, delta)
    assert composition.gdp_epsilon(math.sqrt(2 * rho), delta) <= tight * (1 + 1e-6) + 1e-9
    assert tight <= composition.zcdp_epsilon_classic(rho, delta)


GDP = [
    (1e-5, [(0.1, 0.340669), (0.5, 1.993091), (1, 4.377178), (2, 9.997256), (5, 33.103732)]),
    (1e-2, [(0.1, 0.092708), (0.5, 0.919458), (1, 2.317789), (2, 5.997893), (5, 23.315160)]),
]


@pytest.mark.parametrize(("delta", "rows"), GDP)
def test_gdp_reproduces_golden_numbers_and_its_own_inverse(delta, rows):
    for mu, expected in rows:
        found = composition.gdp_epsilon(mu, delta)
        assert found == pytest.approx(expected, rel=1e-5)
        assert composition.gdp_delta(mu, found) == pytest.approx(delta, rel=1e-6)
        assert composition.gdp_delta(mu, found) <= delta


def test_gdp_answers_where_opacus_fails():
    for mu, delta in ((30.0, 1e-5), (0.01, 0.1)):
        with pytest.raises(ValueError, match="sign"):
            opacus_gdp.eps_from_mu(mu=mu, delta=delta)
    large = composition.gdp_epsilon(30.0, 1e-5)
    assert 450 < large < 600 and composition.gdp_delta(30.0, large) == pytest.approx(1e-5, rel=1e-6)
    assert composition.gdp_epsilon(0.01, 0.1) == 0.0
    assert 0 < composition.gdp_epsilon(0.001, 1e-5) < 0.01


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.01, 4.0, 10_000), (0.1, 1.0, 100), (0.5, 7.36, 8000)])
def test_the_limits_mu_agrees_with_opacus(rate, noise, steps):
    poisson = opacus_gdp.compute_mu_poisson(steps=steps, noise_multiplier=noise, sample_rate=rate)
    uniform = opacus_gdp.compute_mu_uniform(steps=steps, noise_multiplier=noise, sample_rate=rate)
    assert composition.clt_mu(rate, noise, steps) == pytest.approx(poisson, rel=1e-9)
    assert composition.clt_mu_uniform(rate, noise, steps) == pytest.approx(uniform, rel=1e-9)


def test_the_limit_is_near_where_steps_are_many_and_small():
    for relation in ("add-remove", "replace-one"):
        mu = composition.clt_mu(0.01, 4.0, 10_000, relation)
        exact = epsilon(dpsgd_event(0.01, 4.0, 10_000), 1e-5, "pld", relation)
        assert composition.gdp_epsilon(mu, 1e-5) == pytest.approx(exact, rel=0.01)
    assert composition.clt_mu(0.01, 0.01, 10) == math.inf


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.9, 1.0])
@pytest.mark.parametrize("noise", [1.0, 3.0])
def test_amplification_by_poisson_sampling_is_exact_for_a_gaussian(rate, noise):
    own = 1e-5
    eps, delta = composition.amplify(composition.gdp_epsilon(1 / noise, own / rate), own / rate, rate)
    assert delta == pytest.approx(own)
    assert epsilon(dpsgd_event(rate, noise, 1), own) == pytest.approx(eps, rel=2e-3, abs=1e-4)


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.9])
def test_amplification_holds_for_a_replaced_patient_and_without_replacement(rate):
    own, noise = 1e-5, 4.0
    replaced = composition.gdp_epsilon(2 / noise, own / rate)  # twice the clip norm
    eps, delta = composition.amplify(replaced, own / rate, rate)
    assert epsilon(dpsgd_event(rate, noise, 1), delta, "pld", "replace-one") <= eps * (1 + 2e-3)
    drawn = without_replacement_event(1000, round(1000 * rate), noise)
    assert epsilon(drawn, delta, "pld", "add-remove") == pytest.approx(eps, rel=2e-3, abs=1e-4)
    # Its own bound under "replace-one" is by Renyi divergence, and looser.
    assert epsilon(drawn, delta, "pld", "replace-one") >= eps * (1 - 1e-6)


def test_amplification_at_its_ends():
    assert composition.amplify(1.0, 1e-6, 1.0) == pytest.approx((1.0, 1e-6))
    assert composition.amplify(2000.0, 1e-6, 0.5)[0] == pytest.approx(2000 - math.log(2))
    for rate in (0.0, 1.1, math.nan):
        with pytest.raises(ConfigError, match="rate"):
            composition.amplify(1.0, 1e-6, rate)


def test_fault_09_client_sampling_that_the_server_sees_buys_nothing():
    # One who joins 10 of 100 rounds spends 10 whole rounds; the coin that chose them is no secret to hide behind.
    rate, noise, steps = 0.05, 1.0, 20
    joined = epsilon(dpsgd_event(rate, noise, 10 * steps), 1e-5)
    multiplied = epsilon(dpsgd_event(0.1 * rate, noise, 100 * steps), 1e-5)
    assert joined > 1.5 * multiplied


def test_hundred_laplace_and_pure_releases_agree():
    # Laplace noise of scale 10 is 0.1-DP, and a little better than randomised response when composed.
    laplace = epsilon(dpa.SelfComposedDpEvent(dpa.LaplaceDpEvent(10.0), 100), 1e-5)
    assert laplace < epsilon(dpa.SelfComposedDpEvent(pure_event(0.1), 100), 1e-5) < 1.03 * laplace


def test_deltas_fall_with_epsilon():
    for delta_at in (lambda e: composition.gdp_delta(1.0, e), lambda e: composition.optimal_delta(0.1, 50, e)):
        deltas = [delta_at(e) for e in np.linspace(0, 6, 40)]
        assert all(later <= earlier for earlier, later in zip(deltas, deltas[1:], strict=False))
    assert epsilon(gaussian_event(1.0), 1e-3) < epsilon(gaussian_event(1.0), 1e-6)
