"""The stated and the true epsilon of published GANs, against values worked out elsewhere and against each other."""

import math

import pytest

from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.accounting.comparison import shown_epsilon
from polyclinic.privacy.events import dpsgd_event
from polyclinic_studies.published_games.claims import (
    MNIST_RATE,
    MNIST_STEPS,
    TRIAL_NOISE,
    TRIAL_PLD,
    TRIAL_PLD_REPLACED,
    TRIAL_PRV,
    TRIAL_RATE,
    TRIAL_STEPS,
    composed_epsilon,
    honest_multiplier,
    published,
    stated_multiplier,
)


def by_limit_theorem(noise: float, rate: float, steps: int) -> float:
    """Epsilon at delta 1e-5 if the sum of privacy losses is normal, for noise so small that a sampled record shows."""
    drawn, other = math.log(rate) + 1 / (2 * noise**2), math.log1p(-rate)
    mean = rate * drawn + (1 - rate) * other
    variance = rate * (drawn**2 + 1 / noise**2) + (1 - rate) * other**2 - mean**2
    return steps * mean + 4.2649 * math.sqrt(steps * variance)


def test_dpgans_noise_is_what_its_theorem_states() -> None:
    assert stated_multiplier(5.0) == pytest.approx(0.026, abs=5e-4)
    assert stated_multiplier(10.0) == pytest.approx(stated_multiplier(5.0) / 2)


@pytest.mark.parametrize(("target", "noise"), [(1.0, 6.9), (5.0, 1.75), (10.0, 1.11), (20.0, 0.80)])
def test_the_noise_that_its_claim_would_need(target: float, noise: float) -> None:
    assert honest_multiplier(target) == pytest.approx(noise, rel=0.01)


@pytest.mark.parametrize("claimed", [5.0, 10.0, 20.0])
def test_the_bound_near_order_one_is_that_of_the_sum_of_privacy_losses(claimed: float) -> None:
    noise = stated_multiplier(claimed)
    near, coarse = composed_epsilon(noise), epsilon(dpsgd_event(MNIST_RATE, noise, MNIST_STEPS), 1e-5, "rdp")
    limit = by_limit_theorem(noise, MNIST_RATE, MNIST_STEPS)
    assert 0.999 * limit <= near <= 1.02 * limit
    assert near < coarse / 10


@pytest.mark.parametrize(("rate", "steps"), [(0.01, 200), (1.0, 20)])
def test_the_bound_lies_above_a_tight_one_where_that_can_be_had(rate: float, steps: int) -> None:
    tight = epsilon(dpsgd_event(rate, 0.3, steps), 1e-5, "pld")
    assert tight <= composed_epsilon(0.3, rate, steps) <= 2.0 * tight


def test_the_table() -> None:
    rows = {(row.system, row.claimed, row.relation): row for row in published()}
    dpgan, ppgan = rows["DPGAN", 5.0, "add-remove"], rows["PPGAN", 5.0, "add-remove"]
    assert dpgan.true == pytest.approx(2.14e6, rel=0.02)
    assert dpgan.beside["rdp"] > 2.8e8
    assert ppgan.true > 100 * dpgan.true
    added, replaced = rows["AC-GAN", 2.0, "add-remove"], rows["AC-GAN", 2.0, "replace-one"]
    assert added.true < added.claimed < replaced.true
    assert added.beside["rdp"] == pytest.approx(1.597, abs=1e-3)
    assert added.beside["gdp"] == pytest.approx(1.462, abs=1e-3)
    assert all(row.true > 1e4 for row in published() if row.system != "AC-GAN")
    assert all(row.why.endswith(".") for row in published())


@pytest.mark.slow
def test_the_trials_epsilon_computed_again() -> None:
    event = dpsgd_event(TRIAL_RATE, TRIAL_NOISE, TRIAL_STEPS)
    assert epsilon(event, 1e-5, "pld") == pytest.approx(TRIAL_PLD, abs=1e-3)
    assert epsilon(event, 1e-5, "pld", "replace-one") == pytest.approx(TRIAL_PLD_REPLACED, abs=2e-3)
    assert shown_epsilon("prv", TRIAL_RATE, TRIAL_NOISE, TRIAL_STEPS, 1e-5) == pytest.approx(TRIAL_PRV, abs=1e-3)
