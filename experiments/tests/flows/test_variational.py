"""Flow posteriors against posteriors that are known."""

import math

import pytest
import torch

from polyclinic.errors import ConfigError
from polyclinic.inference.private_flow import Everywhere
from polyclinic_studies.flows.variational import Box, Posterior, posterior

MEAN = torch.tensor([0.5, -1.0], dtype=torch.float64)
COVARIANCE = torch.tensor([[0.04, 0.05], [0.05, 0.16]], dtype=torch.float64)


def gaussian(z: torch.Tensor) -> torch.Tensor:
    return torch.distributions.MultivariateNormal(MEAN, COVARIANCE).log_prob(z)


def test_a_correlated_gaussian_is_found_with_its_correlation_and_its_evidence() -> None:
    everywhere = Everywhere(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    found = posterior(gaussian, everywhere, 2, steps=400, transforms=2, hidden=(16,), seed=1)
    mean, covariance = found.moments()
    assert torch.allclose(mean, MEAN, atol=0.02)
    assert torch.allclose(covariance, COVARIANCE, rtol=0.12, atol=0.004)
    assert found.effective > 0.9
    assert float(found.evidence[-100:].mean()) == pytest.approx(0.0, abs=0.02)  # the density is normalised
    exact, _ = found.moments(weighted=True)
    assert torch.allclose(exact, MEAN, atol=0.02)


def test_a_flat_density_in_a_box_gives_the_uniform_and_the_volume() -> None:
    box = Box(torch.tensor([1.0, -2.0], dtype=torch.float64), torch.tensor([3.0, 6.0], dtype=torch.float64))
    found = posterior(lambda z: torch.zeros(len(z), dtype=z.dtype), box, 2, steps=400, transforms=2, hidden=(16,))
    assert bool((found.samples > box.low).all() and (found.samples < box.high).all())
    mean, covariance = found.moments()
    assert torch.allclose(mean, torch.tensor([2.0, 2.0], dtype=torch.float64), atol=0.25)
    assert covariance.diag().tolist() == pytest.approx([4 / 12, 64 / 12], rel=0.15)
    assert float(found.evidence[-100:].mean()) == pytest.approx(math.log(16), abs=0.05)


def test_a_boxs_jacobian_against_differentiation() -> None:
    box = Box(torch.tensor([0.002], dtype=torch.float64), torch.tensor([0.004], dtype=torch.float64))
    free = torch.tensor([[-9.0], [0.0], [0.7], [8.0]], dtype=torch.float64, requires_grad=True)
    value, slope = box.constrain(free)
    (gradient,) = torch.autograd.grad(value.sum(), free)
    assert torch.allclose(slope, gradient[:, 0].log(), rtol=1e-6)


def test_equal_seeds_give_equal_posteriors_and_leave_the_global_state_alone() -> None:
    everywhere = Everywhere(MEAN, COVARIANCE.diag().sqrt())
    before = torch.get_rng_state()
    runs = [posterior(gaussian, everywhere, 2, steps=3, samples=5, seed=s).samples for s in (4, 4, 5)]
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    assert torch.equal(before, torch.get_rng_state())


def test_weights_of_a_wrong_flow_have_a_small_effective_size() -> None:
    weights = torch.softmax(torch.tensor([0.0, 8.0, 0.0, 0.0], dtype=torch.float64), 0)
    found = Posterior(torch.zeros(4, 1, dtype=torch.float64), weights, torch.zeros(1))
    assert found.effective == pytest.approx(0.25, abs=0.01)


def test_impossible_requests_are_named() -> None:
    everywhere = Everywhere(MEAN, COVARIANCE.diag().sqrt())
    with pytest.raises(ConfigError, match="must be at least 1"):
        posterior(gaussian, everywhere, 2, steps=0)
    with pytest.raises(ConfigError, match="not finite at step 0"):
        posterior(lambda z: z.sum(1) * math.nan, everywhere, 2, steps=1)
