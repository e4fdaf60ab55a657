"""The Kalman filter: how much noise it leaves, that its prediction is exact where the model is, and its best gain."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.errors import ConfigError
from polyclinic.privacy.clipping import clipped_sum
from polyclinic.privacy.denoise import kalman_update, look_ahead, next_estimate, noise_gain, steady_gain
from polyclinic.privacy.streams import keyed_stream

WIDTH = 20_000


def test_golden_noise_gain():
    assert noise_gain(0.7) == pytest.approx(0.538462, abs=5e-7)
    assert noise_gain(1.0) == 1


@pytest.mark.parametrize("gain", [0.1, 0.4, 0.7, 1.0])
def test_the_estimate_s_noise_has_the_variance_that_the_gain_says(gain):
    noise = keyed_stream(0, "noise")
    estimate = noise.normal(WIDTH)
    for _ in range(60):
        estimate = next_estimate(estimate, noise.normal(WIDTH), gain)
    assert estimate.var() == pytest.approx(noise_gain(gain), rel=0.05)


def descend(gain: float, reach: float | None) -> tuple[float, float]:
    """Mean and variance of the last estimate's error: noisy descent on a quadratic, by DiSK or (None) a moving average."""
    noise, hessian = keyed_stream(1, "noise"), np.linspace(0.5, 1.5, WIDTH)
    x, move = np.full(WIDTH, 10.0), np.zeros(WIDTH)
    estimate = hessian * x + noise.normal(WIDTH)
    for _ in range(20):
        move = -0.1 * estimate
        x = x + move
        released = hessian * x
        if reach is not None:
            ahead, here = look_ahead(gain, reach)
            released = ahead * hessian * (x + reach * move) + here * released
        estimate = next_estimate(estimate, released + noise.normal(WIDTH), gain)
    off = estimate - hessian * x
    return abs(float(off.mean())), float(off.var())


@pytest.mark.parametrize("gain", [0.3, 0.7])
@pytest.mark.parametrize("reach", [0.5, 1.0, "one gradient"])
def test_disk_has_no_lag_where_the_gradient_is_linear_and_a_moving_average_has(gain, reach):
    lag, variance = descend(gain, (1 - gain) / gain if reach == "one gradient" else reach)
    assert lag < 5 * math.sqrt(noise_gain(gain) / WIDTH)
    assert variance == pytest.approx(noise_gain(gain), rel=0.05)
    assert descend(gain, None)[0] > 10 * lag


def test_a_carried_prediction_does_the_same_as_one_in_the_release():
    rng, gain = np.random.default_rng(0), 0.6
    estimate, gradient, moved = rng.normal(size=(3, 5))
    inside = next_estimate(estimate, gradient + (1 - gain) / gain * moved, gain)
    np.testing.assert_allclose(next_estimate(estimate, gradient, gain, moved), inside, rtol=1e-12)


def test_tensors_are_filtered_as_arrays_are():
    estimate, released, carried = np.random.default_rng(0).normal(size=(3, 7))
    expected = next_estimate(estimate, released, 0.7, carried)
    ours = next_estimate(torch.from_numpy(estimate), torch.from_numpy(released), 0.7, torch.from_numpy(carried))
    assert isinstance(ours, torch.Tensor)
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-15)


@given(st.floats(0.05, 0.95), st.floats(0.05, 20))
def test_the_weights_of_a_constant_gradient_add_up_to_it(gain, reach):
    ahead, here = look_ahead(gain, reach)
    assert ahead + here == pytest.approx(1, rel=1e-12)
    assert look_ahead(gain, (1 - gain) / gain) == pytest.approx((1, 0), abs=1e-12)
    assert look_ahead(1.0, reach) == (0, 1)


def test_clipping_after_the_sum_keeps_the_sensitivity_and_before_it_does_not():
    ahead, here = look_ahead(0.7, 0.2)
    at_ahead, at_here = torch.tensor([[3.0, 0.0]]), torch.tensor([[-3.0, 0.0]])
    after = clipped_sum(ahead * at_ahead + here * at_here, 1.0).total.norm()
    before = (ahead * clipped_sum(at_ahead, 1.0).total + here * clipped_sum(at_here, 1.0).total).norm()
    assert after <= 1 and before > 3


@given(st.floats(1e-2, 1e2), st.floats(1e-2, 1e1), st.floats(0, 1e3))
def test_the_riccati_recursion_tends_to_the_steady_gain(drift, noise, variance):
    for _ in range(1000):
        gain, variance = kalman_update(variance, drift, noise)
    assert gain == pytest.approx(steady_gain(drift, noise), rel=1e-6)


@pytest.mark.parametrize("drift", [0.01, 0.3, 2.0])
def test_no_other_gain_leaves_a_smaller_error(drift):
    def settled(gain: float) -> float:
        # e' = (1 - gain) (e + drift) + gain noise
        return ((1 - gain) ** 2 * drift + gain**2) / (1 - (1 - gain) ** 2)

    best = steady_gain(drift, 1.0)
    assert all(settled(best) <= settled(gain) for gain in np.linspace(0.01, 1, 400))
    assert kalman_update(settled(best), drift, 1.0) == pytest.approx((best, settled(best)), rel=1e-12)


def test_without_drift_the_filter_is_the_mean_of_all_releases():
    variance = 2.0
    for releases in range(2, 10):
        gain, variance = kalman_update(variance, 0.0, 2.0)
        assert gain == pytest.approx(1 / releases) and variance == pytest.approx(2 / releases)
    assert steady_gain(0.0, 2.0) == 0


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: next_estimate(np.ones(1), np.ones(1), 0.0), "gain"),
        (lambda: noise_gain(1.5), "gain"),
        (lambda: noise_gain(math.nan), "gain"),
        (lambda: look_ahead(0.5, 0.0), "reach"),
        (lambda: look_ahead(0.5, math.inf), "reach"),
        (lambda: kalman_update(-1.0, 1.0, 1.0), "variance"),
        (lambda: kalman_update(1.0, math.inf, 1.0), "drift"),
        (lambda: steady_gain(-1.0, 1.0), "drift"),
        (lambda: steady_gain(1.0, 0.0), "noise"),
    ],
)
def test_impossible_values_are_refused(call, field):
    with pytest.raises(ConfigError, match=f"^{field} must"):
        call()
