"""A flow over parameters: its gradient against torch's own, an average of the last steps, settings that are named."""

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from polyclinic.errors import ConfigError
from polyclinic.inference.likelihood import Linear
from polyclinic.inference.private_flow import Descent, Everywhere, FlowSettings
from polyclinic.privacy.streams import generator

MODEL = Linear(("a", "y"), 0.5)
EVERYWHERE = Everywhere(torch.full((2,), 0.5, dtype=torch.float64), torch.full((2,), 2.0, dtype=torch.float64))


def test_scores_at_the_draws_give_the_gradient_of_the_free_energy() -> None:
    rng = generator(2, "table")
    x = rng.standard_normal(7)
    records = torch.from_numpy(np.column_stack([x, 0.3 - 0.6 * x]))
    descent = Descent(2, EVERYWHERE, FlowSettings(draws=4))
    state, noise = descent.begin(), torch.from_numpy(rng.standard_normal((4, 2)))
    scores = torch.stack([MODEL.score(draw, records).sum(0) for draw in torch.from_numpy(descent.draws(state, noise))])

    transport = descent.transport(state["weights"])
    draws, stretch = transport(noise)
    prior = torch.distributions.Normal(EVERYWHERE.centre, EVERYWHERE.scale).log_prob(draws).sum(1)
    energy = -(MODEL.log_density(draws, records).sum(1) + prior + stretch).mean()
    slopes = parameters_to_vector(torch.autograd.grad(energy, list(transport.parameters())))
    np.testing.assert_allclose(descent.gradient(state, noise, scores.numpy()), slopes.numpy(), rtol=1e-9)


def test_the_average_is_of_the_last_steps() -> None:
    descent = Descent(2, EVERYWHERE, FlowSettings(steps=10, averaged=0.3))
    state, seen = descent.begin(), []
    for step in range(10):
        state = descent.step(state, np.full(len(state["weights"]), 1.0 + step))
        seen.append(state["weights"])
    np.testing.assert_allclose(state["average"], np.mean(seen[-3:], axis=0))


@pytest.mark.parametrize(("name", "value"), [("steps", 0), ("clip", 0.0), ("square", 1.0), ("averaged", 1.0)])
def test_bad_settings_are_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        FlowSettings(**{name: value})  # type: ignore[arg-type]
