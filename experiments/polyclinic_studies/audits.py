"""Canary audits of every trainer over twenty seeds, and of faults that must be flagged: target R17.

A seed is another draw of canaries, batches and noise at one hospital of made-up patients; the trainers are those that hospitals
run. An alarm is a bound of epsilon above the claimed one, or a check of sensitivity, noise, sampling or steps that fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import beta

from polyclinic.config import RunConfig
from polyclinic.experiments import Asked, Findings, Say, Target, markdown
from polyclinic.inspection.audits import subject_of_config
from polyclinic.training.auditing.audit import audit
from polyclinic.training.auditing.faults import fault_named
from polyclinic_studies.parts import Parts

EPSILON, DELTA, SEEDS = 3.0, 1e-5, 20
CANARIES, GUESSES = 100, 50
#: No statistics are paid for, so that all of epsilon is the training's.
COMMON: dict[str, Any] = {
    "dataset": "trial", "privacy.epsilon": EPSILON, "privacy.delta": DELTA, "data.standardise": "none",
    "privacy.patients-per-site": 200,
}  # fmt: skip
STEPS: dict[str, Any] = {
    "rounds": 5, "training.sample-rate": 0.2, "training.local-steps": 2, "training.learning-rate": 0.1, "training.momentum": 0.0,
}  # fmt: skip
_SYNTHESIS: dict[str, Any] = {"task": "synthesis"}
_FLOW = {"synthesis.options": "transforms=1, hidden=8"}
_SPLINES = {"synthesis.options": "transforms=1, hidden=8, bins=4"}
#: Trainer -> the configuration keys that it differs in from the common ones.
TRAINERS: dict[str, dict[str, Any]] = {
    "logistic": STEPS,
    "mlp": {**STEPS, "model": "mlp"},
    "tabular-resnet": {**STEPS, "model": "tabular-resnet"},
    "gru": {**STEPS, "model": "gru"},
    "transformer": {**STEPS, "model": "transformer"},
    "ebm": {"model": "ebm"},
    "trees": {"model": "trees"},
    "newton": {"training.optimizer": "newton"},
    "output-perturbation": {"task": "output-perturbation"},
    "objective-perturbation": {"task": "objective-perturbation"},
    "exponential-mechanism": {"task": "exponential-mechanism"},
    "posterior": {"task": "posterior"},
    "posterior, flow": {"task": "posterior", "posterior.options": "method=flow", "rounds": 2},
    "regression": {"task": "regression", "task-options": "formula='controlled ~ age + male'"},
    "effect": {"task": "effect", "task-options": "treatment=intensive"},
    "components": {"task": "components"},
    "clusters": {"task": "clusters"},
    "survival": {"task": "survival", "dataset": "ist-survival"},
    "cox": {"task": "cox", "dataset": "ist-survival", "task-options": "terms='age + sex'"},
    **{name: {**_SYNTHESIS, "model": name} for name in ("moments", "independent", "latent", "mixture", "marginals")},
    "visits": {**_SYNTHESIS, "model": "visits", "dataset": "icu"},
    "marginals, mst": {**_SYNTHESIS, "model": "marginals", "synthesis.options": "algorithm=mst"},
    **{name: {**_SYNTHESIS, **STEPS, "model": name} for name in ("gan", "dpgan", "ppgan", "wgan", "wgan-gp")},
    "acgan": {**_SYNTHESIS, **STEPS, "model": "acgan", "dataset": "sprint"},
    "maf": {**_SYNTHESIS, **STEPS, **_FLOW, "model": "maf"},
    "nsf": {**_SYNTHESIS, **STEPS, **_SPLINES, "model": "nsf"},
}
_PUBLISHED: dict[str, Any] = {**_SYNTHESIS, "privacy.dp": False}
#: What must be flagged -> the fault that is planted and the configuration.
FAULTS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "dpgan-paper, as published": (None, {**_PUBLISHED, "model": "dpgan-paper"}),
    "ppgan-paper, as published": (None, {**_PUBLISHED, "model": "ppgan-paper"}),
    "maf, batch norm between its steps": ("batch-norm", TRAINERS["maf"]),
    "logistic, half of the noise": ("half-noise", STEPS),
    "moments, half of the noise": ("half-noise", TRAINERS["moments"]),
    "moments, without clipping": ("no-clipping", TRAINERS["moments"]),
    "dpgan, without noise": ("noise-off", TRAINERS["dpgan"]),
}
QUICK = ("logistic", "moments", "latent")
QUICK_FAULTS = ("moments, half of the noise",)


def run(asked: Asked, say: Say) -> Findings:
    """The experiment into ``asked.out``; ``quick``: two seeds of three trainers and of one fault."""
    parts, seeds = Parts(asked.out, say), asked.seeds or (2 if asked.quick else SEEDS)
    trainers = asked.select({name: TRAINERS[name] for name in QUICK} if asked.quick else TRAINERS)
    faults = {} if asked.methods else {name: FAULTS[name] for name in (QUICK_FAULTS if asked.quick else FAULTS)}
    sound = {name: _audits(parts, name, None, options, seeds) for name, options in trainers.items()}
    wrong = {name: _audits(parts, name, *fault, seeds) for name, fault in faults.items()}
    tables = (
        f"{seeds} seeds of each trainer, {CANARIES} canaries, {GUESSES} guesses, 95 % confidence, claimed ε = {EPSILON:g} at δ = "
        f"{DELTA:g}. Alarms: audits in which anything contradicts the claim. At most: the 95 % upper limit of the rate of alarms "
        "that so many audits allow (Clopper and Pearson).\n\n"
        f"{_table(sound)}\nWhat must be flagged, and how often it was.\n\n{_table(wrong)}"
    )
    targets = () if asked.quick else (*_targets(sound, wrong), *_not_run(sound, wrong))
    config = {"seeds": seeds, "canaries": CANARIES, "guesses": GUESSES, "common": COMMON, "trainers": dict(trainers)}
    return Findings(config, targets, {"trainers": sound, "faults": wrong}, tables)


def _audits(parts: Parts, name: str, fault: str | None, options: Mapping[str, Any], seeds: int) -> list[dict[str, Any]]:
    found = [
        parts.answer(
            f"{name}-{seed}", {"options": dict(options), "fault": fault}, partial(_audit, options, fault, seed)
        )
        for seed in range(seeds)
    ]
    parts.say(f"{name}: {sum(bool(one['caught_by']) for one in found)} of {seeds} audits alarm")
    return found


def _audit(options: Mapping[str, Any], fault: str | None, seed: int) -> dict[str, Any]:
    subject = subject_of_config(RunConfig.build({**COMMON, **options}), seed, fault_named(fault))
    found = audit(subject, CANARIES, (GUESSES,))
    return {
        "seed": seed, "claimed": subject.epsilon, "lower": found.guessing.epsilon_lower if found.guessing else None,
        "correct": found.guessing.correct if found.guessing else None, "caught_by": found.caught_by,
        "checks": len(found.findings),
    }  # fmt: skip


def _table(found: Mapping[str, list[dict[str, Any]]]) -> str:
    rows = []
    for name, audits in found.items():
        alarms = sum(bool(one["caught_by"]) for one in audits)
        bounds = [one["lower"] for one in audits if one["lower"] is not None]
        most = 1.0 if alarms == len(audits) else float(beta.ppf(0.95, alarms + 1, len(audits) - alarms))
        caught_by = sorted({check for one in audits for check in one["caught_by"]})
        rows.append([
            name, f"{alarms} of {len(audits)}", f"{most:.2f}", f"{np.median(bounds):.2f}" if bounds else "-",
            f"{max(bounds):.2f}" if bounds else "-", ", ".join(caught_by) or "-",
        ])  # fmt: skip
    return markdown(
        ["what", "alarms", "at most", "ε is at least, median", "ε is at least, largest", "what spoke against it"], rows
    )


def _targets(
    sound: Mapping[str, list[dict[str, Any]]], wrong: Mapping[str, list[dict[str, Any]]]
) -> tuple[Target, ...]:
    """Each trainer's alarms, and each fault's; no verdict from fewer than ``SEEDS`` seeds."""

    def target(what: str, audits: list[dict[str, Any]], goal: int) -> Target:
        alarms = sum(bool(one["caught_by"]) for one in audits)
        why = "" if len(audits) >= SEEDS else f"{len(audits)} seeds; R17 asks {SEEDS}"
        return Target(
            "R17",
            what,
            "",
            f"{alarms} of {len(audits)}",
            f"{goal} of {len(audits)}",
            alarms == goal,
            len(audits),
            why=why,
        )

    return (
        *(target(f"{name}: alarms", audits, 0) for name, audits in sound.items()),
        *(target(f"{name}: flagged", audits, len(audits)) for name, audits in wrong.items()),
    )


def _not_run(sound: Mapping[str, Any], wrong: Mapping[str, Any]) -> tuple[Target, ...]:
    """R17 is of every trainer and of every fault: a part of them does not meet it."""
    return tuple(
        Target("R17", f"{name}: {what}", "", "-", goal, None, 0, why="not run")
        for every, found, what, goal in ((TRAINERS, sound, "alarms", f"0 of {SEEDS}"),
                                         (FAULTS, wrong, "flagged", f"{SEEDS} of {SEEDS}"))
        for name in every if name not in found
    )  # fmt: skip
