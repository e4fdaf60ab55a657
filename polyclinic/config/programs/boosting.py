"""What boosting is to the configuration: the models that it trains, the few keys that its rounds read, their defaults."""

from __future__ import annotations

from typing import Any

from polyclinic.config.programs.kinds import Kind
from polyclinic.config.programs.newton import FIXED

#: Models of task classification whose rounds are sums by which shape functions or the leaves of trees are made.
MODELS = ("ebm", "trees")
#: What they take where nothing is given.
DEFAULTS: dict[str, Any] = {
    "rounds": 10, "data.standardise": "measured", "privacy.statistics-share": 0.3, "training.momentum": 0.0,
    "training.learning-rate": 1.0, "privacy.max-grad-norm": 1.0,
}  # fmt: skip
_FIXED = {key: value for key, value in FIXED.items() if key not in ("model", "objective-options")}


def check_boosting(config: Any) -> None:
    """Raises ValueError for keys that a round of one sum has no place for."""
    for key, wanted in {**_FIXED, "training.optimizer": "sgd"}.items():
        if config.value(key) != wanted:
            raise ValueError(
                f"{key} is {config.value(key)!r} but model is {config.model!r}, whose rounds are sums over all patients; set "
                f"{key} to {wanted!r}"
            )


#: Training shape functions or trees.
BOOSTING = Kind(
    "boosting", frozenset({"evaluation", "objective", "objective-options", "model-options"}), DEFAULTS, check_boosting,
    steps=False, shares_noise=True, server_steps=False,
)  # fmt: skip
