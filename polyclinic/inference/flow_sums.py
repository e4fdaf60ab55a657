"""Algorithm 2 of Su, Wang, Schiavazzi and Liu 2023 as sums over hospitals: a step of the flow is one sum of gradients.

Unlike ``private_flow`` every record is in every step, so that a step is one Gaussian event. A round tells hospitals the
flow and the noise that it is fed, both public; what of them a record's gradient depends on each hospital computes itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyclinic.errors import ConfigError, DataError
from polyclinic.inference.likelihood import Likelihood
from polyclinic.inference.private_flow import Descent, FlowSettings, gradients_at, pushed
from polyclinic.inference.variational import Everywhere
from polyclinic.privacy.streams import generator
from polyclinic.types import Arrays, Floats

#: What a reader must know of an interval.
NOT_COUNTED = "the noise of the steps, the clipping of gradients, and how far the flow still is from the posterior"
_TAIL = 0.025
# Of logistic models of four parameters under the usual prior few gradients are longer; shorter ones pull the mean away.
_CLIP = 10.0


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
