"""The section of task synthesis, and what its methods take where nothing is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from polyclinic.config.keys import Keys, Written, with_dashes
from polyclinic.config.programs.kinds import Kind

if TYPE_CHECKING:
    from polyclinic.config.run import RunConfig
    from polyclinic.ehr.schema import Schema

#: Adversarial games among the built-in models of task synthesis; the others are methods of sums.
GAMES = ("gan", "acgan", "dpgan", "ppgan", "wgan", "wgan-gp", "medgan")
#: Normalizing flows, whose density hospitals estimate by private steps.
FLOWS = ("maf", "nsf")
METHODS = ("moments", "visits", "independent", "latent", "mixture", "marginals")
#: With more features a run that names no model takes latent classes: noisy products of all pairs are mostly noise, and a round of
#: them takes minutes (docs/synthesis/choosing.md).
MOST_FEATURES = 300
#: The methods that a schema chooses among.
USUAL = ("moments", "latent")


def _usual(rounds: int, max_grad_norm: float | None = 1.0, **training: Any) -> dict[str, Any]:
    clip = {} if max_grad_norm is None else {"privacy.max-grad-norm": max_grad_norm}
    return {"rounds": rounds} | clip | {f"training.{with_dashes(key)}": value for key, value in training.items()}


#: What every run of task synthesis takes where nothing is given.
_ALWAYS: dict[str, Any] = {"model": "moments", "data.standardise": "none", "training.momentum": 0.0}
# A sum is one step of length one over all patients.
_SUMS = _usual(1, local_steps=1, sample_rate=1.0, learning_rate=1.0)
_OF_METHOD: dict[str, dict[str, Any]] = {
    "moments": {"rounds": 2}, "visits": {"rounds": 2}, "latent": {"rounds": 8}, "marginals": {"rounds": 4},
}  # fmt: skip
# What was measured to do (docs/synthesis/games.md).
_OF_GAME = {
    "gan": _usual(30, 5.0, sample_rate=1.0, local_steps=1, learning_rate=1.0, weight_decay=0.7),
    "acgan": _usual(30, 0.5, sample_rate=1.0, local_steps=1, learning_rate=4.0, weight_decay=0.025),
    "dpgan": _usual(60, 0.5, sample_rate=1.0, local_steps=1, learning_rate=4.0, weight_decay=0.025),
    "ppgan": _usual(60, 0.5, sample_rate=1.0, local_steps=1, learning_rate=2.0, weight_decay=0.025),
    "wgan": _usual(1000, None, sample_rate=0.1, local_steps=5, learning_rate=1e-3, optimizer="rmsprop"),
    "wgan-gp": _usual(1000, None, sample_rate=0.1, local_steps=5, learning_rate=1e-3, optimizer="adam"),
    "medgan": _usual(60, 0.5, sample_rate=1.0, local_steps=1, learning_rate=4.0, weight_decay=0.025),
}
_OF_FLOW = _usual(20, local_steps=10, sample_rate=0.3, optimizer="adam", learning_rate=0.02)
#: All tables of this task's own defaults.
DEFAULTS = (_ALWAYS, _SUMS, *_OF_METHOD.values(), *_OF_GAME.values(), _OF_FLOW)


class Synthesis(Keys):
    """Task synthesis: what is drawn, and how it is judged."""

    options: Written = Field("", description="Options of the model: `classes=8, most=20` (docs/synthesis/methods.md).")
    kind: Literal["auto", "sums", "game", "density"] = Field(
        "auto",
        description="What a model named `package.module:Name` is: a method of sums, an adversarial game or a density; "
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
    rows: int = Field(
        2000, ge=10, le=1_000_000, description="Synthetic rows on which the classifier is trained that judges the run."
    )


def synthesis_kind(given: Mapping[str, Any]) -> Kind:
    """The kind of task synthesis, by its model's name alone, for to import it would run its code; ``given`` are flat keys."""
    model, asked = str(given.get("model") or _ALWAYS["model"]), str(given.get("synthesis.kind", "auto"))
    reads, sums = {"synthesis", "evaluation"}, Kind("sums", counts_patients=True, shares_noise=True, server_steps=False)
    if asked == "game" or (asked == "auto" and _is(model, GAMES, "games")):
        return replace(
            sums, name="game", reads=frozenset({*reads, "training", "synthesis.candidates", "synthesis.baselines"}),
            defaults=_ALWAYS | _OF_GAME.get(model, {}), check=check_synthesis, decays_shared=True,
        )  # fmt: skip
    if asked == "density" or (asked == "auto" and _is(model, FLOWS, "densities")):
        reads |= {"training", "synthesis.baselines"}
        return replace(sums, name="density", reads=frozenset(reads), defaults=_ALWAYS | _OF_FLOW, check=check_synthesis)
    defaults = _ALWAYS | _SUMS | _OF_METHOD.get(model, {})
    return replace(sums, reads=frozenset(reads), defaults=defaults, check=_check_sums, steps=False)


def usual_method(schema: Schema) -> str:
    """The method of a run of task synthesis that names none: ``latent`` for records of more than ``MOST_FEATURES`` features, as
    sets of many codes are, else ``moments``.

    The schema alone decides, which is public, and never a record. The coordinator and each hospital choose by this one rule.
    """
    return USUAL[_features(schema) > MOST_FEATURES]


def why_usual(schema: Schema) -> str:
    """What ``usual_method`` chooses and why, in a sentence for the user."""
    number, method = _features(schema), usual_method(schema)
    size = "at most" if number <= MOST_FEATURES else "more than"
    visits = " Its times of visits ask for --model visits." if _visits_have_times(schema) else ""
    return (
        f"{method} is the usual method for {size} {MOST_FEATURES} features, and the schema has {number:,}; --model takes another "
        f"(docs/synthesis/choosing.md).{visits}"
    )


def _visits_have_times(schema: Schema) -> bool:
    from polyclinic.ehr.schema import BEFORE_LATEST

    return any(column.name == BEFORE_LATEST and column.kind == "trajectory" for column in schema.columns)


def _features(schema: Schema) -> int:
    from polyclinic.ehr.encoding import feature_names  # takes pandas, which --help does without

    return len(feature_names(schema))


def _is(model: str, names: Sequence[str], group: str) -> bool:
    if model in (*GAMES, *FLOWS, *METHODS):  # other packages' names are slow to list
        return model in names
    return model in {point.name for point in entry_points(group=f"polyclinic.{group}")}


def check_private_sums(config: RunConfig) -> None:
    """Raises ValueError for keys that tasks cannot have whose numbers are scaled by the schema and averaged."""
    for key, wanted, why in (
        ("data.standardise", "none", "its numbers are scaled by the schema"),
        ("central.epsilon", 0.0, "whole hospitals are not covered"),
        ("upload.form", "model", "there is no difference to compress"),
        ("upload.precision", "full", "there is no difference to compress"),
        ("training.batching", "poisson", "noise over time needs one model whose steps follow each other"),
        ("training.denoise", "none", "noise is not filtered"),
    ):  # fmt: skip
        value = config.value(key)
        if value != wanted:
            raise ValueError(f"{key} is {value!r} but task is {config.task!r}: {why}; set {key} to {wanted!r}")
    if config.strategy == "qfedavg":
        raise ValueError(
            f"strategy is {config.strategy!r} but task is {config.task!r}, which averages what hospitals send; take fedavg, "
            "fedavgm, fedadam or another that starts from a mean"
        )


def check_one_sum(config: RunConfig) -> None:
    """Raises ValueError for keys that would change what a round of one sum is."""
    for key, wanted in (
        ("strategy", "fedavg"), ("strategy-options", ""), ("training.local-steps", 1), ("training.sample-rate", 1.0),
        ("training.learning-rate", 1.0), ("training.weight-decay", 0.0), ("training.radius", 0.0),
        ("privacy.max-grad-norm", 1.0),
    ):  # fmt: skip
        value = config.value(key)
        if value != wanted:
            raise ValueError(
                f"{key} is {value!r} but the model {config.model!r} asks for sums over all patients, which no step or "
                f"strategy changes; set {key} to {wanted!r}"
            )


def _check_sums(config: RunConfig) -> None:
    check_synthesis(config)
    check_one_sum(config)


def check_synthesis(config: RunConfig) -> None:
    """Raises ValueError for keys that task synthesis cannot be run with."""
    if config.data.imputation != "mean":
        raise ValueError(
            f"data.imputation is {config.data.imputation!r} but task is 'synthesis': it keeps track of missing cells itself; set "
            "data.imputation to 'mean'"
        )
    check_private_sums(config)
    if config.synthesis.condition_hospitals and config.sites not in (0, config.synthesis.condition_hospitals):
        raise ValueError(
            f"synthesis.condition-hospitals is {config.synthesis.condition_hospitals} but sites is {config.sites}; "
            "rows say of which of all the run's hospitals they are: give their number, or 0"
        )
    if config.synthesis.candidates and (
        "synthesis.candidates" not in config.kind.reads
        or config.synthesis.candidates < 2
        or config.synthesis.selected >= config.synthesis.candidates
    ):
        raise ValueError(
            f"synthesis.candidates is {config.synthesis.candidates} with synthesis.selected {config.synthesis.selected} "
            f"and model {config.model!r}: a choice is among at "
            "least 2 generators of a game, and of fewer than there are; set synthesis.candidates to 0 for none"
        )
    if config.synthesis.candidates > config.rounds:
        raise ValueError(
            f"synthesis.candidates is {config.synthesis.candidates} but rounds is {config.rounds}: a round gives one "
            "generator; set synthesis.candidates to at most rounds"
        )
    if (
        config.synthesis.candidates
        and config.privacy.dp
        and config.synthesis.selection_epsilon >= config.privacy.epsilon
    ):
        raise ValueError(
            f"synthesis.selection-epsilon is {config.synthesis.selection_epsilon:g} but privacy.epsilon is "
            f"{config.privacy.epsilon:g}, of which it is a part; take "
            "less, such as a tenth"
        )
    if config.synthesis.candidates and config.secure.noise:
        raise ValueError(
            f"synthesis.candidates is {config.synthesis.candidates} but secure.noise is {config.secure.noise:g}: each "
            "hospital's choice leaves by itself, which noise in sums does not cover; set synthesis.candidates to 0"
        )
