"""Bounds of events that have no closed form, held against the exact distributions of small mechanisms."""

from __future__ import annotations

import math

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.pld_pmf import DensePLDPmf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from polyclinic.privacy.accounting import RELATIONS, Relation, dpsgd_event, epsilon, gaussian_event
from polyclinic.privacy.accounting.bounds import _epsilon_of, compose_events
from polyclinic.privacy.accounting.composition import gdp_delta, optimal
from polyclinic.privacy.events import (
    discrete_gaussian_event,
    merge_events,
    pure_event,
    selection_event,
    without_replacement_event,
    zcdp_event,
)

X = np.arange(-60, 60, 0.01)
ACCOUNTANTS = ["pld", "rdp"]


def _delta(eps: float, one: np.ndarray, other: np.ndarray) -> float:
    """The exact delta of two distributions over the same outcomes, in the worse direction."""
    return max(float(np.maximum(p - math.exp(eps) * q, 0).sum()) for p, q in ((one, other), (other, one)))


def _cells(*parts: tuple[float, float, float]) -> np.ndarray:
    """A mixture of Gaussians (weight, mean, deviation) over the cells between ``X``: coarser, so never easier to tell."""
    return sum(weight * np.diff(norm.cdf(X, mean, deviation), prepend=0, append=1) for weight, mean, deviation in parts)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("shape", ["geometric", "poisson", "logarithmic"])
@pytest.mark.parametrize(("mean", "noise"), [(2.0, 1.0), (10.0, 4.0), (100.0, 4.0)])
def test_the_best_of_several_noisy_scores_costs_no_more_than_its_bound(shape, mean, noise, accountant):
    def best(one: np.ndarray) -> np.ndarray:
        below = np.minimum(np.cumsum(one), 1.0)
        if shape == "poisson":
            chance = np.exp(mean * (below - 1))
            return np.concatenate([[math.exp(-mean)], np.diff(chance, prepend=math.exp(-mean))])
        if shape == "geometric":
            chance = below / mean / (1 - (1 - 1 / mean) * below)
        else:
            gammas = np.exp(-np.linspace(1e-6, 20, 2_000_001))
            gamma = gammas[np.argmin(np.abs((1 / gammas - 1) / -np.log(gammas) - mean))]
            chance = np.log1p(-(1 - gamma) * below) / math.log(gamma)
        return np.diff(chance, prepend=0.0)

    delta = 1e-5
    bound = epsilon(selection_event(gaussian_event(noise), mean, shape), delta, accountant)
    assert _delta(bound, best(_cells((1, 0, noise))), best(_cells((1, 1, noise)))) <= delta


def test_the_best_of_a_geometric_number_of_pure_releases_costs_three_times_one():
    # Liu and Talwar 2019: a geometric number of runs costs at most 3 epsilon.
    event = selection_event(pure_event(0.5), 1000, "geometric")
    for accountant in ACCOUNTANTS:
        assert epsilon(event, 1e-12, accountant) == pytest.approx(1.5, rel=0.02)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("noise", [0.7, 2.0, 5.0])
@pytest.mark.parametrize(("patients", "sample"), [(3, 1), (4, 3), (20, 1)])
def test_a_sample_without_replacement_costs_no_more_than_its_bound(patients, sample, noise, accountant):
    event = without_replacement_event(patients, sample, noise)
    rate, delta = sample / patients, 1e-4
    for rest in (-sample, -(sample - 1) / 2, 0.0):  # what the others of the sample add

        def of(patient: float, away: float, rest: float = rest) -> np.ndarray:
            return _cells((rate, rest + patient, noise), (1 - rate, rest + away, noise))

        replaced = epsilon(event, delta, accountant, "replace-one")
        for away in (-1.0, 0.0, 1.0):
            assert _delta(replaced, of(1.0, away), of(-1.0, away)) <= delta
        removed = epsilon(event, delta, accountant)
        assert _delta(removed, of(1.0, -1.0), _cells((1, rest - 1.0, noise))) <= delta


def test_one_patient_more_without_replacement_is_exact():
    event, delta = without_replacement_event(4, 1, 2.0), 1e-4
    pair = _cells((0.25, 1, 2.0), (0.75, -1, 2.0)), _cells((1, -1, 2.0))
    found = epsilon(event, delta)
    assert _delta(found, *pair) <= delta < _delta(0.99 * found, *pair)


@pytest.mark.parametrize("sensitivity", [1, 3])
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_a_discrete_gaussian_costs_no_more_than_its_bound_for_any_smaller_change(sensitivity, relation):
    noise, delta = 1.5, 1e-5
    x = np.arange(-200, 201)
    mass = np.exp(-(x**2) / (2 * (noise * sensitivity) ** 2))
    mass /= mass.sum()
    event = discrete_gaussian_event(noise, sensitivity)
    for accountant in ACCOUNTANTS:
        bound = epsilon(event, delta, accountant, relation)
        for change in range(1, sensitivity * (2 if relation == "replace-one" else 1) + 1):
            assert _delta(bound, mass[change:], mass[:-change]) <= delta * (1 + 1e-9)


@pytest.mark.parametrize(("rate", "noise"), [(1 / 6000, 0.5), (0.1, 1.0), (0.5, 300.0)])
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_a_sampled_gaussian_has_the_librarys_losses_and_no_more_than_all_probability(rate, noise, relation):
    one = compose_events(merge_events(dpsgd_event(rate, noise, 1)), relation, 1e-4)
    neighbours = {"add-remove": "ADD_OR_REMOVE_ONE", "replace-one": "REPLACE_ONE"}[relation]
    library = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, neighboring_relation=dpa.NeighboringRelation[neighbours]
    )
    for eps in (-3.0, -0.1, -1e-3, 0.0, 1e-3, 0.1, 3.0):
        assert one.get_delta_for_epsilon(eps) == pytest.approx(library.get_delta_for_epsilon(eps), rel=1e-6, abs=1e-7)
    assert one.get_delta_for_epsilon(-50.0) == pytest.approx(1.0, abs=1e-10)  # the library's: up to 4e-8 too much


@pytest.mark.parametrize("rho", [0.005, 0.5, 8.0])
def test_the_worst_distribution_of_a_renyi_bound_is_worse_than_any_with_it(rho):
    mu = math.sqrt(2 * rho)  # a Gaussian has that rho
    alone = compose_events(merge_events(zcdp_event(rho)), "add-remove", 0.002)
    beside = compose_events(
        merge_events(dpa.ComposedDpEvent([zcdp_event(rho), gaussian_event(1 / mu)])), "add-remove", 0.002
    )
    for eps in np.linspace(-2 * mu, 6 * mu, 25):
        assert alone.get_delta_for_epsilon(float(eps)) >= gdp_delta(mu, eps) - 1e-12
        assert beside.get_delta_for_epsilon(float(eps)) >= gdp_delta(math.sqrt(2) * mu, eps) - 1e-12


@pytest.mark.parametrize(("eps", "count", "delta"), [(0.1, 1000, 1e-15), (0.01, 4095, 1e-10)])
def test_rounding_in_composing_never_takes_from_a_tiny_delta(eps: float, count: int, delta: float) -> None:
    """The Fourier transforms' own error was once worth 3 % of epsilon at delta 1e-15."""
    event = dpa.SelfComposedDpEvent(pure_event(eps), count)
    assert epsilon(event, delta) >= optimal(eps, 0.0, count, delta)
    assert epsilon(event, delta, quick=True) >= optimal(eps, 0.0, count, delta)


def without_rounding(
    distribution: privacy_loss_distribution.PrivacyLossDistribution,
) -> privacy_loss_distribution.PrivacyLossDistribution:
    """The same losses without the negative probabilities that transforms round to, which no epsilon may subtract."""
    pmfs = (distribution._pmf_remove.to_dense_pmf(), distribution._pmf_add.to_dense_pmf())
    return privacy_loss_distribution.PrivacyLossDistribution(
        *(
            DensePLDPmf(p._discretization, p._lower_loss, np.maximum(p._probs, 0.0), p._infinity_mass, True)
            for p in pmfs
        )
    )


@settings(max_examples=60, deadline=None)
@given(
    noise=st.floats(0.3, 30.0), rate=st.sampled_from([1.0, 0.5, 0.05, 1e-3]), count=st.integers(1, 400),
    exponent=st.floats(-14.0, -1.0), relation=st.sampled_from(RELATIONS),
)  # fmt: skip
def test_the_closed_form_of_epsilon_is_what_dp_accountings_walk_over_the_grid_gives(
    noise: float, rate: float, count: int, exponent: float, relation: Relation
) -> None:
    event = dpa.GaussianDpEvent(noise) if rate == 1.0 else dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise))
    distribution = compose_events(((event, count),), relation, 0.01 * max(1.0, count**0.5 / noise))
    delta = 10.0**exponent
    least = _epsilon_of(distribution, delta)
    # Beyond, the walk divides by what is no longer a number; below, transforms' rounding, which we do not subtract, shows.
    if least < 500 and delta > 1e-9:
        assert least == pytest.approx(without_rounding(distribution).get_epsilon_for_delta(delta), rel=1e-6, abs=1e-8)
        assert least >= distribution.get_epsilon_for_delta(delta) * (1 - 1e-6) - 1e-8
    assert distribution.get_delta_for_epsilon(least) <= delta


@settings(max_examples=200, deadline=None)
@given(
    lowest=st.integers(-40, 40), interval=st.sampled_from([0.001, 0.1, 3.0, 40.0]), delta=st.floats(1e-12, 0.9),
    weights=st.lists(st.sampled_from([0.0, 1e-9, 1e-3, 1.0, 5.0]), min_size=1, max_size=60),
    infinity=st.sampled_from([0.0, 1e-6, 0.3]),
)  # fmt: skip
def test_whatever_the_losses_the_epsilon_bounds_delta_and_hardly_less_would(
    lowest: int, interval: float, delta: float, weights: list[float], infinity: float
) -> None:
    total = sum(weights) or 1.0
    probabilities = np.array(weights) / total * (1 - infinity) if sum(weights) else np.zeros(len(weights))
    losses = privacy_loss_distribution.PrivacyLossDistribution(
        DensePLDPmf(interval, lowest, probabilities, infinity, True)
    )
    epsilon = _epsilon_of(losses, delta)
    if math.isinf(epsilon):
        assert infinity > delta
        return
    assert losses.get_delta_for_epsilon(epsilon) <= delta * (1 + 1e-9) + 1e-15
    # A gap of more than 500 in the losses is bounded from above, not solved.
    if epsilon > 1e-6 and interval * len(weights) < 500:
        assert losses.get_delta_for_epsilon(epsilon * (1 - 1e-6) - 1e-9) > delta * (1 - 1e-9) - 1e-15
