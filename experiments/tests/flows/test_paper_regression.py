"""The paper's regression: published standard deviations, an exact posterior, intervals that cover."""

import os

import numpy as np
import pandas as pd
import pytest
import torch

from polyclinic.errors import DataError
from polyclinic_studies.flows.paper_regression import (
    TRUTH,
    PaperRegression,
    exact,
    maximum_likelihood,
    measurements,
    records_of,
)

MODEL = PaperRegression()
START = torch.zeros(5, dtype=torch.float64)
PUBLISHED = [0.0267, 0.0036, 0.0180, 0.0152, 0.0194]
PUBLISHED_CORRELATIONS = [-0.1197, -0.4342, -0.7374, -0.4881, -0.0027, -0.0158, -0.0077, 0.0043, -0.0018, -0.0022]


def test_standard_deviations_and_correlations_are_those_published() -> None:
    table = np.concatenate([measurements(seed) for seed in range(10)])  # so that the design's own chance is small
    found = maximum_likelihood(MODEL, records_of(table), START)
    assert found.deviations * np.sqrt(10) == pytest.approx(PUBLISHED, rel=0.03)
    assert found.correlations == pytest.approx(PUBLISHED_CORRELATIONS, abs=0.03)
    assert abs((found.mean - TRUTH) / found.deviations).max() < 3.5


@pytest.mark.skipif("DPNF_DATA_REG" not in os.environ, reason="DPNF_DATA_REG names no file of the paper's records")
def test_estimates_of_the_papers_own_records_are_those_published() -> None:
    """R1 as it is stated, on ``data_reg.txt``: a line a record, x1 to x4 and five measurements; it has no licence."""
    table = pd.read_csv(os.environ["DPNF_DATA_REG"], sep=r"[\s,;]+", engine="python", header=None).to_numpy(dtype=float)
    found = maximum_likelihood(MODEL, records_of(table), START)
    assert found.mean == pytest.approx([0.1581, 1.0022, 0.8262, -1.1909, 0.6088], abs=2e-4)
    assert found.deviations == pytest.approx(PUBLISHED, rel=0.02)
    assert found.correlations == pytest.approx(PUBLISHED_CORRELATIONS, abs=0.005)


def test_the_mean_of_the_measurements_says_all_that_five_of_them_do() -> None:
    table = measurements(1, 200)
    covariance = 0.04 * np.eye(5) + 0.04
    at = torch.tensor([TRUTH], dtype=torch.float64)
    residual = table[:, 4:] - MODEL.mean(at, records_of(table))[0].numpy()[:, None]
    other = residual + 0.1  # another intercept
    of_all = [-np.einsum("ij,jk,ik->", r, np.linalg.inv(covariance), r) / 2 for r in (residual, other)]
    moved = at - torch.tensor([[0.1, 0, 0, 0, 0]], dtype=torch.float64)
    of_means = MODEL.log_density(torch.cat((at, moved)), records_of(table)).sum(1)
    assert of_all[1] - of_all[0] == pytest.approx(float(of_means[1] - of_means[0]))


def test_the_exact_posterior_is_near_the_gaussian() -> None:
    records = records_of(measurements(0))
    laplace = maximum_likelihood(MODEL, records, START)
    posterior, effective = exact(MODEL, records, laplace, draws=1500)
    assert effective > 0.7
    assert abs((posterior.mean - laplace.mean) / laplace.deviations).max() < 0.15
    assert posterior.deviations == pytest.approx(laplace.deviations, rel=0.08)


def test_intervals_cover() -> None:
    inside = []
    for seed in range(60):
        found = maximum_likelihood(MODEL, records_of(measurements(seed, 1500)), START)
        inside.append(abs(found.mean - TRUTH) <= 1.96 * found.deviations)
    assert 0.90 <= np.mean(inside) <= 0.99


def test_what_cannot_be_done_is_said() -> None:
    with pytest.raises(DataError, match="must be finite"):
        records_of(np.full((3, 9), np.nan))
    with pytest.raises(DataError, match="not found"):
        maximum_likelihood(MODEL, records_of(measurements(0, 1)), START)
