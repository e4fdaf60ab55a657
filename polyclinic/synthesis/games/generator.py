"""The server's half of a round: the generator's steps against the critics that came back. Post-processing, it sees no record."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from polyclinic.models.tabular import fill_module
from polyclinic.privacy.streams import generator as keyed
from polyclinic.synthesis.games.fakes import generator_of, with_labels
from polyclinic.synthesis.games.game import Game, Loss
from polyclinic.synthesis.games.state import GeneratorState, advance
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Arrays, Floats

# Scaled numbers further out than this are no measurement in any scale.
_ABSURD = 1e4


def generator_loss(loss: Loss, outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean loss of a generator whose rows a critic judged: it wants them called real.

    - "logistic": non-saturating (Goodfellow et al. 2014)
    - "wasserstein": minus the score (Arjovsky et al. 2017)
    - "auxiliary": the first, and the entropy of the label (Odena et al. 2017)
    - "discriminative": the first, less the log-odds that a row of its label is real (Hou et al. 2022)

    Args:
        loss: The game's loss.
        outputs: (n, O) what the critic gave for the generated rows.
        labels: (n,) classes of the rows.
    """
    if loss == "wasserstein":
        return -outputs[:, 0].mean()
    real = functional.softplus(-outputs[:, 0]).mean()
    if loss == "auxiliary":
        return real + functional.cross_entropy(outputs[:, 1:], labels)
    if loss == "discriminative":
        pairs = outputs[:, 1:].reshape(len(labels), -1, 2)[torch.arange(len(labels)), labels]
        return real - (pairs[:, 1] - pairs[:, 0]).mean()
    return real


@dataclass(frozen=True, eq=False)
class Play:
    """What all rounds of a game have in common. classes: (K,) frequencies by which labels are drawn. rounds: of the run."""

    game: Game
    layout: Layout
    classes: Floats
    rounds: int = 1
    seed: int = 0

    def labels(self, rng: np.random.Generator) -> Tensor:
        """(batch,) int64 labels of the rows of one step."""
        shares = self.classes / self.classes.sum()
        return torch.from_numpy(rng.choice(self.layout.classes, self.game.batch, p=shares).astype(np.int64))


def generator_steps(play: Play, critic: Arrays, state: GeneratorState, steps: int, round: int) -> GeneratorState:
    """The state after ``steps`` steps against ``critic`` and the last ones that the game keeps.

    The result is a function of the arguments alone. A critic, a loss or weights that are not finite, and absurd rows,
    leave the state as it was but for ``diverged``.

    Args:
        play: The game, its layout, its seed and the number of rounds.
        critic: The critic's arrays after the hospitals' round.
        state: The generator's state before.
        steps: How many steps to take.
        round: The round, from 1 to ``rounds``.
    """
    game, layout = play.game, play.layout
    if not all(np.isfinite(value).all() for value in critic.values()):
        return state.undone()
    ring = (*state.ring, critic)[-game.ring :]
    critics = [fill_module(lambda: game.critic(layout), arrays).eval().requires_grad_(False) for arrays in ring]
    generator = generator_of(game, layout, state.weights).train()
    optimizer = _optimizer(game, generator, state, game.rate(round, play.rounds))
    average = {name: torch.from_numpy(np.array(value)) for name, value in state.average.items()}
    front = game.front(layout)
    rng = keyed(play.seed, "generator", round)
    accuracies = []
    for step in range(steps):
        labels = play.labels(rng)
        features = generator(game.latents(game.batch, rng), labels)
        outputs = [module(front.forth(with_labels(features, labels, layout.classes))) for module in critics]
        loss = torch.stack([generator_loss(game.loss, output, labels) for output in outputs]).mean()
        if not torch.isfinite(loss) or float(features.detach().abs().max()) > _ABSURD:
            return state.undone()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        accuracies.append(float((outputs[-1][:, 0] < 0).double().mean()))
        _average(average, generator, game.ema, state.steps + step)
    weights = _arrays(generator.state_dict())
    if not all(np.isfinite(value).all() for value in weights.values()):
        return state.undone()
    moved = replace(
        state, weights=weights, average=_arrays(average), moments=_moments(optimizer, generator), ring=ring,
        steps=state.steps + steps, diverged=False,
    )  # fmt: skip
    return advance(game, moved, accuracies)


def _arrays(tensors: dict[str, Tensor]) -> Arrays:
    return {name: value.detach().numpy().copy() for name, value in tensors.items()}


def _average(average: dict[str, Tensor], generator: nn.Module, decay: float, steps: int) -> None:
    """The moving average after a step, in place; the first ones count less than ``decay`` says, as they are far off."""
    keep = min(decay, (1 + steps) / (10 + steps))
    for name, value in generator.state_dict().items():
        if value.is_floating_point():
            average[name].lerp_(value, 1.0 - keep)
        else:
            average[name].copy_(value)


def _optimizer(game: Game, generator: nn.Module, state: GeneratorState, rate: float) -> torch.optim.Optimizer:
    parameters = list(generator.parameters())
    optimizer: torch.optim.Optimizer
    if game.optimizer == "adam":
        optimizer = torch.optim.Adam(parameters, rate, betas=(game.momentum, 0.999))
    elif game.optimizer == "rmsprop":
        optimizer = torch.optim.RMSprop(parameters, rate)
    else:
        optimizer = torch.optim.SGD(parameters, rate)
    for name, parameter in generator.named_parameters():
        moments = {
            key.removesuffix(f"/{name}"): torch.from_numpy(np.array(value))
            for key, value in state.moments.items() if key.partition("/")[2] == name
        }  # fmt: skip
        if moments:
            optimizer.state[parameter] = moments
    return optimizer


def _moments(optimizer: torch.optim.Optimizer, generator: nn.Module) -> Arrays:
    return {
        f"{slot}/{name}": value.detach().numpy().copy()
        for name, parameter in generator.named_parameters()
        for slot, value in optimizer.state[parameter].items() if isinstance(value, Tensor)
    }  # fmt: skip


def penalise(play: Play, critic: Arrays, state: GeneratorState, round: int, rate: float) -> Arrays:
    """The critic after the game's steps on the penalty (|gradient at a generated row| - 1)^2, at the server.

    Gulrajani et al. 2017 take it between real and generated rows; on generated rows alone no record is needed, so that
    it is post-processing.

    Args:
        play: The game, its layout and its seed.
        critic: The critic's arrays after the hospitals' round.
        state: The generator's state.
        round: The round, from 1 on.
        rate: The critic's learning rate, by which the penalty's weight is multiplied.

    Returns:
        The critic's arrays; ``critic`` itself where the game has no penalty, or its steps give numbers that are not
        finite.
    """
    game, layout = play.game, play.layout
    if not game.penalty:
        return critic
    module = fill_module(lambda: game.critic(layout), critic)
    generator = generator_of(game, layout, state.weights).eval()
    rng = keyed(play.seed, "penalty", round)
    front = game.front(layout)
    optimizer = torch.optim.SGD(module.parameters(), rate * game.penalty)
    for _ in range(game.penalty_steps):
        labels = play.labels(rng)
        with torch.no_grad():
            features = generator(game.latents(game.batch, rng), labels)
            rows = front.forth(with_labels(features, labels, layout.classes))
        rows.requires_grad_(True)
        slopes = torch.autograd.grad(module(rows)[:, 0].sum(), rows, create_graph=True)[0]
        optimizer.zero_grad()
        ((slopes.norm(dim=1) - 1.0) ** 2).mean().backward()
        optimizer.step()
    arrays = _arrays(module.state_dict())
    return arrays if all(np.isfinite(value).all() for value in arrays.values()) else critic
