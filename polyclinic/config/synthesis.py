"""The keys of synthetic patients, and what the methods take where nothing is given."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from polyclinic.config.keys import Keys
from polyclinic.config.reading import parse_assignments

if TYPE_CHECKING:
    from polyclinic.config.run import RunConfig

#: Adversarial games among the built-in models of task synthesis; the others are methods of sums.
GAMES = ("gan", "acgan", "dpgan", "ppgan", "wgan", "wgan-gp", "medgan")
#: Normalizing flows, whose density hospitals estimate by private steps.
FLOWS = ("maf", "nsf")
METHODS = ("moments", "independent", "latent", "mixture", "marginals")
#: What every run of task synthesis takes where nothing is given.
_ALWAYS: dict[str, Any] = {"model": "moments", "standardise": "none", "momentum": 0.0}
# A sum is one step of length one over all patients.
_SUMS: dict[str, Any] = {"rounds": 1, "local-steps": 1, "sample-rate": 1.0, "learning-rate": 1.0, "max-grad-norm": 1.0}
_OF_METHOD: dict[str, dict[str, Any]] = {"latent": {"rounds": 8}, "marginals": {"rounds": 4}}
# What was measured to do (docs/synthesis/games.md).
_OF_GAME: dict[str, dict[str, Any]] = {
    "gan": {
        "rounds": 30, "sample-rate": 1.0, "local-steps": 1, "learning-rate": 1.0, "max-grad-norm": 5.0, "weight-decay": 0.7,
    },
    "acgan": {
        "rounds": 200, "sample-rate": 0.1, "local-steps": 5, "learning-rate": 0.2, "max-grad-norm": 1.0, "momentum": 0.5,
        "weight-decay": 0.01,
    },
    "dpgan": {
        "rounds": 300, "sample-rate": 0.1, "local-steps": 10, "learning-rate": 5e-4, "max-grad-norm": 1.0, "optimizer": "adam",
    },
    "ppgan": {"rounds": 300, "sample-rate": 0.1, "local-steps": 5, "learning-rate": 0.05, "max-grad-norm": 1.0},
    "wgan": {"rounds": 1000, "sample-rate": 0.1, "local-steps": 5, "learning-rate": 1e-3, "optimizer": "rmsprop"},
    "wgan-gp": {"rounds": 1000, "sample-rate": 0.1, "local-steps": 5, "learning-rate": 1e-3, "optimizer": "adam"},
    "medgan": {
        "rounds": 300, "sample-rate": 0.1, "local-steps": 10, "learning-rate": 5e-4, "max-grad-norm": 1.0, "optimizer": "adam",
    },
}  # fmt: skip
_OF_FLOW: dict[str, Any] = {
    "rounds": 20, "local-steps": 10, "sample-rate": 0.3, "optimizer": "adam", "learning-rate": 0.02, "max-grad-norm": 1.0,
}  # fmt: skip


class Synthesis(Keys):
    """Task synthesis: what is drawn, and how it is judged."""

    method_options: str = Field(
        "",
        description="Options of the model of task synthesis or posterior: `classes=8, most=20` (docs/synthesis/methods.md).",
    )
    method_kind: Literal["auto", "sums", "game", "density"] = Field(
        "auto",
        description="What a synthesis model named `package.module:Name` is: a method of sums, an adversarial game or a density; "
        "auto knows the names of `polyclinic plugins`.",
    )
    condition_hospitals: int = Field(
        0,
        ge=0,
        le=1000,
        description="The number of the run's hospitals, where rows are to say of which one they are; 0: they "
        "are of all alike.",
    )
    candidates: int = Field(
        0,
        ge=0,
        description="Games: how many of the rounds' generators are kept, evenly over the run, for hospitals to choose among by "
        "report-noisy-max; 0 draws from the last one.",
    )
    selected: int = Field(1, ge=1, description="How many of the candidates rows are drawn from, alike.")
    selection_epsilon: float = Field(
        0.0,
        ge=0,
        description="What the choice among candidates costs, of epsilon and at delta 0; 0 takes a tenth of epsilon.",
    )
    baselines: bool = Field(
        True,
        description="Games and densities in a simulation: show moments and independent at the same epsilon beside them; extra "
        "training that no budget of the run covers.",
    )
    quality: bool = Field(
        True,
        description="In a simulation: show in the report how like held-out patients synthetic ones are "
        "(docs/synthesis/quality.md): exact figures, which epsilon does not cover.",
    )
    synthetic_rows: int = Field(
        2000, ge=10, le=1_000_000, description="Synthetic rows on which the classifier is trained that judges the run."
    )

    @property
    def chosen(self) -> dict[str, Any]:
        """The method's keyword arguments. Raises ConfigError when the text is not ``key=value`` pairs."""
        return {key.replace("-", "_"): value for key, value in parse_assignments(self.method_options).items()}


def synthesis_defaults(given: dict[str, Any]) -> dict[str, Any]:
    """What task synthesis takes where nothing is given; nothing for other tasks. Keys with dashes."""
    if given.get("task") != "synthesis":
        return {}
    model = str(given.get("model", _ALWAYS["model"]))
    if is_game(model, str(given.get("method-kind", "auto"))):
        return _ALWAYS | _OF_GAME.get(model, {})
    if is_density(model, str(given.get("method-kind", "auto"))):
        return _ALWAYS | _OF_FLOW
    return _ALWAYS | _SUMS | _OF_METHOD.get(model, {})


def is_game(model: str, kind: str = "auto") -> bool:
    """Whether a model of task synthesis is an adversarial game: by its name alone, for to import it would run its code."""
    return kind == "game" if kind != "auto" else _is(model, GAMES, "games")


def is_density(model: str, kind: str = "auto") -> bool:
    """Whether a model of task synthesis is a density that hospitals train step by step: by its name alone."""
    return kind == "density" if kind != "auto" else _is(model, FLOWS, "densities")


def _is(model: str, names: Sequence[str], group: str) -> bool:
    if model in (*GAMES, *FLOWS, *METHODS):  # other packages' names are slow to list
        return model in names
    return model in {point.name for point in entry_points(group=f"polyclinic.{group}")}


def check_synthesis(config: RunConfig) -> None:
    """Raises ValueError for keys that a run of task synthesis, or of another that asks for sums, cannot have."""
    if not (config.synthesis or config.posterior):
        return
    if config.synthesis and config.imputation != "mean":
        raise ValueError(
            f"imputation is {config.imputation!r} but task is 'synthesis': it keeps track of missing cells itself; set "
            "imputation to 'mean'"
        )
    for key, wanted, why in (
        ("standardise", "none", "its numbers are scaled by the schema"),
        ("central-epsilon", 0.0, "whole hospitals are not covered"),
        ("local-layers", "", "nothing stays at hospitals"),
        ("proximal-mu", 0.0, "there is no model to stay near"),
        ("upload", "model", "there is no difference to compress"),
        ("upload-precision", "full", "there is no difference to compress"),
        ("batching", "poisson", "noise over time needs one model whose steps follow each other"),
        ("denoise", "none", "noise is not filtered"),
    ):  # fmt: skip
        value = getattr(config, key.replace("-", "_"))
        if value != wanted:
            raise ValueError(f"{key} is {value!r} but task is {config.task!r}: {why}; set {key} to {wanted!r}")
    if config.strategy in ("scaffold", "ditto", "fedbn", "qfedavg"):
        raise ValueError(
            f"strategy is {config.strategy!r} but task is {config.task!r}, which averages what hospitals send; take fedavg, "
            "fedavgm, fedadam or another that starts from a mean"
        )
    if config.sums:
        for key, wanted in (
            ("strategy", "fedavg"), ("strategy-options", ""), ("local-steps", 1), ("sample-rate", 1.0),
            ("learning-rate", 1.0), ("weight-decay", 0.0),
            ("max-grad-norm", 1.0),
        ):  # fmt: skip
            value = getattr(config, key.replace("-", "_"))
            if value != wanted:
                raise ValueError(
                    f"{key} is {value!r} but the model {config.model!r} asks for sums over all patients, which no step or "
                    f"strategy changes; set {key} to {wanted!r}"
                )
    if not config.synthesis:
        return
    if config.condition_hospitals and config.sites not in (0, config.condition_hospitals):
        raise ValueError(
            f"condition-hospitals is {config.condition_hospitals} but sites is {config.sites}; rows say of which of all the "
            "run's hospitals they are: give their number, or 0"
        )
    if config.candidates and (not config.game or config.candidates < 2 or config.selected >= config.candidates):
        raise ValueError(
            f"candidates is {config.candidates} with selected {config.selected} and model {config.model!r}: a choice is among at "
            "least 2 generators of a game, and of fewer than there are; set candidates to 0 for none"
        )
    if config.candidates > config.rounds:
        raise ValueError(
            f"candidates is {config.candidates} but rounds is {config.rounds}: a round gives one generator; set candidates to at "
            "most rounds"
        )
    if config.candidates and config.dp and config.selection_epsilon >= config.epsilon:
        raise ValueError(
            f"selection-epsilon is {config.selection_epsilon:g} but epsilon is {config.epsilon:g}, of which it is a part; take "
            "less, such as a tenth"
        )
    if config.candidates and config.secure_noise:
        raise ValueError(
            f"candidates is {config.candidates} but secure-noise is {config.secure_noise:g}: each hospital's choice leaves by "
            "itself, which noise in sums does not cover; set candidates to 0"
        )
