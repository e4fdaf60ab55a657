"""Sensitivity: no participation that was declared moves C x further, found by trying them all."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.privacy.noise import NOISE, Participation, noise_process
from polyclinic.privacy.noise.sensitivity import gram_sensitivity, toeplitz, toeplitz_sensitivity

KINDS = [*((name, {}) for name in NOISE), ("banded", {"bands": 3}), ("tree", {"completed": True})]
PARTICIPATIONS = st.builds(Participation, st.integers(1, 9), st.integers(1, 9))


def patterns(steps: int, participation: Participation) -> list[tuple[int, ...]]:
    return [
        pattern
        for times in range(1, participation.times + 1)
        for pattern in combinations(range(steps), times)
        if all(b - a >= participation.separation for a, b in zip(pattern, pattern[1:], strict=False))
    ]


def worst_signs(matrix: np.ndarray, participation: Participation) -> float:
    """The largest norm over all patterns and all signs: exact where vectors of one dimension are the worst."""
    return max(
        float(np.linalg.norm(matrix[:, list(pattern)] @ np.array(signs)))
        for pattern in patterns(matrix.shape[1], participation)
        for signs in product((1, -1), repeat=len(pattern))
    )


@settings(max_examples=60)
@given(PARTICIPATIONS, st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_toeplitz_sensitivity_is_exact_for_columns_that_fall(participation, values):
    column = np.sort(np.array(values))[::-1]
    expected = worst_signs(toeplitz(column), participation)
    assert toeplitz_sensitivity(column, participation) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(max_examples=100)
@given(PARTICIPATIONS, st.lists(st.floats(-1, 1), min_size=64, max_size=64), st.integers(1, 8))
def test_gram_sensitivity_is_never_exceeded(participation, values, steps):
    matrix = np.array(values).reshape(8, 8)[:, :steps]
    assert worst_signs(matrix, participation) <= gram_sensitivity(matrix, participation) * (1 + 1e-9) + 1e-12
    coefficients = np.array(values[:steps])
    bound = toeplitz_sensitivity(coefficients, participation)
    assert worst_signs(toeplitz(coefficients), participation) <= bound * (1 + 1e-9) + 1e-12


@settings(max_examples=60)
@given(PARTICIPATIONS, st.lists(st.floats(-1, 1), min_size=64, max_size=64))
def test_gram_sensitivity_is_exact_for_orthogonal_columns_and_single_participation(participation, values):
    full = np.array(values).reshape(8, 8)
    banded = np.tril(full) - np.tril(full, -participation.separation)
    expected = worst_signs(banded, participation)
    assert gram_sensitivity(banded, participation) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    once = Participation(participation.separation, 1)
    assert gram_sensitivity(full, once) == pytest.approx(np.linalg.norm(full, axis=0).max(), rel=1e-9)


@pytest.mark.parametrize(("name", "options"), KINDS, ids=str)
@pytest.mark.parametrize("steps", [1, 5, 8])
def test_fault_25_no_participation_moves_a_process_further_than_its_sensitivity(name, options, steps):
    process = noise_process(name, steps, **({"bands": min(3, steps)} if "bands" in options else options))
    strategy = np.linalg.inv(process.matrix())
    for separation in range(1, steps + 1):
        for times in (1, 2, 3, steps):
            participation = Participation(separation, times)
            assert worst_signs(strategy, participation) <= process.sensitivity(participation) * (1 + 1e-9)


@pytest.mark.parametrize(("name", "options"), KINDS, ids=str)
@pytest.mark.parametrize(("separation", "times"), [(1, 40), (4, 3), (10, 4)])
def test_fault_25_no_gradients_of_norm_one_move_a_process_further_than_its_sensitivity(
    name, options, separation, times
):
    rng = np.random.default_rng(0)
    process = noise_process(name, 40, **options)
    participation = Participation(separation, times)
    strategy = np.linalg.inv(process.matrix())
    bound = process.sensitivity(participation)
    for trial in range(200):
        rows = np.zeros((40, 3))
        step = int(rng.integers(0, separation))
        for _ in range(times):
            if step < 40:
                vector = rng.normal(size=3) + [5.0 * (trial % 2), 0, 0]  # nearly equal ones come closest
                rows[step] = vector / np.linalg.norm(vector)
                step += separation + int(rng.integers(0, 2)) * int(rng.integers(0, 4))
        assert np.linalg.norm(strategy @ rows) <= bound * (1 + 1e-9)
