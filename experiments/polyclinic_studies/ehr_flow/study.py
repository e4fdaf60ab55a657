"""What all arms of the EHR experiment share: its size, its patients, what is kept of an arm, and how arms are judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from polyclinic.experiments import Say
from polyclinic.models.flows import ConditionalFlow
from polyclinic.privacy.streams import generator
from polyclinic.types import Floats
from polyclinic_studies.ehr_flow.cohort import COLUMNS, HYPERTENSIVE, TRAINING, Cohort, cohort
from polyclinic_studies.ehr_flow.judges import held_out, imputed, learned, pressures, scored, together
from polyclinic_studies.ehr_flow.release import FlowSettings, drawn, scaled, values
from polyclinic_studies.ehr_flow.tables import EPSILONS, Found, Key
from polyclinic_studies.parts import Parts


@dataclass(frozen=True)
class Scale:
    """How much is run. flows: of each cohort; sets: drawn of each flow; rows: in each set; trees: of a forest."""

    cohorts: int = 12
    imputations: int = 3
    flows: int = 2
    sets: int = 1
    rows: int = 500
    trees: int = 30
    steps: int = 50
    epsilons: tuple[float, ...] = EPSILONS

    @property
    def flow(self) -> FlowSettings:
        return FlowSettings(steps=self.steps)


QUICK = Scale(cohorts=1, imputations=2, flows=2, sets=1, rows=100, trees=5, steps=4, epsilons=(4.0,))


@dataclass(frozen=True, eq=False)
class Patients:
    """A cohort. sets: all 84 patients imputed at once, outcome and all, as published.  own: the 64 of training imputed by
    themselves.  tests: the 20 held-out patients, predictors imputed without the outcome.  scaled: the 64 of training as the
    sound methods see them, NaN where a cell is missing.
    """

    cohort: Cohort
    sets: list[Floats]
    own: list[Floats]
    tests: list[Floats]
    scaled: Floats

    def by_hospital(self, hospitals: int) -> list[Floats]:
        """The training patients of each of so many hospitals; in random order already."""
        return [np.ascontiguousarray(part) for part in np.array_split(self.scaled, hospitals)]


Arm = Callable[[list[Patients]], dict[str, Any]]


def answers(
    parts: Parts, arms: Mapping[Key, Arm], settings: Mapping[str, Any], patients: Callable[[], list[Patients]], say: Say
) -> Found:
    """What each arm finds, from its part where it is finished."""
    found, begun = {}, time.monotonic()
    for key, make in arms.items():
        name = f"{key[0]} {key[1]:g}"
        found[key] = parts.answer(name, settings, partial(_made, make, patients))
        say(f"{name}: accuracy {found[key]['accuracy']}, {time.monotonic() - begun:.0f} s")
    return found


def rows_of(found: Found) -> list[dict[str, Any]]:
    """For results: all but what figures show."""
    return [
        {"arm": arm, "epsilon": level if np.isfinite(level) else None, **{k: v for k, v in one.items() if k != "shown"}}
        for (arm, level), one in found.items()
    ]


def shown_in(found: Found) -> dict[Key, Any]:
    """What figures show, of arms that show something."""
    return {key: one["shown"] for key, one in found.items() if "shown" in one}


def cohorts(scale: Scale) -> Callable[[], list[Patients]]:
    """The cohorts, made when first asked for."""
    return cache(lambda: [patients_of(seed, scale.imputations) for seed in range(scale.cohorts)])


def patients_of(seed: int, imputations: int) -> Patients:
    made = cohort(seed=seed)
    training = made.records[:TRAINING]
    return Patients(
        made, imputed(made.records, imputations, seed), imputed(training, imputations, seed),
        [one[TRAINING:] for one in held_out(made, imputations, seed)],
        scaled(training[list(COLUMNS)].to_numpy(dtype=np.float64)),
    )  # fmt: skip


def original(patients: Sequence[Patients], scale: Scale) -> dict[str, Any]:
    """What real patients teach."""
    scores = [
        [learned(one, [test], scale.trees) for one, test in zip(person.own, person.tests, strict=True)]
        for person in patients
    ]
    shown = [pressures(patients[0].own[0]), *patients[0].own[0].T]
    return {**judged(scores), "shown": [part.round(2).tolist() for part in shown]}


def original_as_published(patients: Sequence[Patients], scale: Scale) -> dict[str, Any]:
    """What real patients teach where test patients' predictors are imputed by equations that hold their outcome."""
    return judged([
        [learned(one[:TRAINING], [one[TRAINING:]], scale.trees) for one in person.sets] for person in patients
    ])  # fmt: skip


def nothing(patients: Sequence[Patients], scale: Scale) -> dict[str, Any]:
    """The commoner class and the mean pressure of the patients of training, of every test patient."""
    scores = []
    for person in patients:
        outcome, truth = pressures(person.cohort.measured[:TRAINING]), pressures(person.tests[0])
        right = (truth > HYPERTENSIVE) == ((outcome > HYPERTENSIVE).mean() > 0.5)
        scores.append([[scored(right, (truth - outcome.mean()) ** 2)] for _ in person.tests])
    return judged(scores)


def own_sets(patients: Sequence[Patients], scale: Scale) -> list[Floats]:
    """The scaled training rows of each flow, (64, 19), by cohort, imputed set and flow."""
    return [scaled(one[:TRAINING]) for person in patients for one in person.sets for _ in range(_each(scale))]


def judged_on_own_sets(
    patients: Sequence[Patients], scale: Scale, modules: Sequence[ConditionalFlow], *key: str, loose: bool = False
) -> dict[str, Any]:
    """Flows of ``own_sets``, each judged on held-out patients; with bounds kept and, where ``loose``, without as well.

    key: of the draws' randomness.
    """
    rng, at, each = generator(0, *key), 0, _each(scale)
    shown: list[list[float]] = []
    scores: dict[bool, list[list[list[Any]]]] = {True: [], **({False: []} if loose else {})}
    for person in patients:
        for bounded in scores:
            scores[bounded].append([])
        for test in person.tests:
            rows = [drawn(module, scale.rows, rng) for module in modules[at : at + each] for _ in range(scale.sets)]
            at += each
            shown = shown or shown_of(values(rows[0]))
            for bounded, kept in scores.items():
                kept[-1].append([learned(values(u, bounded), [test], scale.trees)[0] for u in rows])
    return {**judged(scores[True]), **({"loose": judged(scores[False])} if loose else {}), "shown": shown}


def by_imputation(scores: list[list[Any]]) -> list[list[Any]]:
    """[table][imputation] turned round."""
    return [list(one) for one in zip(*scores, strict=True)]


def judged(scores: Sequence[Sequence[Sequence[Any]]]) -> dict[str, Any]:
    """[cohort][imputation][table] scores as lists over cohorts."""
    found: list[Mapping[str, float]] = [together(own) for own in scores]
    return {name: [one[name] for one in found] for name in found[0]}


def shown_of(table: Floats) -> list[list[float]]:
    return [part.round(2).tolist() for part in (pressures(table), *table.T)]


def _each(scale: Scale) -> int:
    return max(1, scale.flows // scale.imputations)


def _made(make: Arm, patients: Callable[[], list[Patients]]) -> dict[str, Any]:
    return make(patients())
