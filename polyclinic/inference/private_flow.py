"""Private variational inference by a flow over the parameters: Algorithm 2 of Su, Wang, Schiavazzi and Liu 2023.

Gradients are aligned (Jälkö, Prediger, Honkela and Kaski 2022, "Towards efficient DP variational inference").

Of the free energy only the expected log density touches records, and it does so through the draws of the flow alone. So hospitals
are asked for the scores of records at a few draws, which is a sum of few numbers, clipped and noised. From these the server
computes the gradient by the flow's own parameters, adds entropy and prior, and makes a step of Adam. All of that costs nothing.
The published algorithm clips and noises the gradient by the flow's parameters: more numbers, which the noise moves apart.

Every record is in every step, so that a step is one Gaussian event. What a round tells hospitals, the draws, is public.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import zuko
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from polyclinic.errors import ConfigError, DataError
from polyclinic.inference.likelihood import Likelihood
from polyclinic.privacy.streams import generator
from polyclinic.types import Arrays, Floats

# Adam's (Kingma and Ba 2015): decay of the mean, and what keeps the root from zero.
_MEAN, _LEAST = 0.9, 1e-8
#: What a reader must know of an interval.
NOT_COUNTED = "the noise of the steps, the clipping of scores, and how far the flow still is from the posterior"
_TAIL = 0.025
# Of logistic models of four parameters few scores near the posterior are longer; shortened ones pull the mean away.
_CLIP = 3.0


@dataclass(frozen=True)
class Everywhere:
    """R^k itself, in units of ``scale`` (k,) around ``centre`` (k,): a rough guess makes the fit quick."""

    centre: Tensor
    scale: Tensor

    def constrain(self, free: Tensor) -> tuple[Tensor, Tensor]:
        return self.centre + self.scale * free, self.scale.log().sum().expand(len(free))


@dataclass(frozen=True)
class FlowSettings:
    """Of the fit. steps and the noise multiplier are what is accounted.

    clip: L2 norm of a record's score, root mean square over the draws.
    draws: of parameters a step.
    rate: of Adam, falling to zero as a cosine.
    square: decay of Adam's mean square. The first draws, far from the posterior, have scores hundreds of times as long as the
    later ones; at the usual .999 they slow a thousand steps down.
    averaged: share of the last steps whose flows' parameters are averaged; 0 takes the last flow (the paper's way).
    Raises ConfigError naming the value that is out of range.
    """

    steps: int = 500
    clip: float = _CLIP
    draws: int = 16
    rate: float = 0.2
    square: float = 0.9
    averaged: float = 0.3
    transforms: int = 1
    hidden: tuple[int, ...] = (10,)
    samples: int = 4000

    def __post_init__(self) -> None:
        for name in ("steps", "draws", "transforms", "samples"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("clip", "rate"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)}.")
        for name in ("averaged", "square"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must lie in [0, 1), got {getattr(self, name)}.")


class Transport(nn.Module):
    """(n, k) parameters of (n, k) standard normal noise, and the logarithms of the map's stretch, (n,)."""

    def __init__(self, k: int, settings: FlowSettings, support: Everywhere, seed: int) -> None:
        super().__init__()
        self.support = support
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.flow = zuko.flows.MAF(k, transforms=settings.transforms, hidden_features=settings.hidden).double()

    def forward(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        free, stretch = self.flow().transform.call_and_ladj(noise)
        parameters, slope = self.support.constrain(free)
        return parameters, stretch + slope


@dataclass(frozen=True, eq=False)
class Descent:
    """Adam's way down the free energy, as a state of arrays.

    ``weights``: (P,) of the flow.
    ``first``, ``second``: Adam's moments.
    ``average``: of the last share of the weights.
    ``steps``: how many were made.

    k: parameters.
    support: its centre and scale are the mean and standard deviation of their prior.
    seed: of first weights.
    """

    k: int
    support: Everywhere
    settings: FlowSettings
    seed: int = 0

    def begin(self) -> Arrays:
        """The state before the first step."""
        weights = parameters_to_vector(Transport(self.k, self.settings, self.support, self.seed).parameters())
        start = weights.detach().numpy()
        zero = np.zeros_like(start)
        return {"weights": start, "first": zero, "second": zero, "average": start, "steps": np.zeros(1)}

    def transport(self, weights: Floats) -> Transport:
        """The flow with these weights."""
        drawn = Transport(self.k, self.settings, self.support, self.seed)
        vector_to_parameters(torch.tensor(weights), drawn.parameters())
        return drawn

    def draws(self, state: Arrays, noise: Tensor) -> Floats:
        """(m, k) parameters that the flow makes of ``noise`` (m, k)."""
        with torch.no_grad():
            return np.asarray(self.transport(state["weights"])(noise)[0].numpy())

    def gradient(self, state: Arrays, noise: Tensor, scores: Floats) -> Floats:
        """(P,) gradient of the free energy.

        Args:
            state: Whose ``weights`` the flow has.
            noise: (m, k) of the draws.
            scores: (m, k) sums of all records' scores at the draws.
        """
        transport = self.transport(state["weights"])
        parameters, stretch = transport(noise)
        prior = -((parameters - self.support.centre) / self.support.scale).square().sum(1) / 2
        # Linear in the draws, with the slopes that the records' expected log density has there.
        records = (parameters * torch.tensor(scores)).sum(1)
        slopes = torch.autograd.grad(-(prior + stretch + records).mean(), list(transport.parameters()))
        return np.asarray(parameters_to_vector(slopes).numpy())

    def step(self, state: Arrays, gradient: Floats) -> Arrays:
        """The next state, by the (P,) gradient of the free energy."""
        number, of = int(state["steps"][0]) + 1, self.settings
        first = _MEAN * state["first"] + (1 - _MEAN) * gradient
        second = of.square * state["second"] + (1 - of.square) * gradient**2
        rate = of.rate * (1 + math.cos(math.pi * (number - 1) / of.steps)) / 2
        root = np.sqrt(second) / math.sqrt(1 - of.square**number) + _LEAST
        weights = state["weights"] - rate / (1 - _MEAN**number) * first / root
        averaged = number - (of.steps - int(of.averaged * of.steps))
        average = weights if averaged <= 1 else state["average"] + (weights - state["average"]) / averaged
        return {
            "weights": weights, "first": first, "second": second, "average": average, "steps": np.array([float(number)]),
        }  # fmt: skip

    def samples(self, state: Arrays, rng: np.random.Generator) -> Floats:
        """(samples, k) parameters by the averaged flow. Raises DataError where they are not finite."""
        with torch.no_grad():
            parameters, _ = self.transport(state["average"])(
                torch.from_numpy(rng.standard_normal((self.settings.samples, self.k)))
            )
        if not bool(torch.isfinite(parameters).all()):
            raise DataError("The flow's parameters are not finite: a smaller rate or clip may help.")
        return np.asarray(parameters.numpy())


@dataclass(frozen=True, eq=False)
class Drawn:
    """A posterior by (n, k) ``samples`` of a flow."""

    samples: Floats

    def as_json(self, names: tuple[str, ...]) -> dict[str, Any]:
        """By parameter: mean, standard deviation and the middle 95 %; all correlations; what intervals do not count."""
        low, high = np.quantile(self.samples, (_TAIL, 1 - _TAIL), axis=0)
        columns = zip(names, self.samples.mean(0), self.samples.std(0, ddof=1), low, high, strict=True)
        return {
            "parameters": {
                name: {"mean": float(mean), "sd": float(deviation), "low": float(least), "high": float(most)}
                for name, mean, deviation, least, most in columns
            },
            "correlations": np.atleast_2d(np.corrcoef(self.samples.T)).tolist(), "not_counted": NOT_COUNTED,
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class FlowSums:
    """The method: what a round asks, what a record answers, what the server makes of it.

    start, scale: (k,) mean and standard deviation of the parameters' normal prior, which is public.
    settings: of the fit; ``steps`` are the rounds.  seed: of the first weights and of the draws, which are public.
    """

    likelihood: Likelihood
    start: Floats
    scale: Floats
    settings: FlowSettings
    seed: int = 0
    name: str = field(default="flow", init=False)

    @property
    def rounds(self) -> int:
        return self.settings.steps

    @property
    def width(self) -> int:
        """Numbers of a vector: a score of k numbers at each draw."""
        return self.settings.draws * len(self.start)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of a question's arrays."""
        return {"draws": (self.settings.draws, len(self.start))}

    def begin(self, patients: float) -> Arrays:
        """The state before round 1 of a table of so many records, by a public count."""
        return self._descent.begin() | {"patients": np.array([float(patients)])}

    def check_noise(self, noise: float) -> None:
        """Nothing is refused: with any noise there are steps, however blind."""

    def question(self, state: Arrays) -> Arrays:
        """The draws of the flow."""
        return {"draws": self._descent.draws(state, self._noise(state))}

    def contributions(self, question: Arrays, records: Floats) -> Floats:
        """(n, width) scores of records (n, d) at the draws, each draw with equal weight, by the clip, not clipped here.

        Raises ConfigError for draws that are not finite.
        """
        draws = torch.tensor(question["draws"], dtype=torch.float64)  # copies, as torch aligns its own arrays alike
        if not bool(torch.isfinite(draws).all()):
            raise ConfigError("The question has draws that are not finite.")
        given = torch.tensor(records, dtype=torch.float64)
        scores = vmap(self.likelihood.score, (0, None), out_dims=1)(draws, given)  # (n, m, k)
        return scores.flatten(1).numpy() / (self._root * self.settings.clip)

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        """The next state.

        Args:
            round: Not used.
            state: As ``begin`` or the last call returned it.
            mean: (width,) noisy sum by the number of patients.
            noise: Not used.
        """
        total = mean * (self._root * self.settings.clip * float(state["patients"][0]))
        gradient = self._descent.gradient(state, self._noise(state), total.reshape(self.settings.draws, -1))
        return {**state, **self._descent.step(state, gradient)}

    def posterior(self, state: Arrays) -> Drawn:
        """What the last state says. Raises DataError where most rounds had no sum, or the flow diverged."""
        if 2 * state["steps"][0] < self.rounds:
            raise DataError("too few hospitals answered in more than half of the rounds.")
        return Drawn(self._descent.samples(state, generator(self.seed, "posterior flow", "samples")))

    @property
    def _descent(self) -> Descent:
        support = Everywhere(torch.tensor(self.start), torch.tensor(self.scale))
        return Descent(len(self.start), support, self.settings, self.seed)

    @property
    def _root(self) -> float:
        return math.sqrt(self.settings.draws)

    def _noise(self, state: Arrays) -> Tensor:
        """(m, k) what the flow is fed in the next step."""
        source = generator(self.seed, "posterior flow", int(state["steps"][0]))
        return torch.from_numpy(source.standard_normal(self.shapes["draws"]))


def flow_settings(options: dict[str, Any], rounds: int) -> FlowSettings:
    """Of a run's options, all of them of ``OPTIONS``. Raises ConfigError naming one that is out of range."""
    settings: dict[str, Any] = {"steps": rounds}
    for name, value in options.items():
        kind, low, high = OPTIONS[name]
        good = isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
        if not (good and low <= value <= high):
            what = "numbers" if kind is float else "whole numbers"
            raise ConfigError(f"Method option {name!r} is {value!r}; allowed are {what} from {low} to {high}.")
        settings[name] = (int(value),) if name == "hidden" else kind(value)
    return FlowSettings(**settings)


#: Options of posterior.options by kind and range.
OPTIONS: dict[str, tuple[type, float, float]] = {
    "clip": (float, 1e-6, 1e6), "draws": (int, 1, 64), "rate": (float, 1e-6, 10.0), "averaged": (float, 0.0, 0.9),
    "hidden": (int, 1, 64), "transforms": (int, 1, 4),
}  # fmt: skip
