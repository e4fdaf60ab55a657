"""Private variational inference by a flow over the parameters: Algorithm 2 of Su, Wang, Schiavazzi and Liu 2023.

Of the free energy only the records' part touches records: its gradient is taken record by record, clipped and noised; the
entropy and the prior are added afterwards, which costs nothing. The flow sees draws alone, never records.

``FlowSums`` is the same as sums over hospitals: a step of the flow is one sum of gradients. Unlike in ``private_flow`` every
record is in every step, so that a step is one Gaussian event. A round tells hospitals the flow and the noise that it is fed, both
public; what of them a record's gradient depends on each hospital computes itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import zuko
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from polyclinic.errors import ConfigError, DataError
from polyclinic.inference.likelihood import Gaussian, Likelihood
from polyclinic.privacy.clipping import clipped_sum
from polyclinic.privacy.streams import generator
from polyclinic.types import Arrays, Floats

# Adam's (Kingma and Ba 2015): decay of the mean, decay of the mean square, what keeps the root from zero.
_MEAN, _SQUARE, _LEAST = 0.9, 0.999, 1e-8
#: What a reader must know of an interval.
NOT_COUNTED = "the noise of the steps, the clipping of gradients, and how far the flow still is from the posterior"
_TAIL = 0.025
# Of logistic models of four parameters under the usual prior few gradients are longer; shorter ones pull the mean away.
_CLIP = 10.0


@dataclass(frozen=True)
class Everywhere:
    """R^k itself, in units of ``scale`` (k,) around ``centre`` (k,): a rough guess makes the fit quick."""

    centre: Tensor
    scale: Tensor

    def constrain(self, free: Tensor) -> tuple[Tensor, Tensor]:
        return self.centre + self.scale * free, self.scale.log().sum().expand(len(free))


@dataclass(frozen=True)
class FlowSettings:
    """Of the fit. steps, sample_rate and the noise multiplier are what is accounted: ``dpsgd_event``.

    clip: L2 norm of a record's gradient.  draws: of parameters a step.  rate: of Adam, falling to zero as a cosine.
    averaged: share of the last steps whose flows' parameters are averaged; 0 takes the last flow (the paper's way).
    Raises ConfigError naming the value that is out of range.
    """

    steps: int = 500
    sample_rate: float = 1 / 12
    clip: float = 1.0
    draws: int = 16
    rate: float = 0.2
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
        if not 0 < self.sample_rate <= 1:
            raise ConfigError(f"sample_rate must lie in (0, 1], got {self.sample_rate}.")
        if not 0 <= self.averaged < 1:
            raise ConfigError(f"averaged must lie in [0, 1), got {self.averaged}.")


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
        found, slope = self.support.constrain(free)
        return found, stretch + slope


def pushed(drawn: nn.Module, noise: Tensor) -> tuple[Tensor, Tensor]:
    """(m, k) parameters of ``noise`` (m, k), and how they change with the flow's own: (m, k, P)."""
    weights = {name: value.detach() for name, value in drawn.named_parameters()}

    def one(given: dict[str, Tensor], z: Tensor) -> Tensor:
        found: Tensor = functional_call(drawn, given, (z[None],))[0][0]
        return found

    slopes = vmap(jacrev(one), (None, 0))(weights, noise)
    with torch.no_grad():
        parameters, _ = drawn(noise)
    return parameters, torch.cat([slopes[name].flatten(2) for name in weights], 2)


def gradients_at(likelihood: Likelihood, parameters: Tensor, jacobian: Tensor, records: Tensor) -> Tensor:
    """(n, P) of records (n, d): gradient of each one's mean log density over what ``pushed`` gives."""
    scores = vmap(likelihood.score, (0, None), out_dims=1)(parameters, records)  # (n, m, k)
    return scores.flatten(1) @ jacobian.flatten(0, 1) / len(parameters)


def record_gradients(likelihood: Likelihood, drawn: nn.Module, noise: Tensor, records: Tensor) -> Tensor:
    """(n, P) of each record: gradient of its expected log density under the flow, over ``noise`` (m, k), by the P parameters."""
    return gradients_at(likelihood, *pushed(drawn, noise), records)


@dataclass(frozen=True, eq=False)
class Descent:
    """Adam's way down the free energy, as a state of arrays: ``weights`` (P,) of the flow, Adam's ``first`` and ``second``
    moments, the ``average`` of the last share of the weights, and how many ``steps`` were made.

    k: parameters.  support: its centre and scale are the mean and standard deviation of their prior.  seed: of first weights.
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

    def step(self, state: Arrays, noise: Tensor, records: Floats) -> Arrays:
        """The next state. noise: (m, k) of the draws; records: (P,) gradient of all records' expected log density there."""
        drawn = self.transport(state["weights"])
        parameters, stretch = drawn(noise)
        prior = -((parameters - self.support.centre) / self.support.scale).square().sum(1) / 2
        own = torch.autograd.grad(-(prior + stretch).mean(), list(drawn.parameters()))
        gradient = parameters_to_vector(own).numpy() - records
        number, of = int(state["steps"][0]) + 1, self.settings
        first = _MEAN * state["first"] + (1 - _MEAN) * gradient
        second = _SQUARE * state["second"] + (1 - _SQUARE) * gradient**2
        rate = of.rate * (1 + math.cos(math.pi * (number - 1) / of.steps)) / 2
        root = np.sqrt(second) / math.sqrt(1 - _SQUARE**number) + _LEAST
        weights = state["weights"] - rate / (1 - _MEAN**number) * first / root
        averaged = number - (of.steps - int(of.averaged * of.steps))
        average = weights if averaged <= 1 else state["average"] + (weights - state["average"]) / averaged
        return {
            "weights": weights, "first": first, "second": second, "average": average, "steps": np.array([float(number)]),
        }  # fmt: skip

    def samples(self, state: Arrays, rng: np.random.Generator) -> Floats:
        """(samples, k) parameters by the averaged flow. Raises DataError where they are not finite."""
        with torch.no_grad():
            found, _ = self.transport(state["average"])(
                torch.from_numpy(rng.standard_normal((self.settings.samples, self.k)))
            )
        if not bool(torch.isfinite(found).all()):
            raise DataError("The flow's parameters are not finite: a smaller rate or clip may help.")
        return np.asarray(found.numpy())


def private_flow(
    likelihood: Likelihood, tables: list[Tensor], support: Everywhere, noise_multiplier: float, rng: np.random.Generator,
    settings: FlowSettings | None = None, seed: int = 0,
) -> Gaussian:  # fmt: skip
    """Mean and covariance of a flow's posterior over hospitals' tables (n_h, d), one record a patient, under the prior
    N(centre, scale^2) of ``support``.

    Each step takes every record with probability ``sample_rate``; the noise is one Gaussian in the sum over hospitals.
    Neighbouring relation: add or remove one patient. It spends ``dpsgd_event(sample_rate, noise_multiplier, steps)``.
    Raises DataError where the flow's parameters become infinite.
    """
    settings = settings or FlowSettings()
    descent = Descent(len(likelihood.names), support, settings, seed)
    state = descent.begin()
    for _ in range(settings.steps):
        noise = torch.from_numpy(rng.standard_normal((settings.draws, descent.k)))
        batches = [table[torch.from_numpy(rng.uniform(size=len(table)) < settings.sample_rate)] for table in tables]
        drawn = descent.transport(state["weights"])
        sums = [
            clipped_sum(record_gradients(likelihood, drawn, noise, batch), settings.clip).total.numpy()
            for batch in batches
            if len(batch)
        ]
        private = rng.standard_normal(len(state["weights"])) * (noise_multiplier * settings.clip)
        state = descent.step(state, noise, sum(sums, private) / settings.sample_rate)
    found = descent.samples(state, rng)
    return Gaussian(found.mean(0), np.cov(found.T))


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
    settings: of the fit; ``steps`` are the rounds, and ``sample_rate`` takes no part.  seed: of the first weights and of the
    draws, which are public.
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
        """Numbers of a vector: the flow's P parameters."""
        return len(self._descent.begin()["weights"])

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of a question's arrays."""
        return {"flow": (self.width,), "draws": (self.settings.draws, len(self.start))}

    def begin(self, patients: float) -> Arrays:
        """The state before round 1 of a table of so many records, by a public count."""
        return self._descent.begin() | {"patients": np.array([float(patients)])}

    def check_noise(self, noise: float) -> None:
        """Nothing is refused: with any noise there are steps, however blind."""

    def question(self, state: Arrays) -> Arrays:
        """The flow, and the noise that makes draws of it."""
        draws = generator(self.seed, "posterior flow", int(state["steps"][0]))
        return {"flow": state["weights"], "draws": draws.standard_normal(self.shapes["draws"])}

    def contributions(self, question: Arrays, records: Floats) -> Floats:
        """(n, width) gradients of records (n, d), by the clip, not clipped here.

        Raises ConfigError for a flow whose draws, or their slopes, are not finite.
        """
        parameters, jacobian = _pushed(
            self.settings, self.start.tobytes(), self.scale.tobytes(), question["flow"].tobytes(), question["draws"].tobytes()
        )  # fmt: skip
        given = torch.tensor(records, dtype=torch.float64)  # a copy, as torch aligns its own arrays alike
        return gradients_at(self.likelihood, parameters, jacobian, given).numpy() / self.settings.clip

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        """The next state. mean: (width,) noisy sum by the number of patients."""
        draws = torch.from_numpy(self.question(state)["draws"])
        total = mean * (self.settings.clip * float(state["patients"][0]))
        return {**state, **self._descent.step(state, draws, total)}

    def posterior(self, state: Arrays) -> Drawn:
        """What the last state says. Raises DataError where most rounds had no sum, or the flow diverged."""
        if 2 * state["steps"][0] < self.rounds:
            raise DataError("too few hospitals answered in more than half of the rounds.")
        return Drawn(self._descent.samples(state, generator(self.seed, "posterior flow", "samples")))

    @property
    def _descent(self) -> Descent:
        return _descent(self.settings, self.start, self.scale, self.seed)


def _descent(settings: FlowSettings, start: Floats, scale: Floats, seed: int = 0) -> Descent:
    return Descent(len(start), Everywhere(torch.tensor(start), torch.tensor(scale)), settings, seed)


@lru_cache(maxsize=4)
def _pushed(settings: FlowSettings, start: bytes, scale: bytes, flow: bytes, draws: bytes) -> tuple[Tensor, Tensor]:
    """``pushed`` of a question: a hospital needs it several times in a round, and it is the same for all records."""
    centre, width, weights, noise = (np.frombuffer(part) for part in (start, scale, flow, draws))
    drawn = _descent(settings, centre, width).transport(weights)
    parameters, jacobian = pushed(drawn, torch.tensor(noise).reshape(-1, len(centre)))
    if not bool(torch.isfinite(parameters).all() and torch.isfinite(jacobian).all()):
        raise ConfigError("The question's flow gives draws that are not finite.")
    return parameters, jacobian


def flow_settings(options: dict[str, Any], rounds: int) -> FlowSettings:
    """Of a run's options, all of them of ``OPTIONS``. Raises ConfigError naming one that is out of range."""
    found: dict[str, Any] = {"steps": rounds, "sample_rate": 1.0, "clip": _CLIP}
    for name, value in options.items():
        kind, low, high = OPTIONS[name]
        good = isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
        if not (good and low <= value <= high):
            what = "numbers" if kind is float else "whole numbers"
            raise ConfigError(f"Method option {name!r} is {value!r}; allowed are {what} from {low} to {high}.")
        found[name] = (int(value),) if name == "hidden" else kind(value)
    return FlowSettings(**found)


#: Options of posterior.options by kind and range.
OPTIONS: dict[str, tuple[type, float, float]] = {
    "clip": (float, 1e-6, 1e6), "draws": (int, 1, 64), "rate": (float, 1e-6, 10.0), "averaged": (float, 0.0, 0.9),
    "hidden": (int, 1, 64), "transforms": (int, 1, 4),
}  # fmt: skip
