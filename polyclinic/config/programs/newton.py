"""What training by noisy Newton steps is to the configuration: it reads few keys, and has defaults of its own."""

from __future__ import annotations

from typing import Any

from polyclinic.config.programs.kinds import Kind

# A round is one sum over all patients of a logistic model.
_FIXED: dict[str, Any] = {
    "model": "logistic", "strategy": "fedavg", "strategy-options": "", "training.local-steps": 1, "training.sample-rate": 1.0,
    "training.learning-rate": 1.0, "training.momentum": 0.0, "training.weight-decay": 0.0, "training.batching": "poisson",
    "training.denoise": "none", "privacy.max-grad-norm": 1.0, "central.epsilon": 0.0, "secure.noise": 0.0,
    "upload.form": "model", "upload.precision": "full",
}  # fmt: skip
#: What ``training.optimizer`` newton takes where nothing is given.
DEFAULTS: dict[str, Any] = {
    "rounds": 8, "data.standardise": "measured", "privacy.statistics-share": 0.3,
    **{key: _FIXED[key] for key in ("training.momentum", "training.learning-rate", "privacy.max-grad-norm")},
}  # fmt: skip


def check_newton(config: Any) -> None:
    """Raises ValueError for keys that a round of one sum has no place for."""
    for key, wanted in _FIXED.items():
        if config.value(key) != wanted:
            raise ValueError(
                f"{key} is {config.value(key)!r} but training.optimizer is 'newton', whose rounds are sums over all patients of "
                f"a logistic model; set {key} to {wanted!r}, or training.optimizer to 'sgd'"
            )


#: Training a logistic regression by noisy Newton steps.
NEWTON = Kind(
    "newton", frozenset({"evaluation"}), DEFAULTS, check_newton, steps=False, shares_noise=True, server_steps=False
)
