"""Tables 1 to 3 of Su, Wang, Schiavazzi and Liu 2023: synthetic patients of a private flow, judged by what they teach.

Target R10, on simulated cohorts (``ehr_cohort``). As published, cells are imputed before training by chained equations over all
patients, each of fifty flows is charged alone, and delta is .01, near one in 64; batch norm is left out here but for the preset
``paper`` (``ehr_published``). Sound: a missing cell is drawn from what the flow says of it given its record, which looks at no
other patient, delta is .001, and every flow is a release of its own that is charged in full. Held-out patients' predictors are
imputed without the outcome in all arms but one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from math import inf
from typing import Any

import numpy as np

from polyclinic.ehr.datasets import eicu
from polyclinic.errors import ConfigError
from polyclinic.experiments import Asked, Findings, Say
from polyclinic.privacy.accounting import calibrate_noise_multiplier, gaussian_event
from polyclinic.privacy.streams import generator
from polyclinic_studies.ehr_flow.cohort import TRAINING
from polyclinic_studies.ehr_flow.figures import figures
from polyclinic_studies.ehr_flow.judges import learned
from polyclinic_studies.ehr_flow.published import run as published
from polyclinic_studies.ehr_flow.real import real, real_table
from polyclinic_studies.ehr_flow.release import (
    FlowSettings,
    batch_norm,
    drawn,
    flows,
    flows_by_shared_noise,
    moments,
    values,
)
from polyclinic_studies.ehr_flow.study import (
    QUICK,
    Arm,
    Patients,
    Scale,
    answers,
    by_imputation,
    cohorts,
    judged,
    judged_on_own_sets,
    nothing,
    original,
    original_as_published,
    own_sets,
    rows_of,
    shown_in,
    shown_of,
)
from polyclinic_studies.ehr_flow.tables import BEFORE, LEAKING, NOTHING, Key, norm_table, tables, targets
from polyclinic_studies.parts import Parts

DELTA, PUBLISHED_DELTA, AT = 1e-3, 1e-2, 4.0
HOSPITALS = 3


def run(asked: Asked, say: Say) -> Findings:
    """``quick``: one cohort, few steps, one epsilon. ``seeds``: the number of cohorts. ``paper``: the published form alone.

    Raises ConfigError for methods by name, and for more hospitals than have two patients each, or any with ``paper``.
    """
    _check(asked)
    if asked.preset == "paper":
        return published(asked, say)
    scale = QUICK if asked.quick else Scale()
    scale = replace(scale, cohorts=asked.seeds or scale.cohorts)
    hospitals, parts, patients = asked.hospitals or HOSPITALS, Parts(asked.out, say), cohorts(scale)
    settings = {**asdict(scale), "hospitals": hospitals, "delta": DELTA}
    found = answers(parts, _arms(scale, hospitals), settings, patients, say)
    norm = parts.answer("batch norm", {"quick": asked.quick}, lambda: batch_norm(patients()[0].sets[0], asked.quick))
    patients_of_eicu = _real(parts, asked.quick) if eicu.DATASET.available() else []
    config = {**settings, "published-delta": PUBLISHED_DELTA, "epsilons": list(scale.epsilons),
              **{f"flow-{name}": value for name, value in asdict(scale.flow).items()}}  # fmt: skip
    return Findings(
        config, targets(found, None if asked.quick else AT),
        {"rows": rows_of(found), "batch norm": norm, "real": patients_of_eicu},
        "\n".join((tables(found, scale.flow, asdict(scale), hospitals), norm_table(norm), real_table(patients_of_eicu))),
        figures(found, shown_in(found)),
    )  # fmt: skip


def _check(asked: Asked) -> None:
    if asked.methods:
        raise ConfigError(f"--method is {asked.methods[0]!r}; experiment 'ehr-flow' has no methods: all are compared.")
    if asked.hospitals and asked.preset == "paper":
        raise ConfigError(f"--hospitals is {asked.hospitals}; the published form, --preset paper, has no hospitals.")
    if asked.hospitals > TRAINING // 2:
        raise ConfigError(f"--hospitals is {asked.hospitals}; {TRAINING} patients are enough for {TRAINING // 2}.")


def _real(parts: Parts, quick: bool) -> list[dict[str, Any]]:
    if not quick:
        return real(parts, (4.0, 1.0), 3)
    return real(parts, (4.0,), 1, ("moments, own noise",), 200)


def _arms(scale: Scale, hospitals: int) -> dict[Key, Arm]:
    """What is run, by method and epsilon."""
    arms: dict[Key, Arm] = {
        (NOTHING, inf): partial(nothing, scale=scale),
        ("original", inf): partial(original, scale=scale),
    }
    arms[LEAKING, inf] = partial(original_as_published, scale=scale)
    arms |= {(BEFORE, level): partial(_imputed_before, scale=scale, epsilon=level) for level in (inf, *scale.epsilons)}
    arms |= {("flow", level): partial(_flow, scale=scale, epsilon=level) for level in (inf, *scale.epsilons)}
    for level in scale.epsilons:
        arms["moments", level] = partial(_moments, scale=scale, epsilon=level, hospitals=1, shared=True)
    for shared, kind in ((False, "own"), (True, "shared")):
        where = f"{hospitals} hospitals, {kind} noise"
        arms[f"flow, {where}", AT] = partial(_hospitals, scale=scale, hospitals=hospitals, shared=shared)
        arms[f"moments, {where}", AT] = partial(_moments, scale=scale, epsilon=AT, hospitals=hospitals, shared=shared)
    return arms


def _imputed_before(patients: Sequence[Patients], scale: Scale, epsilon: float) -> dict[str, Any]:
    """Flows of each imputed set, judged on that set's held-out patients."""
    settings = replace(scale.flow, sample_rate=0.5)
    noise = _noise(settings, epsilon, PUBLISHED_DELTA)
    modules = flows([[rows] for rows in own_sets(patients, scale)], settings, noise, seed=1)
    return judged_on_own_sets(patients, scale, modules, "imputed before", str(epsilon)) | {"noise": noise}


def _flow(patients: Sequence[Patients], scale: Scale, epsilon: float) -> dict[str, Any]:
    noise = _noise(scale.flow, epsilon, DELTA)
    modules = flows([[person.scaled] for person in patients for _ in range(scale.flows)], scale.flow, noise, seed=2)
    return _of_modules(patients, scale, modules, f"flow {epsilon}") | {"noise": noise}


def _hospitals(patients: Sequence[Patients], scale: Scale, hospitals: int, shared: bool) -> dict[str, Any]:
    given = [person.by_hospital(hospitals) for person in patients for _ in range(scale.flows)]
    noise = _noise(scale.flow, AT, DELTA)
    assert noise is not None
    trained = flows_by_shared_noise if shared else flows
    modules = trained(given, scale.flow, noise, seed=3)
    return _of_modules(patients, scale, modules, f"hospitals {shared}") | {"noise": noise}


def _of_modules(patients: Sequence[Patients], scale: Scale, modules: Sequence[Any], name: str) -> dict[str, Any]:
    rng = generator(0, name)
    scores: list[list[list[Any]]] = []
    shown: list[list[float]] = []
    for number, person in enumerate(patients):
        own = modules[number * scale.flows : (number + 1) * scale.flows]
        rows = [values(drawn(module, scale.rows, rng)) for module in own for _ in range(scale.sets)]
        shown = shown or shown_of(rows[0])
        scores.append(by_imputation([learned(one, person.tests, scale.trees) for one in rows]))
    return {**judged(scores), "shown": shown}


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
        shown = shown or shown_of(rows[0])
        scores.append(by_imputation([learned(one, person.tests, scale.trees) for one in rows]))
    return {**judged(scores), "noise": noise, "shown": shown}


def _noise(settings: FlowSettings, epsilon: float, delta: float) -> float | None:
    return calibrate_noise_multiplier(epsilon, delta, settings.event) if np.isfinite(epsilon) else None
