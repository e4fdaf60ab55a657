"""R16: several hospitals against one that holds all their patients, and against the best of them alone.

By ``moments``, whose runs take seconds. Pairs share their simulation of patients; what is compared is what a logistic
regression learns from the synthetic patients, and whether columns hang together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from polyclinic.ehr.shard import Shard
from polyclinic.evaluation.synthetic.classifiers import transfer
from polyclinic.evaluation.synthetic.columns import correlations
from polyclinic.experiments import Asked, Target, markdown
from polyclinic.inspection.result import RunResult
from polyclinic.privacy.accounting import calibrate_noise_multiplier, gaussian_event
from polyclinic.privacy.streams import generator
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.moments import Moments
from polyclinic.synthesis.sums import fit_centrally
from polyclinic.synthesis.synthesizer import Synthesizer
from polyclinic_studies.generators.patients import Patients, hospitals_of, real_patients, synthesizer_of, synthetic
from polyclinic_studies.parts import Parts
from polyclinic_studies.tables import number, spread

PAIRS, HOSPITALS = 10, 5
SHARED = {"secure.aggregation": True, "secure.shared-noise": True}
MEASURES = {"accuracy": "accuracy of logistic regression", "spearman": "correlations, Spearman"}
Measured = dict[str, float]


@dataclass(frozen=True)
class Federated:
    """What was found, as the experiment shows it."""

    config: Mapping[str, Any]
    targets: tuple[Target, ...]
    table: str
    results: Mapping[str, Any]


def federation(parts: Parts, asked: Asked, common: Mapping[str, Any]) -> Federated:
    """Five IID hospitals with shared noise, with noise of their own, and one pooled, at equal epsilon; and sites that differ.

    common: dataset, epsilon and delta.
    """
    pairs = 2 if asked.quick else PAIRS
    sites = asked.hospitals or (3 if asked.quick else HOSPITALS)
    base = {**common, "task": "synthesis", "synthesis.quality": False, "model": "moments"}
    arms: dict[str, dict[str, Any]] = {
        "one hospital, pooled": {**base, "partitioner": "iid", "sites": 1},
        "IID hospitals, shared noise": {**base, "partitioner": "iid", "sites": sites, **SHARED},
        "IID hospitals, own noise": {**base, "partitioner": "iid", "sites": sites},
        "hospitals that differ, shared noise": {**base, "partitioner": "natural", "sites": sites, **SHARED},
        "hospitals that differ, own noise": {**base, "partitioner": "natural", "sites": sites},
    }
    found: dict[str, list[Measured]] = {name: [] for name in (*arms, "best hospital alone")}
    for seed in range(pairs):
        for name, options in arms.items():
            own = {**options, "seed": seed}
            part = f"{name}-{seed}"
            result = parts.run(f"federation/{part}", own)
            found[name].append(
                parts.answer(f"federation/{part}", {"run": result.path.name}, partial(_of_run, result, own))
            )
        own = {**arms["hospitals that differ, own noise"], "seed": seed}
        found["best hospital alone"].append(
            parts.answer(f"federation/alone-{seed}", own, partial(_best_alone, own, seed))
        )
        parts.say(f"federation: pair {seed + 1} of {pairs}")
    return Federated(
        {"pairs": pairs, "sites": sites, "arms": arms}, _targets(found, asked), _table(found, sites), {"pairs": found}
    )


def measured(real: Patients, synthesizer: Synthesizer, seed: int) -> Measured:
    """Accuracy on all held-out patients and the correlations' rank correlation."""
    table = synthetic(synthesizer, len(real.train.y), seed)[1]
    judged = transfer(
        (real.train.x, real.train.y), {"synthetic": (table.x, table.y)}, (real.test.x, real.test.y), seed=seed, resamples=1,
        classifiers=("lr",),
    )["synthetic"]["lr"]  # fmt: skip
    rank = correlations(real.train.x, table.x).spearman
    return {"accuracy": judged.scores["accuracy"].value or 0.0, "spearman": rank or 0.0}


def _of_run(result: RunResult, options: Mapping[str, Any]) -> Measured:
    real = real_patients(hospitals_of(options))
    return measured(real, synthesizer_of(result, real.layout), int(options["seed"]))


def _best_alone(options: Mapping[str, Any], seed: int) -> Measured:
    """Of each measure the best hospital's, each by the same method on its own patients at the same epsilon."""
    shards = hospitals_of(options)
    real = real_patients(shards)
    alone = [
        measured(
            real,
            _alone(shard, real.layout, float(options["privacy.epsilon"]), float(options["privacy.delta"]), seed),
            seed,
        )
        for shard in shards
    ]
    return {measure: max(one[measure] for one in alone) for measure in MEASURES}


def _alone(shard: Shard, layout: Layout, epsilon: float, delta: float, seed: int) -> Synthesizer:
    # Two releases of equal noise: the classes, and the sum.
    noise = calibrate_noise_multiplier(epsilon, delta, lambda multiplier: gaussian_event(multiplier, 2))
    rows = shard.train
    z = layout.rows(rows.x, rows.y)
    return fit_centrally(Moments(layout), z, rows.patient, rows.patients, noise, generator(seed, "alone", shard.site))


def errors_apart(a: Sequence[float], b: Sequence[float]) -> float:
    """Mean of a - b over pairs, in standard errors; 0 where all pairs are equal."""
    apart = [x - y for x, y in zip(a, b, strict=True)]
    error = stdev(apart) / sqrt(len(apart))
    return fmean(apart) / error if error else 0.0


def _targets(found: Mapping[str, list[Measured]], asked: Asked) -> tuple[Target, ...]:
    def apart(first: str, second: str, measure: str) -> float:
        return errors_apart(*([one[measure] for one in found[name]] for name in (first, second)))

    pooled, tell = "one hospital, pooled", not asked.quick
    targets = []
    for measure, words in MEASURES.items():
        shared = apart("IID hospitals, shared noise", pooled, measure)
        targets.append(Target(
            "R16", f"IID hospitals with shared noise less one pooled: {words}, in standard errors", "-",
            number(shared, 2, signed=True), "within 2", abs(shared) <= 2 if tell else None,
        ))  # fmt: skip
        local = apart("IID hospitals, shared noise", "IID hospitals, own noise", measure)
        targets.append(Target(
            "R16", f"shared noise less own noise: {words}, in standard errors", "-", number(local, 2, signed=True), ">= 0",
            local >= 0 if tell else None,
        ))  # fmt: skip
        for kind in ("shared", "own"):
            best = apart(f"hospitals that differ, {kind} noise", "best hospital alone", measure)
            targets.append(Target(
                "R16", f"hospitals that differ, {kind} noise, less the best alone: {words}, in standard errors", "-",
                number(best, 2, signed=True), "> 0", best > 0 if tell else None,
            ))  # fmt: skip
    return tuple(targets)


def _table(found: Mapping[str, list[Measured]], sites: int) -> str:
    rows = [
        [name, *(spread([one[measure] for one in runs], 4) for measure in MEASURES)] for name, runs in found.items()
    ]
    words = f"Federation: {sites} hospitals, moments, paired simulations, mean ± standard deviation.\n\n"
    return words + markdown(["who", *MEASURES.values()], rows)
