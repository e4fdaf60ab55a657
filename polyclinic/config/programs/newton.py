"""What training by noisy Newton steps is to the configuration: when a run takes them, the few keys they read, their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from polyclinic.config.keys import with_dashes
from polyclinic.config.learning import Training
from polyclinic.config.programs.kinds import Kind
from polyclinic.config.protection import Privacy

if TYPE_CHECKING:
    from polyclinic.ehr.schema import Schema

#: With more features ``training.optimizer`` auto takes gradient steps: sums of all their products would be mostly noise.
MOST_FEATURES = 300
#: Keys that a round of one sum over all patients of a logistic model has no place for, and their values.
FIXED: dict[str, Any] = {
    "model": "logistic", "strategy": "fedavg", "strategy-options": "", "objective-options": "", "training.local-steps": 1,
    "training.sample-rate": 1.0, "training.learning-rate": 1.0, "training.momentum": 0.0, "training.weight-decay": 0.0,
    "training.radius": 0.0,
    "training.batching": "poisson", "training.denoise": "none", "privacy.max-grad-norm": 1.0, "central.epsilon": 0.0,
    "secure.noise": 0.0, "upload.form": "model", "upload.precision": "full",
}  # fmt: skip
_OBJECTIVES = ("", "classification")
#: What ``training.optimizer`` newton takes where nothing is given.
DEFAULTS: dict[str, Any] = {
    "rounds": 8, "data.standardise": "measured", "privacy.statistics-share": 0.3,
    **{key: FIXED[key] for key in ("training.momentum", "training.learning-rate", "privacy.max-grad-norm")},
}  # fmt: skip
#: Keys on which its defaults depend.
READS = ("data.standardise", "privacy.patients-per-site")
_OF_MEASURING = ("data.standardise", "privacy.statistics-share")
#: Keys that describe gradient steps, with their defaults.
STEPS = {
    f"training.{with_dashes(name)}": value for name, value in Training() if name not in ("optimizer", "recalibrate")
}
STEPS["privacy.max-grad-norm"] = Privacy().max_grad_norm


def check_newton(config: Any) -> None:
    """Raises ValueError for keys that a round of one sum has no place for."""
    objective = config.objective if config.objective in _OBJECTIVES else _OBJECTIVES[0]
    for key, wanted in {**FIXED, "objective": objective}.items():
        if config.value(key) != wanted:
            raise ValueError(
                f"{key} is {config.value(key)!r} but training.optimizer is 'newton', whose rounds are sums over all patients of "
                f"a logistic model; set {key} to {wanted!r}, or training.optimizer to 'sgd'"
            )


def newton_kind(given: Mapping[str, Any]) -> Kind:
    """Training a logistic regression by noisy Newton steps; ``given`` are flat keys.

    A public number of patients leaves nothing to ask for, and only where columns are measured is a larger share of epsilon due.
    """
    public = not _is(given.get("privacy.patients-per-site", 0), 0)
    measures = given.get("data.standardise", "public" if public else "measured") == "measured"
    defaults = {key: value for key, value in DEFAULTS.items() if measures or key not in _OF_MEASURING}
    return Kind(
        "newton", frozenset({"evaluation", "objective"}), defaults, check_newton, steps=False, shares_noise=True,
        server_steps=False,
    )  # fmt: skip


def may_suit(given: Mapping[str, Any]) -> bool:
    """Whether ``training.optimizer`` auto may take Newton steps, by the flat keys that were given.

    It may where no key asks for what Newton steps lack, and none describes gradient steps. A key at its default describes them
    too, unless auto was given as well.
    """
    usual = "training.optimizer" in given
    return given.get("objective", "") in _OBJECTIVES and all(
        usual and _is(value, STEPS[key]) if key in STEPS else key not in FIXED or _is(value, FIXED[key])
        for key, value in given.items()
    )


def suits(schema: Schema) -> bool:
    """Whether ``training.optimizer`` auto then takes them: the label has classes, and features are not too many."""
    from polyclinic.ehr.encoding import feature_names  # takes pandas, which --help does without

    return schema.has_classes and len(feature_names(schema)) <= MOST_FEATURES


def _is(given: Any, value: Any) -> bool:
    """Whether a value, which may be as a file or a command has it, is ``value``."""
    try:
        return given == value or float(given) == float(value)
    except (TypeError, ValueError, OverflowError):
        return str(given) == str(value)
