"""Attacks on a run's model, and on one step of its training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from polyclinic.attacking.target import LeftOut, Target, judged
from polyclinic.config import RunConfig
from polyclinic.ehr.shard import Rows
from polyclinic.evaluation.attacks import attributes, gradients, membership
from polyclinic.evaluation.attacks.tables import first_rows
from polyclinic.plugins import task_named
from polyclinic.privacy.streams import generator, keyed_stream
from polyclinic.server.calibration import calibrate
from polyclinic.server.model import first_arrays
from polyclinic.training.shadows import joined, train_shadows
from polyclinic.training.task import Arrays, SiteWork, TrainSettings


def attack_model(
    target: Target, delta: float, shadows: int, sensitive: Sequence[str], left_out: LeftOut, doing: Callable[[str], None]
) -> dict[str, Any]:  # fmt: skip
    """The keys of ``attacks.json`` that a model has; attacks that do not fit are added to ``left_out``.

    Raises ConfigError for a sensitive column that cannot be guessed.
    """
    known, attacked = attributes.split_known(target.non_members.patients, target.seed)
    # Wrong input is told before any work.
    secrets = attributes.secrets(target.schema, _one_each(target.non_members, known)[0], sensitive)
    found: dict[str, Any] = {}
    if target.config.local_layers or target.config.strategy == "fedbn":
        why = "layers stay at hospitals, and what the server has of them was never trained"
        left_out += [{"attack": attack, "why": why} for attack in ("who took part", "secret columns")]
    else:
        found["membership"] = _membership(target, delta, shadows, left_out, doing)
        doing("secret columns")
        found["attributes"] = _attributes(target, secrets, known, attacked)
    doing("gradients")
    return found | {"gradients": _gradients(target, left_out)}


def _membership(
    target: Target, delta: float, shadows: int, left_out: LeftOut, doing: Callable[[str], None]
) -> list[dict[str, Any]]:
    doing("membership by losses")
    losses = [_losses(target, rows) for rows in (target.members, target.non_members)]
    found = [_judged(target, "loss threshold", -losses[0], -losses[1], delta)]
    if why := _no_shadows(target.config, shadows):
        left_out.append({"attack": "LiRA", "why": why})
    else:
        doing(f"membership by {shadows} shadow models")
        scores, inside = _lira(target, shadows)
        found.append(_judged(target, "LiRA", scores[inside], scores[~inside], delta))
    return found


def _judged(target: Target, attack: str, members: np.ndarray, others: np.ndarray, delta: float) -> dict[str, Any]:
    return judged(membership.judge(attack, members, others, delta, target.share, target.seed))


def _probabilities(target: Target, rows: Rows, arrays: Arrays | None = None) -> np.ndarray:
    task = task_named(target.config.task)
    return np.asarray(task.evaluate(target.build, target.arrays if arrays is None else arrays, [rows])[0])


def _losses(target: Target, rows: Rows) -> np.ndarray:
    losses = membership.log_losses(_probabilities(target, rows), rows.y)
    return membership.of_patients(losses, rows.patient, rows.patients)


def _no_shadows(config: RunConfig, shadows: int) -> str:
    if not shadows:
        return "no shadow models were asked for"
    if config.shared_noise:
        return "the noise is in the sum of all hospitals, which shadow models of this kind do not have"
    return ""


def _lira(target: Target, shadows: int) -> tuple[np.ndarray, np.ndarray]:
    """(n,) scores of all patients, hospital by hospital, and (n,) who took part."""
    pools, config = [joined(pair) for pair in target.hospitals], target.config
    rng = generator(target.seed, "attacks", "shadows")
    share = target.members.patients / (target.members.patients + target.non_members.patients)
    inside = [membership.assignment(pool.patients, shadows, share, rng) for pool in pools]
    models = train_shadows(
        task_named(config.task), target.build, first_arrays(config, target.schema), pools, inside, target.settings,
        target.summary["rounds"], target.seed,
    )  # fmt: skip
    everyone = joined(pools)

    def score(arrays: Arrays) -> np.ndarray:
        values = membership.confidences(_probabilities(target, everyone, arrays), everyone.y)
        return membership.of_patients(values, everyone.patient, everyone.patients)

    ratios = membership.likelihood_ratios(
        score(target.arrays), np.array([score(model) for model in models]), np.concatenate(inside, axis=1)
    )
    return ratios, np.concatenate([np.arange(a.patients + b.patients) < a.patients for a, b in target.hospitals])


def _attributes(
    target: Target, secrets: Sequence[attributes.Secret], known: np.ndarray, attacked: np.ndarray
) -> list[dict[str, Any]]:
    def log_likelihood(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return -membership.log_losses(_probabilities(target, Rows(x, y, np.arange(len(y)), len(y))), y)

    some = generator(target.seed, "attacks", "members").permutation(target.members.patients)[: attributes.MOST_PATIENTS]
    members, classes = _one_each(target.members, some), target.schema.num_classes
    own, others = (_one_each(target.non_members, part) for part in (known, attacked))
    found = [attributes.guess_column(one, members, others, own, classes, log_likelihood) for one in secrets]
    return [asdict(one) for one in found if one is not None]


def _one_each(rows: Rows, patients: np.ndarray) -> attributes.Table:
    """The first row of each of the patients, and its label."""
    at = first_rows(rows.patient, rows.patients)[patients]
    return rows.x[at], rows.y[at]


def _gradients(target: Target, left_out: LeftOut) -> dict[str, Any] | None:
    """Steps at the model that the run began with; a run without noise is shown what that of its epsilon would do."""
    config, arrays = target.config, first_arrays(target.config, target.schema)
    layer, task = gradients.first_layer(target.build()), task_named(config.task)
    if task.name != "classification" or layer is None:
        why = "it needs steps of gradients, and a model whose first layer is linear with a bias"
        left_out.append({"attack": "gradient inversion", "why": why})
        return None
    noise = target.settings.noise_multiplier
    if noise is None:
        noise = calibrate(config.model_copy(update={"dp": True})).noise_multiplier
    rows, settings = target.members, replace(target.settings, noise_multiplier=noise)
    x, y = _one_each(rows, np.arange(rows.patients))
    step = partial(_step, task, target.build, arrays, settings, target.seed)
    found = gradients.trials(target.build, arrays, layer, np.nan_to_num(x), y, step, target.seed)
    trials = [asdict(one) | {"median": one.median, "recovered": one.recovered} for one in found]
    return {"noise_multiplier": noise, "clip_norm": settings.max_grad_norm, "trials": trials}


def _step(
    task: Any, build: Callable[[], nn.Module], arrays: Arrays, settings: TrainSettings, seed: int, rows: Rows,
    private: bool, key: int,
) -> Arrays:  # fmt: skip
    """The gradient that one FedSGD step of the hospital's own code shows of a batch."""
    plain = replace(
        settings, learning_rate=1.0, sample_rate=1.0, local_steps=1, optimizer="sgd", momentum=0.0, weight_decay=0.0,
        proximal_mu=0.0, batching="poisson", noise=None, denoise="none", double=True,
        noise_multiplier=settings.noise_multiplier if private else None,
    )  # fmt: skip
    wide = {name: value.astype(np.float64) for name, value in arrays.items()}
    sampling, noise = (keyed_stream(seed, "attacks", purpose, key) for purpose in ("batches", "noise"))
    update = task.train(build, wide, [SiteWork(rows, sampling, noise, float(rows.patients))], plain)[0]
    return {name: value - update.arrays[name] for name, value in wide.items()}
