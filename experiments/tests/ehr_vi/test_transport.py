"""Losses of transport: correlations that stay at any spread, in closed form, by descent and by flows."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyclinic.errors import ConfigError
from polyclinic.inference.likelihood import Gaussian
from polyclinic.inference.private_flow import Everywhere
from polyclinic.privacy.streams import generator
from polyclinic_studies.ehr_vi.dissimilarities import DISSIMILARITIES, best_correlation, kl, wasserstein_squared
from polyclinic_studies.ehr_vi.transport import gelbrich, held, sliced, sliced_loss
from polyclinic_studies.flows.variational import Loss, fit_flow

HALF = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
TARGET = Gaussian(np.array([0.3, -0.2]), HALF.numpy())


def covariances(seed: int, k: int, count: int = 1) -> Tensor:
    root = torch.from_numpy(generator(seed, "covariances").standard_normal((count, k, k)))
    return root @ root.mT + 0.1 * torch.eye(k, dtype=torch.float64)


def correlations(covariance: Tensor) -> Tensor:
    spread = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    return covariance / spread[..., :, None] / spread[..., None, :]


@pytest.mark.parametrize("name", DISSIMILARITIES)
def test_two_parameters_against_the_closed_forms(name: str) -> None:
    for ratio in (0.7, 2.0):
        found = held(HALF, torch.full((2,), ratio, dtype=torch.float64), name)
        assert found.diag().tolist() == pytest.approx([ratio**2] * 2)
        assert float(found[0, 1]) / ratio**2 == pytest.approx(best_correlation(name, ratio, 0.5), abs=1e-5)


@given(seed=st.integers(0, 1000), k=st.integers(2, 6))
@settings(max_examples=20)
def test_no_other_correlations_are_nearer_whatever_the_spread_is_off_by(seed: int, k: int) -> None:
    target, *others = covariances(seed, k, 20)
    spread = target.diag().sqrt() * torch.from_numpy(generator(seed, "ratios").uniform(0.2, 5, k))
    nearest = held(target, spread)
    assert torch.allclose(correlations(nearest), correlations(target))
    rivals = torch.stack([torch.lerp(correlations(target), correlations(other), 0.1) for other in others])
    rivals = spread[:, None] * rivals * spread
    assert bool((wasserstein_squared(rivals, target) >= wasserstein_squared(nearest, target) - 1e-9).all())


def test_kl_has_no_better_than_what_is_found_and_other_correlations() -> None:
    target, *others = covariances(3, 4, 40)
    spread = 2 * target.diag().sqrt()
    found = held(target, spread, "kl")
    rivals = torch.stack([torch.lerp(correlations(found), correlations(other), 0.02) for other in others])
    assert bool((kl(spread[:, None] * rivals * spread, target) > kl(found, target)).all())
    assert float((correlations(found) - correlations(target)).abs().max()) > 0.1


def test_the_distance_of_moments_is_that_of_shift_and_of_scale() -> None:
    shifted = torch.from_numpy(TARGET.mean) + torch.tensor([3.0, 4.0])
    assert float(gelbrich(shifted, HALF, TARGET)) == pytest.approx(25)
    assert float(gelbrich(torch.from_numpy(TARGET.mean), 9 * HALF, TARGET)) == pytest.approx((3 - 1) ** 2 * 2)


def test_sliced_along_a_direction_is_the_distance_on_the_line() -> None:
    rng = generator(0, "draws")
    draws = torch.from_numpy(rng.standard_normal((20_000, 2)) @ np.linalg.cholesky(4 * HALF.numpy()).T + 1)
    along = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    deviation = float((along @ HALF @ along.T).sqrt())
    expected = (1.4 - (0.6 * 0.3 - 0.8 * 0.2)) ** 2 + (2 * deviation - deviation) ** 2
    assert float(sliced(draws, TARGET, along)) == pytest.approx(expected, rel=0.03)
    others = torch.from_numpy(rng.multivariate_normal(TARGET.mean, TARGET.covariance, 30_000))
    assert float(sliced(draws, others, along)) == pytest.approx(expected, rel=0.03)
    assert float(sliced(draws, draws, along)) == pytest.approx(0, abs=1e-3)


def flow_correlation(loss: Loss, ratio: float, steps: int) -> float:
    everywhere = Everywhere(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    spread = torch.full((2,), ratio, dtype=torch.float64)
    draws, _, _ = fit_flow(loss, everywhere, 2, steps, 256, 2e-2, 1, (8,), 4000, deviations=spread)
    assert draws.std(0).tolist() == pytest.approx([ratio] * 2)
    assert draws.mean(0).tolist() == pytest.approx(TARGET.mean.tolist(), abs=0.05)
    return float(np.corrcoef(draws.T.numpy())[0, 1])


def test_flows_of_too_wide_a_spread_keep_the_correlation_by_transport_and_not_by_the_free_energy() -> None:
    normal = torch.distributions.MultivariateNormal(torch.from_numpy(TARGET.mean), HALF)

    def free_energy(draws: Tensor, log_density: Tensor) -> Tensor:
        return (log_density - normal.log_prob(draws)).mean()

    assert flow_correlation(free_energy, 3.0, 200) == pytest.approx(best_correlation("kl", 3.0, 0.5), abs=0.02)
    assert flow_correlation(sliced_loss(TARGET, 4), 3.0, 200) == pytest.approx(0.5, abs=0.03)


def test_what_cannot_be_is_named() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'reverse-kl'"):
        held(HALF, torch.ones(2), "revers-kl")
    with pytest.raises(ConfigError, match="2 positive numbers"):
        held(HALF, torch.tensor([1.0, 0.0]))
    with pytest.raises(ConfigError, match="for 2 parameters, got 3"):
        held(torch.eye(3), torch.ones(3), "l1")
    with pytest.raises(ConfigError, match="frames"):
        sliced_loss(TARGET, 0)
