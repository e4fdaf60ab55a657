"""A run of task synthesis at the server: its strategy, what judges it round by round, and what it leaves."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.serverapp.strategy import Strategy

from polyclinic.config import RunConfig
from polyclinic.ehr.encoding import encode
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.plugins import density_of, game_of, layout_of, sums_method
from polyclinic.privacy.streams import generator
from polyclinic.server.cohort import secure_threshold
from polyclinic.server.sites import Site
from polyclinic.server.state import RunState
from polyclinic.strategies.fedflow import FedFlow
from polyclinic.strategies.fedgan import FedGAN
from polyclinic.strategies.fedsums import SUM, FedSums
from polyclinic.synthesis.games.state import first_state
from polyclinic.synthesis.games.synthesizer import GeneratedRows
from polyclinic.synthesis.sums import class_frequencies
from polyclinic.synthesis.synthesizer import Synthesizer
from polyclinic.types import Arrays

# Hospitals beside the one that may look on share the noise (``config.derived.secure_terms``).
_ONLOOKERS = 1


def check_synthesis(config: RunConfig, schema: Schema) -> None:
    """Raises ConfigError for a method that does not exist, does not go with the schema, or asks other rounds than the run has."""
    if config.game:
        layout = layout_of(config, schema)
        first_state(game_of(config, layout), layout, config.seed)
    if config.density:
        density_of(config, layout_of(config, schema))
    if not config.sums:
        return
    method = sums_method(config, schema)
    if method.rounds != config.rounds:
        raise ConfigError(
            f"Configuration key 'rounds' has the value {config.rounds}, but the model {config.model!r} asks for {method.rounds} "
            f"sums, one a round; set rounds to {method.rounds}."
        )
    if config.secure_aggregation and getattr(method, "separate", False):
        raise ConfigError(
            f"Configuration key 'model' has the value {config.model!r}, which keeps hospitals' sums apart, but "
            "secure-aggregation opens their total alone; set secure-aggregation to false, or take model 'moments'."
        )


def class_counts(config: RunConfig, sites: Sequence[Site], totals: Sequence[np.ndarray]) -> list[float]:
    """Noisy counts of the classes of all rows, from each site's of the label.

    Raises ConfigError where the run conditions on another number of hospitals than there are.
    """
    if not config.condition_hospitals:
        return [float(count) for count in np.sum(totals, axis=0)]
    hospitals = config.condition_hospitals
    if max(site.index for site in sites) >= hospitals:
        raise ConfigError(
            f"Configuration key 'condition-hospitals' has the value {hospitals}, but {len(sites)} hospitals take part; give "
            "their number."
        )
    found = np.zeros((len(totals[0]), hospitals))
    for site, total in zip(sites, totals, strict=True):
        found[:, site.index] = total
    return [float(count) for count in found.ravel()]


def first_arrays_of(config: RunConfig, schema: Schema, classes: Sequence[float]) -> Arrays:
    """The arrays that hospitals are sent in the first round."""
    state = {"classes": np.ones(1) if config.posterior else _frequencies(config, classes, schema)}
    return {SUM: np.zeros(sums_method(config, schema).size(1, state))}


def synthesis_strategy(base: Strategy, config: RunConfig, schema: Schema, state: RunState) -> Strategy:
    """The strategy of the run, around ``base``, which averages what hospitals send."""
    if config.posterior:
        return FedSums(base, sums_method(config, schema), np.ones(1))
    layout, classes = layout_of(config, schema), _frequencies(config, state.classes, schema)
    if config.sums:
        return FedSums(base, sums_method(config, schema), classes)
    if config.density:
        return FedFlow(base, density_of(config, layout), classes)
    rate = state.learning_rate or 0.0
    return FedGAN(
        base, game_of(config, layout), layout, classes, rounds=config.rounds, critic_steps=config.local_steps, rate=rate,
        decay=rate * config.weight_decay if config.shared_noise else 0.0, candidates=config.candidates, seed=config.seed,
    )  # fmt: skip


def _frequencies(config: RunConfig, classes: Sequence[float], schema: Schema) -> np.ndarray:
    """Of the label, from counts that were paid for; where there are none, all alike."""
    return class_frequencies(np.array(classes or [1.0] * layout_of(config, schema).classes))


def tell_noise(strategy: Strategy, config: RunConfig, state: RunState, sites: Sequence[Site], cohort: int) -> None:
    """Say how noisy the mean over ``sites`` is, of ``cohort`` that were asked, and over how many patients."""
    if not isinstance(strategy, FedSums) or not state.public_patients:
        return
    noise, patients = state.noise_multiplier or 0.0, [state.public_patients[site.name] for site in sites]
    strategy.noise, strategy.patients = noise_of_mean(config, noise, patients, cohort), sum(patients)
    strategy.noises = {str(site.id): noise / count for site, count in zip(sites, patients, strict=True)}


def noise_of_mean(config: RunConfig, noise_multiplier: float, patients: Sequence[float], cohort: int) -> float:
    """Standard deviation in each entry of the mean over hospitals of so many ``patients``, of ``cohort`` that were asked.

    With what a secure sum rounds off: a hospital's entries go to the grid at random, or its sum's to the nearest point.
    """
    total, shares = sum(patients), float(len(patients))
    if config.shared_noise:
        shares /= secure_threshold(config, cohort) - _ONLOOKERS
    noise = noise_multiplier * math.sqrt(shares) / total
    if not config.secure_aggregation:
        return noise
    largest = config.max_grad_norm if config.shared_noise else config.secure_clip_norm * max(patients)
    rounding = largest / 2 ** (config.secure_bits + 1) * math.sqrt(len(patients)) / total
    return math.hypot(noise, rounding)


def synthesizer_of(strategy: Strategy) -> Synthesizer | None:
    """What draws rows, where the strategy has come so far; None where it has not, or is of another task."""
    return strategy.synthesizer() if isinstance(strategy, FedSums | FedGAN | FedFlow) else None


def judge(synthesizer: Synthesizer, rows: int, seed: int) -> Arrays:
    """A logistic regression fitted to ``rows`` synthetic rows, as the arrays of ``models.tabular.logistic``.

    Hospitals evaluate it on held-out patients: how well what is learned on synthetic rows holds on real ones (TSTR).
    """
    layout = synthesizer.layout
    z = synthesizer.sample(rows, generator(seed, "judge"))
    # As hospitals hold it: whole numbers, categories, public bounds.
    encoded = encode(layout.decode(z), layout.schema)
    assert encoded.y is not None
    x, y = np.nan_to_num(encoded.x, nan=0.0), encoded.y
    labels = layout.schema.num_classes
    weight, bias = np.zeros((labels, layout.features)), np.zeros(labels)
    present = np.unique(y)
    if len(present) > 1:
        from sklearn.linear_model import LogisticRegression  # a second to load, which other runs need not wait for

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # how far it converged hardly moves a metric
            model = LogisticRegression(max_iter=1000).fit(x, y)
        if len(present) == 2:
            weight[present[1]], bias[present[1]] = model.coef_[0], model.intercept_[0]
            bias[[c for c in range(labels) if c not in present]] = -50.0
        else:
            weight[present], bias[present] = model.coef_, model.intercept_
            bias[[c for c in range(labels) if c not in present]] = -50.0
    return {"0.weight": weight.astype(np.float32), "0.bias": bias.astype(np.float32)}


def synthesis_statement(
    config: RunConfig, synthesizer: Synthesizer | None, patients: Sequence[int] = ()
) -> dict[str, Any]:
    """What the summary says of the synthesizer; ``patients``: of each hospital that trained.

    ``guarantee``: of a game that is trained as published, what that guarantees with this run's settings; None of another.
    """
    said = ""
    if isinstance(synthesizer, GeneratedRows) and synthesizer.game.published and patients:
        said = synthesizer.game.published.guarantee(
            patients, config.sample_rate, config.local_steps, config.rounds, config.delta
        )
    return {
        "method": config.model, "options": config.method_options, "game": config.game,
        "finished": synthesizer is not None, "guarantee": said or None,
    }  # fmt: skip
