"""SIMULATED intensive care stays in any number of hospitals; no record is of a real person.

The model. Five independent standard normal traits of a patient (frailty, circulation, breathing, metabolism, infection)
and an effect of the hospital make the logit of death:

    logit = INTERCEPT + SPREAD * (w . traits) / |w| + HOSPITAL_SPREAD * hospital,   w = WEIGHTS,

so that it is normal, and the AUROC of the best possible prediction, which knows the traits, follows from it alone:
``auroc_ceiling``. What is recorded are noisy signs of the traits: six four-hourly values of four vital signs, which follow an
autoregression around a patient's own level; laboratory values; consciousness; comorbidities. One trait moves several
signs, which correlates them. Laboratories take a value more often from the sicker, and hospitals differ in case mix, in
how often they measure, in where their blood pressures read and in mortality.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from polyclinic.ehr.datasets.simulated import check_size, enrolment, patient_names, simulated_dataset, site_names
from polyclinic.ehr.schema import Schema
from polyclinic.types import Floats

STEPS = 6
DEFAULT_SITES = 8
PATIENTS_PER_SITE = 250
TRAITS = ("frailty", "circulation", "breathing", "metabolism", "infection")
WEIGHTS = (0.7, 1.0, 0.7, 0.8, 0.5)
INTERCEPT, SPREAD, HOSPITAL_SPREAD = -3.0, 1.9, 0.3
#: Correlation of a vital sign's deviation from its level with that of four hours before.
PERSISTENCE = 0.7

#: Vital sign -> mean, standard deviations between patients and within one, and the traits' loadings.
_VITALS: dict[str, tuple[float, float, float, tuple[float, ...]]] = {
    "heart_rate": (88, 15, 7, (0.0, 0.6, 0.2, 0.1, 0.4)),
    "mean_pressure": (78, 11, 6, (-0.1, -0.7, 0.0, -0.1, -0.3)),
    "respiratory_rate": (19, 4.5, 2.5, (0.1, 0.1, 0.7, 0.2, 0.3)),
    "spo2": (96, 2.2, 1.2, (-0.1, -0.1, -0.7, 0.0, -0.1)),
}
#: Laboratory value -> median, spread of its logarithm, and the traits' loadings.
_LABS: dict[str, tuple[float, float, tuple[float, ...]]] = {
    "lactate": (1.6, 0.55, (0.0, 0.6, 0.1, 0.5, 0.3)),
    "creatinine": (1.1, 0.50, (0.4, 0.2, 0.0, 0.6, 0.0)),
    "white_cells": (10.0, 0.40, (0.0, 0.0, 0.1, 0.0, 0.8)),
    "bilirubin": (0.7, 0.70, (0.1, 0.0, 0.0, 0.6, 0.2)),
}
_CONSCIOUSNESS = ("alert", "voice", "pain", "unresponsive")
_UNITS = ("medical", "surgical", "cardiac", "neurological")
#: Comorbidity (ICD-10 category) -> share of patients, and how the logit of having it grows with frailty.
_COMORBIDITIES = {"I10": (0.45, 0.3), "E11": (0.25, 0.4), "I50": (0.18, 0.9), "J44": (0.14, 0.7), "N18": (0.15, 0.9),
                  "C80": (0.05, 0.8), "K74": (0.04, 0.5), "F03": (0.06, 1.0)}  # fmt: skip

SCHEMA = Schema.from_toml(Path(__file__).with_suffix(".toml"))
_BOUNDS = {column.name: column.bounds for column in SCHEMA.features if column.bounds is not None}


def auroc_ceiling() -> float:
    """Return the AUROC of the true probability of death in a large population: what no prediction from the records exceeds.

    The logit is normal with mean INTERCEPT and variance SPREAD^2 + HOSPITAL_SPREAD^2. The chance that a patient who
    dies has the higher logit is an integral over two such variables, here by the trapezoidal rule.
    """
    deviation = float(np.hypot(SPREAD, HOSPITAL_SPREAD))
    logit = INTERCEPT + deviation * np.linspace(-8.0, 8.0, 4001)
    density = np.exp(-0.5 * ((logit - INTERCEPT) / deviation) ** 2)
    died = density / (1.0 + np.exp(-logit))
    survived = density - died
    below = np.cumsum(survived) - 0.5 * survived
    return float((died * below).sum() / (died.sum() * survived.sum()))


def generate_icu(sites: int, patients: int, seed: int) -> pd.DataFrame:
    """Return simulated stays as one table, with the hospital's name in ``site``; the same for the same arguments.

    Args:
        sites: The number of hospitals, from 1 to ``patients``.
        patients: The number of rows, one for each patient.
        seed: At least 0.

    Raises:
        ConfigError: Unless 1 <= sites <= patients and seed >= 0.
    """
    return simulate_icu(sites, patients, seed)[0]


def simulate_icu(sites: int, patients: int, seed: int) -> tuple[pd.DataFrame, Floats]:
    """Return ``generate_icu`` and (patients,) each patient's true probability of death, which no record holds.

    Args:
        sites: The number of hospitals, from 1 to ``patients``.
        patients: The number of rows, one for each patient.
        seed: At least 0.

    Raises:
        ConfigError: Unless 1 <= sites <= patients and seed >= 0.
    """
    check_size("a simulation", sites, patients, seed)
    rng = np.random.default_rng(np.random.SeedSequence([seed, *b"icu"]))
    site = enrolment(sites, patients, rng)
    traits = rng.standard_normal((patients, len(TRAITS)))
    weights = np.array(WEIGHTS)
    score = traits @ (weights / np.linalg.norm(weights))
    logit = INTERCEPT + SPREAD * score + HOSPITAL_SPREAD * rng.standard_normal(sites)[site]
    risk = 1.0 / (1.0 + np.exp(-logit))

    surgical = rng.dirichlet(np.array([5.0, 3.0, 2.0, 1.0]), sites)
    unit = (rng.random(patients)[:, None] > np.cumsum(surgical, axis=1)[site][:, :-1]).sum(axis=1)
    elective = rng.random(patients) < np.where(unit == 1, 0.4, 0.05)
    age = np.clip(
        np.round(64.0 + rng.normal(0.0, 3.0, sites)[site] + 9.0 * traits[:, 0] + _noise(rng, patients, 11)), 18, 100
    )
    awake = 0.5 * traits[:, 0] + 0.5 * traits[:, 1] + 0.5 * traits[:, 3] + _noise(rng, patients, 0.7)
    consciousness = np.array(_CONSCIOUSNESS, dtype=object)[np.searchsorted([1.0, 1.6, 2.2], awake)]
    consciousness[rng.random(patients) < 0.03] = None
    columns: dict[str, object] = {
        "patient": patient_names("icu", patients),
        "site": site_names(sites)[site],
        "age": age.astype(np.int64),
        "male": (rng.random(patients) < 0.56).astype(np.int64),
        "unit": np.array(_UNITS, dtype=object)[unit],
        "elective": elective.astype(np.int64),
        "consciousness": consciousness,
        "comorbidities": _comorbidities(traits[:, 0], rng),
    }
    # A laboratory is asked where the doctor worries, so that a missing value is good news.
    unasked = rng.normal(0.8, 0.6, sites)[site] + 0.8 * score
    for name, (median, spread, loadings) in _LABS.items():
        values = median * np.exp(spread * _sign(traits, loadings, rng))
        asked = rng.random(patients) < 1.0 / (1.0 + np.exp(-unasked))
        columns[name] = np.where(asked, np.clip(np.round(values, 2), *_BOUNDS[name]), np.nan)
    missed = rng.uniform(0.02, 0.12, sites)[site]
    offset = rng.normal(0.0, 2.5, sites)[site]
    for name, (mean, between, within, loadings) in _VITALS.items():
        level = mean + between * _sign(traits, loadings, rng) + (offset if name == "mean_pressure" else 0.0)
        columns |= _trajectory(name, level, within, _BOUNDS[name], missed, rng)
    columns["died"] = (rng.random(patients) < risk).astype(np.int64)
    return pd.DataFrame(columns), risk


def _noise(rng: np.random.Generator, patients: int, deviation: float) -> Floats:
    return deviation * rng.standard_normal(patients)


def _sign(traits: Floats, loadings: tuple[float, ...], rng: np.random.Generator) -> Floats:
    """(patients,) a standard normal sign of the traits: their loadings, and noise for the rest of its variance."""
    weights = np.array(loadings)
    return np.asarray(traits @ weights + np.sqrt(1.0 - weights @ weights) * rng.standard_normal(len(traits)))


def _trajectory(
    name: str, level: Floats, within: float, bounds: tuple[float, float], missed: Floats, rng: np.random.Generator
) -> dict[str, Floats]:
    deviation = rng.standard_normal(len(level))
    columns = {}
    for step in range(STEPS):
        values = np.clip(np.round(level + within * deviation), *bounds)
        columns[f"{name}_{step:02d}"] = np.where(rng.random(len(level)) < missed, np.nan, values)
        fresh = rng.standard_normal(len(level))
        deviation = PERSISTENCE * deviation + np.sqrt(1.0 - PERSISTENCE**2) * fresh
    return columns


def _comorbidities(frailty: Floats, rng: np.random.Generator) -> NDArray[np.object_]:
    names = list(_COMORBIDITIES)
    cells = np.array(
        [";".join(c for place, c in enumerate(names) if number >> place & 1) for number in range(1 << len(names))],
        dtype=object,
    )
    number = np.zeros(len(frailty), dtype=np.int64)
    for place, (share, growth) in enumerate(_COMORBIDITIES.values()):
        logit = np.log(share / (1.0 - share)) + growth * frailty
        number |= (rng.random(len(frailty)) < 1.0 / (1.0 + np.exp(-logit))).astype(np.int64) << place
    return np.asarray(cells[number], dtype=object)


DATASET = simulated_dataset(
    "Simulated intensive care",
    "SIMULATED intensive care stays with trajectories, laboratory values, codes and hospitals that differ; any "
    f"number of hospitals of about {PATIENTS_PER_SITE} patients each.",
    SCHEMA,
    generate_icu,
    DEFAULT_SITES,
    DEFAULT_SITES * PATIENTS_PER_SITE,
)
