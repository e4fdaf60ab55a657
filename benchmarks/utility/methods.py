"""The methods that are compared, as configuration keys, and the few settings that each is tuned over.

The default is what a user gets who names no method. It is not tuned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

Options = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Method:
    """``base`` holds for every run; ``grid`` has what tuning chooses from; without privacy if not ``private``.

    unit: whom epsilon protects, a patient or a whole hospital.
    """

    name: str
    title: str
    base: Options = field(default_factory=dict)
    grid: tuple[Options, ...] = ({},)
    private: bool = True
    unit: str = "patient"

    def options(self, epsilon: float, chosen: Options) -> Options:
        """Configuration keys of a run with one of the grid's settings."""
        if not self.private:
            return {**self.base, **chosen, "privacy.dp": False}
        if self.unit == "hospital":
            return {**self.base, **chosen, "privacy.dp": False, "central.epsilon": epsilon}
        return {**self.base, **chosen, "privacy.epsilon": epsilon}


def _grid(*shapes: Options, **axes: Sequence[Any]) -> tuple[Options, ...]:
    """Every shape with every combination of the axes' values; an axis is a key of training, or one with its section."""
    keys = [_AXES.get(axis, f"training.{axis.replace('_', '-')}") for axis in axes]
    combined = [dict(zip(keys, values, strict=True)) for values in product(*axes.values())]
    return tuple({**shape, **more} for shape in shapes or ({},) for more in combined)


_AXES = {"rounds": "rounds", "max_grad_norm": "privacy.max-grad-norm", "central_clip_norm": "central.clip-norm"}
_FULL: Options = {"training.sample-rate": 1.0, "training.local-steps": 1, "rounds": 20}
_LONG: Options = {"training.sample-rate": 1.0, "training.local-steps": 1, "rounds": 40}
_FEW: Options = {"training.sample-rate": 0.25, "training.local-steps": 4, "rounds": 8}
_MANY: Options = {"training.sample-rate": 0.1, "training.local-steps": 10, "rounds": 5}
_POISSON: Options = {"training.sample-rate": 0.1, "training.local-steps": 10, "rounds": 15, "training.momentum": 0.0}
_HALF: Options = {"training.sample-rate": 0.5, "training.local-steps": 2, "rounds": 15, "training.momentum": 0.9}


# What tuned methods clip to, unless their grid says otherwise.
_CLIP: Options = {"privacy.max-grad-norm": 1.0}


def _over_time(name: str, title: str, noise: str, options: str = "") -> Method:
    """DP-FTRL: passes over fixed batches that take turns, with noise that cancels over the steps."""
    base = _CLIP | {
        "training.batching": "cyclic",
        "training.noise": noise,
        "training.noise-options": options,
        "training.momentum": 0.0,
    }
    return Method(name, title, base, _grid(_FEW, _MANY, learning_rate=(0.3, 1.0)) + _grid(_FEW, learning_rate=(3.0,)))


_ADAM = _grid(_FULL, learning_rate=(0.03, 0.1, 0.3, 0.6))
_KALMAN = _grid(
    {"training.momentum": 0.0}, {"training.momentum": 0.9}, denoise_gain=(0.3, 0.7), learning_rate=(1.0,)
) + _grid({"training.momentum": 0.0}, denoise_gain=(0.3,), learning_rate=(3.0,))

METHODS = (
    Method("default", "default"),
    Method("two-steps", "default, `rounds=15`, `training.local-steps=2`", {"rounds": 15, "training.local-steps": 2}),
    Method("shared-noise", "default, `shared-noise`: one noise in a secure sum",
           {"secure.aggregation": True, "secure.shared-noise": True}),
    Method("measured", "default, `standardise=measured`", {"data.standardise": "measured"}),
    Method("dp-gd", "DP-GD (full batches)", _CLIP | {"training.momentum": 0.9},
           _grid(_FULL, learning_rate=(0.3, 0.7, 1.5)) + _grid(_LONG, learning_rate=(0.15, 0.3, 0.6))),
    Method("dp-sgd", "DP-SGD (Poisson batches)", _CLIP, _grid(_POISSON, _HALF, learning_rate=(0.1, 0.3, 1.0, 2.0))),
    Method("dp-adam", "DP-Adam", _CLIP | {"training.optimizer": "adam", "training.momentum": 0.0}, _ADAM),
    Method("dp-adamw", "DP-AdamW",
           _CLIP | {"training.optimizer": "adamw", "training.momentum": 0.0, "training.weight-decay": 0.01}, _ADAM),
    Method("dp-rmsprop", "DP-RMSprop", _CLIP | {"training.optimizer": "rmsprop", "training.momentum": 0.0}, _ADAM[:-1]),
    _over_time("cyclic", "cyclic batches, independent noise", "independent"),
    _over_time("tree", "DP-FTRL, tree (Honaker)", "tree"),
    _over_time("sqrt-toeplitz", "DP-FTRL, square-root Toeplitz", "sqrt-toeplitz"),
    _over_time("banded", "DP-FTRL, banded", "banded"),
    _over_time("blt", "DP-FTRL, BLT", "blt"),
    Method("kalman", "denoised, Kalman gain", _CLIP | _FULL | {"training.denoise": "kalman"}, _KALMAN),
    Method("disk", "denoised, DiSK", _CLIP | _FULL | {"training.denoise": "disk"}, _KALMAN),
    Method("output-perturbation", "output perturbation", {"task": "output-perturbation"},
           _grid(weight_decay=(0.1, 0.3, 1.0), max_grad_norm=(2.0, 4.0))),
    Method("objective-perturbation", "objective perturbation", {"task": "objective-perturbation"},
           _grid(weight_decay=(0.01, 0.03, 0.1), max_grad_norm=(2.0, 4.0))),
    Method("central", "central DP, unit hospital",
           _FULL | {"training.momentum": 0.9, "training.sample-rate": 0.2, "training.local-steps": 5},
           _grid(rounds=(6, 15), central_clip_norm=(0.3, 1.0, 3.0), learning_rate=(1.0,)), unit="hospital"),
    Method("no-dp", "federated, without privacy",
           _FULL | {"training.momentum": 0.9, "rounds": 100, "training.learning-rate": 1.0}, private=False),
)  # fmt: skip
NAMES = tuple(method.name for method in METHODS)
