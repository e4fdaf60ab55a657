"""Steps that end within a ball: the projection, runs, what refuses it, and the risk law of projected DP-GD."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polyclinic import Federation
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.privacy.streams import keyed_stream
from polyclinic.training import classification
from polyclinic.training.sites.optimizers import restore_state, take_step
from polyclinic.training.task import SiteWork, TrainSettings


def settings(**changes: Any) -> TrainSettings:
    return TrainSettings(**({"sample_rate": 1.0, "local_steps": 1, "learning_rate": 0.5, "max_grad_norm": 1.0,
                             "noise_multiplier": None, "double": True} | changes))  # fmt: skip


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "rmsprop"])
def test_a_step_ends_at_the_nearest_point_of_the_ball(optimizer: str) -> None:
    generator = torch.Generator().manual_seed(0)
    theta, gradient = (torch.randn(5, 7, generator=generator, dtype=torch.float64) for _ in range(2))
    theta[0] *= 1e-3
    gradient[0] *= 1e-3
    after = {}
    for radius in (0.0, 0.8):
        own = settings(optimizer=optimizer, learning_rate=0.01, weight_decay=0.1, radius=radius)
        after[radius] = take_step(theta, gradient, restore_state([{}] * 5, [7], own, theta.dtype), own)
    lengths = after[0.0].norm(dim=1)
    assert lengths[0] < 0.8 < lengths[1:].min()
    torch.testing.assert_close(after[0.8][0], after[0.0][0], rtol=0, atol=0)
    torch.testing.assert_close(after[0.8][1:], 0.8 * after[0.0][1:] / lengths[1:, None])


def test_a_run_stays_within_the_ball_at_the_same_price(tmp_path: Path) -> None:
    runs = [
        Federation.from_dataset("breast-cancer", out=str(tmp_path)).run(
            rounds=3, training={"optimizer": "sgd", "radius": radius}, pictures=False
        )
        for radius in (0.0, 0.3)
    ]
    free, within = (
        float(torch.cat([part.flatten() for name, part in run.arrays.items() if name.startswith("0.")]).norm())
        for run in runs
    )
    assert free > 0.3 + 1e-3 and within <= 0.3 + 1e-6
    assert runs[0].summary["privacy"] == runs[1].summary["privacy"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training.radius": -1.0}, "training.radius"),
        ({"training.optimizer": "newton"}, "set training.radius to 0.0"),
        ({"task": "output-perturbation"}, "training.radius"),
        (
            {"secure.aggregation": True, "secure.shared-noise": True, "training.optimizer": "sgd", "training.momentum": 0.0},
            "training.radius is 1.0: the step is taken on the sum",
        ),
    ],
)  # fmt: skip
def test_where_no_hospital_takes_steps_a_radius_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        Federation.from_dataset("breast-cancer", out=str(tmp_path)).run(**{"training.radius": 1.0} | changes)
    assert not list(tmp_path.rglob("ledger.sqlite"))


NORM, RADIUS, STEPS, DRAWS = 1.0, 0.01, 64, 80


def excess(patients: int, features: int, noise: float) -> tuple[float, float]:
    """The mean excess risk over the ball of projected DP-GD at this noise of all steps together, and C D z sqrt(d) / n.

    Rows have the signal at which the bound of Bassily, Smith and Thakurta 2014 is reached, of a few z C sqrt(d) / n: with less
    there is nothing to learn, with more noise hardly matters. In so small a ball the logistic loss is all but linear.
    """
    rng = np.random.default_rng([patients, features])
    signed = rng.normal(size=(patients, features))
    signed *= NORM / np.linalg.norm(signed, axis=1, keepdims=True)
    bound = NORM * RADIUS * noise * np.sqrt(features) / patients
    signed += 4 * bound / RADIUS / np.sqrt(features) - signed.mean(axis=0)
    label = (rng.uniform(size=patients) < 0.5).astype(np.int64)
    rows = Rows((2 * label - 1)[:, None] * signed, label, np.arange(patients), patients)

    def trained(noise_multiplier: float | None, rate: float, steps: int, sites: int) -> list[np.ndarray]:
        own = settings(noise_multiplier=noise_multiplier, learning_rate=rate, local_steps=steps, radius=RADIUS)
        streams = [keyed_stream(0, "noise", patients, features, site) for site in range(sites)]
        work = [SiteWork(rows, stream, stream, float(patients)) for stream in streams]
        build = lambda: nn.Linear(features, 1, bias=False).double()  # noqa: E731
        updates = classification.train(build, {"weight": np.zeros((1, features))}, work, own)
        return [update.arrays["weight"][0] for update in updates]

    risk = lambda w: float(np.logaddexp(0.0, -signed @ w).mean())  # noqa: E731
    [best] = trained(None, 10.0, 400, 1)
    private = trained(noise * np.sqrt(STEPS), RADIUS**2 / bound * NORM / STEPS, STEPS, DRAWS)
    return float(np.mean([risk(w) for w in private])) - risk(best), bound


@pytest.mark.slow
def test_the_risk_of_projected_dp_gd_falls_as_its_law_says() -> None:
    """C D sqrt(d) z / n: in patients with exponent -1, in features with 1/2, in the noise (of order 1 / epsilon) with 1."""
    lines = {
        -1.0: [(n, excess(n, 16, 1.5)) for n in (250, 500, 1_000, 2_000, 4_000)],
        0.5: [(d, excess(1_000, d, 1.5)) for d in (4, 16, 64, 256)],
        1.0: [(z, excess(1_000, 16, z)) for z in (0.5, 1.0, 2.0, 4.0)],
    }
    for exponent, line in lines.items():
        slope = np.polyfit(np.log([at for at, _ in line]), np.log([risk for _, (risk, _) in line]), 1)[0]
        assert slope == pytest.approx(exponent, abs=0.1)
        assert all(0 < risk < bound for _, (risk, bound) in line)
