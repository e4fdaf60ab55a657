"""The configuration of a run: one model that TOML files, ``-c``, flags and Flower's run-config all fill.

Keys are written with dashes outside Python (``sample-rate``) and with underscores inside. Every value is checked
here, before a hospital is contacted, so a wrong key or an impossible value costs no privacy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError, model_validator

from polyclinic.config.checks import check_together
from polyclinic.config.execution import Conditions, Execution
from polyclinic.config.keys import dashed
from polyclinic.config.learning import Data, Model, Rounds, Training, Upload
from polyclinic.config.posterior import POSTERIOR_DEFAULTS, Posterior, posterior_defaults
from polyclinic.config.protection import Central, HeldOut, Privacy, SecureSum
from polyclinic.config.synthesis import Synthesis, is_density, is_game, synthesis_defaults
from polyclinic.errors import ConfigError, nearest

# Keys that say where and how a run goes on and how it is told, and not what hospitals release.
_INDECISIVE = {
    "out", "timeout", "workers", "ray-address", "evaluate-every", "groups", "checkpoint-every", "checkpoints-kept",
    "overlap", "resume", "meant", "tracker", "tracker-place", "quality",
    "metrics", "metrics-epsilon", "private-evaluations",
}  # fmt: skip
#: What a task takes where nothing is given: a convex task is one release, and needs a regulariser.
_TASK_DEFAULTS: dict[str, dict[str, Any]] = {
    "output-perturbation": {"rounds": 1, "max-grad-norm": 2.0, "weight-decay": 0.1},
    "objective-perturbation": {"rounds": 1, "max-grad-norm": 2.0, "weight-decay": 0.03},
    "posterior": POSTERIOR_DEFAULTS,
}
#: What a strategy takes where nothing is given, because it is defined so.
_STRATEGY_DEFAULTS: dict[str, dict[str, Any]] = {
    "fedsgd": {"local-steps": 1, "sample-rate": 1.0, "momentum": 0.0},
    "fedprox": {"local-steps": 2},
    "scaffold": {"local-steps": 2, "momentum": 0.0},
}
#: What an optimizer takes where nothing is given: momentum makes the first steps of RMSprop, which are long, diverge.
_OPTIMIZER_DEFAULTS: dict[str, dict[str, Any]] = {"rmsprop": {"momentum": 0.0}}
#: What a sum with shared noise takes where nothing is given: the server gives its steps their momentum.
_SHARED_DEFAULTS: dict[str, Any] = {"strategy": "fedavgm", "momentum": 0.0}
_SHARED_OPTIONS = {"strategy-options": "server-momentum=0.9"}


def _defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the task, the strategy, the optimizer and shared noise take where nothing is given; keys with dashes."""
    strategy = given.get("strategy")
    found = _OPTIMIZER_DEFAULTS.get(str(given.get("optimizer")), {}) | _TASK_DEFAULTS.get(str(given.get("task")), {})
    found |= posterior_defaults(given) | _STRATEGY_DEFAULTS.get(str(strategy), {}) | synthesis_defaults(dict(given))
    if str(given.get("shared-noise")).lower() == "true" and given.get("task") not in ("synthesis", "posterior"):
        found |= _SHARED_DEFAULTS | (_SHARED_OPTIONS if strategy in (None, "fedavgm") else {})
    return found


# Pydantic lists the fields of the last base first.
class RunConfig(
    Execution, Central, HeldOut, Privacy, Conditions, SecureSum, Upload, Training, Rounds, Posterior, Synthesis, Model, Data
):  # fmt: skip
    """Everything that decides a run's result. Immutable; every field has a default that works."""

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        given = {dashed(key): value for key, value in values.items()}
        return _defaults(given) | given | {"meant": ""}

    @model_validator(mode="after")
    def _possible(self) -> RunConfig:
        check_together(self)
        return self

    @property
    def keeps_state(self) -> bool:
        """Whether a hospital keeps something of a round (moments, momentum, what was not sent) for its next one."""
        stepwise = self.optimizer != "sgd" or self.momentum > 0 or self.batching == "cyclic" or self.denoise != "none"
        stays = self.evaluates_own or self.strategy == "scaffold"
        return self.upload_share < 1 or stays or (stepwise and not self.one_release)

    @property
    def asks_statistics(self) -> bool:
        """Whether hospitals are asked for sums over their patients before training; under privacy they are paid for.

        Without privacy a plain update tells its weight, but under masks only what the server knows can weigh.
        """
        weighed = self.secure_aggregation and not self.secure_noise
        wanted = self.dp or weighed or self.synthesis
        counted = (
            self.posterior and not self.dp
        )  # information is of so many patients; the public number is of noise alone
        return self.standardise == "measured" or counted or (self.patients_per_site == 0 and wanted)

    @property
    def evaluates_own(self) -> bool:
        """Whether a hospital has arrays of its own, with which it evaluates."""
        return bool(self.local_layers) or self.strategy in ("fedbn", "ditto")

    @property
    def one_release(self) -> bool:
        """Whether a round is one release, without steps and batches: of a minimiser, or of a sum."""
        return self.task in _TASK_DEFAULTS or self.sums

    @property
    def synthesis(self) -> bool:
        """Whether what is learned draws synthetic patients."""
        return self.task == "synthesis"

    @property
    def game(self) -> bool:
        """Whether that is by an adversarial game."""
        return self.synthesis and is_game(self.model, self.method_kind)

    @property
    def density(self) -> bool:
        """Whether that is by a density, as of a normalizing flow."""
        return self.synthesis and is_density(self.model, self.method_kind)

    @property
    def sums(self) -> bool:
        """Whether a round is one sum over patients."""
        return self.posterior or (self.synthesis and not self.game and not self.density)

    @property
    def posterior(self) -> bool:
        """Whether what is learned is a posterior of a named likelihood's parameters."""
        return self.task == "posterior"

    @property
    def kind(self) -> str:
        """Which of ``polyclinic.programs`` the run is."""
        if self.posterior:
            return "posterior"
        if self.synthesis:
            return "game" if self.game else "density" if self.density else "sums"
        return "convex" if self.one_release else "supervised"

    @property
    def selection_cost(self) -> float:
        """Pure epsilon of the choice among candidates; 0 without a choice, or without privacy."""
        return (self.selection_epsilon or self.epsilon / 10) if self.candidates and self.dp else 0.0

    def flat(self) -> dict[str, bool | int | float | str]:
        """Dashed keys to plain values, as Flower's run-config carries them; ``meant`` so that ``from_flower`` reads it back."""
        plain, default = self._plain(), type(self)()._plain()
        usual = default | _defaults(plain)
        return plain | {"meant": ",".join(key for key in plain if plain[key] == default[key] != usual[key])}

    def _plain(self) -> dict[str, bool | int | float | str]:
        return dict(self.model_dump(by_alias=True))

    @classmethod
    def from_flower(cls, values: Mapping[str, Any]) -> RunConfig:
        """The configuration from Flower's run-config, which holds every key of the app: one at its default counts as not given,
        so that tasks and strategies take their own, unless ``meant`` names it.

        Raises ConfigError as ``build`` does.
        """
        meant, default = str(values.get("meant", "")).split(","), cls()._plain()
        return cls.build(
            {key: value for key, value in values.items() if key in meant or value != default.get(dashed(key))}
        )

    def given(self) -> dict[str, bool | int | float | str]:
        """``flat`` with only what is not usual for what else is given: others then take their own defaults for the rest."""
        usual = type(self)()._plain() | _defaults(self._plain())
        named = ("task", "strategy")
        return {key: value for key, value in self._plain().items() if key in named or value != usual[key]}

    def decisive(self) -> dict[str, bool | int | float | str]:
        """``flat`` with only the keys that decide what comes out."""
        return {key: value for key, value in self.flat().items() if key not in _INDECISIVE}

    @classmethod
    def build(cls, *layers: Mapping[str, Any]) -> RunConfig:
        """The configuration from layers of dashed or underscored keys, later layers first in rank.

        Raises ConfigError with the key, its value, what is allowed and the nearest known name.
        """
        known = {dashed(name) for name in cls.model_fields}
        merged: dict[str, Any] = {}
        for layer in layers:
            for key, value in layer.items():
                name = dashed(key)
                if name not in known:
                    raise ConfigError(f"Unknown configuration key {key!r}.{nearest(name, known)}")
                merged[name] = value
        try:
            return cls.model_validate(merged)
        except ValidationError as error:
            raise ConfigError(_sentence(error)) from None


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    message += "" if message.endswith((".", "?")) else "."
    if not first["loc"]:
        return f"Impossible configuration: {message}"
    return f"Configuration key {dashed(str(first['loc'][0]))!r} has the value {first['input']!r}, which {message}"
