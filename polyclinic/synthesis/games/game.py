"""A game: a critic that hospitals train on their records, a generator that the server trains against it, and how.

Only the critic sees records. Hospitals train it by private classification of real and generated rows
(``polyclinic.training.classification`` with the game's ``loss``). So all that follows is post-processing: the
generator's steps, its average, the clipping of the critic's weights. Goodfellow et al. 2014; Bie, Kamath and Zhang
2023.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from torch import Tensor, nn

from polyclinic.errors import ConfigError, nearest
from polyclinic.synthesis.games.head import Front, Generator
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Arrays

Loss = Literal["logistic", "wasserstein", "auxiliary", "discriminative"]
Law = Literal["normal", "uniform"]
Schedule = Literal["constant", "linear", "cosine"]
Optimizer = Literal["adam", "rmsprop", "sgd"]
Build = Callable[[Layout], nn.Module]


@dataclass(frozen=True)
class Adaptive:
    """More critic steps for each of the generator's when generated rows fool the critic (Bie et al. 2023, section 4.3).

    ``ratios``: critic steps for each generator step. The next one comes when the average accuracy on generated rows (of
        decay ``beta``) falls below ``threshold``.
    ``grace``: the least number of generator steps between two changes.
    """

    ratios: tuple[int, ...] = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    threshold: float = 0.6
    beta: float = 0.99
    grace: int = 200


class Published(Protocol):
    """How hospitals train a critic as somebody published it, which keeps no epsilon: for simulations and audits alone."""

    def steps(
        self, game: Game, layout: Layout, generator: nn.Module, build: Callable[[], nn.Module], arrays: Arrays,
        work: Sequence[Any], settings: Any,
    ) -> list[Any] | None:  # fmt: skip
        """A ``SiteUpdate`` for each ``SiteWork`` after a round under these ``TrainSettings``; None where steps are plain ones.

        Args:
            game: The game.
            layout: The layout of the rows.
            generator: The generator of the round.
            build: Makes the critic's module.
            arrays: The critic's arrays by name.
            work: The ``SiteWork`` of each hospital.
            settings: The ``TrainSettings`` of the round.
        """
        ...

    def guarantee(
        self, patients: Sequence[int], sample_rate: float, critic_steps: int, rounds: int, delta: float
    ) -> str:
        """What a run guarantees, in words.

        Args:
            patients: The number of patients at each hospital.
            sample_rate: The chance of a patient to be in a batch.
            critic_steps: Critic steps in each round.
            rounds: The number of rounds.
            delta: The delta of the guarantee.
        """
        ...

    def findings(self, subject: Any) -> Sequence[Any]:
        """What an audit's ``Fixed`` subject shows of it: each ``Finding`` in turn."""
        ...


@dataclass(frozen=True, eq=False)
class Game:
    """One game.

    ``core``: the generator's network, (latent (n, L), label (n,)) -> (n, D - K)
    ``critic_of``: the critic's network, (n, D) -> what ``loss`` needs
    ``latent``, ``law``: L, and by which law latents are drawn ("uniform" in (-1, 1))
    ``spread``, ``fall``: of the ``Front``, 0 none
    ``hard``, ``unit``: of the ``Generator``
    ``weight_clip``: the critic's weights are kept within it
    ``penalty``: weight of the gradient penalty on generated rows, which the server adds by ``penalty_steps``
    ``optimizer``, ``momentum``: the generator's, with Adam's beta 1
    ``learning_rate``, ``schedule``: the generator's, and how it falls to 0 over the rounds
    ``steps``, ``batch``: the generator's steps in a round, and the rows of each
    ``ring``: a step is against the mean over so many of the last critics
    ``ema``: decay of the average of the generator's weights that is drawn from, 0 for the last ones
    ``begin``: arrays with which the generator begins in place of drawn ones
    ``published``: critic steps in place of private ones
    ``made_by``: as ``package.module:name``, makes the game again from a layout and ``options``
    """

    name: str
    core: Build = field(repr=False)
    critic_of: Build = field(repr=False)
    loss: Loss = "logistic"
    latent: int = 64
    law: Law = "normal"
    spread: float = 0.0
    fall: float = 0.0
    hard: bool = True
    unit: bool = False
    weight_clip: float | None = None
    penalty: float = 0.0
    penalty_steps: int = 5
    optimizer: Optimizer = "adam"
    learning_rate: float = 1e-3
    momentum: float = 0.5
    schedule: Schedule = "linear"
    steps: int = 10
    batch: int = 500
    ring: int = 1
    ema: float = 0.99
    adaptive: Adaptive | None = None
    published: Published | None = None
    begin: Callable[[Layout], Arrays] = field(default=lambda layout: {}, repr=False)
    made_by: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, kind in (("loss", Loss), ("law", Law), ("schedule", Schedule), ("optimizer", Optimizer)):
            value, allowed = getattr(self, key), get_args(kind)
            if value not in allowed:
                raise ConfigError(
                    f"A game's {key} is {value!r}; allowed are {', '.join(allowed)}.{nearest(str(value), allowed)}"
                )
        for key in ("latent", "steps", "batch", "ring"):
            if getattr(self, key) < 1:
                raise ConfigError(f"A game's {key} is {getattr(self, key)}; it must be at least 1.")
        for key in ("ema", "momentum"):
            if not 0.0 <= getattr(self, key) < 1.0:
                raise ConfigError(f"A game's {key} is {getattr(self, key)}; it must be at least 0 and below 1.")
        if not self.learning_rate > 0.0:
            raise ConfigError(f"A game's learning_rate is {self.learning_rate}; it must be positive.")
        if self.weight_clip is not None and not self.weight_clip > 0.0:
            raise ConfigError(f"A game's weight_clip is {self.weight_clip}; it must be positive, or None for none.")
        if self.adaptive and self.loss == "wasserstein":
            raise ConfigError(
                "A game whose critic steps adapt needs a critic that says real or generated; the loss 'wasserstein' gives "
                "scores without a threshold: use 'logistic', 'auxiliary' or 'discriminative'."
            )

    def front(self, layout: Layout) -> Front:
        """The coordinates in which the critic sees rows."""
        return Front(layout, self.spread, self.fall)

    def generator(self, layout: Layout) -> Generator:
        """(latent (n, L), label (n,) int64) -> (n, D - K): the features of z."""
        return Generator(self.core(layout), layout, self.front(layout), self.hard, self.unit)

    def critic(self, layout: Layout) -> nn.Module:
        """(n, D) rows of ``fakes.pairs`` -> the outputs that ``loss`` needs."""
        return self.critic_of(layout)

    def latents(self, rows: int, rng: np.random.Generator) -> Tensor:
        """(rows, L) float32 draws."""
        if self.law == "uniform":
            return torch.from_numpy(rng.uniform(-1.0, 1.0, (rows, self.latent)).astype(np.float32))
        return torch.from_numpy(rng.standard_normal((rows, self.latent), dtype=np.float32))

    def clip(self, critic: Arrays) -> Arrays:
        """The critic's arrays within ``weight_clip``: post-processing (Arjovsky et al. 2017)."""
        if self.weight_clip is None:
            return critic
        bound = self.weight_clip
        return {
            name: np.clip(value, -bound, bound) if value.dtype.kind == "f" else value for name, value in critic.items()
        }

    def rate(self, round: int, rounds: int) -> float:
        """The generator's learning rate in ``round`` of 1..``rounds``."""
        left = 1.0 - (round - 1) / max(rounds, 1)
        match self.schedule:
            case "linear":
                return self.learning_rate * left
            case "cosine":
                return self.learning_rate * 0.5 * (1.0 - float(np.cos(np.pi * left)))
            case _:
                return self.learning_rate
