"""Every kind of event that the ledger takes: golden values, both relations, JSON, and bounds held against each other."""

from __future__ import annotations

import json
import math

import dp_accounting as dpa
import numpy as np
import pytest

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import dpsgd_event, epsilon, event_from_json, event_to_json, gaussian_event
from polyclinic.privacy.events import (
    ApproximateDpEvent,
    approximate_event,
    discrete_gaussian_event,
    merge_events,
    pure_event,
    selection_event,
    without_replacement_event,
    zcdp_event,
)

NEW = {
    "pure": pure_event(0.3),
    "approximate": approximate_event(0.3, 1e-8),
    "discrete": discrete_gaussian_event(3.0, 2),
    "zcdp": zcdp_event(0.05),
    "drawn": without_replacement_event(1000, 50, 4.0),
    "selected": selection_event(dpa.ComposedDpEvent([gaussian_event(4.0), dpsgd_event(0.1, 2.0, 3)]), 10, "poisson"),
}
OLD = [
    dpa.NoOpDpEvent(),
    dpa.NonPrivateDpEvent(),
    gaussian_event(1.25, 7),
    dpsgd_event(1 / 3, 0.1 + 0.2, 12),
    dpa.LaplaceDpEvent(2.0),
    dpa.RandomizedResponseDpEvent(0.25, 4),
    dpa.ComposedDpEvent([dpsgd_event(0.1, 1.0, 2), dpa.ComposedDpEvent([gaussian_event(3.0)])]),
]

both_relations = pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
every_new = pytest.mark.parametrize("event", NEW.values(), ids=NEW)


@pytest.mark.parametrize("event", [*OLD, *NEW.values()], ids=repr)
def test_events_survive_json_exactly(event):
    text = json.dumps(event_to_json(event), allow_nan=False)
    assert event_from_json(json.loads(text)) == event


@every_new
def test_merging_counts_events_wherever_they_stand(event):
    nested = dpa.SelfComposedDpEvent(dpa.ComposedDpEvent([gaussian_event(4.0), event, event]), 2)
    flat = dpa.ComposedDpEvent([event, gaussian_event(4.0, 2), dpa.SelfComposedDpEvent(event, 3)])
    assert merge_events(nested) == merge_events(flat)


@every_new
@both_relations
def test_more_runs_cost_more_and_quick_is_an_upper_bound(event, relation):
    several = dpa.ComposedDpEvent([dpa.SelfComposedDpEvent(event, 4), gaussian_event(6.0)])
    exact = epsilon(several, 1e-5, "pld", relation)
    assert epsilon(event, 1e-5, "pld", relation) < exact
    assert exact * (1 - 1e-9) <= epsilon(several, 1e-5, "pld", relation, quick=True) <= exact * 1.01
    assert exact <= epsilon(several, 1e-5, "rdp", relation)


@every_new
def test_a_replaced_patient_costs_more_than_one_added_or_removed(event):
    for accountant in ("pld", "rdp"):
        assert epsilon(event, 1e-5, accountant) < epsilon(event, 1e-5, accountant, "replace-one")


@pytest.mark.parametrize(("sigma", "expected"), [(1.0, 4.430238), (2.0, 2.011340), (5.0, 0.726643)])
def test_discrete_gaussian_reproduces_golden_epsilon_and_an_own_sum(sigma, expected):
    event = discrete_gaussian_event(sigma)
    assert epsilon(event, 1e-5) == pytest.approx(expected, rel=1e-3)
    x = np.arange(-200, 201)
    mass = np.exp(-(x**2) / (2 * sigma**2))
    mass /= mass.sum()
    found = epsilon(event, 1e-5)
    assert np.maximum(mass[1:] - math.exp(found) * mass[:-1], 0).sum() <= 1e-5 * (1 + 1e-9)
    assert np.maximum(mass[1:] - math.exp(found * 0.999) * mass[:-1], 0).sum() > 1e-5


def test_discrete_gaussian_nears_the_gaussian_on_a_fine_grid():
    assert epsilon(discrete_gaussian_event(2.0, 100), 1e-5) == pytest.approx(
        epsilon(gaussian_event(2.0), 1e-5), rel=2e-3
    )


def test_pure_epsilon_composes_to_the_closed_sum():
    hundred = dpa.SelfComposedDpEvent(pure_event(0.1), 100)
    assert epsilon(hundred, 1e-5) == pytest.approx(4.306791, rel=1e-4)
    assert epsilon(hundred, 1e-5, "rdp") == pytest.approx(4.615358, rel=1e-3)
    assert epsilon(pure_event(0.7), 1e-12) == pytest.approx(0.7, rel=1e-3)
    assert epsilon(pure_event(0.7), 1e-12, "pld", "replace-one") == pytest.approx(1.4, rel=1e-3)
    assert merge_events(pure_event(0.0)) == ()


@pytest.mark.parametrize("eps", [1e-9, 1e-3, 0.5, 5.0, 300.0])
def test_renyi_bound_of_a_pure_event_is_that_of_randomised_response(eps):
    lie = 2 / (1 + math.exp(eps)) if eps < 40 else 2 * math.exp(-eps)
    response = dpa.RandomizedResponseDpEvent(lie, 2)
    if 1e-3 <= eps <= 5:
        expected = epsilon(dpa.SelfComposedDpEvent(response, 10), 1e-5, "rdp", "replace-one")
        assert epsilon(dpa.SelfComposedDpEvent(pure_event(eps), 10), 1e-5, "rdp") == pytest.approx(expected, rel=1e-9)
    assert epsilon(pure_event(eps), 1e-12, "rdp") <= eps * (1 + 1e-2) + 0.02


def test_deltas_of_their_own_are_taken_from_the_target():
    hundred = dpa.SelfComposedDpEvent(approximate_event(0.1, 5e-8), 100)
    pure = dpa.SelfComposedDpEvent(pure_event(0.1), 100)
    left = 1 - (1 - 1e-5) / (1 - 5e-8) ** 100
    for accountant in ("pld", "rdp"):
        assert epsilon(hundred, 1e-5, accountant) == pytest.approx(epsilon(pure, left, accountant), rel=1e-3)
        assert epsilon(dpa.SelfComposedDpEvent(approximate_event(0.1, 1e-6), 100), 1e-5, accountant) == math.inf
    # Group privacy for two: delta grows by 1 + e^epsilon.
    assert epsilon(approximate_event(1.0, 1e-6), 3.71e-6, "pld", "replace-one") == math.inf
    assert epsilon(approximate_event(1.0, 1e-6), 3.73e-6, "pld", "replace-one") == pytest.approx(2.0, rel=1e-2)
    assert epsilon(ApproximateDpEvent(0.1, 1.0), 1e-5) == math.inf


def test_zcdp_costs_its_renyi_bound_and_four_times_rho_for_a_replaced_patient():
    for accountant in ("pld", "rdp"):
        assert epsilon(zcdp_event(0.5), 1e-5, accountant) == pytest.approx(4.728507, rel=1e-3)
        replaced = epsilon(zcdp_event(0.5), 1e-5, accountant, "replace-one")
        assert replaced == pytest.approx(epsilon(zcdp_event(2.0), 1e-5, accountant), rel=1e-3)
    assert epsilon(zcdp_event(0.5), 1e-5) > epsilon(gaussian_event(1.0), 1e-5)  # one mechanism of that rho


def test_fault_24_sampling_without_replacement_takes_noise_relative_to_the_clip_norm():
    # Given 4 in place of 2, the library answers 1.559.
    steps = dpa.SelfComposedDpEvent(without_replacement_event(1000, 50, 4.0), 200)
    assert epsilon(steps, 1e-5, "rdp", "replace-one") == pytest.approx(3.614634, rel=1e-5)
    assert epsilon(steps, 1e-5, "pld", "replace-one") <= 3.614634 * (1 + 1e-5)
    # One patient more or less: as a Poisson sample whose member moves the sum by twice the clip norm.
    for accountant in ("pld", "rdp"):
        assert epsilon(steps, 1e-5, accountant) == pytest.approx(
            epsilon(dpsgd_event(0.05, 2.0, 200), 1e-5, accountant), rel=1e-3
        )
    whole = without_replacement_event(50, 50, 4.0)
    assert merge_events(whole) == merge_events(gaussian_event(4.0))


SELECTED = [
    ("geometric", 10, 2.271623),
    ("poisson", 10, 2.501113),
    ("logarithmic", 10, 1.902106),
    ("geometric", 100, 2.824108),
]


@pytest.mark.parametrize(("shape", "mean", "expected"), SELECTED)
def test_selection_reproduces_golden_epsilon_and_the_library(shape, mean, expected):
    run = gaussian_event(4.0)
    for accountant in ("pld", "rdp"):
        assert epsilon(selection_event(run, mean, shape), 1e-6, accountant) == pytest.approx(expected, rel=1e-4)
    shapes = {"geometric": 1.0, "poisson": math.inf, "logarithmic": 0.0}
    library = dpa.rdp.RdpAccountant()
    library.compose(dpa.dp_event.RepeatAndSelectDpEvent(run, float(mean), shapes[shape]))
    assert epsilon(selection_event(run, mean, shape), 1e-6, "rdp") <= library.get_epsilon(1e-6) * (1 + 1e-6)
    assert epsilon(selection_event(run, mean, shape), 1e-6) > epsilon(run, 1e-6)


def test_selection_among_no_releases_costs_nothing_and_without_noise_everything():
    assert epsilon(selection_event(dpa.NoOpDpEvent(), 5, "geometric"), 1e-5) == 0.0
    assert epsilon(selection_event(dpa.NonPrivateDpEvent(), 5, "geometric"), 1e-5) == math.inf
    assert epsilon(selection_event(gaussian_event(2.0), 1, "logarithmic"), 1e-5) < math.inf


def test_a_bound_by_renyi_divergence_composes_with_privacy_losses_better_than_by_halves():
    training, chosen = dpsgd_event(0.1, 1.0, 100), selection_event(gaussian_event(10.0), 10, "geometric")
    together = epsilon(dpa.ComposedDpEvent([training, chosen]), 1e-5)
    assert epsilon(training, 1e-5) < together < epsilon(training, 5e-6) + epsilon(chosen, 5e-6)
    assert together < epsilon(dpa.ComposedDpEvent([training, chosen]), 1e-5, "rdp")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: pure_event(-0.1), "epsilon"), (lambda: pure_event(math.nan), "epsilon"),
        (lambda: pure_event(301.0), "epsilon"), (lambda: approximate_event(1.0, 1.5), "delta"),
        (lambda: discrete_gaussian_event(0.0), "noise_multiplier"),
        (lambda: discrete_gaussian_event(1.0, 0), "sensitivity"), (lambda: discrete_gaussian_event(1.0, 1.5), "sensitivity"),
        (lambda: zcdp_event(-1.0), "rho"), (lambda: zcdp_event(math.inf), "rho"),
        (lambda: without_replacement_event(10, 11, 1.0), "sample"), (lambda: without_replacement_event(10, 0, 1.0), "sample"),
        (lambda: without_replacement_event(10, 5, 0.0), "noise_multiplier"),
        (lambda: selection_event(gaussian_event(1.0), 0.5, "poisson"), "mean"),
        (lambda: selection_event(gaussian_event(1.0), 10, "poison"), "Did you mean 'poisson'"),
        (lambda: selection_event(approximate_event(1.0, 1e-6), 10, "poisson"), "delta of its own"),
    ],
)  # fmt: skip
def test_impossible_values_are_refused_by_name(make, named):
    with pytest.raises(ConfigError, match=named):
        make()


@pytest.mark.parametrize(
    "event",
    [
        dpa.UnsupportedDpEvent(),
        dpa.ZCDpEvent(0.1, 0.1),
        dpa.ZCDpEvent(-0.1),
        dpa.PoissonSampledDpEvent(0.1, dpa.LaplaceDpEvent(1.0)),
        dpa.SampledWithReplacementDpEvent(100, 10, dpa.GaussianDpEvent(1.0)),
        dpa.SampledWithoutReplacementDpEvent(10, 100, dpa.GaussianDpEvent(1.0)),
        dpa.dp_event.RepeatAndSelectDpEvent(dpa.GaussianDpEvent(1.0), 10.0, 1.0),
        dpa.GaussianDpEvent(-1.0),
        dpa.PoissonSampledDpEvent(1.2, dpa.GaussianDpEvent(1.0)),
        dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(1.0), -2),
    ],
)
def test_events_that_cannot_be_vouched_for_are_refused(event):
    with pytest.raises(ConfigError):
        epsilon(event, 1e-5)


@pytest.mark.parametrize(
    "value",
    [
        {"type": "ZCDpEvent", "rho": 1.0, "xi": 0.5},
        {"type": "UnsupportedDpEvent"},
        {"type": "ApproximateDpEvent", "epsilon": -1.0, "delta": 0.0},
        {"type": "SelectionDpEvent", "event": {"type": "NoOpDpEvent"}, "mean": 10, "shape": "uniform"},
        {"type": "os.system"},
        {"type": ["GaussianDpEvent"]},
        {},
        [],
        {"type": "GaussianDpEvent"},
        {"type": "GaussianDpEvent", "noise_multiplier": 1.0, "extra": 1},
        {"type": "GaussianDpEvent", "noise_multiplier": -1.0},
        {"type": "GaussianDpEvent", "noise_multiplier": math.nan},
        {"type": "GaussianDpEvent", "noise_multiplier": math.inf},
        {"type": "GaussianDpEvent", "noise_multiplier": "1"},
        {"type": "GaussianDpEvent", "noise_multiplier": True},
        {"type": "SelfComposedDpEvent", "event": {"type": "NoOpDpEvent"}, "count": 1.5},
        {"type": "SelfComposedDpEvent", "event": 3, "count": 1},
        {"type": "ComposedDpEvent", "events": {"type": "NoOpDpEvent"}},
        {"type": "PoissonSampledDpEvent", "sampling_probability": 2.0, "event": {"type": "NoOpDpEvent"}},
    ],
)
def test_json_of_unknown_or_impossible_events_is_refused(value):
    with pytest.raises(ConfigError):
        event_from_json(value)


def test_unknown_event_kinds_cannot_be_written():
    with pytest.raises(ConfigError, match="unknown"):
        event_to_json(dpa.UnsupportedDpEvent())
