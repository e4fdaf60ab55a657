"""The Gaussian mechanism's parts: what is sampled, how far one patient moves a sum, and how large the noise is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from opacus.optimizers import DPOptimizer
from scipy import stats

from polyclinic.privacy.clipping import ClippedSum, clipped_sum, poisson_samples, privatise
from polyclinic.privacy.streams import keyed_stream, system_stream

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True, width=32)
MATRICES = arrays(np.float32, array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=8), elements=ANY_FLOAT)


@settings(max_examples=200)
@given(MATRICES, st.floats(1e-3, 1e3), st.data())
def test_removing_one_patient_moves_the_sum_by_at_most_its_sensitivity(rows, max_norm, data):
    gone = data.draw(st.integers(0, len(rows) - 1))
    kept = np.delete(rows, gone, axis=0)
    for dtype, slack in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        whole = clipped_sum(torch.from_numpy(rows).to(dtype), max_norm)
        less = clipped_sum(torch.from_numpy(kept).to(dtype), max_norm)
        assert torch.isfinite(whole.total).all()
        moved = float(torch.linalg.vector_norm(whole.total.double() - less.total.double()))
        assert moved <= whole.sensitivity * (1 + slack)
        assert whole.sensitivity == less.sensitivity == max_norm


@settings(max_examples=100)
@given(MATRICES, st.floats(1e-3, 1e3))
def test_every_contribution_is_clipped(rows, max_norm):
    contribution = clipped_sum(torch.from_numpy(rows[:1]).double(), max_norm).total
    assert float(torch.linalg.vector_norm(contribution)) <= max_norm * (1 + 1e-12)


def test_long_rows_leave_a_margin_for_rounding():
    """Beside the norm of a long row 1e-6 is nothing: without a margin every third was longer than the bound by a rounding."""
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(200, 1, 7)) * 1e12)
    longest = max(math.sqrt(math.fsum(value * value for value in clipped_sum(row, 1.0).total.tolist())) for row in rows)
    assert 1.0 - 1e-13 < longest < 1.0


def test_rows_within_the_bound_are_left_alone():
    rows = torch.tensor([[0.3, 0.4], [0.0, 0.0], [-0.1, 0.2]], dtype=torch.float64)
    assert torch.allclose(clipped_sum(rows, 1.0).total, rows.sum(0), rtol=0, atol=0)


def test_fault_28_rows_with_a_non_finite_entry_count_as_zero():
    good = torch.tensor([[3.0, 4.0]])
    bad = torch.tensor([[float("nan"), 1.0], [1.0, float("inf")], [-float("inf"), float("nan")]])
    assert torch.equal(clipped_sum(torch.cat([bad, good, bad]), 1.0).total, clipped_sum(good, 1.0).total)


def test_huge_rows_are_clipped_and_not_lost():
    total = clipped_sum(torch.tensor([[1e30, 0.0]]), 2.0).total
    assert total.tolist() == pytest.approx([2.0, 0.0])


def test_an_empty_batch_sums_to_zero_and_still_gets_noise():
    empty = clipped_sum(torch.zeros(0, 1000), 3.0)
    assert torch.equal(empty.total, torch.zeros(1000)) and empty.sensitivity == 3.0
    assert float(privatise(empty, 2.0, keyed_stream(0).normal(1000)).std()) == pytest.approx(6.0, rel=0.1)


def test_zero_rows_sum_to_zero():
    assert torch.equal(clipped_sum(torch.zeros(4, 3), 1.0).total, torch.zeros(3))


def test_fault_29_joint_clipping_of_real_and_made_rows_is_told_apart():
    # Fault 29: removing the real record moves the clipped real sum by at most C, whatever is added after it.
    real, made = torch.tensor([[5.0, 0.0]]), torch.tensor([[-3.0, 0.0]])
    with_record = clipped_sum(real, 1.0).total + made.sum(0)
    without = clipped_sum(real[:0], 1.0).total + made.sum(0)
    assert float(torch.linalg.vector_norm(with_record - without)) <= 1.0


@pytest.mark.parametrize("max_norm", [0.0, -1.0, float("inf"), float("nan")])
def test_max_norm_must_be_positive_and_finite(max_norm):
    with pytest.raises(ValueError, match="max_norm"):
        clipped_sum(torch.zeros(1, 1), max_norm)


def test_per_example_must_be_a_matrix():
    with pytest.raises(ValueError, match="shape"):
        clipped_sum(torch.zeros(3), 1.0)


def test_clipped_sum_agrees_with_opacus():
    source = torch.from_numpy(keyed_stream(5, "rows").normal((40, 23)) * np.linspace(0.05, 1, 40)[:, None])
    parameter = torch.nn.Parameter(torch.zeros(23, dtype=torch.float64))
    optimizer = DPOptimizer(
        torch.optim.SGD([parameter], lr=1.0), noise_multiplier=0.0, max_grad_norm=1.3, expected_batch_size=1
    )
    parameter.grad_sample = source.clone()
    optimizer.clip_and_accumulate()
    norms = torch.linalg.vector_norm(source, dim=1)
    assert (norms > 1.3).any() and (norms < 1.3).any()
    assert torch.allclose(clipped_sum(source, 1.3).total, parameter.summed_grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("stream", [system_stream(), keyed_stream(2, "noise")], ids=["system", "keyed"])
@pytest.mark.parametrize(("multiplier", "max_norm"), [(1.0, 1.0), (0.7, 2.5), (4.0, 0.1)])
def test_noise_over_sensitivity_is_the_multiplier(stream, multiplier, max_norm):
    clipped = clipped_sum(torch.zeros(0, 100_000, dtype=torch.float64), max_norm)
    noise = privatise(clipped, multiplier, stream.normal(100_000))
    assert float(noise.std()) / clipped.sensitivity == pytest.approx(multiplier, rel=0.01)
    assert stats.kstest(noise.numpy() / (multiplier * max_norm), "norm").pvalue > 1e-6


def test_noise_is_added_to_the_sum_in_its_own_dtype():
    clipped = clipped_sum(torch.full((1, 50_000), 1.0), 1000.0)
    private = privatise(clipped, 0.001, keyed_stream(0, "a").normal(50_000))
    assert private.dtype == clipped.total.dtype == torch.float64 and private.shape == clipped.total.shape
    assert float(private.mean()) == pytest.approx(1.0, abs=0.05)
    assert torch.equal(privatise(clipped, 0.0, keyed_stream(0).normal(50_000)), clipped.total)


def test_private_noise_differs_between_calls():
    clipped, stream = clipped_sum(torch.zeros(1, 100), 1.0), system_stream()
    assert not torch.equal(privatise(clipped, 1.0, stream.normal(100)), privatise(clipped, 1.0, stream.normal(100)))


@pytest.mark.parametrize("multiplier", [-1.0, float("nan"), float("inf")])
def test_bad_noise_is_refused(multiplier):
    with pytest.raises(ValueError, match="noise_multiplier"):
        privatise(clipped_sum(torch.zeros(1, 2), 1.0), multiplier, keyed_stream(0).normal(2))


def test_integer_sums_are_refused_rather_than_rounded():
    with pytest.raises(ValueError, match="floating point"):
        privatise(ClippedSum(torch.zeros(3, dtype=torch.int64), 1.0), 1.0, keyed_stream(0).normal(3))


def test_fault_12_poisson_batch_sizes_are_binomial():
    stream, n, rate, steps = keyed_stream(3, "batches"), 40, 0.05, 4000
    taken = poisson_samples(n, rate, steps, stream).astype(float)
    sizes = taken.sum(axis=1).astype(int)
    observed = np.bincount(np.minimum(sizes, 6), minlength=7)
    law = stats.binom(n, rate)
    expected = steps * np.array([*law.pmf(np.arange(6)), law.sf(5)])
    assert stats.chisquare(observed, expected).pvalue > 1e-4
    assert observed[0] > 0  # empty batches happen and are returned
    pairs = np.corrcoef(taken.T) - np.eye(n)
    assert np.abs(pairs).max() < 6 / np.sqrt(steps)
    assert stats.chisquare(taken.sum(axis=0)).pvalue > 1e-4


def test_poisson_sample_edges():
    stream = keyed_stream(0)
    assert poisson_samples(5, 1.0, 2, stream).all()
    assert poisson_samples(0, 0.5, 3, stream).shape == (3, 0)
    assert not poisson_samples(10, 1e-12, 1, stream).any()
    for rate in (0.0, -0.1, 1.01, float("nan")):
        with pytest.raises(ValueError, match="sample_rate"):
            poisson_samples(5, rate, 1, stream)


def test_huge_rows_at_a_small_bound_keep_the_sensitivity():
    """float32 gradients near their largest, clipped to 1e-6: a scale in float32 would leave them twice too long."""
    rows = torch.full((1, 3), 1e38)
    clipped = clipped_sum(rows, 1e-6)
    assert float(clipped.total.norm()) <= clipped.sensitivity * (1 + 1e-9)
