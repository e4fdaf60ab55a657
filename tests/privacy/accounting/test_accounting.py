"""Epsilon against golden values of Opacus, dp-accounting and closed forms."""

from __future__ import annotations

import json
import math
from pathlib import Path

import dp_accounting as dpa
import numpy as np
import pytest
from opacus.accountants.analysis.rdp import compute_rdp

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import (
    dpsgd_event,
    epsilon,
    gaussian_event,
)
from polyclinic.privacy.accounting.bounds import pld_epsilon_at
from polyclinic.privacy.accounting.renyi import ORDERS, divergence
from polyclinic.privacy.events import merge_events, pure_event, without_replacement_event

GOLDEN = json.loads(Path(__file__).with_name("golden_accounting.json").read_text())
REPLACE_ONE = [row for row in GOLDEN if "pld_replace_one" in row]


def _event(row: dict) -> dpa.DpEvent:
    return dpsgd_event(row["sample_rate"], row["noise_multiplier"], row["steps"])


def _name(row: dict) -> str:
    return row["row"]


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=[pytest.mark.slow] * ("sprint" in _name(row))) for row in GOLDEN], ids=_name
)
def test_pld_reproduces_golden_epsilon(row):
    assert epsilon(_event(row), row["delta"], "pld") == pytest.approx(row["pld"], rel=1e-3)


@pytest.mark.parametrize("row", GOLDEN, ids=_name)
def test_rdp_reproduces_opacus(row):
    tolerance = 1e-4 if "sprint" in _name(row) else 1e-6  # as many digits as the golden value has
    assert epsilon(_event(row), row["delta"], "rdp") == pytest.approx(row["rdp"], rel=tolerance)


@pytest.mark.parametrize("row", [row for row in GOLDEN if "prv_ms_low" in row], ids=_name)
def test_pld_lies_between_microsofts_lower_and_opacus_upper_bound(row):
    assert row["prv_ms_low"] <= epsilon(_event(row), row["delta"]) <= row["prv"]


@pytest.mark.parametrize(
    ("q", "z", "steps", "claimed", "expected"),
    [
        (0.5, 7.36, 8000, 32, 43.8), (0.5, 11.44, 8000, 16, 23.7), (0.5, 18.28, 8000, 8, 12.9), (0.5, 29.93, 8000, 4, 7.0),
    ],
)  # fmt: skip
def test_papers_epsilons_at_a_delta_that_protects(q, z, steps, claimed, expected):
    event = dpsgd_event(q, z, steps)
    assert epsilon(event, 1e-2) == pytest.approx(claimed, rel=6e-3)  # as the normalising-flow paper says, at delta 0.01
    assert epsilon(event, 1e-5) == pytest.approx(expected, rel=6e-3)


@pytest.mark.slow
def test_one_record_drawn_at_a_time_is_not_poisson():
    # SPRINT AC-GAN claims epsilon 2. Under Poisson sampling that holds even at delta 2.05e-8 (golden, on a grid of 1e-4).
    poisson = dpsgd_event(1 / 6000, 1.0, 3_000_000)
    assert pld_epsilon_at(merge_events(poisson), 2.05e-8, "add-remove", 1e-4) == pytest.approx(2.0, rel=1e-3)
    assert epsilon(poisson, 2.05e-8) == pytest.approx(1.964, rel=1e-3)
    # What its own drawing costs.
    for noise, expected in ((2.0, 3.03), (1.0, 19.2)):
        drawn = dpa.SelfComposedDpEvent(without_replacement_event(6000, 1, noise), 3_000_000)
        assert epsilon(drawn, 1e-5, "rdp", "replace-one") == pytest.approx(expected, rel=5e-3)


def test_many_steps_are_accounted_close_to_their_limit():
    # Ten million steps: a sparse distribution would raise its size to that power.
    assert epsilon(dpsgd_event(0.001, 2.0, 10_000_000), 1e-5) == pytest.approx(8.112, rel=3e-3)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.3, 0.95])
@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0, 20.0])
def test_renyi_divergence_of_a_sampled_gaussian_agrees_with_opacus(rate, noise, relation):
    def opacus(orders):
        return np.array(compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=[float(order) for order in orders]))

    orders = ORDERS
    expected = opacus(orders)
    if relation == "replace-one":
        orders = orders[orders <= 512]  # Opacus' binomials overflow at twice an order above
        expected = (orders - 0.5) / (orders - 1) * opacus(2 * orders) + opacus(2 * orders - 1)
    event = dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise))
    # Opacus adds and takes away terms near one, so that its own error is up to 1e-13.
    assert divergence(event, relation)[: len(orders)] == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.9])
@pytest.mark.parametrize("noise", [0.05, 0.049, 0.01, 0.001])
def test_renyi_divergence_with_hardly_any_noise_is_at_once_an_upper_bound(rate, noise):
    sampled = divergence(dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise)), "add-remove")
    whole = divergence(dpa.GaussianDpEvent(noise), "add-remove")
    # A sample holds the patient with probability rate: E[ratio^order] is at least rate^order that of the Gaussian.
    least = whole + ORDERS / (ORDERS - 1) * math.log(rate)
    assert (sampled <= whole * (1 + 1e-12)).all() and (sampled >= least * (1 - 1e-9)).all()


def test_renyi_divergence_is_not_lost_in_rounding_where_a_patient_hardly_shows():
    # Where rate and 1/noise are small it is order / 2 times the variance of the ratio; a sum of terms near one gives 0.
    rate, noise = 1e-5, 500.0
    event = dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise))
    expected = ORDERS / 2 * rate**2 * math.expm1(1 / noise**2)
    assert divergence(event, "add-remove") == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("row", REPLACE_ONE, ids=_name)
def test_pld_reproduces_golden_epsilon_when_a_patient_is_replaced(row):
    found = epsilon(_event(row), row["delta"], "pld", "replace-one")
    assert found == pytest.approx(row["pld_replace_one"], rel=1e-3)
    assert found > row["pld"]


@pytest.mark.parametrize("row", REPLACE_ONE, ids=_name)
def test_rdp_bounds_pld_under_both_relations(row):
    assert epsilon(_event(row), row["delta"], "rdp") >= row["pld"]
    assert epsilon(_event(row), row["delta"], "rdp", "replace-one") >= row["pld_replace_one"]


@pytest.mark.parametrize("row", [row for row in GOLDEN if "sprint" not in _name(row)], ids=_name)
def test_quick_epsilon_is_an_upper_bound_close_to_the_exact_one(row):
    quick = epsilon(_event(row), row["delta"], quick=True)
    assert row["pld"] * (1 - 1e-3) <= quick <= row["pld"] * 1.02


@pytest.mark.parametrize("steps", [1, 7, 150, 4095, 4096, 10_000])
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_quick_epsilon_of_any_count_is_an_upper_bound_close_to_the_exact_one(steps, relation):
    event = dpa.ComposedDpEvent([dpsgd_event(0.1, 2.0, steps), gaussian_event(8.0)])
    exact = epsilon(event, 1e-5, "pld", relation)
    assert exact * (1 - 1e-9) <= epsilon(event, 1e-5, "pld", relation, quick=True) <= exact * 1.003


@pytest.mark.slow
def test_grid_is_refined_where_the_default_one_overstates():
    # The golden 2.582 is what a grid of 1e-4 gives for three million steps; the limit of many steps is 2.564.
    event = dpsgd_event(1 / 6000, 1.0, 3_000_000)
    assert pld_epsilon_at(merge_events(event), 1e-5, "replace-one", 1e-4) == pytest.approx(2.582, rel=1e-3)
    assert 2.564 < epsilon(event, 1e-5, "pld", "replace-one") < 2.575


@pytest.mark.parametrize(
    ("sigma", "expected"), [(30.749566, 0.1), (7.031827, 0.5), (3.730632, 1), (1.993812, 2), (0.499889, 10)]
)
def test_gaussian_matches_the_analytic_mechanism(sigma, expected):
    assert epsilon(gaussian_event(sigma), 1e-5) == pytest.approx(expected, rel=1e-3)


def test_fault_24_both_accountants_take_noise_relative_to_the_clip_norm():
    # dp-accounting's own RDP accountant gives 2.166 here under every relation: half the distance, fault 24.
    replaced, halved = gaussian_event(2.0), gaussian_event(1.0)
    assert epsilon(replaced, 1e-5, "pld", "replace-one") == pytest.approx(4.377178, rel=1e-3)
    assert epsilon(replaced, 1e-5, "rdp", "replace-one") == pytest.approx(4.728507, rel=1e-3)
    for accountant in ("pld", "rdp"):
        assert epsilon(replaced, 1e-5, accountant, "replace-one") == pytest.approx(epsilon(halved, 1e-5, accountant))


def test_fault_23_randomised_response_is_composed_as_often_as_it_is_used():
    # Fault 23: dp-accounting's PLD accountant answers log 3 for any count.
    one = dpa.RandomizedResponseDpEvent(0.5, 2)
    fifty = dpa.SelfComposedDpEvent(one, 50)
    assert epsilon(one, 1e-5, "pld", "replace-one") == pytest.approx(math.log(3), rel=1e-3)
    found = epsilon(fifty, 1e-5, "pld", "replace-one")
    assert found == pytest.approx(50.5, rel=5e-3)
    assert found <= epsilon(fifty, 1e-5, "rdp", "replace-one") == pytest.approx(52.24, rel=1e-3)
    assert found <= 50 * math.log(3)


@pytest.mark.parametrize("buckets", [2, 4, 7])
def test_randomised_response_over_many_buckets_agrees_between_accountants(buckets):
    event = dpa.SelfComposedDpEvent(dpa.RandomizedResponseDpEvent(0.7, buckets), 20)
    tight, loose = (epsilon(event, 1e-5, accountant, "replace-one") for accountant in ("pld", "rdp"))
    assert 0.8 * loose < tight <= loose * 1.001  # the grid rounds up


def test_randomised_response_is_refused_when_presence_is_the_secret():
    with pytest.raises(ConfigError, match="replace-one"):
        epsilon(dpa.RandomizedResponseDpEvent(0.5, 2), 1e-5)


def test_laplace_matches_golden_and_costs_double_when_replaced():
    event = dpa.SelfComposedDpEvent(dpa.LaplaceDpEvent(10.0), 100)
    assert epsilon(event, 1e-5) == pytest.approx(4.220347, rel=1e-3)
    assert epsilon(event, 1e-5, "rdp") == pytest.approx(4.532686, rel=1e-3)
    single = dpa.LaplaceDpEvent(1.0)
    assert epsilon(single, 1e-9, "pld", "replace-one") == pytest.approx(2.0, rel=1e-3)
    assert epsilon(single, 1e-9, "rdp", "replace-one") >= 2.0 * (1 - 1e-3)


def test_fault_26_batches_that_are_not_poisson_get_no_amplification():
    shuffled = dpsgd_event(0.002, 0.7, 500, poisson=False)
    assert epsilon(shuffled, 1e-5) == pytest.approx(epsilon(gaussian_event(0.7, 500), 1e-5))
    # One epoch with a shuffle costs at least 6.588, with Poisson samples 0.987.
    assert epsilon(shuffled, 1e-5) > 6.588
    assert epsilon(dpsgd_event(0.002, 0.7, 500), 1e-5) == pytest.approx(0.987, rel=1e-3)


CLIENT_LEVEL = [(1.0, 5.0, 50, 4.845), (0.1, 1.0, 100, 4.784), (0.1, 2.0, 100, 1.544)]


@pytest.mark.parametrize(("q", "z", "rounds", "expected"), CLIENT_LEVEL)
def test_client_level_golden_values(q, z, rounds, expected):
    assert epsilon(dpsgd_event(q, z, rounds), 1e-3) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_rounds_compose(accountant):
    one = dpsgd_event(0.05, 1.1, 20)
    three = dpa.ComposedDpEvent([one, one, one])
    assert epsilon(three, 1e-5, accountant) == epsilon(dpsgd_event(0.05, 1.1, 60), 1e-5, accountant)
    assert epsilon(one, 1e-5, accountant) < epsilon(three, 1e-5, accountant)


def test_union_of_releases_costs_more_than_each():
    parts = [dpsgd_event(0.05, 1.1, 60), dpsgd_event(0.02, 0.9, 40), gaussian_event(6.0)]
    assert epsilon(dpa.ComposedDpEvent(parts), 1e-5) > max(epsilon(part, 1e-5) for part in parts)


def test_full_batches_are_plain_gaussians():
    assert merge_events(dpsgd_event(1.0, 2.0, 4)) == merge_events(gaussian_event(1.0))


def test_merging_does_not_depend_on_order_or_nesting():
    a, b, c = dpsgd_event(0.1, 1.0, 5), dpsgd_event(0.2, 1.0, 3), gaussian_event(4.0)
    nested = dpa.SelfComposedDpEvent(dpa.ComposedDpEvent([c, dpa.ComposedDpEvent([b, a]), dpa.NoOpDpEvent()]), 2)
    assert merge_events(nested) == merge_events(dpa.ComposedDpEvent([a, b, c, a, b, c]))


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(
    "event",
    [
        dpa.NonPrivateDpEvent(),
        dpa.GaussianDpEvent(0.0),
        dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(0.0)),
        dpa.ComposedDpEvent([dpa.GaussianDpEvent(5.0), dpa.NonPrivateDpEvent()]),
        dpa.SelfComposedDpEvent(dpa.NonPrivateDpEvent(), 3),
    ],
)
def test_anything_without_noise_costs_infinity(event, accountant):
    assert epsilon(event, 1e-5, accountant) == math.inf


def test_nothing_costs_nothing():
    assert epsilon(dpa.NoOpDpEvent(), 1e-5) == 0.0
    assert epsilon(dpa.ComposedDpEvent([]), 1e-5) == 0.0


HARDLY_ANY_NOISE = [(0.1, 0.05, 1000), (0.01, 0.01, 10), (1.0, 0.01, 1000), (0.9, 0.2, 10_000)]


@pytest.mark.parametrize(("q", "z", "steps"), HARDLY_ANY_NOISE)
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_hardly_any_noise_is_accounted_without_exhausting_memory(q, z, steps, relation):
    assert epsilon(dpsgd_event(q, z, steps), 1e-5, "pld", relation) > 100


def test_huge_noise_costs_almost_nothing():
    assert 0 <= epsilon(dpsgd_event(0.01, 500.0, 100), 1e-5) < 1e-3


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_delta_outside_the_unit_interval_is_refused(delta):
    with pytest.raises(ConfigError, match="delta must lie in"):
        epsilon(gaussian_event(1.0), delta)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, math.nan])
def test_sample_rate_outside_the_unit_interval_is_refused(rate):
    with pytest.raises(ConfigError, match="sample_rate must lie between 1e-12 and 1, got"):
        dpsgd_event(rate, 1.0, 10)


@pytest.mark.parametrize("noise", [0.0, -1.0, math.inf, math.nan])
def test_noise_that_is_not_positive_and_finite_is_refused(noise):
    with pytest.raises(ConfigError, match="noise_multiplier must lie between 1e-09 and 1e.15, got"):
        dpsgd_event(0.1, noise, 10)
    with pytest.raises(ConfigError, match="noise_multiplier must lie between 1e-09 and 1e.15, got"):
        gaussian_event(noise)


@pytest.mark.parametrize("steps", [0, -3, 1.5])
def test_steps_must_be_a_count(steps):
    with pytest.raises(ConfigError, match="steps must be a whole number"):
        dpsgd_event(0.1, 1.0, steps)


def test_unknown_names_are_refused_with_a_hint():
    with pytest.raises(ConfigError, match="Did you mean 'rdp'"):
        epsilon(gaussian_event(1.0), 1e-5, "rpd")
    with pytest.raises(ConfigError, match="Did you mean 'replace-one'"):
        epsilon(gaussian_event(1.0), 1e-5, "pld", "replace_one")


@pytest.mark.parametrize("quick", [True, False])
def test_a_delta_that_covers_everything_leaves_an_epsilon_of_zero_at_once(quick):
    """A grid of losses as fine as such an epsilon asks for would be gigabytes."""
    event = dpa.ComposedDpEvent([pure_event(0.5), pure_event(0.5)])
    assert epsilon(event, 0.5, quick=quick) == 0 < epsilon(event, 0.2, quick=quick)
