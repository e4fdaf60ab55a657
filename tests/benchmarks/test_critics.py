"""The benchmark of critics: its work, that the lean peer does the same, and its place on the page; no test asserts a time."""

import json
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from benchmarks import critic_steps, critics
from polyclinic.models.tabular import initialise
from polyclinic.training import classification


def test_every_patient_has_a_real_and_a_generated_row_of_one_arm() -> None:
    rows = critic_steps.pairs(0, 50)
    assert rows.patients == 50 and rows.x.shape == (100, 36)
    assert np.array_equal(np.bincount(rows.patient), np.full(50, 2))
    assert set(rows.y[:50] % 2) == {1} and set(rows.y[50:] % 2) == {0}
    assert np.array_equal(rows.y[:50] // 2, rows.y[50:] // 2) and not np.array_equal(rows.x[:50], rows.x[50:])


def test_the_lean_peer_sums_the_clipped_pairs_that_the_engine_sums() -> None:
    from opacus import GradSampleModule

    torch.manual_seed(0)
    build = lambda: nn.Sequential(nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3))  # noqa: E731
    arrays = {name: value.numpy() for name, value in initialise(build, 0).items()}
    site = replace(critic_steps.work(1, 12, 0)[0], public_patients=12.0)
    chosen = replace(critic_steps.settings(12, "opacus"), optimizer="sgd", learning_rate=1.0, noise_multiplier=1e-12)
    update = classification.train(build, arrays, [site], chosen)[0]
    plain = build()
    plain.load_state_dict({name: torch.from_numpy(value) for name, value in arrays.items()})
    module, rows = GradSampleModule(plain, loss_reduction="sum"), site.rows
    out = module(torch.from_numpy(rows.x).float().requires_grad_())
    torch.autograd.backward((critic_steps.row_losses("auxiliary", out, torch.from_numpy(rows.y)) / 2).sum())
    total = [torch.zeros_like(p) for p in plain.parameters()]
    critic_steps._add_clipped(list(plain.parameters()), total)
    for name, summed in zip(arrays, total, strict=True):
        np.testing.assert_allclose((arrays[name] - update.arrays[name]) * 12, summed.numpy(), atol=1e-5)


def test_a_goal_is_met_by_the_clock_and_by_the_processor() -> None:
    ours = {"seconds": 2.0, "processor_seconds": 1.0}
    row = critics.compared("opacus", {"seconds": 20.0, "processor_seconds": 4.0}, ours)
    assert (row["ratio"], row["processor_ratio"], row["met"]) == (10.0, 4.0, False)
    assert critics.compared("opacus", {"seconds": 20.0, "processor_seconds": 6.0}, ours)["met"] is True


def test_the_committed_result_is_of_the_whole_size_and_is_what_the_page_shows() -> None:
    result = json.loads(critics.RESULT.read_text())
    assert result["terms"] == {"sites": 5, "patients": 1300, "batch": 256, "goal": 5.0}
    assert critics.table(result) in critics.PAGE.read_text()
