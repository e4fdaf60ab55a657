"""Dissimilarities against torch's, against integration on a grid, and against the published optima."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from polyclinic.errors import ConfigError
from polyclinic_studies.ehr_vi.dissimilarities import (
    DISSIMILARITIES,
    best_correlation,
    covariance,
    descend,
    kl,
    l1,
    reverse_kl,
    wasserstein_squared,
)

ONE = torch.tensor([[1.3, 0.4], [0.4, 0.9]], dtype=torch.float64)
OTHER = torch.tensor([[2.0, -0.5], [-0.5, 0.7]], dtype=torch.float64)
NOWHERE = torch.zeros(2, dtype=torch.float64)


def test_kl_against_torch() -> None:
    exact = kl_divergence(MultivariateNormal(NOWHERE, ONE), MultivariateNormal(NOWHERE, OTHER))
    assert float(kl(ONE, OTHER)) == pytest.approx(float(exact))
    assert float(reverse_kl(OTHER, ONE)) == pytest.approx(float(exact))


def test_l1_against_a_sum_over_the_plane() -> None:
    line = torch.linspace(-9, 9, 1201, dtype=torch.float64)
    points = torch.cartesian_prod(line, line)
    density = [MultivariateNormal(NOWHERE, c).log_prob(points).exp() for c in (ONE, OTHER)]
    assert float(l1(ONE, OTHER)) == pytest.approx(
        float((density[0] - density[1]).abs().sum()) * (18 / 1200) ** 2, abs=1e-4
    )


def test_wasserstein_against_the_general_matrix_root() -> None:
    values, vectors = torch.linalg.eig(ONE @ OTHER)
    trace = float(values.real.sqrt().sum())  # of (S T)^1/2, whose eigenvalues are those of (T^1/2 S T^1/2)^1/2
    exact = float(ONE.trace() + OTHER.trace()) - 2 * trace
    assert float(wasserstein_squared(ONE, OTHER)) == pytest.approx(exact)


@pytest.mark.parametrize("name", DISSIMILARITIES)
def test_nothing_lies_between_a_distribution_and_itself(name: str) -> None:
    assert float(DISSIMILARITIES[name](ONE, ONE)) == pytest.approx(0, abs=1e-6)
    assert float(DISSIMILARITIES[name](ONE, OTHER)) > 0.05


PUBLISHED = [
    ("kl", 0.5, (0.721, 0.830, 0.920)),
    ("reverse-kl", 0.5, (0.757, 0.867, 0.943)),
    ("l1", 0.5, (0.755, 0.862, 0.940)),
    ("wasserstein", 0.5, (0.5, 0.5, 0.5)),
    ("kl", 0.0, (0.0, 0.0, 0.0)),
    ("reverse-kl", 0.0, (0.333, 0.707, 0.882)),
    ("l1", 0.0, (0.402, 0.683, 0.869)),
    ("wasserstein", 0.0, (0.0, 0.0, 0.0)),
]


@pytest.mark.parametrize(("name", "rho0", "expected"), PUBLISHED)
def test_the_published_optima_in_closed_form_and_by_descent(
    name: str, rho0: float, expected: tuple[float, ...]
) -> None:
    ratios = (1.5, 2.0, 3.0)
    assert [best_correlation(name, r, rho0) for r in ratios] == pytest.approx(expected, abs=2e-3)
    found = descend(name, torch.tensor(ratios, dtype=torch.float64), torch.full((3,), rho0, dtype=torch.float64))
    assert found.tolist() == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("name", DISSIMILARITIES)
@pytest.mark.parametrize("rho0", [0.0, 0.3, 0.8])
def test_the_right_spread_gives_the_right_correlation(name: str, rho0: float) -> None:
    assert best_correlation(name, 1.0, rho0) == pytest.approx(rho0, abs=1e-4)


def test_reverse_kl_splits_beyond_the_root_of_two() -> None:
    assert best_correlation("reverse-kl", math.sqrt(2) - 1e-3, 0.0) == pytest.approx(0, abs=1e-6)
    assert best_correlation("reverse-kl", 1.6, 0.0) == pytest.approx(math.sqrt(1 - 2 / 1.6**2))


def test_covariance_has_the_deviation_and_the_correlation() -> None:
    found = covariance(torch.tensor([3.0]), torch.tensor([-0.2]))[0]
    assert found[0].tolist() == pytest.approx([9.0, -1.8])


def test_impossible_requests_are_named() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'wasserstein'"):
        best_correlation("waserstein", 2.0, 0.1)
    with pytest.raises(ConfigError, match="ratio must be positive"):
        best_correlation("kl", 0.0, 0.1)
