"""A SIMULATED two-arm blood pressure trial in any number of hospitals; no record is of a real person.

Each participant has twelve monthly visits with systolic and diastolic pressure and the number of medicines; hospitals
differ in size, case mix, effect of treatment and missed visits. The label is whether the pressure is controlled (below
130 mmHg systolic) at the close-out visit after the twelve, whose measurements are not in the records.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from polyclinic.ehr.datasets.simulated import check_size, enrolment, patient_names, simulated_dataset, site_names
from polyclinic.ehr.schema import Schema
from polyclinic.types import Bools, Floats

VISITS = 12
DEFAULT_SITES = 8
PATIENTS_PER_SITE = 200
#: Controlled: systolic pressure at close-out below this, in mmHg.
CONTROLLED_BELOW = 130.0

SCHEMA = Schema.from_toml(Path(__file__).with_suffix(".toml"))


def generate_trial(sites: int, patients: int, seed: int) -> pd.DataFrame:
    """Return a simulated trial as one table, with the hospital's name in ``site``; the same for the same arguments.

    Args:
        sites: The number of hospitals, from 1 to ``patients``.
        patients: The number of rows, one for each patient.
        seed: At least 0.

    Raises:
        ConfigError: Unless 1 <= sites <= patients and seed >= 0.
    """
    check_size("a trial", sites, patients, seed)
    rng = np.random.default_rng(np.random.SeedSequence([seed, *b"trial"]))
    site = enrolment(sites, patients, rng)
    shift = rng.normal(0.0, 4.0, sites)[site]
    response = rng.normal(1.0, 0.2, sites)[site]
    missed = rng.uniform(0.03, 0.15, sites)[site]
    mean_age = rng.normal(66.0, 3.0, sites)[site]

    intensive = rng.integers(0, 2, patients)
    male = (rng.random(patients) < 0.6).astype(np.int64)
    diabetes = (rng.random(patients) < 0.3).astype(np.int64)
    age = np.clip(np.round(rng.normal(mean_age, 8.0)), 40, 90)

    baseline = 142.0 + shift + 0.2 * (age - 66.0) + 3.0 * diabetes + rng.normal(0.0, 10.0, patients)
    fall = response * (7.0 + 11.0 * intensive) * rng.gamma(6.0, 1.0 / 6.0, patients)
    progress = 1.0 - np.exp(-np.arange(VISITS + 1) / 4.0)
    true_sbp = baseline[:, None] - fall[:, None] * progress
    noise = rng.normal(0.0, 7.0, (patients, VISITS + 1))
    sbp = np.clip(np.round(true_sbp + noise), 60, 240)
    dbp = np.clip(np.round(0.45 * sbp + 16.0 - 0.15 * (age[:, None] - 66.0) + rng.normal(0, 5, sbp.shape)), 30, 150)
    started = np.round(1.8 + 0.6 * diabetes + rng.normal(0.0, 0.7, patients))
    added = (0.4 + 1.2 * intensive)[:, None] * progress + rng.normal(0.0, 0.3, sbp.shape)
    medicines = np.clip(np.round(started[:, None] + added), 0, 8)

    absent = _missed_visits(missed, rng)
    columns: dict[str, object] = {
        "patient": patient_names("trial", patients),
        "site": site_names(sites)[site],
        "intensive": intensive,
        "age": age.astype(np.int64),
        "male": male,
        "diabetes": diabetes,
    }
    for name, values in (("sbp", sbp), ("dbp", dbp), ("medicines", medicines)):
        seen = np.where(absent, np.nan, values[:, :VISITS])
        columns |= {f"{name}_{visit:02d}": seen[:, visit] for visit in range(VISITS)}
    columns["controlled"] = (sbp[:, VISITS] < CONTROLLED_BELOW).astype(np.int64)
    return pd.DataFrame(columns)


def _missed_visits(rate: Floats, rng: np.random.Generator) -> Bools:
    """(patients, visits): visits missed at random, and 5 % of patients who stay away from some visit on."""
    patients = len(rate)
    absent = rng.random((patients, VISITS)) < rate[:, None]
    last = np.where(rng.random(patients) < 0.05, rng.integers(3, VISITS, patients), VISITS)
    absent |= np.arange(VISITS) >= last[:, None]
    absent[:, 0] = False
    return absent


DATASET = simulated_dataset(
    "Simulated blood pressure trial",
    "SIMULATED two-arm trial with twelve monthly visits and hospitals that differ; any number of hospitals "
    f"of about {PATIENTS_PER_SITE} patients each.",
    SCHEMA,
    generate_trial,
    DEFAULT_SITES,
    DEFAULT_SITES * PATIENTS_PER_SITE,
)
