"""The convex mechanisms: published figures, exact privacy by quadrature, bounded rows, the noise's law."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.special import expit
from scipy.stats import norm

from polyclinic.errors import ConfigError
from polyclinic.privacy import perturbation
from polyclinic.privacy.accounting import calibrate_noise_multiplier, epsilon
from polyclinic.privacy.events import event_from_json, event_to_json, merge_events
from polyclinic.privacy.ledger import Ledger, Terms
from polyclinic.privacy.ledger.statements import statements
from polyclinic.privacy.perturbation import output_event
from polyclinic.privacy.streams import keyed_stream, system_stream


def cms11_terms(patients: int, strength: float, epsilon: float, curvature: float = 0.25) -> tuple[float, float]:
    """(eps', Delta) of Chaudhuri, Monteleoni and Sarwate 2011, objective perturbation as published; for comparison.

    A mean of losses with rows in the unit ball, ``strength`` / 2 |w|^2 beside it, and Gamma noise of rate eps' / 2; their
    neighbours differ by one patient replaced. ``curvature`` bounds the loss's second derivative. ``Delta`` is added to
    the strength.
    """
    share = curvature / (patients * strength)
    left = epsilon - math.log(1 + 2 * share + share**2)
    if left > 0:
        return left, 0.0
    return epsilon / 2, curvature / (patients * math.expm1(epsilon / 4)) - strength


def kst12_terms(gradient: float, eigenvalue: float, epsilon: float, delta: float) -> tuple[float, float]:
    """(sigma, least strength) of Kifer, Smith and Thakurta 2012, objective perturbation as published; for comparison.

    A sum of losses with gradients of at most ``gradient`` and Hessians of at most ``eigenvalue`` and rank one; Gaussian noise.
    """
    sigma = gradient * math.sqrt(8 * math.log(2 / delta) + 4 * epsilon) / epsilon
    return sigma, 2 * eigenvalue / epsilon


def test_the_published_calibrations_have_their_known_values() -> None:
    assert cms11_terms(1000, 0.01, 1.0) == pytest.approx((0.950615, 0.0), abs=1e-6)
    assert cms11_terms(1000, 0.01, 0.02) == pytest.approx((0.01, 0.039875), abs=1e-6)
    assert kst12_terms(1.0, 0.25, 1.0, 1e-5) == pytest.approx((10.082092, 0.5), abs=1e-6)


@pytest.mark.parametrize(("eps", "delta"), [(0.1, 1e-5), (1.0, 1e-5), (3.0, 1e-3), (8.0, 1e-6)])
def test_the_noise_is_far_below_the_published_for_the_same_guarantee(eps: float, delta: float) -> None:
    needed = calibrate_noise_multiplier(eps, delta, lambda z: perturbation.objective_event(z, "gaussian", 0.9 * delta))
    published, _ = kst12_terms(1.0, 0.25, eps, delta)
    assert needed < 0.6 * published


def test_noise_that_alone_costs_nothing_leaves_a_finite_strength() -> None:
    share = perturbation.determinant_epsilon(1e6, "gaussian", 1e-3)
    stated = perturbation.objective_event(1e6, "gaussian", 1e-3).events[0]
    assert 0 < share <= stated.epsilon < 0.01
    assert perturbation.least_strength(1.0, share) < 1e4


def test_the_least_strength_is_the_published_one_where_the_share_is_the_same() -> None:
    _, published = kst12_terms(1.0, 0.25, 0.02, 1e-5)
    assert perturbation.least_strength(1.0, 0.01) == pytest.approx(published, rel=0.01)


def _gradient_and_curvature(rows: list[float], strength: float, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    v = np.array(rows)[:, None]
    pull = expit(-v * w)
    return strength * w - (pull * v).sum(axis=0), strength + (pull * (1 - pull) * v**2).sum(axis=0)


def _log_density(rows: list[float], strength: float, w: np.ndarray, noise: float, kind: str) -> np.ndarray:
    """Of the minimiser of the perturbed objective in one dimension: w is reached by exactly one linear term."""
    gradient, curvature = _gradient_and_curvature(rows, strength, w)
    law = -(gradient**2) / (2 * noise**2) - math.log(math.sqrt(2 * math.pi)) if kind == "gaussian" else None
    law = -np.abs(gradient) / noise - math.log(2) if law is None else law
    return np.asarray(law - math.log(noise) + np.log(curvature))


ROWS = st.lists(st.floats(-1, 1), max_size=6)


@given(ROWS, st.sampled_from([-1.0, 1.0, 0.6]), st.sampled_from([0.4, 1.0, 4.0]), st.sampled_from([1e-5, 1e-2]))
@settings(max_examples=25)
def test_objective_perturbation_keeps_its_delta_exactly(
    rows: list[float], v: float, noise: float, delta: float
) -> None:
    share = perturbation.determinant_epsilon(noise, "gaussian", delta)
    eps = 1.1 * share / 0.1
    assert epsilon(perturbation.objective_event(noise, "gaussian", delta), 2 * delta) <= eps * 1.02
    strength = perturbation.least_strength(1.0, share)
    edge = (12 * noise + len(rows) + 1) / strength
    w = np.linspace(-edge, edge, 40_001)
    one, other = (_log_density(data, strength, w, noise, "gaussian") for data in (rows, [*rows, v]))
    assert trapezoid(np.exp(one), w) == pytest.approx(1.0, abs=1e-6)
    for p, q in ((one, other), (other, one)):
        assert trapezoid(np.maximum(np.exp(p) - np.exp(eps + q), 0.0), w) <= delta * (1 + 1e-6) + 1e-12


@given(ROWS, st.floats(-1, 1), st.sampled_from([0.2, 1.0, 5.0]))
@settings(max_examples=25)
def test_objective_perturbation_with_gamma_noise_keeps_a_pure_epsilon(
    rows: list[float], v: float, noise: float
) -> None:
    share = perturbation.determinant_epsilon(noise, "gamma", 0.0)
    strength = perturbation.least_strength(1.0, share)
    w = np.linspace(-1, 1, 40_001) * (40 * noise + len(rows) + 1) / strength
    one, other = (_log_density(data, strength, w, noise, "gamma") for data in (rows, [*rows, v]))
    assert np.abs(one - other).max() <= 1 / noise + share + 1e-9
    (event, _), *rest = merge_events(perturbation.objective_event(noise, "gamma", 0.0))
    assert not rest and event.delta == 0 and event.epsilon >= 1 / noise + share


def _posterior(rows: list[float], strength: float, inverse: float, w: np.ndarray) -> np.ndarray:
    """Log density of the exponential mechanism in one dimension, on the grid ``w``."""
    loss = np.logaddexp(0.0, -np.array(rows)[:, None] * w).sum(axis=0) + strength / 2 * w**2
    return np.asarray(
        -inverse * loss - np.log(trapezoid(np.exp(-inverse * (loss - loss.min())), w)) + inverse * loss.min()
    )


@given(ROWS, st.sampled_from([-1.0, 1.0, 0.6]), st.sampled_from([0.3, 1.0, 4.0]), st.sampled_from([0.02, 0.5, 20.0]))
@settings(max_examples=25)
def test_the_exponential_mechanism_never_passes_the_gaussians_delta(
    rows: list[float], v: float, noise: float, strength: float
) -> None:
    inverse = perturbation.inverse_temperature(perturbation.BoundedRows(np.zeros((0, 1)), 1.0), strength, noise)
    edge = (len(rows) + 1) / strength + 14 / math.sqrt(inverse * strength)
    w = np.linspace(-edge, edge, 8_001)
    one, other = (_posterior(data, strength, inverse, w) for data in (rows, [*rows, v]))
    for eps in (0.0, 0.3 / noise, 1 / noise, 2 / noise):
        most = norm.cdf(0.5 / noise - eps * noise) - math.exp(eps) * norm.cdf(-0.5 / noise - eps * noise)
        for p, q in ((one, other), (other, one)):
            assert trapezoid(np.maximum(np.exp(p) - np.exp(eps + q), 0.0), w) <= most + 1e-7


def test_the_exponential_mechanism_nearly_reaches_the_gaussians_delta() -> None:
    """An only patient whose loss is all but linear where the draw falls: with a tenth less noise the bound is passed."""
    noise, strength = 1.0, 0.05
    inverse = perturbation.inverse_temperature(perturbation.BoundedRows(np.zeros((0, 1)), 1.0), strength, noise)
    w = np.linspace(-600, 600, 400_001)
    tilt = -inverse * 15 * w  # what the others' losses pull, linear too
    both = [
        np.exp(law + tilt) for law in (_posterior([], strength, inverse, w), _posterior([1.0], strength, inverse, w))
    ]
    one, other = (law / trapezoid(law, w) for law in both)
    found = max(trapezoid(np.maximum(p - math.e * q, 0.0), w) for p, q in ((one, other), (other, one)))
    most = {z: norm.cdf(0.5 / z - z) - math.e * norm.cdf(-0.5 / z - z) for z in (noise, 1.1 * noise)}
    assert most[1.1 * noise] < found <= most[noise] + 1e-7


def _smooth_median(x: list[float], strength: float, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and curvature of sum sqrt((w - x)^2 + width^2) + strength / 2 w^2: distances, each rounded off at its value."""
    apart = w - np.array(x)[:, None]
    length = np.hypot(apart, WIDTH)
    return (apart / length).sum(axis=0) + strength * w, (WIDTH**2 / length**3).sum(axis=0) + strength


WIDTH = 1e-3


def test_without_a_strong_regulariser_objective_perturbation_tells_the_median() -> None:
    """{0, 100} against {0, 101}: the objective is flat between two values and has a corner at each.

    Whatever the size of the random linear term, the minimiser lies at one of the values, to be read off. A regulariser as
    strong as the corner's curvature asks for moves the minimiser alike for both, and so bounds what is told.
    """
    with_100, with_101 = [0.0, 100.0], [0.0, 101.0]
    edges = np.array([99.95, 100.05])
    # The minimiser lies between the edges where minus the linear term lies between the gradients there.
    for noise in (0.5, 5.0):
        near = [float(np.diff(norm.cdf(_smooth_median(x, 0.0, edges)[0] / noise))[0]) for x in (with_100, with_101)]
        assert near[0] > 0.15 and near[1] < 1e-6
    w = np.concatenate([at + np.linspace(-0.01, 0.01, 2001) for at in (0.0, 100.0, 101.0)])
    factor = {
        strength: np.abs(np.log(np.divide(*(_smooth_median(x, strength, w)[1] for x in (with_100, with_101))))).max()
        for strength in (0.0, 1 / WIDTH / math.expm1(0.5))
    }
    weak, strong = factor.values()
    assert weak > 18 and strong <= 0.5


def test_the_guarantee_is_not_far_from_what_a_patient_can_cause() -> None:
    """An only patient at little regularisation: a tenth of epsilon less, and delta is exceeded."""
    noise, delta = 1.0, 1e-3
    share = perturbation.determinant_epsilon(noise, "gaussian", delta)
    strength = perturbation.least_strength(1.0, share)
    w = np.linspace(-30, 30, 40_001) / strength
    one, other = (_log_density(data, strength, w, noise, "gaussian") for data in ([], [1.0]))
    for eps, holds in ((1.1 * share / 0.1, True), (0.7 * share / 0.1, False)):
        found = max(trapezoid(np.maximum(np.exp(p) - np.exp(eps + q), 0.0), w) for p, q in ((one, other), (other, one)))
        assert bool(found <= delta) is holds


@given(
    st.integers(1, 8).flatmap(lambda n: st.lists(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), min_size=n, max_size=n)),
    st.floats(1e-3, 1e3),
)  # fmt: skip
@settings(max_examples=60)
def test_no_row_is_longer_than_the_norm(x: list[list[float]], norm: float) -> None:
    rows = np.array(x)
    patient = np.arange(len(rows)) // 2
    found = perturbation.bounded_rows(rows, np.ones(len(rows)), patient, int(patient.max()) + 1, norm)
    assert (np.linalg.norm(found.rows, axis=1) <= norm * (1 + 1e-12)).all() and found.norm == norm


def test_rows_are_clipped_averaged_and_signed() -> None:
    x = np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 1.0], [1.0, 0.0]])
    found = perturbation.bounded_rows(x, np.array([1.0, 1.0, 1.0, -1.0]), np.array([0, 0, 1, 2]), 3, 1.0)
    np.testing.assert_allclose(found.rows, [[0.45, 0.6], [0.0, 0.0], [-1.0, 0.0]])
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="norm"):
            perturbation.bounded_rows(x, np.ones(4), np.arange(4), 4, bad)


def test_unit_noise_has_its_law() -> None:
    stream = keyed_stream(0, "noise")
    draws = np.stack([perturbation.unit_noise(5, "gamma", stream) for _ in range(20_000)])
    length = np.linalg.norm(draws, axis=1)
    # A Gamma length of shape 5: mean 5, variance 5; directions are uniform.
    assert length.mean() == pytest.approx(5, rel=0.01) and length.var() == pytest.approx(5, rel=0.03)
    assert np.abs((draws / length[:, None]).mean(axis=0)).max() < 0.01
    np.testing.assert_allclose(np.cov((draws / length[:, None]).T), np.eye(5) / 5, atol=0.01)
    assert perturbation.unit_noise(100_000, "gaussian", stream).std() == pytest.approx(1.0, rel=0.01)
    assert np.isfinite(perturbation.unit_noise(3, "gamma", system_stream())).all()


@pytest.mark.parametrize("kind", ["gaussian", "gamma"])
def test_events_go_through_the_ledgers_json_and_more_noise_costs_less(kind: perturbation.Kind) -> None:
    for event_of in (
        lambda z: perturbation.output_event(z, kind),
        lambda z: perturbation.objective_event(z, kind, 1e-4),
    ):
        events = [event_of(noise) for noise in (1e-3, 0.3, 1.0, 4.0, 100.0)]
        assert all(merge_events(event_from_json(event_to_json(event))) == merge_events(event) for event in events)
        spent = [epsilon(event, 1e-3) for event in events]
        assert spent == sorted(spent, reverse=True) and spent[0] > 300
    assert epsilon(perturbation.output_event(2.0, "gamma"), 1e-9) == pytest.approx(0.5, abs=1e-3)


def test_fault_33_a_pure_release_is_claimed_at_a_delta_that_floating_point_carries(tmp_path: Path) -> None:
    """Gamma noise has a pure epsilon on paper; a ledger takes it under a delta, and none below what its draws can carry."""
    with pytest.raises(ConfigError, match="delta must be at least 1e-12, got 1e-13"):
        Terms("north", 1e-13, budget=1.0)
    ledger = Ledger.open(tmp_path / "ledger.sqlite", Terms("north", 1e-12, budget=1.0))
    ledger.charge(output_event(2.0, "gamma"), "train", "run-1", 1)
    assert statements([ledger])[0].items() >= {"delta": 1e-12, "epsilon": ledger.epsilon()}.items()
    assert ledger.epsilon() == pytest.approx(0.5, rel=1e-3)
