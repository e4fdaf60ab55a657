"""Banded noise: the factorisation has the right factor, repeated participation is orthogonal, and the error is least."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter

from polyclinic.privacy.noise import Participation, error, noise_process
from polyclinic.privacy.noise.factorisations import Banded, SquareRoot, log_loss
from polyclinic.privacy.noise.sensitivity import gram_sensitivity
from polyclinic.privacy.streams import keyed_stream

CASES = [(1, 1), (16, 1), (16, 4), (64, 8), (40, 40)]


@pytest.mark.parametrize("objective", ["max", "mean"])
@pytest.mark.parametrize(("steps", "bands"), CASES)
def test_fault_25_the_strategy_has_columns_of_norm_one_and_the_noise_is_its_inverse(steps, bands, objective):
    # pfl-research factored C C^T where C^T C is meant: squared norms of 1.68 to 3.55, noise too small by their root.
    strategy = Banded(steps, bands, objective).strategy()
    np.testing.assert_allclose((strategy**2).sum(axis=0), 1, rtol=1e-12)
    assert np.array_equal(strategy, np.tril(strategy) - np.tril(strategy, -bands))
    noise = noise_process("banded", steps, bands=bands, objective=objective).matrix()
    np.testing.assert_allclose(noise @ strategy, np.eye(steps), atol=1e-9)


@pytest.mark.parametrize(("steps", "bands"), CASES)
def test_participations_as_far_apart_as_the_bands_are_orthogonal(steps, bands):
    banded = Banded(steps, bands)
    for separation in (bands, bands + 1, 3 * bands):
        participation = Participation(separation, 3)
        assert banded.sensitivity(participation) ** 2 == pytest.approx(participation.within(steps), rel=1e-12)
        assert gram_sensitivity(banded.strategy(), participation) == pytest.approx(banded.sensitivity(participation))


@pytest.mark.parametrize(("steps", "separation"), [(64, 8), (256, 64), (1024, 64)])
def test_each_objective_is_best_at_itself_and_better_than_the_square_root(steps, separation):
    participation = Participation(separation, steps)

    def found(name, **options):
        return error(noise_process(name, steps, participation=participation, **options), participation)

    largest, mean, root = found("banded"), found("banded", objective="mean"), found("sqrt-toeplitz")
    assert largest.rms_max < min(mean.rms_max, root.rms_max)
    assert mean.rms_mean < min(largest.rms_mean, root.rms_mean)


@settings(max_examples=30)
@given(st.lists(st.floats(-0.05, 0.05), min_size=7, max_size=7), st.sampled_from(["max", "mean"]))
def test_no_coefficients_nearby_and_not_those_of_the_square_root_have_less_loss(moves, objective):
    def loss(tail):
        column = np.concatenate([[1.0], tail, np.zeros(40 - 8)])
        return log_loss(column, lambda x: lfilter([1.0], column[:8], x), Participation(1, 1), objective)[0]

    best = Banded(40, 8, objective).coefficients
    tail = best[1:] / best[0]
    assert loss(tail) <= loss(tail + np.array(moves)) + 1e-12
    assert loss(tail) < loss(SquareRoot(8).coefficients[1:]) - 0.01


def test_bands_follow_the_participation():
    assert noise_process("banded", 20, participation=Participation(5, 4)).factorisation == Banded(20, 5)
    assert noise_process("banded", 20).factorisation == Banded(20, 20)
    assert noise_process("banded", 20, participation=Participation(5, 4), bands=3).factorisation == Banded(20, 3)


def test_banded_noise_keeps_a_vector_less_than_it_has_bands():
    process = noise_process("banded", 20, bands=5)
    for steps, kept in ((0, 0), (2, 2), (12, 4)):
        assert process.draw(keyed_stream(0, "a"), {}, steps, 3)[1]["memory"].shape == (kept, 3)
