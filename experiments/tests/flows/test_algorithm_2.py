"""Algorithm 2 as published: gradients by record against torch's own, clipping that bounds any record, a posterior of a line."""

import numpy as np
import pytest
import torch

from polyclinic.inference.likelihood import Linear
from polyclinic.inference.private_flow import Everywhere, FlowSettings, Transport
from polyclinic.privacy.clipping import clipped_sum
from polyclinic.privacy.streams import generator
from polyclinic_studies.flows.algorithm_2 import private_flow, record_gradients

MODEL = Linear(("a", "y"), 0.5)
EVERYWHERE = Everywhere(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))


def table(n: int) -> torch.Tensor:
    rng = generator(2, "table")
    x = rng.standard_normal(n)
    return torch.from_numpy(np.column_stack([x, 0.3 - 0.6 * x + 0.5 * rng.standard_normal(n)]))


def test_a_records_gradient_is_that_of_its_expected_log_density() -> None:
    drawn = Transport(2, FlowSettings(), EVERYWHERE, seed=0)
    noise, records = torch.from_numpy(generator(0, "noise").standard_normal((4, 2))), table(3)
    found = record_gradients(MODEL, drawn, noise, records)
    for row, record in zip(found, records, strict=True):
        drawn.zero_grad()
        MODEL.log_density(drawn(noise)[0], record[None]).mean().backward()
        assert torch.allclose(row, torch.cat([p.grad.flatten() for p in drawn.parameters() if p.grad is not None]))


def test_one_record_moves_the_sum_no_further_than_the_clip() -> None:
    gradients = torch.tensor([[0.1, 0.2], [30.0, -40.0], [float("nan"), 1.0]], dtype=torch.float64)
    assert torch.allclose(clipped_sum(gradients, 2.0).total, torch.tensor([0.1 + 1.2, 0.2 - 1.6], dtype=torch.float64))
    assert float(torch.linalg.vector_norm(clipped_sum(gradients[1:2] * 1e200, 2.0).total)) <= 2.0


def test_without_noise_the_posterior_of_a_line_is_found_and_equal_draws_give_equal_ones() -> None:
    settings = FlowSettings(steps=200, clip=1e3, rate=0.1, hidden=(4,), draws=8)
    found = private_flow(MODEL, [table(300), table(200)], EVERYWHERE, 0.0, generator(0, "flow"), settings)
    records = torch.cat([table(300), table(200)])
    exact = torch.linalg.inv(MODEL.information(torch.zeros(2).double(), records).sum(0) + torch.eye(2))
    mean = exact @ MODEL.score(torch.zeros(2).double(), records).sum(0)
    assert found.mean == pytest.approx(mean.numpy(), abs=0.03)
    ratio = found.deviations / exact.diag().sqrt().numpy()
    assert ((ratio > 0.6) & (ratio < 4.0)).all()  # from 1, which is 45 times
    few = FlowSettings(steps=5, clip=1e3, hidden=(4,), draws=8)
    again = [private_flow(MODEL, [table(60)], EVERYWHERE, 0.0, generator(0, "flow"), few) for _ in range(2)]
    assert (again[0].mean == again[1].mean).all()
