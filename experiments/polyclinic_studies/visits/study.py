"""Visits over time: methods of sums beside each other on followed patients, made up with a known transition, and of two open
demos.

One trusted curator adds the noise, as hospitals do together in a secure sum with shared noise. Methods share each draw of
patients. Every figure is of patients who are held out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from dp_accounting import SelfComposedDpEvent

from polyclinic.ehr.encoding import Encoded, encode
from polyclinic.ehr.schema import Schema
from polyclinic.evaluation.synthetic.courses import Courses, carried_forward, compare_courses
from polyclinic.experiments import Asked, Findings, Say, Target, markdown
from polyclinic.privacy.accounting import calibrate_noise_multiplier
from polyclinic.privacy.events import gaussian_event
from polyclinic.privacy.streams import generator
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.independent import Independent
from polyclinic.synthesis.methods.moments import Moments
from polyclinic.synthesis.sums import SynthesisMethod, fit_centrally
from polyclinic.synthesis.visits.method import VisitByVisit
from polyclinic.types import Floats
from polyclinic_studies.generators.hospitals import errors_apart
from polyclinic_studies.parts import Parts
from polyclinic_studies.tables import estimate, number
from polyclinic_studies.visits import followed, followed_demos

EPSILONS, DELTA, SEEDS, SPLITS = (1.0, 3.0, 10.0), 1e-5, 12, 5
PATIENTS, SYNTHETIC = 4000, 3000
HELD_OUT = 0.25
# What the next visit's R² may lack of what real patients teach.
WITHIN = 0.05
METHODS: dict[str, Callable[[Layout], SynthesisMethod]] = {
    "visits": VisitByVisit, "moments": lambda layout: Moments(layout, rounds=2), "independent": Independent,
}  # fmt: skip
REAL, CARRIED = "real patients", "the value before, carried forward"
#: Measure -> its words; all but the last are best at 0.
MEASURES = {
    "mean": "courses apart: means", "band": "10 % and 90 %", "autocorrelation": "autocorrelations apart",
    "visits": "visits a patient apart", "interval": "intervals apart", "transition": "transition apart",
    "next_visit": "next visit, R²",
}  # fmt: skip
Measured = dict[str, float | None]


@dataclass(frozen=True)
class Cohort:
    """Patients who are followed. records: those of a draw; a demo's are always the same, and draws split them otherwise."""

    words: str
    schema: Schema
    records: Callable[[int], pd.DataFrame]
    draws: int
    available: Callable[[], bool] = lambda: True
    truth: bool = False


COHORTS = {
    "followed": Cohort(
        "made up, 3,000 patients train", followed.SCHEMA, lambda seed: followed.records(PATIENTS, seed), SEEDS, truth=True
    ),
    "eicu-pressures": Cohort(
        "eICU demo, cuff pressures of the first day, 1,280 patients train", followed_demos.EICU,
        lambda _: followed_demos.eicu_records(), SPLITS, followed_demos.EICU_FILES.available,
    ),
    "mimic-values": Cohort(
        "MIMIC-III demo, laboratory values by day, 75 patients train", followed_demos.MIMIC,
        lambda _: followed_demos.mimic_records(), SPLITS, followed_demos.MIMIC_FILES.available,
    ),
}  # fmt: skip


def run(asked: Asked, say: Say) -> Findings:
    """The experiment into ``asked.out``; ``quick``: two draws of the made-up patients at one epsilon."""
    parts = Parts(asked.out, say)
    methods = [name for name in METHODS if not asked.methods or name in asked.select({name: {} for name in METHODS})]
    cohorts = {name: one for name, one in COHORTS.items() if one.available() and (one.truth or not asked.quick)}
    epsilons = EPSILONS[1:2] if asked.quick else EPSILONS
    found: dict[str, dict[str, list[Measured]]] = {}
    for name, cohort in cohorts.items():
        draws = 2 if asked.quick else min(asked.seeds or cohort.draws, cohort.draws if not cohort.truth else 10**6)
        for draw in range(draws):
            one = partial(_draw, cohort, draw, methods, epsilons)
            settings = {"methods": methods, "epsilons": list(epsilons), "delta": DELTA, "rows": SYNTHETIC}
            for arm, measured in parts.answer(f"{name} {draw}", settings, one).items():
                found.setdefault(name, {}).setdefault(arm, []).append(measured)
        say(f"{name}: {draws} draws")
    config = {"epsilons": list(epsilons), "delta": DELTA, "synthetic_rows": SYNTHETIC, "held_out": HELD_OUT, "methods": methods,
              "draws": {name: len(next(iter(arms.values()))) for name, arms in found.items()}}  # fmt: skip
    return Findings(config, _targets(found, epsilons), {"cohorts": found}, _tables(found))


def noise_multiplier(epsilon: float, rounds: int) -> float:
    """The noise of each of ``rounds`` sums and of the counts of labels, which together spend epsilon."""
    return calibrate_noise_multiplier(
        epsilon, DELTA, lambda noise: SelfComposedDpEvent(gaussian_event(noise), rounds + 1)
    )


def _draw(cohort: Cohort, draw: int, methods: Sequence[str], epsilons: Sequence[float]) -> dict[str, Measured]:
    """The measures of each arm on one draw's held-out patients."""
    encoded = encode(cohort.records(draw), cohort.schema)
    order = generator(draw, "visits", "split").permutation(len(encoded.x))
    test, train = np.split(order, [int(HELD_OUT * len(order))])
    real, layout = _courses(encoded, test, cohort.schema), Layout.of(cohort.schema)
    assert encoded.y is not None
    z = layout.rows(encoded.x[train], encoded.y[train])
    carried = [score for score in carried_forward(real).values() if score is not None]
    found = {REAL: _measured(real, _courses(encoded, train, cohort.schema), cohort.truth),
             CARRIED: {"next_visit": float(np.mean(carried)) if carried else None}}  # fmt: skip
    for name in methods:
        method = METHODS[name](layout)
        for epsilon in epsilons:
            noise = noise_multiplier(epsilon, method.rounds)
            rng = generator(draw, "visits", name, f"{epsilon:g}")
            drawn = fit_centrally(method, z, np.arange(len(z)), len(z), noise, rng).sample(SYNTHETIC, rng)
            table = encode(layout.decode(drawn), cohort.schema)
            made = _courses(table, np.arange(SYNTHETIC), cohort.schema)
            found[f"{name}, ε = {epsilon:g}"] = _measured(real, made, cohort.truth)
    return found


def _courses(encoded: Encoded, rows: Any, schema: Schema) -> Courses:
    assert encoded.y is not None
    found = Courses.of(encoded.x[rows], encoded.y[rows], schema)
    assert found is not None
    return found


def _measured(real: Courses, table: Courses, truth: bool) -> Measured:
    found: Measured = asdict(compare_courses(real, table))
    return found | ({"transition": transition_error(table)} if truth else {})


def transition_error(courses: Courses) -> float | None:
    """Mean distance of the coefficients of a visit's measurements on those before, age and class, from those of the
    simulation."""
    cells = [(courses.measured[name] - mean) / sd for name, (mean, sd, _) in followed.MEASURED.items()]
    both = np.stack(cells, axis=2)
    before, now = both[:, :-1].reshape(-1, len(cells)), both[:, 1:].reshape(-1, len(cells))
    others = np.repeat(np.column_stack([courses.own[:, 0], courses.y]), both.shape[1] - 1, axis=0)
    there = ~np.isnan(before).any(axis=1) & ~np.isnan(now).any(axis=1)
    if there.sum() < 30:
        return None
    design = np.column_stack([before[there], np.ones(there.sum()), others[there]])
    weights: Floats = np.linalg.lstsq(design, now[there], rcond=None)[0][: len(cells)].T
    return float(np.abs(weights - followed.TRANSITION).mean())


def _values(arms: Mapping[str, Sequence[Measured]], arm: str, measure: str) -> list[float]:
    """By draw; of one where it is undefined, the worst there is: nothing is learned, and nothing is alike."""
    worst = 0.0 if measure == "next_visit" else 1.0
    values = [one.get(measure) for one in arms[arm]]
    return [worst if value is None else value for value in values]


def _targets(found: Mapping[str, Mapping[str, Sequence[Measured]]], epsilons: Sequence[float]) -> tuple[Target, ...]:
    """Of the made-up patients: splits of a demo share its patients."""
    targets = []
    for name, arms in ((name, arms) for name, arms in found.items() if COHORTS[name].truth):
        for epsilon in epsilons:
            ours, other = (f"{method}, ε = {epsilon:g}" for method in ("visits", "moments"))
            if ours not in arms or other not in arms or len(arms[ours]) < 2:
                continue
            draws, by = len(arms[ours]), f"{name}, {ours}"
            for measure, words in MEASURES.items():
                pair = (ours, other) if measure == "next_visit" else (other, ours)
                apart = errors_apart(*(_values(arms, arm, measure) for arm in pair))
                targets.append(Target(
                    "own", f"{name}, ε = {epsilon:g}: visits better than moments: {words}, in standard errors", "-",
                    number(apart, 1, signed=True), "> 2", apart > 2, by=by, seeds=draws, margin=apart - 2,
                ))  # fmt: skip
            pairs = zip(_values(arms, ours, "next_visit"), _values(arms, REAL, "next_visit"), strict=True)
            less = [one - real for one, real in pairs]
            mean = float(np.mean(less))
            margin = errors_apart(less, [-WITHIN] * draws)
            targets.append(Target(
                "own", f"{name}, ε = {epsilon:g}: next visit, R² of visits less real patients'", "-",
                number(mean, 3, signed=True), f"> -{WITHIN:g}", mean > -WITHIN, by=by, seeds=draws, margin=margin,
            ))  # fmt: skip
    return tuple(targets)


def _tables(found: Mapping[str, Mapping[str, Sequence[Measured]]]) -> str:
    text = (
        "Mean ± standard error over draws, against held-out patients. Courses apart: mean difference of means, and of 10 % and "
        "90 % quantiles, by measurement, visit and class, in standard deviations. Autocorrelations apart: one to three visits "
        "later. Visits a patient, intervals: Wasserstein distance, of intervals in standard deviations. Transition apart: mean "
        "distance of the nine coefficients of a visit on the visit before from those of the simulation. Next visit: R² of a "
        "ridge regression of a patient's last values on earlier ones that learned from the patients named. A dash: undefined "
        "in some draw.\n"
    )
    for name, arms in found.items():
        draws = len(next(iter(arms.values())))
        measures = [one for one in MEASURES if any(one in measured for measured in arms[REAL])]
        rows = [
            [arm, *(estimate([one.get(measure) for one in values]) for measure in measures)]
            for arm, values in arms.items()
        ]
        text += f"\n{name}: {COHORTS[name].words}, {draws} draws.\n\n"
        text += markdown(["patients", *(MEASURES[measure] for measure in measures)], rows)
    return text
