"""Private logistic regression in one release: output perturbation, objective perturbation and the exponential mechanism.

Each hospital finds the minimiser of its own L2-regularised loss, with noise on the minimiser or in the objective. Or it
draws a model that is the likelier the lower its loss. The strategy averages them. A round is one such release; it does
not depend on the model that the round began with.

The setting ``max_grad_norm`` bounds each patient's row and with it the gradient; ``weight_decay`` is the strength of
the regulariser on the mean loss. Steps, batches, the learning rate and the optimizer have no part in it. See
docs/privacy/convex.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from dp_accounting import DpEvent, NonPrivateDpEvent
from torch import nn

from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.privacy import perturbation
from polyclinic.privacy.perturbation import BoundedRows, bounded_rows, unit_noise
from polyclinic.privacy.streams import Stream
from polyclinic.training import classification
from polyclinic.training.modules import load
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays, Builder, Reals

_MOST_STEPS, _LEAST_SHARE = 1_000, 1e-12
_NUMBERS_AT_ONCE = 2_000_000
Mechanism = Literal["output", "objective", "exponential"]


@dataclass(frozen=True)
class ConvexTask:
    """A task of the registry; ``mechanism``: noise on the minimiser or in the objective, or a draw by the objective's value."""

    name: str
    mechanism: Mechanism

    def event(self, settings: TrainSettings, begun: bool = False) -> DpEvent:
        """What one release spends; every round is a fresh one.

        Raises ConfigError unless ``weight_decay`` is positive: without it one patient may move the minimiser anywhere.
        """
        if not settings.weight_decay > 0:
            raise ConfigError(
                f"weight_decay is {settings.weight_decay:g}; task {self.name!r} needs it above 0, such as 0.1."
            )
        noise = settings.noise_multiplier
        if noise is None:
            return NonPrivateDpEvent()
        if self.mechanism == "objective":
            return perturbation.objective_event(noise, settings.perturbation, settings.release_delta)
        if self.mechanism == "exponential":
            return perturbation.exponential_event(noise)
        return perturbation.output_event(noise, settings.perturbation)

    def check(self, build: Builder, arrays: Arrays, features: int, engine: str = "auto", private: bool = True) -> None:
        """Checks that the module is one linear layer of two outputs.

        Args:
            build: Makes the model's module.
            arrays: The model's arrays.
            features: The width of a row.
            engine: Of no weight here.
            private: Of no weight here.

        Raises:
            ConfigError: It is another module.
        """
        _linear(load(build, arrays), self.name, features)

    def train(
        self, build: Builder, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings
    ) -> list[SiteUpdate]:
        """Each site's own private minimiser, as a model of the shape of ``arrays``; noise from the site's stream.

        Args:
            build: Makes the model's module.
            arrays: The model's arrays, which say shapes alone.
            work: Each site's part.
            settings: The settings of the round.

        Raises:
            ConfigError: ``check`` refuses the model, or a private call lacks ``public_patients``.
        """
        if settings.noise_multiplier is not None and any(site.public_patients is None for site in work):
            raise ConfigError("public_patients is missing: a private release needs a public divisor.")
        layer = _linear(load(build, arrays), self.name, work[0].rows.x.shape[1])
        return [self._update(layer, arrays, site, settings) for site in work]

    evaluate = staticmethod(classification.evaluate)
    probabilities = staticmethod(classification.probabilities)

    def _update(self, layer: str, arrays: Arrays, site: SiteWork, settings: TrainSettings) -> SiteUpdate:
        bounded = _bound_rows(site.rows, settings.max_grad_norm)
        if settings.noise_multiplier is None:
            strength = settings.weight_decay * site.rows.patients
            minimiser = minimise(bounded, strength)
        else:
            assert site.public_patients is not None
            strength = perturbation.public_strength(bounded, settings.weight_decay, site.public_patients)
            minimiser = _MECHANISMS[self.mechanism](bounded, strength, settings, site.noise)
        return SiteUpdate(_as_layer(minimiser, arrays, layer), 1, _mean_loss(bounded, minimiser), {})


OUTPUT = ConvexTask("output-perturbation", "output")
OBJECTIVE = ConvexTask("objective-perturbation", "objective")
EXPONENTIAL = ConvexTask("exponential-mechanism", "exponential")


def minimise(bounded: BoundedRows, strength: float, linear: Reals | None = None) -> Reals:
    """The (p,) minimiser of sum log(1 + exp(-v . w)) + strength / 2 |w|^2 + linear . w, in float64.

    Its gradient is at most TOLERANCE times the norm of the rows, so that it lies within TOLERANCE * norm / strength of
    the exact minimiser. Newton's method, each step halved until the gradient shrinks; it always does, for the Hessian
    is positive definite.

    Args:
        bounded: The rows v, one for each patient, given the sign of the label, and the most that their norm can be.
        strength: The strength of the regulariser, above 0.
        linear: (p,) the linear term; none by default.

    Raises:
        ArithmeticError: It does not get there.
    """
    v = bounded.rows
    term = np.zeros(v.shape[1]) if linear is None else linear
    # Half of the tolerance is left for rounding.
    target = perturbation.TOLERANCE / 2 * bounded.norm

    def slope(w: Reals) -> tuple[Reals, Reals, float]:
        pull = _sigmoid(-v @ w)
        gradient = strength * w + term - pull @ v
        return pull, gradient, float(np.linalg.norm(gradient))

    w = np.zeros(v.shape[1])
    pull, gradient, size = slope(w)
    for _ in range(_MOST_STEPS):
        if size <= target:
            return w
        hessian = (v * (pull * (1 - pull))[:, None]).T @ v + strength * np.eye(len(w))
        step, share = np.linalg.solve(hessian, -gradient), 1.0
        while share > _LEAST_SHARE:
            pull, gradient, ahead = slope(w + share * step)
            if ahead <= (1 - share / 4) * size:
                break
            share /= 2
        else:
            break
        w, size = w + share * step, ahead
    raise ArithmeticError("The minimiser was not found to within the tolerance.")


def _output(bounded: BoundedRows, strength: float, settings: TrainSettings, stream: Stream) -> Reals:
    """The minimiser plus noise of ``noise_multiplier`` times its sensitivity."""
    assert settings.noise_multiplier is not None
    minimiser = minimise(bounded, strength)
    scale = settings.noise_multiplier * perturbation.minimiser_sensitivity(bounded, strength)
    return minimiser + scale * unit_noise(len(minimiser), settings.perturbation, stream)


def _objective(bounded: BoundedRows, strength: float, settings: TrainSettings, stream: Stream) -> Reals:
    """The minimiser of the objective with a random linear term, plus slack noise; stronger regularised where it must be."""
    noise, kind = settings.noise_multiplier, settings.perturbation
    assert noise is not None
    most = perturbation.determinant_epsilon(noise, kind, settings.release_delta)
    strength = max(strength, perturbation.least_strength(bounded.norm, most))
    linear = noise * bounded.norm * unit_noise(bounded.rows.shape[1], kind, stream)
    minimiser = minimise(bounded, strength, linear)
    return minimiser + perturbation.slack_noise(bounded, strength) * unit_noise(len(minimiser), kind, stream)


def _exponential(bounded: BoundedRows, strength: float, settings: TrainSettings, stream: Stream) -> Reals:
    """An exact draw of density proportional to exp(-k J), J the regularised sum of losses.

    By rejection: J less its quadratic lower bound at any point is what the convex losses lie above their tangents
    there. So a normal draw is accepted with probability exp(-k that). The point decides only how many draws it takes.
    There is no end to them: an error after so many would be a release that the charge does not cover.
    """
    assert settings.noise_multiplier is not None
    v, size = bounded.rows, bounded.rows.shape[1]
    inverse = perturbation.inverse_temperature(bounded, strength, settings.noise_multiplier)
    point = minimise(bounded, strength)
    pull = _sigmoid(-(v @ point))
    middle = (pull @ v - strength * point) / strength
    batch = 1
    while True:
        apart = middle + stream.normal((batch, size)) / np.sqrt(inverse * strength)
        above = _above_tangent(apart @ v.T, pull).sum(axis=1)
        with np.errstate(divide="ignore"):
            accepted = np.log(stream.uniform(batch)) <= -inverse * above
        if accepted.any():
            return np.asarray(point + apart[np.argmax(accepted)])
        batch = max(1, min(2 * batch, _NUMBERS_AT_ONCE // len(v)))


def _above_tangent(moved: Reals, pull: Reals) -> Reals:
    """(n, rows) how far logistic losses lie above their tangents where margins have ``moved``, of (rows,) slopes -``pull``.

    Differences of losses would round a small move to none and leave the tangent's, which decides what is drawn: this is as exact
    as the move itself, however small.
    """
    with np.errstate(divide="ignore"):
        near = np.log1p(pull * np.expm1(-np.clip(moved, -1.0, 1.0)))
        far = np.logaddexp(np.log1p(-pull), np.log(pull) - moved)
    return np.asarray(np.where(np.abs(moved) < 1.0, near, far) + pull * moved)


_MECHANISMS: dict[Mechanism, Callable[[BoundedRows, float, TrainSettings, Stream], Reals]] = {
    "output": _output, "objective": _objective, "exponential": _exponential,
}  # fmt: skip


def _bound_rows(rows: Rows, norm: float) -> BoundedRows:
    """Missing cells are zero, the mean of a standardised column; the last coordinate is the intercept's."""
    x = np.concatenate([np.nan_to_num(rows.x, nan=0.0), np.ones((len(rows.x), 1))], axis=1)
    return bounded_rows(x, 2.0 * rows.y - 1.0, rows.patient, rows.patients, norm)


def _linear(module: nn.Module, task: str, features: int) -> str:
    """The name of the module's one linear layer, with a dot behind it where it has one."""
    layers = [(name, part) for name, part in module.named_modules() if not list(part.children())]
    kinds = [type(part) for _, part in layers]
    plain = all(type(part) is nn.Sequential for part in module.modules() if list(part.children()))
    if kinds != [nn.Linear] or not plain or layers[0][1].bias is None:
        names = ", ".join(kind.__name__ for kind in kinds)
        raise ConfigError(
            f"Task {task!r} needs a convex model, one linear layer with an intercept, as 'logistic' is; this one has {names}."
        )
    name, layer = layers[0]
    if layer.out_features != 2 or layer.in_features != features:
        raise ConfigError(
            f"Task {task!r} needs a binary label and a layer from {features} features to 2 classes; "
            f"this one is from {layer.in_features} to {layer.out_features}."
        )
    return f"{name}." if name else ""


def _as_layer(w: Reals, like: Arrays, layer: str) -> Arrays:
    """w as the two outputs' weights -w/2 and w/2, whose difference is all that two classes depend on."""
    both = np.stack([-w / 2, w / 2])
    new = {f"{layer}weight": both[:, :-1], f"{layer}bias": both[:, -1]}
    return {name: new[name].astype(value.dtype) for name, value in like.items()}


def _mean_loss(bounded: BoundedRows, w: Reals) -> float:
    return float(np.logaddexp(0.0, -bounded.rows @ w).mean()) if len(bounded.rows) else float("nan")


def _sigmoid(x: Reals) -> Reals:
    return np.asarray(np.exp(-np.logaddexp(0.0, -x)))
