"""SIMULATED participants of a blood pressure trial in the form of SPRINT: twelve visits, two arms; no record is real.

The form is that of the first experiment of Beaulieu-Jones et al. 2019: the 6,502 participants with all twelve visits up to
month 27, systolic and diastolic pressure and the number of medicines, and the arm to be told from them. The constants are
chosen by hand so that scikit-learn's classifiers reach the paper's accuracy on its real data (LR .934, RF .926, SVM .936,
kNN .875) and the means are its means (129.0, 72.0, 2.27).

The model. Systolic pressure falls from a skewed baseline towards a level that the arm sets and that keeps a part of the
baseline; treatment to a target also steadies the visits of the intensive arm, by STEADIER. Diastolic pressure follows the
systolic one, a visit's deviation more closely than its fall. Medicines are counts that grow in the intensive arm.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from polyclinic.ehr.datasets.simulated import check_size, enrolment, patient_names, simulated_dataset, site_names
from polyclinic.ehr.schema import Column, Schema
from polyclinic.types import Floats

#: Months of the visits.
MONTHS = (0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27)
VISITS = len(MONTHS)
DEFAULT_SITES = 5
PATIENTS = 6502
#: Of PATIENTS; any other number of patients has the same share, rounded.
INTENSIVE = 3236

#: Systolic pressure in mmHg: mean and spread at entry; where the standard and the intensive arm settle, after how many months
#: (time constant), the part of a participant's own entry that stays, and the spread of what is left.
ENTRY, ENTRY_SPREAD = 139.5, 12.0
SETTLED, FALLING = (134.4, 119.2), (3.0, 1.5)
KEPT, OWN_SPREAD = 0.3, 2.0
#: A visit's deviation: spread in mmHg, correlation with the visit before, and its part that treatment to a target leaves.
VISIT_SPREAD, PERSISTENCE, STEADIER = 12.3, 0.15, 0.67
#: Diastolic pressure at a systolic one of 129 mmHg, its slope on falls and on deviations, spread between participants and visits.
DIASTOLIC, SLOPES = 72.0, (0.41, 0.57)
DIASTOLIC_SPREAD, DIASTOLIC_NOISE = 8.0, 6.8
#: Medicines: the most and the mean at entry; added in the end by arm, after how many months, its spread, a visit's spread.
AT_ENTRY, ADDED, ADDING = (6, 1.87), (0.1, 0.85), 3.0
ADDED_SPREAD, CHANGED = 0.7, 0.5
#: Spread between hospitals of where their pressures read, in mmHg.
HOSPITAL_SPREAD = 2.0

# Bounds: what a clinic would accept as a reading. Centre and spread: what is publicly known of such trials, rounded.
SCHEMA = Schema(
    name="sprint",
    columns=(
        Column(name="patient", kind="categorical", role="patient_id"),
        Column(name="site", kind="categorical", role="site"),
        Column(
            name="sbp",
            kind="trajectory",
            whole=True,
            steps=VISITS,
            unit="mmHg",
            bounds=(60.0, 240.0),
            centre=130.0,
            spread=17.0,
        ),
        Column(
            name="dbp",
            kind="trajectory",
            whole=True,
            steps=VISITS,
            unit="mmHg",
            bounds=(30.0, 150.0),
            centre=73.0,
            spread=12.0,
        ),
        Column(
            name="medicines", kind="trajectory", whole=True, steps=VISITS, bounds=(0.0, 8.0), centre=2.3, spread=1.2
        ),
        Column(name="intensive", kind="binary", role="label", description="1 intensive arm, 0 standard arm"),
    ),
    rules=("dbp < sbp",),
)


def generate_sprint(sites: int, patients: int, seed: int) -> pd.DataFrame:
    """A simulated trial as one table: ``patients`` rows in all, each with its hospital's name in ``site``.

    All numbers are whole and no visit is missing. The rows are in random order, so that the last so many are a sample. The
    same table for the same arguments. Raises ConfigError unless 1 <= sites <= patients and seed >= 0.
    """
    check_size("a trial", sites, patients, seed)
    rng = np.random.default_rng(np.random.SeedSequence([seed, *b"sprint visits"]))
    site = rng.permutation(enrolment(sites, patients, rng))
    reads = rng.normal(0.0, HOSPITAL_SPREAD, sites)[site][:, None]
    reads -= reads.mean()
    intensive = rng.permutation(patients) < round(patients * INTENSIVE / PATIENTS)
    months = np.array(MONTHS, dtype=np.float64)

    entry = ENTRY_SPREAD * (rng.gamma(4.0, 0.5, patients) - 2.0)
    settled = np.choose(intensive, SETTLED) - ENTRY + KEPT * entry + rng.normal(0.0, OWN_SPREAD, patients)
    slowness = np.choose(intensive, FALLING) * rng.gamma(4.0, 0.25, patients)
    left = np.exp(-months / slowness[:, None])
    course = ENTRY + settled[:, None] + (entry - settled)[:, None] * left + reads
    steadiness = np.where(intensive[:, None], STEADIER + (1.0 - STEADIER) * left, 1.0)
    deviation = VISIT_SPREAD * steadiness * _autoregression(patients, rng)
    sbp = course + deviation

    own = rng.normal(0.0, DIASTOLIC_SPREAD, (patients, 1))
    noise = DIASTOLIC_NOISE * steadiness * rng.standard_normal((patients, VISITS))
    dbp = DIASTOLIC + SLOPES[0] * (course - 129.0) + SLOPES[1] * deviation + own + noise

    added = np.choose(intensive, ADDED) + rng.normal(0.0, ADDED_SPREAD, patients)
    taken = rng.binomial(AT_ENTRY[0], AT_ENTRY[1] / AT_ENTRY[0], patients)
    grown = added[:, None] * (1.0 - np.exp(-months / ADDING))
    medicines = taken[:, None] + grown + rng.normal(0.0, CHANGED, (patients, VISITS))

    columns: dict[str, object] = {"patient": patient_names("sprint", patients), "site": site_names(sites)[site]}
    for column, values in zip(SCHEMA.features, (sbp, dbp, medicines), strict=True):
        whole = np.clip(np.round(values), *(column.bounds or (0.0, 0.0)))
        columns |= {name: whole[:, visit] for visit, name in enumerate(column.record_names)}
    columns["intensive"] = intensive.astype(np.int64)
    return pd.DataFrame(columns)


def _autoregression(patients: int, rng: np.random.Generator) -> Floats:
    """(patients, VISITS) standard normal deviations, each correlated with the one before by PERSISTENCE."""
    out = rng.standard_normal((patients, VISITS))
    for visit in range(1, VISITS):
        out[:, visit] = PERSISTENCE * out[:, visit - 1] + np.sqrt(1.0 - PERSISTENCE**2) * out[:, visit]
    return out


DATASET = simulated_dataset(
    "Simulated trial in the form of SPRINT",
    "SIMULATED blood pressure trial with twelve visits, in which arm, on which published classifiers' accuracies "
    "hold; any number of hospitals.",
    SCHEMA,
    generate_sprint,
    DEFAULT_SITES,
    PATIENTS,
    "Beaulieu-Jones et al. 2019",
)
