"""R16: five hospitals that really differ, against one that holds all their patients, and against the best of them alone.

Patients are of ``datasets.unlike``: hospitals differ in size, case mix and rate of events, so that a hospital alone learns of
other patients than it is judged by. A pair of arms shares its draw of patients and no noise. Whether columns hang together and
what a logistic regression learns are compared on the held-out patients of all hospitals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from polyclinic.evaluation.synthetic.classifiers import REAL, transfer
from polyclinic.evaluation.synthetic.columns import correlations
from polyclinic.experiments import Asked, Findings, Say, Target, markdown
from polyclinic.inspection.result import RunResult
from polyclinic_studies.datasets.unlike import SITES
from polyclinic_studies.generators.patients import Patients, hospitals_of, real_patients, synthesizer_of, synthetic
from polyclinic_studies.parts import Parts
from polyclinic_studies.tables import estimate, margin, number

EPSILON, DELTA, SEEDS = 2.5, 1e-5, 12
SHARED = {"secure.aggregation": True, "secure.shared-noise": True}
POOLED, TOGETHER, APART, ALONE = "one hospital, pooled", "shared noise", "own noise", "best hospital alone"
MEASURES = {"auroc": "AUROC of logistic regression", "spearman": "correlations, Spearman"}
#: By how much five hospitals may be below one pooled and still count as good as it.
WIDTHS = {"auroc": 0.01, "spearman": 0.05}
#: Full-batch steps, which a secure sum with one noise can be of.
_STEPS = {"rounds": 20, "training.sample-rate": 1.0, "training.local-steps": 1}
_FLOW = {"synthesis.options": "transforms=1, hidden=16", "training.optimizer": "sgd", "strategy": "fedadam",
         "strategy-options": "eta=0.05", "training.learning-rate": 1.0}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "moments": {"model": "moments"},
    "latent": {"model": "latent"},
    "marginals": {"model": "marginals", "synthesis.options": "algorithm=mst, bins=4"},
    "maf": {"model": "maf", **_STEPS, **_FLOW},
    "gan": {"model": "gan", "synthesis.baselines": False, **_STEPS},
    # Each hospital's own moments, never added up: it has noise of each hospital's own alone.
    "mixture": {"model": "mixture"},
}
QUICK = ("moments", "mixture")
Measured = dict[str, float]


def run(asked: Asked, say: Say) -> Findings:
    """The experiment into ``asked.out``; ``quick``: two draws of two methods."""
    parts, draws = Parts(asked.out, say), asked.seeds or (2 if asked.quick else SEEDS)
    methods = asked.select({name: METHODS[name] for name in QUICK} if asked.quick else METHODS)
    found: dict[str, dict[str, list[Measured]]] = {method: {} for method in methods}
    real: list[Measured] = []
    for draw in range(draws):
        patients = real_patients(hospitals_of(_options({}, draw)))
        real.append(parts.answer(f"real-{draw}", {}, partial(_learnt, patients)))
        for method, options in methods.items():
            for arm, measured in _arms(parts, patients, method, options, draw).items():
                found[method].setdefault(arm, []).append(measured)
        say(f"draw {draw + 1} of {draws}")
    config = {"draws": draws, "epsilon": EPSILON, "delta": DELTA, "hospitals": SITES, "methods": dict(methods)}
    targets = _targets(found)
    return Findings(config, targets, {"real": real, "draws": found}, _table(real, found))


def _options(keys: Mapping[str, Any], draw: int, hospital: int = 0, arm: int = 0) -> dict[str, Any]:
    """The configuration of a run on all hospitals of a draw or, from 1 on, on one; each arm has noise of its own."""
    alone = f"_{hospital}" if hospital else ""
    return {
        "dataset": f"polyclinic_studies.datasets.unlike:draw_{draw}{alone}", "sites": 1 if hospital else SITES,
        "task": "synthesis", "partitioner": "natural", "synthesis.quality": False, "privacy.epsilon": EPSILON,
        "privacy.delta": DELTA, "seed": 1000 * arm + draw, **keys,
    }  # fmt: skip


def _arms(parts: Parts, patients: Patients, method: str, keys: Mapping[str, Any], draw: int) -> dict[str, Measured]:
    def measured(arm: str, options: Mapping[str, Any]) -> Measured:
        part = f"{method}, {arm}-{draw}"
        result = parts.run(part, options)
        answer: Measured = parts.answer(part, {"run": result.path.name}, partial(_measured, patients, result, draw))
        return answer

    arms = {POOLED: measured(POOLED, _options({**keys, "partitioner": "iid", "sites": 1}, draw, arm=1))}
    if method != "mixture":
        arms[TOGETHER] = measured(TOGETHER, _options({**keys, **SHARED}, draw, arm=2))
    arms[APART] = measured(APART, _options(keys, draw, arm=3))
    if method != "mixture":
        alone = [
            measured(f"hospital {one} alone", _options(keys, draw, one, arm=3 + one)) for one in range(1, SITES + 1)
        ]
        arms[ALONE] = {measure: max(one[measure] for one in alone) for measure in MEASURES}
    return arms


def _learnt(patients: Patients) -> Measured:
    return _judged(patients, patients.train.x, patients.train.y)


def _measured(patients: Patients, result: RunResult, draw: int) -> Measured:
    table = synthetic(synthesizer_of(result, patients.layout), len(patients.train.y), draw)[1]
    return _judged(patients, table.x, table.y)


def _judged(patients: Patients, x: Any, y: Any) -> Measured:
    """AUROC on all hospitals' held-out patients, and the correlations' rank correlation with the real ones."""
    judged = transfer(
        (patients.train.x, patients.train.y), {"rows": (x, y)}, (patients.test.x, patients.test.y), seed=0, resamples=1,
        classifiers=("lr",),
    )  # fmt: skip
    assert REAL in judged
    auroc = judged["rows"]["lr"].scores["auroc"].value
    return {"auroc": 0.5 if auroc is None else auroc, "spearman": correlations(patients.train.x, x).spearman or 0.0}


def errors_apart(a: Sequence[float], b: Sequence[float]) -> float:
    """Mean of a - b over pairs, in standard errors; 0 where all pairs are equal."""
    apart = [x - y for x, y in zip(a, b, strict=True)]
    error = stdev(apart) / sqrt(len(apart))
    return fmean(apart) / error if error else 0.0


def _values(arms: Mapping[str, list[Measured]], arm: str, measure: str) -> list[float]:
    return [one[measure] for one in arms[arm]]


def _targets(found: Mapping[str, Mapping[str, list[Measured]]]) -> tuple[Target, ...]:
    """Of each method that shares noise."""
    targets = []
    for method, arms in found.items():
        if TOGETHER not in arms or len(arms[POOLED]) < 2:
            continue
        for measure, words in MEASURES.items():
            together, pooled = (_values(arms, arm, measure) for arm in (TOGETHER, POOLED))
            less = [one - other for one, other in zip(together, pooled, strict=True)]
            width = WIDTHS[measure]
            targets.append(Target(
                "R16", f"{method}: {TOGETHER} less {POOLED}: {words}", "-", estimate(less, signed=True), f"at least {-width:g}",
                fmean(less) >= -width, by=f"{method}, as pooled", seeds=len(less), margin=margin(less, -width),
            ))  # fmt: skip
            for arm, by in ((TOGETHER, "above the best alone"), (APART, "own noise, above the best alone")):
                apart = errors_apart(_values(arms, arm, measure), _values(arms, ALONE, measure))
                # Who is hardly above 2 may be below it with other draws.
                targets.append(Target(
                    "R16", f"{method}: {arm} less {ALONE}: {words}, in standard errors", "-", number(apart, 1, signed=True),
                    "> 2", apart > 2, by=f"{method}, {by}", seeds=len(arms[POOLED]), margin=apart - 2,
                ))  # fmt: skip
    return tuple(targets)


def _table(real: Sequence[Measured], found: Mapping[str, Mapping[str, list[Measured]]]) -> str:
    rows = [["real patients", "", *(estimate([one[measure] for one in real]) for measure in MEASURES), ""]]
    for method, arms in found.items():
        for arm, draws in arms.items():
            less = [one["auroc"] - other["auroc"] for one, other in zip(draws, arms[POOLED], strict=True)]
            rows.append([
                method, arm, *(estimate([one[measure] for one in draws]) for measure in MEASURES),
                "" if arm == POOLED else estimate(less, signed=True),
            ])  # fmt: skip
    words = (
        f"{SITES} hospitals that differ in size, case mix and rate of events, {len(real)} draws, ε = {EPSILON:g} for each "
        "patient in every arm; mean ± standard error. The best hospital alone is chosen by its score, of each measure anew.\n\n"
    )
    return words + markdown(["method", "arm", *MEASURES.values(), "AUROC less pooled, pairs"], rows)
