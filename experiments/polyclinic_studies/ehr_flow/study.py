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
from polyclinic_studies.ehr_flow.cohort import COLUMNS, TRAINING, Cohort, cohort
from polyclinic_studies.ehr_flow.judges import imputed, learned, pressures, together
from polyclinic_studies.ehr_flow.release import FlowSettings, drawn, scaled, values
from polyclinic_studies.ehr_flow.tables import EPSILONS, Found, Key
from polyclinic_studies.parts import Parts


@dataclass(frozen=True)
class Scale:
    """How much is run. flows: of each cohort; sets: drawn of each flow; rows: in each set; trees: of a forest."""

    cohorts: int = 10
    imputations: int = 5
    flows: int = 5
    sets: int = 1
    rows: int = 500
    trees: int = 30
    steps: int = 100
    epsilons: tuple[float, ...] = EPSILONS

    @property
    def flow(self) -> FlowSettings:
        return FlowSettings(steps=self.steps)


QUICK = Scale(cohorts=1, imputations=2, flows=2, sets=1, rows=100, trees=5, steps=4, epsilons=(4.0,))


@dataclass(frozen=True, eq=False)
class Patients:
    """A cohort, its imputed sets as published, and its first 64 patients as the sound methods see them."""

    cohort: Cohort
    sets: list[Floats]
    scaled: Floats

    @property
    def tests(self) -> list[Floats]:
        """The 20 held-out patients in each imputed set."""
        return [one[TRAINING:] for one in self.sets]

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
    known = made.records[list(COLUMNS)].to_numpy(dtype=np.float64)[:TRAINING]
    return Patients(made, imputed(made, imputations, seed), scaled(known))


def original(patients: Sequence[Patients], scale: Scale) -> dict[str, Any]:
    scores = [[learned(one[:TRAINING], [one[TRAINING:]], scale.trees) for one in person.sets] for person in patients]
    shown = [pressures(patients[0].sets[0][:TRAINING]), *patients[0].sets[0][:TRAINING].T]
    return {**judged(scores), "shown": [part.round(2).tolist() for part in shown]}


def own_sets(patients: Sequence[Patients], scale: Scale) -> list[Floats]:
    """The scaled training rows of each flow, (64, 19), by cohort, imputed set and flow."""
    return [scaled(one[:TRAINING]) for person in patients for one in person.sets for _ in range(_each(scale))]


def judged_on_own_sets(
    patients: Sequence[Patients], scale: Scale, modules: Sequence[ConditionalFlow], *key: str
) -> dict[str, Any]:
    """Flows of ``own_sets``, each judged on its set's held-out patients; with bounds kept and without.

    key: of the draws' randomness.
    """
    rng, at, each = generator(0, *key), 0, _each(scale)
    shown: list[list[float]] = []
    scores: dict[bool, list[list[list[Any]]]] = {True: [], False: []}
    for person in patients:
        for bounded in scores:
            scores[bounded].append([])
        for one in person.sets:
            rows = [drawn(module, scale.rows, rng) for module in modules[at : at + each] for _ in range(scale.sets)]
            at += each
            shown = shown or shown_of(values(rows[0]))
            for bounded, kept in scores.items():
                kept[-1].append([learned(values(u, bounded), [one[TRAINING:]], scale.trees)[0] for u in rows])
    return {**judged(scores[True]), "loose": judged(scores[False]), "shown": shown}


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
