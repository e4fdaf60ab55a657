"""SIMULATED stays in intensive care: the first five values of nine vital signs, and heart failure; no record is real.

The form is that of the second experiment of Beaulieu-Jones et al. 2019 on MIMIC-III: 8,260 stays, 2,110 with heart failure,
and its nine signs: heart rate, respiration, oxygen saturation, and three pressures each by an arterial line and by a cuff.
There the signs hardly told the diagnosis (AUROC .59), so that nothing could be learnt from comparing generators by it. Here
they do. Four traits of a patient (congestion, output of the heart, arousal, stiffness of the arteries) are normal with
variance 1; heart failure moves their means by SHIFT. A vital sign follows an autoregression around a level that the traits
give, which correlates the signs. Line and cuff read one pressure, each with errors of its own. Atrial fibrillation, commoner
in heart failure, makes the heart rate unsteady: a sign that a linear model cannot read.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from polyclinic.ehr.datasets.simulated import check_size, enrolment, patient_names, simulated_dataset, site_names
from polyclinic.ehr.schema import Column, Schema
from polyclinic.types import Floats

STEPS = 5
DEFAULT_SITES = 5
PATIENTS = 8260
#: Of PATIENTS; any other number of patients has the same share, rounded.
HEART_FAILURES = 2110
#: What heart failure adds to the mean of congestion, output, arousal and stiffness.
SHIFT = (1.3, -1.0, 0.2, 0.4)
#: Correlation of a sign's deviation from its level with that of the value before.
PERSISTENCE = 0.6
#: Share with atrial fibrillation without and with heart failure, and how much unsteadier it makes the heart rate.
FIBRILLATION, UNSTEADY = (0.08, 0.4), 2.5
#: Standard deviation, between hospitals, of where their pressures read, in mmHg.
HOSPITAL_SPREAD = 2.0
#: What a cuff's pressures are apart from the line's, in mmHg: always, between patients, and within one.
CUFF = {"systolic": (-3.0, 7.0, 6.0), "diastolic": (1.0, 5.0, 4.0)}
#: Standard deviation of the error of a mean pressure, in mmHg.
MEAN_ERROR = {"arterial": 1.5, "cuff": 3.0}

#: Sign -> mean, standard deviations between patients and within one, the traits' loadings. Pressures are those in the artery.
_MODEL: dict[str, tuple[float, float, float, tuple[float, ...]]] = {
    "heart_rate": (86, 14, 6, (0.2, -0.3, 0.6, 0.0)),
    "systolic": (121, 19, 9, (0.1, 0.6, 0.3, 0.4)),
    "diastolic": (61, 10, 6, (0.0, 0.4, 0.3, -0.4)),
    "respiratory_rate": (18.5, 4.0, 3.0, (0.6, -0.1, 0.3, 0.0)),
    "spo2": (97, 2.0, 1.3, (-0.6, 0.1, 0.0, 0.0)),
}

#: Vital sign -> unit, bounds (what a monitor shows), and what adults in intensive care usually have: centre and spread,
#: rounded from the literature and not from these records.
VITALS: dict[str, tuple[str, tuple[float, float], float, float]] = {
    "heart_rate": ("beats/min", (0, 300), 87, 18),
    "respiratory_rate": ("breaths/min", (0, 80), 19, 5),
    "spo2": ("%", (0, 100), 97, 3),
    "arterial_systolic": ("mmHg", (0, 350), 120, 22),
    "arterial_diastolic": ("mmHg", (0, 250), 60, 14),
    "arterial_mean": ("mmHg", (0, 300), 80, 15),
    "cuff_systolic": ("mmHg", (0, 350), 120, 22),
    "cuff_diastolic": ("mmHg", (0, 250), 62, 14),
    "cuff_mean": ("mmHg", (0, 300), 78, 15),
}

SCHEMA = Schema(
    name="mimic-hf",
    columns=(
        Column(name="patient", kind="categorical", role="patient_id", description="one stay each"),
        Column(name="site", kind="categorical", role="site"),
        *(
            Column(name=name, kind="trajectory", steps=STEPS, unit=unit, bounds=bounds, centre=centre, spread=spread)
            for name, (unit, bounds, centre, spread) in VITALS.items()
        ),
        Column(name="heart_failure", kind="binary", role="label", description="1 if the patient has heart failure"),
    ),
    rules=tuple(
        rule.replace("by", place)
        for place in MEAN_ERROR
        for rule in ("by_diastolic < by_systolic", "by_diastolic <= by_mean <= by_systolic")
    ),
)


def generate_mimic_hf(sites: int, patients: int, seed: int) -> pd.DataFrame:
    """Simulated stays as one table: ``patients`` rows, one for each patient, with the hospital's name in ``site``.

    No cell is missing. The same table for the same arguments. Raises ConfigError unless 1 <= sites <= patients and
    seed >= 0.
    """
    check_size("a simulation", sites, patients, seed)
    rng = np.random.default_rng(np.random.SeedSequence([seed, *b"mimic-hf"]))
    site = rng.permutation(enrolment(sites, patients, rng))
    failing = rng.permutation(patients) < round(patients * HEART_FAILURES / PATIENTS)
    traits = rng.standard_normal((patients, len(SHIFT))) + failing[:, None] * np.array(SHIFT)
    offset = rng.normal(0.0, HOSPITAL_SPREAD, sites)[site]
    fibrillates = rng.random(patients) < np.where(failing, FIBRILLATION[1], FIBRILLATION[0])

    signs = {}
    for name, (mean, between, within, loadings) in _MODEL.items():
        weights = np.array(loadings)
        own = np.sqrt(1.0 - weights @ weights) * rng.standard_normal(patients)
        level = mean + between * (traits @ weights + own)
        scale = within * np.where(fibrillates & (name == "heart_rate"), UNSTEADY, 1.0)
        signs[name] = level[:, None] + scale[:, None] * _autoregression(patients, rng)
    arterial = {name: signs.pop(name) + offset[:, None] for name in CUFF}
    cuff = {
        name: arterial[name]
        + apart
        + between * rng.standard_normal((patients, 1))
        + within * _autoregression(patients, rng)
        for name, (apart, between, within) in CUFF.items()
    }
    for place, pressures in (("arterial", arterial), ("cuff", cuff)):
        diastolic, pulse = pressures["diastolic"], np.maximum(pressures["systolic"] - pressures["diastolic"], 5.0)
        third = pulse / 3.0 + MEAN_ERROR[place] * rng.standard_normal(pulse.shape)
        signs |= {f"{place}_systolic": diastolic + pulse, f"{place}_diastolic": diastolic,
                  f"{place}_mean": diastolic + np.clip(third, 0.0, pulse)}  # fmt: skip

    columns: dict[str, object] = {"patient": patient_names("stay", patients), "site": site_names(sites)[site]}
    for name, (_, bounds, _, _) in VITALS.items():
        values = np.clip(np.round(signs[name]), *bounds)
        columns |= {f"{name}_{step:02d}": values[:, step] for step in range(STEPS)}
    columns["heart_failure"] = failing.astype(np.int64)
    return pd.DataFrame(columns)


def _autoregression(patients: int, rng: np.random.Generator) -> Floats:
    """(patients, STEPS) standard normal deviations, each correlated with the one before by PERSISTENCE."""
    out = rng.standard_normal((patients, STEPS))
    for step in range(1, STEPS):
        out[:, step] = PERSISTENCE * out[:, step - 1] + np.sqrt(1.0 - PERSISTENCE**2) * out[:, step]
    return out


DATASET = simulated_dataset(
    "Simulated vital signs and heart failure",
    "SIMULATED intensive care stays in the form of an experiment on MIMIC-III: the first five values of nine vital "
    "signs, and heart failure; any number of hospitals.",
    SCHEMA,
    generate_mimic_hf,
    DEFAULT_SITES,
    PATIENTS,
    "Beaulieu-Jones et al. 2019",
)
