"""Tables 1 to 3 of Su, Wang, Schiavazzi and Liu 2023: synthetic patients of a private flow, judged by what they teach.

Target R10, on simulated cohorts (``ehr_cohort``). As published, cells are imputed before training by chained equations over all
patients, each of fifty flows is charged alone, and delta is .01, more than one in 64; batch norm is left out here. Sound: a
missing cell stands at its public centre, which looks at no other patient, delta is .001, and every flow is a release of its own
that is charged in full.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from math import inf
from typing import Any

import numpy as np

from polyclinic.ehr.datasets import eicu
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import calibrate_noise_multiplier, gaussian_event
from polyclinic.privacy.streams import generator
from polyclinic.reproduce.ehr_cohort import COLUMNS, TRAINING, Cohort, cohort
from polyclinic.reproduce.ehr_figures import figures
from polyclinic.reproduce.ehr_judges import Floats, imputed, learned, pressures, together
from polyclinic.reproduce.ehr_real import real, real_table
from polyclinic.reproduce.ehr_release import (
    FlowSettings,
    batch_norm,
    drawn,
    flows,
    flows_by_shared_noise,
    moments,
    scaled,
    values,
)
from polyclinic.reproduce.ehr_tables import BEFORE, EPSILONS, Found, Key, norm_table, tables, targets
from polyclinic.reproduce.experiment import Asked, Findings, Say
from polyclinic.reproduce.parts import Parts

DELTA, PUBLISHED_DELTA, AT = 1e-3, 1e-2, 4.0
HOSPITALS, ROUNDS = 3, 20


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


def run(asked: Asked, say: Say) -> Findings:
    """``quick``: one cohort, few steps, one epsilon. ``seeds``: the number of cohorts.

    Raises ConfigError for methods by name, and for more hospitals than have two patients each.
    """
    _check(asked)
    scale = QUICK if asked.quick else Scale()
    scale = replace(scale, cohorts=asked.seeds or scale.cohorts)
    hospitals, begun = asked.hospitals or HOSPITALS, time.monotonic()
    parts = Parts(asked.out, say)
    patients = cache(lambda: [_patients(seed, scale.imputations) for seed in range(scale.cohorts)])
    found: Found = {}
    settings = {**asdict(scale), "hospitals": hospitals, "delta": DELTA}
    for key, make in _arms(scale, hospitals).items():
        name = f"{key[0]} {key[1]:g}"
        found[key] = parts.answer(name, settings, partial(_made, make, patients))
        say(f"{name}: accuracy {found[key]['accuracy']}, {time.monotonic() - begun:.0f} s")
    norm = parts.answer("batch norm", {"quick": asked.quick}, lambda: batch_norm(patients()[0].sets[0], asked.quick))
    patients_of_eicu = _real(parts, asked.quick) if eicu.DATASET.available() else []
    config = {**settings, "published-delta": PUBLISHED_DELTA, "epsilons": list(scale.epsilons), "rounds": ROUNDS,
              **{f"flow-{name}": value for name, value in asdict(scale.flow).items()}}  # fmt: skip
    rows = [
        {"arm": arm, "epsilon": level if np.isfinite(level) else None, **{k: v for k, v in one.items() if k != "shown"}}
        for (arm, level), one in found.items()
    ]
    shown = {key: one["shown"] for key, one in found.items() if "shown" in one}
    return Findings(
        config, targets(found, None if asked.quick else AT),
        {"rows": rows, "batch norm": norm, "real": patients_of_eicu},
        "\n".join((tables(found, scale.flow, asdict(scale), hospitals), norm_table(norm), real_table(patients_of_eicu))),
        figures(found, shown),
    )  # fmt: skip


def _check(asked: Asked) -> None:
    if asked.methods:
        raise ConfigError(f"--method is {asked.methods[0]!r}; experiment 'ehr-flow' has no methods: all are compared.")
    if asked.hospitals > TRAINING // 2:
        raise ConfigError(f"--hospitals is {asked.hospitals}; {TRAINING} patients are enough for {TRAINING // 2}.")


def _made(make: Arm, patients: Callable[[], list[Patients]]) -> dict[str, Any]:
    return make(patients())


def _real(parts: Parts, quick: bool) -> list[dict[str, Any]]:
    if not quick:
        return real(parts, (4.0, 1.0), 3)
    return real(parts, (4.0,), 1, ("moments, own noise",), 200)


def _patients(seed: int, imputations: int) -> Patients:
    made = cohort(seed=seed)
    known = made.records[list(COLUMNS)].to_numpy(dtype=np.float64)[:TRAINING]
    return Patients(made, imputed(made, imputations, seed), scaled(known))


def _arms(scale: Scale, hospitals: int) -> dict[Key, Arm]:
    """What is run, by method and epsilon."""
    arms: dict[Key, Arm] = {("original", inf): partial(_original, scale=scale)}
    arms |= {(BEFORE, level): partial(_imputed_before, scale=scale, epsilon=level) for level in (inf, *scale.epsilons)}
    arms |= {("flow", level): partial(_flow, scale=scale, epsilon=level) for level in (inf, *scale.epsilons)}
    for level in scale.epsilons:
        arms["moments", level] = partial(_moments, scale=scale, epsilon=level, hospitals=1, shared=True)
    for shared, kind in ((False, "own"), (True, "shared")):
        where = f"{hospitals} hospitals, {kind} noise"
        arms[f"flow, {where}", AT] = partial(_hospitals, scale=scale, hospitals=hospitals, shared=shared)
        arms[f"moments, {where}", AT] = partial(_moments, scale=scale, epsilon=AT, hospitals=hospitals, shared=shared)
    return arms


def _original(patients: Sequence[Patients], scale: Scale) -> dict[str, Any]:
    scores = [[learned(one[:TRAINING], [one[TRAINING:]], scale.trees) for one in person.sets] for person in patients]
    shown = [pressures(patients[0].sets[0][:TRAINING]), *patients[0].sets[0][:TRAINING].T]
    return {**_judged(scores), "shown": [part.round(2).tolist() for part in shown]}


def _imputed_before(patients: Sequence[Patients], scale: Scale, epsilon: float) -> dict[str, Any]:
    """Flows of each imputed set, judged on that set's held-out patients; with bounds kept and without."""
    settings = replace(scale.flow, sample_rate=0.5)
    noise = _noise(settings, epsilon, PUBLISHED_DELTA)
    each = max(1, scale.flows // scale.imputations)
    trained = [[scaled(one[:TRAINING])] for person in patients for one in person.sets for _ in range(each)]
    modules = flows(trained, settings, noise, seed=1)
    rng, at = generator(0, "imputed before", str(epsilon)), 0
    scores: dict[bool, list[list[list[Any]]]] = {True: [], False: []}
    for person in patients:
        for bounded in scores:
            scores[bounded].append([])
        for one in person.sets:
            rows = [drawn(module, scale.rows, rng) for module in modules[at : at + each] for _ in range(scale.sets)]
            at += each
            for bounded, kept in scores.items():
                kept[-1].append([learned(values(u, bounded), [one[TRAINING:]], scale.trees)[0] for u in rows])
    return {**_judged(scores[True]), "loose": _judged(scores[False]), "noise": noise}


def _flow(patients: Sequence[Patients], scale: Scale, epsilon: float) -> dict[str, Any]:
    noise = _noise(scale.flow, epsilon, DELTA)
    modules = flows([[person.scaled] for person in patients for _ in range(scale.flows)], scale.flow, noise, seed=2)
    return _of_modules(patients, scale, modules, f"flow {epsilon}") | {"noise": noise}


def _hospitals(patients: Sequence[Patients], scale: Scale, hospitals: int, shared: bool) -> dict[str, Any]:
    given = [person.by_hospital(hospitals) for person in patients for _ in range(scale.flows)]
    noise = _noise(scale.flow, AT, DELTA)
    assert noise is not None
    if shared:
        modules = flows_by_shared_noise(given, scale.flow, noise, seed=3)
    else:
        modules = flows(given, scale.flow, noise, seed=3, rounds=min(ROUNDS, scale.steps))
    return _of_modules(patients, scale, modules, f"hospitals {shared}") | {"noise": noise}


def _of_modules(patients: Sequence[Patients], scale: Scale, modules: Sequence[Any], name: str) -> dict[str, Any]:
    rng = generator(0, name)
    scores: dict[bool, list[Any]] = {True: [], False: []}
    shown: list[list[float]] = []
    for number, person in enumerate(patients):
        own = modules[number * scale.flows : (number + 1) * scale.flows]
        rows = [drawn(module, scale.rows, rng) for module in own for _ in range(scale.sets)]
        shown = shown or _shown(values(rows[0]))
        for bounded, kept in scores.items():
            kept.append(_by_imputation([learned(values(u, bounded), person.tests, scale.trees) for u in rows]))
    return {**_judged(scores[True]), "loose": _judged(scores[False]), "shown": shown}


def _moments(
    patients: Sequence[Patients], scale: Scale, epsilon: float, hospitals: int, shared: bool
) -> dict[str, Any]:
    noise = calibrate_noise_multiplier(epsilon, DELTA, gaussian_event)
    rng = generator(0, "moments", str(epsilon), str(hospitals), str(shared))
    scores: list[list[list[Any]]] = []
    shown: list[list[float]] = []
    for person in patients:
        given = person.by_hospital(hospitals)
        rows = [
            values(part)
            for _ in range(scale.flows)
            for part in np.split(moments(given, noise, rng, shared, scale.rows * scale.sets), scale.sets)
        ]
        shown = shown or _shown(rows[0])
        scores.append(_by_imputation([learned(one, person.tests, scale.trees) for one in rows]))
    return {**_judged(scores), "noise": noise, "shown": shown}


def _noise(settings: FlowSettings, epsilon: float, delta: float) -> float | None:
    return calibrate_noise_multiplier(epsilon, delta, settings.event) if np.isfinite(epsilon) else None


def _by_imputation(scores: list[list[Any]]) -> list[list[Any]]:
    """[table][imputation] turned round."""
    return [list(one) for one in zip(*scores, strict=True)]


def _judged(scores: Sequence[Sequence[Sequence[Any]]]) -> dict[str, Any]:
    """[cohort][imputation][table] scores as lists over cohorts."""
    found: list[Mapping[str, float]] = [together(own) for own in scores]
    return {name: [one[name] for one in found] for name in found[0]}


def _shown(table: Floats) -> list[list[float]]:
    return [part.round(2).tolist() for part in (pressures(table), *table.T)]
